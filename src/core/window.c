/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/window.h"

void hdt_window_init(struct hdt_window *window, bool is_src, uint32_t depth)
{
    *window = (struct hdt_window){.is_src = is_src, .depth = depth};
}

void hdt_window_reset(struct hdt_window *window, bool is_borrowed)
{
    window->credit = 0;
    window->submit = window->acked;
    window->ack_due = false;
    if (!window->is_src && !is_borrowed) {
        window->end = window->acked;
    }
}

uint64_t hdt_window_next_seq(const struct hdt_window *window)
{
    return window->is_src ? window->handed : window->acked;
}

/* ---- source ---- */

bool hdt_window_has_room(const struct hdt_window *window)
{
    return window->end < window->acked + window->depth;
}

bool hdt_window_may_submit(const struct hdt_window *window)
{
    return window->is_src && window->submit < window->end && window->submit < window->credit;
}

void hdt_window_submitted(struct hdt_window *window)
{
    window->submit++;
    if (window->handed < window->submit) {
        window->handed = window->submit;
    }
}

enum hdt_status hdt_window_ack(struct hdt_window *window, uint64_t seq, uint64_t credit)
{
    if (!window->is_src || seq > window->handed) {
        return HDT_EPROTO;
    }
    if (window->acked < seq) {
        window->acked = seq;
    }
    if (window->submit < window->acked) {
        window->submit = window->acked;
    }
    if (window->credit < credit) {
        window->credit = credit;
    }
    return HDT_OK;
}

/* ---- destination ---- */

enum hdt_status hdt_window_check(const struct hdt_window *window, uint64_t seq, const char **why)
{
    if (window->is_src) {
        *why = "this is the sending end";
        return HDT_EPROTO;
    }
    if (seq < window->end) {
        return HDT_AGAIN;
    }
    if (seq > window->end) {
        *why = "frames before it are missing";
        return HDT_EPROTO;
    }
    if (!hdt_window_has_room(window)) {
        *why = "no credit was given for it";
        return HDT_EPROTO;
    }
    return HDT_OK;
}

void hdt_window_came_again(struct hdt_window *window, uint64_t seq)
{
    window->ack_due = window->ack_due || seq < window->acked;
}

void hdt_window_take(struct hdt_window *window)
{
    window->acked++;
    if (window->end < window->acked) {
        window->end = window->acked; /* the connection broke while the frame was borrowed */
    }
    window->ack_due = true;
}

/* ---- both ---- */

void hdt_window_query(struct hdt_window *window)
{
    if (window->is_src) {
        window->submit = window->acked;
    } else {
        window->ack_due = true;
    }
}
