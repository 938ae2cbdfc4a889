/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What somebody missed who follows a job: its gateway was away for a while, the job was not; or it
 * was slow to read. metrics.jsonl has every step, survives the gateway and is read back here, so
 * that events need not be kept in memory for followers that may never come. A long file is sent in
 * pieces, one a tick, so that nobody else waits for it; where it is to begin is found by halving,
 * or one who has nearly all of it would wait as long as one who has nothing.
 */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/journal.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)512 << 10)

static enum hdt_status replay_event(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                    const char *to, const char *event, json_t *body)
{
    struct hdt_error err = {0};

    json_object_set_new(body, "job", json_integer(job->job));
    json_object_set_new(body, "event", json_string(event));
    return hdt_route_send(gw, hdt_msg_new("job.event", to, body), &err);
}

/* Has the follower what happened after this step of this epoch? */
static bool line_is_known(const struct hdt_gwfollower *follower, const json_t *line)
{
    json_int_t epoch = json_integer_value(json_object_get(line, "epoch"));

    return epoch < follower->since_epoch ||
           (epoch == follower->since_epoch &&
            json_integer_value(json_object_get(line, "step")) <= follower->since_step);
}

/* Steps and evaluations are in order; what is said of a checkpoint has its step, and comes when it
 * was known. */
static enum hdt_journal_place line_place(const void *follower, const json_t *line)
{
    if (json_object_get(line, "event") || !json_is_integer(json_object_get(line, "epoch")) ||
        !json_is_integer(json_object_get(line, "step"))) {
        return HDT_JOURNAL_NO_PLACE;
    }
    return line_is_known(follower, line) ? HDT_JOURNAL_BEFORE : HDT_JOURNAL_AFTER;
}

/* Lines are events: of the kind they say, else steps and evaluations. What is no line of ours (the
 * file is open to all) is left out. */
static enum hdt_status replay_line(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                   const struct hdt_gwfollower *follower, const char *text,
                                   size_t len)
{
    json_t *line = json_loadb(text, len, 0, NULL);
    const char *event = json_string_value(json_object_get(line, "event"));
    char name[32];

    if (!json_is_object(line) || line_is_known(follower, line)) {
        json_decref(line);
        return HDT_OK;
    }
    snprintf(name, sizeof(name), "%s",
             event                               ? event
             : json_object_get(line, "val_loss") ? "eval"
                                                 : "step");
    return replay_event(gw, job, follower->address, name, line);
}

/* How the job stands, at the end of what it did. */
static enum hdt_status replay_state(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *to)
{
    char from[HDT_ADDRESS_CAP];

    if (job->checkpoint && job->checkpoint[0]) {
        hdt_gwjob_rank_address(job, (size_t)job->plan.checkpoint_rank, from);
        HDT_TRY(replay_event(gw, job, to, "checkpoint",
                             json_pack("{s:I, s:I, s:s, s:s, s:f}", "epoch", (json_int_t)job->epoch,
                                       "step", (json_int_t)job->checkpoint_step, "path",
                                       job->checkpoint, "from", from, "seconds", 0.0)));
    }
    if (job->state == HDT_GWJOB_DONE || job->state == HDT_GWJOB_STOPPED) {
        HDT_TRY(replay_event(gw, job, to, "done", hdt_gwjob_done_body(gw, job)));
    }
    return replay_event(gw, job, to, "state", hdt_gwjob_state_body(gw, job));
}

/* The next lines; *end: there are no more. */
static enum hdt_status replay_piece(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                    struct hdt_gwfollower *follower, bool *end)
{
    char *path = hdt_asprintf("%s/metrics.jsonl", job->run_dir);
    struct hdt_buf text = {0};
    struct hdt_error err = {0};
    enum hdt_status status = HDT_OK;
    const char *at, *eol, *stop;

    if (hdt_journal_read(path, follower->off, PIECE_BYTES, &text, &err) != HDT_OK) {
        hdt_log_warn_limited(60, "job %ld: what was missed is not told: %s", (long)job->number,
                             err.msg);
    }
    *end = text.len == 0;
    at = text.data;
    stop = at + text.len;
    while (status == HDT_OK && at < stop) {
        eol = memchr(at, '\n', (size_t)(stop - at));
        status = replay_line(gw, job, follower, at, (size_t)(eol - at));
        if (status == HDT_OK) {
            follower->off += (uint64_t)(eol + 1 - at);
            at = eol + 1;
        }
    }
    hdt_buf_release(&text);
    free(path);
    return status;
}

enum hdt_status hdt_gwjob_catch_up(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                   struct hdt_gwfollower *follower)
{
    enum hdt_status status;
    bool end;

    const uint64_t until = follower->off + PIECE_BYTES;

    follower->behind = true;
    do {
        HDT_TRY(replay_piece(gw, job, follower, &end));
    } while (!end && follower->off < until);
    if (!end) {
        return HDT_AGAIN;
    }
    status = replay_state(gw, job, follower->address);
    follower->behind = status != HDT_OK;
    return status;
}

enum hdt_status hdt_gwjob_catch_up_since(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                         struct hdt_gwfollower *follower, json_int_t epoch,
                                         json_int_t step)
{
    char *path = hdt_asprintf("%s/metrics.jsonl", job->run_dir);
    struct hdt_error err = {0};

    follower->since_epoch = epoch;
    follower->since_step = step;
    if (hdt_journal_seek(path, line_place, follower, &follower->off, &err) != HDT_OK) {
        follower->off = 0; /* what cannot be read is said where it is sent */
    }
    free(path);
    return hdt_gwjob_catch_up(gw, job, follower);
}
