/* SPDX-License-Identifier: Apache-2.0 */
/* Average a tensor over programs at several sites, each at the gateway of its own:
 *     cc example_allreduce.c $(pkg-config --cflags --libs hdt)
 *     ./a.out site-a site-b          at both sites, at the same time */
#include <hdt.h>

#include <stdio.h>
#include <stdlib.h>

#define N 1000000

static int fail(const char *what, const struct hdt_error_info *error)
{
    fprintf(stderr, "%s: %s\n", what, error->message);
    if (error->hint[0] != '\0') {
        fprintf(stderr, "hint: %s\n", error->hint);
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct hdt_channel_conf conf = HDT_CHANNEL_CONF_INIT;
    struct hdt_allreduce_conf average = HDT_ALLREDUCE_CONF_INIT;
    struct hdt_channel *channel;
    struct hdt_error_info error;
    struct hdt_ctx *ctx;
    float *x = malloc(N * sizeof(*x));
    int i, rc = 0;

    conf.name = "example";
    conf.members = (const char *const *)(argv + 1);
    conf.n_members = argc - 1;
    average.reduce = HDT_AVERAGE;
    average.codec = getenv("CODEC"); /* "bf16", "int8"; NULL: none */
    if (!x) {
        return 1;
    }
    if (hdt_open(NULL, NULL, &ctx, &error) != HDT_ERR_NONE) {
        free(x);
        return fail("cannot reach the gateway", &error);
    }
    if (hdt_channel_open(ctx, &conf, &channel, &error) != HDT_ERR_NONE) {
        hdt_close(ctx);
        free(x);
        return fail("cannot join", &error);
    }
    hdt_close(ctx); /* the channel has a connection of its own */
    for (i = 0; i < N; i++) {
        x[i] = (float)hdt_channel_rank(channel);
    }
    if (hdt_allreduce(channel, x, x, N, &average, &error) != HDT_ERR_NONE) {
        rc = fail("all-reduce", &error);
    } else {
        printf("rank %d of %d (%s): average %g\n", hdt_channel_rank(channel),
               hdt_channel_n_members(channel),
               hdt_channel_member(channel, hdt_channel_rank(channel)), x[N - 1]);
    }
    if (hdt_channel_close(channel, &error) != HDT_ERR_NONE && rc == 0) {
        rc = fail("close", &error);
    }
    free(x);
    return rc;
}
