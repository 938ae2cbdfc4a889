/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_TUNER_H
#define HDT_GATEWAY_TUNER_H

/*
 * How many streams carry what goes to a peer, and by which congestion control: found by trying, on
 * live traffic, and keeping what brings more. Where there is not enough steady load to tell, what
 * is in force without it stays, and is said to. A plain controller: figures in, a choice out; no
 * sockets, no clock, no memory of its own. One thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_TUNER_STREAMS_MAX   64
#define HDT_TUNER_FIRST_STREAMS 4
#define HDT_TUNER_STEPS         7 /* 1, 2, 4, ... 64 streams */
#define HDT_TUNER_CC_MAX        4
#define HDT_TUNER_NAME_CAP      16 /* of a congestion control, as the kernel has it */
#define HDT_TUNER_REASON_CAP    192

struct hdt_tuner_conf {
    unsigned n_streams; /* fixed; 0: to be found */
    char congestion[HDT_TUNER_CC_MAX]
                   [HDT_TUNER_NAME_CAP]; /* what may be used, the first at first */
    unsigned n_congestion;               /* 0: the kernel's, whatever it is; 1: fixed */
    bool is_told;                        /* the first of them is the user's choice */
    bool keeps_queue_short; /* nothing that brings a little more by filling the path's queue */
};

/* What was seen in one window, of two round trips at least. */
struct hdt_tuner_window {
    double bytes_per_s; /* that the peer's kernel acknowledged */
    int64_t rtt_us;     /* the shortest */
    int64_t us;         /* its length */
    unsigned n_up;      /* streams that are there */
    bool is_loaded;     /* there was something to send through all of it, and nothing of ours held
                           it back (shortage.h) */
    bool is_shared;     /* one of the streams was kept for something more urgent */
    bool is_mixed;      /* something more urgent travelled beside, whatever was kept for it */
};

enum hdt_tuner_phase {
    HDT_TUNER_BASE,    /* what does the present choice bring? */
    HDT_TUNER_RECOVER, /* a try was worse: the present choice comes back to its rate */
    HDT_TUNER_SETTLE,  /* another one begins: slow start, dialling */
    HDT_TUNER_MEASURE, /* what does it bring? */
    HDT_TUNER_MATCH,   /* what does the present one bring in the time that a close match takes? */
    HDT_TUNER_REST,    /* chosen; the path is watched */
};

/* Of a congestion control that comes close, and the one that is kept. */
enum hdt_tuner_match {
    HDT_TUNER_MATCH_NONE,
    HDT_TUNER_MATCH_KEPT,  /* the kept one is measured, then */
    HDT_TUNER_MATCH_RIVAL, /* the other one, and, if that brought more, */
    HDT_TUNER_MATCH_AGAIN, /* the kept one again: the path may have changed meanwhile */
    HDT_TUNER_MATCH_OVER,
};

struct hdt_tuner {
    struct hdt_tuner_conf conf;
    unsigned n_streams, congestion; /* in force: a number, an index of conf.congestion */
    unsigned n_tries;               /* begun since the beginning */

    enum hdt_tuner_phase phase;
    unsigned kept_streams, kept_congestion; /* the best so far; while trying, not in force */
    double kept_rate;
    double by_streams[HDT_TUNER_STEPS],
        by_congestion[HDT_TUNER_CC_MAX]; /* bytes a second; 0: not tried */
    bool refused[HDT_TUNER_CC_MAX];      /* by the kernel */
    bool faded[HDT_TUNER_CC_MAX];        /* what it brought did not last, on this path */
    unsigned next_congestion;
    bool has_grown, has_shrunk, is_largest, has_rested;
    bool is_sure; /* what is kept was found on this path; else the default is no worse a guess */

    double sum; /* of n windows; in a match, of bytes in sum_us */
    unsigned n;
    int64_t sum_us;
    enum hdt_tuner_match match; /* of this search */
    unsigned rival;             /* the other one of it */
    double rival_rate;          /* what that brought; 0: not measured */
    bool is_slight;    /* what is kept brings little more than the default: for steady load only */
    bool is_mixed;     /* as the last window was */
    unsigned n_light;  /* windows since there was some */
    double first_rate; /* of a try that brought more and is measured once more; 0: is not */
    bool is_shared;    /* as windows of the base were */
    unsigned n_row;    /* loaded windows in a row, this one included */
    unsigned n_spent;  /* windows, loaded or not, since this try or base began */
    unsigned n_pauses; /* of them that were not */
    unsigned n_hopeless; /* windows in a row of a try that brought less than half */
    unsigned n_unsure;   /* tries in a row that the load did not last for */
    int64_t rtt_us;      /* of the path that was measured */
    unsigned n_strange, n_worse, n_rest;
};

/* `conf` is copied. Begins with 4 streams where the number is to be found. */
void hdt_tuner_init(struct hdt_tuner *tuner, const struct hdt_tuner_conf *conf);

/* One window is over. true: n_streams or congestion changed. */
bool hdt_tuner_window(struct hdt_tuner *tuner, const struct hdt_tuner_window *window);

/* No search has come to its end, nor to the end of the load, yet; there is something to be found.
 */
bool hdt_tuner_is_new(const struct hdt_tuner *tuner);

/* The kernel does not allow the congestion control in force: another one, and this never again. */
void hdt_tuner_refused(struct hdt_tuner *tuner);

/* A new session: streams begin anew, so that what is being measured is measured again. */
void hdt_tuner_restart(struct hdt_tuner *tuner);

/* Name of the congestion control in force; "": the kernel's. */
const char *hdt_tuner_congestion(const struct hdt_tuner *tuner);

/* Why this many streams, why this congestion control: a line for people. */
void hdt_tuner_why_streams(const struct hdt_tuner *tuner, char text[HDT_TUNER_REASON_CAP]);
void hdt_tuner_why_congestion(const struct hdt_tuner *tuner, char text[HDT_TUNER_REASON_CAP]);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_TUNER_H */
