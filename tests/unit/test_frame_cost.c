/* SPDX-License-Identifier: Apache-2.0 */
/* What a frame costs a gateway, from counts of a process whose costs are known. */
#include "config.h"

#include "gateway/frame_cost.h"

#include <criterion/criterion.h>
#include <math.h>

#define SEND_S  2e-9
#define RECV_S  3e-9
#define FRAME_S 400e-6

/* One second: frames of 100 kB each way, half of the time in the codec. */
static void second_pass(struct hdt_frame_work *work, uint64_t n_each_way, double frame_s)
{
    const uint64_t bytes = n_each_way * 100000, codec_ns = n_each_way * 1300000;

    work->n_frames += 2 * n_each_way;
    work->sent_bytes += bytes;
    work->recv_bytes += bytes;
    work->codec_ns += codec_ns;
    work->cpu_ns +=
        (int64_t)codec_ns +
        (int64_t)(1e9 * ((double)bytes * (SEND_S + RECV_S) + 2.0 * (double)n_each_way * frame_s));
}

static double seconds_pass(struct hdt_frame_cost *cost, struct hdt_frame_work *work, int n,
                           uint64_t n_each_way, double frame_s)
{
    for (int i = 0; i < n; i++) {
        second_pass(work, n_each_way, frame_s);
        hdt_frame_cost_saw(cost, work, SEND_S, RECV_S);
    }
    return hdt_frame_cost_s(cost);
}

Test(frame_cost, of_a_job)
{
    struct hdt_frame_cost cost = {0};
    struct hdt_frame_work work = {.cpu_ns = 7000000000, .sent_bytes = 1u << 30};
    double got;

    hdt_frame_cost_saw(&cost, &work, SEND_S, RECV_S);
    got = seconds_pass(&cost, &work, 10, 16, FRAME_S);
    cr_expect(fabs(got / FRAME_S - 1) < 1e-3, "%g s", got);
    got = seconds_pass(&cost, &work, 8, 16, 2 * FRAME_S); /* another job */
    cr_expect(fabs(got / (2 * FRAME_S) - 1) < 1e-3, "%g s", got);
}

/* Filler of a probe has no frames, and its bytes are known. */
Test(frame_cost, a_probe_beside_a_job)
{
    struct hdt_frame_cost cost = {0};
    struct hdt_frame_work work = {0};
    double got;

    seconds_pass(&cost, &work, 10, 16, FRAME_S);
    work.sent_bytes += 100000000;
    work.cpu_ns += (int64_t)(1e9 * 100000000 * SEND_S);
    got = seconds_pass(&cost, &work, 1, 16, FRAME_S);
    cr_expect(fabs(got / FRAME_S - 1) < 1e-3, "%g s", got);
}

Test(frame_cost, little_says_nothing)
{
    struct hdt_frame_cost cost = {0};
    struct hdt_frame_work work = {0};
    double got = seconds_pass(&cost, &work, 100, 2, FRAME_S);

    cr_expect(got == 0, "%g s of a gateway that hardly works", got);
    got = seconds_pass(&cost, &work, 1, 16, FRAME_S);
    cr_expect(got == 0, "%g s after one window", got);
}

/* Less CPU time than the bytes should take: no frame gives time back. */
Test(frame_cost, is_never_negative)
{
    struct hdt_frame_cost cost = {0};
    struct hdt_frame_work work = {0};
    double got = seconds_pass(&cost, &work, 20, 16, -FRAME_S);

    cr_expect(got == 0, "%g s", got);
}

/* A flow or a connection that ends takes its share from the sums. */
Test(frame_cost, flows_and_connections_end)
{
    for (int which = 0; which < 3; which++) {
        struct hdt_frame_cost cost = {0};
        struct hdt_frame_work work = {0};
        uint64_t *const sums[] = {&work.n_frames, &work.sent_bytes, &work.recv_bytes};
        double got;

        seconds_pass(&cost, &work, 2, 16, FRAME_S);
        for (int i = 0; i < 10; i++) {
            second_pass(&work, 16, FRAME_S);
            work.cpu_ns += 3000000000;
            *sums[which] = 100 - (uint64_t)i; /* less than before */
            hdt_frame_cost_saw(&cost, &work, SEND_S, RECV_S);
        }
        got = seconds_pass(&cost, &work, 4, 16, FRAME_S);
        cr_expect(fabs(got / FRAME_S - 1) < 1e-3, "%g s", got);
    }
}

/* A plan is made, a page read, now and then; strangers knock without an end. */
Test(frame_cost, of_other_work_nothing_is_charged)
{
    struct hdt_frame_cost cost = {0};
    struct hdt_frame_work work = {0};
    double got;

    for (int i = 0; i < 60; i++) {
        work.cpu_ns += i % 3 == 0 ? 300000000 : 0;
        got = seconds_pass(&cost, &work, 1, 16, FRAME_S);
    }
    cr_expect(fabs(got / FRAME_S - 1) < 1e-3, "%g s", got);
    for (int i = 0; i < 60; i++) {
        work.cpu_ns += 300000000;
        work.n_strangers += 50;
        got = seconds_pass(&cost, &work, 1, 16, FRAME_S);
    }
    cr_expect(fabs(got / FRAME_S - 1) < 1e-3, "%g s", got);
}

Test(frame_cost, without_a_probe)
{
    struct hdt_frame_cost cost = {0};
    struct hdt_frame_work work = {0};

    for (int i = 0; i < 20; i++) {
        second_pass(&work, 16, FRAME_S);
        hdt_frame_cost_saw(&cost, &work, 0, 0);
    }
    cr_expect(hdt_frame_cost_s(&cost) == 0);
}
