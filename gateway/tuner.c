/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/tuner.h"
#include "src/base/clock.h"
#include "src/base/error.h"

#include <stdio.h>
#include <string.h>

/*
 * No formula says how many streams a path needs, or whose congestion control fits it: that depends
 * on losses, queues and neighbours that nobody can see. So the choice is tried: the present one is
 * measured, another one is put in force, given time to find its rate, measured as long, and kept
 * when it brings TUNER_GAIN more. First the congestion control, which decides most; then twice the
 * streams, as long as that pays; if it never did, half of them, as long as that costs nothing.
 * After a try that was worse the next one waits until the rate is back. Then it rests until the
 * path is another one (a round trip or a rate far from what was measured), or for a long time of
 * load.
 *
 * A socket that changes to another congestion control keeps its window. On a lossy path CUBIC then
 * lives for seconds on what BBR had found. So what was chosen is watched: where it falls behind
 * what another one brought, that one takes its place, and this one is not tried there again.
 *
 * A second or two do not show a few percent: BBR drains the path's queue every ten seconds, which
 * costs it three or four where round trips are long, and CUBIC nothing where no packet is lost. So
 * at the end of a search a congestion control that came close is matched with the chosen one: each
 * for one such period, and the chosen one again where it brought less. Where the default is beaten
 * by so little, it is for as long as that holds: steady load that nothing urgent travels beside,
 * and the same path. Bursts and a link that becomes faster go better by BBR, and CUBIC keeps the
 * queue full.
 *
 * A try costs what it brings less, so it ends at once when that is half.
 *
 * What a program sends now and then says nothing of the path. So only windows count in which there
 * was work through all of it, and not the first two after a pause, in which TCP finds its rate. A
 * figure is the mean of windows that follow each other without a pause; what seems to be better is
 * measured twice. A try begins when the load has been steady for as long as a step of the search
 * takes, and is given up when the load does not last: then what was found on this path stays, or,
 * where nothing was, the default, and the load has to be steady for twice as long before the next
 * one. Comparing what bursts bring was refused, even many of them: they differ by more than streams
 * do.
 *
 * Trying the other congestion control on half of the streams, beside the first, was refused: BBR
 * and CUBIC on one bottleneck take from each other what neither would lose alone, so the comparison
 * is wrong in both directions.
 */
#define TUNER_LEAST_STREAMS 4 /* fewer save little, and one that stalls is a larger part of all */
#define TUNER_WINDOWS       5 /* that are measured */
#define TUNER_SETTLE        5 /* windows before that: ten round trips, slow start to 100 Mbit/s each */
#define TUNER_SETTLE_MOST   20
#define TUNER_GAIN          1.05
#define TUNER_LOSS          0.97 /* with fewer streams; of the best there was */
#define TUNER_HOPELESS      0.5
#define TUNER_LASTING       0.95 /* of what another congestion control brought */
#define TUNER_CLOSE         0.9  /* of the kept rate: worth a match; */
#define TUNER_CLOSE_DEFAULT 0.6  /* of the default, whose figure may be of a second of draining */
#define TUNER_MATCH_US      (21 * HDT_US_PER_S / 2) /* ten seconds, and the draining */
#define TUNER_MATCH_GAIN    1.02
#define TUNER_MATCH_STRANGE 5   /* windows in a row unlike the path that was measured end it */
#define TUNER_BACK          0.9 /* of the kept rate: recovered */
#define TUNER_RECOVER_MOST  15
#define TUNER_GRACE         2 /* windows of a try that are not judged */
#define TUNER_RAMP          2 /* windows after a pause, in which TCP finds its rate */
#define TUNER_STEADY        10u /* loaded windows in a row before a try, twice as many the next time */
#define TUNER_UNSURE_MOST   5  /* times that this doubles: a minute */
#define TUNER_PAUSES        5  /* windows of a try in which the load paused: it does not last */
#define TUNER_PATIENCE      60 /* windows, loaded or not, in which a try comes to its end */
#define TUNER_FORGET                                                                               \
 300 /* windows on another path without a figure, or without steady load                           \
        for what is little better: the default again */
#define TUNER_HOPELESS_ROW       2
#define TUNER_MATCH_HOPELESS_ROW 5  /* draining lasts for two or three */
#define TUNER_STRANGE            10 /* windows in a row unlike the path that was measured */
#define TUNER_RATE_SHIFT         0.3
#define TUNER_RTT_SHIFT          0.25
#define TUNER_RTT_SHIFT_US       5000
#define TUNER_REST               3000 /* loaded windows: ten minutes, or more where round trips are long */

static unsigned tuner_step(unsigned n_streams)
{
    unsigned step = 0;

    while (step + 1 < HDT_TUNER_STEPS && 2u << step <= n_streams) {
        step++;
    }
    return step;
}

static unsigned tuner_default_streams(const struct hdt_tuner *tuner)
{
    return tuner->conf.n_streams != 0 ? tuner->conf.n_streams : HDT_TUNER_FIRST_STREAMS;
}

/* The first that the kernel has not refused. */
static unsigned tuner_default_congestion(const struct hdt_tuner *tuner)
{
    unsigned first = 0;

    while (first + 1 < tuner->conf.n_congestion && tuner->refused[first]) {
        first++;
    }
    return first;
}

static void tuner_begin_base(struct hdt_tuner *tuner)
{
    tuner->phase = HDT_TUNER_BASE;
    tuner->sum = 0;
    tuner->n = 0;
    tuner->n_spent = 0;
    tuner->next_congestion = 0;
    tuner->has_grown = false;
    tuner->has_shrunk = false;
    tuner->is_largest = false;
    tuner->match = HDT_TUNER_MATCH_NONE;
    memset(tuner->by_streams, 0, sizeof(tuner->by_streams));
    memset(tuner->by_congestion, 0, sizeof(tuner->by_congestion));
}

void hdt_tuner_init(struct hdt_tuner *tuner, const struct hdt_tuner_conf *conf)
{
    memset(tuner, 0, sizeof(*tuner));
    tuner->conf = *conf;
    tuner->n_streams = tuner_default_streams(tuner);
    tuner->kept_streams = tuner->n_streams;
    tuner_begin_base(tuner);
}

/* ---- tries ---- */

static void tuner_try(struct hdt_tuner *tuner, unsigned n_streams, unsigned congestion)
{
    tuner->n_streams = n_streams;
    tuner->congestion = congestion;
    tuner->phase = HDT_TUNER_SETTLE;
    tuner->sum = 0;
    tuner->sum_us = 0;
    tuner->n = 0;
    tuner->first_rate = 0;
    tuner->n_spent = 0;
    tuner->n_pauses = 0;
    tuner->n_hopeless = 0;
    tuner->n_strange = 0;
    tuner->n_tries++;
}

/* What was tried is worse: back, and no judgement before the rate is. */
static void tuner_recover(struct hdt_tuner *tuner)
{
    tuner->n_streams = tuner->kept_streams;
    tuner->congestion = tuner->kept_congestion;
    tuner->phase = HDT_TUNER_RECOVER;
    tuner->n = 0;
    tuner->n_spent = 0;
    tuner->n_pauses = 0;
}

/* The load was not steady for long enough, or the path did not stay what it was. */
static void tuner_give_up(struct hdt_tuner *tuner)
{
    if (!tuner->is_sure) {
        tuner->kept_streams = tuner_default_streams(tuner);
        tuner->kept_congestion = tuner_default_congestion(tuner);
        tuner->is_slight = false;
    }
    tuner->n_streams = tuner->kept_streams;
    tuner->congestion = tuner->kept_congestion;
    tuner->n_unsure++;
    tuner->n_row = 0;
    tuner_begin_base(tuner);
}

static bool tuner_next_congestion(struct hdt_tuner *tuner)
{
    while (tuner->next_congestion < tuner->conf.n_congestion) {
        const unsigned next = tuner->next_congestion++;

        if (!tuner->refused[next] && !tuner->faded[next] && tuner->by_congestion[next] == 0) {
            tuner_try(tuner, tuner->kept_streams, next);
            return true;
        }
    }
    return false;
}

/* The search is over. */
static void tuner_rest(struct hdt_tuner *tuner)
{
    tuner->n_streams = tuner->kept_streams;
    tuner->congestion = tuner->kept_congestion;
    tuner->phase = HDT_TUNER_REST;
    tuner->has_rested = true;
    tuner->is_sure = true;
    tuner->n_unsure = 0;
    tuner->n_rest = 0;
    tuner->n_strange = 0;
    tuner->n_worse = 0;
}

/* The best of the others that came close; what is kept: none did. */
static unsigned tuner_rival(const struct hdt_tuner *tuner)
{
    const unsigned first = tuner_default_congestion(tuner);
    unsigned best = tuner->kept_congestion;

    for (unsigned i = 0; i < tuner->conf.n_congestion; i++) {
        const double close = i == first ? TUNER_CLOSE_DEFAULT : TUNER_CLOSE;

        if (i != tuner->kept_congestion && !tuner->refused[i] && !tuner->faded[i] &&
            tuner->by_congestion[i] > close * tuner->kept_rate &&
            (best == tuner->kept_congestion ||
             tuner->by_congestion[i] > tuner->by_congestion[best])) {
            best = i;
        }
    }
    return best;
}

/* The kept one's turn in a match, if there is one. What the search found is found, whatever comes
 * of it. Where the queue is to be short only the default may be the other one: its figure may have
 * been of a second of draining. */
static bool tuner_begin_match(struct hdt_tuner *tuner)
{
    if (tuner->match == HDT_TUNER_MATCH_NONE) {
        tuner->rival = tuner_rival(tuner);
        tuner->rival_rate = 0;
        if (tuner->is_mixed || tuner->rival == tuner->kept_congestion ||
            (tuner->conf.keeps_queue_short && tuner->rival != tuner_default_congestion(tuner))) {
            return false;
        }
        tuner->match = HDT_TUNER_MATCH_KEPT;
    } else if (tuner->match != HDT_TUNER_MATCH_AGAIN) {
        return false;
    }
    tuner_rest(tuner);
    tuner->phase = HDT_TUNER_MATCH;
    tuner->sum = 0;
    tuner->sum_us = 0;
    tuner->n_spent = 0;
    tuner->n_pauses = 0;
    return true;
}

static void tuner_next(struct hdt_tuner *tuner)
{
    const unsigned n = tuner->kept_streams;

    if (tuner_next_congestion(tuner)) {
        return;
    }
    if (tuner->conf.n_streams == 0) {
        if (!tuner->is_largest && !tuner->has_shrunk && 2 * n <= HDT_TUNER_STREAMS_MAX) {
            tuner_try(tuner, 2 * n, tuner->kept_congestion);
            return;
        }
        if (!tuner->has_grown && n / 2 >= TUNER_LEAST_STREAMS &&
            tuner->by_streams[tuner_step(n / 2)] == 0) {
            tuner_try(tuner, n / 2, tuner->kept_congestion);
            return;
        }
    }
    if (!tuner_begin_match(tuner)) {
        tuner_rest(tuner);
    }
}

static double tuner_best(const struct hdt_tuner *tuner)
{
    double best = 0;

    for (size_t i = 0; i < HDT_TUNER_STEPS; i++) {
        best = tuner->by_streams[i] > best ? tuner->by_streams[i] : best;
    }
    return best;
}

/* Does what is tried bring enough to take the place of what is kept? */
static bool tuner_is_better(const struct hdt_tuner *tuner, double rate)
{
    if (tuner->n_streams < tuner->kept_streams) {
        return rate >= TUNER_LOSS * tuner_best(tuner);
    }
    return rate > TUNER_GAIN * tuner->kept_rate;
}

static void tuner_note(struct hdt_tuner *tuner, double rate, bool is_better)
{
    const unsigned n = tuner->n_streams;

    if (tuner->congestion != tuner->kept_congestion) {
        tuner->by_congestion[tuner->congestion] = rate;
        if (is_better) {
            memset(tuner->by_streams, 0, sizeof(tuner->by_streams));
            tuner->by_streams[tuner_step(n)] = rate;
        }
        return;
    }
    tuner->by_streams[tuner_step(n)] = rate;
    if (n < tuner->kept_streams) {
        tuner->has_shrunk = is_better;
    } else {
        tuner->has_grown = tuner->has_grown || is_better;
        tuner->is_largest = tuner->is_largest || !is_better;
    }
}

/* The try is over; `rate` is what it brought. */
static void tuner_judge(struct hdt_tuner *tuner, double rate)
{
    const bool is_better = tuner_is_better(tuner, rate);

    tuner_note(tuner, rate, is_better);
    if (is_better) {
        if (tuner->congestion != tuner->kept_congestion) {
            tuner->is_slight = false;
        }
        tuner->kept_streams = tuner->n_streams;
        tuner->kept_congestion = tuner->congestion;
        tuner->kept_rate = rate;
        tuner->is_sure = true;
        tuner_next(tuner);
    } else {
        tuner_recover(tuner);
    }
}

/* A figure for the try is there. What is not better is out; what is, is measured once more, and the
 * lower figure counts. */
static void tuner_measured(struct hdt_tuner *tuner, double rate)
{
    if (tuner->first_rate > 0 || !tuner_is_better(tuner, rate)) {
        tuner_judge(tuner,
                    tuner->first_rate > 0 && tuner->first_rate < rate ? tuner->first_rate : rate);
        return;
    }
    tuner->first_rate = rate;
    tuner->n = 0;
    tuner->sum = 0;
}

/* ---- windows ---- */

static bool tuner_add(struct hdt_tuner *tuner, double bytes_per_s)
{
    tuner->sum += bytes_per_s;
    tuner->n++;
    return tuner->n >= TUNER_WINDOWS;
}

/* The same for a match, whose windows count by their length. */
static bool tuner_add_long(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    tuner->sum += window->bytes_per_s * (double)window->us;
    tuner->sum_us += window->us;
    return tuner->sum_us >= TUNER_MATCH_US;
}

/* What is kept from now on, by its figure of a match. */
static void tuner_keep(struct hdt_tuner *tuner, unsigned congestion)
{
    tuner->kept_congestion = congestion;
    tuner->kept_rate = tuner->by_congestion[congestion];
    memset(tuner->by_streams, 0, sizeof(tuner->by_streams));
    tuner->by_streams[tuner_step(tuner->kept_streams)] = tuner->kept_rate;
}

/* Where the default came close to what is kept, that is for steady load only, and not where the
 * queue is to be short. */
static void tuner_match_is_over(struct hdt_tuner *tuner)
{
    const unsigned first = tuner_default_congestion(tuner);

    tuner->is_slight = tuner->match == HDT_TUNER_MATCH_OVER && tuner->kept_congestion != first &&
                       TUNER_GAIN * tuner->by_congestion[first] > tuner->kept_rate;
    if (tuner->is_slight && tuner->conf.keeps_queue_short) {
        tuner->is_slight = false;
        tuner_keep(tuner, first);
    }
}

/* The try is over: a match's, or another. */
static void tuner_tried(struct hdt_tuner *tuner, double rate)
{
    if (tuner->match == HDT_TUNER_MATCH_RIVAL) {
        tuner->rival_rate = rate;
        tuner->by_congestion[tuner->rival] = rate;
        tuner->match = rate > TUNER_MATCH_GAIN * tuner->kept_rate ? HDT_TUNER_MATCH_AGAIN
                                                                  : HDT_TUNER_MATCH_OVER;
        tuner_match_is_over(tuner);
        tuner_recover(tuner);
    } else {
        tuner_judge(tuner, rate);
    }
}

static bool tuner_is_hopeless(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    const bool is_hopeless = window->bytes_per_s < TUNER_HOPELESS * tuner->kept_rate;

    tuner->n_hopeless = is_hopeless ? tuner->n_hopeless + 1 : 0;
    return tuner->n_hopeless >=
           (tuner->match == HDT_TUNER_MATCH_RIVAL ? TUNER_MATCH_HOPELESS_ROW : TUNER_HOPELESS_ROW);
}

static void tuner_settle(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    tuner->n++;
    if (tuner->n > TUNER_GRACE && tuner_is_hopeless(tuner, window)) {
        tuner_tried(tuner, window->bytes_per_s);
    } else if (tuner->n >= TUNER_SETTLE && window->n_up >= tuner->n_streams) {
        tuner->phase = HDT_TUNER_MEASURE;
        tuner->n = 0;
        tuner->sum = 0;
        tuner->n_hopeless = 0;
    } else if (tuner->n >= TUNER_SETTLE_MOST) { /* the peer has no memory for so many */
        tuner->is_largest = true;
        tuner_recover(tuner);
    }
}

static bool tuner_has_other_rtt(const struct hdt_tuner *tuner, int64_t rtt_us)
{
    const int64_t apart_us =
        rtt_us > tuner->rtt_us ? rtt_us - tuner->rtt_us : tuner->rtt_us - rtt_us;

    /* What fills the queue makes the round trip longer by it, also the shortest there is. */
    if (tuner->is_slight && rtt_us > tuner->rtt_us) {
        return false;
    }
    return apart_us > TUNER_RTT_SHIFT_US &&
           (double)apart_us > TUNER_RTT_SHIFT * (double)tuner->rtt_us;
}

static bool tuner_is_strange(const struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    return window->bytes_per_s < (1 - TUNER_RATE_SHIFT) * tuner->kept_rate ||
           window->bytes_per_s > (1 + TUNER_RATE_SHIFT) * tuner->kept_rate ||
           tuner_has_other_rtt(tuner, window->rtt_us);
}

/* Another congestion control that brought more, when it was tried, than this one does now. */
static unsigned tuner_better_congestion(const struct hdt_tuner *tuner, double bytes_per_s)
{
    unsigned best = tuner->congestion;

    for (unsigned i = 0; i < tuner->conf.n_congestion; i++) {
        if (i != tuner->congestion && TUNER_LASTING * tuner->by_congestion[i] > bytes_per_s &&
            (best == tuner->congestion || tuner->by_congestion[i] > tuner->by_congestion[best])) {
            best = i;
        }
    }
    return best;
}

static void tuner_change_back(struct hdt_tuner *tuner, unsigned congestion)
{
    tuner->faded[tuner->congestion] = true;
    tuner->is_slight = false;
    tuner->kept_congestion = congestion;
    tuner->kept_rate = tuner->by_congestion[congestion];
    memset(tuner->by_streams, 0, sizeof(tuner->by_streams));
    tuner->by_streams[tuner_step(tuner->n_streams)] = tuner->kept_rate;
    tuner->is_largest = false;
    tuner->has_grown = false;
    tuner_recover(tuner);
}

static void tuner_watch(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    const unsigned better = tuner_better_congestion(tuner, window->bytes_per_s);

    tuner->n_rest++;
    tuner->n_worse = better != tuner->congestion ? tuner->n_worse + 1 : 0;
    tuner->n_strange = tuner_is_strange(tuner, window) ? tuner->n_strange + 1 : 0;
    if (tuner->n_worse >= TUNER_STRANGE && !tuner_has_other_rtt(tuner, window->rtt_us) &&
        !tuner->faded[better]) {
        tuner_change_back(tuner, better);
    } else if (tuner->n_strange >= TUNER_STRANGE || tuner->n_rest >= TUNER_REST) {
        if (tuner_has_other_rtt(tuner, window->rtt_us)) {
            memset(tuner->faded, 0, sizeof(tuner->faded));
        }
        tuner->is_sure = tuner->n_strange < TUNER_STRANGE;
        if (tuner->is_slight && !tuner->is_sure) {
            tuner_give_up(tuner);
        } else {
            tuner_begin_base(tuner);
        }
    }
}

static void tuner_base(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    const unsigned doubled =
        tuner->n_unsure < TUNER_UNSURE_MOST ? tuner->n_unsure : TUNER_UNSURE_MOST;

    if (tuner->n == 0) {
        tuner->is_shared = window->is_shared;
    }
    /* Of a load that lasts the latest windows count. */
    if (tuner_add(tuner, window->bytes_per_s) && tuner->n_row < TUNER_STEADY << doubled) {
        tuner->sum -= tuner->sum / tuner->n;
        tuner->n--;
    }
    if (tuner->n >= TUNER_WINDOWS) {
        tuner->kept_rate = tuner->sum / tuner->n;
        tuner->rtt_us = window->rtt_us;
        tuner->by_streams[tuner_step(tuner->n_streams)] = tuner->kept_rate;
        tuner->by_congestion[tuner->congestion] = tuner->kept_rate;
        tuner_next(tuner);
    }
}

/* A match is of one path. */
static bool tuner_match_is_off(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    tuner->n_strange = tuner_is_strange(tuner, window) ? tuner->n_strange + 1 : 0;
    return tuner->n_strange >= TUNER_MATCH_STRANGE;
}

/* On another one the default is as good a guess. */
static void tuner_leave_match(struct hdt_tuner *tuner)
{
    tuner->is_sure = false;
    tuner_give_up(tuner);
}

/* The kept one was there for its time. First the other one follows; then, if that brought more than
 * both times, it takes its place. */
static void tuner_match(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    double rate;

    if (tuner_match_is_off(tuner, window)) {
        tuner_leave_match(tuner);
        return;
    }
    if (!tuner_add_long(tuner, window)) {
        return;
    }
    rate = tuner->sum / (double)tuner->sum_us;
    if (tuner->match == HDT_TUNER_MATCH_AGAIN && rate < tuner->kept_rate) {
        rate = tuner->kept_rate;
    }
    tuner->kept_rate = rate;
    tuner->by_congestion[tuner->congestion] = rate;
    tuner->by_streams[tuner_step(tuner->n_streams)] = rate;
    if (tuner->match == HDT_TUNER_MATCH_KEPT) {
        tuner->match = HDT_TUNER_MATCH_RIVAL;
        tuner_try(tuner, tuner->kept_streams, tuner->rival);
        return;
    }
    tuner->match = HDT_TUNER_MATCH_OVER;
    if (tuner->rival_rate > TUNER_MATCH_GAIN * rate) {
        tuner_keep(tuner, tuner->rival);
    }
    tuner_match_is_over(tuner);
    tuner_rest(tuner);
}

/* The other one may itself bring so much less; if it is the path, the kept one does not come back
 * to its rate. */
static void tuner_measure_rival(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    const bool is_off = tuner_match_is_off(tuner, window);

    if (is_off && window->bytes_per_s > tuner->kept_rate) {
        tuner_leave_match(tuner);
    } else if (is_off) {
        tuner_tried(tuner, window->bytes_per_s);
    } else if (tuner_add_long(tuner, window)) {
        tuner_tried(tuner, tuner->sum / (double)tuner->sum_us);
    }
}

static void tuner_measure(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    if (tuner->match == HDT_TUNER_MATCH_RIVAL) {
        tuner_measure_rival(tuner, window);
    } else if (tuner_add(tuner, window->bytes_per_s)) {
        tuner_measured(tuner, tuner->sum / tuner->n);
    }
}

/* Back to what is kept, which has to bring what it brought: else nothing can be compared with it.
 */
static void tuner_back(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    tuner->n++;
    if (window->bytes_per_s >= TUNER_BACK * tuner->kept_rate) {
        tuner_next(tuner);
    } else if (tuner->n >= TUNER_RECOVER_MOST) {
        tuner_give_up(tuner);
    }
}

static void tuner_loaded(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    switch (tuner->phase) {
    case HDT_TUNER_BASE:
        tuner_base(tuner, window);
        break;
    case HDT_TUNER_RECOVER:
        tuner_back(tuner, window);
        break;
    case HDT_TUNER_SETTLE:
        tuner_settle(tuner, window);
        break;
    case HDT_TUNER_MEASURE:
        tuner_measure(tuner, window);
        break;
    case HDT_TUNER_MATCH:
        tuner_match(tuner, window);
        break;
    case HDT_TUNER_REST:
        tuner_watch(tuner, window);
        break;
    }
}

/* One half of a match is measured. Draining stops a sender that waits for answers, so that the
 * windows in which it does, loaded or not, are part of what it costs; a load that pauses now and
 * then makes one half look worse, and the kept one has two. */
static bool tuner_is_timed(const struct hdt_tuner *tuner)
{
    return tuner->phase == HDT_TUNER_MATCH ||
           (tuner->phase == HDT_TUNER_MEASURE && tuner->match == HDT_TUNER_MATCH_RIVAL);
}

/* The load paused, or is another one: a figure of few windows is of those in a row. */
static void tuner_pause(struct hdt_tuner *tuner)
{
    tuner->n_pauses++;
    tuner->n_row = 0;
    tuner->n_strange = 0;
    tuner->n_worse = 0;
    tuner->n_hopeless = 0;
    if (!tuner_is_timed(tuner) &&
        (tuner->phase == HDT_TUNER_BASE || tuner->phase == HDT_TUNER_MEASURE)) {
        tuner->n = 0;
        tuner->sum = 0;
        tuner->first_rate = 0;
    }
}

/* Nothing will come of this try, nor, on another path, of waiting for load to find a better choice
 * than one that fitted the path before. */
static bool tuner_is_in_vain(const struct hdt_tuner *tuner)
{
    const bool is_default = tuner->kept_streams == tuner_default_streams(tuner) &&
                            tuner->kept_congestion == tuner_default_congestion(tuner);

    if (tuner->phase == HDT_TUNER_BASE) {
        return !tuner->is_sure && !is_default && tuner->n_spent >= TUNER_FORGET;
    }
    return tuner->phase != HDT_TUNER_REST &&
           (tuner->n_pauses > TUNER_PAUSES ||
            (tuner->n_spent >= TUNER_PATIENCE && tuner->match == HDT_TUNER_MATCH_NONE));
}

bool hdt_tuner_window(struct hdt_tuner *tuner, const struct hdt_tuner_window *window)
{
    const unsigned n_streams = tuner->n_streams, congestion = tuner->congestion;
    const bool is_other = tuner->phase != HDT_TUNER_REST && tuner->n_row > TUNER_RAMP &&
                          window->is_shared != tuner->is_shared;

    tuner->n_spent++;
    tuner->is_mixed = window->is_mixed;
    if (!window->is_loaded || is_other) {
        tuner_pause(tuner);
    } else {
        tuner->n_row++;
    }
    if (tuner->n_row > TUNER_RAMP || tuner_is_timed(tuner)) {
        tuner_loaded(tuner, window);
    }
    tuner->n_light = tuner->n_row >= TUNER_STEADY && !window->is_mixed ? 0 : tuner->n_light + 1;
    if (tuner->is_slight && tuner->n_light >= TUNER_FORGET) {
        tuner->is_sure = false;
        tuner_give_up(tuner);
    } else if (tuner_is_in_vain(tuner)) {
        if (tuner->match == HDT_TUNER_MATCH_NONE) {
            tuner_give_up(tuner);
        } else {
            tuner_rest(tuner);
        }
    }
    return n_streams != tuner->n_streams || congestion != tuner->congestion;
}

void hdt_tuner_restart(struct hdt_tuner *tuner)
{
    tuner_pause(tuner);
    if (tuner->match != HDT_TUNER_MATCH_NONE) {
        tuner_rest(tuner);
    } else if (tuner->phase != HDT_TUNER_REST) {
        tuner->n_streams = tuner->kept_streams;
        tuner->congestion = tuner->kept_congestion;
        tuner_begin_base(tuner);
    }
}

bool hdt_tuner_is_new(const struct hdt_tuner *tuner)
{
    return !tuner->has_rested && tuner->n_unsure == 0 &&
           (tuner->conf.n_streams == 0 || tuner->conf.n_congestion > 1);
}

void hdt_tuner_refused(struct hdt_tuner *tuner)
{
    tuner->refused[tuner->congestion] = true;
    if (tuner->congestion != tuner->kept_congestion) {
        tuner_recover(tuner);
    }
}

/* ---- words ---- */

const char *hdt_tuner_congestion(const struct hdt_tuner *tuner)
{
    return tuner->conf.n_congestion > 0 ? tuner->conf.congestion[tuner->congestion] : "";
}

static size_t tuner_say(char *text, size_t at, const char *name, double bytes_per_s, bool is_first)
{
    const int n =
        snprintf(text + at, HDT_TUNER_REASON_CAP - at,
                 is_first ? "%s gave %.0f Mbit/s" : ", %s gave %.0f", name, 8e-6 * bytes_per_s);

    return at + (size_t)n < HDT_TUNER_REASON_CAP ? at + (size_t)n : HDT_TUNER_REASON_CAP - 1;
}

static const char *tuner_no_figure(const struct hdt_tuner *tuner)
{
    return tuner->n_unsure > 0 ? "not enough load to tell" : "not measured under load yet";
}

void hdt_tuner_why_streams(const struct hdt_tuner *tuner, char text[HDT_TUNER_REASON_CAP])
{
    size_t at = (size_t)snprintf(text, HDT_TUNER_REASON_CAP, "%u streams: ", tuner->n_streams);
    bool is_first = true;
    char name[8];

    if (tuner->conf.n_streams != 0) {
        snprintf(text + at, HDT_TUNER_REASON_CAP - at, "so configured");
        return;
    }
    for (unsigned i = 0; i < HDT_TUNER_STEPS; i++) {
        if (tuner->by_streams[i] > 0) {
            snprintf(name, sizeof(name), "%u", 1u << i);
            at = tuner_say(text, at, name, tuner->by_streams[i], is_first);
            is_first = false;
        }
    }
    if (is_first) {
        snprintf(text + at, HDT_TUNER_REASON_CAP - at, "%s", tuner_no_figure(tuner));
    }
}

void hdt_tuner_why_congestion(const struct hdt_tuner *tuner, char text[HDT_TUNER_REASON_CAP])
{
    const char *used = hdt_tuner_congestion(tuner);
    bool is_first = true;
    size_t at;

    at =
        (size_t)snprintf(text, HDT_TUNER_REASON_CAP, "%s: ", *used ? used : "the kernel's default");
    if (tuner->conf.n_congestion < 2) {
        snprintf(text + at, HDT_TUNER_REASON_CAP - at, "%s",
                 tuner->conf.is_told ? "so configured" : "there is no other");
        return;
    }
    for (unsigned i = 0; i < tuner->conf.n_congestion; i++) {
        if (tuner->by_congestion[i] > 0) {
            at = tuner_say(text, at, tuner->conf.congestion[i], tuner->by_congestion[i], is_first);
            is_first = false;
        }
    }
    if (is_first) {
        snprintf(text + at, HDT_TUNER_REASON_CAP - at, "%s", tuner_no_figure(tuner));
    }
}
