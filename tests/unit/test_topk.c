/* SPDX-License-Identifier: Apache-2.0 */
/* Top-k and random-k against a sort, sums in double, and bytes worked out by hand. */
#include "config.h"

#include "compress/sparse_values.h"
#include "compress/topk.h"
#include "src/base/buf.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CANARY 0xa5
#define N_MAX  ((size_t)9000)

static const size_t sizes[] = {0,  1,  2,   3,   7,    8,    9,    31,   33,   63,  64,
                               65, 97, 255, 257, 1000, 4095, 4096, 4097, 8192, 9000};
static const unsigned keeps[] = {2, 3, 8, 16, 64, 100, 1024, 4096};
static const unsigned all_bits[] = {2, 4, 8, 16};
#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

/* One encode with everything it gives. */
struct sent {
    float residual[N_MAX], decoded[N_MAX];
    uint8_t frame[2 * N_MAX + 64];
    size_t len;
    struct hdt_codec_guard guard;
    enum hdt_status status;
};

static void sent_make(struct sent *s, bool random, const struct hdt_topk *topk,
                      const struct hdt_sparse_kernels *sparse, const float *x, size_t n)
{
    const struct hdt_kernels *k = hdt_kernels_best();
    uint8_t src[4 * N_MAX + 1];

    memcpy(src + 1, x, 4 * n); /* tensors may lie anywhere */
    s->len = random ? hdt_randk_len(topk, n) : hdt_topk_len(topk, n);
    cr_assert_leq(s->len + 8, sizeof(s->frame));
    memset(s->frame, CANARY, sizeof(s->frame));
    s->status = random ? hdt_randk_encode(topk, k, sparse, 77, src + 1, n, s->residual, s->frame,
                                          &s->guard, NULL)
                       : hdt_topk_encode(topk, k, sparse, src + 1, n, s->residual, s->frame,
                                         &s->guard, NULL);
    for (size_t i = 0; i < 8; i++) {
        cr_assert_eq(s->frame[s->len + i], CANARY, "n %zu", n);
    }
    if (s->status == HDT_OK) {
        cr_assert_eq(
            random ? hdt_randk_decode(topk, s->frame, s->len, (uint8_t *)s->decoded, n, false, NULL)
                   : hdt_topk_decode(topk, s->frame, s->len, (uint8_t *)s->decoded, n, false, NULL),
            HDT_OK, "n %zu", n);
    }
}

/* ---- which values: a sort ---- */

struct ranked {
    double magnitude;
    size_t at;
};

static int by_rank(const void *pa, const void *pb)
{
    const struct ranked *a = pa, *b = pb;

    if (a->magnitude != b->magnitude) {
        return a->magnitude > b->magnitude ? -1 : 1;
    }
    return a->at < b->at ? -1 : 1;
}

static void reference_choice(const float *a, size_t n, unsigned keep, bool *chosen)
{
    static struct ranked r[HDT_SPARSE_BLOCK];

    for (size_t block = 0; block < n; block += HDT_SPARSE_BLOCK) {
        size_t len = n - block < HDT_SPARSE_BLOCK ? n - block : HDT_SPARSE_BLOCK;

        for (size_t i = 0; i < len; i++) {
            r[i] = (struct ranked){fabs((double)a[block + i]), i};
            chosen[block + i] = false;
        }
        qsort(r, len, sizeof(r[0]), by_rank);
        for (size_t i = 0; i < (len + keep - 1) / keep; i++) {
            chosen[block + r[i].at] = true;
        }
    }
}

/* Farthest that a decoded value of a block may be off, from the range of what was kept. */
static double tolerance(unsigned bits, double least, double most)
{
    double step = (most - least) / ((double)(1u << (bits - 1)) - 1);

    if (bits == 2) {
        return most - least + most / 128 + 1e-38; /* two means lie within */
    }
    return bits == 16 ? most / 256 + 1e-40 : step / 2 + (most - least + least) / 128 + 1e-38;
}

static void check_block(const struct sent *s, const float *a, const bool *chosen, size_t from,
                        size_t to, unsigned bits)
{
    double least = INFINITY, most = 0;

    for (size_t i = from; i < to; i++) {
        if (chosen[i]) {
            least = fmin(least, fabs((double)a[i]));
            most = fmax(most, fabs((double)a[i]));
        }
    }
    for (size_t i = from; i < to; i++) {
        float left = a[i] - s->decoded[i];

        if (!chosen[i]) {
            cr_assert_eq(s->decoded[i], 0, "value %zu", i);
        } else {
            cr_assert_leq(fabs((double)left), tolerance(bits, least, most), "%g for %g, bits %u",
                          (double)s->decoded[i], (double)a[i], bits);
        }
        cr_assert_eq(s->residual[i], left, "value %zu", i);
    }
}

static void check_guard(const struct sent *s, const float *a, const float *x, size_t n)
{
    double err = 0, ref = 0, max = 0;

    for (size_t i = 0; i < n; i++) {
        double e = (double)a[i] - (double)s->decoded[i];

        err += e * e;
        ref += (double)a[i] * (double)a[i];
        max = fmax(max, fabs((double)x[i]));
    }
    cr_assert_eq(s->guard.n, n);
    cr_assert_eq(s->guard.n_nonfinite, 0);
    cr_assert_eq((double)s->guard.max_abs, max);
    cr_assert_leq(fabs(s->guard.ref_sq - ref), 1e-12 * ref);
    cr_assert_leq(fabs(s->guard.err_sq - err), 1e-6 * err + 1e-12 * ref);
}

static void check_case(struct values_rng *rng, const struct hdt_topk *topk, enum values_kind kind,
                       size_t n)
{
    static struct sent s;
    static float x[N_MAX], a[N_MAX];
    static bool chosen[N_MAX];
    uint64_t bad = 0;

    hdt_values_fill(rng, VALUES_NORMAL, s.residual, n);
    hdt_values_fill(rng, kind, x, n);
    for (size_t i = 0; i < n; i++) {
        s.residual[i] = kind == VALUES_NORMAL ? s.residual[i] : 0;
        bad += !isfinite(x[i]);
        a[i] = s.residual[i] + x[i];
    }
    float before = n > 0 ? s.residual[n / 2] : 0;
    sent_make(&s, false, topk, hdt_sparse_kernels_best(), x, n);
    if (bad > 0) {
        cr_assert_eq(s.status, HDT_EINVAL);
        cr_assert_eq(s.guard.n_nonfinite, bad);
        cr_assert_eq(s.residual[n / 2], before);
        return;
    }
    cr_assert_eq(s.status, HDT_OK);
    reference_choice(a, n, topk->keep, chosen);
    check_guard(&s, a, x, n);
    for (size_t i = 0; i < n; i += HDT_SPARSE_BLOCK) {
        size_t end = n - i < HDT_SPARSE_BLOCK ? n : i + HDT_SPARSE_BLOCK;

        check_block(&s, a, chosen, i, end, topk->bits);
    }
}

Test(topk, sends_what_a_sort_would_choose)
{
    struct values_rng rng;

    hdt_values_rng_init(&rng, "sends_what_a_sort_would_choose");
    for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
        for (size_t i = 0; i < N_OF(sizes); i++) {
            for (size_t k = 0; k < N_OF(keeps); k++) {
                struct hdt_topk topk = {keeps[k], all_bits[(i + k) % 4]};

                check_case(&rng, &topk, (enum values_kind)kind, sizes[i]);
            }
        }
    }
}

Test(topk, of_equal_magnitudes_the_first_are_sent)
{
    static float x[4096];
    static bool chosen[4096];
    struct hdt_topk topk = {64, 8};
    static struct sent s;

    for (size_t i = 0; i < 4096; i++) {
        x[i] = i % 3 ? 2.0f : -2.0f; /* 64 of equals: 0..60 and three larger ones */
    }
    x[100] = x[4000] = x[4095] = 3.0f;
    memset(s.residual, 0, sizeof(s.residual));
    sent_make(&s, false, &topk, hdt_sparse_kernels_best(), x, 4096);
    for (size_t i = 0; i < 4096; i++) {
        chosen[i] = i <= 60 || i == 100 || i == 4000 || i == 4095;
        cr_assert_eq(s.decoded[i] != 0, chosen[i], "value %zu", i);
    }
}

/* ---- the same bits from every table ---- */

static void check_tables(struct values_rng *rng, const struct hdt_topk *topk, bool random, size_t n)
{
    static struct sent want, got;
    static float x[N_MAX], r[N_MAX];
    const struct hdt_sparse_kernels *const *all;
    size_t n_tables;

    all = hdt_sparse_kernels_all(&n_tables);
    hdt_values_fill(rng, VALUES_HEAVY_TAILED, x, n);
    hdt_values_fill(rng, hdt_values_below(rng, 2) ? VALUES_NORMAL : VALUES_CONSTANT, r, n);
    memcpy(want.residual, r, sizeof(r));
    sent_make(&want, random, topk, &hdt_sparse_kernels_scalar, x, n);
    for (size_t t = 1; t < n_tables; t++) {
        memcpy(got.residual, r, sizeof(r));
        sent_make(&got, random, topk, all[t], x, n);
        cr_assert_eq(memcmp(got.frame, want.frame, want.len), 0, "%s, n %zu", all[t]->name, n);
        cr_assert_eq(memcmp(got.residual, want.residual, 4 * n), 0, "%s, n %zu", all[t]->name, n);
        cr_assert_eq(memcmp(&got.guard, &want.guard, sizeof(got.guard)), 0, "%s", all[t]->name);
    }
}

Test(topk, every_table_of_kernels_gives_the_same_bits)
{
    struct values_rng rng;

    hdt_values_rng_init(&rng, "every_table_of_kernels_gives_the_same_bits");
    for (size_t i = 0; i < N_OF(sizes); i++) {
        for (size_t k = 0; k < N_OF(keeps); k++) {
            struct hdt_topk topk = {keeps[k], all_bits[(i + k) % 4]};

            check_tables(&rng, &topk, false, sizes[i]);
            check_tables(&rng, &topk, true, sizes[i]);
        }
    }
}

Test(topk, kernels_give_the_bits_of_the_scalar_ones)
{
    static float a[1100], b[1100], y[1100], z[1100];
    static uint32_t magnitudes[1100];
    static uint16_t want[1200], got[1200];
    struct values_rng rng;
    size_t n_tables;
    const struct hdt_sparse_kernels *const *all = hdt_sparse_kernels_all(&n_tables);

    hdt_values_rng_init(&rng, "kernels_give_the_bits_of_the_scalar_ones");
    hdt_values_fill(&rng, VALUES_HEAVY_TAILED, a, 1100);
    hdt_values_fill(&rng, VALUES_NORMAL, b, 1100);
    for (size_t i = 0; i < 1100; i++) {
        memcpy(&magnitudes[i], &a[i], 4);
        magnitudes[i] &= 0x7fffffff;
    }
    for (size_t n = 0; n < 1100; n += 1 + n / 40) {
        uint32_t least = n % 5 ? magnitudes[n / 2] : 0;
        float dot = hdt_sparse_kernels_scalar.dot(a, b, n);
        size_t count = hdt_sparse_kernels_scalar.count(magnitudes, n, least);

        cr_assert_eq(hdt_sparse_kernels_scalar.collect(a, n, least, want), count);
        for (size_t t = 1; t < n_tables; t++) {
            float d = all[t]->dot(a, b, n);

            cr_assert_eq(memcmp(&d, &dot, 4), 0, "%s dot, n %zu", all[t]->name, n);
            cr_assert_eq(all[t]->count(magnitudes, n, least), count, "%s", all[t]->name);
            cr_assert_eq(all[t]->collect(a, n, least, got), count, "%s", all[t]->name);
            cr_assert_eq(memcmp(got, want, 2 * count), 0, "%s collect, n %zu", all[t]->name, n);
            memcpy(y, b, sizeof(b));
            memcpy(z, b, sizeof(b));
            hdt_sparse_kernels_scalar.axpy(y, a, -1.3f, n);
            all[t]->axpy(z, a, -1.3f, n);
            cr_assert_eq(memcmp(y, z, sizeof(y)), 0, "%s axpy, n %zu", all[t]->name, n);
        }
    }
}

/* ---- by hand ---- */

static void check_bytes(const struct hdt_topk *topk, const float *x, size_t n, const uint8_t *frame,
                        size_t len)
{
    static struct sent s;

    memset(s.residual, 0, sizeof(s.residual));
    sent_make(&s, false, topk, hdt_sparse_kernels_best(), x, n);
    cr_assert_eq(s.len, len);
    cr_assert_eq(memcmp(s.frame, frame, len), 0);
}

Test(topk, frames_are_as_worked_out_by_hand)
{
    /* one of four: position 1 is 0 high (bit 0) and 1 low; magnitude 3, no step; sign */
    static const float four[] = {0, -3, 1, 2};
    static const uint8_t four_2[] = {0x01, 0x01, 0x40, 0x40, 0x00, 0x00, 0x02};
    /* two of eight: 3 is 0 high, 3 low; 6 is 1 high (bit 1 + 1), 2 low */
    static const float eight[] = {1, 0, 0, -5, 0, 0, 2, 0};
    static const uint8_t eight_16[] = {0x05, 0x0b, 0xa0, 0xc0, 0x00, 0x40};
    /* low 2, step 3/7 as bf16 0.427734375; codes 7 negative, 0 */
    static const uint8_t eight_4[] = {0x05, 0x0b, 0x00, 0x40, 0xdb, 0x3e, 0x0f};

    check_bytes(&(struct hdt_topk){4, 2}, four, 4, four_2, sizeof(four_2));
    check_bytes(&(struct hdt_topk){4, 16}, eight, 8, eight_16, sizeof(eight_16));
    check_bytes(&(struct hdt_topk){4, 4}, eight, 8, eight_4, sizeof(eight_4));
}

Test(topk, a_frame_is_a_195th_at_one_of_64_and_two_bits)
{
    struct hdt_topk topk = {64, 2};

    /* 64 positions of 6 + 1 bits and 63 more, 64 codes of 2 bits, two bf16 */
    cr_expect_eq(hdt_topk_len(&topk, 4096), (384 + 128 + 128) / 8 + 4);
    cr_expect_eq(hdt_topk_len(&topk, (size_t)1 << 20), 256 * 84);
    cr_expect_gt(4.0 * 4096 / 84, 100);
    cr_expect_eq(hdt_topk_len(&topk, 0), 0);
    cr_expect_eq(hdt_randk_len(&topk, 4096), 8 + 4 + 16);
}

/* ---- feedback ---- */

static void check_feedback(struct values_rng *rng, bool random, unsigned bits)
{
    static struct sent s;
    static float x[5000];
    static double in[5000], out[5000], size[5000];
    struct hdt_topk topk = {16, bits};

    memset(s.residual, 0, sizeof(s.residual));
    memset(in, 0, sizeof(in));
    memset(out, 0, sizeof(out));
    memset(size, 0, sizeof(size));
    for (int step = 0; step < 40; step++) {
        hdt_values_fill(rng, step % 3 ? VALUES_NORMAL : VALUES_HEAVY_TAILED, x, 5000);
        sent_make(&s, random, &topk, hdt_sparse_kernels_best(), x, 5000);
        for (size_t i = 0; i < 5000; i++) {
            in[i] += (double)x[i];
            out[i] += (double)s.decoded[i];
            size[i] +=
                fabs((double)x[i]) + fabs((double)s.decoded[i]) + fabs((double)s.residual[i]);
        }
    }
    for (size_t i = 0; i < 5000; i++) { /* two roundings a step */
        cr_assert_leq(fabs(out[i] + (double)s.residual[i] - in[i]), 0x1p-23 * size[i]);
    }
}

Test(topk, what_was_sent_and_what_is_owed_is_all_that_came_in)
{
    struct values_rng rng;

    hdt_values_rng_init(&rng, "what_was_sent_and_what_is_owed_is_all_that_came_in");
    for (size_t i = 0; i < N_OF(all_bits); i++) {
        check_feedback(&rng, false, all_bits[i]);
        check_feedback(&rng, true, all_bits[i]);
    }
}

/* Descent on sum (w - 1)^2 / 2 where the gradients of one value of 16 are drowned in noise that
 * alternates. Returns the error of the other values. */
static double descend(bool feedback, unsigned bits)
{
    enum { N = 1024, STEPS = 1500 };
    static float w[N], g[N], d[N], residual[N];
    static uint8_t frame[4 * N];
    struct hdt_topk topk = {16, bits};
    struct hdt_codec_guard guard;
    double err = 0;

    memset(w, 0, sizeof(w));
    memset(residual, 0, sizeof(residual));
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < N; i++) {
            g[i] = (w[i] - 1) + (i % 16 == 0 ? (step % 2 ? 5.0f : -5.0f) : 0);
        }
        cr_assert_eq(hdt_topk_encode(&topk, hdt_kernels_best(), hdt_sparse_kernels_best(),
                                     (uint8_t *)g, N, feedback ? residual : NULL, frame, &guard,
                                     NULL),
                     HDT_OK);
        cr_assert_eq(
            hdt_topk_decode(&topk, frame, hdt_topk_len(&topk, N), (uint8_t *)d, N, false, NULL),
            HDT_OK);
        for (size_t i = 0; i < N; i++) {
            w[i] -= 0.02f * d[i];
        }
    }
    for (size_t i = 0; i < N; i++) {
        err += i % 16 ? ((double)w[i] - 1) * ((double)w[i] - 1) : 0;
    }
    return sqrt(err / (N - N / 16));
}

Test(topk, descent_arrives_with_feedback_and_not_without)
{
    for (size_t i = 0; i < N_OF(all_bits); i++) {
        double with = descend(true, all_bits[i]), without = descend(false, all_bits[i]);

        cr_expect_lt(with, 0.1, "bits %u: %g", all_bits[i], with);
        cr_expect_gt(without, 0.9, "bits %u: %g", all_bits[i], without);
    }
}

Test(topk, sums_beyond_the_largest_float_stay_at_it)
{
    static struct sent s;
    float x[3] = {3e38f, -3e38f, 1};
    struct hdt_topk topk = {4, 16};

    memset(s.residual, 0, sizeof(s.residual));
    for (int step = 0; step < 3; step++) {
        sent_make(&s, false, &topk, hdt_sparse_kernels_best(), x, 3);
        cr_assert_eq(s.status, HDT_OK);
    }
    for (int i = 0; i < 3; i++) {
        cr_expect(isfinite(s.residual[i]) && isfinite(s.decoded[i]));
    }
}

Test(topk, a_tensor_of_64_mib_is_sent_or_owed)
{
    const size_t n = (size_t)16 << 20, n_part = 65536;
    struct hdt_topk topk = {64, 2};
    float *x = hdt_malloc(4 * n), *residual = calloc(n, 4), *y = hdt_malloc(4 * n);
    uint8_t *frame = hdt_malloc(hdt_topk_len(&topk, n));
    struct hdt_codec_guard guard;
    struct values_rng rng;
    size_t sent = 0;

    hdt_values_rng_init(&rng, "a_tensor_of_64_mib_is_sent_or_owed");
    hdt_values_fill(&rng, VALUES_HEAVY_TAILED, x, n_part);
    for (size_t i = n_part; i < n; i++) {
        x[i] = x[i % n_part] * (float)(1 + i / n_part);
    }
    cr_assert_eq(hdt_topk_encode(&topk, hdt_kernels_best(), hdt_sparse_kernels_best(), (uint8_t *)x,
                                 n, residual, frame, &guard, NULL),
                 HDT_OK);
    cr_assert_eq(
        hdt_topk_decode(&topk, frame, hdt_topk_len(&topk, n), (uint8_t *)y, n, false, NULL),
        HDT_OK);
    for (size_t i = 0; i < n; i++) {
        sent += y[i] != 0;
        if (residual[i] != x[i] - y[i]) {
            cr_assert_fail("value %zu", i);
        }
    }
    cr_expect_eq(sent, n / 64);
    free(x);
    free(y);
    free(residual);
    free(frame);
}

/* ---- random-k ---- */

Test(topk, randk_sends_one_value_of_each_run_and_each_equally_often)
{
    enum { N = 640, KEEP = 64, FRAMES = 6400 };
    static float x[N], d[N], residual[N];
    static uint8_t frame[4 * N];
    static unsigned hits[N];
    struct hdt_topk topk = {KEEP, 16};
    struct hdt_codec_guard guard;

    for (size_t f = 0; f < FRAMES; f++) {
        for (size_t i = 0; i < N; i++) {
            x[i] = 1;
        }
        memset(residual, 0, sizeof(residual));
        hdt_randk_encode(&topk, hdt_kernels_best(), hdt_sparse_kernels_best(), f, (uint8_t *)x, N,
                         residual, frame, &guard, NULL);
        hdt_randk_decode(&topk, frame, hdt_randk_len(&topk, N), (uint8_t *)d, N, false, NULL);
        for (size_t run = 0; run < N; run += KEEP) {
            unsigned here = 0;

            for (size_t i = run; i < run + KEEP; i++) {
                here += d[i] == 1;
                hits[i] += d[i] == 1;
            }
            cr_assert_eq(here, 1);
        }
    }
    for (size_t i = 0; i < N; i++) { /* 100 expected, deviation 10 */
        cr_expect(hits[i] > 50 && hits[i] < 160, "value %zu: %u", i, hits[i]);
    }
}

Test(topk, randk_draws_as_the_page_of_coded_forms_says)
{
    /* seed 77; runs from 0, 4 and 8: values 1, 7 and 8, worked out with whole numbers elsewhere */
    static const uint8_t frame[] = {77, 0, 0, 0, 0, 0, 0, 0, 0x30, 0x41, 0x88, 0x41, 0x90, 0x41};
    static const float x[] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
    static struct sent s;

    memset(s.residual, 0, sizeof(s.residual));
    sent_make(&s, true, &(struct hdt_topk){4, 16}, hdt_sparse_kernels_best(), x, 10);
    cr_assert_eq(s.len, sizeof(frame));
    cr_expect_eq(memcmp(s.frame, frame, sizeof(frame)), 0);
    cr_expect(s.decoded[1] == 11 && s.decoded[7] == 17 && s.decoded[8] == 18);
}

/* ---- decoders ---- */

Test(topk, decode_adds_to_what_is_there)
{
    static const uint8_t frame[] = {0x05, 0x0b, 0xa0, 0xc0, 0x00, 0x40};
    float y[8] = {1, 2, 3, 4, 5, 6, 7, 8}, want[8] = {1, 2, 3, -1, 5, 6, 9, 8};

    cr_assert_eq(hdt_topk_decode(&(struct hdt_topk){4, 16}, frame, 6, (uint8_t *)y, 8, true, NULL),
                 HDT_OK);
    cr_expect_eq(memcmp(y, want, sizeof(y)), 0);
}

Test(topk, broken_frames_are_refused)
{
    static const struct {
        uint8_t frame[6];
        size_t len;
        const char *why;
    } bad[] = {
        {{0x05, 0x0b, 0xa0, 0xc0, 0x00, 0x40}, 5, "short"},
        {{0x01, 0x0b, 0xa0, 0xc0, 0x00, 0x40}, 6, "one position instead of two"},
        {{0x07, 0x0b, 0xa0, 0xc0, 0x00, 0x40}, 6, "three positions"},
        {{0x03, 0x0f, 0xa0, 0xc0, 0x00, 0x40}, 6, "3 twice"},
        {{0x03, 0x0b, 0xa0, 0xc0, 0x00, 0x40}, 6, "3, then 2"},
        {{0x81, 0x0b, 0xa0, 0xc0, 0x00, 0x40}, 6, "beyond the end"},
        {{0x05, 0x0b, 0x80, 0x7f, 0x00, 0x40}, 6, "infinity"},
        {{0x05, 0x0b, 0xa0, 0xc0, 0xc0, 0xff}, 6, "NaN"},
    };
    static const uint8_t scales[][7] = {
        {0x05, 0x0b, 0x00, 0xc0, 0xdb, 0x3e, 0x0f}, /* least magnitude below zero */
        {0x05, 0x0b, 0x00, 0x40, 0xdb, 0xbe, 0x0f}, /* step below zero */
        {0x05, 0x0b, 0x7f, 0x7f, 0x7f, 0x7f, 0x0f}, /* finite both, their sum is not */
    };
    float y[8];

    for (size_t i = 0; i < N_OF(bad); i++) {
        cr_expect_eq(hdt_topk_decode(&(struct hdt_topk){4, 16}, bad[i].frame, bad[i].len,
                                     (uint8_t *)y, 8, false, NULL),
                     HDT_EPROTO, "%s", bad[i].why);
    }
    for (size_t i = 0; i < N_OF(scales); i++) {
        cr_expect_eq(
            hdt_topk_decode(&(struct hdt_topk){4, 4}, scales[i], 7, (uint8_t *)y, 8, false, NULL),
            HDT_EPROTO);
    }
}
