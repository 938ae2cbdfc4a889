/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/txlane.h"
#include "gateway/dp.h"
#include "src/base/buf.h"

#include <stdlib.h>

struct hdt_tx_lane {
    uint32_t job;
    struct hdt_src_frame *frames;
    double start; /* virtual, of its next chunk */
    struct hdt_tx_lane *next;
};

static struct hdt_tx_lane *lane_of(const struct hdt_tx_lanes *lanes,
                                   const struct hdt_src_frame *frame)
{
    struct hdt_tx_lane *lane;

    LL_SEARCH_SCALAR(lanes->all, lane, job, frame->flow->key.job);
    return lane;
}

/* Its own, or one that is of no use to its job any more. */
static struct hdt_tx_lane *lane_get(struct hdt_tx_lanes *lanes, const struct hdt_src_frame *frame)
{
    struct hdt_tx_lane *lane = lane_of(lanes, frame);

    if (lane == NULL) {
        LL_FOREACH(lanes->all, lane)
        {
            if (lane->frames == NULL && lane->start <= lanes->start) {
                break;
            }
        }
    }
    if (lane == NULL) {
        lane = hdt_calloc(1, sizeof(*lane));
        LL_APPEND(lanes->all, lane);
    }
    lane->job = frame->flow->key.job;
    return lane;
}

void hdt_tx_lanes_push(struct hdt_tx_lanes *lanes, struct hdt_src_frame *frame, bool front)
{
    struct hdt_tx_lane *lane = lane_get(lanes, frame);

    if (lane->frames == NULL && lane->start < lanes->start) {
        lane->start = lanes->start;
    }
    if (front) {
        DL_PREPEND(lane->frames, frame);
    } else {
        DL_APPEND(lane->frames, frame);
    }
}

void hdt_tx_lanes_remove(struct hdt_tx_lanes *lanes, struct hdt_src_frame *frame)
{
    struct hdt_tx_lane *lane = lane_of(lanes, frame);

    DL_DELETE(lane->frames, frame);
    if (hdt_tx_lanes_are_empty(lanes)) {
        /* Nobody waits for a turn: whoever comes next begins anew. */
        LL_FOREACH(lanes->all, lane)
        {
            lanes->start = lane->start > lanes->start ? lane->start : lanes->start;
        }
    }
}

struct hdt_src_frame *hdt_tx_lanes_next(struct hdt_tx_lanes *lanes, struct hdt_budgets *budgets,
                                        double least_burst, int64_t now_us)
{
    struct hdt_tx_lane *lane, *first = NULL;

    LL_FOREACH(lanes->all, lane)
    {
        if (lane->frames == NULL) {
            continue;
        }
        if (!hdt_budgets_allow(budgets, lane->frames->flow->budgets, least_burst, now_us)) {
            lane->start = lane->start < lanes->start ? lanes->start : lane->start;
        } else if (first == NULL || lane->start < first->start) {
            first = lane;
        }
    }
    return first != NULL ? first->frames : NULL;
}

void hdt_tx_lanes_took(struct hdt_tx_lanes *lanes, const struct hdt_budgets *budgets,
                       const struct hdt_src_frame *frame, size_t len)
{
    struct hdt_tx_lane *lane = lane_of(lanes, frame);

    lanes->start = lane->start;
    lane->start += (double)len / hdt_budgets_weight(budgets, frame->flow->budgets);
}

bool hdt_tx_lanes_are_empty(const struct hdt_tx_lanes *lanes)
{
    const struct hdt_tx_lane *lane;

    LL_FOREACH(lanes->all, lane)
    {
        if (lane->frames != NULL) {
            return false;
        }
    }
    return true;
}

uint64_t hdt_tx_lanes_bytes(const struct hdt_tx_lanes *lanes, uint64_t chunk_bytes)
{
    const struct hdt_src_frame *frame;
    const struct hdt_tx_lane *lane;
    uint64_t bytes = 0;

    LL_FOREACH(lanes->all, lane)
    {
        DL_FOREACH(lane->frames, frame)
        {
            const uint64_t todo = frame->n_todo * chunk_bytes;

            bytes += todo < frame->frame.frame_len ? todo : frame->frame.frame_len;
        }
    }
    return bytes;
}

void hdt_tx_lanes_free(struct hdt_tx_lanes *lanes)
{
    struct hdt_tx_lane *lane;

    while ((lane = lanes->all) != NULL) {
        HDT_ASSERT(lane->frames == NULL);
        LL_DELETE(lanes->all, lane);
        free(lane);
    }
}
