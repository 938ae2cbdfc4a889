/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/clock.h"
#include "src/core/deadlines.h"

#include <criterion/criterion.h>
#include <stddef.h>
#include <string.h>

#define S HDT_US_PER_S

Test(deadlines, every_knob_gives_an_order)
{
    struct hdt_deadlines d;
    struct hdt_error err = {0};

    for (int64_t knob_ms = HDT_DEADLINES_KNOB_MIN_MS; knob_ms <= HDT_DEADLINES_KNOB_MAX_MS;
         knob_ms += knob_ms / 7) {
        hdt_deadlines_derive(&d, knob_ms, 0);
        cr_assert_eq(hdt_deadlines_check(&d, &err), HDT_OK, "%ld ms: %s", (long)knob_ms, err.msg);
        hdt_deadlines_derive(&d, knob_ms, hdt_deadlines_job_min_ms(knob_ms));
        cr_assert_eq(hdt_deadlines_check(&d, &err), HDT_OK, "%ld ms: %s", (long)knob_ms, err.msg);
        hdt_deadlines_derive(&d, knob_ms, HDT_DEADLINES_KNOB_MAX_MS);
        cr_assert_eq(hdt_deadlines_check(&d, &err), HDT_OK, "%ld ms: %s", (long)knob_ms, err.msg);
        cr_assert_lt(hdt_deadlines_job_min_ms(knob_ms), knob_ms + 1000);
    }
}

/* What people were promised of the default. */
Test(deadlines, default_bears_half_a_minute_and_tells_soon)
{
    struct hdt_deadlines d;

    hdt_deadlines_derive(&d, 60000, 0);
    cr_expect_gt(d.session_dead_us, 33 * S, "a peer stopped for 30 s must not be closed");
    cr_expect_gt(d.rank_us, d.session_dead_us + 15 * S, "a session opened anew must help");
    cr_expect_leq(d.gone_us, 4 * S, "the end of a worker's process is told within 5 s");
    cr_expect_eq(d.suspect_us, 2 * S);
    cr_expect_leq(d.stop_us, 2 * S);
    cr_expect_leq(d.rank_us, 60 * S, "a real end is noticed within a minute");
}

/* Each out of its place alone: named, with both values. */
Test(deadlines, disorder_is_named)
{
    static const struct {
        size_t at;
        int64_t us;
        const char *names;
    } cases[] = {
        {offsetof(struct hdt_deadlines, heartbeat_us), 0, "the heartbeat"},
        {offsetof(struct hdt_deadlines, suspect_us), S / 2, "suspicion"},
        {offsetof(struct hdt_deadlines, stall_us), 40 * S, "stalled"},
        {offsetof(struct hdt_deadlines, connect_us), 7 * S, "connecting"},
        {offsetof(struct hdt_deadlines, handshake_us), 37 * S, "handshake"},
        {offsetof(struct hdt_deadlines, session_dead_us), 55 * S, "opened anew"},
        {offsetof(struct hdt_deadlines, gone_us), 20 * S, "come back"},
        {offsetof(struct hdt_deadlines, missing_us), 40 * S, "restarted"},
        {offsetof(struct hdt_deadlines, alive_us), 61 * S, "sign of life"},
        {offsetof(struct hdt_deadlines, rank_us), 20 * S, "opened anew"},
        {offsetof(struct hdt_deadlines, start_us), 60 * S, "started"},
        {offsetof(struct hdt_deadlines, back_stop_us), 90 * S, "back stop"},
        {offsetof(struct hdt_deadlines, answer_us), 31 * S, "answer"},
        {offsetof(struct hdt_deadlines, probe_us), 16 * S, "measurement"},
        {offsetof(struct hdt_deadlines, links_us), 30 * S, "links"},
        {offsetof(struct hdt_deadlines, profile_us), 480 * S, "device"},
        {offsetof(struct hdt_deadlines, survey_us), 30 * S, "survey"},
        {offsetof(struct hdt_deadlines, stop_us), 10 * S, "last words"},
        {offsetof(struct hdt_deadlines, follow_us), 130 * S, "follows"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_deadlines d;
        struct hdt_error err = {0};

        hdt_deadlines_derive(&d, 60000, 0);
        memcpy((char *)&d + cases[i].at, &cases[i].us, sizeof(cases[i].us));
        cr_assert_eq(hdt_deadlines_check(&d, &err), HDT_EINVAL, "case %zu passes", i);
        cr_expect(strstr(err.msg, cases[i].names), "case %zu: %s", i, err.msg);
    }
}

/* A job's own timeout moves what the job waits for and nothing of the site. */
Test(deadlines, job_overrides_its_own_waits_alone)
{
    struct hdt_deadlines site, job;
    struct hdt_error err = {0};

    hdt_deadlines_derive(&site, 60000, 0);
    hdt_deadlines_derive(&job, 60000, 300000);
    cr_expect_eq(job.rank_us, 300 * S);
    cr_expect_gt(job.back_stop_us, 300 * S);
    cr_expect_gt(job.follow_us, job.back_stop_us);
    cr_expect_eq(memcmp(&site, &job, offsetof(struct hdt_deadlines, rank_us)), 0);
    hdt_deadlines_derive(&job, 60000, hdt_deadlines_job_min_ms(60000) - 2000);
    cr_expect_eq(hdt_deadlines_check(&job, &err), HDT_EINVAL);
}
