/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes worked out by hand from doc/codecs.md, never taken from the encoder: they pin the coded
 * forms, so that a gateway of another version or make can be spoken to.
 */
#include "config.h"

#include "compress/codec.h"

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

Test(codec_golden, bf16)
{
    /* 1; 1 + 2^-8, a tie that goes down to even; 1 + 3 * 2^-8, a tie that goes up to even; just
     * above a tie; -0; the largest fp32, which becomes infinity; infinity; a signalling NaN, made
     * quiet; a negative NaN whose payload would have rounded into -0 */
    static const uint32_t plain[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x80000000,
                                     0x7f7fffff, 0x7f800000, 0x7f800001, 0xffffffff};
    static const uint8_t coded[] = {0x80, 0x3f, 0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f, 0x00,
                                    0x80, 0x80, 0x7f, 0x80, 0x7f, 0xc0, 0x7f, 0xff, 0xff};
    static const struct golden g = GOLDEN(&hdt_codec_bf16, HDT_DTYPE_F32, 0, plain, coded);

    check_encodes_to(&g);
}

Test(codec_golden, int8)
{
    /* largest magnitude 127, so that the scale is 1; ties go to even */
    static const float plain[] = {127.0f, -127.0f, 0.5f, 1.5f, 2.5f, -3.5f, 100.4f, 0.0f};
    static const float back[] = {127.0f, -127.0f, 0.0f, 2.0f, 2.0f, -4.0f, 100.0f, 0.0f};
    static const uint8_t coded[] = {0x00, 0x00, 0x80, 0x3f, 0,    0,    0,    0,
                                    0,    0,    0,    0,    0,    0,    0,    0,
                                    0x7f, 0x81, 0x00, 0x02, 0x02, 0xfc, 0x64, 0x00};
    static const struct golden to = GOLDEN(&hdt_codec_int8, HDT_DTYPE_F32, 0, plain, coded);
    static const struct golden from = GOLDEN(&hdt_codec_int8, HDT_DTYPE_F32, 0, back, coded);

    check_encodes_to(&to);
    check_decodes_to(&from);
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

Test(codec_golden, fp16)
{
    /* 1; the largest; just below and at the middle between it and 2^16; the smallest; half of it, a
     * tie that goes to 0; just above; -0; a signalling NaN, made quiet; ties down and up to even */
    static const uint32_t plain[] = {0x3f800000, 0x477fe000, 0x477fefff, 0x477ff000,
                                     0x33800000, 0x33000000, 0x33000001, 0x80000000,
                                     0x7f800001, 0x3f801000, 0x3f803000};
    static const uint32_t back[] = {0x3f800000, 0x477fe000, 0x477fe000, 0x7f800000,
                                    0x33800000, 0x00000000, 0x33800000, 0x80000000,
                                    0x7fc00000, 0x3f800000, 0x3f804000};
    static const uint8_t coded[] = {0x00, 0x3c, 0xff, 0x7b, 0xff, 0x7b, 0x00, 0x7c,
                                    0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x80,
                                    0x00, 0x7e, 0x00, 0x3c, 0x02, 0x3c};

    check_both("fp16", plain, sizeof(plain), back, coded, sizeof(coded));
}

Test(codec_golden, fp8)
{
    /* 448 is the largest of E4M3, so that the scale is 2^0, written 127. Ties: 1 + 1/16, 1 + 3/16,
     * 2^-10, 3 * 2^-10; 2^-6 is the smallest normal, 2^-9 the smallest */
    static const float plain[] = {448.0f,   -448.0f,  1.0f,    1.0625f, 1.1875f, 0x1p-9f,
                                  0x1p-10f, 0x3p-10f, 0x1p-6f, -0.0f,   240.0f};
    static const float back[] = {448.0f, -448.0f, 1.0f,    1.0f,  1.25f, 0x1p-9f,
                                 0.0f,   0x1p-8f, 0x1p-6f, -0.0f, 240.0f};
    static const uint8_t coded[] = {127,  0,    0,    0,    0,    0,    0,    0,    0,
                                    0,    0,    0,    0,    0,    0,    0,    0x7e, 0xfe,
                                    0x38, 0x38, 0x3a, 0x01, 0x00, 0x02, 0x08, 0x80, 0x77};
    /* 449 does not fit: the scale is 2, and 224.5 becomes 224 = 1.75 * 2^7 */
    static const float above[] = {449.0f}, above_back[] = {448.0f};
    static const uint8_t above_coded[17] = {128, [16] = 0x76};

    check_both("fp8", plain, sizeof(plain), back, coded, sizeof(coded));
    check_both("fp8", above, sizeof(above), above_back, above_coded, sizeof(above_coded));
}

Test(codec_golden, fp8_e5m2)
{
    /* 57344 = 1.75 * 2^15 is the largest; ties 1 + 1/8 and 1 + 3/8; 2^-16 is the smallest */
    static const float plain[] = {57344.0f, 1.0f, 1.125f, 1.375f, 0x1p-16f, 0x1p-17f, -0x1p-14f};
    static const float back[] = {57344.0f, 1.0f, 1.0f, 1.5f, 0x1p-16f, 0.0f, -0x1p-14f};
    static const uint8_t coded[] = {127, 0, 0, 0, 0,    0,    0,    0,    0,    0,    0,   0,
                                    0,   0, 0, 0, 0x7b, 0x3c, 0x3c, 0x3e, 0x01, 0x00, 0x84};

    check_both("fp8:e5m2", plain, sizeof(plain), back, coded, sizeof(coded));
}

Test(codec_golden, int4)
{
    /* largest magnitude 7, so that the scale is 1, in bf16; codes with 8 added, the first of two in
     * the low half of a byte, the last byte half empty */
    static const float plain[] = {7.0f, -7.0f, 0.5f, 1.5f, 2.5f, -3.5f, 0.0f};
    static const float back[] = {7.0f, -7.0f, 0.0f, 2.0f, 2.0f, -4.0f, 0.0f};
    static const uint8_t coded[] = {0x80, 0x3f, 0, 0, 0, 0, 0,    0,    0,    0,
                                    0,    0,    0, 0, 0, 0, 0x1f, 0xa8, 0x4a, 0x08};

    check_both("int4", plain, sizeof(plain), back, coded, sizeof(coded));
}

Test(codec_golden, int4_minmax)
{
    /* The smallest, -(1 + 2^-8), is no bf16: the zero point is the one below, -(1 + 2^-7); from
     * there to the largest it is 15, so that the scale is 1. */
    static const float plain[] = {-1.00390625f, 13.9921875f, 0.0f};
    static const float back[] = {-1.0078125f, 13.9921875f, -0.0078125f};
    static const uint8_t coded[] = {0x80, 0x3f, 0x81, 0xbf, 0, 0, 0, 0,    0,
                                    0,    0,    0,    0,    0, 0, 0, 0xf0, 0x01};

    check_both("int4:minmax", plain, sizeof(plain), back, coded, sizeof(coded));
}

Test(codec_golden, int8_minmax)
{
    /* from -1 to 254: the scale is 1; codes without a sign, ties to even */
    static const float plain[] = {-1.0f, 254.0f, 0.5f, 1.5f, 100.25f};
    static const float back[] = {-1.0f, 254.0f, 1.0f, 1.0f, 100.0f};
    static const uint8_t coded[] = {0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x80, 0xbf, 0,    0,   0,
                                    0,    0,    0,    0,    0,    0x00, 0xff, 0x02, 0x02, 0x65};

    check_both("int8:minmax", plain, sizeof(plain), back, coded, sizeof(coded));
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

Test(codec_golden, int8_rotated)
{
    /* Of the first four signs the third is turned: -254 there, times the third column of the 4 x 4
     * Hadamard matrix, times 1 / 2. Largest magnitude 127, so that the scale is 1. */
    static const float plain[] = {0.0f, 0.0f, 254.0f, 0.0f};
    static const uint8_t coded[] = {0x00, 0x00, 0x80, 0x3f, 0, 0, 0,    0,    0,    0,
                                    0,    0,    0,    0,    0, 0, 0x81, 0x81, 0x7f, 0x7f};

    check_both("int8:rotate", plain, sizeof(plain), plain, coded, sizeof(coded));
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
