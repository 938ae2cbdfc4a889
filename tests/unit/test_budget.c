/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/budget_use.h"
#include "gateway/dp.h"
#include "gateway/txlane.h"
#include "src/base/clock.h"
#include "src/core/gateway_conf.h"
#include "tests/support/dp_rig.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <string.h>
#include <time.h>

TestSuite(budget, .timeout = 60);

static struct hdt_gateway_budget_conf conf_of(const char *hours, const char *days)
{
    return (struct hdt_gateway_budget_conf){.peer = "",
                                            .job = "",
                                            .rate = 1000000,
                                            .weight = 1,
                                            .hours = (char *)hours,
                                            .days = (char *)days};
}

/* ---- when ---- */

Test(budget, what_is_no_time_is_refused_by_its_setting)
{
    static const struct {
        const char *hours, *days, *field;
    } wrong[] = {
        {"8:00-18:00", "", "hours"},  {"08:00-25:00", "", "hours"}, {"08:60-18:00", "", "hours"},
        {"08:00", "", "hours"},       {"08:00 18:00", "", "hours"}, {"+8:00-18:00", "", "hours"},
        {"08:00-24:01", "", "hours"}, {"", "monday", "days"},       {"", "mon-", "days"},
        {"", "mon,", "days"},         {"", "-fri", "days"},         {"", "mon-tue-wed", "days"},
    };
    struct hdt_budget budget;
    const char *field;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const struct hdt_gateway_budget_conf conf = conf_of(wrong[i].hours, wrong[i].days);
        struct hdt_error err = {0};

        cr_expect_eq(hdt_budget_parse(&conf, &budget, &field, &err), HDT_EINVAL, "'%s' '%s'",
                     wrong[i].hours, wrong[i].days);
        cr_expect_str_eq(field, wrong[i].field);
        cr_expect(err.hint[0] != '\0');
    }
}

Test(budget, one_that_changes_nothing_is_refused)
{
    struct hdt_gateway_budget_conf conf = conf_of("", "");
    struct hdt_error err = {0};
    struct hdt_budget budget;
    const char *field;

    cr_expect_eq(hdt_budget_parse(&conf, &budget, &field, &err), HDT_OK);
    conf.rate = 0;
    cr_expect_eq(hdt_budget_parse(&conf, &budget, &field, &err), HDT_EINVAL);
    conf.weight = 2;
    cr_expect_eq(hdt_budget_parse(&conf, &budget, &field, &err), HDT_OK);
}

/* By the C library's calendar: minutes of a day, day of the week, and of the day before. */
static bool is_on_by_calendar(time_t at, int from, int to, const bool days[7])
{
    struct tm now, day_before;
    const time_t before = at - 86400;
    int minute;

    gmtime_r(&at, &now);
    gmtime_r(&before, &day_before);
    minute = now.tm_hour * 60 + now.tm_min;
    if (from < to) {
        return days[now.tm_wday] && minute >= from && minute < to;
    }
    return (days[now.tm_wday] && minute >= from) || (days[day_before.tm_wday] && minute < to);
}

Test(budget, hours_and_days_are_those_of_the_calendar_in_utc)
{
    static const struct {
        const char *hours, *days;
        int from, to;
        bool on[7]; /* from Sunday */
    } cases[] = {
        {"", "", 0, 0, {1, 1, 1, 1, 1, 1, 1}},
        {"08:00-18:30", "", 480, 1110, {1, 1, 1, 1, 1, 1, 1}},
        {"22:00-06:00", "mon-fri", 1320, 360, {0, 1, 1, 1, 1, 1, 0}},
        {"00:00-24:00", "sat,sun", 0, 0, {1, 0, 0, 0, 0, 0, 1}},
        {"12:00-24:00", "fri-mon", 720, 0, {1, 1, 0, 0, 0, 1, 1}},
        {"", "wed", 0, 0, {0, 0, 0, 1, 0, 0, 0}},
    };
    struct values_rng rng;

    hdt_values_rng_init(&rng, "calendar");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct hdt_gateway_budget_conf conf = conf_of(cases[i].hours, cases[i].days);
        struct hdt_error err = {0};
        struct hdt_budget budget;
        const char *field;

        cr_assert_eq(hdt_budget_parse(&conf, &budget, &field, &err), HDT_OK, "%s", err.msg);
        for (int k = 0; k < 20000; k++) {
            const time_t at = 1700000000 + (time_t)hdt_values_below(&rng, 200000000);

            cr_assert_eq(hdt_budget_is_on(&budget, (int64_t)at * HDT_US_PER_S),
                         is_on_by_calendar(at, cases[i].from, cases[i].to, cases[i].on),
                         "'%s' '%s' at %lld", cases[i].hours, cases[i].days, (long long)at);
        }
    }
}

/* ---- whom ---- */

Test(budget, what_fits_is_peer_and_job_and_class)
{
    const struct hdt_budget all[] = {
        {.prio = HDT_PRIO_COUNT, .weight = 2},
        {.peer = "b", .prio = HDT_PRIO_CHECKPOINT, .weight = 3, .rate_bits_per_s = 800},
        {.job = "night", .prio = HDT_PRIO_COUNT, .weight = 5, .rate_bits_per_s = 80},
    };
    struct hdt_budgets budgets = {.all = all, .n = 3};

    cr_expect_eq(hdt_budgets_of(&budgets, "b", "day", HDT_PRIO_CHECKPOINT), 3);
    cr_expect_eq(hdt_budgets_of(&budgets, "c", "night", HDT_PRIO_CHECKPOINT), 5);
    cr_expect_eq(hdt_budgets_of(&budgets, "b", "night", HDT_PRIO_OUTER), 5);
    cr_expect_eq(hdt_budgets_of(&budgets, "b", "night", HDT_PRIO_CONTROL), 0);
    cr_expect_eq(hdt_budgets_weight(&budgets, 7), 1, "none is on before the first look");
    for (unsigned i = 0; i < 3; i++) {
        budgets.uses[i].is_on = true;
    }
    cr_expect_eq(hdt_budgets_weight(&budgets, 3), 6);
    cr_expect_eq(hdt_budgets_cap(&budgets, 1), 0);
    cr_expect_eq(hdt_budgets_cap(&budgets, 7), 80);
}

/* ---- how much ---- */

/* A sender that asks now and then, as threads do: never more than the rate and one burst. */
Test(budget, a_cap_is_kept_in_the_long_run)
{
    const struct hdt_budget all[] = {
        {.prio = HDT_PRIO_COUNT, .weight = 1, .days = 0x7f, .rate_bits_per_s = 8000000}};
    struct hdt_budgets budgets = {.all = all, .n = 1};
    struct values_rng rng;
    int64_t now_us = 1, end_us = 20 * HDT_US_PER_S;
    double sent = 0;

    hdt_values_rng_init(&rng, "cap");
    while (now_us < end_us) {
        hdt_budgets_look(&budgets, now_us, 0);
        budgets.held_until_us = 0;
        if (hdt_budgets_allow(&budgets, 1, 1e5, now_us)) {
            hdt_budgets_spend(&budgets, 1, 50000);
            sent += 50000;
        } else {
            cr_assert_gt(budgets.held_until_us, now_us);
            now_us = budgets.held_until_us + (int64_t)hdt_values_below(&rng, 20000);
        }
    }
    cr_expect_leq(sent, 20e6 + 1e5 + 50000);
    cr_expect_geq(sent, 20e6 - 1e5 - 50000, "%.0f bytes", sent);
    cr_expect_eq((double)budgets.uses[0].sent_bytes, sent);
    cr_expect_gt(budgets.uses[0].held_us, 15 * HDT_US_PER_S);
}

/* ---- turns ---- */

#define CHUNK 1000

struct lane_case {
    struct hdt_budget all[3];
    struct hdt_budgets budgets;
    struct hdt_flow_end flows[3];
    struct hdt_src_frame frames[3];
    struct hdt_tx_lanes lanes;
    size_t sent[3];
    int64_t now_us;
};

/* Job i has weight weights[i]. */
static void case_open(struct lane_case *c, const unsigned weights[3])
{
    memset(c, 0, sizeof(*c));
    c->now_us = 1;
    c->budgets.all = c->all;
    c->budgets.n = 3;
    for (unsigned i = 0; i < 3; i++) {
        c->all[i] = (struct hdt_budget){.prio = HDT_PRIO_COUNT, .weight = weights[i], .days = 0x7f};
        c->flows[i].key.job = i + 1;
        c->flows[i].budgets = 1u << i;
        c->frames[i].flow = &c->flows[i];
    }
    hdt_budgets_look(&c->budgets, c->now_us, 0);
}

/* n chunks; how many bytes of each job, in c->sent. */
static void case_cut(struct lane_case *c, unsigned n)
{
    memset(c->sent, 0, sizeof(c->sent));
    for (; n > 0; n--) {
        struct hdt_src_frame *frame =
            hdt_tx_lanes_next(&c->lanes, &c->budgets, 2 * CHUNK, c->now_us);

        if (frame != NULL) {
            hdt_tx_lanes_took(&c->lanes, &c->budgets, frame, CHUNK);
            hdt_budgets_spend(&c->budgets, frame->flow->budgets, CHUNK);
            c->sent[frame->flow->key.job - 1] += CHUNK;
        }
    }
}

static void case_close(struct lane_case *c)
{
    hdt_tx_lanes_free(&c->lanes);
}

Test(budget, jobs_share_by_their_weights)
{
    struct lane_case c;

    case_open(&c, (const unsigned[]){1, 2, 4});
    for (unsigned i = 0; i < 3; i++) {
        hdt_tx_lanes_push(&c.lanes, &c.frames[i], false);
    }
    case_cut(&c, 7000);
    for (unsigned i = 0; i < 3; i++) {
        cr_expect_leq(llabs((long long)c.sent[i] - (1000ll << i) * CHUNK), 2 * CHUNK, "job %u: %zu",
                      i, c.sent[i]);
        hdt_tx_lanes_remove(&c.lanes, &c.frames[i]);
    }
    cr_expect(hdt_tx_lanes_are_empty(&c.lanes));
    case_close(&c);
}

Test(budget, who_had_nothing_to_send_gets_nothing_back)
{
    struct lane_case c;

    case_open(&c, (const unsigned[]){1, 1, 1});
    hdt_tx_lanes_push(&c.lanes, &c.frames[0], false);
    hdt_tx_lanes_push(&c.lanes, &c.frames[1], false);
    case_cut(&c, 100);
    hdt_tx_lanes_remove(&c.lanes, &c.frames[1]);
    case_cut(&c, 5000);
    cr_expect_eq(c.sent[0], 5000 * CHUNK);
    hdt_tx_lanes_push(&c.lanes, &c.frames[1], false);
    hdt_tx_lanes_push(&c.lanes, &c.frames[2], false);
    case_cut(&c, 300);
    for (unsigned i = 0; i < 3; i++) {
        cr_expect_leq(llabs((long long)c.sent[i] - 100 * CHUNK), CHUNK, "job %u: %zu", i,
                      c.sent[i]);
        hdt_tx_lanes_remove(&c.lanes, &c.frames[i]);
    }
    case_close(&c);
}

Test(budget, who_is_held_back_holds_up_nobody_and_gets_no_turns_back)
{
    struct lane_case c;

    case_open(&c, (const unsigned[]){1, 1, 1});
    c.all[0].rate_bits_per_s = 8 * 100 * CHUNK; /* 100 chunks a second */
    hdt_tx_lanes_push(&c.lanes, &c.frames[0], false);
    hdt_tx_lanes_push(&c.lanes, &c.frames[1], false);
    for (int second = 0; second < 10; second++) {
        size_t held = 0;

        for (int tick = 0; tick < 100; tick++) {
            c.now_us += 10000;
            case_cut(&c, 10);
            held += c.sent[0];
            cr_assert_eq(c.sent[0] + c.sent[1], 10 * CHUNK);
        }
        cr_expect_leq(llabs((long long)held - 100 * CHUNK), 3 * CHUNK, "%zu", held);
    }
    c.all[0].rate_bits_per_s = 0;
    case_cut(&c, 1000);
    cr_expect_leq(llabs((long long)c.sent[0] - 500 * CHUNK), 2 * CHUNK, "%zu", c.sent[0]);
    hdt_tx_lanes_remove(&c.lanes, &c.frames[0]);
    hdt_tx_lanes_remove(&c.lanes, &c.frames[1]);
    case_close(&c);
}

/* Memory is of as many jobs as send at the same time, not of all that ever did. */
Test(budget, lanes_of_jobs_that_are_over_are_used_again)
{
    struct lane_case c;
    size_t before;

    case_open(&c, (const unsigned[]){1, 1, 1});
    before = mallinfo2().uordblks;
    for (uint32_t job = 1; job <= 10000; job++) {
        c.flows[0].key.job = job;
        hdt_tx_lanes_push(&c.lanes, &c.frames[0], false);
        cr_assert_eq(hdt_tx_lanes_next(&c.lanes, &c.budgets, CHUNK, c.now_us), &c.frames[0]);
        hdt_tx_lanes_took(&c.lanes, &c.budgets, &c.frames[0], CHUNK);
        hdt_tx_lanes_remove(&c.lanes, &c.frames[0]);
    }
    cr_expect_leq(mallinfo2().uordblks - before, 1000);
    case_close(&c);
}

/* ---- in the data plane ---- */

Test(budget, a_capped_class_keeps_its_rate_beside_one_that_is_free)
{
    static const struct hdt_budget cap[] = {
        {.prio = HDT_PRIO_CHECKPOINT, .weight = 1, .days = 0x7f, .rate_bits_per_s = 16000000}};
    struct hdt_budget_use use;
    struct hdt_peer_stats stats;
    struct rig rig;
    int64_t began_us, took_us;

    hdt_rig_open(&rig, 2);
    rig.conf.budgets = cap;
    rig.conf.n_budgets = 1;
    rig.n_flows = 2;
    rig.unchecked = true; /* all frames are full: bytes are known */
    rig.flows[0] = (struct rig_flow){.dst_site = 1,
                                     .depth = 4,
                                     .frame_cap = 1 << 20,
                                     .n_frames = 4,
                                     .prio = HDT_PRIO_CHECKPOINT};
    rig.flows[1] = (struct rig_flow){.dst_site = 1,
                                     .depth = 4,
                                     .frame_cap = 1 << 20,
                                     .n_frames = 200,
                                     .prio = HDT_PRIO_ACTIVATION};
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    began_us = hdt_clock_now_us();
    hdt_rig_wait_peer(&rig, 0, 1, &stats);
    hdt_rig_wait_done(&rig, 20);
    took_us = hdt_clock_now_us() - began_us;
    hdt_dataplane_budget_uses(rig.sites[0].dp, &use);
    cr_expect(use.is_on);
    cr_expect_geq(use.sent_bytes, 4 << 20);
    cr_expect_lt(use.sent_bytes, 5 << 20, "nothing else is counted");
    cr_expect_gt(use.held_us, 0);
    /* 4 MiB at 2 MB/s less what may pass at once: no machine is faster than the cap. */
    cr_expect_geq(took_us, (int64_t)((4 * 1048576.0 - 3 * (double)rig.conf.chunk_bytes) / 2.0),
                  "%lld us", (long long)took_us);
    cr_expect_eq(hdt_dataplane_budget_cap(rig.sites[0].dp, "site-b", "", HDT_PRIO_CHECKPOINT),
                 16000000);
    cr_expect_eq(hdt_dataplane_budget_cap(rig.sites[0].dp, "site-b", "", HDT_PRIO_ACTIVATION), 0);
    hdt_rig_close(&rig);
}
