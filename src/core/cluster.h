/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CLUSTER_H
#define HDT_CORE_CLUSTER_H

/*
 * What there is to plan with: sites, their workers with device profiles, the links between sites.
 * Plain data, as the coordinator's gateway collects it and the planner reads it.
 */
#include "src/base/error.h"
#include "src/base/host.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_NAME_CAP 64 /* names of sites, workers, jobs, devices, with the '\0' */

/* true when `name` is 1..63 of [a-z0-9._-] (case kept), the form of site and worker names. */
bool hdt_name_is_valid(const char *name);

/* Seconds for one micro-batch of one job's shape on one device, measured by its worker. */
struct hdt_profile {
    bool valid;
    int64_t micro_batch, seq_len;
    double embed_fwd_s, embed_bwd_s;
    double block_fwd_s, block_bwd_s;              /* one block; backward without recompute */
    double block_bwd_input_s, block_bwd_weight_s; /* the same in two halves; 0: not measured */
    double head_fwd_s, head_bwd_s;                /* norm + head + loss */
    double step_s_per_param;                      /* norm, clip and AdamW */
    double op_overhead_s;                         /* fixed cost of one op of the list */
    /* Bytes of fp32 in a second, by codec bf16 and by none, into and out of a slot: of one core, or
     * of a device that codes by itself, which codecs with state (topk, delta) do not. */
    double cast_bytes_per_s;
    double copy_bytes_per_s;
    double run_factor; /* all of these are scaled by it: what they take in a job beside what was
                          measured alone; 0: they are as measured */
    double
        quota_cpus; /* processors that a quota left its threads, where these are more; 0: enough */
    char host[HDT_HOST_CAP]; /* the machine and the processors that it was measured on */
    char cpus[HDT_CPUS_CAP];
};

struct hdt_cluster_worker {
    char site[HDT_NAME_CAP];
    char name[HDT_NAME_CAP];
    char device[HDT_NAME_CAP]; /* "AMD EPYC, 2 threads" */
    char backend[16];          /* "cpu" */
    uint64_t memory_bytes;     /* that the worker may use */
    int n_threads;
    bool bf16; /* computes in bf16 when a job's precision says so; else in fp32 all the same */
    bool fp8;  /* has products of FP8; else it refuses jobs of that precision */
    bool busy; /* part of a running job */
    struct hdt_profile profile;
};

/* One direction. */
struct hdt_cluster_link {
    char from[HDT_NAME_CAP], to[HDT_NAME_CAP]; /* sites */
    bool up;
    double rate_bytes_per_s; /* goodput measured; 0: not measured */
    double rtt_s;
    double
        lossless_bytes_per_s; /* gateway codec: plaintext bytes in a second, one core; 0: unknown */
    double lossless_ratio;    /* seen so far on this link; 0: unknown */
};

/* What a gateway costs its own machine; 0 and "": not known. */
struct hdt_cluster_gateway {
    double send_s_per_byte; /* CPU time of a byte on the wire, by probes: TLS, copies, sockets */
    double recv_s_per_byte;
    double frame_s; /* CPU time of a frame sent or received beside that of its bytes and of its
                       codec, as jobs' frames took it lately */
    double encode_bytes_per_s; /* lossless codec: plaintext bytes in a second of one core */
    double decode_bytes_per_s;
    char host[HDT_HOST_CAP];
    char cpus[HDT_CPUS_CAP];
};

struct hdt_cluster_site {
    char name[HDT_NAME_CAP];
    struct hdt_cluster_gateway gateway;
};

struct hdt_cluster {
    struct hdt_cluster_site *sites;
    size_t n_sites;
    struct hdt_cluster_worker *workers;
    size_t n_workers;
    struct hdt_cluster_link *links;
    size_t n_links;
};

void hdt_cluster_release(struct hdt_cluster *cluster);

/* Add one (copies); names must be new. */
void hdt_cluster_add_site(struct hdt_cluster *cluster, const char *name);
/* The site's entry, to fill in what is known of its gateway; NULL: there is no such site. Valid
 * until the next one is added. */
struct hdt_cluster_site *hdt_cluster_find_site(const struct hdt_cluster *cluster, const char *name);
void hdt_cluster_add_worker(struct hdt_cluster *cluster, const struct hdt_cluster_worker *worker);
void hdt_cluster_add_link(struct hdt_cluster *cluster, const struct hdt_cluster_link *link);

const struct hdt_cluster_link *hdt_cluster_find_link(const struct hdt_cluster *cluster,
                                                     const char *from, const char *to);

/* JSON, as `hdt status --json` prints it and messages carry it. */
json_t *hdt_cluster_to_json(const struct hdt_cluster *cluster);
enum hdt_status hdt_cluster_from_json(const json_t *json, const char *where,
                                      struct hdt_cluster *cluster, struct hdt_error *err);
json_t *hdt_cluster_gateway_to_json(const struct hdt_cluster_gateway *gateway);
enum hdt_status hdt_cluster_gateway_from_json(const json_t *json,
                                              struct hdt_cluster_gateway *gateway,
                                              struct hdt_error *err);
/* One link, as in a cluster's "links"; foreign numbers are checked. HDT_EINVAL. */
enum hdt_status hdt_cluster_link_from_json(const json_t *json, struct hdt_cluster_link *link,
                                           struct hdt_error *err);
json_t *hdt_profile_to_json(const struct hdt_profile *profile);
enum hdt_status hdt_profile_from_json(const json_t *json, struct hdt_profile *profile,
                                      struct hdt_error *err);

/* Make all times `f` > 0 times as long, and rates as much lower, within what JSON may say of them;
 * run_factor says so. */
void hdt_profile_scale(struct hdt_profile *profile, double f);
/* By what its times were scaled so far; 1: they are as measured. */
double hdt_profile_run_factor(const struct hdt_profile *profile);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CLUSTER_H */
