/* SPDX-License-Identifier: Apache-2.0 */
/* Every table of kernels gives the bits of the scalar one, whatever the length and alignment. */
#include "config.h"

#include "compress/kernels.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define N_MAX 2500

struct world {
    struct values_rng rng;
    uint8_t src[4 * N_MAX + 64];
    uint8_t want[4 * N_MAX + 64], got[4 * N_MAX + 64];
};

static void check_same(struct world *w, const char *what, size_t n)
{
    cr_assert_eq(memcmp(w->want, w->got, sizeof(w->want)), 0, "%s, n %zu", what, n);
}

static void check_same_guard(const struct hdt_codec_guard *want, const struct hdt_codec_guard *got,
                             const char *what, int kind, size_t n)
{
    cr_assert_eq(want->n, got->n, "%s %d, n %zu", what, kind, n);
    cr_assert_eq(want->n_nonfinite, got->n_nonfinite, "%s %d, n %zu", what, kind, n);
    cr_assert_eq(memcmp(want, got, sizeof(*want)), 0, "%s %d, n %zu: err %a %a ref %a %a", what,
                 kind, n, want->err_sq, got->err_sq, want->ref_sq, got->ref_sq);
}

static void check_abs_max(const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    uint64_t want_bad = 0, got_bad = 0;
    uint32_t want = hdt_kernels_scalar.abs_max(src, n, &want_bad);

    cr_assert_eq(k->abs_max(src, n, &got_bad), want);
    cr_assert_eq(got_bad, want_bad);
}

/* Accumulators for decoders that add: small numbers, so that no NaN meets another one. */
static void fill_sums(struct world *w)
{
    const float x = 0.125f;

    for (size_t i = 0; i + 4 <= sizeof(w->want); i += 4) {
        memcpy(w->want + i, &x, 4);
    }
    memcpy(w->got, w->want, sizeof(w->want));
}

static void check_casts(struct world *w, const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    struct hdt_random random;

    hdt_random_seed(&random, hdt_values_u64(&w->rng));
    hdt_kernels_scalar.bf16_encode(src, n, w->want + 3);
    k->bf16_encode(src, n, w->got + 3);
    check_same(w, "bf16_encode", n);
    hdt_kernels_scalar.bf16_decode(src, n, w->want + 1);
    k->bf16_decode(src, n, w->got + 1);
    check_same(w, "bf16_decode", n);
    for (int c = 0; c < 2 * HDT_CAST_COUNT; c++) {
        const enum hdt_cast_kind kind = (enum hdt_cast_kind)(c / 2);
        const struct hdt_cast_in in = {
            .src = src, .n = n, .random = c % 2 ? &random : NULL, .first = 77};
        struct hdt_codec_guard want, got;

        memset(&want, 0, sizeof(want));
        memset(&got, 0, sizeof(got));
        hdt_kernels_scalar.cast_encode(kind, &in, w->want + 3, &want);
        k->cast_encode(kind, &in, w->got + 3, &got);
        check_same(w, "cast_encode", n);
        check_same_guard(&want, &got, "cast_encode", c, n);
    }
    for (int c = 0; c < HDT_CAST_COUNT * HDT_EMIT_COUNT; c++) {
        const enum hdt_cast_kind kind = (enum hdt_cast_kind)(c / HDT_EMIT_COUNT);
        const enum hdt_emit emit = (enum hdt_emit)(c % HDT_EMIT_COUNT);

        fill_sums(w);
        hdt_kernels_scalar.cast_decode(kind, emit, src, n, w->want + 4);
        k->cast_decode(kind, emit, src, n, w->got + 4);
        check_same(w, "cast_decode", n);
    }
}

static void check_quant(struct world *w, const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    const size_t block = (size_t)32 << hdt_values_below(&w->rng, 6);
    struct hdt_random random;

    hdt_random_seed(&random, hdt_values_u64(&w->rng));
    for (int c = 0; c < 2 * HDT_QUANT_COUNT; c++) {
        const enum hdt_quant_kind kind = (enum hdt_quant_kind)(c / 2);
        const struct hdt_quant_in in = {
            .src = src, .n = n, .block = block, .random = c % 2 ? &random : NULL, .first = 5};
        struct hdt_codec_guard want, got;
        uint8_t *want_codes = w->want + 8 * (n / 32 + 1), *got_codes = w->got + 8 * (n / 32 + 1);

        memset(&want, 0, sizeof(want));
        memset(&got, 0, sizeof(got));
        memset(w->want, 0, sizeof(w->want));
        memset(w->got, 0, sizeof(w->got));
        hdt_kernels_scalar.quant_encode(kind, &in, w->want, want_codes, &want);
        k->quant_encode(kind, &in, w->got, got_codes, &got);
        check_same_guard(&want, &got, "quant_encode", c, n);
        if (want.n_nonfinite == 0) { /* a block that is refused may hold anything */
            check_same(w, "quant_encode", n);
        }
    }
}

/* Parameters and codes of any bits, but for those that make two NaNs meet or differ by their sign:
 * what a sum of two infinities becomes is left open. */
static void check_dequant(struct world *w, const struct hdt_kernels *k, const uint8_t *src,
                          size_t n)
{
    static uint8_t params[8 * N_MAX];
    const size_t block = (size_t)32 << hdt_values_below(&w->rng, 6);

    for (int c = 0; c < HDT_QUANT_COUNT * HDT_EMIT_COUNT; c++) {
        const enum hdt_quant_kind kind = (enum hdt_quant_kind)(c / HDT_EMIT_COUNT);
        const enum hdt_emit emit = (enum hdt_emit)(c % HDT_EMIT_COUNT);

        for (size_t i = 0; i < sizeof(params); i++) { /* scales of 2^-1 .. 2^1, any sign */
            params[i] = (uint8_t)(i % 2 ? (hdt_values_u64(&w->rng) & 0x80) | 0x3f
                                        : hdt_values_u64(&w->rng));
        }
        fill_sums(w);
        hdt_kernels_scalar.quant_decode(kind, emit, params, src, n, block, w->want + 4);
        k->quant_decode(kind, emit, params, src, n, block, w->got + 4);
        check_same(w, "quant_decode", n);
    }
}

static void check_hadamard(struct world *w, const struct hdt_kernels *k, const float *x, size_t n)
{
    const size_t block = (size_t)32 << hdt_values_below(&w->rng, 6);

    for (int back = 0; back < 2; back++) {
        memcpy(w->want + 5, x, 4 * n);
        memcpy(w->got + 5, x, 4 * n);
        hdt_kernels_scalar.hadamard(w->want + 5, n, block, back);
        k->hadamard(w->got + 5, n, block, back);
        check_same(w, "hadamard", n);
    }
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
            for (size_t n = 0; n <= N_MAX; n += n < 80 ? 1 : 1 + hdt_values_below(&w.rng, 200)) {
                size_t shift = hdt_values_below(&w.rng, 8);

                memcpy(w.src + shift, x, sizeof(x));
                check_abs_max(tables[t], w.src + shift, n);
                check_casts(&w, tables[t], w.src + shift, n);
                check_quant(&w, tables[t], w.src + shift, n);
                check_dequant(&w, tables[t], w.src + shift, n);
                if (kind < VALUES_SPECIAL) {
                    check_hadamard(&w, tables[t], x, n);
                }
                check_f16(&w, tables[t], w.src + shift, n);
                check_sums(&w, tables[t], w.src + shift, n);
            }
        }
    }
}
