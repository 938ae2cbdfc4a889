/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/control_rig.h"
#include "gateway/channel.h"
#include "gateway/member.h"
#include "gateway/planner.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

struct hdt_gateway hdt_ctl_gw;
static char state_dir[] = "/tmp/hdt-control-XXXXXX";

static void client_add(uint64_t id, enum hdt_client_role role, const char *name,
                       const char *address)
{
    struct hdt_gwclient *client = hdt_calloc(1, sizeof(*client));

    client->id = id;
    client->role = role;
    snprintf(client->name, sizeof(client->name), "%s", name);
    snprintf(client->address, sizeof(client->address), "%s", address);
    LL_PREPEND(hdt_ctl_gw.clients, client);
}

void hdt_ctl_gateway_open(void)
{
    struct hdt_error err = {0};
    json_t *hello =
        json_pack("{s:s, s:{s:s, s:s, s:I, s:i}}", "instance", "0000000000000001", "device", "name",
                  "test", "backend", "cpu", "memory_bytes", (json_int_t)1 << 30, "threads", 1);

    memset(&hdt_ctl_gw, 0, sizeof(hdt_ctl_gw));
    hdt_ctl_gw.conf.site = hdt_strdup("a");
    hdt_ctl_gw.conf.federation = hdt_strdup("test");
    hdt_ctl_gw.conf.state_dir = hdt_strdup(state_dir);
    hdt_ctl_gw.conf.wan.advertise = hdt_strdup("");
    hdt_ctl_gw.conf.progress_timeout = HDT_DEADLINES_KNOB_DEFAULT_MS;
    hdt_deadlines_derive(&hdt_ctl_gw.deadlines, hdt_ctl_gw.conf.progress_timeout, 0);
    cr_assert_eq(hdt_store_open(state_dir, &hdt_ctl_gw.store, &err), HDT_OK, "%s", err.msg);
    client_add(HDT_CTL_WORKER, HDT_CLIENT_WORKER, "w0", "a/w0");
    client_add(HDT_CTL_OPERATOR, HDT_CLIENT_OPERATOR, "hdt", "a/@2");
    hdt_federation_worker_up(&hdt_ctl_gw, hdt_federation_client(&hdt_ctl_gw, HDT_CTL_WORKER),
                             hello);
    json_decref(hello);
    hdt_member_start(&hdt_ctl_gw);
    hdt_coordinator_start(&hdt_ctl_gw);
}

void hdt_ctl_gateway_close(void)
{
    hdt_member_free(&hdt_ctl_gw);
    hdt_survey_free(&hdt_ctl_gw);
    hdt_planner_close(&hdt_ctl_gw);
    hdt_coordinator_free(&hdt_ctl_gw);
    hdt_route_free(&hdt_ctl_gw);
    hdt_channels_free(&hdt_ctl_gw);
    hdt_federation_free(&hdt_ctl_gw);
    hdt_store_close(hdt_ctl_gw.store);
    hdt_conf_release(&hdt_gateway_conf_schema, &hdt_ctl_gw.conf);
}

void hdt_ctl_peer_up(const char *site)
{
    json_t *hello = json_pack("{s:s}", "version", "1");
    json_t *info =
        hdt_msg_new("site.info", "a",
                    json_pack("{s:[{s:s, s:s, s:b, s:s}], s:[]}", "workers", "name", "w0", "device",
                              "test", "up", 1, "instance", "7", "sites"));

    hdt_federation_peer_up(&hdt_ctl_gw, site, hello);
    json_object_set_new(info, "from", json_string(site));
    hdt_route_from_peer(&hdt_ctl_gw, site, info);
    json_decref(info);
    json_decref(hello);
}

void hdt_ctl_setup(void)
{
    cr_assert_not_null(mkdtemp(state_dir));
    hdt_log_init("test", HDT_LOG_ERROR);
    hdt_fake_dataplane_reset();
    hdt_ctl_gateway_open();
    hdt_ctl_peer_up("b");
}

void hdt_ctl_teardown(void)
{
    char *command = hdt_asprintf("rm -rf '%s'", state_dir);

    hdt_ctl_gateway_close();
    hdt_fake_dataplane_reset();
    cr_expect_eq(system(command), 0);
    free(command);
}

void hdt_ctl_pass(int64_t us)
{
    struct hdt_gwworker *worker;
    struct hdt_gwsite *site;

    LL_FOREACH(hdt_ctl_gw.workers, worker)
    {
        worker->since_us -= us;
    }
    LL_FOREACH(hdt_ctl_gw.sites, site)
    {
        site->since_us -= us;
    }
}

struct hdt_profile hdt_ctl_profile(double block_fwd_s)
{
    return (struct hdt_profile){.valid = true,
                                .micro_batch = 8,
                                .seq_len = 16,
                                .embed_fwd_s = 1e-4,
                                .embed_bwd_s = 1e-4,
                                .block_fwd_s = block_fwd_s,
                                .block_bwd_s = 2 * block_fwd_s,
                                .head_fwd_s = 1e-3,
                                .head_bwd_s = 1e-3,
                                .step_s_per_param = 1e-9,
                                .op_overhead_s = 1e-5,
                                .cast_bytes_per_s = 1e9};
}

void hdt_ctl_from_client(uint64_t client, json_t *msg)
{
    hdt_route_from_client(&hdt_ctl_gw, client, msg);
    json_decref(msg);
}

void hdt_ctl_from_peer(const char *site, const char *from, json_t *msg)
{
    json_object_set_new(msg, "from", json_string(from));
    hdt_route_from_peer(&hdt_ctl_gw, site, msg);
    json_decref(msg);
}

const char *hdt_ctl_error_to(const char *to)
{
    static char status[32];
    json_t *msg = hdt_fake_dataplane_take(to, "error");
    const char *text = json_string_value(json_object_get(hdt_msg_body(msg), "status"));

    snprintf(status, sizeof(status), "%s", text ? text : "");
    json_decref(msg);
    return status;
}

json_t *hdt_ctl_with_id(json_t *msg, int id)
{
    json_object_set_new(msg, "id", json_integer(id));
    return msg;
}

json_t *hdt_ctl_submit_msg(void)
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
    return hdt_ctl_with_id(msg, 10);
}

void hdt_ctl_answer_ready(const char *to, const char *from)
{
    json_t *assign = hdt_fake_dataplane_take(to, "assign");
    json_t *ready;

    cr_assert_not_null(assign, "no assign to %s", to);
    ready = hdt_msg_reply(assign, "ready", json_pack("{s:i}", "start_step", 0));
    if (strcmp(to, "1") == 0) {
        hdt_ctl_from_client(HDT_CTL_WORKER, ready);
    } else {
        hdt_ctl_from_peer(to, from, ready);
    }
    json_decref(assign);
}

void hdt_ctl_expect_state(const char *state)
{
    json_t *event;
    bool found = false;

    while ((event = hdt_fake_dataplane_take("2", "job.event"))) {
        const char *text = json_string_value(json_object_get(hdt_msg_body(event), "state"));

        found = found || (text && strcmp(text, state) == 0);
        json_decref(event);
    }
    cr_expect(found, "state %s was not told", state);
}

uint32_t hdt_ctl_submit(void)
{
    json_t *reply;
    uint32_t job;

    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_submit_msg());
    reply = hdt_fake_dataplane_take("2", "submitted");
    if (!reply) {
        json_t *error = hdt_fake_dataplane_take("2", "error");

        cr_assert_fail("refused: %s",
                       json_string_value(json_object_get(hdt_msg_body(error), "msg")));
    }
    job = (uint32_t)json_integer_value(json_object_get(hdt_msg_body(reply), "job"));
    json_decref(reply);
    return job;
}

void hdt_ctl_rank_done(uint32_t job, int rank)
{
    json_t *msg =
        hdt_msg_new("rank.done", "a",
                    json_pack("{s:I, s:i, s:i}", "job", (json_int_t)job, "epoch", 1, "rank", rank));

    if (rank == 0) {
        hdt_ctl_from_client(HDT_CTL_WORKER, msg);
    } else {
        hdt_ctl_from_peer("b", "b/w0", msg);
    }
}

json_t *hdt_ctl_job_msg(const char *type, uint32_t job)
{
    return hdt_msg_new(type, "a", json_pack("{s:I, s:i}", "job", (json_int_t)job, "epoch", 1));
}

void hdt_ctl_gateway_restart(void)
{
    hdt_ctl_gateway_close();
    hdt_fake_dataplane_reset();
    hdt_ctl_gateway_open();
    hdt_ctl_peer_up("b");
}

struct hdt_gwjob *hdt_ctl_run(void)
{
    struct hdt_gwjob *job = hdt_gwjob_find(&hdt_ctl_gw, hdt_ctl_submit());

    hdt_ctl_answer_ready("1", "a/w0");
    hdt_ctl_answer_ready("b", "b/w0");
    cr_assert_eq(job->state, HDT_GWJOB_RUNNING);
    return job;
}
