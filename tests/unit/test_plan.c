/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct hdt_model_config model = {
    .V = 256, .C = 64, .F = 128, .L = 4, .NH = 4, .NKV = 4, .HS = 16, .T = 256};

static struct hdt_codec_spec spec_of(const char *text)
{
    struct hdt_codec_spec spec;

    cr_assert_eq(hdt_codec_spec_parse(text, &spec, NULL), HDT_OK, "%s", text);
    return spec;
}

static uint32_t frame_bytes(const char *codec, uint64_t n_values)
{
    const struct hdt_codec_spec spec = spec_of(codec);

    return hdt_plan_frame_bytes(&spec, n_values);
}

static void expect_codec(const struct hdt_plan_flow *flow, const char *want)
{
    char text[HDT_CODEC_SPEC_TEXT];

    cr_expect_str_eq(hdt_codec_spec_format(&flow->codec, text), want);
}

static void plan_make(struct hdt_plan *plan, int n_stages)
{
    memset(plan, 0, sizeof(*plan));
    plan->n_ranks = plan->n_stages = (size_t)n_stages;
    plan->ranks = calloc((size_t)n_stages, sizeof(plan->ranks[0]));
    plan->stages = calloc((size_t)n_stages, sizeof(plan->stages[0]));
    for (int i = 0; i < n_stages; i++) {
        snprintf(plan->ranks[i].site, HDT_NAME_CAP, "site-%c", 'a' + i);
        snprintf(plan->ranks[i].worker, HDT_NAME_CAP, "w0");
        plan->stages[i] = (struct hdt_plan_stage){.pos = i,
                                                  .rank = i,
                                                  .n_slices = 1,
                                                  .unit_begin = i,
                                                  .unit_end = i == n_stages - 1 ? 6 : i + 1,
                                                  .warmup = n_stages - 1 - i,
                                                  .fwd_s = 0.1 / 3};
    }
}

static const struct hdt_plan_flow *flow_of(const struct hdt_plan *plan, enum hdt_flow_kind kind,
                                           int src_rank, int dst_rank)
{
    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];

        if (f->kind == kind && f->src_rank == src_rank && f->dst_rank == dst_rank) {
            return f;
        }
    }
    return NULL;
}

Test(plan, flows_follow_from_stages)
{
    struct hdt_job job = {.batch = {2, 8, 16}, .data = {.site = "site-b"}};
    struct hdt_plan plan;
    struct hdt_error err = {0};
    const struct hdt_plan_flow *f;

    plan_make(&plan, 3);
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(plan.data_rank, 1);
    cr_expect_eq(plan.root_rank, 0);
    cr_expect_eq(plan.checkpoint_rank, 1);
    /* 4 edges, tokens, labels, 2 x 2 sync, 2 x 2 state. */
    cr_expect_eq(plan.n_flows, 14);
    f = flow_of(&plan, HDT_FLOW_ACTIVATION, 0, 1);
    cr_assert(f);
    expect_codec(f, "lossless");
    cr_expect_eq(f->frame_cap, 2 * 16 * 64 * 4);
    cr_expect_eq(f->depth, 4);
    cr_expect_eq(f->src_stage, 0);
    cr_expect_eq(f->dst_stage, 1);
    f = flow_of(&plan, HDT_FLOW_TOKENS, 1, 0);
    cr_assert(f);
    cr_expect_eq(f->dtype, HDT_DTYPE_I32);
    cr_expect_eq(f->frame_cap, 2 * 16 * 4);
    cr_expect(flow_of(&plan, HDT_FLOW_LABELS, 1, 2));
    cr_expect(flow_of(&plan, HDT_FLOW_SYNC_UP, 2, 0));
    cr_expect(flow_of(&plan, HDT_FLOW_STATE_OUT, 2, 1));
    cr_expect_null(flow_of(&plan, HDT_FLOW_TIED_GRAD, 0, 2));
    hdt_plan_release(&plan);
}

Test(plan, a_tied_model_exchanges_its_embedding)
{
    struct hdt_model_config tied = model;
    struct hdt_job job = {.batch = {2, 8, 16}};
    struct hdt_plan plan;

    tied.tie_word_embeddings = true;
    plan_make(&plan, 2);
    cr_assert_eq(hdt_plan_complete(&plan, &job, &tied, NULL), HDT_OK);
    cr_expect_eq(flow_of(&plan, HDT_FLOW_TIED_GRAD, 0, 1)->frame_cap, 256 * 64 * 4);
    cr_expect_eq(flow_of(&plan, HDT_FLOW_TIED_GRAD, 1, 0)->frame_cap, 256 * 64 * 4);
    hdt_plan_release(&plan);
}

Test(plan, codecs_come_from_planner_then_job)
{
    struct hdt_job job = {
        .batch = {2, 8, 16},
        .codec = {.activations = (char *)"int8", .activation_grads = (char *)"bf16"}};
    struct hdt_plan plan;

    plan_make(&plan, 3);
    snprintf(plan.ranks[1].site, HDT_NAME_CAP, "site-a");
    plan.flows = calloc(1, sizeof(plan.flows[0]));
    plan.n_flows = 1;
    plan.flows[0] = (struct hdt_plan_flow){.kind = HDT_FLOW_ACTIVATION,
                                           .src_stage = 1,
                                           .dst_stage = 2,
                                           .codec = spec_of("bf16+lossless")};
    snprintf(plan.ranks[1].worker, HDT_NAME_CAP, "w1");
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, NULL), HDT_OK);
    expect_codec(flow_of(&plan, HDT_FLOW_ACTIVATION, 1, 2), "bf16+lossless");
    cr_expect_eq(flow_of(&plan, HDT_FLOW_ACTIVATION, 1, 2)->frame_cap, 2 * 16 * 64 * 2);
    expect_codec(flow_of(&plan, HDT_FLOW_ACTIVATION_GRAD, 2, 1), "bf16");
    /* Within a site nothing is coded. */
    expect_codec(flow_of(&plan, HDT_FLOW_ACTIVATION, 0, 1), "none");
    hdt_plan_release(&plan);
}

/* A planner may not choose to lose bits of gradients; who writes the job may. */
Test(plan, gradients_lose_bits_only_when_the_job_says_so)
{
    struct hdt_job job = {.batch = {2, 8, 16}};
    struct hdt_plan plan;
    struct hdt_error err = {0};

    plan_make(&plan, 2);
    plan.flows = calloc(1, sizeof(plan.flows[0]));
    plan.n_flows = 1;
    plan.flows[0] = (struct hdt_plan_flow){.kind = HDT_FLOW_ACTIVATION_GRAD,
                                           .src_stage = 1,
                                           .dst_stage = 0,
                                           .codec = spec_of("int8+lossless")};
    cr_expect_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "gradients by int8+lossless"), "%s", err.msg);
    cr_expect(strstr(err.hint, "codec.activation_grads: int8+lossless"), "%s", err.hint);
    job.codec.activation_grads = (char *)"bf16"; /* another one */
    cr_expect_eq(hdt_plan_check_codecs(&plan, &job, NULL), HDT_EINVAL);
    job.codec.activation_grads = (char *)"int8+lossless";
    cr_expect_eq(hdt_plan_check_codecs(&plan, &job, NULL), HDT_OK);
    job.codec = (struct hdt_job_codec){.lossy = true};
    cr_expect_eq(hdt_plan_check_codecs(&plan, &job, NULL), HDT_OK);
    hdt_plan_release(&plan);
}

/* Seeds differ wherever anything differs, but not with the plan's own numbers. */
Test(plan, a_frame_has_its_own_seed_in_every_plan_that_cuts_there)
{
    struct hdt_job job = {.batch = {2, 8, 16}};
    struct hdt_plan two, three;
    const struct hdt_plan_flow *fwd, *bwd;
    uint64_t seeds[4 * 256], n = 0;

    plan_make(&two, 2);
    plan_make(&three, 3);
    two.stages[0].unit_end = two.stages[1].unit_begin = 2; /* as the second cut of the other */
    cr_assert_eq(hdt_plan_complete(&two, &job, &model, NULL), HDT_OK);
    cr_assert_eq(hdt_plan_complete(&three, &job, &model, NULL), HDT_OK);
    fwd = flow_of(&two, HDT_FLOW_ACTIVATION, 0, 1);
    bwd = flow_of(&two, HDT_FLOW_ACTIVATION_GRAD, 1, 0);
    for (uint64_t frame = 0; frame < 256; frame++) {
        cr_expect_eq(hdt_plan_frame_seed(&two, fwd, 7, false, frame),
                     hdt_plan_frame_seed(&three, flow_of(&three, HDT_FLOW_ACTIVATION, 1, 2), 7,
                                         false, frame));
        seeds[n++] = hdt_plan_frame_seed(&two, fwd, 7, false, frame);
        seeds[n++] = hdt_plan_frame_seed(&two, fwd, 7, true, frame);
        seeds[n++] = hdt_plan_frame_seed(&two, bwd, 7, false, frame);
        seeds[n++] = hdt_plan_frame_seed(&two, fwd, 8, false, frame);
    }
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t j = 0; j < i; j++) {
            cr_assert_neq(seeds[i], seeds[j], "%d and %d", (int)i, (int)j);
        }
    }
    hdt_plan_release(&two);
    hdt_plan_release(&three);
}

/* Slots take fp32 where the guard may step up to it, or the choice is made in the run. */
Test(plan, slots_take_what_an_edge_may_come_to_use)
{
    struct hdt_job job = {.batch = {2, 8, 16},
                          .codec = {.activations = (char *)"int8",
                                    .activation_grads = (char *)"auto",
                                    .lossy = true,
                                    .error_budget = 0.02}};
    struct hdt_plan plan;

    plan_make(&plan, 2);
    cr_expect(!hdt_job_codec_is_live(&job, false));
    cr_expect(hdt_job_codec_is_live(&job, true));
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, NULL), HDT_OK);
    cr_expect_eq(flow_of(&plan, HDT_FLOW_ACTIVATION, 0, 1)->frame_cap, 2 * 16 * 64 * 4);
    expect_codec(flow_of(&plan, HDT_FLOW_ACTIVATION, 0, 1), "int8");
    expect_codec(flow_of(&plan, HDT_FLOW_ACTIVATION_GRAD, 1, 0), "lossless");
    hdt_plan_release(&plan);
    plan_make(&plan, 2);
    job.codec.error_budget = 0;
    cr_expect(!hdt_job_codec_is_live(&job, true));
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, NULL), HDT_OK);
    cr_expect_eq(flow_of(&plan, HDT_FLOW_ACTIVATION, 0, 1)->frame_cap, 2 * 16 * 64 + 32);
    hdt_plan_release(&plan);
}

Test(plan, int8_frames_hold_codes_and_scales)
{
    cr_expect_eq(frame_bytes("int8", 1024), 1024 + 16);
    cr_expect_eq(frame_bytes("int8+lossless", 1025), 1025 + 32);
    cr_expect_eq(frame_bytes("bf16", 10), 20);
    cr_expect_eq(frame_bytes("lossless", 10), 40);
}

Test(plan, warmups_do_not_grow_along_the_pipeline)
{
    struct hdt_job job = {.batch = {2, 5, 16}};
    struct hdt_plan plan;

    plan_make(&plan, 3);
    plan.stages[0].warmup = 0;
    plan.stages[1].warmup = 9;
    plan.stages[2].warmup = 1;
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, NULL), HDT_OK);
    cr_expect_eq(plan.stages[0].warmup, 5);
    cr_expect_eq(plan.stages[1].warmup, 5);
    cr_expect_eq(plan.stages[2].warmup, 1);
    hdt_plan_release(&plan);
}

Test(plan, a_data_site_without_worker_is_named)
{
    struct hdt_job job = {.batch = {2, 5, 16}, .data = {.site = "site-z"}};
    struct hdt_plan plan;
    struct hdt_error err = {0};

    plan_make(&plan, 2);
    cr_expect_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "site-z"), "%s", err.msg);
    hdt_plan_release(&plan);
}

static json_t *plan_json(void)
{
    struct hdt_job job = {.batch = {2, 8, 16}, .data = {.site = "site-a"}};
    struct hdt_plan plan;
    json_t *json;

    plan_make(&plan, 3);
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, NULL), HDT_OK);
    plan.step_s = 1.0 / 3;
    plan.ranks[1].gateway_share = 0.5;
    snprintf(plan.limit, sizeof(plan.limit), "compute of stage 1");
    json = hdt_plan_to_json(&plan);
    cr_assert(json);
    hdt_plan_release(&plan);
    return json;
}

Test(plan, survives_json)
{
    json_t *json = plan_json(), *again;
    struct hdt_plan plan;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_plan_from_json(json, &model, &plan, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(plan.step_s, 1.0 / 3);
    cr_expect_eq(plan.ranks[1].gateway_share, 0.5);
    again = hdt_plan_to_json(&plan);
    cr_expect(json_equal(json, again));
    json_decref(json);
    json_decref(again);
    hdt_plan_release(&plan);
}

/* Set list[idx].key (or key, when list is NULL) and expect the plan to be refused. */
static void refused(const char *list, size_t idx, const char *key, json_t *value)
{
    json_t *json = plan_json();
    json_t *at = list ? json_array_get(json_object_get(json, list), idx) : json;
    struct hdt_plan plan;
    struct hdt_error err = {0};

    json_object_set_new(at, key, value);
    cr_expect_eq(hdt_plan_from_json(json, &model, &plan, &err), HDT_EINVAL, "%s[%zu].%s",
                 list ? list : "", idx, key);
    cr_expect(strstr(err.msg, "cannot use the plan"), "%s", err.msg);
    json_decref(json);
}

Test(plan, foreign_plans_are_checked)
{
    refused("stages", 1, "rank", json_integer(3));
    refused("stages", 1, "rank", json_integer(0));
    refused("stages", 1, "rank", json_integer(-1));
    refused("stages", 1, "unit_begin", json_integer(2));
    refused("stages", 2, "unit_end", json_integer(5));
    refused("stages", 0, "warmup", json_integer(0));
    refused("stages", 0, "warmup", json_integer(9));
    refused("stages", 0, "n_slices", json_integer(2));
    refused("stages", 0, "fwd_s", json_integer(-1));
    refused("ranks", 1, "site", json_string("site-a"));
    refused("ranks", 1, "site", json_string("../x"));
    refused("flows", 0, "kind", json_string("gossip"));
    refused("flows", 0, "codec", json_string("int9"));
    refused("flows", 0, "codec", json_string("auto"));
    refused("flows", 0, "codec", json_null());
    refused("flows", 0, "frame_cap", json_integer(2 * 16 * 64 * 4 - 1)); /* too short for a frame */
    refused("flows", 0, "frame_cap", json_integer(1 << 20));
    refused("flows", 0, "frame_cap", json_integer(1ll << 31));
    refused("flows", 0, "depth", json_integer(0));
    refused("flows", 0, "depth", json_integer(1));
    refused("flows", 0, "dst_rank", json_integer(0));
    refused("flows", 0, "src_stage", json_integer(2));
    refused("flows", 0, "dtype", json_string("f12"));
    refused(NULL, 0, "root_rank", json_integer(1));
    refused(NULL, 0, "data_rank", json_integer(7));
    refused(NULL, 0, "n_replicas", json_integer(2));
    refused(NULL, 0, "seq_len", json_integer(512));
    refused(NULL, 0, "flows", json_array());
    refused(NULL, 0, "ranks", json_array());
    refused(NULL, 0, "stages", json_null());
}

/* ---- replicas ---- */

/* The first of two stages on ranks 0 and 1, the second of one on rank 2, 5 and 3 micro-batches. */
static json_t *replicas_json(const char *codec)
{
    struct hdt_job job = {.batch = {2, 8, 16}, .outer = {.steps = 4, .codec = (char *)codec}};
    struct hdt_plan plan;
    struct hdt_error err = {0};
    json_t *json;

    plan_make(&plan, 3);
    plan.stages[0].unit_end = plan.stages[1].unit_begin = 3;
    plan.stages[1].unit_end = 6;
    plan.stages[2].unit_begin = 0;
    plan.stages[2].pos = 0;
    plan.stages[2].replica = 1;
    plan.stages[0].n_micro_batches = plan.stages[1].n_micro_batches = 5;
    plan.stages[2].n_micro_batches = 3;
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_OK, "%s", err.msg);
    json = hdt_plan_to_json(&plan);
    hdt_plan_release(&plan);
    return json;
}

static size_t count(const struct hdt_plan *plan, enum hdt_flow_kind kind)
{
    size_t n = 0;

    for (size_t i = 0; i < plan->n_flows; i++) {
        n += plan->flows[i].kind == kind;
    }
    return n;
}

Test(plan, replicas_meet_where_they_hold_the_same_units)
{
    json_t *json = replicas_json("int8+lossless"), *again;
    struct hdt_plan plan;
    struct hdt_error err = {0};
    const struct hdt_plan_flow *f;
    int64_t first;

    cr_assert_eq(hdt_plan_from_json(json, &model, &plan, &err), HDT_OK, "%s", err.msg);
    again = hdt_plan_to_json(&plan);
    cr_expect(json_equal(json, again));
    json_decref(json);
    json_decref(again);
    cr_expect_eq(plan.n_replicas, 2);
    cr_expect_eq(hdt_plan_replica_micro_batches(&plan, 1, &first), 3);
    cr_expect_eq(first, 5);
    cr_expect_eq(hdt_plan_replica_root(&plan, 1), 2);
    cr_expect_eq(hdt_plan_rank_replica(&plan, 1), 0);
    cr_expect_eq(count(&plan, HDT_FLOW_ACTIVATION), 1);
    cr_expect_eq(count(&plan, HDT_FLOW_TOKENS), 1, "to the second replica alone");
    cr_expect_eq(count(&plan, HDT_FLOW_LABELS), 2);
    cr_expect_eq(count(&plan, HDT_FLOW_OUTER), 4);
    cr_expect(flow_of(&plan, HDT_FLOW_SYNC_UP, 1, 0) && flow_of(&plan, HDT_FLOW_SYNC_UP, 2, 0));
    for (int i = 0; i < 4; i++) {
        f = flow_of(&plan, HDT_FLOW_OUTER, i < 2 ? i : 2, i < 2 ? 2 : i - 2);
        cr_assert(f, "%d", i);
        expect_codec(f, "int8+lossless");
        cr_expect_eq(f->prio, HDT_PRIO_OUTER);
        cr_expect_eq(f->frame_cap, frame_bytes("int8", hdt_plan_outer_slab(&model)));
    }
    hdt_plan_release(&plan);
}

static void replicas_refused(const char *list, size_t idx, const char *key, json_t *value,
                             const char *word)
{
    json_t *json = replicas_json("none");
    json_t *at = list ? json_array_get(json_object_get(json, list), idx) : json;
    struct hdt_plan plan;
    struct hdt_error err = {0};

    json_object_set_new(at, key, value);
    cr_expect_eq(hdt_plan_from_json(json, &model, &plan, &err), HDT_EINVAL, "%s", key);
    cr_expect(strstr(err.msg, word), "%s", err.msg);
    json_decref(json);
}

static size_t outer_flow(void)
{
    json_t *json = replicas_json("none");
    size_t n = json_array_size(json_object_get(json, "flows"));

    json_decref(json);
    return n - 1; /* they come last */
}

Test(plan, foreign_replicas_are_checked)
{
    struct hdt_model_config tied = model;
    struct hdt_plan plan;
    struct hdt_error err = {0};
    json_t *json = replicas_json("none");

    replicas_refused("stages", 2, "n_micro_batches", json_integer(4), "9 micro-batches");
    replicas_refused("stages", 1, "n_micro_batches", json_integer(4), "its first 5");
    replicas_refused("stages", 2, "rank", json_integer(0), "two replicas");
    replicas_refused("stages", 2, "replica", json_integer(2), "out of bounds");
    replicas_refused("stages", 0, "replica", json_integer(1), "stands after");
    replicas_refused("stages", 2, "unit_end", json_integer(5), "cover 5 units");
    replicas_refused(NULL, 0, "n_replicas", json_integer(3), "out of bounds");
    replicas_refused(NULL, 0, "data_rank", json_integer(2), "not of the first replica");
    replicas_refused("flows", outer_flow(), "codec", json_string("bf16"), "another codec");
    replicas_refused("flows", outer_flow(), "codec", json_string("topk:8"), "cannot use codec");
    tied.tie_word_embeddings = true;
    cr_expect_eq(hdt_plan_from_json(json, &tied, &plan, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "tied embeddings"), "%s", err.msg);
    json_decref(json);
}

/* Replicas of one rank each, n of them. */
static void many_make(struct hdt_plan *plan, int n)
{
    memset(plan, 0, sizeof(*plan));
    plan->n_ranks = plan->n_stages = (size_t)n;
    plan->ranks = calloc((size_t)n, sizeof(plan->ranks[0]));
    plan->stages = calloc((size_t)n, sizeof(plan->stages[0]));
    for (int i = 0; i < n; i++) {
        snprintf(plan->ranks[i].site, HDT_NAME_CAP, "s%d", i);
        snprintf(plan->ranks[i].worker, HDT_NAME_CAP, "w0");
        plan->stages[i] = (struct hdt_plan_stage){
            .replica = i, .rank = i, .n_slices = 1, .unit_end = 6, .n_micro_batches = 1};
    }
}

/* Each sends to each: of many that is more than a plan may have, which is said in time. */
Test(plan, replicas_are_not_too_many, .timeout = 120)
{
    struct hdt_job job = {.batch = {2, 200, 16}, .outer = {.steps = 4}};
    struct hdt_plan plan, again;
    struct hdt_error err = {0};
    json_t *json;

    many_make(&plan, 200);
    cr_assert_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(count(&plan, HDT_FLOW_OUTER), 200 * 199);
    json = hdt_plan_to_json(&plan);
    cr_assert_eq(hdt_plan_from_json(json, &model, &again, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(again.n_flows, plan.n_flows);
    hdt_plan_release(&again);
    hdt_plan_release(&plan);
    json_decref(json);
    job.batch.n_micro_batches = 4000;
    many_make(&plan, 4000);
    cr_expect_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "4000 replicas on 4000 ranks need more than 65536 flows"), "%s",
              err.msg);
    cr_expect(strstr(err.hint, "plan.sites"), "%s", err.hint);
    hdt_plan_release(&plan);
}
