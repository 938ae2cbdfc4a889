/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Which reports of a job's workers were taken. A worker numbers its reports 1, 2, ... in each epoch
 * and says them until they are acknowledged; here each is taken once and in order.
 *
 * After a restart the numbers come from two places: the job's record has those of reports that
 * changed it, and metrics.jsonl has, in each line, the number of the report that the line is of. A
 * line is written before its report is acknowledged, so that a report is either in the file or
 * still with its worker, at whatever instant this process was killed. Refused: a record written for
 * each step, which is an fsync for each step.
 */
#include "gateway/coordinator.h"
#include "gateway/journal.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* Numbers begin anew with each epoch, whose plan may have other ranks. */
static struct hdt_gwintake *intake_of(struct hdt_gwjob *job)
{
    struct hdt_gwintake *intake = &job->intake;

    if (!intake->taken || intake->epoch != job->epoch) {
        free(intake->taken);
        intake->n_ranks = job->plan.n_ranks;
        intake->taken = hdt_calloc(intake->n_ranks, sizeof(*intake->taken));
        intake->epoch = job->epoch;
    }
    return intake;
}

int64_t hdt_gwjob_taken(struct hdt_gwjob *job, size_t rank)
{
    struct hdt_gwintake *intake = intake_of(job);

    return rank < intake->n_ranks ? intake->taken[rank] : 0;
}

void hdt_gwjob_set_taken(struct hdt_gwjob *job, size_t rank, int64_t n)
{
    struct hdt_gwintake *intake = intake_of(job);

    if (rank < intake->n_ranks) {
        intake->taken[rank] = n;
    }
}

enum hdt_gwintake_verdict hdt_gwjob_judge(struct hdt_gwjob *job, size_t rank, int64_t n,
                                          int64_t first)
{
    const int64_t taken = hdt_gwjob_taken(job, rank);

    if (n <= taken) {
        return HDT_GWINTAKE_TAKEN;
    }
    if (n == taken + 1) {
        return HDT_GWINTAKE_NEXT;
    }
    if (first < n) {
        return HDT_GWINTAKE_EARLY;
    }
    /* Its worker has none before this one: they were acknowledged by a gateway that then lost what
     * it had written (a power cut, an older state_dir), or could not be kept. */
    hdt_log_warn("job %ld: reports %lld to %lld of rank %zu are missing here, and it has them no "
                 "more: lines of metrics.jsonl may be missing",
                 (long)job->number, (long long)taken + 1, (long long)n - 1, rank);
    return HDT_GWINTAKE_NEXT;
}

/* ---- acknowledgements ---- */

void hdt_gwjob_acknowledge(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank, bool again)
{
    char address[HDT_ADDRESS_CAP];
    json_t *body = json_pack("{s:I, s:I, s:I}", "job", (json_int_t)job->job, "epoch",
                             (json_int_t)job->epoch, "n", (json_int_t)hdt_gwjob_taken(job, rank));

    if (again) {
        json_object_set_new(body, "again", json_true());
    }
    snprintf(address, sizeof(address), "%s/%s", job->plan.ranks[rank].site,
             job->plan.ranks[rank].worker);
    hdt_route_post(gw, address, "report.ack", body);
}

/* Reports were on their way when the session broke: those that did not come are asked for at once,
 * and the worker need not find out by waiting. */
void hdt_coordinator_reports_again(struct hdt_gateway *gw, const char *site)
{
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        for (size_t rank = 0; rank < job->plan.n_ranks && !hdt_gwjob_is_over(job); rank++) {
            if (strcmp(job->plan.ranks[rank].site, site) == 0) {
                hdt_gwjob_acknowledge(gw, job, rank, true);
            }
        }
    }
}

/* ---- over a restart of this gateway ---- */

json_t *hdt_gwjob_intake_json(struct hdt_gwjob *job)
{
    struct hdt_gwintake *intake = intake_of(job);
    json_t *taken = json_array();

    for (size_t rank = 0; rank < intake->n_ranks; rank++) {
        json_array_append_new(taken, json_integer(intake->taken[rank]));
    }
    return json_pack("{s:I, s:o}", "epoch", (json_int_t)intake->epoch, "taken", taken);
}

static double real_of(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key)); /* null: it was no number */
}

/* What a line says of the job as it stands now, in the order in which it was said. */
static void line_take(void *user, const json_t *line)
{
    json_int_t rank = json_integer_value(json_object_get(line, "rank"));
    json_int_t n = json_integer_value(json_object_get(line, "n"));
    json_t *ranks = json_object_get(line, "ranks");
    struct hdt_gwjob *job = user;

    if (json_integer_value(json_object_get(line, "epoch")) != (json_int_t)job->epoch) {
        return;
    }
    if (n > 0 && rank >= 0 && (uint64_t)rank < job->plan.n_ranks &&
        n > hdt_gwjob_taken(job, (size_t)rank)) {
        hdt_gwjob_set_taken(job, (size_t)rank, n);
    }
    if (json_object_get(line, "val_loss")) {
        job->val_loss = real_of(line, "val_loss");
        job->has_val_loss = true;
    }
    if (!json_object_get(line, "loss")) {
        return;
    }
    job->step = json_integer_value(json_object_get(line, "step"));
    job->tokens_step = job->step;
    job->tokens = json_integer_value(json_object_get(line, "tokens"));
    job->loss = real_of(line, "loss");
    job->lr = real_of(line, "lr");
    job->grad_norm = real_of(line, "grad_norm");
    job->step_s = real_of(line, "step_s");
    job->tokens_per_s = real_of(line, "tokens_per_s");
    if (json_is_array(ranks)) {
        json_decref(job->ranks);
        job->ranks = json_incref(ranks);
    }
}

void hdt_gwjob_intake_load(struct hdt_gwjob *job, const json_t *record)
{
    const json_t *reports = json_object_get(record, "reports");
    const json_t *item;
    size_t rank;

    if (json_integer_value(json_object_get(reports, "epoch")) == (json_int_t)job->epoch) {
        json_array_foreach(json_object_get(reports, "taken"), rank, item)
        {
            hdt_gwjob_set_taken(job, rank, json_integer_value(item));
        }
    }
    if (job->metrics) {
        hdt_journal_recent(job->metrics, line_take, job);
    }
}
