/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "src/core/job.h"
#include "src/core/cluster.h"
#include "src/core/deadlines.h"
#include "src/core/model.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const precision_names[] = {"fp32", "bf16", "fp8", NULL};

static const struct hdt_conf_row data_rows[] = {
    HDT_CONF_STRING(struct hdt_job_data, train, NULL,
                    "Token shard (.bin) to train on, made by `hdt tokenize`: a path on the "
                    "machines of data.site; a relative one starts at their worker's data_dir."),
    HDT_CONF_STRING(struct hdt_job_data, valid, "",
                    "Held-out token shard for evaluation; empty: no evaluation."),
    HDT_CONF_STRING(struct hdt_job_data, site, "",
                    "Site that has the shards. Tokens and labels travel from there; empty: the "
                    "site that the job is submitted to."),
    HDT_CONF_END};

static const struct hdt_conf_row batch_rows[] = {
    HDT_CONF_INT(struct hdt_job_batch, micro_batch, "8", 1, 65536, "Sequences in one micro-batch."),
    HDT_CONF_INT(struct hdt_job_batch, n_micro_batches, "8", 1, 65536,
                 "Micro-batches of one step. More of them hide more of the link's latency."),
    HDT_CONF_INT(struct hdt_job_batch, seq_len, "128", 1, 1048576,
                 "Tokens of a sequence; at most the model's max_position_embeddings."),
    HDT_CONF_END};

static const struct hdt_conf_row optimizer_rows[] = {
    HDT_CONF_FLOAT(struct hdt_job_optimizer, lr, "1e-3", 0, 1e3,
                   "Peak learning rate of AdamW, reached at the end of the warm-up."),
    HDT_CONF_FLOAT(struct hdt_job_optimizer, min_lr, "1e-4", 0, 1e3,
                   "Learning rate at the end of the cosine."),
    HDT_CONF_INT(struct hdt_job_optimizer, warmup_steps, "10", 0, 1e9,
                 "Steps of linear warm-up from 0."),
    HDT_CONF_FLOAT(struct hdt_job_optimizer, beta1, "0.9", 0, 0.9999999,
                   "Decay of the first moment."),
    HDT_CONF_FLOAT(struct hdt_job_optimizer, beta2, "0.95", 0, 0.9999999,
                   "Decay of the second moment."),
    HDT_CONF_FLOAT(struct hdt_job_optimizer, eps, "1e-8", 1e-30, 1,
                   "Added to the root of the second moment."),
    HDT_CONF_FLOAT(struct hdt_job_optimizer, weight_decay, "0.1", 0, 10,
                   "Decoupled weight decay of matrices; norms have none."),
    HDT_CONF_FLOAT(struct hdt_job_optimizer, clip_norm, "1.0", 0, 1e9,
                   "Gradients are scaled down to this global norm; 0: no clipping."),
    HDT_CONF_END};

static const struct hdt_conf_row codec_rows[] = {
    HDT_CONF_CHECKED(struct hdt_job_codec, activations, "auto", hdt_job_codec_check,
                     "How activations travel between sites: auto, or a codec with its options, as "
                     "none, bf16 or int8+lossless. None and lossless change no number, the others "
                     "do."),
    HDT_CONF_CHECKED(struct hdt_job_codec, activation_grads, "auto", hdt_job_codec_check,
                     "How gradients of activations travel between sites. One that loses bits and "
                     "makes up for none of it later is taken only when it stands here, or with "
                     "codec.lossy."),
    HDT_CONF_BOOL(struct hdt_job_codec, lossy, "false",
                  "Lets \"auto\" choose codecs that change numbers, and others in their place in "
                  "the run, as the link does."),
    HDT_CONF_FLOAT(struct hdt_job_codec, error_budget, "0.02", 0, 1,
                   "Relative error, sqrt(sum of squared errors / sum of squares), that a codec "
                   "which \"auto\" chooses may have: with 0.02 it may be bf16 or int8. A tensor "
                   "that would lose four times as much, or holds values that its codec cannot "
                   "carry, travels more exactly; 0: neither choice in the run nor guard."),
    HDT_CONF_END};

static const struct hdt_conf_row outer_rows[] = {
    HDT_CONF_INT(struct hdt_job_outer, steps, "0", 0, 1e6,
                 "Steps that replicas of the model train alone, each with its own part of the "
                 "batch, optimizer and clipping, before their changes are averaged and an outer "
                 "SGD with Nesterov momentum moves what all go on from (DiLoCo). Links then carry "
                 "the weights' size once in so many steps, and no activations. An outer step "
                 "follows on the last step as well. Where a plan without replicas is "
                 "faster, or is the only one, the run is the ordinary one. 0: no replicas."),
    HDT_CONF_FLOAT(struct hdt_job_outer, lr, "0.7", 0, 100,
                   "Learning rate of the outer SGD; 1 with momentum 0 averages weights."),
    HDT_CONF_FLOAT(struct hdt_job_outer, momentum, "0.9", 0, 0.9999999,
                   "Nesterov momentum of the outer SGD."),
    HDT_CONF_CHECKED(struct hdt_job_outer, codec, "auto", hdt_job_outer_codec_check,
                     "How the changes of weights travel: auto (lossless between sites), or a codec "
                     "that keeps nothing from frame to frame, as bf16+lossless, int8 or int4."),
    HDT_CONF_STRINGS(
        struct hdt_job_outer, parts, "",
        "Micro-batches of a step for each replica of plan.cut, in its order, as 5, 3. "
        "Empty: dealt out by speed as measured, so that the same job planned again may "
        "deal them otherwise, and then ends with other bits."),
    HDT_CONF_END};

static const struct hdt_conf_row checkpoint_rows[] = {
    HDT_CONF_STRING(struct hdt_job_checkpoint, dir, "checkpoints",
                    "Folder for checkpoints, on the machines of checkpoint.site; a relative one "
                    "starts at their worker's data_dir."),
    HDT_CONF_STRING(struct hdt_job_checkpoint, site, "",
                    "Site that gathers and writes checkpoints; empty: data.site."),
    HDT_CONF_INT(struct hdt_job_checkpoint, every, "0", 0, 1e9,
                 "Steps between checkpoints; 0: one at the end."),
    HDT_CONF_INT(struct hdt_job_checkpoint, keep, "2", 0, 1e6,
                 "Complete checkpoints kept; 0: all."),
    HDT_CONF_END};

static const struct hdt_conf_row eval_rows[] = {
    HDT_CONF_INT(struct hdt_job_eval, every, "0", 0, 1e9,
                 "Steps between evaluations on data.valid; 0: one at the end."),
    HDT_CONF_INT(struct hdt_job_eval, n_micro_batches, "16", 1, 65536,
                 "Micro-batches read from data.valid for an evaluation."),
    HDT_CONF_END};

const char *const hdt_schedule_names[HDT_SCHEDULE_KIND_COUNT + 1] = {
    "auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-mem", "wan", NULL};

static const struct hdt_conf_row plan_rows[] = {
    HDT_CONF_STRINGS(struct hdt_job_plan, sites, "",
                     "Only these sites take part, in any order; empty: all that are there."),
    HDT_CONF_INT(struct hdt_job_plan, max_stages, "0", 0, 4096,
                 "Most pipeline stages; 0: no limit."),
    HDT_CONF_INT(struct hdt_job_plan, min_stages, "1", 1, 4096,
                 "Fewest pipeline stages; with outer steps of all replicas together."),
    HDT_CONF_STRINGS(struct hdt_job_plan, cut, "",
                     "Fixed cut in pipeline order as \"SITE/WORKER=UNITS\"; units are the "
                     "embedding, each block, and the head. Empty: the planner cuts."),
    HDT_CONF_ENUM(
        struct hdt_job_plan, schedule, "auto", hdt_schedule_names,
        "Order of the work in a step; the bits are the same. 1f1b: a forward and a backward in "
        "turn; wan: the same with more forwards ahead, so many that round trips of links are "
        "hidden; gpipe: all forwards, then all backwards; interleaved: each worker has several "
        "stages; zb-h1: backward in two halves, the weights' half where the worker would wait, and "
        "no stage keeps more than 1f1b's first; zb-mem: the same with as much memory as there is. auto: the one that is "
        "predicted to be fastest, but 1f1b where no other gains 2 %."),
    HDT_CONF_END};

static const char *const on_loss_names[] = {"wait", "shrink", "fail", NULL};

static const struct hdt_conf_row recovery_rows[] = {
    HDT_CONF_ENUM(
        struct hdt_job_recovery, on_loss, "shrink", on_loss_names,
        "When a worker or its site is lost, the job goes on from the last checkpoint: as soon as "
        "it is back (wait), or when it is not back after recovery.wait, without it (shrink), or "
        "it fails. Shrink is the default since a slower run is worth more than one that stands, "
        "and its bits are the same (with outer steps replicas may be others, and bits with them)."),
    HDT_CONF_DURATION(struct hdt_job_recovery, wait, "2m", 0, 8.64e10,
                      "How long a lost worker is waited for before the job is planned without it."),
    HDT_CONF_DURATION(struct hdt_job_recovery, give_up, "24h", 1e3, 8.64e10,
                      "The job fails when its workers are not back after so long."),
    HDT_CONF_INT(struct hdt_job_recovery, attempts, "5", 0, 1000,
                 "Restarts in a row that bring neither a new step nor a new checkpoint; then the "
                 "job fails."),
    HDT_CONF_END};

static const struct hdt_conf_row replan_rows[] = {
    {.name = "auto",
     .type = HDT_CONF_T_BOOL,
     .offset = offsetof(struct hdt_job_replan, automatic),
     .def = "true",
     .help = "Take a faster plan at a checkpoint when one is found and pays: steps take longer or "
             "shorter than predicted, or a worker joined. The bits are the same. Not with outer "
             "steps, where they might not be."},
    HDT_CONF_FLOAT(struct hdt_job_replan, drift, "0.15", 0.01, 100,
                   "Difference of ten measured steps from the prediction, as a share of it, from "
                   "which on another plan is looked for."),
    HDT_CONF_FLOAT(struct hdt_job_replan, gain, "0.05", 0, 1,
                   "Least share of the step time that another plan must save."),
    HDT_CONF_END};

static const struct hdt_conf_row job_rows[] = {
    HDT_CONF_STRING(struct hdt_job, name, "job", "Name of the job: letters, digits, '-', '_'."),
    HDT_CONF_PATH(struct hdt_job, model, NULL,
                  "Hugging Face config.json of a Llama-family model, read by `hdt`."),
    HDT_CONF_SECTION(struct hdt_job, data, data_rows, "Token shards."),
    HDT_CONF_SECTION(struct hdt_job, batch, batch_rows,
                     "The batch. It belongs to the job, so that its bits do not depend on the "
                     "plan."),
    HDT_CONF_INT(struct hdt_job, steps, NULL, 1, 1e9, "Optimizer steps to train."),
    HDT_CONF_INT(struct hdt_job, seed, "1", 0, 9e15, "Seed of initial weights and sampler."),
    HDT_CONF_BOOL(struct hdt_job, recompute, "false",
                  "Compute activations again in the backward pass: less memory, a third more "
                  "time."),
    HDT_CONF_ENUM(struct hdt_job, precision, "fp32", precision_names,
                  "Of matrix products. bf16: products of bfloat16 with sums, residual stream, "
                  "weights, gradients and moments in float32, on devices that have them (cuda): "
                  "some twenty times as fast there; other devices of the job compute in float32. "
                  "fp8: as bf16, and products of the blocks' matrices take FP8 (E4M3; gradients "
                  "E5M2), with a scale for each tensor that its largest value gives; only on "
                  "devices that have them (compute capability 8.9 or newer), others refuse the "
                  "job. What is saved and what travels is float32 with each."),
    HDT_CONF_SECTION(struct hdt_job, optimizer, optimizer_rows, "AdamW and its schedule."),
    HDT_CONF_SECTION(struct hdt_job, codec, codec_rows, "Codecs of the edges between sites."),
    HDT_CONF_SECTION(struct hdt_job, outer, outer_rows,
                     "Replicas that train alone between outer steps, for slow links."),
    HDT_CONF_SECTION(struct hdt_job, checkpoint, checkpoint_rows, "Checkpoints."),
    HDT_CONF_SECTION(struct hdt_job, eval, eval_rows, "Evaluation on held-out text."),
    HDT_CONF_SECTION(struct hdt_job, plan, plan_rows, "Limits for the planner."),
    HDT_CONF_SECTION(struct hdt_job, recovery, recovery_rows,
                     "What happens when a worker is lost in a run."),
    HDT_CONF_SECTION(struct hdt_job, replan, replan_rows, "Another plan in a run."),
    HDT_CONF_DURATION(struct hdt_job, progress_timeout, "0s", 0, HDT_DEADLINES_KNOB_MAX_MS,
                      "The job fails when nothing moved for so long; 0: as long as the gateways "
                      "say (progress_timeout in gateway.yaml). Long steps, large models and slow "
                      "links need no more, since what counts is that something moves; a single "
                      "operation of a device that takes longer does."),
    HDT_CONF_END};

const struct hdt_conf_schema hdt_job_schema = {
    .name = "job",
    .help = "A training job: `hdt plan`, `hdt submit`. Paths under data and checkpoint are read on "
            "the machines of their sites; `model` is read by the command.",
    .rows = job_rows,
    .size = sizeof(struct hdt_job),
};

enum hdt_status hdt_job_codec_check(const char *text, struct hdt_error *err)
{
    struct hdt_codec_spec spec;
    char known[HDT_ERROR_HINT_CAP / 2];

    if (strcmp(text, "auto") == 0) {
        return HDT_OK;
    }
    if (hdt_codec_spec_parse(text, &spec, err) == HDT_OK) {
        if (!(spec.flags & HDT_CODEC_DELTA)) {
            return HDT_OK;
        }
        hdt_error_set(err, HDT_EINVAL, "codec %.64s is not for jobs", text);
        hdt_error_hint(err, "it codes the change of a batch that was seen before, and a job's "
                            "sampler never makes the same batch again: leave \"delta:\" away");
        return HDT_EINVAL;
    }
    if (err && strstr(err->msg, "is no codec")) {
        hdt_codec_spec_known(known, sizeof(known));
        hdt_error_hint(err, "known are auto, %s; options and +lossless may follow (hdt codec list)",
                       known);
    }
    return HDT_EINVAL;
}

bool hdt_job_codec_is_live(const struct hdt_job *job, bool is_grad)
{
    struct hdt_codec_spec named;

    return job->codec.lossy && job->codec.error_budget > 0 && !hdt_job_codec(job, is_grad, &named);
}

bool hdt_job_codec(const struct hdt_job *job, bool is_grad, struct hdt_codec_spec *spec)
{
    const char *text = is_grad ? job->codec.activation_grads : job->codec.activations;
    enum hdt_status status;

    if (!text || strcmp(text, "auto") == 0) {
        return false;
    }
    status = hdt_codec_spec_parse(text, spec, NULL);
    HDT_ASSERT(status == HDT_OK); /* the table checked it */
    return true;
}

enum hdt_status hdt_job_outer_codec_check(const char *text, struct hdt_error *err)
{
    struct hdt_codec_spec spec;

    HDT_TRY(hdt_job_codec_check(text, err));
    if (strcmp(text, "auto") == 0 || hdt_codec_spec_parse(text, &spec, NULL) != HDT_OK ||
        !hdt_codec_spec_has_state(&spec)) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL, "codec %.64s is not for outer steps: it keeps feedback", text);
    hdt_error_hint(err, "take one without, as int8 or int4:rotate, or none, lossless, bf16");
    return HDT_EINVAL;
}

struct hdt_codec_spec hdt_job_outer_codec(const struct hdt_job *job)
{
    struct hdt_codec_spec spec = {.gateway = HDT_CODEC_LOSSLESS};
    enum hdt_status status;

    if (job->outer.codec && strcmp(job->outer.codec, "auto") != 0) {
        status = hdt_codec_spec_parse(job->outer.codec, &spec, NULL);
        HDT_ASSERT(status == HDT_OK); /* the table checked it */
    }
    return spec;
}

bool hdt_job_outer_is_due(const struct hdt_job *job, int64_t step)
{
    return job->outer.steps > 0 && ((step + 1) % job->outer.steps == 0 || step + 1 >= job->steps);
}

static enum hdt_status job_check_name(const struct hdt_job *job, const struct hdt_conf_doc *doc,
                                      struct hdt_error *err)
{
    size_t len = strlen(job->name);
    bool ok = len >= 1 && len < 64;

    for (size_t i = 0; i < len; i++) {
        ok = ok && (isalnum((unsigned char)job->name[i]) || strchr("-_", job->name[i]));
    }
    if (ok) {
        return HDT_OK;
    }
    return hdt_conf_error(doc, "name", err, HDT_EINVAL,
                          "name '%s' is not 1 to 63 letters, digits, '-' and '_'", job->name);
}

static enum hdt_status job_check_batch(const struct hdt_job *job,
                                       const struct hdt_model_config *model,
                                       const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    double values = (double)job->batch.micro_batch * (double)job->batch.seq_len * (double)model->C;

    if (job->batch.seq_len > model->T) {
        hdt_conf_error(doc, "batch.seq_len", err, HDT_EINVAL,
                       "seq_len %lld is longer than the model's max_position_embeddings %lld",
                       (long long)job->batch.seq_len, (long long)model->T);
        hdt_error_hint(err, "shorten batch.seq_len or raise max_position_embeddings in '%s'",
                       job->model ? job->model : "config.json");
        return HDT_EINVAL;
    }
    /* One activation is one frame on the wire. */
    if (values * 4 > (double)(1u << 30)) {
        hdt_conf_error(doc, "batch.micro_batch", err, HDT_EINVAL,
                       "an activation of one micro-batch takes %.1f GiB, the limit is 1 GiB",
                       values * 4 / (double)(1u << 30));
        hdt_error_hint(err, "lower batch.micro_batch and raise batch.n_micro_batches");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

static enum hdt_status job_check_optimizer(const struct hdt_job *job,
                                           const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    const struct hdt_job_optimizer *o = &job->optimizer;

    if (o->warmup_steps > job->steps) {
        hdt_conf_error(doc, "optimizer.warmup_steps", err, HDT_EINVAL,
                       "warmup_steps %lld is more than steps %lld", (long long)o->warmup_steps,
                       (long long)job->steps);
        hdt_error_hint(err, "a tenth of the steps or less is usual");
        return HDT_EINVAL;
    }
    if (o->min_lr > o->lr) {
        return hdt_conf_error(doc, "optimizer.min_lr", err, HDT_EINVAL, "min_lr %g is above lr %g",
                              o->min_lr, o->lr);
    }
    return HDT_OK;
}

/* Between outer steps replicas differ: a checkpoint or an evaluation would be of one of them. */
static enum hdt_status job_check_outer_every(const struct hdt_job *job, const char *key,
                                             int64_t every, const struct hdt_conf_doc *doc,
                                             struct hdt_error *err)
{
    int64_t steps = job->outer.steps, below = every / steps * steps;

    if (every % steps == 0) {
        return HDT_OK;
    }
    hdt_conf_error(
        doc, key, err, HDT_EINVAL,
        "%s %lld is no multiple of outer.steps %lld: between outer steps replicas differ", key,
        (long long)every, (long long)steps);
    hdt_error_hint(err, "set %s: %lld", key, (long long)(below > 0 ? below : steps));
    return HDT_EINVAL;
}

static enum hdt_status job_check_outer(const struct hdt_job *job, const struct hdt_conf_doc *doc,
                                       struct hdt_error *err)
{
    if (job->outer.steps == 0) {
        return HDT_OK;
    }
    HDT_TRY(job_check_outer_every(job, "checkpoint.every", job->checkpoint.every, doc, err));
    return job_check_outer_every(job, "eval.every", job->eval.every, doc, err);
}

/* A cut that covers the model several times is of so many replicas. */
static enum hdt_status job_check_cut_replicas(const struct hdt_job *job,
                                              const struct hdt_model_config *model,
                                              const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    long long n = (long long)hdt_model_n_units(model), at = 0;

    for (size_t i = 0; i < job->plan.cut.n; i++) {
        at = (at == n ? 0 : at) + strtoll(strchr(job->plan.cut.items[i], '=') + 1, NULL, 10);
        if (at > n || (i + 1 == job->plan.cut.n && at != n)) {
            hdt_conf_error(doc, "plan.cut", err, HDT_EINVAL,
                           "with '%s' a replica has %lld units, the model %lld (embedding, %lld "
                           "blocks, head)",
                           job->plan.cut.items[i], at, n, (long long)model->L);
            hdt_error_hint(err, "write the stages of one replica after the other");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

static enum hdt_status job_check_parts(const struct hdt_job *job, size_t n_replicas,
                                       const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    const struct hdt_conf_strings *parts = &job->outer.parts;
    long long sum = 0;

    for (size_t i = 0; i < parts->n; i++) {
        char *end;
        long long part = strtoll(parts->items[i], &end, 10);

        if (*end != '\0' || part < 1 || part > 65536) {
            return hdt_conf_error(doc, "outer.parts", err, HDT_EINVAL,
                                  "'%s' is no count of micro-batches", parts->items[i]);
        }
        sum += part;
    }
    if (parts->n > 0 && (parts->n != n_replicas || sum != job->batch.n_micro_batches)) {
        hdt_conf_error(doc, "outer.parts", err, HDT_EINVAL,
                       "outer.parts has %zu parts with %lld micro-batches, plan.cut %zu replicas, "
                       "and a step %lld micro-batches",
                       parts->n, sum, n_replicas, (long long)job->batch.n_micro_batches);
        hdt_error_hint(err, "give each replica of plan.cut a part, together batch.n_micro_batches, "
                            "or leave outer.parts out");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

/* "SITE/WORKER=UNITS": the planner resolves the names, here only the form and the sum. */
static enum hdt_status job_check_cut(const struct hdt_job *job,
                                     const struct hdt_model_config *model,
                                     const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    long long sum = 0;

    for (size_t i = 0; i < job->plan.cut.n; i++) {
        const char *text = job->plan.cut.items[i];
        const char *slash = strchr(text, '/');
        const char *equals = slash ? strchr(slash, '=') : NULL;
        char *end = NULL;
        long long units = equals ? strtoll(equals + 1, &end, 10) : 0;

        if (!equals || slash == text || equals == slash + 1 || !end || *end != '\0' || units < 1 ||
            units > HDT_MODEL_MAX_L + 2) {
            hdt_conf_error(doc, "plan.cut", err, HDT_EINVAL,
                           "'%s' is not of the form SITE/WORKER=UNITS with at least one unit",
                           text);
            hdt_error_hint(err, "for example site-a/w0=4");
            return HDT_EINVAL;
        }
        sum += units;
    }
    if (job->outer.steps > 0 && sum > hdt_model_n_units(model)) {
        HDT_TRY(job_check_cut_replicas(job, model, doc, err));
        return job_check_parts(job, (size_t)(sum / hdt_model_n_units(model)), doc, err);
    }
    if (job->outer.steps > 0 && job->outer.parts.n > 0) {
        return job_check_parts(job, 0, doc, err);
    }
    if (job->plan.cut.n > 0 && sum != hdt_model_n_units(model)) {
        return hdt_conf_error(doc, "plan.cut", err, HDT_EINVAL,
                              "the cut has %lld units, the model %lld (embedding, %lld blocks, "
                              "head)",
                              sum, (long long)hdt_model_n_units(model), (long long)model->L);
    }
    return HDT_OK;
}

static enum hdt_status job_check_plan(const struct hdt_job *job,
                                      const struct hdt_model_config *model,
                                      const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    if (job->plan.max_stages > 0 && job->plan.max_stages < job->plan.min_stages) {
        return hdt_conf_error(doc, "plan.max_stages", err, HDT_EINVAL,
                              "max_stages %lld is below min_stages %lld",
                              (long long)job->plan.max_stages, (long long)job->plan.min_stages);
    }
    if (job->plan.min_stages > hdt_model_n_units(model)) {
        return hdt_conf_error(
            doc, "plan.min_stages", err, HDT_EINVAL,
            "min_stages %lld is more than the %lld units of the model (embedding, "
            "blocks, head)",
            (long long)job->plan.min_stages, (long long)hdt_model_n_units(model));
    }
    for (size_t i = 0; i < job->plan.sites.n; i++) {
        if (!hdt_name_is_valid(job->plan.sites.items[i])) {
            return hdt_conf_error(doc, "plan.sites", err, HDT_EINVAL, "'%s' is no name of a site",
                                  job->plan.sites.items[i]);
        }
    }
    if (job->recompute && hdt_schedule_is_split((enum hdt_schedule_kind)job->plan.schedule)) {
        hdt_conf_error(doc, "plan.schedule", err, HDT_EINVAL,
                       "schedule %s cannot be used with recompute: it keeps activations until the "
                       "weights' half of a backward, recompute keeps none",
                       hdt_schedule_names[job->plan.schedule]);
        hdt_error_hint(err, "set recompute: false, or plan.schedule: auto");
        return HDT_EINVAL;
    }
    return job_check_cut(job, model, doc, err);
}

enum hdt_status hdt_job_check_timeout(const struct hdt_job *job, int64_t knob_ms, const char *site,
                                      const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    const int64_t min_ms = hdt_deadlines_job_min_ms(knob_ms);

    if (job->progress_timeout == 0 || job->progress_timeout >= min_ms) {
        return HDT_OK;
    }
    hdt_conf_error(doc, "progress_timeout", err, HDT_EINVAL,
                   "progress_timeout %.3g s of the job is too short for site %s: with "
                   "progress_timeout %.3g s in its gateway.yaml a silent peer is dialled anew and "
                   "back within %.3g s",
                   (double)job->progress_timeout / 1e3, site, (double)knob_ms / 1e3,
                   (double)min_ms / 1e3);
    hdt_error_hint(err,
                   "set the job's to %.0f s or more, or to 0 (as the gateways); or lower the "
                   "gateways'",
                   ceil((double)min_ms / 1e3));
    return HDT_EINVAL;
}

int hdt_job_precision_of(const char *name)
{
    for (int i = 0; precision_names[i]; i++) {
        if (strcmp(precision_names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

const char *hdt_job_precision_name(int precision)
{
    return precision_names[precision];
}

/* Here, not when a worker makes its stage. */
static enum hdt_status job_check_precision(const struct hdt_job *job,
                                           const struct hdt_model_config *model,
                                           const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    struct hdt_error cause = {0};

    enum hdt_status status = HDT_OK;

    if (job->precision != HDT_JOB_FP32) {
        status = hdt_model_check_bf16(model, true, &cause);
    }
    if (status == HDT_OK && job->precision == HDT_JOB_FP8) {
        status = hdt_model_check_fp8(model, job->batch.micro_batch, job->batch.seq_len, &cause);
    }
    if (status != HDT_OK) {
        hdt_conf_error(doc, "precision", err, HDT_EINVAL, "%s", cause.msg);
        hdt_error_hint(err, "%s", cause.hint);
        return HDT_EINVAL;
    }
    return HDT_OK;
}

enum hdt_status hdt_job_check(const struct hdt_job *job, const struct hdt_model_config *model,
                              const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    HDT_TRY(job_check_name(job, doc, err));
    HDT_TRY(job_check_batch(job, model, doc, err));
    HDT_TRY(job_check_optimizer(job, doc, err));
    HDT_TRY(job_check_precision(job, model, doc, err));
    if (job->eval.every > 0 && (!job->data.valid || !job->data.valid[0])) {
        hdt_conf_error(doc, "eval.every", err, HDT_EINVAL,
                       "evaluation every %lld steps needs data.valid", (long long)job->eval.every);
        hdt_error_hint(err, "set data.valid or eval.every: 0");
        return HDT_EINVAL;
    }
    HDT_TRY(job_check_outer(job, doc, err));
    return job_check_plan(job, model, doc, err);
}

double hdt_job_lr(const struct hdt_job *job, int64_t step)
{
    const struct hdt_job_optimizer *o = &job->optimizer;
    int64_t n_decay = job->steps - o->warmup_steps;
    double progress;

    if (step < o->warmup_steps) {
        return o->lr * (double)(step + 1) / (double)o->warmup_steps;
    }
    /* The last step, steps - 1, ends on min_lr; after it the rate stays there. */
    progress = n_decay > 1 ? (double)(step - o->warmup_steps) / (double)(n_decay - 1) : 0.0;
    if (progress >= 1.0) {
        return o->min_lr;
    }
    return o->min_lr + 0.5 * (o->lr - o->min_lr) * (1.0 + cos(M_PI * progress));
}
