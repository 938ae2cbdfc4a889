/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings files as people write them. Input: which (0 gateway, 1 worker, 2 job), then the text.
 * What is taken survives the way to JSON and back; what is refused comes with a message.
 */
#include "config.h"

#include "src/core/gateway_conf.h"
#include "src/core/job.h"
#include "src/core/model.h"
#include "src/core/worker_conf.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <string.h>

static const struct hdt_model_config model = {
    .V = 256, .C = 32, .F = 96, .L = 4, .NH = 4, .NKV = 2, .HS = 8, .T = 64};

static void round_trip_check(const struct hdt_conf_schema *schema, const void *conf)
{
    json_t *json = hdt_conf_to_json(schema, conf), *again;
    struct hdt_error err = {0};
    union {
        struct hdt_gateway_conf gateway;
        struct hdt_worker_conf worker;
        struct hdt_job job;
    } copy;

    HDT_ASSERT(hdt_conf_from_json(schema, json, "fuzz", &copy, &err) == HDT_OK);
    again = hdt_conf_to_json(schema, &copy);
    HDT_ASSERT(json_equal(json, again));
    json_decref(json);
    json_decref(again);
    hdt_conf_release(schema, &copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hdt_conf_schema *const schemas[] = {
        &hdt_gateway_conf_schema, &hdt_worker_conf_schema, &hdt_job_schema};
    const struct hdt_conf_schema *schema;
    struct hdt_error err = {0};
    struct hdt_conf_doc *doc;
    union {
        struct hdt_gateway_conf gateway;
        struct hdt_worker_conf worker;
        struct hdt_job job;
    } conf;

    if (size < 1) {
        return 0;
    }
    schema = schemas[data[0] % 3];
    if (hdt_conf_parse(schema, (const char *)data + 1, size - 1, "fuzz", &conf, &doc, &err) !=
        HDT_OK) {
        HDT_ASSERT(err.status != HDT_OK && err.msg[0] != '\0');
        return 0;
    }
    round_trip_check(schema, &conf);
    if (schema == &hdt_job_schema && hdt_job_check(&conf.job, &model, doc, &err) != HDT_OK) {
        HDT_ASSERT(err.msg[0] != '\0');
    }
    hdt_conf_release(schema, &conf);
    hdt_conf_doc_free(doc);
    return 0;
}
