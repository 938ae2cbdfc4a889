/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/inspect.h"
#include "src/base/clock.h"
#include "src/base/recorder.h"
#include "src/core/evidence.h"
#include "src/core/worker_conf.h"
#include "src/net/doctor.h"

#include <stdlib.h>
#include <string.h>

static enum hdt_status answer_doctor(const struct hdt_inspect_conf *conf, const json_t *request,
                                     json_t **body, struct hdt_error *err)
{
    const struct hdt_worker_conf *worker = conf->worker;
    const struct hdt_doctor_machine machine = {.root = "",
                                               .cert = worker->tls.cert,
                                               .threads = conf->threads,
                                               .memory_bytes = conf->memory_bytes,
                                               .dirs = {{"state_dir", worker->state_dir},
                                                        {"data_dir", worker->data_dir},
                                                        {"checkpoints", conf->checkpoint_dir}}};
    json_t *checks = json_array();

    (void)request;
    (void)err;
    hdt_doctor_machine(checks, &machine);
    hdt_doctor_gpus(checks, "");
    *body = json_pack("{s:s, s:s, s:I, s:o}", "worker", worker->name, "version", conf->version,
                      "clock_us", (json_int_t)hdt_clock_wall_us(), "checks", checks);
    return HDT_OK;
}

static enum hdt_status answer_list(const struct hdt_inspect_conf *conf, const json_t *request,
                                   json_t **body, struct hdt_error *err)
{
    const uint64_t n_dumps = hdt_recorder_n_dumps();
    json_t *settings = hdt_conf_to_json(&hdt_worker_conf_schema, conf->worker);
    char *text = json_dumps(settings, JSON_INDENT(2));

    (void)err;
    if (json_is_true(json_object_get(request, "dump"))) {
        hdt_recorder_dump("bundle");
    }
    *body = json_pack("{s:{s:s}, s:o, s:I}", "texts", "settings.json", text ? text : "", "files",
                      hdt_evidence_files(conf->worker->state_dir,
                                         json_integer_value(json_object_get(request, "job")),
                                         json_is_true(json_object_get(request, "traces"))),
                      "dumps", (json_int_t)n_dumps);
    free(text);
    json_decref(settings);
    return HDT_OK;
}

static enum hdt_status answer_read(const struct hdt_inspect_conf *conf, const json_t *request,
                                   json_t **body, struct hdt_error *err)
{
    return hdt_evidence_read(conf->worker->state_dir, request, body, err);
}

static const struct {
    const char *type, *answer;
    enum hdt_status (*make)(const struct hdt_inspect_conf *conf, const json_t *request,
                            json_t **body, struct hdt_error *err);
} requests[] = {
    {"doctor", "doctor.is", answer_doctor},
    {"bundle.list", "bundle.is", answer_list},
    {"bundle.read", "bundle.piece", answer_read},
};

const char *hdt_inspect_answer_type(const char *type)
{
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        if (strcmp(requests[i].type, type) == 0) {
            return requests[i].answer;
        }
    }
    return NULL;
}

enum hdt_status hdt_inspect_answer(const struct hdt_inspect_conf *conf, const char *type,
                                   const json_t *request, json_t **body, struct hdt_error *err)
{
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        if (strcmp(requests[i].type, type) == 0) {
            return requests[i].make(conf, request, body, err);
        }
    }
    return hdt_error_set(err, HDT_ENOTSUP, "'%s' is no question to a worker", type);
}
