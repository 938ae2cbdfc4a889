/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a job is waited for, and on what progress.
 *
 * Building stages, reading a checkpoint, saving one or a slow step may take seconds or an hour; a
 * duration would be wrong for either. So whoever works says so, once a second ("task.alive"), and
 * what counts is the time since anybody of the job said it. The coordinator passes it on to the
 * other ranks, who wait for frames meanwhile: what moves at one rank is progress of the job.
 */
#include "config.h"

#include "gateway/coordinator.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX 3 /* ranks in a message */

/* ---- settling ---- */

/* The largest knob of the job's sites: a session between them has the deadlines of the larger. */
static int64_t knob_of_sites(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                             const char **whose)
{
    int64_t knob_ms = gw->conf.progress_timeout;

    *whose = gw->conf.site;
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        const struct hdt_gwsite *site = hdt_federation_site(gw, job->plan.ranks[rank].site);

        if (site && site->progress_timeout_ms > knob_ms) {
            knob_ms = site->progress_timeout_ms;
            *whose = site->name;
        }
    }
    return knob_ms;
}

enum hdt_status hdt_gwjob_settle_deadlines(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                           struct hdt_error *err)
{
    const char *whose;
    const int64_t knob_ms = knob_of_sites(gw, job, &whose);
    struct hdt_deadlines settled;

    hdt_deadlines_derive(&settled, knob_ms, job->conf.progress_timeout);
    if (!job->alive) {
        job->alive = hdt_calloc(job->plan.n_ranks, sizeof(*job->alive));
    }
    HDT_TRY(hdt_job_check_timeout(&job->conf, knob_ms, whose, NULL, err));
    HDT_TRY(hdt_deadlines_check(&settled, err));
    job->deadlines = settled;
    return HDT_OK;
}

/* ---- signs of life ---- */

static bool phase_is_valid(const char *phase)
{
    const size_t len = phase ? strlen(phase) : 0;

    for (size_t i = 0; i < len; i++) {
        if (!islower((unsigned char)phase[i]) && phase[i] != ' ') {
            return false;
        }
    }
    return len > 0 && len < sizeof(((struct hdt_gwjob_alive *)0)->phase);
}

/* To those who follow it, and to the ranks, whose waits begin anew. Many ranks may speak in one
 * second; one of them is enough. */
static void alive_pass_on(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank)
{
    const struct hdt_gwjob_alive *alive = &job->alive[rank];
    const struct hdt_plan_rank *r = &job->plan.ranks[rank];

    if (alive->at_us - job->alive_passed_us < job->deadlines.alive_us / 2) {
        return;
    }
    job->alive_passed_us = alive->at_us;
    hdt_gwjob_event(gw, job, "alive",
                    json_pack("{s:I, s:s, s:s, s:s, s:I, s:I}", "rank", (json_int_t)rank, "site",
                              r->site, "worker", r->worker, "phase", alive->phase, "done",
                              (json_int_t)alive->done, "total", (json_int_t)alive->total));
    hdt_gwjob_tell_ranks(gw, job, "task.alive", NULL);
}

void hdt_gwjob_take_alive(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *msg)
{
    const char *phase = NULL;
    json_int_t rank = -1, done = 0, total = 0;
    struct hdt_gwjob_alive *alive;

    if (json_unpack((json_t *)hdt_msg_body(msg), "{s:I, s:s, s?:I, s?:I}", "rank", &rank, "phase",
                    &phase, "done", &done, "total", &total) != 0 ||
        !phase_is_valid(phase) || !hdt_gwjob_rank_is_of(job, rank, hdt_msg_from(msg))) {
        gw->n_refused_messages++;
        return;
    }
    alive = &job->alive[rank];
    snprintf(alive->phase, sizeof(alive->phase), "%s", phase);
    alive->total = total > 0 ? total : 0;
    alive->done = done < 0 ? 0 : done > alive->total ? alive->total : done;
    alive->at_us = hdt_clock_now_us();
    hdt_route_alive(gw, hdt_msg_from(msg));
    alive_pass_on(gw, job, (size_t)rank);
}

void hdt_gwjob_append_waiting(const struct hdt_gwjob *job, struct hdt_buf *text)
{
    const int64_t now_us = hdt_clock_now_us();
    size_t n = 0;

    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        const struct hdt_gwjob_alive *alive = &job->alive[rank];
        const struct hdt_plan_rank *r = &job->plan.ranks[rank];

        if (job->rank_is_done[rank] || n++ >= NAMED_MAX) {
            continue;
        }
        hdt_buf_appendf(text, "%srank %zu (%s/%s", n > 1 ? ", " : "", rank, r->site, r->worker);
        if (alive->at_us) {
            hdt_buf_appendf(text, ", %s", alive->phase);
            if (alive->total > 0) {
                hdt_buf_appendf(text, " %lld of %lld", (long long)alive->done,
                                (long long)alive->total);
            }
            hdt_buf_appendf(text, " %.0f s ago", (double)(now_us - alive->at_us) / 1e6);
        }
        hdt_buf_append_str(text, ")");
    }
    if (n > NAMED_MAX) {
        hdt_buf_appendf(text, " and %zu more", n - NAMED_MAX);
    }
}
