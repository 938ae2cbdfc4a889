/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_VALIDATED_H
#define HDT_CLI_VALIDATED_H

/*
 * A run beside its prediction, op by op: `hdt plan --validate`. Read from the run's folder:
 * plan.json (job, model, plan, the cluster as it was measured), metrics.jsonl, and the workers'
 * traces where this machine has them.
 */
#include "src/cli/planned.h"
#include "src/core/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a rank's time in a step went to. */
enum hdt_validated_class {
    HDT_VALIDATED_FORWARD,
    HDT_VALIDATED_BACKWARD,
    HDT_VALIDATED_SEND, /* the worker's codec or copy, into the slot */
    HDT_VALIDATED_RECV, /* out of the slot */
    HDT_VALIDATED_LOAD,
    HDT_VALIDATED_SYNC, /* norms, sums, the record; not its waits */
    HDT_VALIDATED_STEP,
    HDT_VALIDATED_WAIT_FRAME,  /* for activations, gradients, tokens, labels */
    HDT_VALIDATED_WAIT_CREDIT, /* for a free slot to send from */
    HDT_VALIDATED_WAIT_SYNC,
    HDT_VALIDATED_BETWEEN, /* ops: the rank's own book-keeping, reports */
    HDT_VALIDATED_CLASS_COUNT
};

/* The class of an op without its wait. */
enum hdt_validated_class hdt_validated_class_of(enum hdt_op_kind kind);

struct hdt_validated_row {
    double predicted_s, measured_s; /* of a step; measured: the mean of the middle half of its steps
                                       by length, so that classes add up to a step */
    double cpu_share;               /* of the measured time on a core; 0: not known */
};

struct hdt_validated_rank {
    bool has_trace;
    struct hdt_validated_row rows[HDT_VALIDATED_CLASS_COUNT];
    double op_s[HDT_OP_KIND_COUNT]; /* median of an op; of an outer step, a step's share of
                                       it; < 0: none was measured */
    double predicted_op_s[HDT_OP_KIND_COUNT]; /* mean of an op; < 0: the plan has none */
    double predicted_busy_s, measured_busy_s; /* of a step, by its own report, or its trace */
    struct hdt_timeline_op *ops;              /* measured */
    size_t n_ops;
};

struct hdt_validated_stage {
    double predicted_s[HDT_OP_KIND_COUNT]; /* mean of an op; < 0: the plan has none */
    double measured_s[HDT_OP_KIND_COUNT];  /* median of an op; < 0: none was measured */
};

/* An edge between sites, one direction. */
struct hdt_validated_edge {
    int flow;
    double bytes, measured_bytes;   /* on the wire a step; 0: not known */
    double predicted_s, measured_s; /* from the end of SEND to the frame's arrival; 0: not known */
    double goodput_bytes_per_s;     /* of a frame, its latency taken off; 0: not known */
    size_t n_frames;                /* that were seen at both ends */
};

struct hdt_validated {
    struct hdt_planned planned; /* as submitted, played again */
    char *run_dir;
    double predicted_step_s, measured_step_s; /* the latter a median */
    size_t n_steps;                           /* it is of */
    struct hdt_validated_rank *ranks;         /* as many as the plan has */
    struct hdt_validated_stage *stages;       /* as many as the plan has */
    struct hdt_validated_edge *edges;
    size_t n_edges;
    double given_step_s; /* played with all measured times of ops and frames */
    char missing[512];   /* traces that are not on this machine; "": all are */
    char cause[400];     /* one sentence */
};

/* Read the run in the folder and compare. The struct is to be released only on HDT_OK. HDT_ENOENT:
 * no such folder or it has no plan.json; HDT_EINVAL: its files are damaged or hold no steps. */
enum hdt_status hdt_validated_load(struct hdt_validated *v, const char *run_dir,
                                   struct hdt_error *err);
void hdt_validated_release(struct hdt_validated *v);

/* Part of the load: classes, stages, edges, cause, from the ops. */
void hdt_validated_compare(struct hdt_validated *v);

void hdt_validated_print(const struct hdt_validated *v, FILE *out);
json_t *hdt_validated_to_json(const struct hdt_validated *v);

/* Both timelines in one file, "predicted" and "measured", laid on the median step. */
enum hdt_status hdt_validated_trace(const struct hdt_validated *v, const char *path,
                                    struct hdt_error *err);

/* Write what the run says of its workers to the folder, which is made: DIR/rankN.json, a profile
 * for each rank that has stages and a trace, and DIR/cluster.json, the run's cluster with their
 * names in it, for `hdt plan --cluster`. HDT_EIO. */
enum hdt_status hdt_validated_write_profiles(const struct hdt_validated *v, const char *dir,
                                             size_t *n_written, struct hdt_error *err);

const char *hdt_validated_class_name(enum hdt_validated_class c);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_VALIDATED_H */
