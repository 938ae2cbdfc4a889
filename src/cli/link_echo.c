/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hdt link echo: the other end of `hdt link bench`. The gateway of that site starts it, and it does
 * what the orders say until the channel is over: when it was closed, when the measuring program is
 * gone, or when the gateway that started it is.
 */
#include "config.h"

#include "src/cli/link_bench.h"
#include "src/cli/link_flows.h"

#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define OPEN_MS   15000
#define CAP_BYTES ((size_t)1 << 30) /* pages that are not used take no memory */

enum echo_option { OPT_GATEWAY = 256, OPT_CHANNEL, OPT_FROM, OPT_WINDOW, OPT_TIMEOUT, OPT_SITE };

static const struct argp_option options[] = {
    {"gateway", OPT_GATEWAY, "ADDRESS", 0, "Gateway of this site", 0},
    {"site", OPT_SITE, "SITE", 0, "Its site", 0},
    {"channel", OPT_CHANNEL, "NAME", 0, "Channel to join", 0},
    {"from", OPT_FROM, "SITE", 0, "Site that measures", 0},
    {"window", OPT_WINDOW, "BYTES", 0, "Window of each flow", 0},
    {"progress", OPT_TIMEOUT, "MS", 0, "Deadline on progress", 0},
    {0},
};

struct echo_args {
    const char *gateway;
    struct hdt_bench_conf conf;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct echo_args *args = state->input;

    switch (key) {
    case OPT_GATEWAY:
        args->gateway = arg;
        return 0;
    case OPT_SITE:
        args->conf.sites[1] = arg;
        return 0;
    case OPT_CHANNEL:
        args->conf.channel = arg;
        return 0;
    case OPT_FROM:
        args->conf.sites[0] = arg;
        return 0;
    case OPT_WINDOW:
        args->conf.window_bytes = strtoul(arg, NULL, 10);
        return 0;
    case OPT_TIMEOUT:
        args->conf.timeout_ms = (int)strtol(arg, NULL, 10);
        return 0;
    case ARGP_KEY_END:
        if (!args->gateway || !args->conf.channel || !args->conf.sites[0] || !args->conf.sites[1]) {
            argp_error(state, "it is started by a gateway, not by people");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {.options = options, .parser = option_parse};

static enum hdt_err order_do(struct hdt_bench_flows *flows, const struct hdt_bench_order *order,
                             struct hdt_error_info *error)
{
    struct hdt_bench_order answer = *order;
    struct hdt_bench_span span;
    enum hdt_err rc = HDT_ERR_NONE;

    if (order->codec < 0 || order->codec >= HDT_BENCH_CODECS || order->n < 0 || order->bytes < 0 ||
        (size_t)order->bytes > flows->cap) {
        hdt_channel_abort(flows->channel, "an order that cannot be done");
        return HDT_ERR_PROTOCOL;
    }
    if (order->what == HDT_BENCH_TAKE) {
        rc = hdt_bench_take(flows, order, &span, error);
        answer.n = span.n;
        answer.span_us = span.us;
    } else if (order->what == HDT_BENCH_GIVE) {
        rc = hdt_bench_give(flows, order, error);
    }
    return rc == HDT_ERR_NONE ? hdt_bench_say(flows->answer, &answer, error) : rc;
}

static int link_echo_run(int argc, char **argv)
{
    struct echo_args args = {.conf = {.rank = 1, .cap = CAP_BYTES, .open_timeout_ms = OPEN_MS}};
    struct hdt_bench_flows flows;
    struct hdt_bench_order order = {0};
    struct hdt_error_info error = {0};
    enum hdt_err rc;

    hdt_cmd_parse(&argp, argc, argv, &args);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    rc = hdt_open(args.gateway, NULL, &args.conf.ctx, &error);
    if (rc == HDT_ERR_NONE) {
        rc = hdt_bench_flows_open(&flows, &args.conf, &error);
        hdt_close(args.conf.ctx);
    }
    if (rc != HDT_ERR_NONE) {
        fprintf(stderr, "hdt: cannot echo for site %s: %s\n", args.conf.sites[0], error.message);
        return HDT_EXIT_FAILED;
    }
    while (rc == HDT_ERR_NONE && order.what != HDT_BENCH_END) {
        rc = hdt_bench_hear(flows.order, &order, &error);
        if (rc == HDT_ERR_NONE && order.what != HDT_BENCH_END) {
            rc = order_do(&flows, &order, &error);
        }
    }
    hdt_bench_flows_close(&flows);
    return HDT_EXIT_OK; /* why it ended is said where it was measured */
}

const struct hdt_cmd hdt_cmd_link_echo = {"echo", NULL, link_echo_run, &argp, NULL};
