/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of three workers with lost connections and checkpoints in the background, as one pipeline
 * and as two replicas with outer steps, in a program with a main of its own: Criterion does not
 * start under ThreadSanitizer. Exit status 0: all runs of a kind ended with the same bits.
 */
#include "config.h"

#include "src/base/log.h"
#include "tests/support/job_rig.h"

#include <stdio.h>
#include <string.h>

static int same(const struct rig_result *a, const struct rig_result *b, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        if (a->losses[step] != b->losses[step]) {
            printf("step %d: %.17g and %.17g\n", (int)step, a->losses[step], b->losses[step]);
            return 0;
        }
    }
    return strcmp(a->digest, b->digest) == 0;
}

/* Replicas of one rank and of two, calm, with what disturbs, and from a checkpoint on. */
static int replicas_run(struct rig *rig)
{
    static const struct rig_run calm = {.n_ranks = 3,
                                        .n_stages = 3,
                                        .stage_rank = {0, 1, 2},
                                        .n_units = {6, 2, 4},
                                        .replica = {0, 1, 1},
                                        .replica_mb = {1, 3},
                                        .outer_steps = 2,
                                        .steps = 8,
                                        .ckpt_name = "replicas"};
    struct rig_run rough = calm, resume = calm;
    struct rig_result a, b, c;
    int ok;

    rough.checkpoint_every = 2;
    rough.cut_every = 1;
    rough.ckpt_rank = 1;
    rough.ckpt_name = "rough";
    rough.restart_after = 5;
    resume.resume = "rough";
    resume.ckpt_name = "resumed";
    resume.steps = 10;
    hdt_rig_run(rig, &calm, &a);
    hdt_rig_run(rig, &rough, &b);
    hdt_rig_run(rig, &resume, &c);
    ok = !a.error && !b.error && !c.error && same(&a, &b, 1, 8) && c.start_step == 8;
    hdt_rig_result_release(&a);
    hdt_rig_result_release(&b);
    hdt_rig_result_release(&c);
    return ok;
}

int main(void)
{
    static const struct rig_run plain = {
        .n_ranks = 1, .n_stages = 1, .stage_rank = {0}, .n_units = {6}, .steps = 6};
    static const struct rig_run rough = {.n_ranks = 3,
                                         .n_stages = 3,
                                         .stage_rank = {0, 1, 2},
                                         .n_units = {1, 3, 2},
                                         .steps = 6,
                                         .threads = {1, 2, 2},
                                         .checkpoint_every = 2,
                                         .cut_every = 1};
    struct rig_run stop = rough, resume = rough;
    struct rig_result a, b, c, d;
    struct rig *rig;
    int ok;

    hdt_log_init("race_runner", HDT_LOG_ERROR);
    rig = hdt_rig_new(99);
    stop.stop_after = 2;
    stop.ckpt_name = "stopped";
    resume.resume = "stopped";
    hdt_rig_run(rig, &plain, &a);
    hdt_rig_run(rig, &rough, &b);
    hdt_rig_run(rig, &stop, &c);
    hdt_rig_run(rig, &resume, &d);
    ok = !a.error && !b.error && !c.error && !d.error && same(&a, &b, 1, 6) &&
         same(&a, &d, d.start_step + 1, 6);
    hdt_rig_result_release(&a);
    hdt_rig_result_release(&b);
    hdt_rig_result_release(&c);
    hdt_rig_result_release(&d);
    ok = replicas_run(rig) && ok;
    hdt_rig_free(rig);
    printf("%s\n", ok ? "same bits" : "FAILED");
    return ok ? 0 : 1;
}
