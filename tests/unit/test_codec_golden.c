/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes worked out by hand from doc/codecs.md, never taken from the encoder: they pin the coded
 * forms, so that a gateway of another version or make can be spoken to.
 */
#include "config.h"

#include "compress/codec.h"
#include "tests/support/codec_goldens.h"

#include <criterion/criterion.h>
#include <string.h>

static struct hdt_codec_ctx *ctx;

static void setup(void)
{
    cr_assert_eq(hdt_codec_ctx_new(65536, &ctx, NULL), HDT_OK);
}

static void teardown(void)
{
    hdt_codec_ctx_free(ctx);
}

TestSuite(codec_golden, .init = setup, .fini = teardown);

struct golden {
    const struct hdt_codec_ops *codec;
    struct hdt_codec_spec spec; /* all zero: without options */
    enum hdt_dtype dtype;
    uint64_t offset;
    const uint8_t *plain;
    size_t plain_len;
    const uint8_t *coded;
    size_t coded_len;
};

static void check_encodes_to(const struct golden *g)
{
    uint8_t coded[4096];
    size_t len = 0;
    struct hdt_codec_io io = {.spec = g->spec.worker ? &g->spec : NULL,
                              .src = g->plain,
                              .src_len = g->plain_len,
                              .dst = coded,
                              .dst_len = sizeof(coded),
                              .dtype = g->dtype,
                              .offset = g->offset};

    cr_assert_eq(hdt_codec_encode(g->codec, ctx, &io, &len, NULL), HDT_OK);
    cr_assert_eq(len, g->coded_len);
    cr_assert_eq(memcmp(coded, g->coded, len), 0, "%s", g->codec->name);
}

static void check_decodes_to(const struct golden *g)
{
    uint8_t back[4096];
    struct hdt_codec_io io = {.spec = g->spec.worker ? &g->spec : NULL,
                              .src = g->coded,
                              .src_len = g->coded_len,
                              .dst = back,
                              .dst_len = g->plain_len,
                              .dtype = g->dtype,
                              .offset = g->offset};
    struct hdt_error err = {0};

    cr_assert_eq(hdt_codec_decode(g->codec, ctx, &io, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(memcmp(back, g->plain, g->plain_len), 0, "%s", g->codec->name);
}

static void check_refused(const struct golden *g)
{
    uint8_t back[4096];
    struct hdt_codec_io io = {.spec = g->spec.worker ? &g->spec : NULL,
                              .src = g->coded,
                              .src_len = g->coded_len,
                              .dst = back,
                              .dst_len = g->plain_len,
                              .dtype = g->dtype,
                              .offset = g->offset};

    cr_assert_eq(hdt_codec_decode(g->codec, ctx, &io, NULL), HDT_EPROTO);
}

#define GOLDEN(codec_, dtype_, offset_, plain_, coded_)                                            \
 {                                                                                                 \
  .codec = (codec_), .dtype = (dtype_), .offset = (offset_), .plain = (const void *)(plain_),      \
  .plain_len = sizeof(plain_), .coded = (coded_), .coded_len = sizeof(coded_)                      \
 }

Test(codec_golden, worker_codecs)
{
    for (size_t i = 0; i < hdt_n_codec_goldens; i++) {
        const struct codec_golden *c = &hdt_codec_goldens[i];
        struct golden g = {.dtype = HDT_DTYPE_F32,
                           .plain = c->plain,
                           .plain_len = 4 * c->n,
                           .coded = c->coded,
                           .coded_len = c->coded_len};

        cr_assert_eq(hdt_codec_spec_parse(c->text, &g.spec, NULL), HDT_OK);
        g.codec = hdt_codec_spec_worker(&g.spec);
        check_encodes_to(&g);
        g.plain = c->back;
        if (c->back) {
            check_decodes_to(&g);
        }
    }
}

Test(codec_golden, int8_of_two_blocks)
{
    /* block 0: 256 times 2^-3 (scale 2^-3 / 127); block 1: one value of 254 (scale 2) */
    float plain[257], scale = 0.125f / 127.0f;
    uint8_t coded[16 + 257] = {0};

    for (int i = 0; i < 256; i++) {
        plain[i] = 0.125f;
        coded[16 + i] = 127;
    }
    plain[256] = 254.0f;
    coded[16 + 256] = 127;
    memcpy(coded, &scale, 4);
    memcpy(coded + 4, "\x00\x00\x00\x40", 4);
    struct golden g = GOLDEN(&hdt_codec_int8, HDT_DTYPE_F32, 0, plain, coded);

    check_encodes_to(&g);
}

static void check_both(const char *text, const void *plain, size_t plain_len, const void *back,
                       const uint8_t *coded, size_t coded_len)
{
    struct golden g = {.dtype = HDT_DTYPE_F32,
                       .plain = plain,
                       .plain_len = plain_len,
                       .coded = coded,
                       .coded_len = coded_len};

    cr_assert_eq(hdt_codec_spec_parse(text, &g.spec, NULL), HDT_OK);
    g.codec = hdt_codec_spec_worker(&g.spec);
    check_encodes_to(&g);
    g.plain = back;
    check_decodes_to(&g);
}

Test(codec_golden, int8_of_another_block)
{
    /* 33 values in blocks of 32: two scales, filled up to 16 bytes */
    float plain[33];
    uint8_t coded[16 + 33] = {0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0x40};

    for (int i = 0; i < 33; i++) {
        plain[i] = i < 32 ? -127.0f : 254.0f;
        coded[16 + i] = i < 32 ? 0x81 : 0x7f;
    }
    check_both("int8:block=32", plain, sizeof(plain), plain, coded, sizeof(coded));
}

Test(codec_golden, int8_refuses_scales_that_are_no_scale)
{
    static const float plain[1];
    static const uint8_t nan[17] = {0x00, 0x00, 0xc0, 0x7f}, inf[17] = {0x00, 0x00, 0x80, 0x7f},
                         negative[17] = {0x00, 0x00, 0x80, 0xbf};
    static const struct golden cases[] = {
        GOLDEN(&hdt_codec_int8, HDT_DTYPE_F32, 0, plain, nan),
        GOLDEN(&hdt_codec_int8, HDT_DTYPE_F32, 0, plain, inf),
        GOLDEN(&hdt_codec_int8, HDT_DTYPE_F32, 0, plain, negative),
    };

    for (int i = 0; i < 3; i++) {
        check_refused(&cases[i]);
    }
}

Test(codec_golden, lossless_raw)
{
    static const uint8_t plain[] = {1, 2, 3, 4, 5};
    static const uint8_t coded[] = {0, 1, 2, 3, 4, 5};
    static const struct golden g = GOLDEN(&hdt_codec_lossless, HDT_DTYPE_F32, 6, plain, coded);

    check_encodes_to(&g);
    check_decodes_to(&g);
}

/*
 * A zstd frame by RFC 8878: magic, descriptor 0x20 (single segment, content size in one byte), the
 * size, one last block: raw (header 1 | size << 3) or RLE (header 3 | size << 3).
 */
#define ZSTD_MAGIC        0x28, 0xb5, 0x2f, 0xfd
#define ZSTD_RLE(n, byte) ZSTD_MAGIC, 0x20, (n), (uint8_t)(3 | (n) << 3), (n) >> 5, 0, (byte)
#define ZSTD_RAW(n, ...)  ZSTD_MAGIC, 0x20, (n), (uint8_t)(1 | (n) << 3), (n) >> 5, 0, __VA_ARGS__

#define TIMES_4(...)  __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define TIMES_8(...)  TIMES_4(__VA_ARGS__), TIMES_4(__VA_ARGS__)
#define TIMES_16(...) TIMES_8(__VA_ARGS__), TIMES_8(__VA_ARGS__)

Test(codec_golden, lossless_planes_of_bf16)
{
    /* A chunk at byte 7 of its frame: an odd byte, then 1, -1, 1, -1, ..., then an odd byte.
     * Rotated: 1 = 0x3f80 -> 0x7f00, -1 = 0xbf80 -> 0x7f01. */
    static const uint8_t plain[] = {0xaa, TIMES_8(0x80, 0x3f, 0x80, 0xbf), 0xbb};
    static const uint8_t coded[] = {1,
                                    0x02, /* planes; plane 1 is coded */
                                    10,
                                    0,
                                    0,
                                    0, /* length of its zstd frame */
                                    0xaa,
                                    0xbb,                /* odd bytes: head, tail */
                                    TIMES_8(0x00, 0x01), /* plane 0, as it is */
                                    ZSTD_RLE(16, 0x7f)};
    static const struct golden g = GOLDEN(&hdt_codec_lossless, HDT_DTYPE_BF16, 7, plain, coded);

    check_decodes_to(&g);
}

Test(codec_golden, lossless_planes_of_f32)
{
    /* 1 = 0x3f800000 -> 0x7f000000, -1.5 = 0xbfc00000 -> 0x7f800001, 2 = 0x40000000 -> 0x80000000,
     * 0.5 = 0x3f000000 -> 0x7e000000; planes 1 and 3 are coded */
    static const uint8_t plain[] = {TIMES_8(0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0xc0, 0xbf, 0x00,
                                            0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x3f)};
    static const uint8_t coded[] = {1,
                                    0x0a,
                                    10,
                                    0,
                                    0,
                                    0,
                                    41,
                                    0,
                                    0,
                                    0,
                                    TIMES_8(0x00, 0x01, 0x00, 0x00), /* plane 0, as it is */
                                    TIMES_8(0x00, 0x80, 0x00, 0x00), /* plane 2, as it is */
                                    ZSTD_RLE(32, 0x00),
                                    ZSTD_RAW(32, TIMES_8(0x7f, 0x7f, 0x80, 0x7e))};
    static const struct golden g = GOLDEN(&hdt_codec_lossless, HDT_DTYPE_F32, 4096, plain, coded);

    check_decodes_to(&g);
}

static const uint8_t u16_plain[] = {TIMES_16(0x34, 0x12)};
static const uint8_t u16_coded[] = {1, 0x02, 10, 0, 0, 0, TIMES_16(0x34), ZSTD_RLE(16, 0x12)};

Test(codec_golden, lossless_planes_of_integers_are_not_rotated)
{
    static const struct golden g =
        GOLDEN(&hdt_codec_lossless, HDT_DTYPE_U16, 0, u16_plain, u16_coded);

    check_decodes_to(&g);
}

/* The good form of the test above, one byte changed at a time, or cut. */
Test(codec_golden, lossless_refuses_what_the_text_forbids)
{
    static const struct {
        size_t at;
        uint8_t byte;
    } changes[] = {
        {0, 2},     /* a form that is not known */
        {0, 0},     /* the raw form, of another length */
        {1, 0},     /* no plane coded */
        {1, 4},     /* a plane that two bytes do not have */
        {2, 11},    /* a length beyond the chunk */
        {2, 9},     /* bytes left over */
        {5, 0xff},  /* a length beyond everything */
        {27, 15},   /* another content size */
        {28, 0x7b}, /* a block that is shorter than the content */
        {28, 0x82}, /* not the last block, and no other follows */
    };
    uint8_t coded[sizeof(u16_coded)];

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct golden g = GOLDEN(&hdt_codec_lossless, HDT_DTYPE_U16, 0, u16_plain, coded);

        memcpy(coded, u16_coded, sizeof(coded));
        cr_assert_neq(coded[changes[i].at], changes[i].byte);
        coded[changes[i].at] = changes[i].byte;
        check_refused(&g);
    }
    for (size_t len = 0; len < sizeof(u16_coded); len++) {
        struct golden g = GOLDEN(&hdt_codec_lossless, HDT_DTYPE_U16, 0, u16_plain, u16_coded);

        g.coded_len = len;
        check_refused(&g);
    }
}

Test(codec_golden, lossless_refuses_zstd_frames_of_other_kinds)
{
    static const uint8_t plain[64 * 2];
    uint8_t coded[6 + 64 + 16] = {1, 0x02, 10};
    static const uint8_t frames[][16] = {
        {ZSTD_RLE(63, 0x12)},                                 /* not the plane's length */
        {0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 0, 0},           /* skippable */
        {0x27, 0xb5, 0x2f, 0xfd, 0x20, 64, 0x03, 0x02, 0, 0}, /* zstd 0.7 */
        {ZSTD_MAGIC, 0x00, 64, 0x03, 0x02, 0, 0},             /* no content size */
        {ZSTD_MAGIC, 0x20, 64, 0x02, 0x02, 0, 0},             /* last block is missing */
    };

    for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        memcpy(coded + 6 + 64, frames[i], 10);
        struct golden g = {.codec = &hdt_codec_lossless,
                           .dtype = HDT_DTYPE_U16,
                           .plain = plain,
                           .plain_len = sizeof(plain),
                           .coded = coded,
                           .coded_len = 6 + 64 + 10};

        check_refused(&g);
    }
}

/* The part of the encoder's output that does not depend on the version of zstd. */
Test(codec_golden, lossless_codes_the_exponent_plane_alone)
{
    static uint8_t plain[2 * 4096], coded[2 * 4096 + 1];
    uint32_t frame_len, state = 1;
    size_t len;
    struct hdt_codec_io io = {.src = plain,
                              .src_len = sizeof(plain),
                              .dst = coded,
                              .dst_len = sizeof(coded),
                              .dtype = HDT_DTYPE_BF16};

    for (size_t i = 0; i < 4096; i++) { /* exponent 0x7c..0x7f, random sign and mantissa */
        state = state * 1664525u + 1013904223u;
        uint16_t u = (uint16_t)(((0x7c + (state >> 30)) << 7) | (state >> 16 & 0x807f));

        memcpy(plain + 2 * i, &u, 2);
    }
    cr_assert_eq(hdt_codec_encode(&hdt_codec_lossless, ctx, &io, &len, NULL), HDT_OK);
    cr_assert_eq(coded[0], 1);
    cr_assert_eq(coded[1], 0x02);
    memcpy(&frame_len, coded + 2, 4);
    cr_assert_eq(len, 6 + 4096 + frame_len);
    cr_assert_lt(frame_len, 4096 * 2 / 8 + 100); /* 2 bits of 8, and the table */
    for (size_t i = 0; i < 4096; i++) {
        uint16_t u;

        memcpy(&u, plain + 2 * i, 2);
        cr_assert_eq(coded[6 + i], (uint8_t)(u << 1 | u >> 15));
    }
}
