/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-reduce of libhdt, one process a site:
 *   bench_allreduce GATEWAY RANK MiB ROUNDS CODEC[,CODEC...] SITE...
 * Prints "CODEC SECONDS" for each round: this rank's time, from a barrier on; the first round of
 * each codec is left out. Values are checked at all ranks.
 */
#define _GNU_SOURCE

#include "src/hdt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct hdt_error_info error;

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(enum hdt_err code)
{
    if (code != HDT_ERR_NONE) {
        fprintf(stderr, "bench_allreduce: %s\n", error.message);
        exit(1);
    }
}

/* Value i of rank r; sums of all ranks are exact in fp32. */
static float value_of(size_t i, int r)
{
    return (float)((i * 2654435761u >> 7) % 1024) + (float)r;
}

static void round_run(struct hdt_channel *channel, float *x, size_t n, const char *codec,
                      int is_shown)
{
    struct hdt_allreduce_conf conf = HDT_ALLREDUCE_CONF_INIT;
    const int rank = hdt_channel_rank(channel), n_ranks = hdt_channel_n_members(channel);
    const double tolerance = strcmp(codec, "none") == 0 ? 0 : 60;
    double begin, took;

    conf.codec = codec;
    for (size_t i = 0; i < n; i++) {
        x[i] = value_of(i, rank);
    }
    check(hdt_barrier(channel, &error));
    begin = now_s();
    check(hdt_allreduce(channel, x, x, n, &conf, &error));
    took = now_s() - begin;
    for (size_t i = 0; i < n; i += 997) {
        const float want = n_ranks * value_of(i, 0) + (float)(n_ranks * (n_ranks - 1) / 2);

        if (!(fabsf(x[i] - want) <= tolerance)) {
            fprintf(stderr, "bench_allreduce: element %zu is %g, not %g\n", i, x[i], want);
            exit(1);
        }
    }
    if (is_shown) {
        printf("%s %.6f\n", codec, took);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    struct hdt_channel_conf conf = HDT_CHANNEL_CONF_INIT;
    struct hdt_channel *channel;
    struct hdt_ctx *ctx;
    size_t n;
    float *x;
    int rounds;

    if (argc < 8) {
        fprintf(stderr,
                "usage: bench_allreduce GATEWAY RANK MiB ROUNDS CODEC[,CODEC...] SITE...\n");
        return 2;
    }
    n = (size_t)strtoul(argv[3], NULL, 10) << 18;
    rounds = (int)strtol(argv[4], NULL, 10);
    conf.name = "bench";
    conf.rank = (int)strtol(argv[2], NULL, 10);
    conf.members = (const char *const *)(argv + 6);
    conf.n_members = argc - 6;
    conf.memory_bytes = 4 * n + (1u << 20);
    check(hdt_open(argv[1], NULL, &ctx, &error));
    check(hdt_channel_open(ctx, &conf, &channel, &error));
    hdt_close(ctx);
    check(hdt_alloc(channel, 4 * n, (void **)&x, &error));
    for (char *codec = strtok_r(argv[5], ",", &argv[5]); codec;
         codec = strtok_r(NULL, ",", &argv[5])) {
        for (int k = 0; k <= rounds; k++) {
            round_run(channel, x, n, codec, k > 0);
        }
    }
    check(hdt_channel_close(channel, &error));
    return 0;
}
