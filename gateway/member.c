/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/member.h"
#include "gateway/coordinator.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/channel_id.h"
#include "src/core/msg.h"
#include "src/core/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define ANY_EPOCH         0xffffffffu
#define MAX_JOBS_PER_SITE 64
#define MAX_FLOW_STATS    4096

struct hdt_gwmember {
    uint32_t job, epoch;
    char coordinator[HDT_NAME_CAP], name[HDT_NAME_CAP];
    struct hdt_plan plan;
    struct hdt_error why; /* it cannot go on here: said until the epoch is over; HDT_OK: it can */
    struct hdt_gwmember *next;
};

static struct hdt_gwmember *member_find(struct hdt_gateway *gw, uint32_t job)
{
    struct hdt_gwmember *member;

    LL_SEARCH_SCALAR(gw->members, member, job, job);
    return member;
}

static void member_drop(struct hdt_gateway *gw, struct hdt_gwmember *member)
{
    LL_DELETE(gw->members, member);
    hdt_dataplane_job_close(gw->dp, member->job, ANY_EPOCH);
    hdt_plan_release(&member->plan);
    free(member);
}

/* Numbers of jobs hold a hash of their coordinator: two sites may meet in one, by chance or by
 * malice, and the job that is there stays. */
static enum hdt_status member_check_owner(struct hdt_gateway *gw, json_int_t job,
                                          const char *coordinator, struct hdt_error *err)
{
    const struct hdt_gwmember *member = member_find(gw, (uint32_t)job);
    const char *owner = member ? member->coordinator : NULL;

    if (!owner && hdt_gwjob_find(gw, job)) {
        owner = gw->conf.site;
    }
    if (owner && strcmp(owner, coordinator) != 0) {
        hdt_error_set(err, HDT_EEXIST, "job %lld of site %s has the number of a job of site %s",
                      (long long)job, coordinator, owner);
        hdt_error_hint(err, "submit it again: it gets another number");
        return HDT_EEXIST;
    }
    return HDT_OK;
}

/* Each is memory and a record in the store: a coordinator that says job after job is stopped. */
static enum hdt_status member_check_number(const struct hdt_gateway *gw, const char *coordinator,
                                           struct hdt_error *err)
{
    const struct hdt_gwmember *member;
    size_t n = 0;

    LL_FOREACH(gw->members, member)
    {
        n += strcmp(member->coordinator, coordinator) == 0;
    }
    if (n >= MAX_JOBS_PER_SITE) {
        hdt_error_set(err, HDT_ENOMEM, "site %s has %zu jobs here that are not closed", coordinator,
                      n);
        return HDT_ENOMEM;
    }
    return HDT_OK;
}

/* HDT_AGAIN: this epoch or a newer one is known already. */
static enum hdt_status member_add(struct hdt_gateway *gw, const json_t *record,
                                  struct hdt_error *err)
{
    struct hdt_model_config model;
    struct hdt_gwmember *member;
    struct hdt_plan plan;
    json_int_t job, epoch;
    json_t *plan_json, *model_json;
    const char *coordinator, *name;

    if (json_unpack((json_t *)record, "{s:I, s:I, s:s, s:s, s:o, s:o}", "job", &job, "epoch",
                    &epoch, "coordinator", &coordinator, "name", &name, "plan", &plan_json, "model",
                    &model_json) != 0 ||
        job <= 0 || job >= HDT_CHANNEL_JOB_BIT || epoch < 0 || epoch >= UINT32_MAX ||
        strlen(coordinator) >= HDT_NAME_CAP || strlen(name) >= HDT_NAME_CAP) {
        return hdt_error_set(
            err, HDT_EPROTO,
            "job.plan lacks job, epoch, coordinator, name or plan, or they are out of "
            "range");
    }
    HDT_TRY(member_check_owner(gw, job, coordinator, err));
    HDT_TRY(hdt_model_from_json(model_json, "job.plan", &model, err));
    member = member_find(gw, (uint32_t)job);
    if (member && strcmp(member->coordinator, coordinator) != 0) {
        return hdt_error_set(err, HDT_EEXIST, "cannot take job %u of %s: %s has one of that number",
                             hdt_gwjob_number_of((uint32_t)job), coordinator, member->coordinator);
    }
    if (member && member->epoch >= (uint32_t)epoch) {
        hdt_log_debug("job %u: plan of epoch %lld dropped, epoch %u is there",
                      hdt_gwjob_number_of(member->job), (long long)epoch, member->epoch);
        return HDT_AGAIN;
    }
    if (!member) {
        HDT_TRY(member_check_number(gw, coordinator, err));
    }
    HDT_TRY(hdt_plan_from_json(plan_json, &model, &plan, err));
    if (member) {
        member_drop(gw, member);
    }
    member = hdt_calloc(1, sizeof(*member));
    member->job = (uint32_t)job;
    member->epoch = (uint32_t)epoch;
    snprintf(member->coordinator, sizeof(member->coordinator), "%s", coordinator);
    snprintf(member->name, sizeof(member->name), "%s", name);
    member->plan = plan;
    LL_APPEND(gw->members, member);
    return HDT_OK;
}

/* The job cannot go on here: its coordinator is told, once it is known who that is. */
static void member_tell_failed(struct hdt_gateway *gw, const char *coordinator, uint32_t job,
                               uint32_t epoch, const struct hdt_error *why)
{
    hdt_route_post(gw, coordinator, "failed",
                   json_pack("{s:I, s:I, s:i, s:o}", "job", (json_int_t)job, "epoch",
                             (json_int_t)epoch, "rank", -1, "error", hdt_msg_error_body(why)));
}

/* Said at once, and again with every tick: it may be lost with a session. */
static void member_fail(struct hdt_gateway *gw, struct hdt_gwmember *member,
                        const struct hdt_error *why)
{
    member->why = *why;
    member_tell_failed(gw, member->coordinator, member->job, member->epoch, why);
}

void hdt_member_job_plan(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    const char *coordinator = json_string_value(json_object_get(body, "coordinator"));
    json_int_t job = json_integer_value(json_object_get(body, "job"));
    struct hdt_error err = {0};
    enum hdt_status status;

    if (!coordinator || strcmp(coordinator, hdt_msg_from(msg)) != 0) {
        gw->n_refused_messages++;
        hdt_log_warn_limited(60, "job.plan from %s for a job of %s dropped", hdt_msg_from(msg),
                             coordinator ? coordinator : "?");
        return;
    }
    status = member_add(gw, body, &err);
    if (status == HDT_AGAIN) {
        return;
    }
    if (status != HDT_OK) {
        hdt_error_where(&err, "%s", gw->conf.site);
        hdt_log_failure(HDT_LOG_ERROR, &err);
        member_tell_failed(gw, coordinator, (uint32_t)job,
                           (uint32_t)json_integer_value(json_object_get(body, "epoch")), &err);
        return;
    }
    hdt_log_info("job %u of %s: plan of epoch %lld received", hdt_gwjob_number_of((uint32_t)job),
                 coordinator, (long long)json_integer_value(json_object_get(body, "epoch")));
    hdt_federation_tell(gw); /* our workers are busy now */
    /* The coordinator's own record is the truth and says more: it is not overwritten here. */
    if (strcmp(coordinator, gw->conf.site) != 0 &&
        hdt_store_put_job(gw->store, (uint32_t)job, "member", body, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
}

bool hdt_member_has_worker(struct hdt_gateway *gw, const char *site, const char *name)
{
    const struct hdt_gwmember *member;

    LL_FOREACH(gw->members, member)
    {
        /* Ours are judged by their state; those of a coordinator that is away may be over, and the
         * worker itself refuses a second job if they are not. */
        const struct hdt_gwsite *coordinator = hdt_federation_site(gw, member->coordinator);

        if (coordinator && coordinator->up && hdt_plan_has_worker(&member->plan, site, name)) {
            return true;
        }
    }
    return false;
}

json_t *hdt_member_status(const struct hdt_gateway *gw)
{
    const struct hdt_gwmember *member;
    json_t *jobs = json_array();

    LL_FOREACH(gw->members, member)
    {
        if (strcmp(member->coordinator, gw->conf.site) != 0) {
            json_array_append_new(jobs, json_pack("{s:I, s:I, s:s}", "number",
                                                  (json_int_t)hdt_gwjob_number_of(member->job),
                                                  "epoch", (json_int_t)member->epoch, "coordinator",
                                                  member->coordinator));
        }
    }
    return jobs;
}

const char *hdt_member_coordinator_of(struct hdt_gateway *gw, const char *site, const char *name)
{
    const struct hdt_gwmember *member;

    LL_FOREACH(gw->members, member)
    {
        if (hdt_plan_has_worker(&member->plan, site, name)) {
            return member->coordinator;
        }
    }
    return NULL;
}

const struct hdt_plan *hdt_member_plan(struct hdt_gateway *gw, uint32_t job,
                                       const char **coordinator)
{
    const struct hdt_gwmember *member = member_find(gw, job);

    if (member) {
        *coordinator = member->coordinator;
    }
    return member ? &member->plan : NULL;
}

static void worker_release(struct hdt_gateway *gw, const char *worker, json_int_t job,
                           json_int_t epoch)
{
    char address[HDT_ADDRESS_CAP];

    snprintf(address, sizeof(address), "%s/%s", gw->conf.site, worker);
    hdt_route_post(gw, address, "release", json_pack("{s:I, s:I}", "job", job, "epoch", epoch));
}

/* The coordinator tells the workers, too; but they may have been out of its reach then. */
static void member_release_workers(struct hdt_gateway *gw, const struct hdt_gwmember *member)
{
    for (size_t rank = 0; rank < member->plan.n_ranks; rank++) {
        if (strcmp(member->plan.ranks[rank].site, gw->conf.site) == 0) {
            worker_release(gw, member->plan.ranks[rank].worker, member->job, member->epoch);
        }
    }
}

void hdt_member_worker_up(struct hdt_gateway *gw, const char *worker, const json_t *jobs)
{
    const json_t *item;
    size_t i;

    json_array_foreach(jobs, i, item)
    {
        json_int_t job = json_integer_value(json_object_get(item, "job"));
        json_int_t epoch = json_integer_value(json_object_get(item, "epoch"));
        const struct hdt_gwmember *member =
            job > 0 && job <= UINT32_MAX ? member_find(gw, (uint32_t)job) : NULL;

        if (job > 0 && job <= UINT32_MAX && (!member || epoch < (json_int_t)member->epoch)) {
            hdt_log_info("worker %s/%s is released from epoch %lld of job %u, which is over",
                         gw->conf.site, worker, (long long)epoch,
                         hdt_gwjob_number_of((uint32_t)job));
            worker_release(gw, worker, job, epoch);
        }
    }
}

void hdt_member_job_close(struct hdt_gateway *gw, const json_t *msg)
{
    json_int_t job = json_integer_value(json_object_get(hdt_msg_body(msg), "job"));
    const json_t *epoch = json_object_get(hdt_msg_body(msg), "epoch");
    struct hdt_gwmember *member =
        job > 0 && job <= UINT32_MAX ? member_find(gw, (uint32_t)job) : NULL;
    struct hdt_error err = {0};

    if (!member || strcmp(member->coordinator, hdt_msg_from(msg)) != 0 ||
        (epoch && json_integer_value(epoch) < (json_int_t)member->epoch)) {
        return;
    }
    hdt_log_info("job %u of %s: epoch %u closed", hdt_gwjob_number_of(member->job),
                 member->coordinator, member->epoch);
    if (strcmp(member->coordinator, gw->conf.site) != 0 &&
        hdt_store_put_job(gw->store, member->job, "closed", hdt_msg_body(msg), &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
    member_release_workers(gw, member);
    member_drop(gw, member);
    hdt_federation_tell(gw);
}

/* ---- flows ---- */

static bool rank_is(const struct hdt_plan_rank *rank, const char *address)
{
    char text[HDT_ADDRESS_CAP];

    snprintf(text, sizeof(text), "%s/%s", rank->site, rank->worker);
    return strcmp(text, address) == 0;
}

/* The worker says what it opens, the plan what it may: every difference is refused by name. */
static enum hdt_status flow_confirm(const struct hdt_gwmember *member, const char *worker,
                                    const struct hdt_dataplane_flow *open, struct hdt_error *err)
{
    const struct hdt_plan_flow *flow;
    const struct hdt_plan_rank *mine, *other;

    if (open->epoch != member->epoch) {
        return hdt_error_set(err, HDT_EPROTO, "flow.open of epoch %u, job %u is in epoch %u",
                             open->epoch, member->job, member->epoch);
    }
    if (open->flow >= member->plan.n_flows) {
        return hdt_error_set(err, HDT_EPROTO, "job %u has no flow %u", member->job, open->flow);
    }
    flow = &member->plan.flows[open->flow];
    mine = &member->plan.ranks[open->is_src ? flow->src_rank : flow->dst_rank];
    other = &member->plan.ranks[open->is_src ? flow->dst_rank : flow->src_rank];
    if (!rank_is(mine, worker)) {
        return hdt_error_set(err, HDT_EACCES, "flow %u ends at %s/%s, not at %s", open->flow,
                             mine->site, mine->worker, worker);
    }
    if (strcmp(other->site, open->peer_site) != 0) {
        return hdt_error_set(err, HDT_EPROTO, "flow %u: other end is at '%s', not '%s'", open->flow,
                             other->site, open->peer_site);
    }
    if (open->depth != flow->depth || open->frame_cap != flow->frame_cap ||
        open->prio != flow->prio) {
        return hdt_error_set(err, HDT_EPROTO,
                             "flow %u: depth %u, frame size %u, priority %d differ from the "
                             "plan's %u, %u, %d",
                             open->flow, open->depth, open->frame_cap, (int)open->prio, flow->depth,
                             flow->frame_cap, (int)flow->prio);
    }
    return HDT_OK;
}

static bool fits_u32(json_int_t value)
{
    return value >= 0 && value <= UINT32_MAX;
}

enum hdt_status hdt_member_flow_parse(struct hdt_gateway *gw, const json_t *msg,
                                      struct hdt_dataplane_flow *flow, struct hdt_error *err)
{
    json_int_t job, epoch, number, prio, codec, dtype, depth, cap, pool, offset, next_seq;
    const char *end, *peer_site;
    struct hdt_gwclient *client;

    HDT_TRY(hdt_msg_unpack(
        msg, err, "{s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "job", &job,
        "epoch", &epoch, "flow", &number, "end", &end, "peer_site", &peer_site, "prio", &prio,
        "codec", &codec, "dtype", &dtype, "depth", &depth, "frame_cap", &cap, "pool", &pool,
        "pool_offset", &offset, "next_seq", &next_seq));
    if (!fits_u32(job) || !fits_u32(epoch) || !fits_u32(number) || !fits_u32(depth) ||
        !fits_u32(cap) || !fits_u32(pool) || offset < 0 || next_seq < 0 || prio < 0 ||
        prio >= HDT_PRIO_COUNT || codec < 0 || codec > 255 || dtype < 0 ||
        dtype >= HDT_DTYPE_COUNT || strlen(peer_site) >= sizeof(flow->peer_site)) {
        return hdt_error_set(err, HDT_EPROTO, "flow.open: a number is out of its range");
    }
    memset(flow, 0, sizeof(*flow));
    LL_FOREACH(gw->clients, client)
    {
        if (strcmp(client->address, hdt_msg_from(msg)) == 0) {
            flow->client = client->id;
            break; /* the newest: an older connection of this worker is on its way out */
        }
    }
    flow->job = (uint32_t)job;
    flow->epoch = (uint32_t)epoch;
    flow->flow = (uint32_t)number;
    flow->is_src = strcmp(end, "src") == 0;
    snprintf(flow->peer_site, sizeof(flow->peer_site), "%s", peer_site);
    flow->prio = (enum hdt_prio)prio;
    flow->codec = (uint8_t)codec;
    flow->dtype = (enum hdt_dtype)dtype;
    flow->depth = (uint32_t)depth;
    flow->frame_cap = (uint32_t)cap;
    flow->pool = (uint32_t)pool;
    flow->pool_offset = (uint64_t)offset;
    flow->next_seq = (uint64_t)next_seq;
    return HDT_OK;
}

/* *told: the member whose coordinator has to know of a failure; NULL: none, as of an epoch that is
 * over. */
static enum hdt_status flow_open(struct hdt_gateway *gw, const json_t *msg,
                                 struct hdt_gwmember **told, struct hdt_error *err)
{
    struct hdt_dataplane_flow flow;
    struct hdt_gwmember *member;

    HDT_TRY(hdt_member_flow_parse(gw, msg, &flow, err));
    member = member_find(gw, flow.job);
    if (!member) {
        return hdt_error_set(err, HDT_ENOENT, "this gateway knows no job %u", flow.job);
    }
    *told = flow.epoch >= member->epoch ? member : NULL;
    HDT_TRY(flow_confirm(member, hdt_msg_from(msg), &flow, err));
    snprintf(flow.job_name, sizeof(flow.job_name), "%s", member->name);
    return hdt_dataplane_flow_open(gw->dp, &flow, err);
}

void hdt_member_flow_open(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0}, ignored = {0};
    struct hdt_gwmember *member = NULL;

    if (flow_open(gw, msg, &member, &err) == HDT_OK) {
        return;
    }
    hdt_error_where(&err, "%s", hdt_msg_from(msg));
    hdt_log_failure(HDT_LOG_DEBUG, &err); /* the coordinator logs it as the job's end */
    hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
    if (member) {
        member_fail(gw, member, &err);
    }
}

void hdt_member_flow_failed(struct hdt_gateway *gw, uint32_t job, uint32_t epoch,
                            const struct hdt_error *why)
{
    struct hdt_gwmember *member = member_find(gw, job);
    struct hdt_error err = *why;

    err.status = HDT_ELINK; /* it is the flow that is lost: a new epoch has others */
    if (!member || member->epoch != epoch) {
        return; /* it is over */
    }
    hdt_error_where(&err, "%s", gw->conf.site);
    hdt_log_failure(HDT_LOG_WARN, &err);
    member_fail(gw, member, &err);
}

/* ---- bytes over the WAN ---- */

/* What the flows of the job's present epoch have carried. */
static json_t *job_wan(struct hdt_gateway *gw, uint32_t job)
{
    struct hdt_flow_stats *flows = hdt_calloc(MAX_FLOW_STATS, sizeof(*flows));
    size_t n = hdt_dataplane_flow_stats(gw->dp, flows, MAX_FLOW_STATS);
    const struct hdt_gwmember *member;
    uint64_t raw = 0, plain = 0, sent = 0;

    for (size_t i = 0; i < n && i < MAX_FLOW_STATS; i++) {
        if (flows[i].job == job && flows[i].is_src &&
            strcmp(flows[i].peer_site, gw->conf.site) != 0) {
            raw += flows[i].raw_bytes;
            plain += flows[i].plain_bytes;
            sent += flows[i].coded_bytes;
        }
    }
    free(flows);
    member = member_find(gw, job);
    return json_pack("{s:I, s:I, s:o, s:I, s:I, s:I}", "job", (json_int_t)job, "epoch",
                     (json_int_t)(member ? member->epoch : 0), "instance",
                     hdt_msg_u64_hex(gw->instance), "raw", (json_int_t)raw, "plain",
                     (json_int_t)plain, "sent", (json_int_t)sent);
}

void hdt_member_job_wan(struct hdt_gateway *gw, const json_t *msg)
{
    json_int_t job = json_integer_value(json_object_get(hdt_msg_body(msg), "job"));
    struct hdt_error err = {0};

    hdt_route_send(gw, hdt_msg_reply(msg, "job.wan", job_wan(gw, (uint32_t)job)), &err);
}

void hdt_member_tick(struct hdt_gateway *gw)
{
    struct hdt_gwmember *member, *next;

    LL_FOREACH_SAFE(gw->members, member, next)
    {
        const uint32_t job = member->job;

        /* A coordinator that is this gateway may answer at once that the job is over. */
        hdt_route_post(gw, member->coordinator, "job.wan", job_wan(gw, job));
        if (member_find(gw, job) == member && member->why.status != HDT_OK) {
            member_tell_failed(gw, member->coordinator, member->job, member->epoch, &member->why);
        }
    }
}

/* ---- start and end ---- */

static void member_load(void *user, uint32_t job, const char *state, const json_t *record)
{
    struct hdt_gateway *gw = user;
    struct hdt_error err = {0};

    if (strcmp(state, "member") != 0) {
        return;
    }
    if (member_add(gw, record, &err) != HDT_OK) {
        hdt_log_warn("job %u in the store is not usable: %s", job, err.msg);
    }
}

void hdt_member_start(struct hdt_gateway *gw)
{
    struct hdt_error err = {0};

    if (hdt_store_each_job(gw->store, member_load, gw, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
}

void hdt_member_free(struct hdt_gateway *gw)
{
    struct hdt_gwmember *member, *next;

    LL_FOREACH_SAFE(gw->members, member, next)
    {
        member_drop(gw, member);
    }
}
