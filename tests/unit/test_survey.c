/* SPDX-License-Identifier: Apache-2.0 */
/* What there is to plan with, while sessions between sites end and come back: over a data plane
 * without sockets. */
#include "config.h"

#include "src/core/msg.h"
#include "tests/support/control_rig.h"

#include <criterion/criterion.h>
#include <string.h>
#include <utlist.h>

TestSuite(survey, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

/* ---- what happens ---- */

static void session_ends(const char *site)
{
    const struct hdt_error why = {.status = HDT_ELINK, .msg = "connection lost"};

    hdt_federation_peer_down(&hdt_ctl_gw, site, &why);
}

/* Time passes for who is away. */
static void pass(int64_t us)
{
    hdt_ctl_pass(us);
    hdt_survey_tick(&hdt_ctl_gw);
}

/* An operator asks what there is for a job. */
static void ask(void)
{
    json_t *submit = hdt_ctl_submit_msg();
    const json_t *body = hdt_msg_body(submit);

    hdt_ctl_from_client(
        HDT_CTL_OPERATOR,
        hdt_ctl_with_id(hdt_msg_new("cluster", "",
                                    json_pack("{s:O, s:O}", "job", json_object_get(body, "job"),
                                              "model", json_object_get(body, "model"))),
                        20));
    json_decref(submit);
}

static void probed(const char *site, double bytes_per_s)
{
    hdt_survey_probed(&hdt_ctl_gw, site, bytes_per_s, 0.01);
}

static bool answer_links(const char *site, double bytes_per_s)
{
    json_t *measure = hdt_fake_dataplane_take(site, "links.measure");
    json_t *links;

    if (!measure) {
        return false;
    }
    links = json_pack("{s:[{s:s, s:s, s:b, s:f, s:f}]}", "links", "from", site, "to", "a", "up",
                      bytes_per_s > 0, "rate_bytes_per_s", bytes_per_s, "rtt_s", 0.01);
    hdt_ctl_from_peer(site, site, hdt_msg_reply(measure, "links.are", links));
    json_decref(measure);
    return true;
}

/* As the worker b/w0 (to "b") or a/w0 (to "1"). */
static bool answer_profile(const char *to)
{
    const struct hdt_profile p = hdt_ctl_profile(1e-3);
    json_t *order = hdt_fake_dataplane_take(to, "profile");
    json_t *reply;

    if (!order) {
        return false;
    }
    reply =
        hdt_msg_reply(order, "profile.is", json_pack("{s:o}", "profile", hdt_profile_to_json(&p)));
    if (strcmp(to, "1") == 0) {
        hdt_ctl_from_client(HDT_CTL_WORKER, reply);
    } else {
        hdt_ctl_from_peer(to, "b/w0", reply);
    }
    json_decref(order);
    return true;
}

/* ---- what the operator is told ---- */

struct answer {
    struct hdt_cluster cluster;
    size_t n_problems;
};

static bool answered(struct answer *answer)
{
    json_t *msg = hdt_fake_dataplane_take("2", "cluster.is");
    struct hdt_error err = {0};

    memset(answer, 0, sizeof(*answer));
    if (!msg) {
        return false;
    }
    cr_assert_eq(hdt_cluster_from_json(json_object_get(hdt_msg_body(msg), "cluster"), "cluster",
                                       &answer->cluster, &err),
                 HDT_OK, "%s", err.msg);
    answer->n_problems = json_array_size(json_object_get(hdt_msg_body(msg), "problems"));
    json_decref(msg);
    return true;
}

/* Both workers with profiles, and both directions of the link. */
static void expect_whole(void)
{
    struct answer answer;

    cr_assert(answered(&answer), "the operator has an answer");
    cr_expect_eq(answer.n_problems, 0);
    cr_assert_eq(answer.cluster.n_workers, 2);
    cr_expect(answer.cluster.workers[0].profile.valid && answer.cluster.workers[1].profile.valid);
    for (int i = 0; i < 2; i++) {
        const struct hdt_cluster_link *link =
            hdt_cluster_find_link(&answer.cluster, i ? "a" : "b", i ? "b" : "a");

        cr_assert_not_null(link);
        cr_expect(link->up);
    }
    hdt_cluster_release(&answer.cluster);
}

/* All that was asked for is answered. */
static void expect_answers(void)
{
    probed("b", 1e7);
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("1"));
    cr_assert(answer_profile("b"));
    expect_whole();
}

static void expect_no_answer(void)
{
    cr_expect_null(hdt_fake_dataplane_take("2", "cluster.is"), "it is waited");
}

static void expect_alone(void)
{
    struct answer answer;

    cr_assert(answered(&answer), "the operator has an answer");
    cr_expect_eq(answer.cluster.n_sites, 1, "only our own site");
    hdt_cluster_release(&answer.cluster);
}

/* ---- the tests ---- */

Test(survey, a_cluster_is_measured_and_links_stay_known_for_a_while)
{
    ask();
    probed("b", 1e7);
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("1"));
    expect_no_answer();
    cr_assert(answer_profile("b"));
    expect_whole();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 1);
    ask();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 1, "what was measured a moment ago is known");
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("1"));
    cr_assert(answer_profile("b"));
    expect_whole();
}

/* Two sites' workers, of which b's ops took a tenth longer in each of its jobs. */
Test(survey, runs_correct_the_profile_of_their_worker)
{
    const struct hdt_profile p = hdt_ctl_profile(1e-3);
    struct hdt_gwworker *worker = hdt_federation_worker(&hdt_ctl_gw, "b", "w0");
    struct answer answer;

    for (int i = 0; i < 3; i++) {
        hdt_run_factor_saw(&worker->run_factor, &p, 1.1);
    }
    ask();
    probed("b", 1e7);
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("1"));
    cr_assert(answer_profile("b"));
    cr_assert(answered(&answer));
    for (size_t i = 0; i < answer.cluster.n_workers; i++) {
        const struct hdt_cluster_worker *w = &answer.cluster.workers[i];
        const double factor = strcmp(w->site, "b") == 0 ? 1.1 : 1.0;

        cr_expect_float_eq(w->profile.block_fwd_s, 1e-3 * factor, 1e-12, "%s", w->site);
        cr_expect_float_eq(w->profile.cast_bytes_per_s, 1e9 / factor, 1, "%s", w->site);
        cr_expect_float_eq(hdt_profile_run_factor(&w->profile), factor, 1e-12, "%s", w->site);
    }
    hdt_cluster_release(&answer.cluster);
}

Test(survey, a_site_that_is_just_dialled_again_is_waited_for)
{
    session_ends("b");
    ask();
    pass(hdt_ctl_gw.deadlines.reopen_us / 2);
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 0);
    expect_no_answer();
    hdt_ctl_peer_up("b");
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 1);
    expect_answers();
}

Test(survey, a_site_that_stays_away_is_not_waited_for_longer)
{
    session_ends("b");
    ask();
    pass(hdt_ctl_gw.deadlines.reopen_us);
    cr_assert(answer_profile("1"));
    expect_alone();
    ask(); /* nor is it at the next time */
    cr_assert(answer_profile("1"));
    expect_alone();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 0);
}

Test(survey, another_site_that_asks_for_our_links_waits_with_us)
{
    json_t *links, *link;

    hdt_ctl_peer_up("c");
    session_ends("b");
    hdt_ctl_from_peer("c", "c", hdt_ctl_with_id(hdt_msg_new("links.measure", "a", NULL), 5));
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 0);
    hdt_ctl_peer_up("b");
    probed("b", 1e7);
    probed("c", 2e7);
    links = hdt_fake_dataplane_take("c", "links.are");
    cr_assert_not_null(links);
    link = json_array_get(json_object_get(hdt_msg_body(links), "links"), 0);
    cr_expect_str_eq(json_string_value(json_object_get(link, "to")), "b");
    cr_expect(json_is_true(json_object_get(link, "up")));
    json_decref(links);
}

Test(survey, a_probe_that_its_session_took_along_is_made_again)
{
    ask();
    session_ends("b");
    probed("b", 0); /* as the data plane says then */
    expect_no_answer();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 1, "nobody is there to probe");
    hdt_ctl_peer_up("b");
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 2);
    expect_answers();
}

Test(survey, a_link_that_could_not_be_measured_is_measured_at_the_next_time)
{
    struct answer answer;

    ask();
    probed("b", 0); /* the session stands: nothing came through in time */
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("1"));
    cr_assert(answer_profile("b"));
    cr_assert(answered(&answer));
    cr_expect_not(hdt_cluster_find_link(&answer.cluster, "a", "b")->up);
    hdt_cluster_release(&answer.cluster);
    ask();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 2);
    expect_answers();
}

Test(survey, questions_that_a_session_took_along_are_asked_again)
{
    ask();
    probed("b", 1e7);
    session_ends("b"); /* b's links are asked for */
    cr_assert(answer_profile("1"));
    expect_no_answer();
    hdt_ctl_peer_up("b");
    json_decref(hdt_fake_dataplane_take("b", "links.measure")); /* lost */
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("b"));
    cr_expect_not(answer_profile("1"), "what is known is not measured again");
    expect_whole();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 1);
}

Test(survey, a_profile_that_a_session_took_along_is_asked_for_again)
{
    ask();
    probed("b", 1e7);
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("1"));
    json_decref(hdt_fake_dataplane_take("b", "profile")); /* lost */
    session_ends("b");
    expect_no_answer();
    hdt_ctl_peer_up("b");
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("b"));
    expect_whole();
}

Test(survey, what_is_lost_twice_is_left_out_and_said)
{
    struct answer answer;

    ask();
    probed("b", 1e7);
    for (int i = 0; i < 2; i++) {
        cr_assert(answer_links("b", 1e7));
        json_decref(hdt_fake_dataplane_take("b", "profile"));
        if (i == 0) {
            cr_assert(answer_profile("1"));
        }
        session_ends("b");
        hdt_ctl_peer_up("b");
    }
    cr_assert(answered(&answer));
    cr_expect_eq(answer.n_problems, 1);
    cr_expect_eq(answer.cluster.n_sites, 1, "it was away again when the answer was due");
    hdt_cluster_release(&answer.cluster);
}

/* Its gateway was restarted and does not know it yet. */
Test(survey, a_worker_that_has_yet_to_find_its_gateway_is_waited_for)
{
    hdt_ctl_from_peer("b", "b",
                      hdt_msg_new("site.info", "a", json_pack("{s:[], s:[]}", "workers", "sites")));
    ask();
    expect_no_answer();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 0);
    hdt_ctl_peer_up("b"); /* and names it */
    hdt_survey_tick(&hdt_ctl_gw);
    expect_answers();
}

/* Its gateway saw it go. */
Test(survey, a_worker_that_has_left_is_not_waited_for)
{
    hdt_ctl_from_peer("b", "b",
                      hdt_msg_new("site.info", "a",
                                  json_pack("{s:[{s:s, s:b, s:s}], s:[]}", "workers", "name", "w0",
                                            "up", 0, "why", "its connection was closed", "sites")));
    ask();
    probed("b", 1e7);
    cr_assert(answer_links("b", 1e7));
    cr_assert(answer_profile("1"));
    cr_expect_not_null(hdt_fake_dataplane_take("2", "cluster.is"));
}

Test(survey, links_are_known_of_the_sites_that_they_were_measured_to)
{
    ask();
    expect_answers();
    hdt_ctl_peer_up("c"); /* as many as before, but another one */
    session_ends("b");
    pass(hdt_ctl_gw.deadlines.reopen_us);
    ask();
    cr_expect_eq(hdt_fake_dataplane_n_probes(), 2);
    probed("c", 1e7);
    cr_expect(answer_links("c", 1e7));
}
