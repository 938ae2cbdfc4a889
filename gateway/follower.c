/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Who follows a job. Each is sent the job's events as they come. One that cannot take them (its
 * terminal stands still, its site is away) is behind from then on, and catches up from
 * metrics.jsonl (catchup.c) at its own pace: no event is kept for it, and what it is sent is in
 * order.
 *
 * Our own clients leave with their connection. Of those of another site its gateway says that they
 * have left ("unfollow"), when an event comes for them.
 */
#include "gateway/coordinator.h"
#include "gateway/journal.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <string.h>
#include <utlist.h>

#define MAX_FOLLOWERS 64

static void follower_remove(struct hdt_gwjob *job, size_t i)
{
    hdt_log_debug("job %ld: follower %s left", (long)job->number, job->followers[i].address);
    memmove(&job->followers[i], &job->followers[i + 1],
            (job->n_followers - i - 1) * sizeof(job->followers[0]));
    job->n_followers--;
}

static struct hdt_gwfollower *follower_find(struct hdt_gwjob *job, const char *address)
{
    for (size_t i = 0; i < job->n_followers; i++) {
        if (strcmp(job->followers[i].address, address) == 0) {
            return &job->followers[i];
        }
    }
    return NULL;
}

static bool follower_is_of(const struct hdt_gwfollower *follower, const char *site)
{
    const size_t len = strlen(site);

    return strncmp(follower->address, site, len) == 0 && follower->address[len] == '/';
}

/* A place for a new one: those who cannot be reached make room. */
static bool followers_make_room(struct hdt_gwjob *job)
{
    for (size_t i = 0; i < job->n_followers && job->n_followers >= MAX_FOLLOWERS; i++) {
        if (job->followers[i].behind) {
            follower_remove(job, i--);
        }
    }
    return job->n_followers < MAX_FOLLOWERS;
}

enum hdt_status hdt_gwjob_follow(struct hdt_gwjob *job, const char *address,
                                 struct hdt_gwfollower **out, struct hdt_error *err)
{
    struct hdt_gwfollower *follower = follower_find(job, address);

    if (!follower) {
        if (!followers_make_room(job)) {
            hdt_error_set(err, HDT_ENOMEM, "job %ld has %d followers already", (long)job->number,
                          MAX_FOLLOWERS);
            hdt_error_hint(err, "'hdt status --watch' shows it, too");
            return HDT_ENOMEM;
        }
        job->followers =
            hdt_realloc(job->followers, (job->n_followers + 1) * sizeof(job->followers[0]));
        follower = &job->followers[job->n_followers++];
        memset(follower, 0, sizeof(*follower));
        snprintf(follower->address, sizeof(follower->address), "%s", address);
        follower->off = job->metrics ? hdt_journal_size(job->metrics) : 0;
    }
    if (out) {
        *out = follower;
    }
    return HDT_OK;
}

/* "unfollow" of another site's gateway: no client has that address there. */
void hdt_coordinator_unfollow(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    struct hdt_gwjob *job = hdt_gwjob_find(gw, json_integer_value(json_object_get(body, "job")));
    const char *who = json_string_value(json_object_get(body, "follower"));
    struct hdt_gwfollower *follower = job && who ? follower_find(job, who) : NULL;

    if (follower && follower_is_of(follower, hdt_msg_from(msg))) {
        follower_remove(job, (size_t)(follower - job->followers));
    }
}

/* ---- events ---- */

void hdt_gwjob_event(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *event, json_t *body)
{
    json_object_set_new(body, "job", json_integer(job->job));
    json_object_set_new(body, "event", json_string(event));
    for (size_t i = 0; i < job->n_followers; i++) {
        struct hdt_gwfollower *follower = &job->followers[i];
        struct hdt_error err = {0};
        enum hdt_status status;

        if (follower->behind) {
            continue; /* it reads of this in its turn */
        }
        status = hdt_route_send(gw, hdt_msg_new("job.event", follower->address, json_incref(body)),
                                &err);
        if (status == HDT_ENOENT) {
            follower_remove(job, i--);
        } else if (status != HDT_OK) {
            follower->behind = true;
        } else if (job->metrics) {
            follower->off = hdt_journal_size(job->metrics);
        }
    }
    json_decref(body);
}

void hdt_gwjob_followers_tick(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    for (size_t i = 0; i < job->n_followers; i++) {
        if (job->followers[i].behind &&
            hdt_gwjob_catch_up(gw, job, &job->followers[i]) == HDT_ENOENT) {
            follower_remove(job, i--);
        }
    }
}

/* Events of the last moments may have been lost with the session: they are said again. */
#define SAID_AGAIN_BYTES 65536

void hdt_coordinator_followers_again(struct hdt_gateway *gw, const char *site)
{
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        for (size_t i = 0; i < job->n_followers; i++) {
            struct hdt_gwfollower *follower = &job->followers[i];

            if (follower_is_of(follower, site)) {
                follower->off -=
                    follower->off < SAID_AGAIN_BYTES ? follower->off : SAID_AGAIN_BYTES;
                follower->behind = true;
            }
        }
    }
}
