/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_CODEC_GOLDENS_H
#define HDT_TESTS_SUPPORT_CODEC_GOLDENS_H

/*
 * Frames of worker codecs, worked out by hand from doc/codecs.md, never taken from an encoder: they
 * pin the coded forms on the processor and on every device.
 */
#include <stddef.h>
#include <stdint.h>

struct codec_golden {
    const char *text;  /* of the spec */
    const void *plain; /* n fp32 values, as bits */
    const void *back;  /* what `coded` decodes to; NULL: not a test of the decoder */
    size_t n;
    const uint8_t *coded;
    size_t coded_len;
};

extern const struct codec_golden hdt_codec_goldens[];
extern const size_t hdt_n_codec_goldens;

#endif /* HDT_TESTS_SUPPORT_CODEC_GOLDENS_H */
