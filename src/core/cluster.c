/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"
#include "src/core/cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cluster that somebody else describes is bounded. */
#define CLUSTER_MAX_ITEMS 65536u

bool hdt_name_is_valid(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strnlen(name, HDT_NAME_CAP);

    return len >= 1 && len < HDT_NAME_CAP && strspn(name, allowed) == len;
}

void hdt_cluster_release(struct hdt_cluster *cluster)
{
    free(cluster->sites);
    free(cluster->workers);
    free(cluster->links);
    memset(cluster, 0, sizeof(*cluster));
}

struct hdt_cluster_site *hdt_cluster_find_site(const struct hdt_cluster *cluster, const char *name)
{
    for (size_t i = 0; i < cluster->n_sites; i++) {
        if (strcmp(cluster->sites[i].name, name) == 0) {
            return &cluster->sites[i];
        }
    }
    return NULL;
}

static bool cluster_has_site(const struct hdt_cluster *cluster, const char *name)
{
    return hdt_cluster_find_site(cluster, name) != NULL;
}

static bool cluster_has_worker(const struct hdt_cluster *cluster, const char *site,
                               const char *name)
{
    for (size_t i = 0; i < cluster->n_workers; i++) {
        if (strcmp(cluster->workers[i].site, site) == 0 &&
            strcmp(cluster->workers[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

void hdt_cluster_add_site(struct hdt_cluster *cluster, const char *name)
{
    struct hdt_cluster_site *site;

    HDT_ASSERT(hdt_name_is_valid(name));
    HDT_ASSERT(!cluster_has_site(cluster, name));
    cluster->sites =
        hdt_realloc(cluster->sites, (cluster->n_sites + 1) * sizeof(cluster->sites[0]));
    site = &cluster->sites[cluster->n_sites++];
    memset(site, 0, sizeof(*site));
    snprintf(site->name, sizeof(site->name), "%s", name);
}

void hdt_cluster_add_worker(struct hdt_cluster *cluster, const struct hdt_cluster_worker *worker)
{
    HDT_ASSERT(!cluster_has_worker(cluster, worker->site, worker->name));
    cluster->workers =
        hdt_realloc(cluster->workers, (cluster->n_workers + 1) * sizeof(cluster->workers[0]));
    cluster->workers[cluster->n_workers++] = *worker;
}

void hdt_cluster_add_link(struct hdt_cluster *cluster, const struct hdt_cluster_link *link)
{
    HDT_ASSERT(!hdt_cluster_find_link(cluster, link->from, link->to));
    cluster->links =
        hdt_realloc(cluster->links, (cluster->n_links + 1) * sizeof(cluster->links[0]));
    cluster->links[cluster->n_links++] = *link;
}

const struct hdt_cluster_link *hdt_cluster_find_link(const struct hdt_cluster *cluster,
                                                     const char *from, const char *to)
{
    for (size_t i = 0; i < cluster->n_links; i++) {
        if (strcmp(cluster->links[i].from, from) == 0 && strcmp(cluster->links[i].to, to) == 0) {
            return &cluster->links[i];
        }
    }
    return NULL;
}

/* ---- JSON: one table of numbers serves both directions ---- */

struct number_field {
    const char *name;
    size_t offset;
};

#define PROFILE_NUMBER(f)                                                                          \
 {                                                                                                 \
  .name = #f, .offset = offsetof(struct hdt_profile, f)                                            \
 }
#define GATEWAY_NUMBER(f)                                                                          \
 {                                                                                                 \
  .name = #f, .offset = offsetof(struct hdt_cluster_gateway, f)                                    \
 }
#define LINK_NUMBER(f)                                                                             \
 {                                                                                                 \
  .name = #f, .offset = offsetof(struct hdt_cluster_link, f)                                       \
 }

static const struct number_field profile_numbers[] = {PROFILE_NUMBER(embed_fwd_s),
                                                      PROFILE_NUMBER(embed_bwd_s),
                                                      PROFILE_NUMBER(block_fwd_s),
                                                      PROFILE_NUMBER(block_bwd_s),
                                                      PROFILE_NUMBER(block_bwd_input_s),
                                                      PROFILE_NUMBER(block_bwd_weight_s),
                                                      PROFILE_NUMBER(head_fwd_s),
                                                      PROFILE_NUMBER(head_bwd_s),
                                                      PROFILE_NUMBER(step_s_per_param),
                                                      PROFILE_NUMBER(op_overhead_s),
                                                      PROFILE_NUMBER(cast_bytes_per_s),
                                                      PROFILE_NUMBER(copy_bytes_per_s),
                                                      PROFILE_NUMBER(run_factor),
                                                      PROFILE_NUMBER(quota_cpus),
                                                      {NULL, 0}};

static const struct number_field gateway_numbers[] = {
    GATEWAY_NUMBER(send_s_per_byte),    GATEWAY_NUMBER(recv_s_per_byte),    GATEWAY_NUMBER(frame_s),
    GATEWAY_NUMBER(encode_bytes_per_s), GATEWAY_NUMBER(decode_bytes_per_s), {NULL, 0}};

static const struct number_field link_numbers[] = {LINK_NUMBER(rate_bytes_per_s),
                                                   LINK_NUMBER(rtt_s),
                                                   LINK_NUMBER(lossless_bytes_per_s),
                                                   LINK_NUMBER(lossless_ratio),
                                                   {NULL, 0}};

static void numbers_write(const struct number_field *fields, const void *obj, json_t *json)
{
    for (; fields->name; fields++) {
        const double *value = (const double *)((const char *)obj + fields->offset);

        json_object_set_new(json, fields->name, json_real(*value));
    }
}

/* Times, rates and ratios: never negative, and neither so large nor so small that what the planner
 * sums, multiplies and divides of them could leave the range of a double. Missing: 0. */
#define NUMBER_MIN 1e-12
#define NUMBER_MAX 1e15

static double number_within(double value)
{
    return value > 0 ? fmin(fmax(value, NUMBER_MIN), NUMBER_MAX) : 0;
}

static enum hdt_status numbers_read(const struct number_field *fields, const json_t *json,
                                    void *obj, struct hdt_error *err)
{
    for (; fields->name; fields++) {
        const json_t *value = json_object_get(json, fields->name);
        double *out = (double *)((char *)obj + fields->offset);

        *out = value && !json_is_null(value) ? json_number_value(value) : 0.0;
        if ((value && !json_is_number(value) && !json_is_null(value)) ||
            !(*out == 0 || (*out >= NUMBER_MIN && *out <= NUMBER_MAX))) {
            return hdt_error_set(err, HDT_EINVAL, "%s must be 0 or a number from %g to %g",
                                 fields->name, NUMBER_MIN, NUMBER_MAX);
        }
    }
    return HDT_OK;
}

static enum hdt_status text_read(const json_t *json, const char *key, char *out, size_t out_cap,
                                 struct hdt_error *err)
{
    const char *text = json_string_value(json_object_get(json, key));

    if (!text || strlen(text) >= out_cap) {
        return hdt_error_set(err, HDT_EINVAL, "%s must be a text of at most %zu bytes", key,
                             out_cap - 1);
    }
    snprintf(out, out_cap, "%s", text);
    return HDT_OK;
}

static enum hdt_status name_read(const json_t *json, const char *key, char out[HDT_NAME_CAP],
                                 struct hdt_error *err)
{
    HDT_TRY(text_read(json, key, out, HDT_NAME_CAP, err));
    if (!hdt_name_is_valid(out)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "%s '%s' is not 1 to 63 of letters, digits, '.', '_', "
                             "'-'",
                             key, out);
    }
    return HDT_OK;
}

static enum hdt_status int_read(const json_t *json, const char *key, int64_t max, int64_t *out,
                                struct hdt_error *err)
{
    const json_t *value = json_object_get(json, key);

    *out = json_integer_value(value);
    if ((value && !json_is_integer(value)) || *out < 0 || *out > max) {
        return hdt_error_set(err, HDT_EINVAL, "%s must be an integer from 0 to %lld", key,
                             (long long)max);
    }
    return HDT_OK;
}

static void machine_write(json_t *json, const char *host, const char *cpus)
{
    json_object_set_new(json, "host", json_string(host));
    json_object_set_new(json, "cpus", json_string(cpus));
}

/* Both may be missing. */
static enum hdt_status machine_read(const json_t *json, char host[HDT_HOST_CAP],
                                    char cpus[HDT_CPUS_CAP], struct hdt_error *err)
{
    host[0] = cpus[0] = '\0';
    if (json_object_get(json, "host")) {
        HDT_TRY(text_read(json, "host", host, HDT_HOST_CAP, err));
    }
    return json_object_get(json, "cpus") ? text_read(json, "cpus", cpus, HDT_CPUS_CAP, err)
                                         : HDT_OK;
}

json_t *hdt_profile_to_json(const struct hdt_profile *profile)
{
    json_t *json =
        json_pack("{s:b, s:I, s:I}", "valid", (int)profile->valid, "micro_batch",
                  (json_int_t)profile->micro_batch, "seq_len", (json_int_t)profile->seq_len);

    numbers_write(profile_numbers, profile, json);
    machine_write(json, profile->host, profile->cpus);
    return json;
}

enum hdt_status hdt_profile_from_json(const json_t *json, struct hdt_profile *profile,
                                      struct hdt_error *err)
{
    struct hdt_profile p = {0};

    if (!json_is_object(json)) {
        return hdt_error_set(err, HDT_EINVAL, "a profile must be an object");
    }
    p.valid = json_is_true(json_object_get(json, "valid"));
    HDT_TRY(int_read(json, "micro_batch", 65536, &p.micro_batch, err));
    HDT_TRY(int_read(json, "seq_len", 1048576, &p.seq_len, err));
    HDT_TRY(numbers_read(profile_numbers, json, &p, err));
    HDT_TRY(machine_read(json, p.host, p.cpus, err));
    *profile = p;
    return HDT_OK;
}

double hdt_profile_run_factor(const struct hdt_profile *profile)
{
    return profile->run_factor > 0 ? profile->run_factor : 1;
}

void hdt_profile_scale(struct hdt_profile *p, double f)
{
    double *times[] = {&p->embed_fwd_s,  &p->embed_bwd_s,       &p->block_fwd_s,
                       &p->block_bwd_s,  &p->block_bwd_input_s, &p->block_bwd_weight_s,
                       &p->head_fwd_s,   &p->head_bwd_s,        &p->step_s_per_param,
                       &p->op_overhead_s};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        *times[i] = number_within(*times[i] * f);
    }
    p->cast_bytes_per_s = number_within(p->cast_bytes_per_s / f);
    p->copy_bytes_per_s = number_within(p->copy_bytes_per_s / f);
    p->run_factor = number_within(hdt_profile_run_factor(p) * f);
}

json_t *hdt_cluster_gateway_to_json(const struct hdt_cluster_gateway *gateway)
{
    json_t *json = json_object();

    numbers_write(gateway_numbers, gateway, json);
    machine_write(json, gateway->host, gateway->cpus);
    return json;
}

enum hdt_status hdt_cluster_gateway_from_json(const json_t *json,
                                              struct hdt_cluster_gateway *gateway,
                                              struct hdt_error *err)
{
    struct hdt_cluster_gateway g = {0};

    HDT_TRY(numbers_read(gateway_numbers, json, &g, err));
    HDT_TRY(machine_read(json, g.host, g.cpus, err));
    *gateway = g;
    return HDT_OK;
}

static json_t *worker_to_json(const struct hdt_cluster_worker *w)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:b, s:b, s:b, s:o}", "site", w->site, "name",
                     w->name, "device", w->device, "backend", w->backend, "memory_bytes",
                     (json_int_t)w->memory_bytes, "n_threads", w->n_threads, "bf16", (int)w->bf16,
                     "fp8", (int)w->fp8, "busy", (int)w->busy, "profile",
                     hdt_profile_to_json(&w->profile));
}

static json_t *link_to_json(const struct hdt_cluster_link *link)
{
    json_t *json =
        json_pack("{s:s, s:s, s:b}", "from", link->from, "to", link->to, "up", (int)link->up);

    numbers_write(link_numbers, link, json);
    return json;
}

json_t *hdt_cluster_to_json(const struct hdt_cluster *cluster)
{
    json_t *sites = json_array(), *workers = json_array(), *links = json_array();

    for (size_t i = 0; i < cluster->n_sites; i++) {
        json_array_append_new(sites,
                              json_pack("{s:s, s:o}", "name", cluster->sites[i].name, "gateway",
                                        hdt_cluster_gateway_to_json(&cluster->sites[i].gateway)));
    }
    for (size_t i = 0; i < cluster->n_workers; i++) {
        json_array_append_new(workers, worker_to_json(&cluster->workers[i]));
    }
    for (size_t i = 0; i < cluster->n_links; i++) {
        json_array_append_new(links, link_to_json(&cluster->links[i]));
    }
    return json_pack("{s:o, s:o, s:o}", "sites", sites, "workers", workers, "links", links);
}

static enum hdt_status site_from_json(const json_t *json, struct hdt_cluster *cluster,
                                      struct hdt_error *err)
{
    char name[HDT_NAME_CAP];

    HDT_TRY(name_read(json, "name", name, err));
    if (cluster_has_site(cluster, name)) {
        return hdt_error_set(err, HDT_EINVAL, "site '%s' is named twice", name);
    }
    hdt_cluster_add_site(cluster, name);
    return hdt_cluster_gateway_from_json(json_object_get(json, "gateway"),
                                         &hdt_cluster_find_site(cluster, name)->gateway, err);
}

static enum hdt_status worker_from_json(const json_t *json, struct hdt_cluster *cluster,
                                        struct hdt_error *err)
{
    struct hdt_cluster_worker w = {0};
    const json_t *profile = json_object_get(json, "profile");
    int64_t memory, threads;

    HDT_TRY(name_read(json, "site", w.site, err));
    HDT_TRY(name_read(json, "name", w.name, err));
    HDT_TRY(text_read(json, "device", w.device, sizeof(w.device), err));
    HDT_TRY(text_read(json, "backend", w.backend, sizeof(w.backend), err));
    HDT_TRY(int_read(json, "memory_bytes", INT64_MAX, &memory, err));
    HDT_TRY(int_read(json, "n_threads", 1 << 20, &threads, err));
    if (profile && !json_is_null(profile)) {
        HDT_TRY(hdt_profile_from_json(profile, &w.profile, err));
    }
    w.memory_bytes = (uint64_t)memory;
    w.n_threads = (int)threads;
    w.bf16 = json_is_true(json_object_get(json, "bf16"));
    w.fp8 = json_is_true(json_object_get(json, "fp8"));
    w.busy = json_is_true(json_object_get(json, "busy"));
    if (!cluster_has_site(cluster, w.site) || cluster_has_worker(cluster, w.site, w.name)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "worker '%s/%s' is named twice or its site is missing", w.site,
                             w.name);
    }
    hdt_cluster_add_worker(cluster, &w);
    return HDT_OK;
}

enum hdt_status hdt_cluster_link_from_json(const json_t *json, struct hdt_cluster_link *link,
                                           struct hdt_error *err)
{
    memset(link, 0, sizeof(*link));
    HDT_TRY(name_read(json, "from", link->from, err));
    HDT_TRY(name_read(json, "to", link->to, err));
    HDT_TRY(numbers_read(link_numbers, json, link, err));
    link->up = json_is_true(json_object_get(json, "up"));
    return HDT_OK;
}

static enum hdt_status link_add_json(const json_t *json, struct hdt_cluster *cluster,
                                     struct hdt_error *err)
{
    struct hdt_cluster_link link;

    HDT_TRY(hdt_cluster_link_from_json(json, &link, err));
    if (!cluster_has_site(cluster, link.from) || !cluster_has_site(cluster, link.to)) {
        return HDT_OK; /* measured before a site left: nothing to plan with */
    }
    if (hdt_cluster_find_link(cluster, link.from, link.to)) {
        return hdt_error_set(err, HDT_EINVAL, "link '%s' -> '%s' is named twice", link.from,
                             link.to);
    }
    hdt_cluster_add_link(cluster, &link);
    return HDT_OK;
}

typedef enum hdt_status (*item_reader)(const json_t *json, struct hdt_cluster *cluster,
                                       struct hdt_error *err);

static enum hdt_status items_read(const json_t *json, const char *key, item_reader read,
                                  struct hdt_cluster *cluster, struct hdt_error *err)
{
    const json_t *items = json_object_get(json, key);
    size_t n = json_array_size(items);

    if (!json_is_array(items) || n > CLUSTER_MAX_ITEMS) {
        return hdt_error_set(err, HDT_EINVAL, "%s must be a list of at most %u", key,
                             CLUSTER_MAX_ITEMS);
    }
    for (size_t i = 0; i < n; i++) {
        enum hdt_status status = read(json_array_get(items, i), cluster, err);

        if (status != HDT_OK) {
            hdt_error_prefix(err, "%s[%zu]", key, i);
            return status;
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_cluster_from_json(const json_t *json, const char *where,
                                      struct hdt_cluster *cluster, struct hdt_error *err)
{
    struct hdt_cluster c = {0};
    enum hdt_status status = items_read(json, "sites", site_from_json, &c, err);

    if (status == HDT_OK) {
        status = items_read(json, "workers", worker_from_json, &c, err);
    }
    if (status == HDT_OK) {
        status = items_read(json, "links", link_add_json, &c, err);
    }
    if (status != HDT_OK) {
        hdt_error_prefix(err, "cannot read the cluster");
        hdt_error_where(err, "%s", where);
        hdt_cluster_release(&c);
        return status;
    }
    *cluster = c;
    return HDT_OK;
}
