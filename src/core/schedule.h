/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_SCHEDULE_H
#define HDT_CORE_SCHEDULE_H

/*
 * One op list, three readers: the planner scores it, a simulator plays it, the worker runs it, so
 * that a prediction and a run compare line by line.
 *
 * Which order it is stands in the plan (`schedule`), with each stage's warm-up and micro-batches in
 * flight:
 *
 *   gpipe        all forwards, then all backwards (Huang et al., arXiv 1811.06965)
 *   1f1b         a forward and a backward in turn (Narayanan et al., arXiv 2104.04473, section 2.2)
 *   wan          1f1b with warm-ups that are raised for the round trips of links
 *   interleaved  a rank has several stages, and groups of micro-batches go through them (the same)
 *   zb-h1        1f1b with the backward in two halves: BACKWARD_INPUT where the other stage waits
 *                for it, BACKWARD_WEIGHT later; no stage keeps more than 1f1b's first stage does
 *                (Qi et al., arXiv 2401.10241)
 *   zb-mem       the same with the warm-ups and the room that the plan gives each stage
 *
 * In all of them forwards, backwards and weights' halves of a stage run in micro-batch order, so
 * that gradients are added in the same order under every plan and schedule.
 */
#include "src/base/error.h"
#include "src/core/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_op_kind {
    HDT_OP_LOAD, /* data rank: read tokens and labels of a micro-batch from the shard */
    HDT_OP_SEND_TOKENS,
    HDT_OP_RECV_TOKENS,
    HDT_OP_SEND_LABELS,
    HDT_OP_RECV_LABELS,
    HDT_OP_RECV_FORWARD,
    HDT_OP_FORWARD, /* on the last stage: with loss */
    HDT_OP_SEND_FORWARD,
    HDT_OP_RECV_BACKWARD,
    HDT_OP_BACKWARD, /* both gradients; BACKWARD_INPUT and _WEIGHT when split */
    HDT_OP_BACKWARD_INPUT,
    HDT_OP_BACKWARD_WEIGHT,
    HDT_OP_SEND_BACKWARD,
    HDT_OP_TIED_SYNC,  /* exchange the two accumulators of a tied embedding, add in fixed order */
    HDT_OP_GRAD_SYNC,  /* data parallel: all-reduce of a layer group's gradients */
    HDT_OP_OUTER_SYNC, /* several replicas: average their changes, when an outer step is due */
    HDT_OP_NORM_SYNC,  /* SYNC_UP / SYNC_DOWN: losses, norms, decisions of this step */
    HDT_OP_STEP,       /* optimizer */
    HDT_OP_OFFLOAD,    /* in simulations: activations go to the host's memory, */
    HDT_OP_FETCH,      /* and come back */
    HDT_OP_KIND_COUNT
};

enum hdt_phase { HDT_PHASE_TRAIN, HDT_PHASE_EVAL };

struct hdt_op {
    enum hdt_op_kind kind;
    int stage;  /* index in the plan; -1 for ops of the rank */
    int64_t mb; /* micro-batch; -1 where there is none */
    int flow;   /* index in the plan; -1 for compute and load ops, TIED_SYNC and NORM_SYNC */
};

/* The ops of one rank in one step, in the order in which they run. Owned by the caller. */
struct hdt_schedule {
    struct hdt_op *ops;
    size_t n_ops;
    /* By stage of the plan, 0 for those of other ranks: most micro-batches between FORWARD and the
     * end of BACKWARD (of BACKWARD_WEIGHT, when split), which is how many slots keep activations.
     */
    int64_t *n_slots;
};

/* Build the list of `rank`: a TRAIN step over plan->n_micro_batches, or an EVAL pass (forward only,
 * ends in NORM_SYNC) over n_mb. Rules that keep it free of deadlock for depths from
 * hdt_plan_complete: RECV directly before its use, SEND directly after; tokens and labels of a
 * micro-batch are loaded and sent directly before the data rank's (or first stage's) FORWARD of it.
 * With several replicas each rank has its replica's part of the step, numbered as the plan numbers
 * stages and micro-batches; an EVAL pass is of the first replica, and empty for the others' ranks.
 * HDT_EINVAL when the plan has no such rank, or its stages do not take turns where its schedule
 * wants it. */
enum hdt_status hdt_schedule_build(const struct hdt_plan *plan, int rank, enum hdt_phase phase,
                                   int64_t n_mb, struct hdt_schedule *schedule,
                                   struct hdt_error *err);

void hdt_schedule_release(struct hdt_schedule *schedule);

/* "FORWARD", "SEND_FORWARD", ...: the names in plans and traces. */
const char *hdt_op_name(enum hdt_op_kind kind);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_SCHEDULE_H */
