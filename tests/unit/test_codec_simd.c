/* SPDX-License-Identifier: Apache-2.0 */
/* Every table of kernels gives the bits of the scalar one, whatever the length and alignment. */
#include "config.h"

#include "compress/kernels.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define N_MAX 1100

struct world {
    struct values_rng rng;
    uint8_t src[4 * N_MAX + 64];
    uint8_t want[4 * N_MAX + 64], got[4 * N_MAX + 64];
};

static void check_same(struct world *w, const char *what, size_t n)
{
    cr_assert_eq(memcmp(w->want, w->got, sizeof(w->want)), 0, "%s, n %zu", what, n);
}

static void check_bf16(struct world *w, const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    struct hdt_codec_guard want, got;

    memset(&want, 0, sizeof(want));
    memset(&got, 0, sizeof(got));
    hdt_kernels_scalar.bf16_encode(src, n, w->want + 3);
    k->bf16_encode(src, n, w->got + 3);
    check_same(w, "bf16_encode", n);
    hdt_kernels_scalar.bf16_encode_guard(src, n, w->want + 3, &want);
    k->bf16_encode_guard(src, n, w->got + 3, &got);
    check_same(w, "bf16_encode_guard", n);
    cr_assert_eq(memcmp(&want, &got, sizeof(want)), 0, "guard, n %zu", n);
    hdt_kernels_scalar.bf16_decode(src, n, w->want + 1);
    k->bf16_decode(src, n, w->got + 1);
    check_same(w, "bf16_decode", n);
}

static void check_int8(struct world *w, const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    uint64_t want_bad = 0, got_bad = 0;
    uint32_t max = hdt_kernels_scalar.abs_max(src, n, &want_bad);
    float want[2], got[2], max_abs;

    cr_assert_eq(k->abs_max(src, n, &got_bad), max);
    cr_assert_eq(got_bad, want_bad);
    memcpy(&max_abs, &max, 4);
    if (want_bad == 0 && n <= HDT_CODEC_INT8_BLOCK && max_abs > 0x1p-110f) {
        hdt_kernels_scalar.int8_encode(src, n, 127.0f / max_abs, w->want + 5, want);
        k->int8_encode(src, n, 127.0f / max_abs, w->got + 5, got);
        check_same(w, "int8_encode", n);
        cr_assert_eq(memcmp(want, got, sizeof(want)), 0, "int8 sums, n %zu", n);
    }
    hdt_kernels_scalar.int8_decode(src, n, 0.1f, w->want + 2);
    k->int8_decode(src, n, 0.1f, w->got + 2);
    check_same(w, "int8_decode", n);
}

/* Sums of two NaNs are left open: one of each such pair is zero here. */
static void check_sums(struct world *w, const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    static uint8_t b[4 * N_MAX];
    uint64_t n_bad;

    for (size_t i = 0; i < n; i++) {
        n_bad = 0;
        memcpy(b + 4 * i, src + 4 * (n - 1 - i), 4);
        hdt_kernels_scalar.abs_max(src + 4 * i, 1, &n_bad);
        hdt_kernels_scalar.abs_max(b + 4 * i, 1, &n_bad);
        if (n_bad == 2) {
            memset(b + 4 * i, 0, 4);
        }
    }
    hdt_kernels_scalar.add(src, b, n, w->want + 3);
    k->add(src, b, n, w->got + 3);
    check_same(w, "add", n);
    hdt_kernels_scalar.divide(w->want + 3, n, 3.0f);
    k->divide(w->got + 3, n, 3.0f);
    check_same(w, "divide", n);
}

static void check_f16(struct world *w, const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    hdt_kernels_scalar.f16_encode(src, n, w->want + 3);
    k->f16_encode(src, n, w->got + 3);
    check_same(w, "f16_encode", n);
    hdt_kernels_scalar.f16_decode(src, n, w->want + 1);
    k->f16_decode(src, n, w->got + 1);
    check_same(w, "f16_decode", n);
}

/* Against arithmetic: every fp16 is its sign, exponent and mantissa, and a float becomes the
 * nearest one, the even one of two. */
Test(codec_simd, half_precision_is_what_its_bits_say)
{
    const struct hdt_kernels *k = &hdt_kernels_scalar;
    uint16_t h, back;
    float x, up;

    for (uint32_t u = 0; u < 0x7c00; u++) {
        const int e = (int)(u >> 10);
        const double want = e ? ldexp(1024 + (u & 0x3ff), e - 25) : ldexp(u & 0x3ff, -24);

        h = (uint16_t)u;
        k->f16_decode((const uint8_t *)&h, 1, (uint8_t *)&x);
        cr_assert_eq((double)x, want, "%04x", u);
        k->f16_encode((const uint8_t *)&x, 1, (uint8_t *)&back);
        cr_assert_eq(back, h);
        h = (uint16_t)(u + 1);
        k->f16_decode((const uint8_t *)&h, 1, (uint8_t *)&up);
        if (u + 1 == 0x7c00) {
            up = 65536;
        }
        x = (float)(((double)want + (double)up) / 2); /* exact: halfway */
        k->f16_encode((const uint8_t *)&x, 1, (uint8_t *)&back);
        cr_assert_eq(back, u & 1 ? u + 1 : u, "halfway above %04x", u);
        x = nextafterf(x, up);
        k->f16_encode((const uint8_t *)&x, 1, (uint8_t *)&back);
        cr_assert_eq(back, u + 1, "above halfway of %04x", u);
        x = nextafterf(nextafterf(x, 0), 0);
        k->f16_encode((const uint8_t *)&x, 1, (uint8_t *)&back);
        cr_assert_eq(back, u, "below halfway of %04x", u);
    }
}

Test(codec_simd, all_kernels_give_the_scalar_bits)
{
    static struct world w;
    static float x[N_MAX];
    size_t n_tables;
    const struct hdt_kernels *const *tables = hdt_kernels_all(&n_tables);

    hdt_values_rng_init(&w.rng, "all_kernels_give_the_scalar_bits");
    if (n_tables == 1) {
        cr_log_warn("only scalar kernels run on this processor: nothing to compare");
    }
    for (size_t t = 1; t < n_tables; t++) {
        for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
            hdt_values_fill(&w.rng, (enum values_kind)kind, x, N_MAX);
            for (size_t n = 0; n <= N_MAX; n += n < 80 ? 1 : 1 + hdt_values_below(&w.rng, 100)) {
                size_t shift = hdt_values_below(&w.rng, 8);

                memcpy(w.src + shift, x, sizeof(x));
                check_bf16(&w, tables[t], w.src + shift, n);
                check_int8(&w, tables[t], w.src + shift, n);
                check_f16(&w, tables[t], w.src + shift, n);
                check_sums(&w, tables[t], w.src + shift, n);
            }
        }
    }
}
