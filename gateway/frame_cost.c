/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/frame_cost.h"

#include <stdbool.h>

/* A window with fewer frames tells more of what else the gateway does. */
#define WINDOW_FRAMES 8

/* Of the sums, from a window to the next: some ten windows count. */
#define KEEP 0.9

/* So many frames, and the mean is one. */
#define KNOWN_FRAMES 64

static bool has_fallen(const struct hdt_frame_work *a, const struct hdt_frame_work *b)
{
    return b->n_frames < a->n_frames || b->sent_bytes < a->sent_bytes ||
           b->recv_bytes < a->recv_bytes;
}

void hdt_frame_cost_saw(struct hdt_frame_cost *cost, const struct hdt_frame_work *now,
                        double send_s_per_byte, double recv_s_per_byte)
{
    const struct hdt_frame_work last = cost->last;
    double bytes_s;

    cost->last = *now;
    if (send_s_per_byte <= 0 || recv_s_per_byte <= 0 || has_fallen(&last, now) ||
        now->n_frames - last.n_frames < WINDOW_FRAMES) {
        return;
    }
    bytes_s = (double)(now->sent_bytes - last.sent_bytes) * send_s_per_byte +
              (double)(now->recv_bytes - last.recv_bytes) * recv_s_per_byte;
    cost->over_s =
        KEEP * cost->over_s +
        1e-9 * ((double)(now->cpu_ns - last.cpu_ns) - (double)(now->codec_ns - last.codec_ns)) -
        bytes_s;
    cost->n_frames = KEEP * cost->n_frames + (double)(now->n_frames - last.n_frames);
}

double hdt_frame_cost_s(const struct hdt_frame_cost *cost)
{
    return cost->n_frames >= KNOWN_FRAMES && cost->over_s > 0 ? cost->over_s / cost->n_frames : 0;
}
