/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_SPEC_H
#define HDT_COMPRESS_SPEC_H

/*
 * What an edge does to a tensor, as its user writes it and as the parts of a run pass it on.
 *
 *     [delta:]WORKER[:OPTION[,OPTION...]][+lossless]        or        lossless
 *
 * WORKER is the codec between tensor and frame, "lossless" the one between frame and wire:
 * "bf16", "int8:block=64", "int4:block=64,rotate+lossless", "topk:64,bits=2", "lowrank:4",
 * "delta:int4". Which options a codec takes stands in one table, hdt_codec_words.
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of the wire protocol: never renumber. */
enum hdt_codec_id {
    HDT_CODEC_NONE = 0,
    HDT_CODEC_BF16 = 1,
    HDT_CODEC_INT8 = 2,
    HDT_CODEC_LOSSLESS = 3,
    HDT_CODEC_FP16 = 4,
    HDT_CODEC_FP8 = 5,
    HDT_CODEC_INT4 = 6,
    HDT_CODEC_TOPK = 7,
    HDT_CODEC_RANDK = 8,
    HDT_CODEC_LOWRANK = 9,
    HDT_CODEC_COUNT
};

/* Options that are on or off: flags of a spec. */
enum hdt_codec_flags {
    HDT_CODEC_E5M2 = 1u << 0,       /* fp8: five bits of exponent rather than four */
    HDT_CODEC_MINMAX = 1u << 1,     /* scale and zero point of a block from its least and largest */
    HDT_CODEC_ROTATE = 1u << 2,     /* Hadamard rotation of each block before it is quantized */
    HDT_CODEC_STOCHASTIC = 1u << 3, /* rounding up or down by chance, from a seed */
    HDT_CODEC_DELTA = 1u << 4,      /* the change since the same sample was last sent */
};

/* Options with a number; with the flags, the set of options that a codec takes. */
enum hdt_codec_options {
    HDT_CODEC_OPT_BLOCK = 1u << 16, /* "block=N" */
    HDT_CODEC_OPT_BITS = 1u << 17,  /* "bits=N" */
    HDT_CODEC_OPT_KEEP = 1u << 18,  /* "N", one of N values is kept */
    HDT_CODEC_OPT_RANK = 1u << 19,  /* "N" */
};

#define HDT_CODEC_BLOCK_MIN 32
#define HDT_CODEC_BLOCK_MAX 1024
#define HDT_CODEC_KEEP_MAX  1024
#define HDT_CODEC_RANK_MAX  64

/* What an edge does to a tensor. Plain data: zero it, then compare it by its bytes (parse and
 * default leave none undefined). All zero is "none". */
struct hdt_codec_spec {
    uint8_t worker, gateway; /* enum hdt_codec_id */
    uint8_t bits;            /* topk, randk: of a value, 2, 4, 8 or 16; else 0 */
    uint8_t rank;            /* lowrank: 1..HDT_CODEC_RANK_MAX; else 0 */
    uint16_t block; /* values that share a scale: 32..1024, a power of two; 0: the codec's default
                       (the default written out is 0, too) */
    uint16_t keep;  /* topk, randk: one of so many values, 2..1024, a power of two; else 0 */
    uint16_t flags; /* enum hdt_codec_flags */
};
HDT_STATIC_ASSERT(sizeof(struct hdt_codec_spec) == 10, "compared by its bytes: no padding");

/* One word of the language: a codec that exists. */
struct hdt_codec_word {
    enum hdt_codec_id id;
    const char *name;
    unsigned options;               /* enum hdt_codec_flags and enum hdt_codec_options */
    struct hdt_codec_spec defaults; /* block, bits, keep, rank where nothing is written */
    const char *texts;              /* codecs worth a row in a comparison, separated by spaces */
};

/* The table of codecs that exist, by number. */
const struct hdt_codec_word *hdt_codec_words(size_t *n);

/* The word of a number; NULL when no such codec exists. */
const struct hdt_codec_word *hdt_codec_word(unsigned id);

/* Room of a codec's text, its zero included. */
#define HDT_CODEC_SPEC_TEXT 96

/* Read a codec's text. HDT_EINVAL: there is no such codec, or it does not take the option; the hint
 * lists what exists. *spec is set on success only. */
enum hdt_status hdt_codec_spec_parse(const char *text, struct hdt_codec_spec *spec,
                                     struct hdt_error *err);

/* Write the one text of a spec, which parse reads as the same spec, and return it. A spec that
 * parse would not make gives "?". */
const char *hdt_codec_spec_format(const struct hdt_codec_spec *spec,
                                  char text[HDT_CODEC_SPEC_TEXT]);

/* Could parse have made this spec? For specs that came as numbers. HDT_EINVAL. */
enum hdt_status hdt_codec_spec_check(const struct hdt_codec_spec *spec, struct hdt_error *err);

/* A codec alone and without options: as worker codec, `lossless` as gateway codec. `id` exists. */
struct hdt_codec_spec hdt_codec_spec_default(enum hdt_codec_id id);

bool hdt_codec_spec_equal(const struct hdt_codec_spec *a, const struct hdt_codec_spec *b);

/* What exists, for hints: "none, bf16, int8, ...", without options. */
void hdt_codec_spec_known(char *text, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_SPEC_H */
