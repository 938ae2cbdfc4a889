/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/job.h"
#include "src/core/model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const struct hdt_model_config model = {
    .V = 256, .C = 64, .F = 128, .L = 4, .NH = 4, .NKV = 4, .HS = 16, .T = 256};

/* Parse and check; the caller releases the job when the answer is HDT_OK. */
static enum hdt_status job_read(const char *text, struct hdt_job *job, struct hdt_error *err)
{
    struct hdt_conf_doc *doc = NULL;
    enum hdt_status status;

    status = hdt_conf_parse(&hdt_job_schema, text, strlen(text), "job.yaml", job, &doc, err);
    if (status != HDT_OK) {
        return status;
    }
    status = hdt_job_check(job, &model, doc, err);
    hdt_conf_doc_free(doc);
    if (status != HDT_OK) {
        hdt_conf_release(&hdt_job_schema, job);
    }
    return status;
}

#define MINIMAL "model: m.json\nsteps: 100\ndata:\n  train: t.bin\n"

Test(job, a_short_file_takes_the_defaults)
{
    struct hdt_job job;
    struct hdt_error err = {0};

    cr_assert_eq(job_read(MINIMAL, &job, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_expect_str_eq(job.name, "job");
    cr_expect_eq(job.batch.micro_batch, 8);
    cr_expect_str_eq(job.codec.activations, "auto");
    cr_expect_eq(job.optimizer.beta2, 0.95);
    cr_expect_eq(job.progress_timeout, 0);
    cr_expect_str_eq(job.checkpoint.dir, "checkpoints");
    cr_expect_eq(job.plan.cut.n, 0);
    hdt_conf_release(&hdt_job_schema, &job);
}

/* A job whose document is kept, so that it can be checked against other models. */
static struct hdt_conf_doc *job_parse(const char *text, struct hdt_job *job)
{
    struct hdt_conf_doc *doc = NULL;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_conf_parse(&hdt_job_schema, text, strlen(text), "job.yaml", job, &doc, &err),
                 HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_job_check(job, &model, doc, &err), HDT_OK, "%s", err.msg);
    return doc;
}

/* A model that bf16 is not for is refused with the line that asks for it, not by a worker later. */
Test(job, bf16_is_for_models_that_have_products_of_it)
{
    struct hdt_model_config odd = model;
    struct hdt_error err = {0};
    struct hdt_job job;
    struct hdt_conf_doc *doc = job_parse(MINIMAL "precision: bf16\n", &job);

    odd.V = 50257;
    cr_expect_eq(hdt_job_check(&job, &odd, doc, &err), HDT_EINVAL);
    cr_expect(strstr(err.where, "job.yaml:5") && strstr(err.msg, "vocab_size 50257"), "%s: %s",
              err.where, err.msg);
    job.precision = HDT_JOB_FP32;
    cr_expect_eq(hdt_job_check(&job, &odd, doc, &err), HDT_OK, "%s", err.msg);
    hdt_conf_doc_free(doc);
    hdt_conf_release(&hdt_job_schema, &job);
}

/* And of fp8, which asks for more, of the batch too. */
Test(job, fp8_is_for_models_and_batches_that_have_products_of_it)
{
    struct hdt_model_config odd = model;
    struct hdt_error err = {0};
    struct hdt_job job;
    struct hdt_conf_doc *doc = job_parse(MINIMAL "precision: fp8\n", &job);

    cr_expect_eq(job.precision, HDT_JOB_FP8);
    odd.F += 8;
    cr_expect_eq(hdt_job_check(&job, &odd, doc, &err), HDT_EINVAL);
    cr_expect(strstr(err.where, "job.yaml:5") && strstr(err.msg, "intermediate_size") &&
                  strstr(err.msg, "multiple of 16") && strstr(err.hint, "bf16"),
              "%s: %s", err.where, err.msg);
    odd = model;
    odd.V = 50257;
    cr_expect_eq(hdt_job_check(&job, &odd, doc, &err), HDT_EINVAL);
    job.batch.micro_batch = 1;
    job.batch.seq_len = 24;
    cr_expect_eq(hdt_job_check(&job, &model, doc, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "micro_batch * seq_len 24"), "%s", err.msg);
    hdt_conf_doc_free(doc);
    hdt_conf_release(&hdt_job_schema, &job);
}

Test(job, names_of_precisions)
{
    cr_expect_eq(hdt_job_precision_of("fp8"), HDT_JOB_FP8);
    cr_expect_eq(hdt_job_precision_of("fp32"), HDT_JOB_FP32);
    cr_expect_eq(hdt_job_precision_of("fp16"), -1);
    cr_expect_str_eq(hdt_job_precision_name(HDT_JOB_BF16), "bf16");
}

Test(job, travels_as_json)
{
    struct hdt_job job, back;
    struct hdt_error err = {0};
    json_t *json, *again;

    cr_assert_eq(job_read(MINIMAL "plan:\n  cut: [a/w0=2, b/w0=4]\ncodec:\n  activations: bf16\n",
                          &job, &err),
                 HDT_OK, "%s: %s", err.where, err.msg);
    json = hdt_conf_to_json(&hdt_job_schema, &job);
    cr_assert_eq(hdt_conf_from_json(&hdt_job_schema, json, "job 1", &back, &err), HDT_OK, "%s",
                 err.msg);
    again = hdt_conf_to_json(&hdt_job_schema, &back);
    cr_expect(json_equal(json, again));
    cr_expect_str_eq(back.codec.activations, "bf16");
    cr_expect_str_eq(back.plan.cut.items[1], "b/w0=4");
    json_decref(json);
    json_decref(again);
    hdt_conf_release(&hdt_job_schema, &job);
    hdt_conf_release(&hdt_job_schema, &back);
}

Test(job, a_codec_is_any_that_exists_or_auto)
{
    struct hdt_job job;
    struct hdt_codec_spec spec;
    struct hdt_error err = {0};

    cr_assert_eq(job_read(MINIMAL "codec:\n  activations: int8+lossless\n", &job, &err), HDT_OK,
                 "%s", err.msg);
    cr_assert(hdt_job_codec(&job, false, &spec));
    cr_expect_eq(spec.worker, HDT_CODEC_INT8);
    cr_expect_eq(spec.gateway, HDT_CODEC_LOSSLESS);
    cr_expect_not(hdt_job_codec(&job, true, &spec));
    hdt_conf_release(&hdt_job_schema, &job);
    cr_expect_eq(job_read(MINIMAL "codec:\n  activations: zip\n", &job, &err), HDT_EINVAL);
    cr_expect(strstr(err.hint, "auto, none, bf16"), "%s", err.hint);
}

Test(job, what_does_not_fit_is_refused_with_its_line)
{
    static const struct {
        const char *text, *where, *word;
    } cases[] = {
        {MINIMAL "batch:\n  seq_len: 512\n", "job.yaml:6", "max_position_embeddings 256"},
        {MINIMAL "optimizer:\n  warmup_steps: 101\n", "job.yaml:6", "warmup_steps 101"},
        {MINIMAL "optimizer:\n  min_lr: 1.0\n", "job.yaml:6", "min_lr"},
        {MINIMAL "name: a b\n", "job.yaml:5", "a b"},
        {MINIMAL "eval:\n  every: 5\n", "job.yaml:6", "data.valid"},
        {MINIMAL "plan:\n  cut: [a/w0=2, b/w0=3]\n", "job.yaml:6", "5 units, the model 6"},
        {MINIMAL "plan:\n  cut: [a=2]\n", "job.yaml:6", "SITE/WORKER=UNITS"},
        {MINIMAL "plan:\n  max_stages: 1\n  min_stages: 2\n", "job.yaml:6", "max_stages 1"},
        {MINIMAL "plan:\n  schedule: 2f2b\n", "job.yaml:6", "schedule"},
        {MINIMAL "recompute: true\nplan:\n  schedule: zb-mem\n", "job.yaml:7", "recompute"},
        {MINIMAL "plan:\n  min_stages: 7\n", "job.yaml:6", "min_stages 7"},
        {"model: m.json\nsteps: 0\ndata:\n  train: t.bin\n", "job.yaml:2", "steps"},
        {"model: m.json\nsteps: 1\n", "job.yaml", "train"},
        {MINIMAL "codec:\n  activations: int9\n", "job.yaml:6", "'int9' is no codec"},
        {MINIMAL "codec:\n  lossy: true\n  activation_grads: bf16:block=64\n", "job.yaml:7",
         "codec bf16 has no option 'block=64'"},
        {MINIMAL "checkpoint:\n  every: 10\nouter:\n  steps: 4\n", "job.yaml:6", "no multiple"},
        {MINIMAL "outer:\n  codec: topk:16\n", "job.yaml:6", "keeps feedback"},
        {MINIMAL "outer:\n  steps: 4\nplan:\n  cut: [a/w0=6, b/w0=5]\n", "job.yaml:8",
         "a replica has 5 units"},
        {MINIMAL "outer:\n  steps: 4\nplan:\n  cut: [a/w0=4, b/w0=8]\n", "job.yaml:8",
         "a replica has 12 units"},
        {MINIMAL "outer:\n  steps: 4\n  parts: [8, 8]\n", "job.yaml:7", "plan.cut 0 replicas"},
        {MINIMAL "outer:\n  steps: 4\n  parts: [4, 5]\nplan:\n  cut: [a/w0=6, b/w0=6]\n",
         "job.yaml:7", "9 micro-batches"},
        {MINIMAL "plan:\n  cut: [a/w0=6, b/w0=6]\n", "job.yaml:6", "12 units"},
        {MINIMAL "codec:\n  activations: ''\n", "job.yaml:6", "'' is no codec"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_job job;
        struct hdt_error err = {0};

        cr_expect_eq(job_read(cases[i].text, &job, &err), HDT_EINVAL, "%s", cases[i].text);
        cr_expect(strstr(err.msg, cases[i].word), "%s", err.msg);
        cr_expect_eq(strncmp(err.where, cases[i].where, strlen(cases[i].where)), 0,
                     "%s instead of %s: %s", err.where, cases[i].where, err.msg);
    }
}

Test(job, outer_steps_follow_on_multiples_and_on_the_last)
{
    static const char *const text = MINIMAL "checkpoint:\n  every: 60\nouter:\n  steps: 30\n"
                                            "  parts: [3, 5]\n  codec: int4:rotate\n"
                                            "plan:\n  cut: [a/w0=6, b/w0=2, b/w1=4]\n";
    struct hdt_job job;
    struct hdt_error err = {0};
    struct hdt_codec_spec codec;
    char name[HDT_CODEC_SPEC_TEXT];

    cr_assert_eq(job_read(text, &job, &err), HDT_OK, "%s: %s", err.where, err.msg);
    for (int64_t step = 0; step < 100; step++) {
        cr_expect_eq(hdt_job_outer_is_due(&job, step),
                     step == 29 || step == 59 || step == 89 || step == 99, "step %d", (int)step);
    }
    codec = hdt_job_outer_codec(&job);
    cr_expect_str_eq(hdt_codec_spec_format(&codec, name), "int4:rotate");
    hdt_conf_release(&hdt_job_schema, &job);
    cr_assert_eq(job_read(MINIMAL, &job, &err), HDT_OK);
    cr_expect_not(hdt_job_outer_is_due(&job, 99), "off");
    codec = hdt_job_outer_codec(&job);
    cr_expect_str_eq(hdt_codec_spec_format(&codec, name), "lossless");
    hdt_conf_release(&hdt_job_schema, &job);
}

Test(job, learning_rate_warms_up_and_decays)
{
    struct hdt_job job = {.steps = 110,
                          .optimizer = {.lr = 1.0, .min_lr = 0.1, .warmup_steps = 10}};

    cr_expect_float_eq(hdt_job_lr(&job, 0), 0.1, 1e-12);
    cr_expect_float_eq(hdt_job_lr(&job, 9), 1.0, 1e-12);
    cr_expect_float_eq(hdt_job_lr(&job, 10), 1.0, 1e-12);
    cr_expect_float_eq(hdt_job_lr(&job, 109), 0.1, 1e-12);
    cr_expect_float_eq(hdt_job_lr(&job, 1000), 0.1, 1e-12);
    /* Half way between the last step of the warm-up and the last: the mean. */
    cr_expect_float_eq((hdt_job_lr(&job, 59) + hdt_job_lr(&job, 60)) / 2, 0.55, 1e-12);
    for (int64_t step = 10; step < 109; step++) {
        cr_expect(hdt_job_lr(&job, step) > hdt_job_lr(&job, step + 1));
    }
    job.optimizer.warmup_steps = 0;
    cr_expect_float_eq(hdt_job_lr(&job, 0), 1.0, 1e-12);
}
