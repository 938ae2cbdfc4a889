/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of libhdt between two and three sites, each with a real gateway: values against sums
 * in float64 that this test computes by itself, and the same bits at all ranks. */
#define _GNU_SOURCE

#include "tests/support/chan_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned seed;

/* ---- types, done here in the plainest way ---- */

static double f16_value(uint16_t h)
{
    const int e = h >> 10 & 0x1f, m = h & 0x3ff;
    const double sign = h & 0x8000 ? -1 : 1;

    return e == 0x1f ? (m ? NAN : sign * INFINITY)
           : e       ? sign * ldexp(1024 + m, e - 25)
                     : sign * ldexp(m, -24);
}

static double bf16_value(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, 4);
    return f;
}

static double value_at(int type, const void *data, size_t i)
{
    uint16_t h;
    float f;

    if (type == HDT_TYPE_F32) {
        memcpy(&f, (const char *)data + 4 * i, 4);
        return f;
    }
    memcpy(&h, (const char *)data + 2 * i, 2);
    return type == HDT_TYPE_BF16 ? bf16_value(h) : f16_value(h);
}

/* Some number that the type has. */
static void value_put(int type, void *data, size_t i, double value)
{
    const float f = (float)value;
    uint32_t u;
    uint16_t h;

    memcpy(&u, &f, 4);
    if (type == HDT_TYPE_F32) {
        memcpy((char *)data + 4 * i, &f, 4);
        return;
    }
    if (type == HDT_TYPE_BF16) {
        h = (uint16_t)(u >> 16); /* cut off */
    } else {
        int e;
        const double m = frexp(fabs(value), &e); /* 0.5 <= m < 1 */

        h = value == 0 || e < -13 ? 0
                                  : (uint16_t)((value < 0 ? 0x8000 : 0) | (unsigned)(e + 14) << 10 |
                                               ((unsigned)(m * 2048) & 0x3ff));
    }
    memcpy((char *)data + 2 * i, &h, 2);
}

/* What rank r has: normal-looking numbers of unlike size. */
static void fill(int type, void *data, size_t n, int rank, unsigned salt)
{
    unsigned state = seed + 7919u * (unsigned)rank + salt;

    for (size_t i = 0; i < n; i++) {
        double x = 0;

        for (int k = 0; k < 4; k++) {
            x += (double)hdt_chan_rig_random(&state) / (1 << 24) - 0.5;
        }
        value_put(type, data, i, x * (i % 97 == 0 ? 30 : 1));
    }
}

/* ---- checks ---- */

/* Are these bytes the same at all ranks? Rank 0's go to all. */
static void check_same(struct hdt_channel *channel, const void *data, size_t bytes)
{
    char *first = malloc(bytes + 1);

    memcpy(first, data, bytes);
    CHAN_CHECK(hdt_broadcast(channel, first, bytes, 0, NULL) == HDT_ERR_NONE);
    CHAN_CHECK(memcmp(first, data, bytes) == 0);
    free(first);
}

struct the_case {
    int type, reduce;
    const char *codec;
    size_t n;
    int in_place, in_pool;
};

/* Relative error that a sum of n values may have: rounding of the type, once, and in f32 n times;
 * of a codec, of each part and of the sum. */
static double tolerance_of(const struct the_case *c, double sum_abs, double block_abs)
{
    const double type_eps = c->type == HDT_TYPE_F32    ? 0x1p-24
                            : c->type == HDT_TYPE_BF16 ? 0x1p-8
                                                       : 0x1p-11;
    double tolerance = sum_abs * (type_eps + 0x1p-22) + 1e-7;

    if (strcmp(c->codec, "bf16") == 0) {
        tolerance += 2 * sum_abs * 0x1p-8;
    } else if (strcmp(c->codec, "int8") == 0) {
        tolerance += 1.1 * block_abs / 127; /* half a step of each part, and of the sum */
    }
    return tolerance;
}

static void check_values(const struct the_case *c, const void *got, int n_ranks, unsigned salt)
{
    const size_t size = hdt_type_size(c->type);
    double *sum = calloc(c->n + 1, sizeof(*sum)), *abs = calloc(c->n + 1, sizeof(*abs));
    double *block = calloc(c->n / 256 + 1, sizeof(*block));
    void *part = malloc(c->n * size + 1);
    size_t n_wrong = 0;

    for (int r = 0; r < n_ranks; r++) {
        fill(c->type, part, c->n, r, salt);
        for (size_t i = 0; i < c->n; i++) {
            const double x = value_at(c->type, part, i);

            sum[i] += x;
            abs[i] += fabs(x);
        }
    }
    for (size_t i = 0; i < c->n; i++) {
        block[i / 256] = fmax(block[i / 256], abs[i]);
    }
    for (size_t i = 0; i < c->n; i++) {
        const double want = c->reduce == HDT_AVERAGE ? sum[i] / n_ranks : sum[i];

        n_wrong += !(fabs(value_at(c->type, got, i) - want) <=
                     tolerance_of(c, abs[i], 2 * block[i / 256]));
    }
    if (n_wrong > 0) {
        printf("%s %s codec %s n %zu: %zu values are wrong\n", hdt_type_name(c->type),
               c->reduce ? "average" : "sum", c->codec, c->n, n_wrong);
        CHAN_CHECK(n_wrong == 0);
    }
    free(sum);
    free(abs);
    free(block);
    free(part);
}

static void case_run(struct hdt_channel *channel, int rank, int n_ranks, const struct the_case *c,
                     unsigned salt)
{
    struct hdt_allreduce_conf conf = HDT_ALLREDUCE_CONF_INIT;
    const size_t bytes = c->n * hdt_type_size(c->type);
    struct hdt_error_info error;
    void *src = NULL, *dst;

    if (c->in_pool) {
        CHAN_CHECK(hdt_alloc(channel, bytes, &src, &error) == HDT_ERR_NONE);
    } else {
        src = malloc(bytes + 1);
    }
    dst = c->in_place ? src : malloc(bytes + 1);
    fill(c->type, src, c->n, rank, salt);
    conf.type = c->type;
    conf.reduce = c->reduce;
    conf.codec = c->codec;
    if (hdt_allreduce(channel, src, dst, c->n, &conf, &error) != HDT_ERR_NONE) {
        printf("%s\n", error.message);
        CHAN_CHECK(!"all-reduce failed");
    }
    check_values(c, dst, n_ranks, salt);
    check_same(channel, dst, bytes);
    if (!c->in_place) {
        free(dst);
    }
    if (c->in_pool) {
        hdt_dealloc(channel, src);
    } else {
        free(src);
    }
}

static void all_cases(struct hdt_channel *channel, int rank, int n_ranks)
{
    static const size_t sizes[] = {0, 1, 2, 3, 255, 1023, 1025, 4097, 100003, 700001};
    static const char *const codecs[] = {"none", "bf16", "int8"};
    static const int types[] = {HDT_TYPE_F32, HDT_TYPE_BF16, HDT_TYPE_F16};
    unsigned salt = 0;

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (int t = 0; t < 3; t++) {
            for (int k = 0; k < 3; k++) {
                const struct the_case c = {.type = types[t],
                                           .reduce = (int)(salt % 2),
                                           .codec = codecs[k],
                                           .n = sizes[s],
                                           .in_place = salt / 2 % 2,
                                           .in_pool = salt / 4 % 2};

                case_run(channel, rank, n_ranks, &c, ++salt);
            }
        }
    }
}

/* ---- what is not finite ---- */

static void not_finite(struct hdt_channel *channel, int rank, int n_ranks)
{
    struct hdt_channel_stats stats = {.size = sizeof(stats)};
    struct hdt_allreduce_conf conf = HDT_ALLREDUCE_CONF_INIT;
    const size_t n = 1200007;
    float *x = malloc(n * sizeof(*x));

    conf.codec = "int8";
    for (size_t i = 0; i < n; i++) {
        x[i] = 1;
    }
    if (rank == 1) {
        x[5] = NAN;
        x[n - 2] = INFINITY;
    }
    CHAN_CHECK(hdt_allreduce(channel, x, x, n, &conf, NULL) == HDT_ERR_NONE);
    CHAN_CHECK(isnan(x[5]) && isinf(x[n - 2]));
    CHAN_CHECK(fabs(x[4] - n_ranks) < 0.1 && fabs(x[n - 1] - n_ranks) < 0.1);
    CHAN_CHECK(fabs(x[n / 2] - n_ranks) < 0.1);
    CHAN_CHECK(hdt_channel_stats(channel, &stats, NULL) == HDT_ERR_NONE);
    CHAN_CHECK(stats.n_collectives == 1 && stats.n_here == n_ranks && stats.n_connections == 1);
    CHAN_CHECK(stats.frame_bytes > 0 && stats.raw_bytes >= stats.frame_bytes);
    check_same(channel, x, n * sizeof(*x));
    free(x);
}

/* ---- several at once, and the other collectives ---- */

#define N_UNDER_WAY 24

static void many_under_way(struct hdt_channel *channel, int rank, int n_ranks)
{
    struct hdt_request *requests[N_UNDER_WAY];
    static float x[N_UNDER_WAY][5000], b[300000];
    int done;

    for (int k = 0; k < N_UNDER_WAY; k++) {
        const size_t n = k % 5 == 0 ? 1 : (size_t)(k * 200 + 1);

        for (size_t i = 0; i < 5000; i++) {
            x[k][i] = (float)(k + rank);
        }
        CHAN_CHECK(hdt_iallreduce(channel, x[k], x[k], n, NULL, &requests[k], NULL) ==
                   HDT_ERR_NONE);
    }
    for (size_t i = 0; i < 300000; i++) {
        b[i] = rank == n_ranks - 1 ? (float)i : -1;
    }
    CHAN_CHECK(hdt_broadcast(channel, b, sizeof(b), n_ranks - 1, NULL) == HDT_ERR_NONE);
    CHAN_CHECK(b[0] == 0 && b[299999] == 299999 && b[150000] == 150000);
    for (int k = N_UNDER_WAY - 1; k >= 0; k--) {
        const float want = (float)(n_ranks * k + n_ranks * (n_ranks - 1) / 2);
        size_t n = 0;

        if (k % 2) {
            CHAN_CHECK(hdt_wait(&requests[k], &n, NULL) == HDT_ERR_NONE);
        } else {
            do {
                CHAN_CHECK(hdt_test(&requests[k], &done, &n, NULL) == HDT_ERR_NONE);
            } while (!done);
        }
        CHAN_CHECK(requests[k] == NULL);
        CHAN_CHECK(n == (k % 5 == 0 ? 1 : (size_t)(k * 200 + 1)));
        CHAN_CHECK(x[k][0] == want && x[k][n - 1] == want && x[k][n] == (float)(k + rank));
    }
    CHAN_CHECK(hdt_barrier(channel, NULL) == HDT_ERR_NONE);
}

/* ---- a gateway that is killed in the middle ---- */

#define N_ROUNDS 40

/* Bits are those of the first round, all the time. */
static void through_a_restart(struct hdt_channel *channel, int rank, int n_ranks)
{
    struct hdt_channel_stats stats = {.size = sizeof(stats)};
    const size_t n = 400003;
    float *first = malloc(4 * n), *x = malloc(4 * n);
    struct hdt_error_info error;
    const struct the_case c = {.type = HDT_TYPE_F32, .codec = "none", .n = n};

    for (int k = 0; k < N_ROUNDS; k++) {
        fill(HDT_TYPE_F32, x, n, rank, 5);
        if (hdt_allreduce(channel, x, x, n, NULL, &error) != HDT_ERR_NONE) {
            printf("rank %d, round %d: %s\n", rank, k, error.message);
            CHAN_CHECK(!"all-reduce failed");
            break;
        }
        if (k == 0) {
            memcpy(first, x, 4 * n);
            check_values(&c, x, n_ranks, 5);
            hdt_chan_rig_touch(rank == 0 ? "going-0" : "going-1");
        }
        CHAN_CHECK(memcmp(first, x, 4 * n) == 0);
        if (k == 5) {
            CHAN_CHECK(hdt_chan_rig_wait_file("back", 60)); /* as long as it takes */
        }
    }
    CHAN_CHECK(hdt_channel_stats(channel, &stats, NULL) == HDT_ERR_NONE);
    CHAN_CHECK(rank != 1 || stats.n_connections > 1);
    free(first);
    free(x);
}

static void restart_rank(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("restart", 2, rank, &error);

    CHAN_CHECK(channel != NULL);
    if (channel) {
        through_a_restart(channel, rank, 2);
        CHAN_CHECK(hdt_channel_close(channel, &error) == HDT_ERR_NONE);
    }
}

static void test_gateway_restart(void)
{
    pid_t pids[2];

    for (int i = 0; i < 2; i++) {
        pids[i] = hdt_chan_rig_fork(restart_rank, i);
    }
    CHAN_CHECK(hdt_chan_rig_wait_file("going-0", 60) && hdt_chan_rig_wait_file("going-1", 60));
    hdt_chan_rig_kill(1);
    hdt_chan_rig_restart(1);
    hdt_chan_rig_touch("back");
    for (int i = 0; i < 2; i++) {
        CHAN_CHECK(hdt_chan_rig_join(pids[i], 100));
    }
}

int main(void)
{
    seed = hdt_chan_rig_seed();
    hdt_chan_rig_open();
    hdt_chan_rig_start(3, "20s");
    hdt_chan_rig_run("two", 2, 120, all_cases);
    hdt_chan_rig_run("three", 3, 120, all_cases);
    hdt_chan_rig_run("odd", 3, 60, not_finite);
    hdt_chan_rig_run("many", 3, 60, many_under_way);
    test_gateway_restart();
    hdt_chan_rig_close();
    return hdt_chan_rig_n_failed > 0;
}
