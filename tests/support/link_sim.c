/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core of the simulation: the clock, the events in their order, random numbers, progress.
 *
 * What happens next is the earliest event of a heap; those of one moment go in the order in which
 * they were made. Whatever takes time is an event: a segment that arrives, a round of a thread that
 * gets the processor some microseconds after it was woken, the middle of a codec's work. Nothing
 * else moves the clock. All random numbers come from the seed: those of the plan before the first
 * event, so that a scenario stays what it is when the code under test asks for one more.
 */
#include "config.h"

#include "src/base/buf.h"
#include "src/base/log.h"
#include "tests/support/link_sim_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEGIN_US    (1000 * SIM_S) /* of the clock: 0 means "never" to many */
#define SETTLE_US   (2 * SIM_S)    /* after the last frame: what is on its way comes to rest */
#define EVENTS_MAX  (30u << 20)    /* of a run; one that needs more runs in circles */
#define GOLDEN      0x9e3779b97f4a7c15ull
#define DIGEST_STEP 0xff51afd7ed558ccdull

struct sim *hdt_sim_now;

/* ---- random numbers, digest ---- */

uint64_t hdt_sim_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

uint64_t hdt_sim_below(struct sim *sim, uint64_t n)
{
    sim->rng += GOLDEN;
    return hdt_sim_mix(sim->rng) % n;
}

bool hdt_sim_chance(struct sim *sim, unsigned per_mille)
{
    return per_mille > 0 && hdt_sim_below(sim, 1000) < per_mille;
}

void hdt_sim_note(struct sim *sim, const char *what, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    struct sim_note *note = &sim->tail[sim->n_notes++ % SIM_TAIL];
    const uint64_t n[4] = {a, b, c, d};
    unsigned i;

    note->at_us = sim->now_us;
    note->what = what;
    memcpy(note->n, n, sizeof(n));
    sim->digest = hdt_sim_mix(sim->digest ^ (uint64_t)sim->now_us) * DIGEST_STEP;
    for (i = 0; what[i] != '\0'; i++) {
        sim->digest = (sim->digest ^ (uint8_t)what[i]) * DIGEST_STEP;
    }
    for (i = 0; i < 4; i++) {
        sim->digest = hdt_sim_mix(sim->digest + n[i]);
    }
}

/* ---- failure ---- */

static void sim_say_seed(const struct sim *sim)
{
    fprintf(stderr, "to see it again: HDT_TEST_SEED=%llu HDT_TEST_FAULTS=%#x\n",
            (unsigned long long)sim->seed, sim->faults);
}

void hdt_sim_fail(struct sim *sim, const char *file, int line, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fprintf(stderr, "%s:%d: seed %llu, %.6f s: ", file, line, (unsigned long long)sim->seed,
            (double)(sim->now_us - BEGIN_US) / 1e6);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    hdt_sim_show(sim);
    sim_say_seed(sim);
    hdt_sim_now = NULL;
    abort();
}

/* An assertion of the product: it says itself what is wrong. */
static void sim_seen_assert(const char *cond, const char *file, int line)
{
    struct sim *sim = hdt_sim_now;

    hdt_sim_now = NULL;
    if (sim != NULL) {
        fprintf(stderr, "%s:%d: %s\n", file, line, cond);
        hdt_sim_show(sim);
        sim_say_seed(sim);
    }
}

static void sim_on_signal(int number)
{
    struct sim *sim = hdt_sim_now;

    hdt_sim_now = NULL;
    if (sim != NULL) {
        fprintf(stderr, "signal %d\n", number);
        hdt_sim_show(sim);
        sim_say_seed(sim);
    }
    signal(number, SIG_DFL);
    raise(number);
}

/* Once a process. */
static void sim_watch(void)
{
    static bool is_done;

    if (is_done) {
        return;
    }
    is_done = true;
    hdt_log_init("sim", getenv("HDT_TEST_LOG") != NULL ? HDT_LOG_DEBUG : HDT_LOG_ERROR);
    hdt_assert_watch(sim_seen_assert);
    signal(SIGSEGV, sim_on_signal);
    signal(SIGBUS, sim_on_signal);
}

/* ---- events ---- */

static bool event_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_us < b->at_us || (a->at_us == b->at_us && a->order < b->order);
}

void hdt_sim_at(struct sim *sim, int64_t at_us, void (*run)(struct sim *, void *, uint64_t),
                void *arg, uint64_t n)
{
    const struct sim_event event = {
        .at_us = at_us > sim->now_us ? at_us : sim->now_us,
        .order = sim->next_order++,
        .run = run,
        .arg = arg,
        .n = n,
    };
    size_t i = sim->n_events++;

    if (sim->n_events > sim->cap_events) {
        sim->cap_events = 2 * sim->n_events + 256;
        sim->events = hdt_realloc(sim->events, sim->cap_events * sizeof(*sim->events));
    }
    for (; i > 0 && event_before(&event, &sim->events[(i - 1) / 2]); i = (i - 1) / 2) {
        sim->events[i] = sim->events[(i - 1) / 2];
    }
    sim->events[i] = event;
}

static struct sim_event event_pop(struct sim *sim)
{
    const struct sim_event first = sim->events[0];
    const struct sim_event last = sim->events[--sim->n_events];
    size_t i = 0, child;

    for (child = 1; child < sim->n_events; child = 2 * i + 1) {
        if (child + 1 < sim->n_events &&
            event_before(&sim->events[child + 1], &sim->events[child])) {
            child++;
        }
        if (!event_before(&sim->events[child], &last)) {
            break;
        }
        sim->events[i] = sim->events[child];
        i = child;
    }
    sim->events[i] = last;
    return first;
}

/* ---- progress ---- */

/* Bytes of frames that have come to a gateway. */
static uint64_t sim_bytes_there(const struct sim *sim, bool in_part)
{
    uint64_t bytes = 0;
    unsigned i;

    for (i = 0; i < sim->plan.n_sites; i++) {
        bytes += hdt_sim_site_bytes(&sim->sites[i], in_part);
    }
    return bytes;
}

void hdt_sim_moved(struct sim *sim)
{
    if (sim->now_us - sim->moved_us > sim->sum.rest_us) {
        sim->sum.rest_us = sim->now_us - sim->moved_us;
    }
    sim->moved_us = sim->now_us;
    sim->bytes_there = sim_bytes_there(sim, true);
}

/* What was there of a chunk is lost with its stream, and counts when it comes again. */
void hdt_sim_disturbed(struct sim *sim, int64_t until_us)
{
    sim->bytes_there = sim_bytes_there(sim, false);
    if (until_us > sim->disturbed_us) {
        sim->disturbed_us = until_us;
    }
}

/* Two sites go by the larger of their knobs. */
static int64_t sim_deadline_us(const struct sim *sim)
{
    int64_t knob_ms = 0;
    unsigned i;

    for (i = 0; i < sim->plan.n_sites; i++) {
        knob_ms = sim->plan.sites[i].knob_ms > knob_ms ? sim->plan.sites[i].knob_ms : knob_ms;
    }
    return knob_ms * SIM_MS;
}

/* A frame over sockets that take few bytes at a time may need longer than the deadline: then bytes
 * of one have to come, more than were there before. Those that come again and again are no more. */
static void sim_check_progress(struct sim *sim)
{
    const int64_t since_us = sim->moved_us > sim->disturbed_us ? sim->moved_us : sim->disturbed_us;

    if (sim->now_us - since_us > sim_deadline_us(sim)) {
        SIM_CHECK(sim, sim_bytes_there(sim, true) > sim->bytes_there,
                  "no frame was taken and no byte of one came for %.3f s, and nothing was broken "
                  "for %.3f s",
                  (double)(sim->now_us - sim->moved_us) / 1e6,
                  (double)(sim->now_us - since_us) / 1e6);
        hdt_sim_moved(sim);
    }
    SIM_CHECK(sim, sim->n_run < EVENTS_MAX, "it runs in circles");
}

/* All frames taken, and their senders know it. */
static bool sim_is_done(const struct sim *sim)
{
    unsigned i;

    if (sim->frames_done < sim->frames_total) {
        return false;
    }
    for (i = 0; i < sim->plan.n_flows; i++) {
        const struct sim_flow_plan *flow = &sim->plan.flows[i];
        const struct sim_end *end = &sim->workers[flow->src_site][flow->src_worker].src[i];

        if (end->acked < flow->n_frames) {
            return false;
        }
    }
    return true;
}

static void sim_step(struct sim *sim)
{
    const struct sim_event event = event_pop(sim);

    sim->now_us = event.at_us;
    sim->n_run++;
    event.run(sim, event.arg, event.n);
    hdt_sim_sites_settle(sim);
}

/* ---- a run ---- */

static void sim_open(struct sim *sim, uint64_t seed, unsigned faults,
                     void (*adapt)(struct sim_plan *))
{
    unsigned i, k;

    sim->seed = seed;
    sim->rng = hdt_sim_mix(seed + GOLDEN);
    sim->faults = faults;
    sim->now_us = BEGIN_US;
    sim->began_us = BEGIN_US;
    sim->moved_us = BEGIN_US;
    sim->epoch = 1;
    hdt_sim_plan_draw(&sim->plan, seed, &sim->faults);
    if (adapt != NULL) {
        adapt(&sim->plan);
    }
    for (i = 0; i < sim->plan.n_sites; i++) {
        struct sim_site *site = &sim->sites[i];

        site->sim = sim;
        site->idx = i;
        snprintf(site->name, sizeof(site->name), "site-%c", (char)('a' + (int)i));
    }
    for (k = 0; k < sim->plan.n_flows; k++) {
        sim->frames_total += sim->plan.flows[k].n_frames;
    }
    hdt_sim_workers_open(sim);
    for (i = 0; i < sim->plan.n_sites; i++) {
        hdt_sim_site_start(&sim->sites[i]);
    }
    hdt_sim_faults_due(sim);
}

static void sim_close(struct sim *sim)
{
    unsigned i;

    for (i = 0; i < sim->plan.n_sites; i++) {
        hdt_sim_site_stop(&sim->sites[i], false);
    }
    hdt_sim_workers_close(sim);
    hdt_sim_net_free(sim);
    free(sim->events);
}

static void sim_play(struct sim *sim)
{
    int64_t until_us;
    unsigned i;

    while (!sim_is_done(sim)) {
        SIM_CHECK(sim, sim->n_events > 0, "nothing will ever happen again");
        sim_step(sim);
        sim_check_progress(sim);
    }
    until_us = sim->now_us + SETTLE_US;
    while (sim->n_events > 0 && sim->events[0].at_us < until_us) {
        sim_step(sim);
    }
    for (i = 0; i < sim->plan.n_sites; i++) {
        hdt_sim_site_check_idle(&sim->sites[i]);
    }
}

void hdt_sim_run_adapted(uint64_t seed, unsigned faults, void (*adapt)(struct sim_plan *),
                         struct hdt_sim_outcome *outcome)
{
    struct sim *sim = hdt_calloc(1, sizeof(*sim));

    sim_watch();
    hdt_sim_now = sim;
    sim_open(sim, seed, faults, adapt);
    if (getenv("HDT_TEST_LOG") != NULL) {
        hdt_sim_plan_print(&sim->plan);
    }
    sim_play(sim);
    sim_close(sim);
    *outcome = sim->sum;
    outcome->digest = sim->digest;
    outcome->n_events = sim->n_run;
    outcome->took_us = sim->now_us - sim->began_us;
    outcome->n_frames = sim->frames_taken;
    outcome->n_bytes = sim->bytes_taken;
    outcome->n_faults = sim->n_played;
    hdt_sim_now = NULL;
    free(sim);
}

void hdt_sim_run(uint64_t seed, unsigned faults, struct hdt_sim_outcome *outcome)
{
    hdt_sim_run_adapted(seed, faults, NULL, outcome);
}

uint64_t hdt_sim_seed(uint64_t otherwise, bool *is_given)
{
    const char *text = getenv("HDT_TEST_SEED");

    if (is_given != NULL) {
        *is_given = text != NULL;
    }
    return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

unsigned hdt_sim_faults(unsigned otherwise)
{
    const char *text = getenv("HDT_TEST_FAULTS");

    return text != NULL ? (unsigned)strtoul(text, NULL, 0) : otherwise;
}

const char *hdt_sim_fault_name(unsigned i)
{
    static const char *const names[HDT_SIM_FAULTS] = {
        "loss",   "skew", "reset", "cut",   "half-open", "forget", "kill",  "power", "pause",
        "worker", "slow", "flip",  "twice", "epoch",     "dials",  "crowd", "tune"};

    return i < HDT_SIM_FAULTS ? names[i] : NULL;
}
