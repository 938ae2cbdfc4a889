/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of the jobs that are coordinated here. Those that are over stay until they are forgotten,
 * so that a job which failed at night is still seen in the morning. */
#include "config.h"

#include "gateway/metrics.h"
#include "gateway/coordinator.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

/* A value and whether there is one. */
struct job_value {
    bool is_known;
    double value;
};

struct job_metric {
    const char *name, *type, *help;
    struct job_value (*value)(const struct hdt_gwjob *job);
};

#define JOB_VALUE(fn, known, expr)                                                                 \
 static struct job_value fn(const struct hdt_gwjob *job)                                           \
 {                                                                                                 \
  return (struct job_value){(known), (double)(expr)};                                              \
 }

/* Since this gateway knows the job. */
static bool has_step(const struct hdt_gwjob *job)
{
    return job->step > job->start_step && job->step_s > 0;
}

static double wan_bytes(const struct hdt_gwjob *job, bool is_raw)
{
    int64_t raw, sent;

    hdt_gwjob_wan_totals(job, &raw, &sent);
    return (double)(is_raw ? raw : sent);
}

static double silent_s(const struct hdt_gwjob *job)
{
    return (double)(hdt_clock_now_us() - job->last_report_us) / 1e6;
}

JOB_VALUE(value_step, true, job->step)
JOB_VALUE(value_steps, true, job->conf.steps)
JOB_VALUE(value_restarts, true, job->epoch > 1 ? job->epoch - 1 : 0)
JOB_VALUE(value_loss, has_step(job), job->loss)
JOB_VALUE(value_val_loss, job->has_val_loss, job->val_loss)
JOB_VALUE(value_grad_norm, has_step(job), job->grad_norm)
JOB_VALUE(value_lr, has_step(job), job->lr)
JOB_VALUE(value_tokens, true, job->tokens)
JOB_VALUE(value_tokens_rate, has_step(job), job->tokens_per_s)
JOB_VALUE(value_step_s, has_step(job), job->step_s)
JOB_VALUE(value_predicted, job->plan.step_s > 0, job->plan.step_s)
JOB_VALUE(value_raw, true, wan_bytes(job, true))
JOB_VALUE(value_sent, true, wan_bytes(job, false))
JOB_VALUE(value_wan_rate, true, job->wan_bits_per_s / 8)
JOB_VALUE(value_checkpoint, job->checkpoint_step > 0, job->checkpoint_step)
JOB_VALUE(value_silent, !hdt_gwjob_is_over(job) && job->last_report_us > 0, silent_s(job))

static const struct job_metric job_metrics[] = {
    {"hdt_job_step", "gauge", "Last step that was reported.", value_step},
    {"hdt_job_steps", "gauge", "Steps that the job is to do.", value_steps},
    {"hdt_job_restarts_total", "counter", "Times that it went on in a new epoch.", value_restarts},
    {"hdt_job_loss", "gauge", "Training loss of the last step, nats a token.", value_loss},
    {"hdt_job_validation_loss", "gauge", "Loss on held-out data when last measured, nats a token.",
     value_val_loss},
    {"hdt_job_gradient_norm", "gauge", "Norm of the gradients of the last step, before clipping.",
     value_grad_norm},
    {"hdt_job_learning_rate", "gauge", "Learning rate of the last step.", value_lr},
    {"hdt_job_tokens", "gauge", "Tokens trained up to the last step.", value_tokens},
    {"hdt_job_tokens_per_second", "gauge", "Tokens trained a second, last step.",
     value_tokens_rate},
    {"hdt_job_step_seconds", "gauge", "Time that the last step took.", value_step_s},
    {"hdt_job_predicted_step_seconds", "gauge", "Time of a step, as planned.", value_predicted},
    {"hdt_job_wan_raw_bytes_total", "counter",
     "Tensor bytes that all sites sent each other for it, before codecs.", value_raw},
    {"hdt_job_wan_sent_bytes_total", "counter",
     "Bytes that all sites sent each other for it, after codecs.", value_sent},
    {"hdt_job_wan_bytes_per_second", "gauge", "What all sites send each other for it now.",
     value_wan_rate},
    {"hdt_job_checkpoint_step", "gauge", "Step of the last whole checkpoint.", value_checkpoint},
    {"hdt_job_silent_seconds", "gauge", "Since a worker last reported of it.", value_silent},
};

static void job_sample(struct hdt_gateway *gw, struct hdt_buf *out, const char *name,
                       const struct hdt_gwjob *job)
{
    char number[24];

    snprintf(number, sizeof(number), "%lld", (long long)job->number);
    hdt_metrics_begin(out, gw, name);
    hdt_metrics_label(out, "number", number);
    hdt_metrics_label(out, "name", job->name);
}

static void metrics_state(struct hdt_gateway *gw, struct hdt_buf *out)
{
    const struct hdt_gwjob *job;

    hdt_metrics_head(out, "hdt_job_state", "gauge", "1, with the state that the job is in.");
    LL_FOREACH(gw->jobs, job)
    {
        job_sample(gw, out, "hdt_job_state", job);
        hdt_metrics_label(out, "state", hdt_gwjob_state_name(job->state));
        hdt_metrics_end(out, 1);
    }
}

/* ---- ranks, from the root's last report ---- */

/* Which of the plan's ranks an item speaks of; n_ranks: none. */
static size_t rank_of(const struct hdt_gwjob *job, const json_t *item)
{
    const json_t *rank = json_object_get(item, "rank");
    json_int_t number = json_integer_value(rank);

    return json_is_integer(rank) && number >= 0 && (size_t)number < job->plan.n_ranks
               ? (size_t)number
               : job->plan.n_ranks;
}

static void rank_samples(struct hdt_gateway *gw, struct hdt_buf *out, const char *name,
                         const struct hdt_gwjob *job, const char *key)
{
    bool *is_said = hdt_calloc(job->plan.n_ranks + 1, sizeof(*is_said));
    const json_t *item;
    size_t i;

    json_array_foreach(job->ranks, i, item)
    {
        const json_t *value = json_object_get(item, key);
        size_t rank = rank_of(job, item);
        char text[192];

        if (rank == job->plan.n_ranks || is_said[rank] || !json_is_number(value)) {
            continue; /* a series that comes twice would spoil the whole page */
        }
        is_said[rank] = true;
        job_sample(gw, out, name, job);
        snprintf(text, sizeof(text), "%zu", rank);
        hdt_metrics_label(out, "rank", text);
        snprintf(text, sizeof(text), "%s/%s", job->plan.ranks[rank].site,
                 job->plan.ranks[rank].worker);
        hdt_metrics_label(out, "worker", text);
        hdt_metrics_end(out, json_number_value(value));
    }
    free(is_said);
}

static void metrics_ranks(struct hdt_gateway *gw, struct hdt_buf *out)
{
    static const struct {
        const char *name, *key, *help;
    } families[] = {
        {"hdt_job_rank_busy_seconds", "busy_s", "Time that the rank computed in the last step."},
        {"hdt_job_rank_wait_seconds", "wait_s", "Time that the rank waited in the last step."},
    };

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const struct hdt_gwjob *job;

        hdt_metrics_head(out, families[i].name, "gauge", families[i].help);
        LL_FOREACH(gw->jobs, job)
        {
            rank_samples(gw, out, families[i].name, job, families[i].key);
        }
    }
}

void hdt_metrics_jobs(struct hdt_gateway *gw, struct hdt_buf *out)
{
    metrics_state(gw, out);
    for (size_t m = 0; m < sizeof(job_metrics) / sizeof(job_metrics[0]); m++) {
        const struct job_metric *metric = &job_metrics[m];
        const struct hdt_gwjob *job;

        hdt_metrics_head(out, metric->name, metric->type, metric->help);
        LL_FOREACH(gw->jobs, job)
        {
            const struct job_value value = metric->value(job);

            if (value.is_known) {
                job_sample(gw, out, metric->name, job);
                hdt_metrics_end(out, value.value);
            }
        }
    }
    metrics_ranks(gw, out);
}
