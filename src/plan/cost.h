/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_COST_H
#define HDT_PLAN_COST_H

/*
 * What a plan costs: compute times from device profiles, transfers from measured links, memory by
 * what it is for, and the time of a step by playing the op lists of all ranks. One thread; no I/O.
 */
#include "src/core/cluster.h"
#include "src/core/job.h"
#include "src/core/model.h"
#include "src/core/plan.h"
#include "src/core/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the functions here read; none of it is owned. */
struct hdt_cost_inputs {
    const struct hdt_job *job;
    const struct hdt_model_config *model;
    const struct hdt_cluster *cluster;
};

/* Seconds of one micro-batch on units [begin, end), from the worker's profile; *step_s is the
 * optimizer's step. `job->recompute` adds a forward of the blocks to the backward. */
void hdt_cost_stage_times(const struct hdt_cost_inputs *in, const struct hdt_profile *profile,
                          int64_t begin, int64_t end, double *fwd_s, double *bwd_s, double *step_s);

/* Seconds of the two halves of its backward, from the same. HDT_EINVAL: the profile has none, and
 * one must not be guessed from the other. */
enum hdt_status hdt_cost_stage_halves(const struct hdt_cost_inputs *in,
                                      const struct hdt_cluster_worker *worker, int64_t begin,
                                      int64_t end, double *input_s, double *weight_s,
                                      struct hdt_error *err);

/* What the worker computes the job in, enum hdt_job_precision: bf16 must be asked for and be there;
 * fp8 is what is asked for. check: HDT_ENOTSUP, it is not there. */
int hdt_cost_precision(const struct hdt_cost_inputs *in, const struct hdt_cluster_worker *worker);
enum hdt_status hdt_cost_check_precision(const struct hdt_cost_inputs *in,
                                         const struct hdt_cluster_worker *worker,
                                         struct hdt_error *err);

/* A stage that takes memory. */
struct hdt_cost_memory {
    int64_t begin, end; /* units */
    int64_t n_slots;    /* micro-batches in flight */
    int precision;      /* as of hdt_cost_precision */
    bool halves;        /* the schedule does backwards in two halves */
};
/* Bytes that it takes on its device: weights, gradients, two moments, activations, workspace. The
 * same arithmetic as the worker's own, hdt_stage_measure, to a thousandth. */
uint64_t hdt_cost_stage_memory(const struct hdt_cost_inputs *in,
                               const struct hdt_cost_memory *stage);

/* Bytes that the codecs of a stage's edges keep from frame to frame, with the copies for
 * checkpoints and evaluations. Of the plan, only kind, stages and codec of the edges' flows are
 * read. */
uint64_t hdt_cost_feedback_memory(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                  int stage);

/* How one frame of `n_values` fp32 values crosses from site to site. */
struct hdt_cost_transfer {
    double frame_bytes; /* after the worker's codec */
    double wire_bytes;  /* after the gateway's, if that does not leave its codec out */
    double busy_s;      /* that the link is occupied by it */
    double pace_s;      /* the slowest of link, encoder and decoder: frames follow one another so */
    double service_s;   /* of one frame alone: coded, sent and decoded, chunk by chunk */
    double latency_s;   /* one way, of an empty link */
    double src_cpu_s, dst_cpu_s; /* CPU time of the two gateways */
};
/* HDT_OK, or HDT_ENOENT when the sites have no link that is up and measured (with both names). The
 * same site is always reachable. */
enum hdt_status hdt_cost_transfer(const struct hdt_cost_inputs *in, const char *from,
                                  const char *to, const struct hdt_codec_spec *codec,
                                  double n_values, struct hdt_cost_transfer *transfer,
                                  struct hdt_error *err);

/* What "auto" chooses among, the most exact first: none and lossless, and bf16 with either when the
 * job allows loss. Where the choice is made in the run (a loss is allowed, within a budget), all
 * have lossless behind them, which gateways leave out by themselves, and int8 is among them. */
const struct hdt_codec_spec *hdt_cost_codecs(const struct hdt_job *job, size_t *n);

/* Codec of an edge: the job's when it names one; for "auto" the one by which a frame that has
 * everything to itself is across first, what it holds up at both ends included. None inside a
 * site. */
struct hdt_codec_spec hdt_cost_edge_codec(const struct hdt_cost_inputs *in,
                                          const struct hdt_cluster_worker *from,
                                          const struct hdt_cluster_worker *to, bool is_grad);

/* Worker's seconds to code (or decode, or copy) one frame of n_values. */
double hdt_cost_cast(const struct hdt_profile *profile, const struct hdt_codec_spec *codec,
                     double n_values);

/* Seconds by which a second of CPU time of its site's gateway holds up this worker: 0 when they are
 * on different machines or there are processors that nobody computes on. `plan` says which workers
 * compute; NULL: all that the cluster has. */
double hdt_cost_gateway_share(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                              const struct hdt_cluster_worker *worker);

/* One op of the played step. */
struct hdt_cost_op {
    int rank;
    struct hdt_op op;
    double start_s, end_s; /* from the begin of the step; waiting is not part of it */
    double arrived_s;      /* of an op that takes a frame: when it had come */
};

/* Of a plan two sites; of a layout also one of a site and of nodes, and what is asked of them. */
#define HDT_COST_LINK_CAP (3 * HDT_NAME_CAP)
struct hdt_cost_link {
    char from[HDT_COST_LINK_CAP], to[HDT_COST_LINK_CAP];
    double bytes;  /* sent in a step, after codecs */
    double busy_s; /* of a step */
};

/* An outer step of a plan with several replicas; all zero for others. */
struct hdt_cost_outer {
    int64_t steps; /* that it follows on */
    double step_s; /* it alone, when all replicas begin it together */
    double bytes;  /* that it sends between sites, after codecs */
    struct hdt_cost_link *links;
    size_t n_links;
};
/* Of a complete plan. HDT_ENOENT: a link is missing. Released by hdt_cost_outer_release on HDT_OK.
 */
enum hdt_status hdt_cost_outer(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                               struct hdt_cost_outer *outer, struct hdt_error *err);
void hdt_cost_outer_release(struct hdt_cost_outer *outer);

/* Bytes of the host's memory that a stage of a replica takes for outer steps. */
uint64_t hdt_cost_outer_memory(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                               int stage);

struct hdt_cost {
    double step_s; /* a step among others, not the first one; with its share of an outer step */
    double tokens_per_s;
    double bubble_share; /* of the busiest rank */
    double wan_bytes;
    double outer_s; /* of step_s, a step's share of an outer step */
    char limit[160];
    double *rank_busy_s; /* a rank: computing and coding, held up by gateways */
    double *rank_held_s; /* of rank_busy_s, by gateways */
    size_t n_ranks;
    struct hdt_cost_link *links; /* between sites, those used */
    size_t n_links;
    struct hdt_cost_op *ops; /* timeline; NULL unless asked for */
    size_t n_ops;
};

/* Play the op lists of a complete plan (stages with fwd_s and bwd_s): ranks run their ops in order,
 * a SEND waits for a slot, a RECV for its frame, frames of all flows between two sites queue for
 * the link. Of an outer step each step has its share, also of its bytes. HDT_EINVAL when a worker
 * has no profile; HDT_ENOENT when a link is missing. */
enum hdt_status hdt_cost_play(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                              bool timeline, struct hdt_cost *cost, struct hdt_error *err);
void hdt_cost_release(struct hdt_cost *cost);

/* What is known of a run, in place of predictions: to see what one difference makes of a step. */
struct hdt_cost_given {
    const double *op_s; /* [rank * HDT_OP_KIND_COUNT + kind]: seconds of an op, < 0: as predicted */
    const double *late_s; /* by flow: that a frame comes later than predicted */
};
/* As hdt_cost_play, without a timeline. */
enum hdt_status hdt_cost_play_given(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                    const struct hdt_cost_given *given, struct hdt_cost *cost,
                                    struct hdt_error *err);

const struct hdt_cluster_worker *hdt_cost_find_worker(const struct hdt_cluster *cluster,
                                                      const char *site, const char *name);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_COST_H */
