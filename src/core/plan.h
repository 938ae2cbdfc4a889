/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_PLAN_H
#define HDT_CORE_PLAN_H

/*
 * A plan: what runs where, and every flow between the parts. Made by src/plan, carried as JSON,
 * read by gateways (who may speak for which flow) and workers (what to build and run).
 *
 * A *rank* is one device of a worker. A *stage* is a range of units on a rank group (today a group
 * is one rank, slice 0 of 1). Stages of a replica are numbered along the pipeline; a rank may hold
 * several stages that are not neighbours. A *flow* is one direction between two ends; an end is
 * (stage or rank, slice). Flow and stage numbers are their positions in the arrays.
 */
#include "src/base/error.h"
#include "src/core/cluster.h"
#include "src/core/frame.h"
#include "src/core/job.h"
#include "src/core/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_flow_kind {
    HDT_FLOW_ACTIVATION,      /* stage s -> s + 1, one frame a micro-batch (B, T, C) */
    HDT_FLOW_ACTIVATION_GRAD, /* stage s + 1 -> s */
    HDT_FLOW_TOKENS,    /* data rank -> rank of stage 0, int32 (B, T); none on the same rank */
    HDT_FLOW_LABELS,    /* data rank -> rank of the last stage; none on the same rank */
    HDT_FLOW_TIED_GRAD, /* tied models: both ways between first and last rank, fp32 (V, C);
                           none when they are the same rank */
    HDT_FLOW_SYNC_UP,   /* rank -> root rank, once a step: HDT_SYNC record (runtime) */
    HDT_FLOW_SYNC_DOWN, /* root rank -> rank, once a step */
    HDT_FLOW_STATE_OUT, /* rank -> checkpoint rank: weights and moments, in slabs */
    HDT_FLOW_STATE_IN,  /* checkpoint rank -> rank: the same when resuming */
    HDT_FLOW_OUTER,     /* rank -> rank of another replica that holds units of it, too: changes of
                           their weights, in slabs, at an outer step */
    HDT_FLOW_KIND_COUNT
};

struct hdt_plan_rank {
    char site[HDT_NAME_CAP];
    char worker[HDT_NAME_CAP];
    int device; /* on that worker */
    /* prediction, of a training step; 0: the plan does not say */
    double busy_s;        /* computing and coding, held up by gateways */
    double held_s;        /* of it, by gateways */
    double gateway_share; /* by which a second of CPU time of its site's gateway holds it up */
};

struct hdt_plan_stage {
    int replica;                  /* data-parallel member; several only with outer steps */
    int pos;                      /* position in the replica's pipeline, 0.. */
    int rank;                     /* of slice 0 of its rank group */
    int n_slices;                 /* tensor-parallel degree; 1 today */
    int64_t unit_begin, unit_end; /* [begin, end) */
    int64_t warmup;    /* forwards before the first pair of forward and backward (1F1B: stages after
                          this one, raised for link latency); does not grow along the pipeline, but
                          where stages take turns */
    int64_t in_flight; /* micro-batches whose activations are kept at a time */
    int64_t n_micro_batches; /* of its replica in a step; together the plan's */
    bool recompute;
    uint64_t memory_bytes;            /* predicted */
    double fwd_s, bwd_s;              /* predicted, one micro-batch */
    double bwd_input_s, bwd_weight_s; /* of bwd_s, where the schedule splits it; else 0 */
};

struct hdt_plan_flow {
    enum hdt_flow_kind kind;
    enum hdt_prio prio;
    int replica;
    int src_rank, dst_rank;
    int src_slice, dst_slice;
    int src_stage, dst_stage;    /* -1 where the kind has none */
    struct hdt_codec_spec codec; /* worker codec none unless activation, its gradient or outer */
    enum hdt_dtype dtype;        /* of the tensor before the codec */
    uint32_t frame_cap;          /* largest plaintext frame in bytes, after the worker's codec */
    uint32_t depth;              /* frames in flight: slots at both ends */
};

struct hdt_plan {
    struct hdt_plan_rank *ranks;
    size_t n_ranks;
    struct hdt_plan_stage *stages; /* by replica, then position */
    size_t n_stages;
    struct hdt_plan_flow *flows;
    size_t n_flows;
    int n_replicas;
    enum hdt_schedule_kind schedule; /* never AUTO once the plan is complete */
    int data_rank;                   /* reads the token shards */
    int root_rank;       /* adds norms, decides clip, stop and checkpoint: rank of stage 0. Norms
                            and clip of another replica: the rank of its first stage */
    int checkpoint_rank; /* gathers and writes checkpoints */
    int64_t micro_batch, n_micro_batches, seq_len; /* copied from the job */
    /* prediction */
    double step_s;       /* of a training step */
    double bubble_share; /* of the bottleneck rank's time */
    double wan_bytes;    /* sent between sites in a step, after codecs (estimate) */
    char limit[160];     /* what limits: "compute of stage 1 (site-b/w0)", "link site-a -> ..." */
};

/* ---- replicas: each a pipeline of its own, whose weights meet at outer steps ---- */

/* Its stages [*begin, *end) in the plan. */
void hdt_plan_replica_stages(const struct hdt_plan *plan, int replica, size_t *begin, size_t *end);
/* Its part of a step's micro-batches, [*first, *first + n); n is returned. */
int64_t hdt_plan_replica_micro_batches(const struct hdt_plan *plan, int replica, int64_t *first);
/* The rank of its first stage. */
int hdt_plan_replica_root(const struct hdt_plan *plan, int replica);
/* The replica of a rank: that of its stages; 0 where it has none. */
int hdt_plan_rank_replica(const struct hdt_plan *plan, int rank);

/* One replica as a plan of its own: the same ranks and numbers of flows, its stages (not copied)
 * from 0 on. Flows of other replicas have no stages in it. free(view->flows). */
void hdt_plan_replica_view(const struct hdt_plan *plan, int replica, struct hdt_plan *view);

/* Values of a slab of an outer step: as many at most as the largest unit has. */
uint64_t hdt_plan_outer_slab(const struct hdt_model_config *model);

/* Does a rank of the plan run on this worker? */
bool hdt_plan_has_worker(const struct hdt_plan *plan, const char *site, const char *worker);

void hdt_plan_release(struct hdt_plan *plan);

json_t *hdt_plan_to_json(const struct hdt_plan *plan);

/* Foreign or stored plans: checks every index, that stages cover the model's units without gap or
 * overlap, that flows fit the stages, sizes against limits. */
enum hdt_status hdt_plan_from_json(const json_t *json, const struct hdt_model_config *model,
                                   struct hdt_plan *plan, struct hdt_error *err);

/* Warm-ups and micro-batches in flight as plan->schedule wants them for n_micro_batches: those of
 * wan and zb-mem are kept, capped and raised so that they do not grow along the pipeline; all
 * others follow from the stages. HDT_EINVAL: interleaved, and the stages take no turns. */
enum hdt_status hdt_plan_fit_order(struct hdt_plan *plan, struct hdt_error *err);

/* Derive ranks' flows, depths, frame sizes, data/root/checkpoint ranks from stages and job: what is
 * left when ranks and stages (rank, units, warm-up) are chosen. Codecs of edges are taken from the
 * ACTIVATION and ACTIVATION_GRAD flows that the plan already has (only kind, stages and codec of
 * them are read); from the job where there is none, with "auto" = lossless between sites. Inside a
 * site the codec is none unless so chosen. The schedule is the job's; "auto" is the one that the
 * plan has, wan where it has none; warm-ups are fitted to it (hdt_plan_fit_order). The data and
 * checkpoint rank is, of the ranks at its site, that of stage 0, else of the last stage, else the
 * first; a rank may have no stage. */
enum hdt_status hdt_plan_complete(struct hdt_plan *plan, const struct hdt_job *job,
                                  const struct hdt_model_config *model, struct hdt_error *err);

/* Plaintext frame of n fp32 values (at most HDT_FRAME_MAX_LEN / 4) after the worker's codec. */
uint32_t hdt_plan_frame_bytes(const struct hdt_codec_spec *codec, uint64_t n_values);

/* An edge (activations or their gradients) is known by the unit that follows the cut. */
int64_t hdt_plan_edge_unit(const struct hdt_plan *plan, const struct hdt_plan_flow *flow);

/* Name of an edge's end, the same in all plans that cut there: "activation_grad-5" at the sender,
 * "activation_grad-5-in" at the receiver; of a replica but the first, "replica1-activation-5". */
#define HDT_PLAN_EDGE_NAME 48
void hdt_plan_edge_name(const struct hdt_plan *plan, const struct hdt_plan_flow *flow, bool is_src,
                        char name[HDT_PLAN_EDGE_NAME]);

/* Seed of stochastic rounding in one frame of an edge, from what a run that is repeated or resumed
 * has again: the job's seed, the edge, whether it is an evaluation, and the number of the frame
 * since the begin of the job (step times micro-batches, plus micro-batch). */
uint64_t hdt_plan_frame_seed(const struct hdt_plan *plan, const struct hdt_plan_flow *flow,
                             uint64_t job_seed, bool eval, uint64_t frame);

/* Gradients go by a codec that loses bits without feedback only when the job names it or allows
 * loss. HDT_EINVAL with flow, codec and remedy. */
enum hdt_status hdt_plan_check_codecs(const struct hdt_plan *plan, const struct hdt_job *job,
                                      struct hdt_error *err);

/* Is there something to be said of the codecs that the job names? One line in `text`. */
bool hdt_job_codec_warning(const struct hdt_job *job, char *text, size_t cap);

/* Flow of `kind` that starts (ends) at the stage or rank; -1: none. */
int hdt_plan_find_flow(const struct hdt_plan *plan, enum hdt_flow_kind kind, int src_rank,
                       int dst_rank, int src_stage, int dst_stage);

const char *hdt_flow_kind_name(enum hdt_flow_kind kind);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_PLAN_H */
