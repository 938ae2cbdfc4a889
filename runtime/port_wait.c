/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Waits that last: told to this site's gateway, which knows the flow and the link and tells the
 * coordinator. They are not reports: one that is lost is followed by the next, and none is kept
 * while the gateway is away.
 */
#include "runtime/port_impl.h"

#include "src/base/clock.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#define SAY_AFTER_US HDT_US_PER_S
#define RECORD_US    (100 * HDT_US_PER_MS)

void hdt_port_job_at(struct hdt_port_job *job, const struct hdt_port_at *at)
{
    pthread_mutex_lock(&job->port->lock);
    job->at = *at;
    job->at_thread = pthread_self();
    pthread_mutex_unlock(&job->port->lock);
}

void hdt_port_job_is_at(struct hdt_port_job *job, struct hdt_port_at *at)
{
    pthread_mutex_lock(&job->port->lock);
    *at = job->at;
    pthread_mutex_unlock(&job->port->lock);
}

/* The op of the waiting thread; what else waits writes or loads a checkpoint. */
static struct hdt_port_at waiting_at(const struct hdt_port_job *job)
{
    if (job->at.op && pthread_equal(job->at_thread, pthread_self())) {
        return job->at;
    }
    return (struct hdt_port_at){.op = "CHECKPOINT", .mb = -1};
}

/* since_s 0: it is over. */
static void waiting_say(struct hdt_port_job *job, const struct port_flow *flow,
                        const struct port_waiting *waiting, double since_s)
{
    const struct hdt_port_at at = waiting_at(job);
    struct hdt_buf bytes = {0};
    json_t *msg;

    if (!job->port->up) {
        return;
    }
    msg = hdt_msg_new("rank.state", NULL,
                      json_pack("{s:I,s:I,s:i,s:I,s:s,s:I,s:s,s:I,s:I,s:f}", "job",
                                (json_int_t)job->conf.job, "epoch", (json_int_t)job->conf.epoch,
                                "rank", job->conf.rank, "step", (json_int_t)at.step, "op", at.op,
                                "mb", (json_int_t)at.mb, "what", waiting->what, "flow",
                                (json_int_t)flow->idx, "seq", (json_int_t)waiting->seq, "since_s",
                                since_s));
    hdt_msg_encode(msg, &bytes);
    hdt_port_enqueue(job->port, bytes.data, bytes.len);
    hdt_buf_release(&bytes);
    json_decref(msg);
}

void hdt_port_waits(struct hdt_port_job *job, const struct port_flow *flow,
                    struct port_waiting *waiting)
{
    const int64_t now_us = hdt_clock_now_us();

    if (waiting->next_us == 0) {
        waiting->next_us = waiting->begin_us + SAY_AFTER_US;
    }
    if (now_us >= waiting->next_us) {
        waiting_say(job, flow, waiting, (double)(now_us - waiting->begin_us) / 1e6);
        waiting->said = true;
        waiting->next_us = now_us + SAY_AFTER_US;
    }
}

void hdt_port_waited(struct hdt_port_job *job, const struct port_flow *flow,
                     const struct port_waiting *waiting)
{
    const int64_t waited_us = hdt_clock_now_us() - waiting->begin_us;

    if (waited_us >= RECORD_US) {
        HDT_RECORD(HDT_REC_WAIT, .n = {job->conf.job, job->conf.rank, flow->idx, waited_us},
                   .text = {waiting->what, waiting_at(job).op});
    }
    if (waiting->said) {
        waiting_say(job, flow, waiting, 0);
    }
}
