/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/pacer.h"
#include "src/base/error.h"

#include <string.h>

/*
 * An urgent frame that arrives behind a full queue waits for as long as the queue is: tenths of a
 * second on common routers, whatever overtakes whom in this gateway. TCP fills that queue: CUBIC
 * always, BBR with one round trip's worth when there are several streams. So bulk is held to a rate
 * at which the queue drains, and the queue itself, seen as round trips longer than the shortest,
 * says how much that is: while there is one, what is delivered is what the bottleneck carries.
 *
 *   long queue    the rate becomes what was delivered, less what drains the queue in one window
 *
 *   a short one   the rate grows slowly, up to what the path is known to have carried
 *
 *   no queue      the rate grows, by more each time, so that a link that has become ten times
 *                 faster is used after a few seconds
 *
 * Two ways to be wrong, both cheap. Somebody else's queue on the same bottleneck, or jitter, looks
 * like ours and does not go away when we slow down: the rate never falls below HOLD of what was
 * measured without a cap, and when the queue stays even there the cap is taken away, the path
 * measured again, and the next try comes later each time that this changed nothing. A link that
 * became slower shows in what is delivered: less than the cap lets through, and a queue. Then the
 * cap holds nothing back, so that it costs nothing to take it away at once, and to measure.
 *
 * Only load can say how slow a path is. A window counts when there was work through all of it and
 * through the one before, and while the path is measured, when it brought no more than a quarter
 * more than that one: after a pause TCP finds its rate anew, and a window of that is a measure of
 * TCP. All others may raise what the path is taken to carry and lower nothing. So load in bursts
 * that are shorter than two windows is never held back: there is no knowledge to do it by.
 *
 * Pacing only while something urgent travels: bulk alone is TCP's, so that no error here can cost
 * it anything. A maximum over past rates, as in BBR, was refused: one acknowledgement that covers a
 * recovered loss makes it too high, and it then fills the queue for ten round trips. An estimate
 * from capped windows was refused, too: it can only fall.
 */
#define PACER_WINDOW_MIN_US 200000
#define PACER_QUEUE_MIN_US  5000 /* a path without a standing queue still has this much jitter */
#define PACER_QUEUE_PART    16   /* of the round trip, where that is more */
#define PACER_BELOW         0.97 /* of what the bottleneck carries */
#define PACER_DRAIN_MOST    0.5  /* of the rate, in one window */
#define PACER_HOLD          0.8  /* of the reference */
#define PACER_BINDING       0.9  /* of the cap: what is delivered is what the cap lets through */
#define PACER_SHORTER       0.9  /* than in the window before */
#define PACER_PATIENCE      4    /* windows with a long queue at the lowest rate */
#define PACER_SLOWER        2    /* windows in which the cap does not bind, with a long queue */
#define PACER_RAMP          1.25 /* more than in the window before: TCP is finding its rate */
#define PACER_FREE          4    /* loaded windows to measure without a cap */
#define PACER_FREE_MOST     256

void hdt_pacer_init(struct hdt_pacer *pacer, double floor)
{
    memset(pacer, 0, sizeof(*pacer));
    pacer->floor = floor;
    pacer->free_for = HDT_PACER_MEMORY;
    pacer->free_at_most = PACER_FREE;
}

int64_t hdt_pacer_window_us(int64_t rtt_us)
{
    return 2 * rtt_us > PACER_WINDOW_MIN_US ? 2 * rtt_us : PACER_WINDOW_MIN_US;
}

static double pacer_lowest(const struct hdt_pacer *pacer)
{
    const double hold = PACER_HOLD * pacer->reference;

    return hold > pacer->floor ? hold : pacer->floor;
}

static double pacer_median(const double *seen)
{
    const double low = seen[0] < seen[1] ? seen[0] : seen[1];
    const double high = seen[0] < seen[1] ? seen[1] : seen[0];

    HDT_STATIC_ASSERT(HDT_PACER_MEMORY == 3, "the middle one of three");
    return seen[2] < low ? low : seen[2] > high ? high : seen[2];
}

static void pacer_set(struct hdt_pacer *pacer, double rate)
{
    const double lowest = pacer_lowest(pacer);

    pacer->rate = rate > lowest ? rate : lowest;
}

/* How much slower than the bottleneck drains a queue within a window. */
static double pacer_drain(const struct hdt_pacer_window *window)
{
    const double part = (double)window->queue_us / (double)window->us;

    return PACER_BELOW - (part < PACER_DRAIN_MOST ? part : PACER_DRAIN_MOST);
}

static void pacer_free(struct hdt_pacer *pacer, unsigned n_windows)
{
    pacer->state = HDT_PACER_FREE;
    pacer->rate = 0;
    pacer->n_seen = 0;
    pacer->free_for = n_windows;
}

/* Enough was seen without a cap: begin. Did the last time bring nothing, the path being as it was?
 */
static void pacer_begin(struct hdt_pacer *pacer, const struct hdt_pacer_window *window)
{
    const double before = pacer->reference;

    pacer->reference = pacer_median(pacer->seen);
    if (pacer->n_queued >= PACER_PATIENCE && pacer->reference > PACER_HOLD * before) {
        pacer->free_at_most *= pacer->free_at_most < PACER_FREE_MOST ? 2 : 1;
    } else {
        pacer->free_at_most = PACER_FREE;
    }
    pacer->state = HDT_PACER_PACED;
    pacer->carried = pacer->reference;
    pacer->n_calm = 0;
    pacer->n_queued = 0;
    pacer->n_slower = 0;
    pacer->queue_us = 0;
    pacer_set(pacer, pacer->reference * pacer_drain(window));
}

static void pacer_measure(struct hdt_pacer *pacer, const struct hdt_pacer_window *window)
{
    double *newest = &pacer->seen[(pacer->n_seen + HDT_PACER_MEMORY - 1) % HDT_PACER_MEMORY];

    if (window->is_loaded && pacer->n_row > 0 && window->bytes_per_s <= PACER_RAMP * pacer->last) {
        pacer->seen[pacer->n_seen % HDT_PACER_MEMORY] = window->bytes_per_s;
        pacer->n_seen++;
    } else if (pacer->n_seen > 0 && window->bytes_per_s > *newest) {
        *newest = window->bytes_per_s;
    }
    if (window->is_urgent && pacer->n_seen >= pacer->free_for) {
        pacer_begin(pacer, window);
    }
}

/* At least so much the path carries. */
static void pacer_raise(struct hdt_pacer *pacer, double bytes_per_s)
{
    if (bytes_per_s > pacer->reference) {
        pacer->reference = bytes_per_s;
        pacer_set(pacer, pacer->rate);
    }
    if (bytes_per_s > pacer->carried) {
        pacer->carried = bytes_per_s;
    }
}

/* 2 % while it is about right, then doubling; more than a third would be a long queue at once. */
static double pacer_growth(unsigned n_calm)
{
    return 1.0 + 0.02 * (double)(1u << (n_calm < 5 ? n_calm - 1 : 4));
}

/* There is a queue, and less arrives than even the lowest cap would let through. */
static bool pacer_is_slower(struct hdt_pacer *pacer, const struct hdt_pacer_window *window)
{
    const bool binds = window->bytes_per_s > PACER_BINDING * pacer_lowest(pacer);

    pacer->n_slower = binds ? 0 : pacer->n_slower + 1;
    return pacer->n_slower >= PACER_SLOWER;
}

/* Nothing is left to give up, and the queue does not get shorter. */
static bool pacer_is_in_vain(struct hdt_pacer *pacer, const struct hdt_pacer_window *window)
{
    const bool is_shorter = (double)window->queue_us < PACER_SHORTER * (double)pacer->queue_us;

    pacer->n_queued = pacer->rate > pacer_lowest(pacer) || is_shorter ? 0 : pacer->n_queued + 1;
    return pacer->n_queued >= PACER_PATIENCE;
}

/* There is no long queue. Round trips that are never quite the shortest, at any rate, are no reason
 * to stay below what the path is known to have carried. */
static void pacer_grow(struct hdt_pacer *pacer, double bytes_per_s, bool is_calm)
{
    const bool binds = bytes_per_s > PACER_BINDING * pacer->rate;

    pacer->n_calm = binds && is_calm ? pacer->n_calm + 1 : 0;
    if (!binds) {
        return;
    }
    if (is_calm && pacer->rate < PACER_BELOW * pacer->carried) {
        pacer_set(pacer, PACER_BELOW * pacer->carried); /* the queue is drained */
    } else if (is_calm) {
        pacer_set(pacer, pacer->rate * pacer_growth(pacer->n_calm));
    } else if (pacer->rate < PACER_BELOW * pacer->reference) {
        pacer_set(pacer, pacer->rate * pacer_growth(1));
    }
}

static void pacer_adapt(struct hdt_pacer *pacer, const struct hdt_pacer_window *window)
{
    const int64_t part_us = window->rtt_us / PACER_QUEUE_PART;
    const int64_t long_us = part_us > PACER_QUEUE_MIN_US ? part_us : PACER_QUEUE_MIN_US;
    double rate;

    if (window->bytes_per_s > pacer->reference) {
        pacer->reference = window->bytes_per_s;
    }
    if (window->queue_us <= long_us) {
        pacer->n_queued = 0;
        pacer->n_slower = 0;
        pacer_grow(pacer, window->bytes_per_s, window->queue_us <= long_us / 2);
        return;
    }
    pacer->n_calm = 0;
    if (pacer_is_slower(pacer, window)) {
        pacer->n_queued = 0;
        pacer_free(pacer, HDT_PACER_MEMORY);
        return;
    }
    if (pacer_is_in_vain(pacer, window)) {
        pacer_free(pacer, pacer->free_at_most);
        return;
    }
    pacer->carried = window->bytes_per_s;
    rate = window->bytes_per_s < pacer->rate ? window->bytes_per_s : pacer->rate;
    pacer_set(pacer, rate * pacer_drain(window));
}

double hdt_pacer_window(struct hdt_pacer *pacer, const struct hdt_pacer_window *window)
{
    if (pacer->state == HDT_PACER_FREE) {
        pacer_measure(pacer, window);
    } else if (!window->is_urgent) {
        pacer_free(pacer, HDT_PACER_MEMORY);
        pacer->n_queued = 0;
    } else if (window->is_loaded && pacer->n_row > 0) {
        pacer_adapt(pacer, window);
        pacer->queue_us = window->queue_us;
    } else {
        pacer_raise(pacer, window->bytes_per_s);
    }
    pacer->n_row = window->is_loaded ? pacer->n_row + 1 : 0;
    pacer->last = window->bytes_per_s;
    return pacer->rate;
}

/* Water is poured into vessels: a stream that did not use its share needs only a little more than
 * it used; what is left is for the others in equal parts. */
void hdt_pacer_split(double rate, const double *delivered, double *caps, unsigned n)
{
    const double equal = rate / n;
    double left = rate;
    unsigned n_open = 0, i;

    for (i = 0; i < n; i++) {
        const double need = 1.25 * delivered[i];

        if (caps[i] > 0 && delivered[i] < 0.8 * caps[i] && need < equal) {
            caps[i] = need > equal / 4 ? need : equal / 4;
            left -= caps[i];
        } else {
            caps[i] = 0;
            n_open++;
        }
    }
    for (i = 0; i < n; i++) {
        if (caps[i] == 0) {
            caps[i] = left / n_open;
        }
    }
}
