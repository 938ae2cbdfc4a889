/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's arithmetic does not depend on where it is cut, on threads, on slots or on recompute:
 * the promise that a run over several sites rests on. All comparisons are of bytes.
 */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "runtime/generate.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "tests/support/pipeline_run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct hdt_model_config small_model = {.V = 67,
                                                    .C = 48,
                                                    .F = 80,
                                                    .L = 4,
                                                    .NH = 6,
                                                    .NKV = 2,
                                                    .HS = 8,
                                                    .T = 40,
                                                    .rms_norm_eps = 1e-5,
                                                    .initializer_range = 0.05,
                                                    .rope_theta = 10000,
                                                    .bos_token_id = -1,
                                                    .eos_token_id = -1};

static struct pipeline_conf conf_of(bool tied)
{
    struct pipeline_conf conf = {.model = small_model,
                                 .B = 3,
                                 .T = 33,
                                 .n_slots = 1,
                                 .n_micro = 5,
                                 .n_steps = 3,
                                 .seed = 11,
                                 .clip_norm = 0.5f,
                                 .n_stages = 1,
                                 .units = {6},
                                 .threads = {1}};

    conf.model.tie_word_embeddings = tied;
    return conf;
}

static void expect_same(const struct pipeline_conf *conf, const struct pipeline_result *want,
                        const char *what)
{
    struct pipeline_result got;

    hdt_pipeline_run(conf, &got);
    for (int i = 0; i < conf->n_steps; i++) {
        cr_expect_eq(memcmp(&got.losses[i], &want->losses[i], sizeof(double)), 0,
                     "%s: loss of step %d is %.17g, not %.17g", what, i, got.losses[i],
                     want->losses[i]);
    }
    cr_expect_eq(memcmp(&got.norm, &want->norm, sizeof(double)), 0, "%s: norm", what);
    cr_expect_eq(memcmp(got.grads, want->grads, want->len * sizeof(float)), 0, "%s: gradients",
                 what);
    cr_expect_eq(memcmp(got.weights, want->weights, want->len * sizeof(float)), 0, "%s: weights",
                 what);
    cr_expect_eq(memcmp(got.moments, want->moments, 2 * want->len * sizeof(float)), 0,
                 "%s: moments", what);
    hdt_pipeline_result_release(&got);
}

struct cut {
    const char *what;
    int n_stages;
    int units[PIPELINE_STAGES_MAX];
    int threads[PIPELINE_STAGES_MAX];
};

static const struct cut cuts[] = {
    {"one stage, 2 threads", 1, {6}, {2}},
    {"one stage, 3 threads", 1, {6}, {3}},
    {"one stage, 4 threads", 1, {6}, {4}},
    {"two stages", 2, {3, 3}, {1, 2}},
    {"two stages, embedding alone", 2, {1, 5}, {2, 1}},
    {"two stages, head alone", 2, {5, 1}, {1, 3}},
    {"three stages", 3, {2, 2, 2}, {1, 2, 3}},
    {"a stage a unit", 6, {1, 1, 1, 1, 1, 1}, {1, 2, 1, 2, 1, 2}},
};

static void any_cut_check(bool tied)
{
    struct pipeline_conf conf = conf_of(tied);
    struct pipeline_result want;

    hdt_pipeline_run(&conf, &want);
    cr_expect(want.norm > (double)conf.clip_norm, "clipping takes part");
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        conf.n_stages = cuts[i].n_stages;
        memcpy(conf.units, cuts[i].units, sizeof(conf.units));
        memcpy(conf.threads, cuts[i].threads, sizeof(conf.threads));
        conf.n_slots = 1 + (int)i % 3;
        conf.recompute = i % 2 == 1;
        expect_same(&conf, &want, cuts[i].what);
    }
    hdt_pipeline_result_release(&want);
}

Test(stage, any_cut_and_thread_count_gives_the_same_bits)
{
    any_cut_check(false);
}

Test(stage, any_cut_of_a_tied_model_gives_the_same_bits)
{
    any_cut_check(true);
}

Test(stage, slots_and_recompute_give_the_same_bits)
{
    struct pipeline_conf conf = conf_of(false);
    struct pipeline_result want;

    hdt_pipeline_run(&conf, &want);
    conf.n_slots = 4;
    expect_same(&conf, &want, "four slots");
    conf.recompute = true;
    expect_same(&conf, &want, "four slots, recompute");
    hdt_pipeline_result_release(&want);
}

/* Whenever the weights' half comes, as long as the slot is left alone. */
Test(stage, backward_in_two_halves_gives_the_same_bits)
{
    for (int tied = 0; tied < 2; tied++) {
        struct pipeline_conf conf = conf_of(tied);
        struct pipeline_result want;

        hdt_pipeline_run(&conf, &want);
        conf.halves = true;
        expect_same(&conf, &want, "halves at once");
        conf.n_slots = 4;
        expect_same(&conf, &want, "halves, four slots");
        for (conf.late = 1; conf.late < 4; conf.late++) {
            conf.n_stages = 1;
            conf.units[0] = 6;
            expect_same(&conf, &want, "late halves");
            conf.n_stages = 3;
            memcpy(conf.units, (int[]){1, 3, 2}, 3 * sizeof(int));
            memcpy(conf.threads, (int[]){2, 1, 3}, 3 * sizeof(int));
            expect_same(&conf, &want, "late halves of three stages");
        }
        hdt_pipeline_result_release(&want);
    }
}

/* Several chunks of logits: a vocabulary so large that the head works on few rows at a time. */
Test(stage, head_in_chunks_gives_the_same_bits_on_any_cut)
{
    struct pipeline_conf conf = conf_of(true);
    struct pipeline_result want;

    conf.model.V = 200000;
    conf.model.C = 8;
    conf.model.NH = 2;
    conf.model.NKV = 1;
    conf.model.HS = 4;
    conf.model.F = 8;
    conf.model.L = 1;
    conf.units[0] = 3;
    conf.n_micro = 2;
    conf.n_steps = 2;
    hdt_pipeline_run(&conf, &want);
    conf.n_stages = 2;
    conf.units[0] = 2;
    conf.units[1] = 1;
    conf.threads[1] = 3;
    expect_same(&conf, &want, "two stages");
    hdt_pipeline_result_release(&want);
}

Test(stage, training_learns)
{
    struct pipeline_conf conf = conf_of(false);
    struct pipeline_result result;

    conf.n_steps = 60;
    hdt_pipeline_run(&conf, &result);
    cr_expect(fabs(result.losses[0] - log(67)) < 0.3, "first loss %g", result.losses[0]);
    /* The best that is possible is about 1.6: each fourth token is drawn at random. */
    cr_expect(result.losses[59] < 2.4, "last loss %g", result.losses[59]);
    hdt_pipeline_result_release(&result);
}

/* ---- One whole stage ------------------------------------------------------------------------- */

struct whole {
    struct hdt_device *device;
    struct hdt_stage *stage;
    int32_t tokens[120], labels[120];
    int n;
};

static void whole_open_model(struct whole *w, struct hdt_model_config model, bool inference)
{
    struct pipeline_conf batch = {.B = 3, .T = 40};
    struct hdt_stage_conf conf = {.model = model,
                                  .n_units = (int)model.L + 2,
                                  .B = 3,
                                  .T = 40,
                                  .n_slots = 2,
                                  .seed = 3,
                                  .inference = inference};
    struct hdt_device_conf device_conf = {.n_threads = 2};
    struct hdt_error err = {0};

    batch.model = model;
    hdt_pipeline_tokens(&batch, 0, 0, w->tokens, w->labels);
    w->n = 120;
    cr_assert_eq(hdt_backend_cpu.device_open(&device_conf, &w->device, &err), HDT_OK);
    cr_assert_eq(hdt_stage_new(&hdt_backend_cpu, w->device, &conf, &w->stage, &err), HDT_OK, "%s",
                 err.msg);
    cr_assert_eq(hdt_stage_set_tokens(w->stage, 0, w->tokens, &err), HDT_OK);
    cr_assert_eq(hdt_stage_set_labels(w->stage, 0, w->labels, &err), HDT_OK);
    hdt_stage_set_loss_scale(w->stage, 1.0f / 120);
}

static void whole_open(struct whole *w, bool inference)
{
    whole_open_model(w, small_model, inference);
}

static void whole_close(struct whole *w)
{
    hdt_stage_free(w->stage);
    hdt_backend_cpu.device_close(w->device);
}

static double whole_loss(struct whole *w)
{
    double loss;

    hdt_stage_forward(w->stage, 0, HDT_STAGE_EVAL);
    cr_assert_eq(hdt_stage_loss(w->stage, 0, &loss, NULL), HDT_OK);
    return loss / w->n;
}

/* Moves one tensor along its gradient by `factor`. */
static void tensor_move(struct hdt_stage_tensor *t, float factor)
{
    for (size_t i = 0; i < t->len; i++) {
        t->w[i] += factor * t->grad[i];
    }
}

/* For each tensor, the slope of the loss along its gradient is the gradient's square. */
Test(stage, gradient_is_the_slope_of_the_loss)
{
    struct whole w;

    whole_open(&w, false);
    hdt_stage_forward(w.stage, 0, HDT_STAGE_TRAIN);
    hdt_stage_backward(w.stage, 0);
    for (int i = 0; i < hdt_stage_n_tensors(w.stage); i++) {
        struct hdt_stage_tensor t;
        double square = 0, above, below;
        float step;

        hdt_stage_tensor(w.stage, i, &t);
        for (size_t j = 0; j < t.len; j++) {
            square += (double)t.grad[j] * (double)t.grad[j];
        }
        step = (float)(2e-3 / square); /* changes the loss by 2e-3 to either side */
        step = fminf(step, (float)(0.05 / sqrt(square)));
        tensor_move(&t, step);
        above = whole_loss(&w);
        tensor_move(&t, -2 * step);
        below = whole_loss(&w);
        tensor_move(&t, step);
        cr_expect(fabs((above - below) / (2 * (double)step) - square) < 0.02 * square,
                  "%s: slope %g, gradient squared %g", t.info.name,
                  (above - below) / (2 * (double)step), square);
    }
    whole_close(&w);
}

Test(stage, evaluation_gives_the_training_loss_and_no_gradient)
{
    struct whole w, inference;
    double train, *sumsq;

    whole_open(&w, false);
    whole_open(&inference, true);
    sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(w.stage), sizeof(*sumsq));
    hdt_stage_forward(w.stage, 0, HDT_STAGE_EVAL);
    cr_assert_eq(hdt_stage_grad_sumsq(w.stage, sumsq, NULL), HDT_OK);
    for (int i = 0; i < hdt_stage_n_tensors(w.stage); i++) {
        cr_expect_eq(sumsq[i], 0);
    }
    hdt_stage_forward(w.stage, 0, HDT_STAGE_TRAIN);
    cr_assert_eq(hdt_stage_loss(w.stage, 0, &train, NULL), HDT_OK);
    cr_expect_eq(whole_loss(&w), train / w.n);
    cr_expect_eq(whole_loss(&inference), train / w.n);
    free(sumsq);
    whole_close(&w);
    whole_close(&inference);
}

Test(stage, labels_below_zero_count_nothing)
{
    struct whole w;
    double all, some, rest;

    whole_open(&w, false);
    all = whole_loss(&w);
    for (int i = 0; i < 50; i++) {
        w.labels[i] = -100;
    }
    cr_assert_eq(hdt_stage_set_labels(w.stage, 0, w.labels, NULL), HDT_OK);
    some = whole_loss(&w);
    hdt_pipeline_tokens(&(struct pipeline_conf){.model = small_model, .B = 3, .T = 40}, 0, 0,
                        w.tokens, w.labels);
    for (int i = 50; i < w.n; i++) {
        w.labels[i] = -1;
    }
    cr_assert_eq(hdt_stage_set_labels(w.stage, 0, w.labels, NULL), HDT_OK);
    rest = whole_loss(&w);
    cr_expect_float_eq(some + rest, all, 1e-12);
    whole_close(&w);
}

Test(stage, first_weights_have_the_wanted_distribution)
{
    struct whole w;

    whole_open(&w, true);
    for (int i = 0; i < hdt_stage_n_tensors(w.stage); i++) {
        struct hdt_stage_tensor t;
        double sum = 0, square = 0, deviation = 0.05;

        hdt_stage_tensor(w.stage, i, &t);
        for (size_t j = 0; j < t.len; j++) {
            sum += (double)t.w[j];
            square += (double)t.w[j] * (double)t.w[j];
        }
        if (t.info.n_dims == 1) {
            cr_expect_eq(sum, (double)t.len);
            continue;
        }
        deviation /= t.info.residual ? sqrt(8) : 1;
        cr_expect(fabs(sum / (double)t.len) < 5 * deviation / sqrt((double)t.len), "%s: mean",
                  t.info.name);
        cr_expect(fabs(sqrt(square / (double)t.len) / deviation - 1) < 5 / sqrt(2 * (double)t.len),
                  "%s: deviation", t.info.name);
    }
    whole_close(&w);
}

Test(stage, bad_configurations_are_refused)
{
    struct hdt_stage_conf good = {
        .model = small_model, .n_units = 6, .B = 1, .T = 40, .n_slots = 1};
    struct hdt_stage_conf bad;
    struct hdt_stage_bytes bytes;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_stage_measure(&good, &bytes, &err), HDT_OK);
    cr_expect_eq(bytes.total,
                 bytes.weights + bytes.grads + bytes.optimizer + bytes.slot + bytes.workspace);
    bad = good;
    bad.n_units = 7;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "units 0 to 6") && strstr(err.msg, "0 to 5"), "%s", err.msg);
    bad = good;
    bad.T = 41;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_EINVAL);
    bad = good;
    bad.model.NKV = 4;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_EINVAL);
    bad = good;
    bad.B = 1 << 30;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_EINVAL);
    bad = good; /* more rows of attention than can be numbered */
    bad.model.NH = 256;
    bad.model.NKV = 1;
    bad.B = 400000;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_EINVAL);
}

/* Products of bf16 take rows of 16 bytes; only who has the head has rows of logits. */
Test(stage, shapes_without_products_of_bf16_are_refused)
{
    struct hdt_stage_conf good = {
        .model = {.V = 50257, .C = 64, .F = 96, .L = 2, .NH = 2, .NKV = 2, .HS = 32, .T = 40},
        .n_units = 3,
        .B = 1,
        .T = 40,
        .n_slots = 1,
        .mixed = true};
    struct hdt_stage_conf bad = good;
    struct hdt_stage_bytes bytes;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_stage_measure(&good, &bytes, &err), HDT_OK, "%s", err.msg);
    bad.n_units = 4;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "vocab_size 50257") && strstr(err.hint, "fp32"), "%s", err.msg);
    bad = good;
    bad.model.F = 100;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "intermediate_size 100"), "%s", err.msg);
    bad = good;
    bad.model.HS = 136;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "head_dim 136") && strstr(err.msg, "128"), "%s", err.msg);
}

/* Products of FP8 take sixteen rows at least; and no stage is made on a device without them. */
Test(stage, shapes_and_devices_without_products_of_fp8_are_refused)
{
    struct hdt_stage_conf good = {
        .model = {.V = 64, .C = 64, .F = 96, .L = 2, .NH = 2, .NKV = 1, .HS = 32, .T = 40},
        .n_units = 4,
        .B = 2,
        .T = 40,
        .n_slots = 1,
        .mixed = true,
        .fp8 = true};
    const struct hdt_device_conf device_conf = {.n_threads = 1};
    struct hdt_stage_conf bad = good;
    struct hdt_stage_bytes bytes;
    struct hdt_device *device = NULL;
    struct hdt_stage *stage = NULL;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_stage_measure(&good, &bytes, &err), HDT_OK, "%s", err.msg);
    bad.B = 1;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "micro_batch * seq_len 40") && strstr(err.hint, "bf16"), "%s",
              err.msg);
    bad = good;
    bad.model.F = 104;
    cr_expect_eq(hdt_stage_measure(&bad, &bytes, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "intermediate_size 104"), "%s", err.msg);
    cr_assert_eq(hdt_backend_cpu.device_open(&device_conf, &device, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_stage_new(&hdt_backend_cpu, device, &good, &stage, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "fp8") && strstr(err.msg, "'cpu'") && strstr(err.msg, "device '"),
              "%s", err.msg);
    hdt_backend_cpu.device_close(device);
}

Test(stage, tokens_outside_the_vocabulary_are_refused)
{
    struct whole w;
    struct hdt_error err = {0};

    whole_open(&w, false);
    w.tokens[5] = 67;
    cr_expect_eq(hdt_stage_set_tokens(w.stage, 0, w.tokens, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "token 67 at row 5") != NULL, "%s", err.msg);
    w.tokens[5] = -1;
    cr_expect_eq(hdt_stage_set_tokens(w.stage, 0, w.tokens, &err), HDT_EINVAL);
    w.labels[0] = 67;
    cr_expect_eq(hdt_stage_set_labels(w.stage, 0, w.labels, &err), HDT_EINVAL);
    whole_close(&w);
}

/* ---- Generation ------------------------------------------------------------------------------ */

static double logits_loss(const float *logits, int V, int32_t label)
{
    double max = -INFINITY, sum = 0;

    for (int i = 0; i < V; i++) {
        max = fmax(max, (double)logits[i]);
    }
    for (int i = 0; i < V; i++) {
        sum += exp((double)logits[i] - max);
    }
    return max + log(sum) - (double)logits[label];
}

/* Token by token, or in pieces, with cached keys: the losses of the whole forward pass. */
static void decode_check(bool inference, int piece)
{
    struct whole w;
    float logits[67];
    double want = 0, got = 0;

    whole_open(&w, inference);
    for (int i = 0; i < w.n; i++) {
        w.labels[i] = i < 40 && (i + 1) % piece == 0 ? w.labels[i] : -1;
    }
    cr_assert_eq(hdt_stage_set_labels(w.stage, 0, w.labels, NULL), HDT_OK);
    want = whole_loss(&w) * w.n;
    for (int pos = 0; pos < 40; pos += piece) {
        cr_assert_eq(hdt_stage_decode(w.stage, w.tokens + pos, pos, piece, logits, NULL), HDT_OK);
        got += logits_loss(logits, 67, w.labels[pos + piece - 1]);
    }
    cr_expect_float_eq(got, want, 1e-5 * want, "pieces of %d: %.9g, not %.9g", piece, got, want);
    whole_close(&w);
}

Test(stage, decoding_with_cached_keys_equals_the_forward_pass)
{
    decode_check(true, 1);
    decode_check(true, 8);
    decode_check(false, 1);
    decode_check(false, 40);
}

struct text {
    int32_t tokens[200];
    int n, stop_at;
};

static bool text_append(void *arg, int32_t token)
{
    struct text *text = arg;

    text->tokens[text->n++] = token;
    return text->n != text->stop_at;
}

Test(stage, sampling_is_repeatable_and_outlasts_the_context)
{
    struct whole w;
    struct text a = {0}, b = {0}, c = {.stop_at = 7};
    struct hdt_sampling sampling = {.temperature = 1, .top_k = 5, .seed = 4};

    whole_open(&w, true);
    cr_assert_eq(hdt_generate(w.stage, &sampling, w.tokens, 3, 150, text_append, &a, NULL), HDT_OK);
    cr_assert_eq(hdt_generate(w.stage, &sampling, w.tokens, 3, 150, text_append, &b, NULL), HDT_OK);
    cr_assert_eq(hdt_generate(w.stage, &sampling, w.tokens, 3, 150, text_append, &c, NULL), HDT_OK);
    cr_expect_eq(a.n, 150);
    cr_expect_eq(memcmp(a.tokens, b.tokens, sizeof(a.tokens)), 0);
    cr_expect_eq(c.n, 7);
    cr_expect_eq(memcmp(a.tokens, c.tokens, 7 * sizeof(*a.tokens)), 0);
    sampling.seed = 5;
    b.n = 0;
    cr_assert_eq(hdt_generate(w.stage, &sampling, w.tokens, 3, 150, text_append, &b, NULL), HDT_OK);
    cr_expect_neq(memcmp(a.tokens, b.tokens, sizeof(a.tokens)), 0);
    whole_close(&w);
}

/* Without temperature each token is the likeliest after those before it. */
Test(stage, greedy_sampling_takes_the_likeliest)
{
    struct whole w;
    struct text a = {0};
    struct hdt_sampling sampling = {0};
    float logits[67];

    whole_open(&w, true);
    cr_assert_eq(hdt_generate(w.stage, &sampling, w.tokens, 10, 1, text_append, &a, NULL), HDT_OK);
    cr_assert_eq(hdt_stage_decode(w.stage, w.tokens, 0, 10, logits, NULL), HDT_OK);
    for (int i = 0; i < 67; i++) {
        cr_expect(logits[i] <= logits[a.tokens[0]]);
    }
    whole_close(&w);
}

Test(stage, a_model_that_is_not_finite_generates_nothing)
{
    struct whole w;
    struct text a = {0};
    struct hdt_error err = {0};
    struct hdt_sampling sampling = {.temperature = 1};
    struct hdt_stage_tensor view;

    whole_open(&w, true);
    hdt_stage_tensor(w.stage, 1, &view);
    view.w[0] = NAN;
    cr_expect_eq(hdt_generate(w.stage, &sampling, w.tokens, 3, 5, text_append, &a, &err),
                 HDT_EINVAL);
    cr_expect(strstr(err.msg, "logit") && err.hint[0], "%s", err.msg);
    cr_expect_eq(a.n, 0);
    whole_close(&w);
}

Test(stage, bad_sampling_is_refused)
{
    struct whole w;
    struct text a = {0};
    struct hdt_error err = {0};
    struct hdt_sampling sampling = {.temperature = -1};
    int32_t prompt[] = {1, 99};

    whole_open(&w, true);
    cr_expect_eq(hdt_generate(w.stage, &sampling, w.tokens, 3, 5, text_append, &a, &err),
                 HDT_EINVAL);
    sampling.temperature = NAN;
    cr_expect_eq(hdt_generate(w.stage, &sampling, w.tokens, 3, 5, text_append, &a, &err),
                 HDT_EINVAL);
    sampling.temperature = 1;
    cr_expect_eq(hdt_generate(w.stage, &sampling, w.tokens, 0, 5, text_append, &a, &err),
                 HDT_EINVAL);
    cr_expect_eq(hdt_generate(w.stage, &sampling, prompt, 2, 5, text_append, &a, &err), HDT_EINVAL);
    cr_expect_eq(a.n, 0);
    whole_close(&w);
}

/* A stream that is not a whole number of windows; each label counts once. */
Test(stage, held_out_loss_is_the_mean_over_windows)
{
    struct whole w;
    int32_t stream[171];
    double got, total = 0;
    struct pipeline_conf batch = {.model = small_model, .B = 1, .T = 171};
    int32_t labels[171];

    whole_open(&w, true);
    hdt_pipeline_tokens(&batch, 9, 9, stream, labels);
    cr_assert_eq(hdt_evaluate(w.stage, stream, 171, &got, NULL), HDT_OK);
    for (int at = 0; at < 170; at += 40) {
        float logits[67];

        for (int i = 0; i < 40 && at + i < 170; i++) {
            cr_assert_eq(hdt_stage_decode(w.stage, stream + at + i, i, 1, logits, NULL), HDT_OK);
            total += logits_loss(logits, 67, stream[at + i + 1]);
        }
    }
    cr_expect_float_eq(got, total / 170, 1e-5, "%.9g, not %.9g", got, total / 170);
    cr_expect_eq(hdt_evaluate(w.stage, stream, 1, &got, NULL), HDT_EINVAL);
    whole_close(&w);
}
