/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/rank_state.h"
#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_PEERS     256
#define STALE_US      (60 * HDT_US_PER_S) /* not said again for so long: nobody knows any more */
#define QUIET_US      (5 * HDT_US_PER_S) /* followers hear of waits when no step came for so long */
#define TELL_APART_US (2 * HDT_US_PER_S)

/* As said, and when. */
struct hdt_rank_wait {
    uint32_t epoch; /* of another plan, it means nothing */
    int rank;
    uint32_t flow;
    int64_t step, mb, seq, at_us;
    double since_s;
    char op[24], what[24];
    char link[12]; /* "local", "up", "suspect", "down" */
    double link_s; /* so for this long */
    char why[160];
    int64_t have_bytes, frame_bytes; /* of the frame waited for; 0: nothing has come */
    struct hdt_rank_wait *next;
};

/* ---- at the worker's gateway ---- */

static void link_add(struct hdt_gateway *gw, json_t *body, const char *site)
{
    const struct hdt_gwsite *peer = hdt_federation_site(gw, site);
    struct hdt_peer_stats *peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
    size_t n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS);
    const char *state = "down", *why = peer ? peer->why_down : "unknown site";
    double since_s = peer ? (double)(hdt_clock_now_us() - peer->since_us) / 1e6 : 0;

    if (strcmp(site, gw->conf.site) == 0) {
        state = "local";
    } else if (peer && peer->up) {
        state = "up";
        why = "";
        for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
            if (strcmp(peers[i].site, site) == 0 && peers[i].suspect) {
                state = "suspect";
                since_s = (double)peers[i].silent_us / 1e6;
            }
        }
    }
    free(peers);
    json_object_update_new(
        body, json_pack("{s:s, s:f, s:s}", "link", state, "link_s", since_s, "why", why));
}

/* How much of the frame is there. */
static void flow_add(struct hdt_gateway *gw, json_t *body, uint32_t job, uint32_t flow)
{
    struct hdt_flow_stats stats;

    if (hdt_dataplane_flow_find(gw->dp, job, flow, false, &stats)) {
        json_object_update_new(body, json_pack("{s:I, s:I}", "have_bytes",
                                               (json_int_t)stats.partial_bytes, "frame_bytes",
                                               (json_int_t)stats.partial_len));
    }
}

/* The site at the other end of a flow of the rank; NULL: it has no such flow. */
static const char *other_site(const struct hdt_plan *plan, int64_t rank, int64_t flow)
{
    const struct hdt_plan_flow *f;

    if (flow < 0 || (uint64_t)flow >= plan->n_flows) {
        return NULL;
    }
    f = &plan->flows[flow];
    return f->src_rank == rank   ? plan->ranks[f->dst_rank].site
           : f->dst_rank == rank ? plan->ranks[f->src_rank].site
                                 : NULL;
}

static void state_take(struct hdt_gateway *gw, const char *from, const json_t *body);

/* Of a worker: what it says is checked by the plan, completed and passed on. */
static void state_from_worker(struct hdt_gateway *gw, const json_t *msg)
{
    const char *coordinator = NULL, *site;
    json_t *body = json_copy((json_t *)hdt_msg_body(msg));
    json_int_t job = json_integer_value(json_object_get(body, "job"));
    json_int_t rank = json_integer_value(json_object_get(body, "rank"));
    json_int_t flow = json_integer_value(json_object_get(body, "flow"));
    const struct hdt_plan *plan =
        job > 0 && job <= UINT32_MAX ? hdt_member_plan(gw, (uint32_t)job, &coordinator) : NULL;
    char address[HDT_ADDRESS_CAP];

    if (!plan || rank < 0 || (uint64_t)rank >= plan->n_ranks ||
        !(site = other_site(plan, rank, flow))) {
        json_decref(body);
        return; /* the job is over, or not a rank's business */
    }
    snprintf(address, sizeof(address), "%s/%s", plan->ranks[rank].site, plan->ranks[rank].worker);
    if (strcmp(address, hdt_msg_from(msg)) != 0) {
        gw->n_refused_messages++;
        hdt_log_warn_limited(10, "'%s' speaks for rank %d, which is of %s", hdt_msg_from(msg),
                             (int)rank, address);
        json_decref(body);
        return;
    }
    link_add(gw, body, site);
    flow_add(gw, body, (uint32_t)job, (uint32_t)flow);
    if (strcmp(coordinator, gw->conf.site) == 0) {
        state_take(gw, gw->conf.site, body);
        json_decref(body);
    } else {
        hdt_route_post(gw, coordinator, "rank.state", body);
    }
}

/* ---- at the coordinator ---- */

static void text_copy(char *to, size_t cap, const json_t *body, const char *key)
{
    const char *text = json_string_value(json_object_get(body, key));

    snprintf(to, cap, "%s", text ? text : "");
}

static double seconds_of(const json_t *body, const char *key)
{
    double s = json_number_value(json_object_get(body, key));

    return isfinite(s) && s > 0 && s < 1e9 ? s : 0;
}

static struct hdt_rank_wait *wait_find(struct hdt_gwjob *job, int rank, uint32_t flow)
{
    struct hdt_rank_wait *wait;

    LL_FOREACH(job->rank_waits, wait)
    {
        if (wait->rank == rank && wait->flow == flow) {
            return wait;
        }
    }
    return NULL;
}

static void wait_drop(struct hdt_gwjob *job, struct hdt_rank_wait *wait)
{
    if (wait) {
        LL_DELETE(job->rank_waits, wait);
        free(wait);
    }
}

static void wait_fill(struct hdt_rank_wait *wait, const json_t *body)
{
    wait->step = json_integer_value(json_object_get(body, "step"));
    wait->mb = json_integer_value(json_object_get(body, "mb"));
    wait->seq = json_integer_value(json_object_get(body, "seq"));
    wait->have_bytes = json_integer_value(json_object_get(body, "have_bytes"));
    wait->frame_bytes = json_integer_value(json_object_get(body, "frame_bytes"));
    wait->since_s = seconds_of(body, "since_s");
    wait->link_s = seconds_of(body, "link_s");
    wait->at_us = hdt_clock_now_us();
    text_copy(wait->op, sizeof(wait->op), body, "op");
    text_copy(wait->what, sizeof(wait->what), body, "what");
    text_copy(wait->link, sizeof(wait->link), body, "link");
    text_copy(wait->why, sizeof(wait->why), body, "why");
}

/* What is of an epoch that is over, or was not said for long, goes. */
static void waits_prune(struct hdt_gwjob *job)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_rank_wait *wait, *next;

    LL_FOREACH_SAFE(job->rank_waits, wait, next)
    {
        if (wait->epoch != job->epoch || now_us - wait->at_us > STALE_US ||
            hdt_gwjob_is_over(job)) {
            wait_drop(job, wait);
        }
    }
}

/* ---- as people read it ---- */

static const char *const kind_words[HDT_FLOW_KIND_COUNT] = {
    [HDT_FLOW_ACTIVATION] = "activation",
    [HDT_FLOW_ACTIVATION_GRAD] = "activation gradient",
    [HDT_FLOW_TOKENS] = "tokens",
    [HDT_FLOW_LABELS] = "labels",
    [HDT_FLOW_TIED_GRAD] = "the tied gradient",
    [HDT_FLOW_SYNC_UP] = "the sums",
    [HDT_FLOW_SYNC_DOWN] = "the decision",
    [HDT_FLOW_STATE_OUT] = "weights for the checkpoint",
    [HDT_FLOW_STATE_IN] = "weights of the checkpoint",
};

static void what_append(const struct hdt_rank_wait *wait, enum hdt_flow_kind kind,
                        struct hdt_buf *text)
{
    hdt_buf_append_str(text, strcmp(wait->what, "slot") == 0              ? "room to send "
                             : strcmp(wait->what, "acknowledgement") == 0 ? "the receiver to take "
                                                                          : "");
    hdt_buf_append_str(text, kind_words[kind]);
    if (kind <= HDT_FLOW_LABELS && kind != HDT_FLOW_TIED_GRAD && wait->mb >= 0) {
        hdt_buf_appendf(text, " %lld", (long long)wait->mb);
    }
    if (wait->step > 0 && kind != HDT_FLOW_STATE_OUT && kind != HDT_FLOW_STATE_IN) {
        hdt_buf_appendf(text, " of step %lld", (long long)wait->step);
    }
}

static void link_append(const struct hdt_rank_wait *wait, struct hdt_buf *text)
{
    if (strcmp(wait->link, "down") == 0) {
        hdt_buf_appendf(text, ": link down since %.0f s%s%s", wait->link_s,
                        wait->why[0] ? ": " : "", wait->why);
    } else if (strcmp(wait->link, "suspect") == 0) {
        hdt_buf_appendf(text, ": link suspect since %.0f s", wait->link_s);
    } else if (strcmp(wait->what, "arrival") == 0 && wait->have_bytes > 0) {
        hdt_buf_appendf(text, ": %.1f of %.1f MB have come", 1e-6 * (double)wait->have_bytes,
                        1e-6 * (double)wait->frame_bytes);
    }
}

/* "rank 2 (site-b/w0) waits 12 s for activation 7 of step 41 from rank 1 (site-a/w0) over flow 3,
 * site-a -> site-b: link suspect since 10 s" */
static void wait_describe(const struct hdt_gwjob *job, const struct hdt_rank_wait *wait,
                          struct hdt_buf *text)
{
    const struct hdt_plan_flow *flow = &job->plan.flows[wait->flow];
    const bool is_src = flow->src_rank == wait->rank;
    const struct hdt_plan_rank *ranks = job->plan.ranks;
    const int other = is_src ? flow->dst_rank : flow->src_rank;
    const int64_t silent_us = hdt_clock_now_us() - wait->at_us;

    hdt_buf_appendf(text, "rank %d (%s/%s) waits %.0f s for ", wait->rank, ranks[wait->rank].site,
                    ranks[wait->rank].worker, wait->since_s + (double)silent_us / 1e6);
    what_append(wait, flow->kind, text);
    hdt_buf_appendf(text, " %s rank %d (%s/%s) over flow %u, %s -> %s", is_src ? "to" : "from",
                    other, ranks[other].site, ranks[other].worker, wait->flow,
                    ranks[flow->src_rank].site, ranks[flow->dst_rank].site);
    link_append(wait, text);
    if (silent_us > TELL_APART_US + HDT_US_PER_S) {
        hdt_buf_appendf(text, " (as it said %.0f s ago)", (double)silent_us / 1e6);
    }
}

static int wait_compare(const struct hdt_rank_wait *a, const struct hdt_rank_wait *b)
{
    return (a->since_s < b->since_s) - (a->since_s > b->since_s);
}

json_t *hdt_rank_waits_json(struct hdt_gwjob *job)
{
    json_t *waits = json_array();
    const struct hdt_rank_wait *wait;

    waits_prune(job);
    LL_FOREACH(job->rank_waits, wait)
    {
        const struct hdt_plan_flow *flow = &job->plan.flows[wait->flow];
        const struct hdt_plan_rank *rank = &job->plan.ranks[wait->rank];
        const int64_t silent_us = hdt_clock_now_us() - wait->at_us;
        struct hdt_buf text = {0};

        wait_describe(job, wait, &text);
        json_array_append_new(
            waits,
            json_pack("{s:i, s:s, s:s, s:f, s:I, s:I, s:s, s:s, s:I, s:I, s:i, s:s, s:f, s:s, s:f}",
                      "rank", wait->rank, "site", rank->site, "worker", rank->worker, "waits_s",
                      wait->since_s + (double)silent_us / 1e6, "step", (json_int_t)wait->step, "mb",
                      (json_int_t)wait->mb, "op", wait->op, "for", wait->what, "flow",
                      (json_int_t)wait->flow, "frame", (json_int_t)wait->seq, "other_rank",
                      flow->src_rank == wait->rank ? flow->dst_rank : flow->src_rank, "link",
                      wait->link, "link_s", wait->link_s, "text", hdt_buf_str(&text), "said_s",
                      (double)silent_us / 1e6));
        hdt_buf_release(&text);
    }
    return waits;
}

/* The wait to look at first: over a link that is not well, else one for a rank that does not wait
 * itself, else the longest. The list is sorted. */
static const struct hdt_rank_wait *wait_first(struct hdt_gwjob *job)
{
    const struct hdt_rank_wait *wait, *best = job->rank_waits, *other;

    LL_FOREACH(job->rank_waits, wait)
    {
        if (strcmp(wait->link, "down") == 0 || strcmp(wait->link, "suspect") == 0) {
            return wait;
        }
    }
    LL_FOREACH(job->rank_waits, wait)
    {
        const struct hdt_plan_flow *flow = &job->plan.flows[wait->flow];
        const int holder = flow->src_rank == wait->rank ? flow->dst_rank : flow->src_rank;
        bool holder_waits = false;

        LL_FOREACH(job->rank_waits, other)
        {
            holder_waits = holder_waits || other->rank == holder;
        }
        if (!holder_waits) {
            return wait;
        }
    }
    return best;
}

static void followers_tell(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    const int64_t now_us = hdt_clock_now_us();
    const struct hdt_rank_wait *wait = wait_first(job);
    struct hdt_buf text = {0};

    if (!wait || now_us - job->last_report_us < QUIET_US ||
        now_us - job->waits_told_us < TELL_APART_US) {
        return;
    }
    job->waits_told_us = now_us;
    wait_describe(job, wait, &text);
    hdt_gwjob_event(gw, job, "waiting",
                    json_pack("{s:s, s:f}", "text", hdt_buf_str(&text), "silent_s",
                              (double)(now_us - job->last_report_us) / 1e6));
    hdt_buf_release(&text);
}

/* `from`: the site that says it. */
static void state_take(struct hdt_gateway *gw, const char *from, const json_t *body)
{
    struct hdt_gwjob *job = hdt_gwjob_find(gw, json_integer_value(json_object_get(body, "job")));
    json_int_t rank = json_integer_value(json_object_get(body, "rank"));
    json_int_t flow = json_integer_value(json_object_get(body, "flow"));
    struct hdt_rank_wait *wait;

    if (!job || hdt_gwjob_is_over(job) ||
        json_integer_value(json_object_get(body, "epoch")) != (json_int_t)job->epoch || rank < 0 ||
        (uint64_t)rank >= job->plan.n_ranks || strcmp(job->plan.ranks[rank].site, from) != 0 ||
        !other_site(&job->plan, rank, flow)) {
        return;
    }
    waits_prune(job);
    wait = wait_find(job, (int)rank, (uint32_t)flow);
    if (seconds_of(body, "since_s") <= 0) {
        wait_drop(job, wait);
        return;
    }
    if (!wait) {
        wait = hdt_calloc(1, sizeof(*wait)); /* at most one for each flow's end */
        wait->epoch = job->epoch;
        wait->rank = (int)rank;
        wait->flow = (uint32_t)flow;
        LL_PREPEND(job->rank_waits, wait);
    }
    wait_fill(wait, body);
    LL_SORT(job->rank_waits, wait_compare);
    followers_tell(gw, job);
}

void hdt_rank_state(struct hdt_gateway *gw, const json_t *msg)
{
    if (strchr(hdt_msg_from(msg), '/')) {
        state_from_worker(gw, msg);
    } else {
        state_take(gw, hdt_msg_from(msg), hdt_msg_body(msg));
    }
}

void hdt_rank_waits_free(struct hdt_gwjob *job)
{
    while (job->rank_waits) {
        wait_drop(job, job->rank_waits);
    }
}
