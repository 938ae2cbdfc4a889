/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane of a gateway over a data plane without sockets: who may say what, and the life
 * of a job from submit to its end. */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/addr.h"
#include "tests/support/fake_dataplane.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <utlist.h>

enum { WORKER = 1, OPERATOR = 2 }; /* client numbers */

static struct hdt_gateway gw;
static char state_dir[] = "/tmp/hdt-control-XXXXXX";

static void client_add(uint64_t id, enum hdt_client_role role, const char *name,
                       const char *address)
{
    struct hdt_gwclient *client = hdt_calloc(1, sizeof(*client));

    client->id = id;
    client->role = role;
    snprintf(client->name, sizeof(client->name), "%s", name);
    snprintf(client->address, sizeof(client->address), "%s", address);
    LL_PREPEND(gw.clients, client);
}

static void gateway_open(void)
{
    struct hdt_error err = {0};
    json_t *hello =
        json_pack("{s:s, s:{s:s, s:s, s:I, s:i}}", "instance", "0000000000000001", "device", "name",
                  "test", "backend", "cpu", "memory_bytes", (json_int_t)1 << 30, "threads", 1);

    memset(&gw, 0, sizeof(gw));
    gw.conf.site = hdt_strdup("a");
    gw.conf.federation = hdt_strdup("test");
    gw.conf.state_dir = hdt_strdup(state_dir);
    gw.conf.wan.advertise = hdt_strdup("");
    cr_assert_eq(hdt_store_open(state_dir, &gw.store, &err), HDT_OK, "%s", err.msg);
    client_add(WORKER, HDT_CLIENT_WORKER, "w0", "a/w0");
    client_add(OPERATOR, HDT_CLIENT_OPERATOR, "hdt", "a/@2");
    hdt_federation_worker_up(&gw, hdt_federation_client(&gw, WORKER), hello);
    json_decref(hello);
    hdt_member_start(&gw);
    hdt_coordinator_start(&gw);
}

static void gateway_close(void)
{
    hdt_member_free(&gw);
    hdt_survey_free(&gw);
    hdt_coordinator_free(&gw);
    hdt_route_free(&gw);
    hdt_federation_free(&gw);
    hdt_store_close(gw.store);
    hdt_conf_release(&hdt_gateway_conf_schema, &gw.conf);
}

static void peer_up(const char *site)
{
    json_t *hello = json_pack("{s:s}", "version", "1");
    json_t *info =
        hdt_msg_new("site.info", "a",
                    json_pack("{s:[{s:s, s:s, s:b, s:s}], s:[]}", "workers", "name", "w0", "device",
                              "test", "up", 1, "instance", "7", "sites"));

    hdt_federation_peer_up(&gw, site, hello);
    json_object_set_new(info, "from", json_string(site));
    hdt_route_from_peer(&gw, site, info);
    json_decref(info);
    json_decref(hello);
}

static void setup(void)
{
    cr_assert_not_null(mkdtemp(state_dir));
    hdt_log_init("test", HDT_LOG_ERROR);
    fake_dataplane_reset();
    gateway_open();
    peer_up("b");
}

static void teardown(void)
{
    char *command = hdt_asprintf("rm -rf '%s'", state_dir);

    gateway_close();
    fake_dataplane_reset();
    cr_expect_eq(system(command), 0);
    free(command);
}

TestSuite(control, .init = setup, .fini = teardown);

static void from_client(uint64_t client, json_t *msg)
{
    hdt_route_from_client(&gw, client, msg);
    json_decref(msg);
}

static void from_peer(const char *site, const char *from, json_t *msg)
{
    json_object_set_new(msg, "from", json_string(from));
    hdt_route_from_peer(&gw, site, msg);
    json_decref(msg);
}

/* The error status that was sent to `to`, "" when none was. */
static const char *error_to(const char *to)
{
    static char status[32];
    json_t *msg = fake_dataplane_take(to, "error");
    const char *text = json_string_value(json_object_get(hdt_msg_body(msg), "status"));

    snprintf(status, sizeof(status), "%s", text ? text : "");
    json_decref(msg);
    return status;
}

static json_t *with_id(json_t *msg, int id)
{
    json_object_set_new(msg, "id", json_integer(id));
    return msg;
}

Test(control, each_role_says_only_what_it_may)
{
    from_client(OPERATOR, with_id(hdt_msg_new("flow.open", "", NULL), 1));
    cr_expect_str_eq(error_to("2"), "EACCES");
    from_client(WORKER, with_id(hdt_msg_new("submit", "", NULL), 2));
    cr_expect_str_eq(error_to("1"), "EACCES");
    from_client(OPERATOR, with_id(hdt_msg_new("no.such.type", "", NULL), 3));
    cr_expect_str_eq(error_to("2"), "ENOTSUP");
    from_client(OPERATOR, with_id(hdt_msg_new("logs", "a/nobody", NULL), 4));
    cr_expect_str_eq(error_to("2"), "ENOENT");
}

Test(control, a_peer_speaks_for_its_own_site_only)
{
    from_peer("b", "c", with_id(hdt_msg_new("links.measure", "a", NULL), 1));
    from_peer("b", "a/w0", with_id(hdt_msg_new("step", "a", NULL), 2));
    cr_expect_eq(gw.n_refused_messages, 2);
    cr_expect_null(fake_dataplane_take("b", "error"));
    cr_expect_null(fake_dataplane_take("c", "error"));
    from_peer("b", "b/@9", with_id(hdt_msg_new("status", "a", NULL), 3));
    cr_expect_not_null(fake_dataplane_take("b", "status.is"));
}

Test(control, messages_pass_between_clients_and_peers_with_their_true_sender)
{
    json_t *msg = hdt_msg_new("logs", "b/w0", NULL);

    json_object_set_new(msg, "from", json_string("b/liar"));
    from_client(OPERATOR, with_id(msg, 5));
    msg = fake_dataplane_take("b", "logs");
    cr_assert_not_null(msg);
    cr_expect_str_eq(hdt_msg_from(msg), "a/@2");
    json_decref(msg);
}

/* ---- jobs ---- */

static json_t *submit_msg(void)
{
    json_t *model_json = json_loads(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 64,"
        " \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"max_position_embeddings\": 32,"
        " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\"}",
        0, NULL);
    json_t *job_json = json_loads("{\"model\": \"m\", \"steps\": 3, \"data\": {\"train\": \"t\"},"
                                  " \"batch\": {\"seq_len\": 16},"
                                  " \"optimizer\": {\"warmup_steps\": 1}}",
                                  0, NULL);
    struct hdt_plan plan = {0};
    struct hdt_model_config model;
    struct hdt_error err = {0};
    struct hdt_job job;
    json_t *msg;

    cr_assert_eq(hdt_model_from_json(model_json, "model", &model, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_conf_from_json(&hdt_job_schema, job_json, "job", &job, &err), HDT_OK, "%s",
                 err.msg);
    plan.ranks = hdt_calloc(2, sizeof(*plan.ranks));
    plan.stages = hdt_calloc(2, sizeof(*plan.stages));
    plan.n_ranks = plan.n_stages = 2;
    plan.n_replicas = 1;
    for (int i = 0; i < 2; i++) {
        snprintf(plan.ranks[i].site, sizeof(plan.ranks[i].site), "%c", 'a' + i);
        snprintf(plan.ranks[i].worker, sizeof(plan.ranks[i].worker), "w0");
        plan.stages[i] = (struct hdt_plan_stage){.pos = i,
                                                 .rank = i,
                                                 .n_slices = 1,
                                                 .unit_begin = 2 * i,
                                                 .unit_end = 2 * i + 2,
                                                 .warmup = 1 - i};
    }
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_OK, "%s", err.msg);
    msg = hdt_msg_new("submit", "",
                      json_pack("{s:o, s:o, s:o}", "job", hdt_conf_to_json(&hdt_job_schema, &job),
                                "model", model_json, "plan", hdt_plan_to_json(&plan)));
    hdt_plan_release(&plan);
    hdt_conf_release(&hdt_job_schema, &job);
    json_decref(job_json);
    return with_id(msg, 10);
}

/* Answer the "assign" that went to `to` as the worker `from` would. */
static void answer_ready(const char *to, const char *from)
{
    json_t *assign = fake_dataplane_take(to, "assign");
    json_t *ready;

    cr_assert_not_null(assign, "no assign to %s", to);
    ready = hdt_msg_reply(assign, "ready", json_pack("{s:i}", "start_step", 0));
    if (strcmp(to, "1") == 0) {
        from_client(WORKER, ready);
    } else {
        from_peer(to, from, ready);
    }
    json_decref(assign);
}

static void expect_state(const char *state)
{
    json_t *event;
    bool found = false;

    while ((event = fake_dataplane_take("2", "job.event"))) {
        const char *text = json_string_value(json_object_get(hdt_msg_body(event), "state"));

        found = found || (text && strcmp(text, state) == 0);
        json_decref(event);
    }
    cr_expect(found, "state %s was not told", state);
}

static uint32_t submit(void)
{
    json_t *reply;
    uint32_t job;

    from_client(OPERATOR, submit_msg());
    reply = fake_dataplane_take("2", "submitted");
    if (!reply) {
        json_t *error = fake_dataplane_take("2", "error");

        cr_assert_fail("refused: %s",
                       json_string_value(json_object_get(hdt_msg_body(error), "msg")));
    }
    job = (uint32_t)json_integer_value(json_object_get(hdt_msg_body(reply), "job"));
    json_decref(reply);
    return job;
}

static void rank_done(uint32_t job, int rank)
{
    json_t *msg =
        hdt_msg_new("rank.done", "a",
                    json_pack("{s:I, s:i, s:i}", "job", (json_int_t)job, "epoch", 1, "rank", rank));

    if (rank == 0) {
        from_client(WORKER, msg);
    } else {
        from_peer("b", "b/w0", msg);
    }
}

static json_t *job_msg(const char *type, uint32_t job)
{
    return hdt_msg_new(type, "a", json_pack("{s:I, s:i}", "job", (json_int_t)job, "epoch", 1));
}

static void gateway_restart(void)
{
    gateway_close();
    fake_dataplane_reset();
    gateway_open();
    peer_up("b");
}

static struct hdt_gwjob *run(void)
{
    struct hdt_gwjob *job = hdt_gwjob_find(&gw, submit());

    answer_ready("1", "a/w0");
    answer_ready("b", "b/w0");
    cr_assert_eq(job->state, HDT_GWJOB_RUNNING);
    return job;
}

Test(control, a_run_keeps_what_it_was_planned_with)
{
    json_t *msg, *plan_json, *bad, *cluster;
    struct hdt_gwjob *job;
    char *path;

    msg = submit_msg();
    cluster =
        json_loads("{\"sites\": [{\"name\": \"a\"}], \"workers\": [], \"links\": []}", 0, NULL);
    json_object_set_new(json_object_get(msg, "b"), "cluster", cluster);
    bad = json_deep_copy(msg);
    json_object_set_new(json_object_get(bad, "b"), "cluster", json_string("no cluster"));
    from_client(OPERATOR, bad);
    bad = fake_dataplane_take("2", "error");
    cr_expect_not_null(bad);
    json_decref(bad);
    json_incref(cluster);
    from_client(OPERATOR, msg);
    json_decref(fake_dataplane_take("2", "submitted"));
    job = gw.jobs;
    cr_assert(job && !job->next);
    path = hdt_asprintf("%s/plan.json", job->run_dir);
    plan_json = json_load_file(path, 0, NULL);
    cr_assert_not_null(plan_json, "%s", path);
    cr_expect(json_equal(json_object_get(plan_json, "cluster"), cluster));
    cr_expect(json_equal(json_object_get(plan_json, "plan"), job->plan_json));
    cr_expect_eq(json_integer_value(json_object_get(plan_json, "epoch")), 1);
    json_decref(cluster);
    json_decref(plan_json);
    free(path);
}

Test(control, a_job_is_prepared_started_followed_and_ended)
{
    uint32_t job = submit();
    json_t *wan;

    cr_expect_not_null(fake_dataplane_take("b", "job.plan"));
    answer_ready("1", "a/w0");
    cr_expect_null(fake_dataplane_take("1", "start"));
    answer_ready("b", "b/w0");
    cr_expect_not_null(fake_dataplane_take("1", "start"));
    cr_expect_not_null(fake_dataplane_take("b", "start"));
    expect_state("running");

    from_client(WORKER, hdt_msg_new("step", "a",
                                    json_pack("{s:I, s:i, s:i, s:f, s:f, s:i}", "job",
                                              (json_int_t)job, "epoch", 1, "step", 1, "loss", 2.5,
                                              "step_s", 0.5, "tokens", 1000)));
    from_client(WORKER, hdt_msg_new("done", "a",
                                    json_pack("{s:I, s:i, s:i, s:s}", "job", (json_int_t)job,
                                              "epoch", 1, "steps", 3, "weights_digest", "00ff")));
    rank_done(job, 0);
    rank_done(job, 0); /* said twice is not done twice */
    cr_expect_null(fake_dataplane_take("b", "job.wan.get"));
    rank_done(job, 1);
    wan = fake_dataplane_take("b", "job.wan.get");
    cr_assert_not_null(wan);
    from_peer("b", "b",
              hdt_msg_reply(
                  wan, "job.wan",
                  json_pack("{s:I, s:i, s:i}", "job", (json_int_t)job, "raw", 200, "sent", 100)));
    json_decref(wan);
    expect_state("done");
    cr_expect_not_null(fake_dataplane_take("1", "release"));
    cr_expect_not_null(fake_dataplane_take("b", "job.close"));
}

Test(control, a_worker_that_refuses_ends_the_job_with_its_reason)
{
    json_t *assign;
    struct hdt_error err = {0};
    struct hdt_gwjob *job;

    job = hdt_gwjob_find(&gw, submit());
    answer_ready("1", "a/w0");
    assign = fake_dataplane_take("b", "assign");
    hdt_error_set(&err, HDT_ENOMEM, "the model does not fit");
    from_peer("b", "b/w0", hdt_msg_reply_error(assign, &err));
    json_decref(assign);
    expect_state("failed");
    cr_expect_not_null(strstr(job->error.msg, "the model does not fit"));
    cr_expect_str_eq(job->error.where, "b/w0");
    cr_expect_not_null(fake_dataplane_take("1", "stop"));
}

Test(control, a_busy_worker_is_not_given_a_second_job)
{
    submit();
    from_client(OPERATOR, submit_msg());
    cr_expect_str_eq(error_to("2"), "EEXIST");
}

static json_t *flow_open_msg(uint32_t job, int flow, const char *end, const struct hdt_plan *plan)
{
    const struct hdt_plan_flow *f = &plan->flows[flow];
    int other = strcmp(end, "src") == 0 ? f->dst_rank : f->src_rank;

    return with_id(
        hdt_msg_new("flow.open", "",
                    json_pack("{s:I, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:i}",
                              "job", (json_int_t)job, "epoch", 1, "flow", flow, "end", end,
                              "peer_site", plan->ranks[other].site, "prio", (int)f->prio, "codec",
                              0, "dtype", (int)f->dtype, "depth", (json_int_t)f->depth, "frame_cap",
                              (json_int_t)f->frame_cap, "pool", 1, "pool_offset", 0, "next_seq",
                              0)),
        77);
}

Test(control, flows_are_confirmed_by_the_plan)
{
    uint32_t job = submit();
    const struct hdt_plan *plan = &hdt_gwjob_find(&gw, job)->plan;
    int forward = hdt_plan_find_flow(plan, HDT_FLOW_ACTIVATION, 0, 1, 0, 1);
    json_t *msg;

    cr_assert_geq(forward, 0);
    from_client(WORKER, flow_open_msg(job, forward, "src", plan));
    cr_expect_eq(fake_dataplane_n_flows(), 1);
    from_client(WORKER, flow_open_msg(job + 1, forward, "src", plan));
    cr_expect_str_eq(error_to("1"), "ENOENT");
    from_client(WORKER, flow_open_msg(job, forward, "dst", plan)); /* that end is b/w0's */
    cr_expect_str_eq(error_to("1"), "EACCES");
    expect_state("failed"); /* told at once, not after a deadline */

    job = submit();
    plan = &hdt_gwjob_find(&gw, job)->plan;
    msg = flow_open_msg(job, forward, "src", plan);
    json_object_set_new((json_t *)hdt_msg_body(msg), "depth", json_integer(1 << 20));
    from_client(WORKER, msg);
    cr_expect_str_eq(error_to("1"), "EPROTO");
    cr_expect_eq(fake_dataplane_n_flows(), 1);
}

Test(control, a_restarted_gateway_finds_its_running_job)
{
    uint32_t job = submit();
    struct hdt_gwjob *found;

    answer_ready("1", "a/w0");
    answer_ready("b", "b/w0");
    gateway_close();
    fake_dataplane_reset();
    gateway_open();
    peer_up("b");
    found = hdt_gwjob_find(&gw, job);
    cr_assert_not_null(found);
    cr_expect_eq(found->state, HDT_GWJOB_RUNNING);
    from_client(WORKER, flow_open_msg(job, 0, found->plan.flows[0].src_rank == 0 ? "src" : "dst",
                                      &found->plan));
    cr_expect_eq(fake_dataplane_n_flows(), 1);
}

Test(control, who_has_no_part_in_a_job_does_not_report_of_it)
{
    struct hdt_gwjob *job = run();

    peer_up("c");
    from_peer("c", "c/w0", with_id(job_msg("failed", job->job), 3));
    cr_expect_str_eq(error_to("c"), "EACCES");
    from_peer("c", "c", job_msg("failed", job->job));
    from_peer("b", "b/w1", job_msg("done", job->job));
    from_peer("b", "b/w0",
              hdt_msg_new("rank.done", "a",
                          json_pack("{s:I, s:i, s:i}", "job", (json_int_t)job->job, "epoch", 1,
                                    "rank", 0))); /* a/w0's */
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect_eq(job->n_ranks_done, 0);
    from_peer("b", "b", job_msg("failed", job->job));
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
}

Test(control, the_plan_of_a_job_is_not_replaced_by_another_coordinator)
{
    struct hdt_gwjob *job = run();
    json_t *plan = fake_dataplane_take("b", "job.plan"), *body;

    body = json_copy((json_t *)hdt_msg_body(plan));
    json_object_set_new(body, "coordinator", json_string("b"));
    from_peer("b", "b", hdt_msg_new("job.plan", "a", body));
    cr_expect_eq(fake_dataplane_n_jobs_closed(), 0);
    cr_expect_not_null(fake_dataplane_take("b", "failed")); /* that coordinator learns why */
    from_peer("b", "b", job_msg("job.close", job->job));
    cr_expect_eq(fake_dataplane_n_jobs_closed(), 0);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    json_decref(plan);
}

Test(control, a_site_that_was_away_when_a_job_ended_is_told_again)
{
    struct hdt_gwjob *job = run();
    struct hdt_error why = {0};
    json_t *hello;

    hdt_error_set(&why, HDT_ECANCELED, "enough");
    hdt_gwjob_fail(&gw, job, &why);
    fake_dataplane_reset();
    from_peer("b", "b", job_msg("job.wan", job->job)); /* it still has the job */
    cr_expect_not_null(fake_dataplane_take("b", "job.close"));
    hello = json_pack("{s:s, s:{}, s:[{s:I, s:i}]}", "instance", "0000000000000001", "device",
                      "jobs", "job", (json_int_t)job->job, "epoch", 1);
    hdt_federation_worker_up(&gw, hdt_federation_client(&gw, WORKER), hello);
    cr_expect_not_null(fake_dataplane_take("1", "release"));
    json_decref(hello);
}

Test(control, a_flow_that_cannot_go_on_ends_the_job)
{
    struct hdt_gwjob *job = run();
    struct hdt_error why = {0};

    hdt_error_set(&why, HDT_EPROTO, "cannot resume flow 0");
    hdt_member_flow_failed(&gw, job->job, &why);
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
    cr_expect_str_eq(job->error.msg, "cannot resume flow 0");
}

Test(control, a_gateway_restarted_at_the_end_of_a_job_ends_it)
{
    struct hdt_gwjob *job = run();
    uint32_t number = job->job;

    from_client(OPERATOR, hdt_msg_new("stop", "", json_pack("{s:i}", "job", 0)));
    cr_assert_eq(job->state, HDT_GWJOB_STOPPING);
    gateway_restart();
    job = hdt_gwjob_find(&gw, number);
    cr_assert_eq(job->state, HDT_GWJOB_STOPPING);
    cr_expect_not_null(fake_dataplane_take("b", "stop")); /* it may have missed that */
    from_client(WORKER, hdt_msg_new("done", "a",
                                    json_pack("{s:I, s:i, s:i, s:s}", "job", (json_int_t)number,
                                              "epoch", 1, "steps", 2, "weights_digest", "00ff")));
    rank_done(number, 1);
    gateway_restart();
    job = hdt_gwjob_find(&gw, number);
    cr_assert_eq(job->state, HDT_GWJOB_FINISHING);
    cr_expect_str_eq(job->weights_digest, "00ff");
    rank_done(number, 0);
    cr_assert_not_null(fake_dataplane_take("b", "job.wan.get"));
    job->n_waiting = 1; /* the other site's figures; ours came at once */
    gateway_restart();  /* all is done: nothing is waited for but the figures */
    job = hdt_gwjob_find(&gw, number);
    cr_expect_not_null(fake_dataplane_take("b", "job.wan.get"));
}

Test(control, a_worker_that_has_done_its_part_may_go)
{
    struct hdt_gwjob *job = run();
    struct hdt_error gone = {0};

    rank_done(job->job, 0);
    hdt_error_set(&gone, HDT_ERANK, "its connection was closed");
    hdt_federation_worker_down(&gw, hdt_federation_client(&gw, WORKER), &gone);
    cr_expect_eq(job->lost_since_us, 0);
}

Test(control, a_site_that_stays_away_ends_the_preparation)
{
    struct hdt_gwjob *job = hdt_gwjob_find(&gw, submit());
    struct hdt_error cut = {0};

    answer_ready("1", "a/w0");
    hdt_error_set(&cut, HDT_EPEER, "cut");
    hdt_federation_peer_down(&gw, "b", &cut);
    hdt_coordinator_tick(&gw);
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
    hdt_federation_site(&gw, "b")->since_us -= (job->conf.progress_timeout + 1000) * 1000;
    hdt_coordinator_tick(&gw);
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
    cr_expect_not_null(strstr(job->error.msg, "site b"));
    from_client(OPERATOR, submit_msg());
    cr_expect_str_eq(error_to("2"), "EPEER");
}

Test(control, a_worker_that_its_site_names_no_more_is_gone)
{
    json_t *info = hdt_msg_new("site.info", "a", json_pack("{s:[], s:[]}", "workers", "sites"));

    cr_assert(hdt_federation_worker(&gw, "b", "w0")->up);
    from_peer("b", "b", info);
    cr_expect_not(hdt_federation_worker(&gw, "b", "w0")->up);
}

Test(control, jobs_that_are_over_are_forgotten_in_the_end)
{
    struct hdt_error why = {0};
    struct hdt_gwjob *job;
    int n_jobs;

    hdt_error_set(&why, HDT_ECANCELED, "enough");
    for (int i = 0; i < 40; i++) {
        job = hdt_gwjob_find(&gw, submit());
        hdt_gwjob_fail(&gw, job, &why);
        hdt_coordinator_tick(&gw);
    }
    LL_COUNT(gw.jobs, job, n_jobs);
    cr_expect_eq(n_jobs, 40, "their workers have not answered yet");
    why.status = HDT_EPEER;
    hdt_route_lost(&gw, "a", &why);
    hdt_route_lost(&gw, "b", &why);
    hdt_coordinator_tick(&gw);
    LL_COUNT(gw.jobs, job, n_jobs);
    cr_expect_eq(n_jobs, 32);
}

Test(control, workers_take_orders_of_gateways_only)
{
    from_peer("b", "b/@9", with_id(hdt_msg_new("stop", "a/w0", NULL), 1));
    cr_expect_str_eq(error_to("b"), "EACCES");
    cr_expect_null(fake_dataplane_take("1", "stop"));
    from_peer("b", "b/@9", with_id(hdt_msg_new("logs", "a/w0", NULL), 2));
    cr_expect_not_null(fake_dataplane_take("1", "logs"));
    from_peer("b", "b", hdt_msg_new("release", "a/w0", NULL));
    cr_expect_not_null(fake_dataplane_take("1", "release"));
}

/* ---- dialling back ---- */

static void expect_dialled_back(const char *address, bool ok)
{
    json_t *reply;

    from_peer("b", "b",
              with_id(hdt_msg_new("dial.back", "a", json_pack("{s:s}", "address", address)), 4));
    cr_expect_null(fake_dataplane_take("b", "dialled.back"), "the main thread waited for it");
    while (!(reply = fake_dataplane_take("b", "dialled.back"))) {
        event_base_loop(gw.base, EVLOOP_ONCE);
    }
    cr_expect_eq(json_is_true(json_object_get(hdt_msg_body(reply), "ok")), ok);
    json_decref(reply);
}

Test(control, a_site_is_dialled_back_without_waiting, .timeout = 20)
{
    struct hdt_addr addr;
    char address[160];
    int fd;

    gw.base = event_base_new();
    cr_assert_eq(hdt_addr_parse("127.0.0.1:0", &addr, NULL), HDT_OK);
    cr_assert_eq(hdt_addr_listen(&addr, 0, &fd, NULL), HDT_OK);
    hdt_addr_of_socket(fd, false, address, sizeof(address));
    expect_dialled_back(address, true);
    close(fd);
    expect_dialled_back(address, false);
    from_peer("b", "b", hdt_msg_new("dial.back", "a", json_pack("{s:s}", "address", address)));
    hdt_dial_back_free(&gw); /* the gateway ends meanwhile */
    cr_expect_null(gw.survey.dials);
    event_base_free(gw.base);
}

Test(control, a_worker_that_stays_away_ends_the_job)
{
    struct hdt_gwjob *job = hdt_gwjob_find(&gw, submit());
    struct hdt_error gone = {0};

    answer_ready("1", "a/w0");
    answer_ready("b", "b/w0");
    hdt_error_set(&gone, HDT_ERANK, "its connection was closed");
    hdt_federation_worker_down(&gw, hdt_federation_client(&gw, WORKER), &gone);
    hdt_coordinator_tick(&gw);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING); /* it may come back */
    job->lost_since_us -= 60000000;
    hdt_coordinator_tick(&gw);
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
    cr_expect_not_null(strstr(job->error.msg, "a/w0"));
}
