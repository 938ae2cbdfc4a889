/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Rates of the frames under way: max-min fair over links (Bertsekas and Gallager, Data Networks,
 * section 6.5.2). The link that can give its frames the least is full first; they get that, it is
 * taken from their other links, and so on with what is left.
 *
 * When a frame comes or goes, only those change that are joined to it by shared links; they are
 * gathered and given new rates. A frame alone on its links, the usual case in a pipeline, is not
 * worth that. A link with n frames costs O(n) at each change: that is what its n new times of
 * leaving take in any case.
 */
#include "src/base/buf.h"
#include "src/sim/sim_impl.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

static const int *queue_route(const struct sim *sim, const struct sim_queue *q, size_t *n)
{
    const struct hdt_sim_flow *f = sim->flows[q->flow].is;

    *n = f->n_route;
    return sim->setup->routes + f->route;
}

/* ---- who is touched ---- */

static void near_link_add(struct sim *sim, int link)
{
    if (sim->links[link].seen != sim->round) {
        sim->links[link].seen = sim->round;
        sim->near_links[sim->n_near_links++] = link;
    }
}

static void near_queue_add(struct sim *sim, int queue)
{
    struct sim_queue *q = &sim->queues[queue];
    const int *route;
    size_t n;

    if (q->seen == sim->round) {
        return;
    }
    q->seen = sim->round;
    sim->near_queues[sim->n_near_queues++] = queue;
    route = queue_route(sim, q, &n);
    for (size_t i = 0; i < n; i++) {
        near_link_add(sim, route[i]);
    }
}

/* All frames and links that can be reached from the links gathered so far. */
static void near_close(struct sim *sim)
{
    for (size_t i = 0; i < sim->n_near_links; i++) {
        const struct sim_link *l = &sim->links[sim->near_links[i]];

        for (size_t k = 0; k < l->n; k++) {
            near_queue_add(sim, l->queues[k]);
        }
    }
}

static void near_clear(struct sim *sim)
{
    sim->round++;
    sim->n_near_queues = sim->n_near_links = 0;
}

/* ---- rates ---- */

static void queue_rate_set(struct sim *sim, int queue, double rate, double t)
{
    struct sim_queue *q = &sim->queues[queue];
    size_t slot = sim->first_queue + (size_t)queue;

    if (rate == q->rate) {
        return;
    }
    q->rest -= q->rate * (t - q->rest_s);
    q->rest = q->rest > 0 ? q->rest : 0;
    q->rest_s = t;
    q->rate = rate;
    if (rate > 0) {
        hdt_sim_heap_set(&sim->heap, slot, t + q->rest / rate);
    } else {
        hdt_sim_heap_remove(&sim->heap, slot);
    }
}

/* The link with the least for each of its frames; -1: all have their rates. */
static int fullest_link(const struct sim *sim, double *share)
{
    int best = -1;

    *share = DBL_MAX;
    for (size_t i = 0; i < sim->n_near_links; i++) {
        const struct sim_link *l = &sim->links[sim->near_links[i]];

        if (l->n_open > 0 && l->spare / (double)l->n_open < *share) {
            *share = l->spare / (double)l->n_open;
            best = sim->near_links[i];
        }
    }
    return best;
}

static void queue_fix(struct sim *sim, int queue, double share, double t)
{
    struct sim_queue *q = &sim->queues[queue];
    size_t n;
    const int *route = queue_route(sim, q, &n);

    q->fixed = true;
    for (size_t i = 0; i < n; i++) {
        struct sim_link *l = &sim->links[route[i]];

        l->spare -= share;
        l->spare = l->spare > 0 ? l->spare : 0;
        l->n_open--;
    }
    queue_rate_set(sim, queue, share, t);
}

static void peak_note(struct sim *sim, int link)
{
    struct sim_link *l = &sim->links[link];
    double used = 0;

    for (size_t k = 0; k < l->n; k++) {
        used += sim->queues[l->queues[k]].rate;
    }
    l->peak = used > l->peak ? used : l->peak;
}

static void near_share(struct sim *sim, double t)
{
    double share;
    int link;

    for (size_t i = 0; i < sim->n_near_links; i++) {
        struct sim_link *l = &sim->links[sim->near_links[i]];

        l->spare = l->rate;
        l->n_open = l->n;
    }
    for (size_t i = 0; i < sim->n_near_queues; i++) {
        sim->queues[sim->near_queues[i]].fixed = false;
    }
    while ((link = fullest_link(sim, &share)) >= 0) {
        const struct sim_link *l = &sim->links[link];

        for (size_t k = 0; k < l->n; k++) {
            if (!sim->queues[l->queues[k]].fixed) {
                queue_fix(sim, l->queues[k], share, t);
            }
        }
    }
    for (size_t i = 0; i < sim->n_near_links; i++) {
        peak_note(sim, sim->near_links[i]);
    }
}

/* ---- frames come and go ---- */

static void link_push(struct sim_link *l, int queue)
{
    if (l->n == l->cap) {
        int *queues = hdt_malloc(2 * l->cap * sizeof(queues[0]));

        memcpy(queues, l->queues, l->n * sizeof(queues[0]));
        if (l->queues != l->few) {
            free(l->queues);
        }
        l->queues = queues;
        l->cap *= 2;
    }
    l->queues[l->n++] = queue;
}

/* The order stays: what is added up in it gives the same bits whenever it is. */
static void link_drop(struct sim_link *l, int queue)
{
    uint32_t k = 0;

    while (l->queues[k] != queue) {
        k++;
    }
    for (l->n--; k < l->n; k++) {
        l->queues[k] = l->queues[k + 1];
    }
}

void hdt_sim_net_begin(struct sim *sim, int queue, double t)
{
    struct sim_queue *q = &sim->queues[queue];
    bool alone = true;
    double rate = DBL_MAX;
    size_t n;
    const int *route = queue_route(sim, q, &n);

    q->rest_s = t;
    q->rate = 0;
    for (size_t i = 0; i < n; i++) {
        struct sim_link *l = &sim->links[route[i]];

        link_push(l, queue);
        alone = alone && l->n == 1;
        rate = l->rate < rate ? l->rate : rate;
    }
    if (alone) {
        queue_rate_set(sim, queue, rate, t);
        for (size_t i = 0; i < n; i++) {
            struct sim_link *l = &sim->links[route[i]];

            l->peak = rate > l->peak ? rate : l->peak;
        }
        return;
    }
    near_clear(sim);
    near_queue_add(sim, queue);
    near_close(sim);
    near_share(sim, t);
}

void hdt_sim_net_end(struct sim *sim, int queue, double t)
{
    struct sim_queue *q = &sim->queues[queue];
    size_t n;
    const int *route = queue_route(sim, q, &n);

    near_clear(sim);
    for (size_t i = 0; i < n; i++) {
        struct sim_link *l = &sim->links[route[i]];

        link_drop(l, queue);
        if (l->n > 0) {
            near_link_add(sim, route[i]);
        }
    }
    q->rate = 0;
    if (sim->n_near_links > 0) {
        near_close(sim);
        near_share(sim, t);
    }
}

void hdt_sim_net_change(struct sim *sim, double t)
{
    near_clear(sim);
    for (size_t i = 0; i < sim->setup->n_links; i++) {
        double rate = sim->setup->links[i].rate_bytes_per_s * hdt_sim_slow_link(sim, (int)i, t);

        if (rate != sim->links[i].rate) {
            sim->links[i].rate = rate;
            near_link_add(sim, (int)i);
        }
    }
    near_close(sim);
    near_share(sim, t);
}
