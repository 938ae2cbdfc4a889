/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/codec_goldens.h"

/* 1; 1 + 2^-8, a tie that goes down to even; 1 + 3 * 2^-8, a tie that goes up to even; just
 * above a tie; -0; the largest fp32, which becomes infinity; infinity; a signalling NaN, made
 * quiet; a negative NaN whose payload would have rounded into -0 */
static const uint32_t bf16_plain[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x80000000,
                                      0x7f7fffff, 0x7f800000, 0x7f800001, 0xffffffff};
static const uint8_t bf16_coded[] = {0x80, 0x3f, 0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f, 0x00,
                                     0x80, 0x80, 0x7f, 0x80, 0x7f, 0xc0, 0x7f, 0xff, 0xff};

/* largest magnitude 127, so that the scale is 1; ties go to even */
static const float int8_plain[] = {127.0f, -127.0f, 0.5f, 1.5f, 2.5f, -3.5f, 100.4f, 0.0f};
static const float int8_back[] = {127.0f, -127.0f, 0.0f, 2.0f, 2.0f, -4.0f, 100.0f, 0.0f};
static const uint8_t int8_coded[] = {0x00, 0x00, 0x80, 0x3f, 0,    0,    0,    0,
                                     0,    0,    0,    0,    0,    0,    0,    0,
                                     0x7f, 0x81, 0x00, 0x02, 0x02, 0xfc, 0x64, 0x00};

/* 1; the largest; just below and at the middle between it and 2^16; the smallest; half of it, a
 * tie that goes to 0; just above; -0; a signalling NaN, made quiet; ties down and up to even */
static const uint32_t fp16_plain[] = {0x3f800000, 0x477fe000, 0x477fefff, 0x477ff000,
                                      0x33800000, 0x33000000, 0x33000001, 0x80000000,
                                      0x7f800001, 0x3f801000, 0x3f803000};
static const uint32_t fp16_back[] = {0x3f800000, 0x477fe000, 0x477fe000, 0x7f800000,
                                     0x33800000, 0x00000000, 0x33800000, 0x80000000,
                                     0x7fc00000, 0x3f800000, 0x3f804000};
static const uint8_t fp16_coded[] = {0x00, 0x3c, 0xff, 0x7b, 0xff, 0x7b, 0x00, 0x7c,
                                     0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x80,
                                     0x00, 0x7e, 0x00, 0x3c, 0x02, 0x3c};

/* 448 is the largest of E4M3, so that the scale is 2^0, written 127. Ties: 1 + 1/16, 1 + 3/16,
 * 2^-10, 3 * 2^-10; 2^-6 is the smallest normal, 2^-9 the smallest */
static const float fp8_plain[] = {448.0f,   -448.0f,  1.0f,    1.0625f, 1.1875f, 0x1p-9f,
                                  0x1p-10f, 0x3p-10f, 0x1p-6f, -0.0f,   240.0f};
static const float fp8_back[] = {448.0f, -448.0f, 1.0f,    1.0f,  1.25f, 0x1p-9f,
                                 0.0f,   0x1p-8f, 0x1p-6f, -0.0f, 240.0f};
static const uint8_t fp8_coded[] = {127,  0,    0,    0,    0,    0,    0,    0,    0,
                                    0,    0,    0,    0,    0,    0,    0,    0x7e, 0xfe,
                                    0x38, 0x38, 0x3a, 0x01, 0x00, 0x02, 0x08, 0x80, 0x77};
/* 449 does not fit: the scale is 2, and 224.5 becomes 224 = 1.75 * 2^7 */
static const float fp8_above[] = {449.0f}, fp8_above_back[] = {448.0f};
static const uint8_t fp8_above_coded[17] = {128, [16] = 0x76};

/* 57344 = 1.75 * 2^15 is the largest; ties 1 + 1/8 and 1 + 3/8; 2^-16 is the smallest */
static const float fp8_e5m2_plain[] = {57344.0f, 1.0f,     1.125f,   1.375f,
                                       0x1p-16f, 0x1p-17f, -0x1p-14f};
static const float fp8_e5m2_back[] = {57344.0f, 1.0f, 1.0f, 1.5f, 0x1p-16f, 0.0f, -0x1p-14f};
static const uint8_t fp8_e5m2_coded[] = {127, 0, 0, 0, 0,    0,    0,    0,    0,    0,    0,   0,
                                         0,   0, 0, 0, 0x7b, 0x3c, 0x3c, 0x3e, 0x01, 0x00, 0x84};

/* largest magnitude 7, so that the scale is 1, in bf16; codes with 8 added, the first of two in
 * the low half of a byte, the last byte half empty */
static const float int4_plain[] = {7.0f, -7.0f, 0.5f, 1.5f, 2.5f, -3.5f, 0.0f};
static const float int4_back[] = {7.0f, -7.0f, 0.0f, 2.0f, 2.0f, -4.0f, 0.0f};
static const uint8_t int4_coded[] = {0x80, 0x3f, 0, 0, 0, 0, 0,    0,    0,    0,
                                     0,    0,    0, 0, 0, 0, 0x1f, 0xa8, 0x4a, 0x08};

/* The smallest, -(1 + 2^-8), is no bf16: the zero point is the one below, -(1 + 2^-7); from
 * there to the largest it is 15, so that the scale is 1. */
static const float int4_minmax_plain[] = {-1.00390625f, 13.9921875f, 0.0f};
static const float int4_minmax_back[] = {-1.0078125f, 13.9921875f, -0.0078125f};
static const uint8_t int4_minmax_coded[] = {0x80, 0x3f, 0x81, 0xbf, 0, 0, 0, 0,    0,
                                            0,    0,    0,    0,    0, 0, 0, 0xf0, 0x01};

/* from -1 to 254: the scale is 1; codes without a sign, ties to even */
static const float int8_minmax_plain[] = {-1.0f, 254.0f, 0.5f, 1.5f, 100.25f};
static const float int8_minmax_back[] = {-1.0f, 254.0f, 1.0f, 1.0f, 100.0f};
static const uint8_t int8_minmax_coded[] = {0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x80,
                                            0xbf, 0,    0,    0,    0,    0,    0,
                                            0,    0,    0x00, 0xff, 0x02, 0x02, 0x65};

/* Of the first four signs the third is turned: -254 there, times the third column of the 4 x 4
 * Hadamard matrix, times 1 / 2. Largest magnitude 127, so that the scale is 1. */
static const float int8_rotated_plain[] = {0.0f, 0.0f, 254.0f, 0.0f};
static const uint8_t int8_rotated_coded[] = {0x00, 0x00, 0x80, 0x3f, 0, 0, 0,    0,    0,    0,
                                             0,    0,    0,    0,    0, 0, 0x81, 0x81, 0x7f, 0x7f};

#define GOLDEN(text_, plain_, back_, coded_)                                                       \
 {                                                                                                 \
  .text = (text_), .plain = (plain_), .back = (back_), .n = sizeof(plain_) / 4, .coded = (coded_), \
  .coded_len = sizeof(coded_)                                                                      \
 }

const struct codec_golden hdt_codec_goldens[] = {
    GOLDEN("bf16", bf16_plain, NULL, bf16_coded),
    GOLDEN("int8", int8_plain, int8_back, int8_coded),
    GOLDEN("fp16", fp16_plain, fp16_back, fp16_coded),
    GOLDEN("fp8", fp8_plain, fp8_back, fp8_coded),
    GOLDEN("fp8", fp8_above, fp8_above_back, fp8_above_coded),
    GOLDEN("fp8:e5m2", fp8_e5m2_plain, fp8_e5m2_back, fp8_e5m2_coded),
    GOLDEN("int4", int4_plain, int4_back, int4_coded),
    GOLDEN("int4:minmax", int4_minmax_plain, int4_minmax_back, int4_minmax_coded),
    GOLDEN("int8:minmax", int8_minmax_plain, int8_minmax_back, int8_minmax_coded),
    GOLDEN("int8:rotate", int8_rotated_plain, int8_rotated_plain, int8_rotated_coded),
};

const size_t hdt_n_codec_goldens = sizeof(hdt_codec_goldens) / sizeof(hdt_codec_goldens[0]);
