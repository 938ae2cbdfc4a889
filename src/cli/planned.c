/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/planned.h"
#include "src/cli/places.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "src/core/profile_file.h"

#include <stdlib.h>
#include <string.h>

static enum hdt_status override_steps(struct hdt_job *job, const char *text, struct hdt_error *err)
{
    char *end;
    long long steps = strtoll(text, &end, 10);

    if (*end != '\0' || end == text || steps < 1 || steps > 1000000000) {
        return hdt_error_set(err, HDT_EINVAL, "--steps '%s' is not a number from 1 to 1000000000",
                             text);
    }
    job->steps = steps;
    /* A shorter run has a shorter warm-up. */
    if (job->optimizer.warmup_steps > steps) {
        job->optimizer.warmup_steps = steps;
    }
    return HDT_OK;
}

static enum hdt_status override_codec(struct hdt_job *job, const char *name, struct hdt_error *err)
{
    if (hdt_job_codec_check(name, err) != HDT_OK) {
        hdt_error_prefix(err, "--codec");
        return HDT_EINVAL;
    }
    free(job->codec.activations);
    free(job->codec.activation_grads);
    job->codec.activations = hdt_strdup(name);
    job->codec.activation_grads = hdt_strdup(name);
    return HDT_OK;
}

static enum hdt_status override_schedule(struct hdt_job *job, const char *name,
                                         struct hdt_error *err)
{
    for (int i = 0; hdt_schedule_names[i]; i++) {
        if (strcmp(hdt_schedule_names[i], name) == 0) {
            job->plan.schedule = i;
            return HDT_OK;
        }
    }
    hdt_error_set(err, HDT_EINVAL, "--schedule '%s' is unknown", name);
    hdt_error_hint(err, "known are auto, gpipe, 1f1b, interleaved, zb-h1, zb-mem, wan");
    return HDT_EINVAL;
}

static enum hdt_status job_override(struct hdt_job *job, const struct hdt_planned_overrides *o,
                                    struct hdt_error *err)
{
    if (o->steps) {
        HDT_TRY(override_steps(job, o->steps, err));
    }
    if (o->schedule) {
        HDT_TRY(override_schedule(job, o->schedule, err));
    }
    return o->codec ? override_codec(job, o->codec, err) : HDT_OK;
}

enum hdt_status hdt_planned_overrides_check(const struct hdt_planned_overrides *overrides,
                                            struct hdt_error *err)
{
    struct hdt_job job = {0};
    enum hdt_status status = job_override(&job, overrides, err);

    hdt_conf_release(&hdt_job_schema, &job);
    return status;
}

enum hdt_status hdt_planned_load(struct hdt_planned *p, const char *path,
                                 const struct hdt_planned_overrides *overrides,
                                 struct hdt_error *err)
{
    enum hdt_status status;
    char warning[256];

    memset(p, 0, sizeof(*p));
    HDT_TRY(hdt_conf_load(&hdt_job_schema, path, &p->job, &p->doc, err));
    status = job_override(&p->job, overrides, err);
    if (status == HDT_OK) {
        status = hdt_model_load(p->job.model, &p->model, err);
    }
    if (status == HDT_OK) {
        status = hdt_job_check(&p->job, &p->model, p->doc, err);
    }
    if (status == HDT_OK && hdt_job_codec_warning(&p->job, warning, sizeof(warning))) {
        fprintf(stderr, "hdt: warning: %s\n", warning);
    }
    if (status != HDT_OK) {
        hdt_planned_release(p);
    }
    return status;
}

static enum hdt_status cluster_take(struct hdt_planned *p, json_t *json, const char *where,
                                    struct hdt_error *err)
{
    HDT_TRY(hdt_cluster_from_json(json, where, &p->cluster, err));
    p->cluster_json = json_incref(json);
    return HDT_OK;
}

/* What the gateway could not measure: one line each. */
static void problems_print(const json_t *problems)
{
    size_t i;
    json_t *item;

    json_array_foreach(problems, i, item)
    {
        if (json_is_string(item)) {
            fprintf(stderr, "hdt: warning: %s\n", json_string_value(item));
        }
    }
}

/* Who is known and not there: a plan without them is to say so. Not worth a failure. */
static void away_note(struct hdt_planned *p, struct hdt_gwclient *client)
{
    struct hdt_error ignored = {0};
    struct hdt_places places;
    json_t *status;

    if (hdt_places_status(client, &status, &ignored) != HDT_OK) {
        return;
    }
    hdt_places_read(status, &places);
    p->away = json_array();
    for (size_t i = 0; i < places.n; i++) {
        const struct hdt_place *place = &places.items[i];

        if (place->worker[0] && !place->up) {
            json_array_append_new(p->away,
                                  json_sprintf("%s is not connected: %s", place->address,
                                               place->why_not[0] ? place->why_not : "no word"));
        }
    }
    hdt_places_release(&places);
    json_decref(status);
}

enum hdt_status hdt_planned_check_timeout(const struct hdt_planned *p,
                                          const struct hdt_gwclient *client, struct hdt_error *err)
{
    return hdt_job_check_timeout(&p->job,
                                 hdt_gwclient_deadlines(client)->progress_us / HDT_US_PER_MS,
                                 hdt_gwclient_site(client), p->doc, err);
}

enum hdt_status hdt_planned_survey(struct hdt_planned *p, struct hdt_gwclient *client,
                                   const struct hdt_planned_overrides *overrides,
                                   struct hdt_error *err)
{
    struct hdt_gwclient_request request = {
        .type = "cluster", .expect = "cluster.is", .patience = HDT_GWCLIENT_SURVEY};
    enum hdt_status status;
    json_t *body;

    if (!p->job.data.site[0]) {
        free(p->job.data.site);
        p->job.data.site = hdt_strdup(hdt_gwclient_site(client));
    }
    request.body =
        json_pack("{s:o, s:o, s:b}", "job", hdt_conf_to_json(&hdt_job_schema, &p->job), "model",
                  hdt_model_to_json(&p->model), "remeasure", (int)overrides->remeasure);
    HDT_TRY(hdt_gwclient_ask(client, &request, &body, err));
    problems_print(json_object_get(body, "problems"));
    status = cluster_take(p, json_object_get(body, "cluster"), hdt_gwclient_site(client), err);
    json_decref(body);
    if (status == HDT_OK) {
        away_note(p, client);
    }
    return status;
}

/* A worker's "profile_file" stands relative to the cluster's file. */
static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');

    return name[0] == '/' || !slash ? hdt_strdup(name)
                                    : hdt_asprintf("%.*s/%s", (int)(slash - path), path, name);
}

/* Files are named by who plans, never by what a gateway sends: so they are no part of
 * hdt_cluster_from_json. What is printed of the cluster has their numbers in it. */
static enum hdt_status profile_files_read(struct hdt_planned *p, const char *path,
                                          struct hdt_error *err)
{
    struct hdt_profile_file_want want = {.model = &p->model,
                                         .micro_batch = p->job.batch.micro_batch,
                                         .seq_len = p->job.batch.seq_len};
    enum hdt_status status = HDT_OK;
    size_t n_read = 0, i;
    json_t *worker;

    json_array_foreach(json_object_get(p->cluster_json, "workers"), i, worker)
    {
        const json_t *name = json_object_get(worker, "profile_file");
        char *file;

        if (!name || status != HDT_OK) {
            continue;
        }
        if (!json_is_string(name)) {
            status = hdt_error_set(err, HDT_EINVAL, "workers[%zu].profile_file must be a path", i);
            hdt_error_where(err, "%s", path);
            continue;
        }
        file = beside(path, json_string_value(name));
        want.n_threads = p->cluster.workers[i].n_threads;
        want.precision =
            hdt_cost_precision(&(struct hdt_cost_inputs){.job = &p->job}, &p->cluster.workers[i]);
        status = hdt_profile_file_read(file, &want, &p->cluster.workers[i].profile, err);
        free(file);
        n_read++;
        if (status != HDT_OK) {
            hdt_error_prefix(err, "workers[%zu]", i);
        }
        if (status != HDT_OK && err && !err->where[0]) {
            hdt_error_where(err, "%s", path);
        }
    }
    if (status == HDT_OK && n_read > 0) {
        json_decref(p->cluster_json);
        p->cluster_json = hdt_cluster_to_json(&p->cluster);
    }
    return status;
}

enum hdt_status hdt_planned_cluster_file(struct hdt_planned *p, const char *path,
                                         struct hdt_error *err)
{
    json_error_t json_err;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &json_err);
    json_t *inner = json_object_get(json, "cluster");
    enum hdt_status status;

    if (!json) {
        status =
            json_error_code(&json_err) == json_error_cannot_open_file ? HDT_ENOENT : HDT_EINVAL;
        hdt_error_set(err, status, "cannot read the cluster: %s", json_err.text);
        if (status == HDT_EINVAL) {
            hdt_error_where(err, "%s:%d", path, json_err.line);
        }
        hdt_error_hint(err, "it is the \"cluster\" of 'hdt plan --json JOB.YAML'");
        return status;
    }
    status = cluster_take(p, inner ? inner : json, path, err);
    json_decref(json);
    return status == HDT_OK ? profile_files_read(p, path, err) : status;
}

enum hdt_status hdt_planned_from_json(struct hdt_planned *p, const json_t *json,
                                      struct hdt_error *err)
{
    const json_t *cluster = json_object_get(json, "cluster");

    if (!json_is_object(json_object_get(json, "plan")) ||
        !json_is_object(json_object_get(json, "job"))) {
        hdt_error_set(err, HDT_EINVAL, "it is no plan: it has no \"plan\" or no \"job\"");
        hdt_error_hint(err, "'hdt plan --json JOB.YAML' prints one");
        return HDT_EINVAL;
    }
    HDT_TRY(hdt_conf_from_json(&hdt_job_schema, json_object_get(json, "job"), "job", &p->job, err));
    HDT_TRY(hdt_model_from_json(json_object_get(json, "model"), "model", &p->model, err));
    HDT_TRY(hdt_plan_from_json(json_object_get(json, "plan"), &p->model, &p->result.plan, err));
    return cluster ? hdt_cluster_from_json(cluster, "cluster", &p->cluster, err) : HDT_OK;
}

enum hdt_status hdt_planned_search(struct hdt_planned *p, struct hdt_error *err)
{
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};

    return hdt_search_plan(&in, &p->result, err);
}

void hdt_planned_release(struct hdt_planned *p)
{
    hdt_search_result_release(&p->result);
    hdt_cluster_release(&p->cluster);
    json_decref(p->cluster_json);
    json_decref(p->away);
    hdt_conf_doc_free(p->doc);
    hdt_conf_release(&hdt_job_schema, &p->job);
    memset(p, 0, sizeof(*p));
}

json_t *hdt_planned_stage_layers(const struct hdt_planned *p)
{
    json_t *layers = json_array();

    for (size_t i = 0; i < p->result.plan.n_stages; i++) {
        const struct hdt_plan_stage *s = &p->result.plan.stages[i];
        int64_t n = s->unit_end - s->unit_begin;

        n -= s->unit_begin == 0;
        n -= s->unit_end == hdt_model_n_units(&p->model);
        json_array_append_new(layers, json_integer(n));
    }
    return layers;
}
