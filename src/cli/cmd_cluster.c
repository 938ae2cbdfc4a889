/* SPDX-License-Identifier: Apache-2.0 */
/* hdt cluster: clusters as files, for predictions. */
#include "config.h"

#include "src/base/buf.h"
#include "src/cli/cmd.h"
#include "src/cli/human.h"
#include "src/core/cluster_file.h"

#include <argp.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The size of message that rates are shown for. */
#define SHOWN_BYTES 1e9

enum cluster_option { OPT_JSON = 256, OPT_CATALOGUE };

struct cluster_args {
    const char *file, *catalogue;
    bool json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct cluster_args *args = state->input;

    switch (key) {
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_CATALOGUE:
        args->catalogue = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (args->file) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args->file) {
            argp_error(state, "which file?");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {"catalogue", OPT_CATALOGUE, "FILE", 0, "Another catalogue than the installed one", 0},
    {0},
};
static const struct argp show_argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "FILE",
    .doc = "Check a cluster file with all its names and show what it describes: devices, their "
           "memory, links inside a node (each device's) and between nodes (a node's), ways between "
           "sites. Rates are those of messages of 1 GB.",
};

/* Rate of a link when `devices` use it at once; "-": there is none. */
static const char *rate_text(const struct hdt_link_curve *link, int64_t devices,
                             char out[HDT_HUMAN_CAP])
{
    if (!link) {
        snprintf(out, HDT_HUMAN_CAP, "-");
    } else {
        snprintf(out, HDT_HUMAN_CAP, "%.4g GB/s",
                 hdt_link_curve_bytes_per_s(link, SHOWN_BYTES, devices) / 1e9);
    }
    return out;
}

static void nodes_print(const struct hdt_cluster_file *cluster)
{
    char memory[HDT_HUMAN_CAP], inside[HDT_HUMAN_CAP], between[HDT_HUMAN_CAP];

    printf("%-14s  %-12s  %5s  %7s  %-15s  %8s  %12s  %12s\n", "SITE", "NODES", "COUNT", "DEVICES",
           "DEVICE", "MEMORY", "INSIDE", "BETWEEN");
    for (size_t i = 0; i < cluster->sites.n; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(cluster, i);

        for (size_t j = 0; j < site->nodes.n; j++) {
            const struct hdt_cluster_file_nodes *n = hdt_cluster_file_nodes(site, j);
            double bytes = hdt_cluster_file_memory_bytes(n);

            if (isnan(bytes)) {
                snprintf(memory, sizeof(memory), "-");
            } else {
                hdt_human_memory(bytes, memory);
            }
            printf("%-14s  %-12s  %5lld  %7lld  %-15s  %8s  %12s  %12s\n", j ? "" : site->name,
                   n->name, (long long)n->count, (long long)n->devices, n->device->name, memory,
                   rate_text(n->inside, n->devices, inside),
                   rate_text(n->between, n->devices, between));
        }
        if (site->nodes.n == 0) {
            printf("%-14s  relays only\n", site->name);
        }
    }
}

static void way_print(const struct hdt_cluster_file *cluster, size_t from, size_t to)
{
    struct hdt_cluster_file_path path;
    char rate[HDT_HUMAN_CAP], rtt[HDT_HUMAN_CAP];
    double least = INFINITY;

    hdt_cluster_file_path(cluster, from, to, &path);
    if (path.rtt_s > 0) {
        hdt_human_time(path.rtt_s, rtt);
    } else {
        snprintf(rtt, sizeof(rtt), "-");
    }
    for (size_t i = 0; i < path.n_legs; i++) {
        least = fmin(least, hdt_cluster_file_leg_bytes_per_s(path.legs[i], SHOWN_BYTES));
    }
    printf("%-14s  %-14s  %12s  %9s  %7.3g %%  %8.4g", hdt_cluster_file_site(cluster, from)->name,
           hdt_cluster_file_site(cluster, to)->name, hdt_human_rate(least, rate), rtt,
           100 * path.loss, path.price_per_gb);
    for (size_t i = 1; i < path.n_legs; i++) {
        printf("%s%s", i == 1 ? "  over " : ", ",
               path.reversed[i] ? path.legs[i]->to : path.legs[i]->from);
    }
    putchar('\n');
}

static void cluster_print(const struct hdt_cluster_file *cluster)
{
    printf("%s: %lld devices at %zu site%s\n\n", cluster->name,
           (long long)hdt_cluster_file_n_devices(cluster), cluster->sites.n,
           cluster->sites.n == 1 ? "" : "s");
    nodes_print(cluster);
    if (cluster->sites.n > 1) {
        printf("\n%-14s  %-14s  %12s  %9s  %9s  %8s\n", "FROM", "TO", "RATE", "RTT", "LOSS",
               "PRICE/GB");
    }
    for (size_t i = 0; i < cluster->sites.n * cluster->sites.n; i++) {
        if (i / cluster->sites.n != i % cluster->sites.n) {
            way_print(cluster, i / cluster->sites.n, i % cluster->sites.n);
        }
    }
}

static int show_run(int argc, char **argv)
{
    struct cluster_args args = {0};
    struct hdt_cluster_file cluster;
    struct hdt_devices catalogue;
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&show_argp, argc, argv, &args);
    if (hdt_devices_load(args.catalogue, &catalogue, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    status = hdt_cluster_file_load(args.file, &catalogue, &cluster, &err);
    if (status == HDT_OK && args.json) {
        json_t *json = hdt_conf_to_json(&hdt_cluster_file_schema, &cluster);

        json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
        putchar('\n');
        json_decref(json);
    } else if (status == HDT_OK) {
        cluster_print(&cluster);
    }
    if (status == HDT_OK) {
        hdt_cluster_file_release(&cluster);
    }
    hdt_devices_release(&catalogue);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

static const struct hdt_cmd show_cmd = {"show", "check a cluster file and show what it describes",
                                        show_run, &show_argp, NULL};
static const struct hdt_cmd *const subs[] = {&show_cmd, NULL};

static int cluster_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs,
                            "Clusters as files, to make predictions for "
                            "('hdt config example cluster').\n\nCommands:\n",
                            argc, argv);
}

const struct hdt_cmd hdt_cmd_cluster = {"cluster", "cluster files, for predictions: show",
                                        cluster_run, NULL, subs};
