/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_PACER_H
#define HDT_GATEWAY_PACER_H

/*
 * How fast bulk may leave for a peer while something more urgent travels beside it: a little slower
 * than the path carries it, so that the queue in front of the bottleneck stays short. A plain
 * controller: figures in, a rate out; no sockets, no clock, no memory of its own. One thread.
 */
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What was seen in one window of hdt_pacer_window_us. */
struct hdt_pacer_window {
    int64_t us;
    double bytes_per_s; /* that the peer's kernel acknowledged, of all bulk */
    int64_t queue_us;   /* round trip now less the shortest there was */
    int64_t rtt_us;     /* the shortest */
    bool is_loaded;     /* bulk had something to send through all of it: else the path carries so
                           much at least, and nothing more is known (shortage.h) */
    bool is_urgent;     /* something more urgent travels beside */
};

enum hdt_pacer_state {
    HDT_PACER_FREE,  /* nothing to protect, or the path is being measured: TCP decides alone */
    HDT_PACER_PACED, /* `rate` holds */
};

#define HDT_PACER_MEMORY 3 /* loaded windows without a cap that say what the path carries */

struct hdt_pacer {
    enum hdt_pacer_state state;
    double rate;      /* bytes a second; 0: no cap */
    double reference; /* that the path carried when it was last measured without a cap, or more */
    double carried;   /* when there was a queue last: what the bottleneck carries */
    double floor;     /* never below */
    double seen[HDT_PACER_MEMORY];
    unsigned n_seen;                 /* since the cap was taken away */
    double last;                     /* that the window before brought */
    unsigned n_row;                  /* loaded windows in a row before this one */
    int64_t queue_us;                /* of the last paced window */
    unsigned n_calm, n_queued;       /* windows in a row with no queue, with one that stays */
    unsigned n_slower;               /* in which the path and not the cap was the limit */
    unsigned free_for, free_at_most; /* loaded windows until the next try, which doubles in vain */
};

/* floor: bytes a second. */
void hdt_pacer_init(struct hdt_pacer *pacer, double floor);

/* How long a window is: a change of the rate must have come back before its effect is judged. */
int64_t hdt_pacer_window_us(int64_t rtt_us);

/* One window is over. The rate that holds from now on, bytes a second; 0: no cap. */
double hdt_pacer_window(struct hdt_pacer *pacer, const struct hdt_pacer_window *window);

/* Shares of `rate` for n streams that delivered delivered[i] bytes a second under caps[i] (0:
 * none): what one cannot use, because it loses packets, the others get. Writes caps. */
void hdt_pacer_split(double rate, const double *delivered, double *caps, unsigned n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_PACER_H */
