/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/frame_cost.h"
#include "src/base/median.h"

#include <stdbool.h>
#include <string.h>

/* A window with fewer frames tells more of what else the gateway does. */
#define WINDOW_FRAMES 8

/* So many windows, and the median is one. */
#define KNOWN_WINDOWS 5

/* Less is nothing. */
#define LEAST_S 1e-9

static bool tells(const struct hdt_frame_work *a, const struct hdt_frame_work *b)
{
    return b->n_frames >= a->n_frames + WINDOW_FRAMES && b->sent_bytes >= a->sent_bytes &&
           b->recv_bytes >= a->recv_bytes && b->n_strangers == a->n_strangers;
}

void hdt_frame_cost_saw(struct hdt_frame_cost *cost, const struct hdt_frame_work *now,
                        double send_s_per_byte, double recv_s_per_byte)
{
    const struct hdt_frame_work last = cost->last;
    double bytes_s, cpu_s;

    cost->last = *now;
    if (send_s_per_byte <= 0 || recv_s_per_byte <= 0 || !tells(&last, now)) {
        return;
    }
    bytes_s = (double)(now->sent_bytes - last.sent_bytes) * send_s_per_byte +
              (double)(now->recv_bytes - last.recv_bytes) * recv_s_per_byte;
    cpu_s = 1e-9 * ((double)(now->cpu_ns - last.cpu_ns) - (double)(now->codec_ns - last.codec_ns));
    cost->frame_s[cost->n++ % HDT_FRAME_COST_WINDOWS] =
        (cpu_s - bytes_s) / (double)(now->n_frames - last.n_frames);
}

double hdt_frame_cost_s(const struct hdt_frame_cost *cost)
{
    const unsigned n = cost->n < HDT_FRAME_COST_WINDOWS ? cost->n : HDT_FRAME_COST_WINDOWS;
    double sorted[HDT_FRAME_COST_WINDOWS], frame_s;

    if (n < KNOWN_WINDOWS) {
        return 0;
    }
    memcpy(sorted, cost->frame_s, n * sizeof(sorted[0]));
    frame_s = hdt_median(sorted, n);
    return frame_s >= LEAST_S ? frame_s : 0;
}
