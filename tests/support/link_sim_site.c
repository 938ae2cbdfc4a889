/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gateway's process: when its threads get the processor, and as much of a control plane as the
 * data plane needs: it opens flows as the plan says, closes epochs, dials, talks, measures.
 *
 * A thread runs some microseconds after it was woken; when processors are crowded, milliseconds. A
 * codec's work is three steps with time between them, in which all others go on. A thread that
 * waits for a condition is woken by a signal and by nothing else, so that a signal which is missing
 * is a run that stands still.
 */
#include "config.h"

#include "src/core/msg.h"
#include "src/net/stream_impl.h"
#include "tests/support/link_sim_impl.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define CODEC_RATE    1000 /* bytes a microsecond */
#define TALK_US       (300 * SIM_MS)
#define PROBE_BYTES   (512u << 10)
#define PROBE_MS      2000
#define PROBE_LATE_US (SIM_S)
#define MEMORY        (512u << 20)

/* How long a thread waits for the processor. */
static int64_t site_latency_us(struct sim_site *site)
{
    struct sim *sim = site->sim;
    int64_t us = 2 + (int64_t)hdt_sim_below(sim, 20);

    if (hdt_sim_chance(sim, sim->plan.crowd_per_1000)) {
        us += (int64_t)hdt_sim_below(sim, hdt_sim_chance(sim, 50) ? 300 * SIM_MS : 10 * SIM_MS);
    }
    if (site->paused_until_us > sim->now_us) {
        us += site->paused_until_us - sim->now_us;
    }
    return us;
}

/* Does not run now: the event comes again when it does. */
static bool site_is_paused(struct sim_site *site, void (*run)(struct sim *, void *, uint64_t),
                           uint64_t n)
{
    if (site->paused_until_us <= site->sim->now_us) {
        return false;
    }
    hdt_sim_at(site->sim, site->sim->now_us + site_latency_us(site), run, site, n);
    return true;
}

/* ---- I/O threads ---- */

static void site_round(struct sim *sim, void *arg, uint64_t n)
{
    struct sim_site *site = arg;
    unsigned i;

    for (i = 0; i < site->n_engines && site->engines[i]->round_n != n; i++) {
    }
    if (i == site->n_engines || site_is_paused(site, site_round, n)) {
        return;
    }
    site->engines[i]->round_us = INT64_MAX;
    site->engines[i]->round_n = 0;
    site->engines[i]->is_woken = false;
    sim->running = site;
    hdt_dpstep_io(site->dp, i);
    sim->running = NULL;
}

static void engine_settle(struct sim_engine *engine)
{
    struct sim_site *site = engine->site;
    struct sim *sim = site->sim;
    const bool is_woken = engine->n_ready > 0 || engine->base.finished_first != NULL ||
                          atomic_load(&engine->base.posted) != NULL;
    int64_t due_us = engine->base.n_timers > 0 ? engine->base.timers[1]->due_us : INT64_MAX;

    if (engine->is_woken) {
        return; /* it is on its way */
    }
    if (is_woken) {
        due_us = sim->now_us + site_latency_us(site);
    } else if (due_us < sim->now_us) {
        due_us = sim->now_us;
    }
    if (due_us < engine->round_us) {
        engine->is_woken = is_woken;
        engine->round_us = due_us;
        engine->round_n = ++sim->next_round;
        hdt_sim_at(sim, due_us, site_round, site, engine->round_n);
    }
}

/* ---- codec threads ---- */

static void site_codec(struct sim *sim, void *arg, uint64_t n);

static void codec_later(struct sim_site *site, uint64_t n, int64_t more_us)
{
    hdt_sim_at(site->sim, site->sim->now_us + site_latency_us(site) + more_us, site_codec, site, n);
}

static int64_t codec_work_us(struct sim *sim)
{
    const uint64_t most = sim->plan.segment_max / CODEC_RATE + 50;

    return (int64_t)hdt_sim_below(sim, hdt_sim_chance(sim, 30) ? 40 * most : most);
}

/* n: the site's life and the number of the thread. */
static void site_codec(struct sim *sim, void *arg, uint64_t n)
{
    struct sim_site *site = arg;
    const unsigned i = (unsigned)(n % SIM_CODECS_MAX);
    struct sim_codec *codec = &site->codecs[i];

    if (site->dp == NULL || site->life != n / SIM_CODECS_MAX ||
        site_is_paused(site, site_codec, n)) {
        return;
    }
    sim->running = site;
    if (codec->state == SIM_CODEC_TAKEN) {
        hdt_dpstep_codec_run(site->dp, i);
        codec->state = SIM_CODEC_RUN;
        codec_later(site, n, 0);
    } else {
        if (codec->state == SIM_CODEC_RUN) {
            hdt_dpstep_codec_settle(site->dp, i);
        }
        codec->state = SIM_CODEC_WAITS;
        if (hdt_dpstep_codec_take(site->dp, i)) {
            codec->state = SIM_CODEC_TAKEN;
            codec_later(site, n, codec_work_us(sim));
        }
    }
    hdt_sim_note(sim, "codec", site->idx, i, codec->state, 0);
    sim->running = NULL;
}

static void codec_signal(struct sim_site *site)
{
    struct sim *sim = site->sim;
    unsigned i, found = SIM_CODECS_MAX, n = 0;

    for (i = 0; i < sim->plan.sites[site->idx].n_codecs; i++) {
        if (site->codecs[i].state == SIM_CODEC_WAITS && hdt_sim_below(sim, ++n) == 0) {
            found = i;
        }
    }
    if (found < SIM_CODECS_MAX) {
        site->codecs[found].state = SIM_CODEC_WOKEN;
        codec_later(site, site->life * SIM_CODECS_MAX + found, 0);
    }
}

/* ---- the main thread, the resolver ---- */

static void site_dispatch(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_site *site = arg;

    if (site->dp == NULL || site->life != life || site_is_paused(site, site_dispatch, life)) {
        return;
    }
    site->is_dispatch_due = false;
    sim->running = site;
    hdt_dataplane_dispatch(site->dp);
    sim->running = NULL;
}

static void site_resolve(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_site *site = arg;

    if (site->dp == NULL || site->life != life || site_is_paused(site, site_resolve, life)) {
        return;
    }
    site->is_resolve_due = false;
    sim->running = site;
    hdt_dpstep_resolve(site->dp);
    sim->running = NULL;
}

static void main_settle(struct sim_site *site)
{
    struct sim *sim = site->sim;
    struct pollfd pfd = {.fd = hdt_dataplane_fd(site->dp), .events = POLLIN};

    if (site->dp->event_head != NULL && !site->is_dispatch_due) {
        SIM_CHECK(sim, poll(&pfd, 1, 0) == 1, "%s has events, and nobody is told", site->name);
        site->is_dispatch_due = true;
        hdt_sim_at(sim, sim->now_us + 5 * site_latency_us(site), site_dispatch, site, site->life);
    }
}

void hdt_sim_signalled(struct sim *sim, const void *cond)
{
    struct sim_site *site = sim->running;

    if (site == NULL || site->dp == NULL) {
        return; /* it is opened: all threads look for work anyway */
    }
    if (cond == &site->dp->work) {
        codec_signal(site);
    } else if (!site->is_resolve_due) {
        site->is_resolve_due = true;
        hdt_sim_at(sim, sim->now_us + site_latency_us(site), site_resolve, site, site->life);
    }
}

void hdt_sim_sites_settle(struct sim *sim)
{
    unsigned i, k;

    for (i = 0; i < sim->plan.n_sites; i++) {
        struct sim_site *site = &sim->sites[i];

        if (site->dp != NULL) {
            for (k = 0; k < site->n_engines; k++) {
                engine_settle(site->engines[k]);
            }
            main_settle(site);
        }
    }
}

/* ---- what the data plane tells ---- */

static unsigned site_idx_of(const char *name)
{
    return (unsigned)(name[strlen(name) - 1] - 'a');
}

static void on_peer_up(void *user, const char *name, const json_t *hello)
{
    struct sim_site *site = user;

    (void)hello;
    site->is_up[site_idx_of(name)] = true;
    hdt_sim_note(site->sim, "peer up", site->idx, site_idx_of(name), 0, 0);
}

static void on_peer_down(void *user, const char *name, const struct hdt_error *why)
{
    struct sim_site *site = user;

    site->is_up[site_idx_of(name)] = false;
    hdt_sim_note(site->sim, "peer down", site->idx, site_idx_of(name), (uint64_t)why->status, 0);
}

/* What came over a session that was replaced may be missing; nothing comes twice or late. */
static void on_peer_msg(void *user, const char *name, json_t *msg)
{
    struct sim_site *site = user;
    const unsigned from = site_idx_of(name);
    const uint64_t life = (uint64_t)json_integer_value(json_object_get(hdt_msg_body(msg), "life"));
    const uint64_t n = (uint64_t)json_integer_value(json_object_get(hdt_msg_body(msg), "n"));

    hdt_sim_note(site->sim, "message", site->idx, from, life, n);
    SIM_CHECK(site->sim, site->is_up[from], "%s got a message of %s, which is down", site->name,
              name);
    if (strcmp(hdt_msg_type(msg), "talk") != 0) {
        return; /* an answer to a measurement that is over */
    }
    SIM_CHECK(site->sim,
              life > site->heard_life[from] ||
                  (life == site->heard_life[from] && n > site->heard[from]),
              "%s got message %llu of %s (life %llu) after message %llu (life %llu)", site->name,
              (unsigned long long)n, name, (unsigned long long)life,
              (unsigned long long)site->heard[from], (unsigned long long)site->heard_life[from]);
    site->heard[from] = n;
    site->heard_life[from] = life;
}

static void on_refused(void *user, const char *name, const char *address,
                       const struct hdt_error *why, uint64_t n)
{
    struct sim_site *site = user;

    (void)name;
    (void)address;
    hdt_sim_note(site->sim, "refused", site->idx, (uint64_t)why->status, n, 0);
}

static void on_client_up(void *user, const struct hdt_client_info *info, const json_t *hello)
{
    struct sim_site *site = user;

    (void)hello;
    hdt_sim_note(site->sim, "client up", site->idx, info->client, 0, 0);
}

/* "open" {flow, epoch, is_src, offset, next}: as the plan says, unless the epoch is over. */
static void on_client_msg(void *user, uint64_t client, json_t *msg)
{
    struct sim_site *site = user;
    struct sim *sim = site->sim;
    const json_t *body = hdt_msg_body(msg);
    const unsigned idx = (unsigned)json_integer_value(json_object_get(body, "flow"));
    const struct sim_flow_plan *plan = &sim->plan.flows[idx];
    const uint32_t epoch = (uint32_t)json_integer_value(json_object_get(body, "epoch"));
    struct hdt_dataplane_flow flow = {
        .client = client,
        .job = SIM_JOB,
        .epoch = epoch,
        .flow = idx,
        .is_src = json_is_true(json_object_get(body, "is_src")),
        .prio = plan->prio,
        .codec = plan->codec,
        .dtype = plan->dtype,
        .depth = plan->depth,
        .frame_cap = plan->frame_cap,
        .pool = epoch,
        .pool_offset = (uint64_t)json_integer_value(json_object_get(body, "offset")),
        .next_seq = (uint64_t)json_integer_value(json_object_get(body, "next")),
    };
    struct hdt_error err = {0};
    enum hdt_status status;

    if (epoch <= site->closed_epoch) {
        return;
    }
    snprintf(flow.peer_site, sizeof(flow.peer_site), "%s",
             sim->sites[flow.is_src ? plan->dst_site : plan->src_site].name);
    status = hdt_dataplane_flow_open(site->dp, &flow, &err);
    hdt_sim_note(sim, "flow opens", site->idx, idx, flow.is_src, flow.next_seq);
    SIM_CHECK(sim, status == HDT_OK || status == HDT_ENOENT, "%s", err.msg);
}

static void on_client_down(void *user, uint64_t client, const struct hdt_error *why)
{
    struct sim_site *site = user;

    hdt_sim_note(site->sim, "client down", site->idx, client, (uint64_t)why->status, 0);
}

static void on_probed(void *user, const char *name, double bytes_per_s, double rtt_s)
{
    struct sim_site *site = user;

    (void)rtt_s;
    hdt_sim_note(site->sim, "probed", site->idx, site_idx_of(name), (uint64_t)bytes_per_s, 0);
    site->is_probing = false;
}

static void on_flow_failed(void *user, uint32_t job, uint32_t epoch, const struct hdt_error *why)
{
    struct sim_site *site = user;

    (void)job;
    SIM_CHECK(site->sim, epoch < site->sim->epoch, "%s gives up a flow: %s", site->name, why->msg);
}

static const struct hdt_dataplane_events site_events = {
    .peer_up = on_peer_up,
    .peer_down = on_peer_down,
    .peer_msg = on_peer_msg,
    .peer_refused = on_refused,
    .client_up = on_client_up,
    .client_msg = on_client_msg,
    .client_down = on_client_down,
    .probed = on_probed,
    .flow_failed = on_flow_failed,
};

/* ---- talk, measurements, dials ---- */

static void site_talk(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_site *site = arg;
    unsigned to;

    if (site->dp == NULL || site->life != life) {
        return;
    }
    for (to = 0; to < sim->plan.n_sites && site->paused_until_us <= sim->now_us; to++) {
        json_t *msg;

        if (to == site->idx) {
            continue;
        }
        msg = hdt_msg_new(
            "talk", NULL,
            json_pack("{s:I, s:I}", "life", (json_int_t)life, "n", (json_int_t)++site->said[to]));
        sim->running = site;
        (void)hdt_dataplane_peer_send(site->dp, sim->sites[to].name, msg, NULL);
        sim->running = NULL;
        json_decref(msg);
    }
    hdt_sim_at(sim, sim->now_us + 1 + (int64_t)hdt_sim_below(sim, TALK_US), site_talk, site, life);
}

static void probe_is_late(struct sim *sim, void *arg, uint64_t life)
{
    const struct sim_site *site = arg;

    SIM_CHECK(sim, site->dp == NULL || site->life != life || !site->is_probing,
              "%s: a measurement has no end", site->name);
}

static void site_probe(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_site *site = arg;
    const struct sim_site *to = &sim->sites[(site->idx + 1) % sim->plan.n_sites];

    if (site->dp == NULL || site->life != life || site_is_paused(site, site_probe, life)) {
        return;
    }
    site->is_probing = true;
    sim->running = site;
    hdt_dataplane_probe(site->dp, to->name, PROBE_BYTES, PROBE_MS);
    sim->running = NULL;
    if ((sim->faults & (HDT_SIM_PAUSE | HDT_SIM_CROWD)) == 0) {
        hdt_sim_at(sim, sim->now_us + 2 * PROBE_MS * SIM_MS + PROBE_LATE_US, probe_is_late, site,
                   life);
    }
}

static void site_dial(struct sim *sim, void *arg, uint64_t n)
{
    struct sim_site *site = arg;
    const unsigned to = (unsigned)(n % SIM_SITES_MAX);
    char address[32];

    if (site->dp == NULL || site->life != n / SIM_SITES_MAX) {
        return;
    }
    snprintf(address, sizeof(address), "127.0.0.1:%u", SIM_PORT + to);
    sim->running = site;
    hdt_dataplane_dial(site->dp, sim->sites[to].name, address);
    sim->running = NULL;
}

/* ---- life ---- */

static void site_conf(const struct sim_site *site, struct hdt_dataplane_conf *conf)
{
    const struct sim_site_plan *plan = &site->sim->plan.sites[site->idx];

    *conf = (struct hdt_dataplane_conf){
        .site = site->name,
        .federation = "fed",
        .instance = ++site->sim->next_instance,
        .version = "test",
        .advertise = "",
        .n_io_threads = (int)plan->n_io,
        .n_codec_threads = (int)plan->n_codecs,
        .n_streams = (int)plan->n_streams,
        .chunk_bytes = plan->chunk_bytes[site->life % 2],
        .memory_bytes = MEMORY,
        .rate_bits_per_s = plan->rate_bits_per_s,
        .pace = !plan->one_for_bursts,
        .congestion = plan->one_for_bursts ? "bbr" : "",
        .stepped = &hdt_sim_engine_ops,
    };
    hdt_deadlines_derive(&conf->deadlines, plan->knob_ms, 0);
}

void hdt_sim_site_start(struct sim_site *site)
{
    struct sim *sim = site->sim;
    struct hdt_dataplane_conf conf;
    struct hdt_error err = {0};
    unsigned i;

    site_conf(site, &conf);
    site->life++;
    site->is_off = false;
    site->is_dispatch_due = false;
    site->is_resolve_due = false;
    site->is_probing = false;
    memset(site->is_up, 0, sizeof(site->is_up));
    memset(site->said, 0, sizeof(site->said));
    memset(site->heard, 0, sizeof(site->heard));
    memset(site->heard_life, 0, sizeof(site->heard_life));
    hdt_sim_note(sim, "starts", site->idx, site->life, 0, 0);
    sim->running = site;
    SIM_CHECK(sim, hdt_dataplane_open(&conf, &site_events, site, &site->dp, &err) == HDT_OK, "%s",
              err.msg);
    sim->running = NULL;
    for (i = 0; i < sim->plan.sites[site->idx].n_codecs; i++) {
        site->codecs[i].state = SIM_CODEC_WOKEN;
        codec_later(site, site->life * SIM_CODECS_MAX + i, 0);
    }
    for (i = 0; i < sim->plan.n_sites; i++) {
        if (sim->plan.dials[site->idx][i]) {
            hdt_sim_at(sim, sim->now_us + sim->plan.dial_us[site->idx][i], site_dial, site,
                       site->life * SIM_SITES_MAX + i);
        }
    }
    if (sim->plan.messages) {
        hdt_sim_at(sim, sim->now_us + TALK_US, site_talk, site, site->life);
    }
    if (sim->plan.probe_us > 0) {
        hdt_sim_at(sim, sim->now_us + sim->plan.probe_us, site_probe, site, site->life);
    }
}

static void site_count(struct sim_site *site)
{
    struct hdt_sim_outcome *sum = &site->sim->sum;
    struct hdt_peer_stats all[SIM_SITES_MAX];
    const size_t n = hdt_dataplane_peer_stats(site->dp, all, SIM_SITES_MAX);
    size_t i;

    for (i = 0; i < n && i < SIM_SITES_MAX; i++) {
        SIM_CHECK(site->sim,
                  all[i].bad_by_cause[HDT_BAD_CREDIT] == 0 &&
                      all[i].bad_by_cause[HDT_BAD_FRAME] == 0 &&
                      all[i].bad_by_cause[HDT_BAD_CODEC] == 0,
                  "%s got chunks of %s that are out of bounds", site->name, all[i].site);
        SIM_CHECK(site->sim, all[i].bad_by_cause[HDT_BAD_CHECKSUM] == 0 || site->sim->n_flips > 0,
                  "%s got damaged chunks of %s, and nothing was damaged", site->name, all[i].site);
        SIM_CHECK(site->sim, all[i].link.n_tcp == 0,
                  "%s has figures of TCP to %s, and there is none", site->name, all[i].site);
        sum->sent_chunks += all[i].sent_chunks;
        sum->resent_chunks += all[i].resent_chunks;
        sum->dup_chunks += all[i].dup_chunks;
        sum->bad_chunks += all[i].bad_chunks;
        sum->n_sessions += all[i].n_sessions;
        sum->n_stream_losses += all[i].n_stream_losses;
    }
}

void hdt_sim_site_stop(struct sim_site *site, bool is_off)
{
    struct sim *sim = site->sim;

    if (site->dp == NULL) {
        return;
    }
    site_count(site);
    hdt_sim_note(sim, "stops", site->idx, site->life, is_off, 0);
    site->is_off = is_off;
    sim->running = site;
    hdt_dataplane_close(site->dp);
    sim->running = NULL;
    site->dp = NULL;
    site->n_engines = 0;
    site->paused_until_us = 0;
}

/* Everything was taken: nothing is left over. */
void hdt_sim_site_check_idle(struct sim_site *site)
{
    const struct hdt_dataplane *dp = site->dp;
    const struct hdt_flow_end *flow;
    const struct hdt_peer *peer;
    unsigned i;

    if (dp == NULL || site->paused_until_us > site->sim->now_us) {
        return;
    }
    SIM_CHECK(site->sim, dp->draining == NULL && dp->rx_head == NULL && dp->local == NULL,
              "%s has work left", site->name);
    for (peer = dp->peers; peer != NULL; peer = peer->hh.next) {
        for (i = 0; i < HDT_PRIO_COUNT; i++) {
            SIM_CHECK(site->sim, hdt_tx_lanes_are_empty(&peer->queue[i]),
                      "%s has frames for %s left", site->name, peer->site);
        }
    }
    for (flow = dp->flows; flow != NULL; flow = flow->hh.next) {
        SIM_CHECK(site->sim, flow->n_writers == 0, "%s: flow %u has writers", site->name,
                  flow->key.flow);
        for (i = 0; flow->key.is_src && i < flow->conf.depth; i++) {
            SIM_CHECK(site->sim, !flow->frames[i].held, "%s: flow %u holds a frame", site->name,
                      flow->key.flow);
        }
    }
}

static uint64_t flow_bytes(const struct hdt_flow_end *flow)
{
    uint64_t bytes = flow->plain_bytes;
    unsigned i;

    for (i = 0; i < flow->conf.depth; i++) {
        const struct hdt_dst_slot *slot = &flow->slots[i];

        bytes += slot->begun && !slot->complete ? slot->done_bytes : 0;
    }
    return bytes;
}

uint64_t hdt_sim_site_bytes(const struct sim_site *site, bool in_part)
{
    const struct hdt_flow_end *flow;
    const struct hdt_conn *conn;
    uint64_t bytes = 0;

    if (site->dp == NULL) {
        return 0;
    }
    for (flow = site->dp->flows; flow != NULL; flow = flow->hh.next) {
        bytes += flow->key.is_src ? 0 : flow_bytes(flow);
    }
    DL_FOREACH(site->dp->conns, conn)
    {
        if (in_part && conn->stream != NULL && conn->rx_now != NULL &&
            conn->rx_now->mode != HDT_RX_DROP) {
            bytes += conn->stream->payload_have;
        }
    }
    return bytes;
}
