/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "src/base/buf.h"
#include "src/core/plan.h"
#include "src/core/plan_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

static json_t *rank_to_json(const struct hdt_plan_rank *r)
{
    return json_pack("{s:s, s:s, s:i, s:f, s:f, s:f}", "site", r->site, "worker", r->worker,
                     "device", r->device, "busy_s", r->busy_s, "held_s", r->held_s, "gateway_share",
                     r->gateway_share);
}

static json_t *stage_to_json(const struct hdt_plan_stage *s)
{
    json_t *json = json_pack(
        "{s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:b, s:I, s:f, s:f, s:f, s:f}", "replica",
        s->replica, "pos", s->pos, "rank", s->rank, "n_slices", s->n_slices, "unit_begin",
        (json_int_t)s->unit_begin, "unit_end", (json_int_t)s->unit_end, "warmup",
        (json_int_t)s->warmup, "in_flight", (json_int_t)s->in_flight, "recompute",
        (int)s->recompute, "memory_bytes", (json_int_t)s->memory_bytes, "fwd_s", s->fwd_s, "bwd_s",
        s->bwd_s, "bwd_input_s", s->bwd_input_s, "bwd_weight_s", s->bwd_weight_s);

    if (s->n_micro_batches > 0) {
        json_object_set_new(json, "n_micro_batches", json_integer(s->n_micro_batches));
    }
    return json;
}

static json_t *flow_to_json(const struct hdt_plan_flow *f)
{
    char codec[HDT_CODEC_SPEC_TEXT];

    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:I}", "kind",
                     hdt_flow_kind_name(f->kind), "prio", (int)f->prio, "replica", f->replica,
                     "src_rank", f->src_rank, "dst_rank", f->dst_rank, "src_slice", f->src_slice,
                     "dst_slice", f->dst_slice, "src_stage", f->src_stage, "dst_stage",
                     f->dst_stage, "codec", hdt_codec_spec_format(&f->codec, codec), "dtype",
                     hdt_dtype_name(f->dtype), "frame_cap", (json_int_t)f->frame_cap, "depth",
                     (json_int_t)f->depth);
}

json_t *hdt_plan_to_json(const struct hdt_plan *plan)
{
    json_t *ranks = json_array(), *stages = json_array(), *flows = json_array();

    for (size_t i = 0; i < plan->n_ranks; i++) {
        json_array_append_new(ranks, rank_to_json(&plan->ranks[i]));
    }
    for (size_t i = 0; i < plan->n_stages; i++) {
        json_array_append_new(stages, stage_to_json(&plan->stages[i]));
    }
    for (size_t i = 0; i < plan->n_flows; i++) {
        json_array_append_new(flows, flow_to_json(&plan->flows[i]));
    }
    return json_pack("{s:o, s:o, s:o, s:i, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:s}",
                     "ranks", ranks, "stages", stages, "flows", flows, "n_replicas",
                     plan->n_replicas, "schedule", hdt_schedule_names[plan->schedule], "data_rank",
                     plan->data_rank, "root_rank", plan->root_rank, "checkpoint_rank",
                     plan->checkpoint_rank, "micro_batch", (json_int_t)plan->micro_batch,
                     "n_micro_batches", (json_int_t)plan->n_micro_batches, "seq_len",
                     (json_int_t)plan->seq_len, "step_s", plan->step_s, "bubble_share",
                     plan->bubble_share, "wan_bytes", plan->wan_bytes, "limit", plan->limit);
}

/* ---- reading ---- */

/* Reads of one object: the first failure is kept, later reads do nothing. */
struct reader {
    const json_t *json;
    enum hdt_status status;
    struct hdt_error *err;
};

static int64_t read_int(struct reader *r, const char *key, int64_t min, int64_t max)
{
    const json_t *value = json_object_get(r->json, key);
    int64_t v = json_integer_value(value);

    if (r->status != HDT_OK) {
        return min;
    }
    if (!json_is_integer(value) || v < min || v > max) {
        r->status = hdt_error_set(r->err, HDT_EINVAL, "%s must be an integer from %lld to %lld",
                                  key, (long long)min, (long long)max);
        return min;
    }
    return v;
}

static double read_real(struct reader *r, const char *key)
{
    const json_t *value = json_object_get(r->json, key);
    double v = json_number_value(value);

    if (r->status != HDT_OK) {
        return 0;
    }
    if (!json_is_number(value) || !(v >= 0) || !isfinite(v)) {
        r->status = hdt_error_set(r->err, HDT_EINVAL, "%s must be a number of 0 or more", key);
        return 0;
    }
    return v;
}

static void read_text(struct reader *r, const char *key, char *out, size_t out_cap)
{
    const char *text = json_string_value(json_object_get(r->json, key));

    if (r->status != HDT_OK) {
        return;
    }
    if (!text || strlen(text) >= out_cap) {
        r->status = hdt_error_set(r->err, HDT_EINVAL, "%s must be a text of at most %zu bytes", key,
                                  out_cap - 1);
        return;
    }
    snprintf(out, out_cap, "%s", text);
}

static int read_name(struct reader *r, const char *key, const char *const *names)
{
    const char *text = json_string_value(json_object_get(r->json, key));

    for (int i = 0; text && names[i]; i++) {
        if (strcmp(names[i], text) == 0) {
            return i;
        }
    }
    if (r->status == HDT_OK) {
        r->status =
            hdt_error_set(r->err, HDT_EINVAL, "%s '%s' is unknown", key, text ? text : "(missing)");
    }
    return 0;
}

static void read_codec(struct reader *r, const char *key, struct hdt_codec_spec *codec)
{
    const char *text = json_string_value(json_object_get(r->json, key));

    if (r->status != HDT_OK) {
        return;
    }
    r->status = text ? hdt_codec_spec_parse(text, codec, r->err)
                     : hdt_error_set(r->err, HDT_EINVAL, "%s is missing", key);
}

static void rank_from_json(struct reader *r, struct hdt_plan *plan, size_t i)
{
    struct hdt_plan_rank *rank = &plan->ranks[i];

    read_text(r, "site", rank->site, sizeof(rank->site));
    read_text(r, "worker", rank->worker, sizeof(rank->worker));
    rank->device = (int)read_int(r, "device", 0, 4096);
    if (json_object_get(r->json, "busy_s")) { /* else a plan from before it said so */
        rank->busy_s = read_real(r, "busy_s");
        rank->held_s = read_real(r, "held_s");
    }
    if (json_object_get(r->json, "gateway_share")) { /* so, too */
        rank->gateway_share = read_real(r, "gateway_share");
    }
}

static void stage_from_json(struct reader *r, struct hdt_plan *plan, size_t i)
{
    struct hdt_plan_stage *s = &plan->stages[i];

    s->replica = (int)read_int(r, "replica", 0, 65535);
    s->pos = (int)read_int(r, "pos", 0, HDT_MODEL_MAX_L + 2);
    s->rank = (int)read_int(r, "rank", 0, HDT_PLAN_MAX_RANKS);
    s->n_slices = (int)read_int(r, "n_slices", 1, 65535);
    s->unit_begin = read_int(r, "unit_begin", 0, HDT_MODEL_MAX_L + 2);
    s->unit_end = read_int(r, "unit_end", 0, HDT_MODEL_MAX_L + 2);
    s->warmup = read_int(r, "warmup", 0, 65536);
    s->n_micro_batches = plan->n_micro_batches; /* of a plan from before there were replicas */
    if (json_object_get(r->json, "n_micro_batches")) {
        s->n_micro_batches = read_int(r, "n_micro_batches", 1, 65536);
    }
    s->recompute = json_is_true(json_object_get(r->json, "recompute"));
    s->memory_bytes = (uint64_t)read_int(r, "memory_bytes", 0, INT64_MAX);
    s->fwd_s = read_real(r, "fwd_s");
    s->bwd_s = read_real(r, "bwd_s");
    if (json_object_get(r->json, "in_flight")) {
        s->in_flight = read_int(r, "in_flight", 0, 65536);
        s->bwd_input_s = read_real(r, "bwd_input_s");
        s->bwd_weight_s = read_real(r, "bwd_weight_s");
    } else { /* a plan from before there were several schedules */
        s->in_flight = s->warmup < plan->n_micro_batches ? s->warmup + 1 : plan->n_micro_batches;
    }
}

static void flow_from_json(struct reader *r, struct hdt_plan *plan, size_t i)
{
    struct hdt_plan_flow *f = &plan->flows[i];
    const char *dtype = json_string_value(json_object_get(r->json, "dtype"));
    int64_t max_rank = (int64_t)plan->n_ranks - 1, max_stage = (int64_t)plan->n_stages - 1;

    f->kind = (enum hdt_flow_kind)read_name(r, "kind", hdt_flow_kind_names);
    f->prio = (enum hdt_prio)read_int(r, "prio", 0, HDT_PRIO_COUNT - 1);
    f->replica = (int)read_int(r, "replica", 0, plan->n_replicas - 1);
    f->src_rank = (int)read_int(r, "src_rank", 0, max_rank);
    f->dst_rank = (int)read_int(r, "dst_rank", 0, max_rank);
    f->src_slice = (int)read_int(r, "src_slice", 0, 0);
    f->dst_slice = (int)read_int(r, "dst_slice", 0, 0);
    f->src_stage = (int)read_int(r, "src_stage", -1, max_stage);
    f->dst_stage = (int)read_int(r, "dst_stage", -1, max_stage);
    read_codec(r, "codec", &f->codec);
    f->frame_cap = (uint32_t)read_int(r, "frame_cap", 1, HDT_FRAME_MAX_LEN);
    f->depth = (uint32_t)read_int(r, "depth", 1, 65536);
    if (r->status == HDT_OK && dtype && strcmp(dtype, hdt_dtype_name(HDT_DTYPE_NONE)) == 0) {
        f->dtype = HDT_DTYPE_NONE;
    } else if (r->status == HDT_OK) {
        r->status = hdt_dtype_parse(dtype ? dtype : "", &f->dtype, r->err);
    }
}

/* Read the list `key` into *items, n items of `size` bytes; one failed item names its place. */
static enum hdt_status list_read(const json_t *json, const char *key, size_t max, size_t size,
                                 void **items, size_t *n, struct hdt_error *err)
{
    const json_t *list = json_object_get(json, key);

    if (!json_is_array(list) || json_array_size(list) > max) {
        return hdt_error_set(err, HDT_EINVAL, "%s must be a list of at most %zu", key, max);
    }
    *n = json_array_size(list);
    *items = hdt_calloc(*n + 1, size);
    return HDT_OK;
}

static enum hdt_status items_read(const json_t *json, const char *key, size_t n,
                                  void (*read)(struct reader *, struct hdt_plan *, size_t),
                                  struct hdt_plan *plan, struct hdt_error *err)
{
    const json_t *list = json_object_get(json, key);

    for (size_t i = 0; i < n; i++) {
        struct reader r = {json_array_get(list, i), HDT_OK, err};

        read(&r, plan, i);
        if (r.status != HDT_OK) {
            hdt_error_prefix(err, "%s[%zu]", key, i);
            return r.status;
        }
    }
    return HDT_OK;
}

static enum hdt_status plan_read_scalars(const json_t *json, struct hdt_plan *plan,
                                         struct hdt_error *err)
{
    struct reader r = {json, HDT_OK, err};

    plan->n_replicas = (int)read_int(&r, "n_replicas", 1, 65535);
    plan->schedule = HDT_SCHEDULE_WAN;
    if (json_object_get(json, "schedule")) {
        plan->schedule = (enum hdt_schedule_kind)read_name(&r, "schedule", hdt_schedule_names);
    }
    plan->data_rank = (int)read_int(&r, "data_rank", 0, (int64_t)plan->n_ranks - 1);
    plan->root_rank = (int)read_int(&r, "root_rank", 0, (int64_t)plan->n_ranks - 1);
    plan->checkpoint_rank = (int)read_int(&r, "checkpoint_rank", 0, (int64_t)plan->n_ranks - 1);
    plan->micro_batch = read_int(&r, "micro_batch", 1, 65536);
    plan->n_micro_batches = read_int(&r, "n_micro_batches", 1, 65536);
    plan->seq_len = read_int(&r, "seq_len", 1, 1048576);
    plan->step_s = read_real(&r, "step_s");
    plan->bubble_share = read_real(&r, "bubble_share");
    plan->wan_bytes = read_real(&r, "wan_bytes");
    read_text(&r, "limit", plan->limit, sizeof(plan->limit));
    if (r.status == HDT_OK && plan->schedule == HDT_SCHEDULE_AUTO) {
        return hdt_error_set(err, HDT_EINVAL, "schedule 'auto' is for jobs, plans name another");
    }
    return r.status;
}

/* All outer flows have one worker codec: replicas must see the same numbers. */
static enum hdt_status outer_check(const struct hdt_plan *plan, struct hdt_error *err)
{
    struct hdt_codec_spec first, other;
    bool has_first = false;

    for (size_t i = 0; i < plan->n_flows; i++) {
        other = plan->flows[i].codec;
        other.gateway = HDT_CODEC_NONE;
        if (plan->flows[i].kind != HDT_FLOW_OUTER) {
            continue;
        }
        if (has_first && !hdt_codec_spec_equal(&first, &other)) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "flow %zu (outer) has another codec than the "
                                 "first of its kind",
                                 i);
        }
        first = other;
        has_first = true;
    }
    return HDT_OK;
}

/* Codecs change numbers only on edges and in outer steps; frames hold what the kind sends. */
static enum hdt_status flow_check(const struct hdt_plan *plan, size_t i,
                                  const struct hdt_model_config *model, struct hdt_error *err)
{
    const struct hdt_plan_flow *f = &plan->flows[i];
    bool edge = f->kind == HDT_FLOW_ACTIVATION || f->kind == HDT_FLOW_ACTIVATION_GRAD;
    uint64_t n_values = (uint64_t)plan->micro_batch * (uint64_t)plan->seq_len * (uint64_t)model->C;
    const uint32_t needed = edge ? hdt_plan_frame_bytes(&f->codec, n_values) : 0;
    char codec[HDT_CODEC_SPEC_TEXT];

    if (f->src_rank == f->dst_rank) {
        return hdt_error_set(err, HDT_EINVAL, "flow %zu begins and ends at rank %d", i,
                             f->src_rank);
    }
    if (!edge && f->codec.worker != HDT_CODEC_NONE &&
        (f->kind != HDT_FLOW_OUTER || hdt_codec_spec_has_state(&f->codec))) {
        return hdt_error_set(err, HDT_EINVAL, "flow %zu (%s) cannot use codec %s", i,
                             hdt_flow_kind_name(f->kind), hdt_codec_spec_format(&f->codec, codec));
    }
    if (edge && (f->frame_cap < needed || f->frame_cap > 4 * n_values + needed)) {
        return hdt_error_set(err, HDT_EINVAL, "flow %zu (%s) has frames of %u bytes, needed are %u",
                             i, hdt_flow_kind_name(f->kind), f->frame_cap, needed);
    }
    if ((f->src_stage >= 0 && plan->stages[f->src_stage].rank != f->src_rank) ||
        (f->dst_stage >= 0 && plan->stages[f->dst_stage].rank != f->dst_rank)) {
        return hdt_error_set(err, HDT_EINVAL, "flow %zu (%s) names stages of other ranks", i,
                             hdt_flow_kind_name(f->kind));
    }
    return HDT_OK;
}

/*
 * The flows must be those that hdt_plan_complete derives from the stages, in the same order: they
 * are derived again, with the codecs and roles given, and compared. So a plan that passes has every
 * flow that its schedule asks for, deep enough to be free of deadlock.
 */
static enum hdt_status plan_check_flows(const struct hdt_plan *plan,
                                        const struct hdt_model_config *model, struct hdt_error *err)
{
    struct hdt_job job = {.batch = {plan->micro_batch, plan->n_micro_batches, plan->seq_len}};
    struct hdt_plan derived = *plan;
    enum hdt_status status;

    if (plan->root_rank != plan->stages[0].rank) {
        return hdt_error_set(err, HDT_EINVAL, "root_rank %d is not the rank of stage 0",
                             plan->root_rank);
    }
    if (hdt_plan_rank_replica(plan, plan->data_rank) != 0) {
        return hdt_error_set(err, HDT_EINVAL, "data_rank %d is not of the first replica",
                             plan->data_rank);
    }
    for (size_t i = 0; i < plan->n_flows; i++) {
        HDT_TRY(flow_check(plan, i, model, err));
    }
    HDT_TRY(outer_check(plan, err));
    derived.flows = hdt_malloc((plan->n_flows + 1) * sizeof(derived.flows[0]));
    memcpy(derived.flows, plan->flows, plan->n_flows * sizeof(derived.flows[0]));
    status = hdt_plan_derive_flows(&derived, &job, model, err);
    if (status == HDT_OK && derived.n_flows != plan->n_flows) {
        status = hdt_error_set(err, HDT_EINVAL, "the plan has %zu flows, its stages need %zu",
                               plan->n_flows, derived.n_flows);
    }
    for (size_t i = 0; status == HDT_OK && i < plan->n_flows; i++) {
        const struct hdt_plan_flow *a = &plan->flows[i], *b = &derived.flows[i];

        if (a->kind != b->kind || a->src_rank != b->src_rank || a->dst_rank != b->dst_rank ||
            a->src_stage != b->src_stage || a->dst_stage != b->dst_stage ||
            a->frame_cap < b->frame_cap || a->depth < b->depth || a->dtype != b->dtype) {
            status = hdt_error_set(err, HDT_EINVAL,
                                   "flow %zu (%s) is not the one that the stages need there (%s)",
                                   i, hdt_flow_kind_name(a->kind), hdt_flow_kind_name(b->kind));
        }
    }
    free(derived.flows);
    return status;
}

static enum hdt_status plan_read(const json_t *json, const struct hdt_model_config *model,
                                 struct hdt_plan *plan, struct hdt_error *err)
{
    HDT_TRY(list_read(json, "ranks", HDT_PLAN_MAX_RANKS, sizeof(plan->ranks[0]),
                      (void **)&plan->ranks, &plan->n_ranks, err));
    HDT_TRY(list_read(json, "stages", HDT_MODEL_MAX_L + 2, sizeof(plan->stages[0]),
                      (void **)&plan->stages, &plan->n_stages, err));
    HDT_TRY(list_read(json, "flows", HDT_PLAN_MAX_FLOWS, sizeof(plan->flows[0]),
                      (void **)&plan->flows, &plan->n_flows, err));
    HDT_TRY(plan_read_scalars(json, plan, err));
    HDT_TRY(items_read(json, "ranks", plan->n_ranks, rank_from_json, plan, err));
    HDT_TRY(items_read(json, "stages", plan->n_stages, stage_from_json, plan, err));
    HDT_TRY(items_read(json, "flows", plan->n_flows, flow_from_json, plan, err));
    HDT_TRY(hdt_plan_check_stages(plan, model, err));
    return plan_check_flows(plan, model, err);
}

enum hdt_status hdt_plan_from_json(const json_t *json, const struct hdt_model_config *model,
                                   struct hdt_plan *plan, struct hdt_error *err)
{
    struct hdt_plan p;
    enum hdt_status status;

    memset(&p, 0, sizeof(p));
    status = plan_read(json, model, &p, err);
    if (status != HDT_OK) {
        hdt_error_prefix(err, "cannot use the plan");
        hdt_plan_release(&p);
        return status;
    }
    *plan = p;
    return HDT_OK;
}
