/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_QUANT_FORM_H
#define HDT_COMPRESS_QUANT_FORM_H

/* The frames of the block quantizers, for the codecs of this folder: what a spec means, where the
 * parts stand, what is refused and in which words (codec_quant.c). */
#include "compress/kernels.h"

struct hdt_quant_form {
    enum hdt_quant_kind kind;
    size_t block;
    size_t params_len; /* bytes of a block's parameters */
    unsigned code_bits;
    bool rotate;
};

/* `id`: int8, int4 or fp8. */
struct hdt_quant_form hdt_quant_form_of(const struct hdt_codec_spec *spec, enum hdt_codec_id id);

/* Bytes of the parameters of n values, filled up to a multiple of 16; of their codes. */
size_t hdt_quant_head_len(const struct hdt_quant_form *f, size_t n);
size_t hdt_quant_codes_len(const struct hdt_quant_form *f, size_t n);

/* HDT_EINVAL when the guard has seen values without a coded form. */
enum hdt_status hdt_quant_check_guard(const struct hdt_codec_spec *spec, enum hdt_codec_id id,
                                      const struct hdt_codec_guard *guard, struct hdt_error *err);

/* HDT_EPROTO: parameters that no encoder writes. */
enum hdt_status hdt_quant_refuse_block(enum hdt_codec_id id, size_t block, struct hdt_error *err);

#endif /* HDT_COMPRESS_QUANT_FORM_H */
