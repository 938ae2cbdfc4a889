/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Shares of one knob. Fixed numbers are refused, with two kinds of exceptions, which are clamps: a
 * long knob does not make a person or a redial wait for minutes, and a short one does not ask more
 * of a link with 300 ms of latency than it can do.
 */
#include "src/core/deadlines.h"
#include "src/base/clock.h"

#include <stddef.h>

#define MS HDT_US_PER_MS
#define S  HDT_US_PER_S

static int64_t share(int64_t us, int64_t parts, int64_t min_us, int64_t max_us)
{
    const int64_t part_us = us / parts;

    return part_us < min_us ? min_us : part_us > max_us ? max_us : part_us;
}

/* The longest way from a peer that fell silent to a session that carries. */
static int64_t silent_us(const struct hdt_deadlines *d)
{
    return d->session_dead_us + d->reopen_us;
}

void hdt_deadlines_derive(struct hdt_deadlines *d, int64_t knob_ms, int64_t job_timeout_ms)
{
    const int64_t knob_us = knob_ms * MS;

    d->progress_us = knob_us;
    d->heartbeat_us = share(knob_us, 40, 100 * MS, 500 * MS);
    d->suspect_us = 4 * d->heartbeat_us;
    d->stall_us = 6 * d->heartbeat_us;
    d->connect_us = share(knob_us, 20, S, 10 * S);
    d->handshake_us = 2 * d->connect_us;
    d->backoff_us = share(knob_us, 20, 100 * MS, 5 * S);
    d->reopen_us = d->backoff_us + d->connect_us + d->handshake_us;
    d->session_dead_us = knob_us * 3 / 5;
    d->gone_us = share(knob_us, 20, S, 3 * S);
    d->missing_us = share(knob_us, 4, S, 60 * S);
    d->alive_us = share(knob_us, 20, 100 * MS, S);
    d->rank_us = job_timeout_ms > 0 ? job_timeout_ms * MS : knob_us;
    d->back_stop_us = d->rank_us + knob_us;
    d->start_us = d->back_stop_us;
    d->answer_us = share(knob_us, 4, 5 * S, 60 * S);
    d->relay_us = 2 * d->answer_us;
    d->probe_us = d->answer_us / 2;
    d->links_us = 8 * d->answer_us;
    d->profile_us = 10 * d->answer_us;
    d->survey_us = 32 * d->answer_us;
    d->follow_us = d->back_stop_us + 2 * d->answer_us;
    d->stop_us = 2 * S;
    d->end_us = 10 * S;
}

/* ---- order ---- */

struct order {
    const char *name;
    int64_t us;
    const char *after_name;
    int64_t after_us;
};

static enum hdt_status order_check(const struct order *o, struct hdt_error *err)
{
    if (o->us < o->after_us) {
        return HDT_OK;
    }
    return hdt_error_set(err, HDT_EINVAL,
                         "deadlines are out of order: %s, %.3g s, is not before %s, %.3g s",
                         o->name, (double)o->us / S, o->after_name, (double)o->after_us / S);
}

/* Who waits, what for; where the sum of retries counts, it stands here. */
static enum hdt_status order_check_all(const struct order *o, size_t n, struct hdt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        HDT_TRY(order_check(&o[i], err));
    }
    return HDT_OK;
}

enum hdt_status hdt_deadlines_check(const struct hdt_deadlines *d, struct hdt_error *err)
{
    const struct order orders[] = {
        {"no time", 0, "the heartbeat", d->heartbeat_us},
        {"the heartbeat", d->heartbeat_us, "suspicion of a peer", d->suspect_us},
        {"suspicion of a peer", d->suspect_us, "the end of a stalled stream", d->stall_us},
        {"the end of a stalled stream", d->stall_us, "the end of a session", d->session_dead_us},
        {"connecting", d->connect_us, "the handshake", d->handshake_us},
        {"the handshake", d->handshake_us, "the end of a session", d->session_dead_us},
        {"a worker's time to come back", d->gone_us, "that of one whose gateway was restarted",
         d->missing_us},
        {"the time of a worker whose gateway was restarted", d->missing_us, "the end of a session",
         d->session_dead_us},
        {"the way back to a peer that is there", d->reopen_us, "the answer of a gateway",
         d->answer_us},
        {"a sign of life of a rank", d->alive_us, "the end of a rank that waits", d->rank_us},
        {"a session closed and opened anew", silent_us(d), "the end of a rank that waits",
         d->rank_us},
        {"the words of a rank that gave up", d->rank_us + silent_us(d),
         "the coordinator's back stop", d->back_stop_us},
        {"the wait for the start", d->rank_us, "the end of a rank that was never started",
         d->start_us},
        {"the answer of a gateway", d->answer_us, "one that it has to fetch", d->relay_us},
        {"filler of a measurement", d->probe_us, "the answer of a gateway", d->answer_us},
        {"the measurement of a link", 2 * d->probe_us, "that of all links of a site", d->links_us},
        {"an answer that is fetched", d->relay_us, "a site's measurement of its links",
         d->links_us},
        {"a site's measurement of its links", d->links_us, "a worker's of its device",
         d->profile_us},
        {"a worker's measurement of its device", d->profile_us, "a survey", d->survey_us},
        {"last words", d->stop_us, "the end of a daemon", d->end_us},
        {"the coordinator's back stop", d->back_stop_us + d->answer_us,
         "the patience of who follows a job", d->follow_us},
    };

    return order_check_all(orders, sizeof(orders) / sizeof(orders[0]), err);
}

int64_t hdt_deadlines_job_min_ms(int64_t knob_ms)
{
    struct hdt_deadlines d;

    hdt_deadlines_derive(&d, knob_ms, 0);
    return silent_us(&d) / MS + 1000;
}
