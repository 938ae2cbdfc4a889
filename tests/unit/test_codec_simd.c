/* SPDX-License-Identifier: Apache-2.0 */
/* Every table of kernels gives the bits of the scalar one, whatever the length and alignment. */
#include "config.h"

#include "compress/kernels.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
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

/* Planes lie one behind the other, so that n sets their alignment. */
static void planes_of(uint8_t *base, size_t n, size_t n_planes, uint8_t *planes[4])
{
    for (size_t p = 0; p < n_planes; p++) {
        planes[p] = base + p * n;
    }
}

static void check_planes(struct world *w, const struct hdt_kernels *k, const uint8_t *src, size_t n)
{
    uint8_t *want[4], *got[4];

    for (int rotate = 0; rotate < 2; rotate++) {
        planes_of(w->want, n, 2, want);
        planes_of(w->got, n, 2, got);
        hdt_kernels_scalar.split2(src, n, rotate, want);
        k->split2(src, n, rotate, got);
        check_same(w, "split2", n);
        planes_of(w->want, n, 4, want);
        planes_of(w->got, n, 4, got);
        hdt_kernels_scalar.split4(src, n, rotate, want);
        k->split4(src, n, rotate, got);
        check_same(w, "split4", n);
        planes_of((uint8_t *)(uintptr_t)src, n, 4, want);
        hdt_kernels_scalar.join2((const uint8_t *const *)want, n, rotate, w->want);
        k->join2((const uint8_t *const *)want, n, rotate, w->got);
        check_same(w, "join2", n);
        hdt_kernels_scalar.join4((const uint8_t *const *)want, n, rotate, w->want);
        k->join4((const uint8_t *const *)want, n, rotate, w->got);
        check_same(w, "join4", n);
    }
}

Test(codec_simd, all_kernels_give_the_scalar_bits)
{
    static struct world w;
    static float x[N_MAX];
    size_t n_tables;
    const struct hdt_kernels *const *tables = hdt_kernels_all(&n_tables);

    values_rng_init(&w.rng, "all_kernels_give_the_scalar_bits");
    if (n_tables == 1) {
        cr_log_warn("only scalar kernels run on this processor: nothing to compare");
    }
    for (size_t t = 1; t < n_tables; t++) {
        for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
            values_fill(&w.rng, (enum values_kind)kind, x, N_MAX);
            for (size_t n = 0; n <= N_MAX; n += n < 80 ? 1 : 1 + values_below(&w.rng, 100)) {
                size_t shift = values_below(&w.rng, 8);

                memcpy(w.src + shift, x, sizeof(x));
                check_bf16(&w, tables[t], w.src + shift, n);
                check_int8(&w, tables[t], w.src + shift, n);
                check_planes(&w, tables[t], w.src + shift, n);
            }
        }
    }
}
