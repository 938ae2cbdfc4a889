/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_JOB_RIG_H
#define HDT_TESTS_SUPPORT_JOB_RIG_H

/*
 * Whole jobs in one process: real workers (control, port, runner, shared memory) joined by the fake
 * gateway, driven as a coordinator drives them. One call runs one job from "assign" to "release".
 */
#include "src/core/job.h"
#include "src/core/plan.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define RIG_RANKS_MAX  4
#define RIG_STAGES_MAX 6
#define RIG_STEPS_MAX  64

/* What differs between two runs. All zeros but n_ranks, n_stages, stage_rank, n_units: a plain run.
 */
struct rig_run {
    int n_ranks, n_stages;
    int stage_rank[RIG_STAGES_MAX]; /* rank of each stage */
    int n_units[RIG_STAGES_MAX];    /* of each stage; their sum is the model's */
    int replica[RIG_STAGES_MAX];    /* of each stage; n_units sum to the model's in each */
    int replica_mb[RIG_RANKS_MAX];  /* micro-batches of each replica, where there are several */
    int outer_steps;                /* 0: off */
    const char *outer_codec;        /* NULL: none */
    int threads[RIG_RANKS_MAX];     /* 0: one */
    int data_rank;                  /* 0: the first; its site is data.site */
    int ckpt_rank;                  /* 0: the data rank; its site is checkpoint.site */
    int64_t steps, checkpoint_every, eval_every;
    const char *codec; /* of activations and their gradients; NULL: none */
    bool tied, recompute;
    enum hdt_schedule_kind schedule;
    int n_more;            /* micro-batches that stages keep beyond 1F1B's, where a schedule may */
    double lr;             /* 0: 1e-2 */
    const char *resume;    /* folder, or NULL */
    const char *ckpt_name; /* folder of checkpoints under the rig's; NULL: one of its own */
    uint64_t memory_bytes; /* of each worker; 0: 1 GiB */
    int cut_every;         /* cut a connection after every so many steps; 0: never */
    bool cut_forgets;
    int64_t stop_after;    /* ask for a stop with checkpoint after this step's report; 0: never */
    bool stop_first;       /* ask before the start: ends after the first step, on any machine */
    int n_full;            /* no file may grow beyond a few KiB until so many saves have failed */
    int n_flip;            /* flip a bit in so many slabs of weights on their way, */
    bool flip_load;        /* while they are loaded, not saved */
    int lose_rank;         /* cut off for good after step 2; 0: none */
    int64_t restart_after; /* after this step's report the job goes on in its next epoch, from its
                              last checkpoint; 0: never */
    bool restart_at_once;  /* the next epoch takes the place of the one that runs: no release */
    bool drop_first;       /* the first epoch is released while it is built */
};

struct rig_result {
    int n_losses;
    double losses[RIG_STEPS_MAX + 1]; /* by step, from 1 */
    double norms[RIG_STEPS_MAX + 1];
    double val_loss;
    double outer_losses[RIG_STEPS_MAX + 1]; /* by step; 0: no outer step after it */
    char digest[17], ckpt_digest[17];
    char checkpoint[4096];
    int64_t ckpt_step, start_step;
    int n_ckpts, n_ckpts_failed, n_cuts;
    char ckpt_error[512]; /* of the last one that failed */
    bool stopped;
    char traces[RIG_RANKS_MAX][4096]; /* by rank */
    json_t *error;                    /* body of "failed" or "error"; NULL when all went well */
};

/* Make a folder with token shards; kept until free. */
struct rig *hdt_rig_new(uint32_t seed);
void hdt_rig_free(struct rig *rig);
const char *hdt_rig_dir(const struct rig *rig);

void hdt_rig_run(struct rig *rig, const struct rig_run *run, struct rig_result *result);
void hdt_rig_result_release(struct rig_result *result);

#endif /* HDT_TESTS_SUPPORT_JOB_RIG_H */
