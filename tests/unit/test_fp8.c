/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The plain definition of struct hdt_fp8_ops, which stages are tested with where no device has FP8,
 * against numbers of the OCP 8-bit floating point specification (revision 1.0, table 2) and against
 * products done by hand.
 */
#include "runtime/backend_load.h"
#include "tests/support/mixed_ref.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define E4M3 HDT_DTYPE_F8E4M3
#define E5M2 HDT_DTYPE_F8E5M2

static const struct {
    enum hdt_dtype dtype;
    double x;
    uint8_t code;
} roundings[] = {
    {E4M3, 448, 0x7e}, /* the largest, and beyond it */
    {E4M3, 470, 0x7e},
    {E4M3, -1e30, 0xfe},
    {E4M3, 0x1p-6, 0x08}, /* the smallest normal, the largest and smallest below it */
    {E4M3, 0.875 * 0x1p-6, 0x07},
    {E4M3, 0x1p-9, 0x01},
    {E4M3, 0x1p-10, 0x00}, /* half way: to even */
    {E4M3, 1.5 * 0x1p-9, 0x02},
    {E4M3, 1.01 * 0x1p-10, 0x01},
    {E4M3, 1, 0x38},
    {E4M3, 17, 0x58},
    {E4M3, -19, 0xda},
    {E4M3, 0, 0x00},
    {E5M2, 57344, 0x7b},
    {E5M2, 65535, 0x7b},
    {E5M2, -INFINITY, 0xfb},
    {E5M2, 0x1p-14, 0x04},
    {E5M2, 0.75 * 0x1p-14, 0x03},
    {E5M2, 0x1p-16, 0x01},
    {E5M2, 0x1p-17, 0x00},
    {E5M2, 1, 0x3c},
    {E5M2, 9, 0x48},
    {E5M2, -11, 0xca},
};

Test(fp8, rounds_as_the_specification_has_it)
{
    for (size_t i = 0; i < sizeof(roundings) / sizeof(roundings[0]); i++) {
        const uint8_t code = hdt_fp8_code(roundings[i].dtype, roundings[i].x);

        cr_expect_eq(code, roundings[i].code, "%s of %g: 0x%02x, not 0x%02x",
                     hdt_dtype_name(roundings[i].dtype), roundings[i].x, code, roundings[i].code);
    }
    cr_expect_eq(hdt_fp8_code(E4M3, (double)NAN), 0x7f);
    cr_expect(isnan(hdt_fp8_value(E4M3, 0xff)));
    cr_expect_eq(hdt_fp8_value(E5M2, 0x7c), (double)INFINITY);
}

/* Every code that is a finite number comes back from its value, which is the one that rounding
 * leaves alone; a value between two goes to one of them. */
Test(fp8, codes_and_values_agree)
{
    static const struct {
        enum hdt_dtype dtype;
        int largest;
    } formats[] = {{E4M3, 0x7e}, {E5M2, 0x7b}};

    for (size_t f = 0; f < 2; f++) {
        for (int code = 0; code <= formats[f].largest; code++) {
            const double value = hdt_fp8_value(formats[f].dtype, (uint8_t)code);
            const double next = hdt_fp8_value(formats[f].dtype, (uint8_t)(code + 1));

            cr_assert_eq(hdt_fp8_code(formats[f].dtype, value), code);
            cr_assert_eq(hdt_fp8_code(formats[f].dtype, -value), code | 0x80);
            cr_assert_eq(hdt_fp8_round(formats[f].dtype, value), value);
            if (code < formats[f].largest) {
                const double low = value + 0.49 * (next - value);
                const double high = value + 0.51 * (next - value);

                cr_assert_eq(hdt_fp8_round(formats[f].dtype, low), value);
                cr_assert_eq(hdt_fp8_round(formats[f].dtype, high), next);
            }
        }
    }
}

static const struct hdt_backend *ref_open(struct hdt_device **device, struct hdt_stream **stream)
{
    const struct hdt_device_conf conf = {.n_threads = 1};
    const struct hdt_backend *cpu = NULL, *ref;
    struct hdt_error err = {0};

    unsetenv("HDT_MODULE_PATH");
    cr_assert_eq(hdt_backend_load("cpu", &cpu, &err), HDT_OK, "%s", err.msg);
    ref = hdt_mixed_ref(cpu);
    cr_assert_eq(ref->device_open(&conf, device, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(ref->stream_new(*device, stream, &err), HDT_OK, "%s", err.msg);
    return ref;
}

/* x is 2 on the diagonal, 7 at one place: the scale is 7 / 448, the codes those of 128 and 448. */
Test(fp8, a_product_of_rounded_matrices)
{
    struct hdt_device *device;
    struct hdt_stream *stream;
    const struct hdt_backend *ref = ref_open(&device, &stream);
    uint16_t x[16 * 16] = {0};
    _Alignas(16) uint8_t y[16 * 16];
    _Alignas(16) uint8_t yt[16 * 16];
    _Alignas(16) float scale;
    float d[16 * 16], c[16 * 16];
    const struct hdt_quantize q = {
        .n = 16, .c = 16, .x = x, .dtype = E4M3, .y = y, .yt = yt, .scale = &scale};
    const struct hdt_fp8_gemm g = {.m = 16,
                                   .n = 16,
                                   .k = 16,
                                   .beta = 0.5f,
                                   .a_dtype = E4M3,
                                   .b_dtype = E4M3,
                                   .a = y,
                                   .a_scale = &scale,
                                   .b = yt,
                                   .b_scale = &scale,
                                   .d_dtype = HDT_DTYPE_F32,
                                   .c = c,
                                   .d = d};

    for (size_t i = 0; i < 16; i++) {
        x[i * 16 + i] = 0x4000; /* 2 */
    }
    x[3] = 0x40e0; /* 7, row 0, column 3 */
    for (size_t i = 0; i < 256; i++) {
        c[i] = 10;
    }
    ref->fp8->quantize(stream, &q);
    cr_expect_eq(scale, 7.0f / 448);
    cr_expect_eq(y[3], 0x7e);
    cr_expect_eq(yt[3 * 16], 0x7e);
    cr_expect_eq(y[17], 0x70); /* 128 */
    ref->fp8->gemm(stream, &g);
    /* A B^T with B the transpose of A: A A. Row 0: 4 at 0, 2 * 7 + 7 * 2 at 3. */
    cr_expect_float_eq(d[0], 4 + 5, 1e-5);
    cr_expect_float_eq(d[3], 28 + 5, 1e-5);
    cr_expect_float_eq(d[17], 4 + 5, 1e-5);
    cr_expect_float_eq(d[1], 5, 1e-5);
    memset(x, 0, sizeof(x));
    ref->fp8->quantize(stream, &q);
    cr_expect_eq(scale, 1);
    x[5] = 0x7f80; /* infinity shows */
    ref->fp8->quantize(stream, &q);
    ref->fp8->gemm(stream, &g);
    cr_expect_not(isfinite(d[0]));
    ref->stream_free(stream);
    ref->device_close(device);
}
