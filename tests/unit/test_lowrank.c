/* SPDX-License-Identifier: Apache-2.0 */
/* Low rank against matrices whose singular values are known, and what feedback promises. */
#include "config.h"

#include "compress/lowrank.h"
#include "src/base/buf.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sender and what its receiver made of the last frame. */
struct flow {
    struct hdt_lowrank shape;
    float *residual, *factor, *scratch, *decoded;
    uint8_t *frame;
    struct hdt_codec_guard guard;
};

static struct flow flow_make(size_t n, size_t columns, unsigned rank)
{
    struct flow f = {.shape = hdt_lowrank_shape(n, columns, rank)};
    const struct hdt_lowrank *s = &f.shape;

    f.residual = calloc(n + 1, 4);
    f.factor = calloc(s->rank * s->columns + 1, 4);
    f.scratch = calloc(s->rank * (s->rows + s->columns) + 1, 4);
    f.decoded = calloc(n + 1, 4);
    f.frame = calloc(hdt_lowrank_len(s) + 1, 1);
    return f;
}

static void flow_release(struct flow *f)
{
    free(f->residual);
    free(f->factor);
    free(f->scratch);
    free(f->decoded);
    free(f->frame);
}

static enum hdt_status flow_send(struct flow *f, const struct hdt_sparse_kernels *sparse,
                                 const float *x)
{
    enum hdt_status status =
        hdt_lowrank_encode(&f->shape, hdt_kernels_best(), sparse, (const uint8_t *)x, f->residual,
                           f->factor, f->scratch, f->frame, &f->guard, NULL);

    if (status == HDT_OK) {
        cr_assert_eq(hdt_lowrank_decode(&f->shape, f->frame, hdt_lowrank_len(&f->shape),
                                        (uint8_t *)f->decoded, false, NULL),
                     HDT_OK);
    }
    return status;
}

static double norm(const float *x, size_t n)
{
    double sq = 0;

    for (size_t i = 0; i < n; i++) {
        sq += (double)x[i] * (double)x[i];
    }
    return sqrt(sq);
}

/* Entry i of Walsh function k, of length one over n = 2^m entries: orthonormal for each k < n. */
static double walsh(size_t k, size_t i, size_t n)
{
    return (__builtin_popcountl(k & i) % 2 ? -1 : 1) / sqrt((double)n);
}

/* A matrix with the given singular values. */
static void known_matrix(float *x, size_t rows, size_t columns, const double *sigma, size_t n_sigma)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < columns; j++) {
            double sum = 0;

            for (size_t k = 0; k < n_sigma; k++) {
                sum += sigma[k] * walsh(3 * k + 1, i, rows) * walsh(5 * k + 2, j, columns);
            }
            x[i * columns + j] = (float)sum;
        }
    }
}

Test(lowrank, shape_is_the_width_or_nearly_square)
{
    struct hdt_lowrank s = hdt_lowrank_shape(1024 * 768, 768, 4);

    cr_expect(s.rows == 1024 && s.columns == 768 && s.rank == 4);
    cr_expect_eq(hdt_lowrank_len(&s), 2 * 4 * (1024 + 768));
    s = hdt_lowrank_shape(1 << 20, 0, 4);
    cr_expect(s.rows == 1024 && s.columns == 1024);
    s = hdt_lowrank_shape(1000, 0, 64);
    cr_expect(s.rows == 32 && s.columns == 32 && s.rank == 32); /* 31 rows and 8 values */
    s = hdt_lowrank_shape(5, 0, 4);
    cr_expect(s.rows == 1 && s.columns == 5 && s.rank == 1);
    s = hdt_lowrank_shape(0, 0, 4);
    cr_expect(s.rank == 0 && hdt_lowrank_len(&s) == 0);
}

Test(lowrank, a_matrix_of_that_rank_comes_through)
{
    static float x[128 * 64];
    const double sigma[] = {10, 7};
    struct flow f = flow_make(128 * 64, 64, 2);

    known_matrix(x, 128, 64, sigma, 2);
    cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), x), HDT_OK);
    /* one iteration is enough; bf16 rounds both factors: 2^-9 each at most */
    cr_expect_lt(norm(f.residual, 128 * 64) / norm(x, 128 * 64), 0x1p-8);
    flow_release(&f);
}

Test(lowrank, warm_start_reaches_the_best_approximation)
{
    static float x[128 * 64];
    const double sigma[] = {10, 5, 2, 1, 0.5};
    const double best = sqrt((4 + 1 + 0.25) / (100 + 25 + 4 + 1 + 0.25));
    struct flow f = flow_make(128 * 64, 64, 2);
    double first = 0, last = 0;

    known_matrix(x, 128, 64, sigma, 5);
    for (int step = 0; step < 8; step++) { /* the same matrix each time, nothing owed */
        memset(f.residual, 0, 4 * 128 * 64);
        cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), x), HDT_OK);
        last = hdt_codec_guard_error(&f.guard);
        first = step == 0 ? last : first;
        cr_expect_lt(fabs(last - norm(f.residual, 128 * 64) / norm(x, 128 * 64)), 1e-6);
    }
    cr_expect_geq(last, best * 0.9999);
    cr_expect_leq(last, best * 1.001, "%g, best is %g", last, best);
    cr_expect_leq(last, first * 1.0001);
    flow_release(&f);
}

static void check_sum(struct values_rng *rng, size_t n, size_t columns, unsigned rank)
{
    struct flow f = flow_make(n, columns, rank);
    float *x = calloc(n + 1, 4);
    double *in = calloc(n + 1, 8), *out = calloc(n + 1, 8), scale = 0;

    for (int step = 0; step < 10; step++) {
        hdt_values_fill(rng, VALUES_NORMAL, x, n);
        cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), x), HDT_OK);
        for (size_t i = 0; i < n; i++) {
            in[i] += (double)x[i];
            out[i] += (double)f.decoded[i];
            scale = fmax(scale, fabs((double)f.decoded[i]) + fabs((double)f.residual[i]));
        }
    }
    for (size_t i = 0; i < n; i++) { /* a rounding for each component, twice, and one more */
        cr_assert_leq(fabs(out[i] + (double)f.residual[i] - in[i]),
                      10 * (2 * rank + 1) * 0x1p-24 * scale, "n %zu, value %zu", n, i);
    }
    flow_release(&f);
    free(x);
    free(in);
    free(out);
}

Test(lowrank, what_was_sent_and_what_is_owed_is_all_that_came_in)
{
    static const size_t sizes[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097, 65537};
    struct values_rng rng;

    hdt_values_rng_init(&rng, "what_was_sent_and_what_is_owed_is_all_that_came_in");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_sum(&rng, sizes[i], 0, 1);
        check_sum(&rng, sizes[i], 64, 4);
        check_sum(&rng, sizes[i], 0, 16);
    }
}

Test(lowrank, every_table_of_kernels_gives_the_same_bits)
{
    static const size_t sizes[] = {1, 9, 100, 1000, 4097};
    struct values_rng rng;
    static float x[4097];
    size_t n_tables;
    const struct hdt_sparse_kernels *const *all = hdt_sparse_kernels_all(&n_tables);

    hdt_values_rng_init(&rng, "every_table_of_kernels_gives_the_same_bits");
    for (size_t t = 1; t < n_tables; t++) {
        for (size_t i = 0; i < 5; i++) {
            size_t n = sizes[i];
            struct flow want = flow_make(n, 0, 3), got = flow_make(n, 0, 3);

            for (int step = 0; step < 3; step++) {
                hdt_values_fill(&rng, VALUES_HEAVY_TAILED, x, n);
                flow_send(&want, &hdt_sparse_kernels_scalar, x);
                flow_send(&got, all[t], x);
                cr_assert_eq(memcmp(want.frame, got.frame, hdt_lowrank_len(&want.shape)), 0);
                cr_assert_eq(memcmp(want.residual, got.residual, 4 * n), 0);
                cr_assert_eq(memcmp(&want.guard, &got.guard, sizeof(got.guard)), 0);
            }
            flow_release(&want);
            flow_release(&got);
        }
    }
}

/* Descent on |w - target|^2 / 2 with gradients of full rank; returns the distance left. */
static double descend(struct values_rng *rng, bool feedback)
{
    enum { N = 32 * 32 };
    static float target[N], w[N], g[N];
    struct flow f = flow_make(N, 32, 2);
    double start;

    hdt_values_fill(rng, VALUES_NORMAL, target, N);
    memset(w, 0, sizeof(w));
    start = norm(target, N);
    for (int step = 0; step < 600; step++) {
        for (size_t i = 0; i < N; i++) {
            g[i] = w[i] - target[i];
        }
        if (!feedback) {
            memset(f.residual, 0, 4 * N);
            memset(f.factor, 0, 4 * f.shape.rank * f.shape.columns);
        }
        cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), g), HDT_OK);
        for (size_t i = 0; i < N; i++) {
            w[i] -= 0.05f * f.decoded[i];
            g[i] = w[i] - target[i];
        }
    }
    flow_release(&f);
    return norm(g, N) / start;
}

Test(lowrank, descent_arrives_with_feedback)
{
    struct values_rng rng;
    double with, without;

    hdt_values_rng_init(&rng, "descent_arrives_with_feedback");
    with = descend(&rng, true);
    without = descend(&rng, false);
    cr_expect_lt(with, 0.05, "%g", with);
    cr_expect_gt(without, 2 * with, "%g without, %g with", without, with);
}

Test(lowrank, zeros_and_what_comes_after_them)
{
    static float zero[128 * 64], x[128 * 64];
    const double sigma[] = {3};
    struct flow f = flow_make(128 * 64, 64, 2);

    cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), zero), HDT_OK);
    cr_expect_eq(norm(f.decoded, 128 * 64), 0);
    cr_expect_eq(hdt_codec_guard_error(&f.guard), 0);
    known_matrix(x, 128, 64, sigma, 1); /* of rank one, where there are two components */
    for (int step = 0; step < 3; step++) {
        memset(f.residual, 0, 4 * 128 * 64);
        cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), x), HDT_OK);
        cr_expect_lt(hdt_codec_guard_error(&f.guard), 0x1p-8);
    }
    flow_release(&f);
}

Test(lowrank, sizes_from_tiny_to_the_limit_stay_finite)
{
    static const float scales[] = {1e-44f, 1e-38f, 1e-20f, 1, 1e15f, HDT_LOWRANK_ABS_MAX / 8};
    static float x[1000];
    struct values_rng rng;

    hdt_values_rng_init(&rng, "sizes_from_tiny_to_the_limit_stay_finite");
    for (size_t k = 0; k < sizeof(scales) / sizeof(scales[0]); k++) {
        struct flow f = flow_make(1000, 0, 4);

        for (int step = 0; step < 20; step++) {
            hdt_values_fill(&rng, VALUES_NORMAL, x, 1000);
            for (size_t i = 0; i < 1000; i++) {
                x[i] *= scales[k];
            }
            cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), x), HDT_OK);
            cr_assert(isfinite(norm(f.decoded, 1000)) && isfinite(norm(f.residual, 1000)));
        }
        flow_release(&f);
    }
}

Test(lowrank, values_without_a_form_are_refused_and_nothing_changes)
{
    static const float bad[] = {NAN, INFINITY, 2 * HDT_LOWRANK_ABS_MAX};
    float x[100] = {1, 2, 3}, before[100];
    struct flow f = flow_make(100, 0, 2);

    cr_assert_eq(flow_send(&f, hdt_sparse_kernels_best(), x), HDT_OK);
    memcpy(before, f.residual, sizeof(before));
    for (size_t k = 0; k < 3; k++) {
        x[50] = bad[k];
        cr_expect_eq(flow_send(&f, hdt_sparse_kernels_best(), x), HDT_EINVAL);
        cr_expect_eq(f.guard.n_nonfinite, k < 2);
        cr_expect_eq(memcmp(before, f.residual, sizeof(before)), 0);
    }
    flow_release(&f);
}

Test(lowrank, frames_are_as_worked_out_by_hand)
{
    /* rank 1, rows of 2: P = (1, 2), Q = (3, -0.5); so 3, -0.5, 6 of three values */
    static const uint8_t frame[] = {0x80, 0x3f, 0x00, 0x40, 0x40, 0x40, 0x00, 0xbf};
    static const uint8_t inf[] = {0x80, 0x3f, 0x80, 0x7f, 0x40, 0x40, 0x00, 0xbf};
    struct hdt_lowrank s = hdt_lowrank_shape(3, 2, 1);
    float y[3] = {10, 20, 30};

    cr_assert_eq(hdt_lowrank_decode(&s, frame, 8, (uint8_t *)y, true, NULL), HDT_OK);
    cr_expect(y[0] == 13 && y[1] == 19.5f && y[2] == 36);
    cr_assert_eq(hdt_lowrank_decode(&s, frame, 8, (uint8_t *)y, false, NULL), HDT_OK);
    cr_expect(y[0] == 3 && y[1] == -0.5f && y[2] == 6);
    cr_expect_eq(hdt_lowrank_decode(&s, frame, 7, (uint8_t *)y, false, NULL), HDT_EPROTO);
    cr_expect_eq(hdt_lowrank_decode(&s, inf, 8, (uint8_t *)y, false, NULL), HDT_EPROTO);
}
