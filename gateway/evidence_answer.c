/* SPDX-License-Identifier: Apache-2.0 */
/* What this gateway gives to a bug report: "bundle.list" and "bundle.read" of an operator. */
#include "config.h"

#include "gateway/control.h"
#include "gateway/coordinator.h"
#include "src/base/buf.h"
#include "src/base/recorder.h"
#include "src/core/evidence.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

static void text_add(json_t *texts, const char *name, const json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(2));

    json_object_set_new(texts, name, json_string(text ? text : ""));
    free(text);
}

/* Settings name the files of keys, and hold none. */
static json_t *texts_json(struct hdt_gateway *gw, json_int_t number)
{
    json_t *texts = json_object(),
           *settings = hdt_conf_to_json(&hdt_gateway_conf_schema, &gw->conf);
    struct hdt_buf metrics = {0};
    const struct hdt_gwjob *job;

    text_add(texts, "settings.json", settings);
    json_decref(settings);
    hdt_metrics_text(gw, &metrics);
    json_object_set_new(texts, "metrics.txt", json_string(hdt_buf_str(&metrics)));
    hdt_buf_release(&metrics);
    LL_FOREACH(gw->jobs, job)
    {
        if (number > 0 && job->number == number) {
            text_add(texts, "plan.json", job->plan_json);
            text_add(texts, "job.json", job->conf_json);
            text_add(texts, "model.json", job->model_json);
        }
    }
    return texts;
}

void hdt_evidence_list_answer(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    json_int_t job = json_integer_value(json_object_get(body, "job"));
    const uint64_t n_dumps = hdt_recorder_n_dumps();
    struct hdt_error err = {0};

    if (json_is_true(json_object_get(body, "dump"))) {
        hdt_recorder_dump("bundle");
    }
    hdt_route_send(
        gw,
        hdt_msg_reply(msg, "bundle.is",
                      json_pack("{s:o, s:o, s:I}", "texts", texts_json(gw, job), "files",
                                hdt_evidence_files(gw->conf.state_dir, job,
                                                   json_is_true(json_object_get(body, "traces"))),
                                "dumps", (json_int_t)n_dumps)),
        &err);
}

void hdt_evidence_read_answer(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0}, ignored = {0};
    json_t *body;

    if (hdt_evidence_read(gw->conf.state_dir, hdt_msg_body(msg), &body, &err) == HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply(msg, "bundle.piece", body), &ignored);
    } else {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
    }
}
