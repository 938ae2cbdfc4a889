/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong, at the moment that the plan names: when so many frames were taken, and a bit. */
#include "config.h"

#include "tests/support/link_sim_impl.h"

#define RELEASE_US (300 * SIM_MS) /* until all workers have let go of an epoch */
#define BEGIN_US   (200 * SIM_MS) /* and then until all are in the next */

/* ---- connections ---- */

static bool conn_lives(const struct sim_conn *conn)
{
    return conn->is_connected && !conn->socks[0].is_closed && !conn->socks[1].is_closed &&
           conn->socks[0].error == 0 && conn->socks[1].error == 0;
}

static bool conn_joins(const struct sim_conn *conn, unsigned a, unsigned b)
{
    return conn->door == HDT_LISTENER_WAN && ((conn->site[0] == a && conn->site[1] == b) ||
                                              (conn->site[0] == b && conn->site[1] == a));
}

/* Any that joins the two; NULL: none does. */
static struct sim_conn *pick_conn(struct sim *sim, unsigned a, unsigned b)
{
    struct sim_conn *found = NULL;
    unsigned i, n = 0;

    for (i = 0; i < sim->n_conns; i++) {
        if (conn_joins(sim->conns[i], a, b) && conn_lives(sim->conns[i]) &&
            hdt_sim_below(sim, ++n) == 0) {
            found = sim->conns[i];
        }
    }
    return found;
}

static void play_reset(struct sim *sim, const struct sim_fault_plan *fault)
{
    struct sim_site *site = &sim->sites[fault->a];
    struct sim_conn *conn = pick_conn(sim, fault->a, fault->b);

    if (fault->how < 300 && site->dp != NULL) {
        sim->running = site;
        hdt_dataplane_break_stream(site->dp, sim->sites[fault->b].name, fault->how);
        sim->running = NULL;
    } else if (conn != NULL) {
        hdt_sim_reset(conn);
    }
}

static void play_all_reset(struct sim *sim, const struct sim_fault_plan *fault)
{
    unsigned i;

    for (i = 0; i < sim->n_conns; i++) {
        if (conn_joins(sim->conns[i], fault->a, fault->b) && conn_lives(sim->conns[i])) {
            hdt_sim_reset(sim->conns[i]);
        }
    }
}

/* The control stream alone, all but that one, one of them, or all. */
static void play_forget(struct sim *sim, const struct sim_fault_plan *fault)
{
    const struct sim_conn *one = pick_conn(sim, fault->a, fault->b);
    const bool is_swallowed = fault->how % 2 != 0;
    unsigned i, n = 0;

    for (i = 0; i < sim->n_conns; i++) {
        struct sim_conn *conn = sim->conns[i];

        if (!conn_joins(conn, fault->a, fault->b) || !conn_lives(conn)) {
            continue;
        }
        n++; /* the oldest is the control stream */
        if (fault->how < SIM_FORGET_CONTROL ? n == 1
            : fault->how < SIM_FORGET_BULK  ? n > 1
            : fault->how < SIM_FORGET_ONE   ? conn == one
                                            : true) {
            hdt_sim_forget(conn, is_swallowed);
        }
    }
}

static void play_stall(struct sim *sim, const struct sim_fault_plan *fault)
{
    struct sim_conn *conn = pick_conn(sim, fault->a, fault->b);

    if (conn != NULL) {
        hdt_sim_stall(conn, fault->how % 2, sim->now_us + fault->for_us);
    }
}

/* ---- links ---- */

static void link_heals(struct sim *sim, void *arg, uint64_t n)
{
    const unsigned from = (unsigned)(n / SIM_SITES_MAX), to = (unsigned)(n % SIM_SITES_MAX);

    (void)arg;
    sim->down[from][to] = --sim->n_down[from][to] > 0;
    hdt_sim_note(sim, "heals", from, to, sim->down[from][to], 0);
}

static void link_cut(struct sim *sim, unsigned from, unsigned to, int64_t for_us)
{
    sim->n_down[from][to]++;
    sim->down[from][to] = true;
    hdt_sim_at(sim, sim->now_us + for_us, link_heals, NULL, from * SIM_SITES_MAX + to);
    hdt_sim_disturbed(sim, sim->now_us + for_us);
}

/* ---- processes ---- */

static void site_comes_back(struct sim *sim, void *arg, uint64_t n)
{
    (void)sim;
    (void)n;
    hdt_sim_site_start(arg);
}

static void play_stop(struct sim *sim, const struct sim_fault_plan *fault, bool is_off)
{
    struct sim_site *site = &sim->sites[fault->a];
    unsigned i;

    if (site->dp == NULL) {
        return;
    }
    hdt_sim_site_stop(site, is_off);
    for (i = 0; i < sim->n_conns && is_off; i++) {
        struct sim_conn *conn = sim->conns[i];

        /* Its workers find out: they are on that machine, or their keep-alive tells. */
        if (conn->door != HDT_LISTENER_WAN && conn->site[0] == fault->a) {
            hdt_sim_reset(conn);
        }
    }
    hdt_sim_at(sim, sim->now_us + fault->for_us, site_comes_back, site, 0);
    hdt_sim_disturbed(sim, sim->now_us + fault->for_us);
}

static void play_pause(struct sim *sim, const struct sim_fault_plan *fault)
{
    sim->sites[fault->a].paused_until_us = sim->now_us + fault->for_us;
    hdt_sim_disturbed(sim, sim->now_us + fault->for_us);
}

static struct sim_worker *pick_worker(struct sim *sim, const struct sim_fault_plan *fault)
{
    return &sim->workers[fault->a][fault->how % sim->plan.sites[fault->a].n_workers];
}

static void play_worker(struct sim *sim, const struct sim_fault_plan *fault)
{
    struct sim_worker *worker = pick_worker(sim, fault);

    if (worker->sock != NULL) {
        hdt_sim_reset(worker->sock->conn);
    }
}

static void play_sleep(struct sim *sim, const struct sim_fault_plan *fault)
{
    pick_worker(sim, fault)->asleep_until_us = sim->now_us + fault->for_us;
    hdt_sim_disturbed(sim, sim->now_us + fault->for_us);
}

/* ---- epochs ---- */

/* A worker by its number among all. */
static struct sim_worker *worker_at(struct sim *sim, uint64_t n)
{
    return &sim->workers[n / SIM_WORKERS_MAX][n % SIM_WORKERS_MAX];
}

static void worker_releases(struct sim *sim, void *arg, uint64_t n)
{
    (void)arg;
    hdt_sim_worker_release(worker_at(sim, n));
}

static void worker_begins(struct sim *sim, void *arg, uint64_t n)
{
    (void)arg;
    hdt_sim_worker_begin(worker_at(sim, n), sim->epoch);
}

static void site_closes_job(struct sim *sim, void *arg, uint64_t epoch)
{
    struct sim_site *site = arg;

    site->closed_epoch = (uint32_t)epoch;
    if (site->dp != NULL) {
        sim->running = site;
        hdt_dataplane_job_close(site->dp, SIM_JOB, (uint32_t)epoch);
        sim->running = NULL;
    }
}

/* Workers let go, sites are told, workers begin anew: a site may be told before its workers let go
 * and after they have begun. */
static void play_epoch(struct sim *sim)
{
    const int64_t released_us = sim->now_us + RELEASE_US;
    unsigned i, k;

    if (sim->now_us < sim->epoch_us) {
        return; /* another one is beginning */
    }
    sim->epoch_us = released_us + BEGIN_US + 1;
    sim->epoch++;
    sim->frames_done = 0;
    for (i = 0; i < sim->plan.n_sites; i++) {
        hdt_sim_at(sim, sim->now_us + (int64_t)hdt_sim_below(sim, RELEASE_US + BEGIN_US),
                   site_closes_job, &sim->sites[i], sim->epoch - 1);
        for (k = 0; k < sim->plan.sites[i].n_workers; k++) {
            const uint64_t n = i * SIM_WORKERS_MAX + k;

            hdt_sim_at(sim, sim->now_us + (int64_t)hdt_sim_below(sim, RELEASE_US), worker_releases,
                       NULL, n);
            hdt_sim_at(sim, released_us + (int64_t)hdt_sim_below(sim, BEGIN_US), worker_begins,
                       NULL, n);
        }
    }
    hdt_sim_disturbed(sim, sim->epoch_us);
}

/* ---- streams ---- */

/* A site finds another number of streams better. */
static void play_tune(struct sim *sim, const struct sim_fault_plan *fault)
{
    struct sim_site *site = &sim->sites[fault->a];
    struct hdt_peer *peer;

    if (site->dp == NULL) {
        return;
    }
    sim->running = site;
    hdt_dp_lock(site->dp);
    for (peer = site->dp->peers; peer != NULL; peer = peer->hh.next) {
        if (peer->session != NULL && peer->has_tuner) {
            peer->tuner.n_streams = 1 + fault->how % 12;
            peer->tuner.kept_streams = peer->tuner.n_streams;
            hdt_session_want_streams(peer->session, sim->now_us);
            hdt_txq_wake(peer);
        }
    }
    hdt_dp_unlock(site->dp);
    sim->running = NULL;
}

/* ---- when ---- */

static void fault_play(struct sim *sim, void *arg, uint64_t n)
{
    const struct sim_fault_plan *fault = arg;

    (void)n;
    sim->n_played++;
    hdt_sim_note(sim, "fault", fault->kind, fault->a, fault->b, (uint64_t)fault->for_us);
    hdt_sim_disturbed(sim, sim->now_us);
    switch (fault->kind) {
    case HDT_SIM_LOSS:
        play_stall(sim, fault);
        break;
    case HDT_SIM_RESET:
        play_reset(sim, fault);
        break;
    case HDT_SIM_CUT:
        link_cut(sim, fault->a, fault->b, fault->for_us);
        link_cut(sim, fault->b, fault->a, fault->for_us);
        break;
    case HDT_SIM_HALF_OPEN:
        link_cut(sim, fault->a, fault->b, fault->for_us);
        break;
    case HDT_SIM_FORGET:
        play_forget(sim, fault);
        break;
    case HDT_SIM_KILL:
    case HDT_SIM_POWER:
        play_stop(sim, fault, fault->kind == HDT_SIM_POWER);
        break;
    case HDT_SIM_PAUSE:
        play_pause(sim, fault);
        break;
    case HDT_SIM_WORKER:
        play_worker(sim, fault);
        break;
    case HDT_SIM_SLOW:
        play_sleep(sim, fault);
        break;
    case HDT_SIM_EPOCH:
        play_epoch(sim);
        break;
    case HDT_SIM_DIALS:
        play_all_reset(sim, fault);
        break;
    case HDT_SIM_TUNE:
        play_tune(sim, fault);
        break;
    default:
        break; /* it lasts for the whole run */
    }
}

void hdt_sim_faults_due(struct sim *sim)
{
    while (sim->n_due < sim->plan.n_faults &&
           sim->frames_taken * 1000 >= sim->frames_total * sim->plan.faults[sim->n_due].per_mille) {
        struct sim_fault_plan *fault = &sim->plan.faults[sim->n_due++];

        hdt_sim_at(sim, sim->now_us + fault->after_us, fault_play, fault, 0);
    }
}
