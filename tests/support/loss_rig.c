/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/loss_rig.h"
#include "src/core/msg.h"

#include <criterion/criterion.h>
#include <string.h>
#include <utlist.h>

static const struct hdt_error cut = {.status = HDT_ERANK, .msg = "its connection was closed"};

/* ---- the workers ---- */

static json_t *hello_of(const char *instance, uint32_t job, int epoch)
{
    json_t *hello =
        json_pack("{s:s, s:{s:s}, s:[]}", "instance", instance, "device", "name", "test", "jobs");

    if (job) {
        json_array_append_new(json_object_get(hello, "jobs"),
                              json_pack("{s:I, s:i}", "job", (json_int_t)job, "epoch", epoch));
    }
    return hello;
}

void hdt_loss_own_worker_goes(void)
{
    hdt_federation_worker_down(&hdt_ctl_gw, hdt_federation_client(&hdt_ctl_gw, HDT_CTL_WORKER),
                               &cut);
}

void hdt_loss_own_worker_comes(const char *instance, uint32_t job, int epoch)
{
    json_t *hello = hello_of(instance, job, epoch);

    hdt_federation_worker_up(&hdt_ctl_gw, hdt_federation_client(&hdt_ctl_gw, HDT_CTL_WORKER),
                             hello);
    json_decref(hello);
}

void hdt_loss_other_worker_is(bool up, const char *instance)
{
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("site.info", "a",
                    json_pack("{s:[{s:s, s:s, s:b, s:s}], s:[]}", "workers", "name", "w0", "device",
                              "test", "up", (int)up, "instance", instance, "sites")));
}

void hdt_loss_tick(void)
{
    hdt_coordinator_tick(&hdt_ctl_gw);
}

void hdt_loss_pass(int64_t us)
{
    struct hdt_gwjob *job;

    hdt_ctl_pass(us);
    LL_FOREACH(hdt_ctl_gw.jobs, job)
    {
        job->lost_us -= us;
        job->taken_us -= us;
        job->not_before_us -= us;
    }
    hdt_loss_tick();
}

bool hdt_loss_answer(const char *to, const char *type, const char *with, json_t *body)
{
    json_t *order = hdt_fake_dataplane_take(to, type);
    json_t *reply;

    while (order && !json_object_get(order, "id")) {
        json_decref(order); /* said, not asked: as a gateway does to its own workers */
        order = hdt_fake_dataplane_take(to, type);
    }
    if (!order) {
        json_decref(body);
        return false;
    }
    reply = hdt_msg_reply(order, with, body);
    if (strcmp(to, "1") == 0) {
        hdt_ctl_from_client(HDT_CTL_WORKER, reply);
    } else {
        hdt_ctl_from_peer(to, "b/w0", reply);
    }
    json_decref(order);
    return true;
}

bool hdt_loss_answer_released(const char *to)
{
    return hdt_loss_answer(to, "release", "released", json_object());
}

bool hdt_loss_answer_ready_at(const char *to, int step)
{
    return hdt_loss_answer(to, "assign", "ready", json_pack("{s:i}", "start_step", step));
}

bool hdt_loss_answer_started(const char *to, bool held)
{
    return hdt_loss_answer(to, "start", "started", json_pack("{s:b}", "held", (int)held));
}

bool hdt_loss_answer_refused(const char *to, enum hdt_status status)
{
    struct hdt_error err = {.status = status, .msg = "no"};

    return hdt_loss_answer(to, "assign", "error", hdt_msg_error_body(&err));
}

json_t *hdt_loss_report(const char *type, const struct hdt_gwjob *job, json_t *body)
{
    json_object_set_new(body, "job", json_integer(job->job));
    json_object_set_new(body, "epoch", json_integer(job->epoch));
    return hdt_msg_new(type, "a", body);
}

void hdt_loss_report_step(const struct hdt_gwjob *job, int step)
{
    hdt_ctl_from_client(HDT_CTL_WORKER,
                        hdt_loss_report("step", job,
                                        json_pack("{s:i, s:f, s:f, s:i}", "step", step, "loss", 2.5,
                                                  "step_s", 0.5, "tokens", 1024)));
}

void hdt_loss_report_checkpoint(const struct hdt_gwjob *job, int step, const char *path)
{
    hdt_ctl_from_client(
        HDT_CTL_WORKER,
        hdt_loss_report("ckpt", job, json_pack("{s:i, s:s}", "step", step, "path", path)));
}

void hdt_loss_report_failed(const struct hdt_gwjob *job, enum hdt_status status)
{
    struct hdt_error err = {.status = status, .msg = "no"};

    hdt_ctl_from_client(HDT_CTL_WORKER, hdt_loss_report("failed", job,
                                                        json_pack("{s:i, s:o}", "rank", 0, "error",
                                                                  hdt_msg_error_body(&err))));
}

struct hdt_gwjob *hdt_loss_running(void)
{
    struct hdt_gwjob *job = hdt_ctl_run();

    cr_assert(hdt_loss_answer_started("1", true));
    cr_assert(hdt_loss_answer_started("b", true));
    hdt_fake_dataplane_reset();
    return job;
}

void hdt_loss_stop_job(void)
{
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_msg_new("stop", "", json_pack("{s:i}", "job", 0)));
}
