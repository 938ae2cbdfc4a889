/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_RUNNER_IMPL_H
#define HDT_RUNTIME_RUNNER_IMPL_H

/* What the parts of the runner share: runner.c (life), runner_build.c (from "assign" to "ready"),
 * runner_ops.c (the op list), runner_sync.c (end of a step, reports), runner_outer.c (outer steps).
 */
#include "compress/codec.h"
#include "runtime/alive.h"
#include "src/core/ckpt.h"
#include "runtime/data.h"
#include "runtime/edge.h"
#include "runtime/runner.h"
#include "runtime/stage.h"
#include "runtime/state.h"
#include "runtime/sync.h"
#include "runtime/trace.h"
#include "src/core/deadlines.h"
#include "src/core/job.h"
#include "src/core/schedule.h"

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Worker codec of a flow and what it has seen. */
struct runner_flow {
    struct hdt_codec_spec spec;
    const struct hdt_codec_ops *codec;
    /* What the codec keeps from frame to frame at this rank's end; NULL: nothing. Evaluations must
     * leave no trace in training, so that each of their frames starts with a state as new. */
    struct hdt_codec_state *state, *eval_state;
    struct hdt_edge *edge;     /* activations and their gradients; else NULL */
    struct hdt_edge kept_edge; /* as it was before an evaluation, which leaves no trace */
    int64_t told_us;           /* the gateway, of the edge */

    /* Guarded by the runner's lock. */
    struct hdt_edge_figures news;
    bool has_news;
};

/* What the training steps of this run took, from the first op of each to its end. */
struct runner_spent {
    int64_t train_ns, wait_ns;
    int64_t op_ns[HDT_OP_KIND_COUNT]; /* without their waits */
};

struct hdt_runner {
    struct hdt_runner_conf conf;
    json_t *assign;      /* the request */
    json_t *assign_body; /* borrowed from it */
    uint32_t job_id, epoch;
    char submitted[20]; /* instance of the gateway that took the job */
    long long number;   /* as people know the job: the coordinator's count */
    int rank;
    int replica,
        leader;        /* of this rank; the rank of its first stage, which is the replica's root */
    char *coordinator; /* site that reports go to */
    char *dir;         /* of checkpoints */
    char *resume;      /* "": from the start */
    int64_t resume_step; /* steps done there, as the coordinator knows; -1: it does not */

    /* Set while building, then only read. */
    struct hdt_job job;
    bool has_job;
    const json_t *job_json;
    struct hdt_model_config model;
    struct hdt_plan plan;
    struct hdt_schedule train, eval;
    struct hdt_stage **stages; /* by plan index, NULL where another rank's */
    struct hdt_port_job *port;
    struct runner_flow *flows;         /* by plan index */
    struct hdt_codec_state **feedback; /* of this rank's ends: see struct hdt_state_conf */
    struct hdt_edge **edges;           /* so, too; they are the flows' */
    struct hdt_codec_ctx *codec_ctx;
    struct hdt_shard *train_shard, *valid_shard; /* data rank */
    struct hdt_sampler sampler;
    struct hdt_state *state;
    struct runner_outer *outer; /* runner_outer.c; NULL: one replica, or no stage */
    struct hdt_deadlines deadlines;
    struct hdt_alive *alive;
    uint64_t memory_bytes;   /* that this rank takes */
    struct hdt_coder *coder; /* of tensors, when the device's memory is not the host's */

    /* The runner's thread only. */
    int32_t *tokens, *labels; /* (B, T) of the last LOAD */
    int64_t start_step;
    uint64_t start_samples, start_tokens;
    int64_t step; /* 0-based, of the step that runs; steps done when none does */
    enum hdt_phase phase;
    bool grads_finished;      /* of this step */
    bool save_again;          /* the last checkpoint could not be written */
    int64_t save_failed_us;   /* since when; 0: it could */
    int64_t saving_us;        /* when the last sign of life went out */
    bool ckpt_due;            /* root: a periodic checkpoint waits for the last one's end */
    double loss_sum;          /* of this phase, in micro-batch order */
    double outer_loss_sum;    /* a replica's root: of the steps since the last outer one */
    uint64_t outer_tokens;    /* and their tokens; after an outer step, the plan's root: of all */
    int64_t outer_begin_step; /* the first of them */
    int64_t busy_ns, wait_ns; /* of the whole run */
    struct runner_spent spent;
    int64_t arrived_ns;                 /* the last frame that an op took; 0: it took none */
    int64_t busy_told_ns, wait_told_ns; /* of these, in the last SYNC_UP */
    struct hdt_sync_total total;        /* root */
    struct hdt_sync_item *items;
    double *sumsq;
    struct hdt_sync_up *ups; /* root: of the last sync, by rank */
    struct hdt_sync_down down;
    double val_loss;
    bool has_val_loss;
    struct hdt_trace trace;

    char ckpt_cause[HDT_ERROR_MSG_CAP]; /* the saving thread's: why the last checkpoint could not be
                                           written */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool started, ready, ended, over; /* over: its thread does nothing more */
    int64_t sign_us;                  /* when the coordinator was last heard of this job */
    json_t *again;                    /* the last "assign" that came again before it was ready */
    struct hdt_error build_err;       /* of one that never was */
    bool tell_abort;                  /* the coordinator does not know of it */
    enum hdt_runner_stop stop;
    struct hdt_error why; /* of an abort */
};

/* Check the message's parts. Does not allocate device memory. */
enum hdt_status hdt_runner_parse(struct hdt_runner *r, struct hdt_error *err);

/* Stages, pool, flows, data, state. On the runner's thread. */
enum hdt_status hdt_runner_build(struct hdt_runner *r, struct hdt_error *err);
void hdt_runner_unbuild(struct hdt_runner *r);

/* The state for the next frame of a flow in this phase; NULL: its codec has none. */
struct hdt_codec_state *hdt_runner_codec_state(const struct hdt_runner *r, int flow);

/* HDT_ECANCELED when the end was asked for. */
enum hdt_status hdt_runner_stop_check(struct hdt_runner *r, struct hdt_error *err);

/* Run an op list once. */
enum hdt_status hdt_runner_run_ops(struct hdt_runner *r, enum hdt_phase phase,
                                   struct hdt_error *err);

/* One round of SYNC_UP and SYNC_DOWN; the result is in r->down. */
enum hdt_status hdt_runner_sync(struct hdt_runner *r, enum hdt_sync_phase phase,
                                struct hdt_error *err);

/* Say to those who wait for this rank that its part of the last checkpoint moves on; once a second
 * at most. To be called only when something did move, or a deadline of its own bounds the calls. */
void hdt_runner_saving(struct hdt_runner *r);

/* Exchange the halves of a tied gradient and finish the gradients of all stages. */
enum hdt_status hdt_runner_tied_sync(struct hdt_runner *r, struct hdt_error *err);

/* Outer steps (runner_outer.c). Memory; before the state is made, which saves the momentum; once
 * weights are there; the step itself. Momentum: by unit of the model, NULL where another rank's. */
uint64_t hdt_runner_outer_bytes(const struct hdt_runner *r);
enum hdt_status hdt_runner_build_outer(struct hdt_runner *r, struct hdt_error *err);
void hdt_runner_unbuild_outer(struct hdt_runner *r);
float *const *hdt_runner_outer_momentum(const struct hdt_runner *r);
enum hdt_status hdt_runner_outer_begin(struct hdt_runner *r, struct hdt_error *err);
enum hdt_status hdt_runner_outer_step(struct hdt_runner *r, struct hdt_error *err);

/* Waits that are counted as such. */
enum hdt_status hdt_runner_recv(struct hdt_runner *r, int flow, const void **frame, size_t *len,
                                struct hdt_error *err);
enum hdt_status hdt_runner_send(struct hdt_runner *r, int flow, void **slot, size_t *cap,
                                struct hdt_error *err);
void hdt_runner_commit(struct hdt_runner *r, int flow, size_t len, size_t raw_len);

/* Edges (runner_edges.c): made and freed with the flows; before a frame is sent, and after a step
 * that took so much arithmetic. On the runner's thread. */
void hdt_runner_build_edges(struct hdt_runner *r);
void hdt_runner_unbuild_edges(struct hdt_runner *r);
void hdt_runner_edge_look(struct hdt_runner *r, size_t flow);
void hdt_runner_edges_keep(struct hdt_runner *r, enum hdt_phase phase);
void hdt_runner_edges_stepped(struct hdt_runner *r, enum hdt_phase phase, int64_t busy_ns);

/* Send a report to the coordinator; "job" and "epoch" are added to the body (stolen). */
void hdt_runner_report(struct hdt_runner *r, const char *type, json_t *body);
void hdt_runner_report_step(struct hdt_runner *r, double lr, double step_s);
void hdt_runner_report_eval(struct hdt_runner *r);
void hdt_runner_report_done(struct hdt_runner *r, bool stopped);
void hdt_runner_report_ckpt(void *user, const struct hdt_ckpt_meta *meta,
                            const struct hdt_ckpt_result *result, double seconds);
void hdt_runner_report_ckpt_failed(void *user, const struct hdt_ckpt_meta *meta,
                                   const struct hdt_error *why);

static inline bool hdt_runner_is_root(const struct hdt_runner *r)
{
    return r->rank == r->plan.root_rank;
}

/* Does it add up and decide for its replica? The plan's root does so for the first one. */
static inline bool hdt_runner_leads(const struct hdt_runner *r)
{
    return r->rank == r->leader;
}

/* Several replicas, and an outer step at the end of this one. */
static inline bool hdt_runner_outer_is_due(const struct hdt_runner *r)
{
    return r->plan.n_replicas > 1 && hdt_job_outer_is_due(&r->job, r->step);
}

/* Training samples of this rank's replica in a step. */
static inline uint64_t hdt_runner_replica_samples(const struct hdt_runner *r)
{
    int64_t first;

    return (uint64_t)(r->plan.micro_batch *
                      hdt_plan_replica_micro_batches(&r->plan, r->replica, &first));
}

/* Training samples of a step over all ranks. */
static inline uint64_t hdt_runner_step_samples(const struct hdt_runner *r)
{
    return (uint64_t)(r->plan.micro_batch * r->plan.n_micro_batches);
}

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_RUNNER_IMPL_H */
