/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Outer steps: the arithmetic against numbers of torch.optim.SGD and against long double; whole
 * jobs of several replicas against a reference that trains each replica by stages alone and does
 * the outer step in float64.
 */
#include "runtime/cpu/cpu_device.h"
#include "runtime/data.h"
#include "runtime/outer.h"
#include "runtime/stage.h"
#include "runtime/state.h"
#include "runtime/sync.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/ckpt.h"
#include "tests/support/job_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct rig *rig;

/* A move goes wrong after so many sound ones; below 0: none. */
static atomic_int n_moves_sound = -1;

bool __real_hdt_outer_move(float *anchor, float *momentum, const double *sum, float lr, float mu,
                           size_t n);
bool __wrap_hdt_outer_move(float *anchor, float *momentum, const double *sum, float lr, float mu,
                           size_t n);

/* Stands in for hdt_outer_move (the linker's --wrap). */
bool __wrap_hdt_outer_move(float *anchor, float *momentum, const double *sum, float lr, float mu,
                           size_t n)
{
    bool finite = __real_hdt_outer_move(anchor, momentum, sum, lr, mu, n);

    if (atomic_load(&n_moves_sound) >= 0 && atomic_fetch_sub(&n_moves_sound, 1) == 0) {
        anchor[0] += 0.01f;
    }
    return finite;
}

static void setup(void)
{
    hdt_log_init("test", HDT_LOG_ERROR);
    rig = hdt_rig_new(12345);
}

static void teardown(void)
{
    hdt_rig_free(rig);
}

TestSuite(outer, .timeout = 120);
TestSuite(outer_run, .init = setup, .fini = teardown, .timeout = 120);

/* ---- arithmetic ---- */

/* p = nn.Parameter(tensor([1.])); SGD([p], lr=0.5, momentum=0.5, nesterov=True) with gradients 0.5,
 * 0.25, -1: all values are exact. */
Test(outer, moves_as_sgd_with_nesterov_momentum)
{
    static const double grads[] = {0.5, 0.25, -1}, want_p[] = {0.625, 0.375, 1.0625},
                        want_m[] = {0.5, 0.5, -0.75};
    float anchor = 1, momentum = 0;

    for (int i = 0; i < 3; i++) {
        cr_expect(hdt_outer_move(&anchor, &momentum, &grads[i], 0.5f, 0.5f, 1));
        cr_expect_eq(momentum, (float)want_m[i], "step %d: %g", i, (double)momentum);
        cr_expect_eq(anchor, (float)want_p[i], "step %d: %g", i, (double)anchor);
    }
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 33) / (double)(1u << 31) - 0.5;
}

Test(outer, means_are_those_of_long_double)
{
    uint64_t seed = 20260301, state = seed;
    float anchor[1000], old[1000], momentum[1000], before[1000], w[3][1000], delta[1000];
    static const float share[3] = {0.5f, 0.25f, 0.25f};
    double sum[1000];

    for (int i = 0; i < 1000; i++) {
        old[i] = anchor[i] = (float)uniform(&state);
        momentum[i] = (float)(1e-3 * uniform(&state));
    }
    memcpy(before, momentum, sizeof(before));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 1000; i++) {
            w[k][i] = anchor[i] + (float)(1e-3 * uniform(&state));
        }
        hdt_outer_delta(anchor, w[k], delta, 1000);
        hdt_outer_add(sum, delta, share[k], k == 0, 1000);
    }
    cr_expect(hdt_outer_move(anchor, momentum, sum, 0.7f, 0.9f, 1000));
    for (int i = 0; i < 1000; i++) {
        long double d = 0.5L * (old[i] - (long double)w[0][i]) +
                        0.25L * (old[i] - (long double)w[1][i]) +
                        0.25L * (old[i] - (long double)w[2][i]);
        long double m = 0.9L * before[i] + d, a = old[i] - 0.7L * (d + 0.9L * m);

        cr_expect_lt(fabsl(a - anchor[i]), 1e-7L, "seed %llu, value %d: %.9Lg and %.9g",
                     (unsigned long long)seed, i, a, (double)anchor[i]);
    }
}

Test(outer, values_that_are_not_finite_are_told)
{
    float anchor[2] = {1, 1}, momentum[2] = {0, 0};
    double sum[2] = {0, INFINITY};

    cr_expect_not(hdt_outer_move(anchor, momentum, sum, 1, 0, 2));
    cr_expect_eq(anchor[0], 1);
}

/* ---- runs ---- */

static const struct rig_run pair = {.n_ranks = 2,
                                    .n_stages = 2,
                                    .stage_rank = {0, 1},
                                    .n_units = {6, 6},
                                    .replica = {0, 1},
                                    .replica_mb = {2, 2},
                                    .outer_steps = 3,
                                    .steps = 7,
                                    .threads = {1, 2}};
/* The same replicas, the first of two stages, the second of two others. */
static const struct rig_run apart = {.n_ranks = 4,
                                     .n_stages = 4,
                                     .stage_rank = {0, 1, 2, 3},
                                     .n_units = {3, 3, 1, 5},
                                     .replica = {0, 0, 1, 1},
                                     .replica_mb = {2, 2},
                                     .outer_steps = 3,
                                     .steps = 7};

static void run_well(const struct rig_run *run, struct rig_result *result)
{
    char *text;

    hdt_rig_run(rig, run, result);
    text = result->error ? json_dumps(result->error, 0) : NULL;
    cr_assert(!text, "the run failed: %s", text);
}

/* ---- the reference ---- */

#define N_SEQ 2
#define N_TOK 16

struct reference {
    struct hdt_device *device;
    struct hdt_stage *stages[3];
    double *anchor, *momentum;
    size_t n; /* values of the model */
    struct hdt_shard *shard;
    struct hdt_sampler sampler;
    int n_replicas, n_mb[3];
    double last_loss; /* mean over replicas of the steps since the last outer one */
};

static const struct hdt_model_config model = {.V = 97,
                                              .C = 32,
                                              .F = 64,
                                              .L = 4,
                                              .NH = 4,
                                              .NKV = 2,
                                              .HS = 8,
                                              .T = 32,
                                              .rms_norm_eps = 1e-5,
                                              .initializer_range = 0.05,
                                              .rope_theta = 10000,
                                              .bos_token_id = -1,
                                              .eos_token_id = -1};

static void must(enum hdt_status status, const struct hdt_error *err)
{
    cr_assert_eq(status, HDT_OK, "%s", err->msg);
}

/* Its weights in model order, in float64; or set from them. */
static void weights_copy(struct hdt_stage *stage, double *values, bool to_stage)
{
    struct hdt_stage_tensor view;

    for (int i = 0; i < hdt_stage_n_tensors(stage); i++) {
        hdt_stage_tensor(stage, i, &view);
        for (size_t k = 0; k < view.len; k++, values++) {
            if (to_stage) {
                view.w[k] = (float)*values;
            } else {
                *values = view.w[k];
            }
        }
    }
}

static void reference_open(struct reference *ref)
{
    const struct hdt_shard_options options = {.n_vocab = 97};
    struct hdt_device_conf device = {.n_threads = 1};
    struct hdt_error err = {0};
    char path[256];

    must(hdt_backend_cpu.device_open(&device, &ref->device, &err), &err);
    ref->n = (size_t)hdt_model_n_params(&model);
    ref->anchor = hdt_calloc(ref->n, sizeof(double));
    ref->momentum = hdt_calloc(ref->n, sizeof(double));
    for (int k = 0; k < ref->n_replicas; k++) {
        struct hdt_stage_conf conf = {
            .model = model, .n_units = 6, .B = N_SEQ, .T = N_TOK, .n_slots = 1, .seed = 7};

        must(hdt_stage_new(&hdt_backend_cpu, ref->device, &conf, &ref->stages[k], &err), &err);
        hdt_stage_set_loss_scale(ref->stages[k], 1.0f / (float)(ref->n_mb[k] * N_SEQ * N_TOK));
    }
    weights_copy(ref->stages[0], ref->anchor, false);
    snprintf(path, sizeof(path), "%s/train.bin", hdt_rig_dir(rig));
    must(hdt_shard_open(path, &options, &ref->shard, &err), &err);
    must(hdt_sampler_init(&ref->sampler, ref->shard, 7, N_TOK, &err), &err);
}

static void reference_close(struct reference *ref)
{
    for (int k = 0; k < ref->n_replicas; k++) {
        hdt_stage_free(ref->stages[k]);
    }
    hdt_backend_cpu.device_close(ref->device);
    hdt_shard_close(ref->shard);
    free(ref->anchor);
    free(ref->momentum);
}

static int n_micro(const struct reference *ref)
{
    int n = 0;

    for (int k = 0; k < ref->n_replicas; k++) {
        n += ref->n_mb[k];
    }
    return n;
}

/* One inner step of one replica, whose micro-batches of the step begin at `first`. */
static double inner_step(struct reference *ref, const struct hdt_job *job, int k, int step,
                         int first)
{
    struct hdt_stage *stage = ref->stages[k];
    int32_t tokens[N_SEQ * N_TOK], labels[N_SEQ * N_TOK];
    double sumsq[256], norm = 0, loss, loss_sum = 0;
    struct hdt_error err = {0};
    struct hdt_adamw adamw = {.lr = (float)hdt_job_lr(job, step),
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .step = step + 1};

    hdt_stage_zero_grads(stage);
    for (int m = 0; m < ref->n_mb[k]; m++) {
        uint64_t sample = (uint64_t)((step * n_micro(ref) + first + m) * N_SEQ);

        must(hdt_sampler_read(&ref->sampler, sample, N_SEQ, tokens, labels, &err), &err);
        must(hdt_stage_set_tokens(stage, 0, tokens, &err), &err);
        must(hdt_stage_set_labels(stage, 0, labels, &err), &err);
        hdt_stage_forward(stage, 0, HDT_STAGE_TRAIN);
        must(hdt_stage_loss(stage, 0, &loss, &err), &err);
        loss_sum += loss;
        hdt_stage_backward(stage, 0);
    }
    hdt_stage_finish_grads(stage, NULL);
    must(hdt_stage_grad_sumsq(stage, sumsq, &err), &err);
    for (int i = 0; i < hdt_stage_n_tensors(stage); i++) {
        norm += sumsq[i];
    }
    adamw.grad_scale = (float)hdt_sync_clip_scale(sqrt(norm), 1.0);
    hdt_stage_step(stage, &adamw);
    return loss_sum;
}

static void outer_step(struct reference *ref, double lr, double mu)
{
    double *w = hdt_calloc(ref->n, sizeof(double)), *d = hdt_calloc(ref->n, sizeof(double));

    for (int k = 0; k < ref->n_replicas; k++) {
        weights_copy(ref->stages[k], w, false);
        for (size_t i = 0; i < ref->n; i++) {
            d[i] += (double)ref->n_mb[k] / n_micro(ref) * (ref->anchor[i] - w[i]);
        }
    }
    for (size_t i = 0; i < ref->n; i++) {
        ref->momentum[i] = mu * ref->momentum[i] + d[i];
        ref->anchor[i] -= lr * (d[i] + mu * ref->momentum[i]);
    }
    for (int k = 0; k < ref->n_replicas; k++) {
        weights_copy(ref->stages[k], ref->anchor, true);
    }
    free(w);
    free(d);
}

/* As the job of the rig has it; its losses are those of the first replica. */
static void reference_run(struct reference *ref, const struct rig_run *run, double *losses)
{
    struct hdt_job job = {.steps = run->steps,
                          .optimizer = {.lr = 1e-2, .min_lr = 1e-4, .warmup_steps = 2}};
    double loss_sum = 0, sum;
    int n_tokens = 0;

    for (int step = 0; step < run->steps; step++) {
        for (int k = 0, first = 0; k < ref->n_replicas; first += ref->n_mb[k++]) {
            sum = inner_step(ref, &job, k, step, first);
            loss_sum += sum;
            losses[step + 1] = k == 0 ? sum / (ref->n_mb[0] * N_SEQ * N_TOK) : losses[step + 1];
        }
        n_tokens += n_micro(ref) * N_SEQ * N_TOK;
        if ((step + 1) % run->outer_steps == 0 || step + 1 == run->steps) {
            outer_step(ref, 0.7, 0.9);
            ref->last_loss = loss_sum / n_tokens;
            loss_sum = 0;
            n_tokens = 0;
        }
    }
}

/* Largest difference of a checkpoint's weights from the reference's anchor, of all values. */
static double checkpoint_error(const struct reference *ref, const char *path)
{
    const struct hdt_ckpt_open how = {.model = &model, .weights_only = true};
    struct hdt_ckpt_reader *reader;
    struct hdt_error err = {0};
    const double *want = ref->anchor;
    double worst = 0;

    must(hdt_ckpt_reader_open(path, &how, &reader, &err), &err);
    for (int64_t t = 0; t < hdt_ckpt_n_tensors(&model); t++) {
        size_t bytes = (size_t)hdt_ckpt_tensor_bytes(&model, t);
        float *got = hdt_malloc(bytes);

        must(hdt_ckpt_reader_read(reader, t, HDT_CKPT_WEIGHT, 0, bytes, got, &err), &err);
        for (size_t i = 0; i < bytes / sizeof(float); i++) {
            worst = fmax(worst, fabs(got[i] - *want++));
        }
        free(got);
    }
    hdt_ckpt_reader_close(reader);
    return worst;
}

static void expect_reference(const struct rig_run *run, const int *n_mb, int n_replicas)
{
    struct reference ref = {.n_replicas = n_replicas};
    double losses[RIG_STEPS_MAX + 1] = {0}, error;
    struct rig_result result;

    memcpy(ref.n_mb, n_mb, (size_t)n_replicas * sizeof(int));
    run_well(run, &result);
    reference_open(&ref);
    reference_run(&ref, run, losses);
    for (int64_t step = 1; step <= run->steps; step++) {
        cr_expect_lt(fabs(result.losses[step] - losses[step]), 1e-6 * losses[step],
                     "step %d: %.9g and %.9g", (int)step, result.losses[step], losses[step]);
        cr_expect_eq(result.outer_losses[step] > 0,
                     step % run->outer_steps == 0 || step == run->steps);
    }
    cr_expect_lt(fabs(result.outer_losses[run->steps] - ref.last_loss), 1e-6 * ref.last_loss,
                 "%.9g and %.9g", result.outer_losses[run->steps], ref.last_loss);
    error = checkpoint_error(&ref, result.checkpoint);
    /* Weights of 0.05 and steps of 0.01: roundings of float32, seven steps long. */
    cr_expect_lt(error, 1e-6, "%g", error);
    hdt_rig_result_release(&result);
    reference_close(&ref);
}

Test(outer_run, two_replicas_train_as_the_reference_does)
{
    expect_reference(&pair, (const int[]){2, 2}, 2);
}

Test(outer_run, a_share_is_that_of_the_batch)
{
    struct rig_run run = pair;

    run.replica_mb[0] = 1;
    run.replica_mb[1] = 3;
    expect_reference(&run, (const int[]){1, 3}, 2);
}

Test(outer_run, three_replicas_train_as_the_reference_does)
{
    struct rig_run run = {.n_ranks = 3,
                          .n_stages = 3,
                          .stage_rank = {0, 1, 2},
                          .n_units = {6, 6, 6},
                          .replica = {0, 1, 2},
                          .replica_mb = {1, 2, 1},
                          .outer_steps = 2,
                          .steps = 6};

    expect_reference(&run, (const int[]){1, 2, 1}, 3);
}

static void expect_same(const struct rig_result *a, const struct rig_result *b, int64_t from,
                        int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        cr_expect_eq(a->losses[step], b->losses[step], "step %d: %.17g and %.17g", (int)step,
                     a->losses[step], b->losses[step]);
        cr_expect_eq(a->outer_losses[step], b->outer_losses[step], "step %d: %.17g and %.17g",
                     (int)step, a->outer_losses[step], b->outer_losses[step]);
    }
    cr_expect_str_eq(a->digest, b->digest);
    cr_expect_eq(a->val_loss, b->val_loss);
}

Test(outer_run, replicas_may_be_cut_in_any_way)
{
    struct rig_result a, b, c;
    struct rig_run run = apart;

    run_well(&pair, &a);
    run_well(&apart, &b);
    expect_same(&a, &b, 1, 7);
    cr_expect_str_eq(a.digest, a.ckpt_digest);
    cr_expect(a.val_loss > 0 && a.val_loss < 6);
    run.data_rank = 1;
    run_well(&run, &c);
    expect_same(&a, &c, 1, 7);
}

Test(outer_run, schedules_give_the_same_bits)
{
    static const enum hdt_schedule_kind kinds[] = {HDT_SCHEDULE_GPIPE, HDT_SCHEDULE_ZB_H1,
                                                   HDT_SCHEDULE_WAN};
    struct rig_result a, b;

    run_well(&pair, &a);
    for (size_t i = 0; i < 3; i++) {
        struct rig_run run = apart;

        run.schedule = kinds[i];
        run_well(&run, &b);
        expect_same(&a, &b, 1, 7);
        hdt_rig_result_release(&b);
    }
}

/* Moments of both replicas and the outer momentum are in the checkpoint, whatever the cut. */
Test(outer_run, resumes_with_the_same_bits)
{
    struct rig_run first = pair, rest = apart;
    struct rig_result whole, a, b;

    first.steps = rest.steps = 9;
    first.checkpoint_every = 3;
    run_well(&first, &whole);
    cr_expect_geq(whole.n_ckpts, 2);
    first.stop_first = true;
    first.ckpt_name = "first";
    run_well(&first, &a);
    cr_expect(a.stopped);
    cr_assert_eq(a.n_losses, 3, "stops at the outer step, not at %d", a.n_losses);
    cr_expect_eq(a.ckpt_step, 3);
    rest.resume = "first";
    rest.ckpt_name = "second";
    run_well(&rest, &b);
    cr_expect_eq(b.start_step, 3);
    expect_same(&whole, &b, 4, 9);
}

/* From the last outer step that has a checkpoint, in the middle of anything. */
Test(outer_run, a_later_epoch_ends_with_the_same_bits)
{
    struct rig_run whole = pair, run = apart;
    struct rig_result a, b;

    whole.steps = run.steps = 9;
    run_well(&whole, &a);
    run.checkpoint_every = 3;
    run.restart_after = 5;
    run_well(&run, &b);
    expect_same(&a, &b, 1, 9);
    hdt_rig_result_release(&b);
    run.restart_at_once = true;
    run.ckpt_name = "at-once";
    run_well(&run, &b);
    expect_same(&a, &b, 1, 9);
}

/* What the room for a checkpoint is looked for with is what its files beside the tensors have. */
Test(outer_run, room_is_looked_for_for_all_that_replicas_save)
{
    const uint64_t n = (uint64_t)hdt_model_n_params(&model);
    struct rig_run run = pair;
    struct rig_result result;
    uint64_t bytes = 0;
    char path[4400];
    struct stat st;

    run.steps = 3;
    run_well(&run, &result);
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof(path), "%s/feedback-outer-%d.bin", result.checkpoint, i);
        cr_assert_eq(stat(path, &st), 0, "%s", path);
        bytes += (uint64_t)st.st_size;
        snprintf(path, sizeof(path), "%s/feedback-replica1-moments-%d.bin", result.checkpoint, i);
        cr_assert_eq(stat(path, &st), 0, "%s", path);
        bytes += (uint64_t)st.st_size;
    }
    cr_expect_eq(bytes, 12 * n);
    for (int k = 1; k <= 3; k++) {
        struct hdt_plan_stage stages[3] = {{.replica = 0, .unit_end = 6},
                                           {.replica = 1, .unit_end = 6, .rank = 1},
                                           {.replica = 2, .unit_end = 6, .rank = 2}};
        const struct hdt_plan plan = {.stages = stages, .n_stages = (size_t)k, .n_replicas = k};

        cr_expect_eq(hdt_state_units_bytes(&plan, &model),
                     k < 2 ? 0 : (8 * (uint64_t)(k - 1) + 4) * n);
    }
}

/* What goes wrong in one replica only is found, and no new epoch passes over it. */
Test(outer_run, replicas_that_differ_end_the_job)
{
    struct rig_run run = pair;
    struct rig_result result;
    const char *status, *msg;

    atomic_store(&n_moves_sound, 5);
    hdt_rig_run(rig, &run, &result);
    status = json_string_value(json_object_get(result.error, "status"));
    msg = json_string_value(json_object_get(result.error, "msg"));
    cr_assert(status && msg, "the run ended well");
    cr_expect_str_eq(status, "EJOB");
    cr_expect(strstr(msg, "the weights of replica 2 have digest"), "%s", msg);
    cr_expect_eq(result.n_ckpts, 0);
}

/* Where checkpoints are made, before one is: the older ones are whole. */
Test(outer_run, replicas_that_differ_make_no_checkpoint)
{
    struct rig_run run = pair;
    struct rig_result result;
    const char *msg;

    run.checkpoint_every = 3;
    atomic_store(&n_moves_sound, 5);
    hdt_rig_run(rig, &run, &result);
    msg = json_string_value(json_object_get(result.error, "msg"));
    cr_assert(msg, "the run ended well");
    cr_expect(strstr(msg, "after the outer step of step 3 the weights of replica 2 have digest"),
              "%s", msg);
    cr_expect_eq(result.n_ckpts, 0);
}

/* Checkpoints are written by a rank of the second replica, and the last one fails once: all
 * replicas save again. */
Test(outer_run, the_last_checkpoint_is_tried_again)
{
    struct rig_run run = apart;
    struct rig_result a, b;

    run_well(&pair, &a);
    run.ckpt_rank = 3;
    run.n_full = 1;
    run_well(&run, &b);
    cr_expect_eq(b.n_ckpts_failed, 1, "%d: %s", b.n_ckpts_failed, b.ckpt_error);
    cr_expect_eq(b.n_ckpts, 1);
    cr_expect_str_eq(b.digest, a.digest);
    cr_expect_str_eq(b.ckpt_digest, a.digest);
}

/* A checkpoint of replicas goes on without them, and one without as replicas. */
Test(outer_run, replicas_come_and_go)
{
    struct rig_run first = pair, one = pair;
    struct rig_result a, b;

    first.steps = 6;
    first.ckpt_name = "replicas";
    run_well(&first, &a);
    one.n_ranks = one.n_stages = 1;
    one.outer_steps = 0;
    one.steps = 8;
    one.resume = "replicas";
    one.ckpt_name = "one";
    run_well(&one, &b);
    cr_expect_eq(b.start_step, 6);
    cr_expect_lt(b.val_loss, a.val_loss * 1.02, "%g and %g", b.val_loss, a.val_loss);
    hdt_rig_result_release(&b);
    first.steps = 10;
    first.resume = "one";
    first.ckpt_name = "again";
    run_well(&first, &b);
    cr_expect_eq(b.start_step, 8);
    cr_expect_lt(b.val_loss, a.val_loss * 1.02, "%g and %g", b.val_loss, a.val_loss);
}

Test(outer_run, a_lost_connection_changes_no_bit)
{
    struct rig_run run = apart;
    struct rig_result a, b;

    run_well(&pair, &a);
    run.cut_every = 1;
    run_well(&run, &b);
    cr_expect_gt(b.n_cuts, 0);
    expect_same(&a, &b, 1, 7);
}

/* All replicas decode the same bytes: else the run ends with digests that differ. */
Test(outer_run, lossy_codecs_keep_replicas_together)
{
    static const char *const codecs[] = {"bf16", "int8", "int4:rotate"};
    struct rig_run run = apart;
    struct rig_result a, b;

    run_well(&pair, &a);
    for (size_t i = 0; i < 3; i++) {
        run.outer_codec = codecs[i];
        run_well(&run, &b);
        cr_expect_str_neq(a.digest, b.digest, "%s", codecs[i]);
        cr_expect_lt(fabs(b.val_loss - a.val_loss), 0.02 * a.val_loss, "%s: %g and %g", codecs[i],
                     b.val_loss, a.val_loss);
        hdt_rig_result_release(&b);
    }
}

Test(outer_run, a_tied_model_has_replicas_of_one_stage)
{
    struct rig_run run = pair;
    struct rig_result a, b;

    run.tied = true;
    run_well(&run, &a);
    run.threads[0] = 2;
    run_well(&run, &b);
    expect_same(&a, &b, 1, 7);
}
