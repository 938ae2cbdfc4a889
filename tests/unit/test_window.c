/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Two ends of a flow and two gateways between them that forget everything at any moment: whatever
 * happens, each frame is taken once and in order, and no slot is written while it holds a frame
 * that may be wanted again.
 */
#include "src/core/window.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

#define DEPTH    3
#define N_FRAMES 400

/* What is on its way: frames one way, one acknowledgement the other way. */
struct wire {
    uint64_t frames[64];
    size_t n_frames;
    bool has_ack;
    uint64_t ack, credit;
};

struct flow {
    struct values_rng rng;
    struct hdt_window src, dst;
    struct wire wire;
    uint64_t src_slots[DEPTH], dst_slots[DEPTH]; /* number of the frame in each, plus one */
    uint64_t n_taken;
    bool is_borrowed;
};

static void src_step(struct flow *f)
{
    if (f->src.end < N_FRAMES && hdt_window_has_room(&f->src)) {
        f->src_slots[f->src.end % DEPTH] = f->src.end + 1;
        f->src.end++;
    }
    if (hdt_window_may_submit(&f->src) && f->wire.n_frames < 64) {
        cr_assert_eq(f->src_slots[f->src.submit % DEPTH], f->src.submit + 1);
        f->wire.frames[f->wire.n_frames++] = f->src.submit;
        hdt_window_submitted(&f->src);
    }
    if (f->wire.has_ack) {
        f->wire.has_ack = false;
        cr_assert_eq(hdt_window_ack(&f->src, f->wire.ack, f->wire.credit), HDT_OK);
    }
}

static void dst_step(struct flow *f)
{
    const char *why = NULL;
    uint64_t seq;

    if (f->wire.n_frames > 0) {
        seq = f->wire.frames[0];
        f->wire.n_frames--;
        for (size_t i = 0; i < f->wire.n_frames; i++) {
            f->wire.frames[i] = f->wire.frames[i + 1];
        }
        switch (hdt_window_check(&f->dst, seq, &why)) {
        case HDT_OK:
            f->dst_slots[seq % DEPTH] = seq + 1;
            f->dst.end++;
            break;
        case HDT_AGAIN:
            hdt_window_came_again(&f->dst, seq);
            break;
        default:
            cr_assert(false, "frame %" PRIu64 ": %s", seq, why);
        }
    }
    if (f->is_borrowed) {
        cr_assert_eq(f->dst_slots[f->dst.acked % DEPTH], f->n_taken + 1);
        f->is_borrowed = false;
        f->n_taken++;
        hdt_window_take(&f->dst);
    } else if (f->dst.acked < f->dst.end) {
        f->is_borrowed = true;
    }
    if (f->dst.ack_due && !f->wire.has_ack) {
        f->dst.ack_due = false;
        f->wire.ack = f->dst.acked;
        f->wire.credit = f->dst.acked + DEPTH;
        f->wire.has_ack = true;
    }
}

/* A connection breaks: what was on it is gone, the end that had it begins anew and both are asked
 * where they are. A flow of which a frame is read is opened when that is over. */
static void wire_break(struct flow *f)
{
    const bool is_src = hdt_values_below(&f->rng, 2) == 0;

    if (!is_src && f->is_borrowed) {
        return;
    }
    f->wire = (struct wire){0};
    hdt_window_reset(is_src ? &f->src : &f->dst, false);
    cr_assert_leq(hdt_window_next_seq(&f->dst), hdt_window_next_seq(&f->src));
    hdt_window_query(&f->src);
    hdt_window_query(&f->dst);
}

Test(window, each_frame_is_taken_once_and_in_order)
{
    struct flow f = {.n_taken = 0};
    unsigned n_steps = 0;

    hdt_values_rng_init(&f.rng, "window");
    hdt_window_init(&f.src, true, DEPTH);
    hdt_window_init(&f.dst, false, DEPTH);
    f.dst.ack_due = true;
    while (f.src.acked < N_FRAMES) {
        cr_assert_lt(++n_steps, 200000u, "no progress at %" PRIu64, f.src.acked);
        switch (hdt_values_below(&f.rng, 20)) {
        case 0:
            wire_break(&f);
            break;
        default:
            hdt_values_below(&f.rng, 2) ? src_step(&f) : dst_step(&f);
        }
        cr_assert(f.src.acked <= f.src.submit && f.src.submit <= f.src.end &&
                  f.src.end <= f.src.acked + DEPTH && f.src.submit <= f.src.handed);
        cr_assert(f.dst.acked <= f.dst.end && f.dst.end <= f.dst.acked + DEPTH);
    }
    cr_expect_eq(f.n_taken, N_FRAMES);
}

Test(window, what_is_against_the_rules_is_refused)
{
    struct hdt_window src, dst;
    const char *why = NULL;

    hdt_window_init(&src, true, DEPTH);
    hdt_window_init(&dst, false, DEPTH);
    cr_expect_eq(hdt_window_check(&src, 0, &why), HDT_EPROTO);
    cr_expect_str_eq(why, "this is the sending end");
    cr_expect_eq(hdt_window_check(&dst, 1, &why), HDT_EPROTO);
    cr_expect_str_eq(why, "frames before it are missing");
    cr_expect_eq(hdt_window_check(&dst, UINT64_MAX, &why), HDT_EPROTO);
    dst.end = DEPTH;
    cr_expect_eq(hdt_window_check(&dst, DEPTH, &why), HDT_EPROTO);
    cr_expect_str_eq(why, "no credit was given for it");
    cr_expect_eq(hdt_window_check(&dst, DEPTH - 1, &why), HDT_AGAIN);

    cr_expect_eq(hdt_window_ack(&dst, 0, DEPTH), HDT_EPROTO);
    src.end = 2;
    cr_expect_eq(hdt_window_ack(&src, 3, DEPTH), HDT_EPROTO);
    cr_expect_eq(hdt_window_ack(&src, 1, DEPTH), HDT_EPROTO); /* it never left this end */
    cr_expect_eq(hdt_window_ack(&src, UINT64_MAX, UINT64_MAX), HDT_EPROTO);
    cr_expect(src.acked == 0 && src.credit == 0);
}

/* Nothing is sent without credit, and credit is of one connection. */
Test(window, credit_is_of_a_connection)
{
    struct hdt_window src;

    hdt_window_init(&src, true, DEPTH);
    src.end = 3;
    cr_expect_not(hdt_window_may_submit(&src));
    cr_expect_eq(hdt_window_ack(&src, 0, 1), HDT_OK);
    cr_expect(hdt_window_may_submit(&src));
    hdt_window_submitted(&src);
    cr_expect_not(hdt_window_may_submit(&src));
    cr_expect_eq(hdt_window_ack(&src, 0, UINT64_MAX), HDT_OK);
    cr_expect(hdt_window_may_submit(&src));
    hdt_window_submitted(&src);
    hdt_window_reset(&src, false);
    cr_expect_not(hdt_window_may_submit(&src));
    cr_expect_eq(src.submit, 0);
    cr_expect_eq(hdt_window_next_seq(&src), 2); /* it was handed over once */
}

/* The connection breaks while a frame is read: it stays, and is not taken twice. */
Test(window, a_borrowed_frame_outlives_the_connection)
{
    struct hdt_window dst;

    hdt_window_init(&dst, false, DEPTH);
    dst.end = 2;
    hdt_window_reset(&dst, true);
    cr_expect_eq(dst.end, 2);
    hdt_window_take(&dst);
    hdt_window_reset(&dst, false);
    cr_expect(dst.acked == 1 && dst.end == 1 && hdt_window_next_seq(&dst) == 1);
    hdt_window_take(&dst); /* one that was borrowed before the reset */
    cr_expect(dst.acked == 2 && dst.end == 2);
}
