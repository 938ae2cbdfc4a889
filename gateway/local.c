/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"

/*
 * Flows with both ends at this gateway. The frame is copied from slot to slot, whole, by a codec
 * thread; the rules of credit, order and acknowledgement are those of a flow between gateways, with
 * calls in the place of records. Handing over the source's slot by reference was refused: the two
 * workers' pools are not each other's memory.
 */

/* The other end, when it is open and may be written to. */
static struct hdt_flow_end *local_dst(struct hdt_flow_end *src)
{
    struct hdt_flow_end *dst = hdt_flow_end_find(src->dp, src->key.job, src->key.flow, false);

    return dst != NULL && dst->attached && !dst->waiting && dst->peer == NULL &&
                   dst->conf.epoch == src->conf.epoch
               ? dst
               : NULL;
}

void hdt_local_ask(struct hdt_flow_end *src)
{
    struct hdt_flow_end *dst = local_dst(src);
    struct hdt_frame ack = {0};

    if (dst != NULL) {
        hdt_dst_state(dst, &ack);
        hdt_src_state(src, &ack);
    }
}

void hdt_local_mark(struct hdt_flow_end *src)
{
    if (!src->on_local_list) {
        DL_APPEND2(src->dp->local, src, local_prev, local_next);
        src->on_local_list = true;
        hdt_codecpool_wake(src->dp);
    }
}

void hdt_local_unmark(struct hdt_flow_end *src)
{
    if (src->on_local_list) {
        DL_DELETE2(src->dp->local, src, local_prev, local_next);
        src->on_local_list = false;
    }
}

static bool local_fits(struct hdt_flow_end *dst, const struct hdt_src_frame *frame)
{
    struct hdt_error why = {0};

    if (frame->frame.frame_len <= dst->conf.frame_cap) {
        return true;
    }
    if (!dst->failed) {
        dst->failed = true;
        hdt_error_set(&why, HDT_EPROTO,
                      "cannot deliver frame %llu of flow %u of job %u: it has %u bytes, a slot %u",
                      (unsigned long long)frame->frame.seq, dst->key.flow, dst->key.job,
                      frame->frame.frame_len, dst->conf.frame_cap);
        hdt_dpevent_flow_failed(dst->dp, dst, &why);
    }
    return false;
}

static bool local_take_of(struct hdt_flow_end *src, struct hdt_local_copy *copy)
{
    struct hdt_flow_end *dst = local_dst(src);
    uint64_t seq;

    if (dst == NULL || src->awaiting_state) {
        return false;
    }
    for (seq = src->acked; seq < src->credit && seq < src->acked + src->conf.depth; seq++) {
        struct hdt_src_frame *frame = hdt_src_frame_find(src, seq);
        struct hdt_dst_slot *slot = hdt_dst_slot_at(dst, seq);

        if (frame == NULL || frame->have || frame->copying || !hdt_dst_in_window(dst, seq) ||
            slot->begun || !local_fits(dst, frame)) {
            continue;
        }
        frame->copying = true;
        slot->begun = true;
        slot->seq = seq;
        slot->frame = frame->frame;
        dst->n_writers++;
        copy->src = hdt_flow_end_ref(src);
        copy->dst = hdt_flow_end_ref(dst);
        copy->seq = seq;
        copy->from = frame->bytes;
        copy->to = hdt_dst_slot_bytes(dst, seq);
        copy->len = frame->frame.frame_len;
        return true;
    }
    return false;
}

bool hdt_local_take(struct hdt_dataplane *dp, struct hdt_local_copy *copy)
{
    while (dp->local != NULL) {
        struct hdt_flow_end *src = dp->local;

        hdt_local_unmark(src);
        if (local_take_of(src, copy)) {
            hdt_local_mark(src); /* behind the others */
            return true;
        }
    }
    return false;
}

void hdt_local_done(struct hdt_local_copy *copy)
{
    struct hdt_flow_end *src = copy->src, *dst = copy->dst;
    struct hdt_src_frame *frame = hdt_src_frame_find(src, copy->seq);

    dst->n_writers--;
    if (dst->attached) {
        hdt_dst_copied(dst, copy->seq);
        src->coded_bytes += copy->len;
    } else if (dst->draining && dst->n_writers == 0) {
        hdt_flow_end_drained(dst);
    }
    if (frame != NULL && frame->copying) {
        frame->copying = false;
        frame->have = dst->attached;
        if (src->attached) {
            hdt_local_mark(src);
        }
    }
    hdt_flow_end_unref(src);
    hdt_flow_end_unref(dst);
}
