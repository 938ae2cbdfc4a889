/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Formulas of a stage on numbers that can be worked out by hand: a model of width 4 with 2 heads on
 * samples of 8 positions and 16 words, on a device that does 1000 products and moves 100 bytes a
 * second.
 */
#include "src/plan/stage_cost.h"

#include <criterion/criterion.h>
#include <math.h>

static void near_is(const char *what, double is, double wanted)
{
    cr_assert(fabs(is - wanted) <= 1e-9 * (1 + fabs(wanted)), "%s is %.12g, not %.12g", what, is,
              wanted);
}

#define NEAR(a, b) near_is(#a, a, b)

static const struct hdt_stage_cost_constants constants = {
    .message_s = 0.5,
    .input_s_per_token = 0.25,
    .backward_start_s = 2,
    .matrix_share = 0.5,
    .ring_share = 1,
};
static const struct hdt_stage_cost_model model = {
    .C = 4,
    .NH = 2,
    .T = 8,
    .V = 16,
    .layer_params = 100,
    .layer_matrices = 192, /* 12 C^2 */
    .heads_width = 4,
    .embed_params = 90,
    .head_params = 0,
    .table_params = 64, /* V C */
    .head_matrices = 64,
    .is_tied = true,
    .layer_kept = 1000,
    .scores_kept = 320, /* 5 bytes of each of 2 * 8 * 8, two a value */
    .value_bytes = 4,
    .grad_bytes = 4,
};
static const struct hdt_stage_cost_device device = {
    .flop_per_s = 1000,
    .bytes_per_s = 100,
    .ring_bytes_per_s = 64,
    .framework_bytes = 7,
};
static const struct hdt_stage_cost_point points[] = {
    {1, 4, 9, 0}, {2, 5, 8, 0}, {4, 6, 12, 0}, {8, 10, 24, 0}};
static const struct hdt_stage_cost_profile measured = {.points = points, .n_points = 4};
static const struct hdt_stage_cost_profile unknown = {.n_points = 0};

static struct hdt_stage_cost stage_of(const struct hdt_stage_cost_profile *profile,
                                      int64_t micro_batch)
{
    return (struct hdt_stage_cost){.constants = &constants,
                                   .model = &model,
                                   .device = &device,
                                   .profile = profile,
                                   .n_layers = 3,
                                   .micro_batch = micro_batch,
                                   .tp = 1,
                                   .optimizer = {.moments_bytes = 8, .n_shards = 1}};
}

static void layer_is(const struct hdt_stage_cost *stage, double fwd_s, double bwd_s)
{
    double fwd, bwd;

    hdt_stage_cost_layer_time(stage, &fwd, &bwd);
    NEAR(fwd, fwd_s);
    NEAR(bwd, bwd_s);
}

Test(stage_cost, profile_is_taken_and_lines_between_points)
{
    struct hdt_stage_cost s = stage_of(&measured, 8);

    layer_is(&s, 10, 24);
    s.micro_batch = 6;
    layer_is(&s, 8, 18);
    s.micro_batch = 16; /* slopes of 4 to 8: 1 and 3 */
    layer_is(&s, 18, 48);
}

/* From 2 and 4: 8 - 2 = 6 at 1, from 4 and 8: 12 - 3 * 2 = 6 at 2. At most 2 may be taken off. */
Test(stage_cost, start_of_backward_is_paid_once)
{
    struct hdt_stage_cost s = stage_of(&measured, 1);

    layer_is(&s, 4, 7);
    s.micro_batch = 2;
    layer_is(&s, 5, 6);
}

/* 8 * (24 * 16 + 4 * 8 * 4) = 4096 flop at 500 a second; 10 * 2 * 64 + 40 * 32 = 2560 values of 4
 * bytes at 100. */
#define SAMPLE_FWD_S (4096.0 / 500 + 2560.0 * 4 / 100)

Test(stage_cost, device_figures_stand_in_for_a_profile)
{
    const struct hdt_stage_cost_profile one = {.points = points, .n_points = 1};
    struct hdt_stage_cost s = stage_of(&unknown, 3);
    /* Two all-reduces of 8 * 4 * 4 = 128 bytes over two devices: 4 rounds of 64 bytes in a second.
     */
    double group_s = 4;

    layer_is(&s, 3 * SAMPLE_FWD_S, 6 * SAMPLE_FWD_S);
    s.tp = 2;
    layer_is(&s, 3 * (SAMPLE_FWD_S / 2 + group_s), 3 * (SAMPLE_FWD_S + group_s));
    s = stage_of(&one, 3);
    layer_is(&s, 4 + 2 * SAMPLE_FWD_S, 9 + 4 * SAMPLE_FWD_S);
}

Test(stage_cost, less_than_the_first_point_is_at_most_proportional)
{
    static const struct hdt_stage_cost_point steep[] = {{4, 8, 8, 0}, {8, 24, 12, 0}};
    const struct hdt_stage_cost_profile p = {.points = steep, .n_points = 2};
    struct hdt_stage_cost s = stage_of(&p, 2);

    /* The line says 0 and 6; half of the first point is 4. Backward: 6 is also what grows. */
    layer_is(&s, 4, 6);
}

/* The second point may be the faster one by a hair of noise, or since its kernel is another. The
 * line through 1.7 and 1.2 is 0 at 3.4. */
Test(stage_cost, more_than_the_last_point_is_not_less)
{
    static const struct hdt_stage_cost_point falling[] = {{1, 1.7, 1.94, 0}, {2, 1.2, 1.2, 0}};
    const struct hdt_stage_cost_profile p = {.points = falling, .n_points = 2};
    struct hdt_stage_cost s = stage_of(&p, 64);

    layer_is(&s, 1.2, 1.2);
}

/* Grouped queries and a gate: 700 parameters in matrices, heads of 6 values together. */
Test(stage_cost, products_are_those_of_the_matrices)
{
    struct hdt_stage_cost_model other = model;
    struct hdt_stage_cost s = stage_of(&unknown, 1);
    double flop = 2.0 * 8 * 700 + 4.0 * 8 * 8 * 6;

    other.layer_matrices = 700;
    other.heads_width = 6;
    s.model = &other;
    layer_is(&s, flop / 500 + 2560.0 * 4 / 100, 2 * (flop / 500 + 2560.0 * 4 / 100));
}

/* FlashAttention: no passes over T x T, half of its products, and in the backward five of them
 * where the forward has two. Nothing to be computed again for who keeps no such matrix. */
Test(stage_cost, fused_attention)
{
    struct hdt_stage_cost_model fused = model;
    struct hdt_stage_cost s = stage_of(&unknown, 1);
    double weights = 2.0 * 8 * 192, one = 8 * 8 * 4, rows_s = 40.0 * 32 * 4 / 100;
    double fwd, bwd;

    fused.is_fused = true;
    s.model = &fused;
    layer_is(&s, (weights + 2 * one) / 500 + rows_s, (2 * weights + 5 * one) / 500 + 2 * rows_s);
    s.recompute = HDT_STAGE_COST_KEEP_LINEAR;
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(bwd, 3 * ((2 * weights + 5 * one) / 500 + 2 * rows_s));
}

Test(stage_cost, stage_adds_embedding_head_and_group)
{
    struct hdt_stage_cost s = stage_of(&measured, 8);
    double fwd, bwd;

    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 30);
    NEAR(bwd, 72);

    s.is_first = true; /* 64 tokens at a quarter of a second */
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 30 + 8);
    NEAR(bwd, 72 + 8);

    s.is_first = false;
    s.is_last = true; /* 2 * 64 * 4 * 16 = 8192 flop; 64 * 16 logits of 4 bytes, 9 and 5 times */
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 30 + 8192.0 / 500 + 9 * 4096.0 / 100);
    NEAR(bwd, 72 + 2 * 8192.0 / 500 + 5 * 4096.0 / 100);
}

/* An embedding half as wide, as OPT-350M has it: 16 * 2 values, and 2 * 4 from width to width. */
Test(stage_cost, narrow_embedding)
{
    static const struct hdt_stage_cost_profile nothing = {.n_points = 0};
    struct hdt_stage_cost_model narrow = model;
    struct hdt_stage_cost s = stage_of(&nothing, 1);
    double fwd, bwd;

    narrow.table_params = 32;
    narrow.head_matrices = 32 + 8;
    s.model = &narrow;
    s.n_layers = 0;
    s.is_last = true;
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 2.0 * 8 * 40 / 500 + 9 * 8.0 * 16 * 4 / 100);
    NEAR(hdt_stage_cost_params(&s), 32);
    NEAR(hdt_stage_cost_tied_bytes(&s), 128);
}

Test(stage_cost, group_makes_messages_whole)
{
    struct hdt_stage_cost s = stage_of(&measured, 8);
    struct hdt_stage_cost_message m;
    double fwd, bwd;

    s.tp = 2; /* 8 * 8 * 4 values of 4 bytes: 1024; a round of the group: 512 / 64 */
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 30 + 8);
    NEAR(bwd, 72 + 16);
    hdt_stage_cost_message(&s, &m);
    NEAR(m.bytes, 512);
    NEAR(m.end_s, 0.5);
    NEAR(m.eager_share, 1);
    s.micro_batch = 8 * 16384; /* 8 MiB a rank: buffers take half */
    hdt_stage_cost_message(&s, &m);
    NEAR(m.eager_share, 0.5);
}

Test(stage_cost, recomputation_adds_to_backward)
{
    struct hdt_stage_cost s = stage_of(&measured, 8);
    /* Of a sample's forward: 4 * 64 * 4 flop, and 10 * 2 * 64 values. */
    double share = (1024.0 / 500 + 1280.0 * 4 / 100) / SAMPLE_FWD_S;
    double fwd, bwd;

    s.recompute = HDT_STAGE_COST_KEEP_INPUTS;
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 30);
    NEAR(bwd, 72 + 30);
    s.recompute = HDT_STAGE_COST_KEEP_LINEAR;
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(bwd, 72 + 30 * share);
}

Test(stage_cost, measured_head_wins)
{
    struct hdt_stage_cost_profile p = {.points = points, .n_points = 4, .head_fwd_s = 6};
    struct hdt_stage_cost s = stage_of(&p, 2);
    double fwd, bwd;

    s.is_last = true;
    s.n_layers = 0;
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 6);
    NEAR(bwd, 12);
    p.head_bwd_s = 10;
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(bwd, 10);
}

Test(stage_cost, measured_embedding_recomputation_and_step_win)
{
    static const struct hdt_stage_cost_point again[] = {{2, 4, 9, 3}};
    const struct hdt_stage_cost_profile p = {.points = again,
                                             .n_points = 1,
                                             .embed_fwd_s = 0.5,
                                             .embed_bwd_s = 0.75,
                                             .step_s_per_param = 0.25};
    struct hdt_stage_cost s = stage_of(&p, 2);
    double fwd, bwd;

    s.is_first = true;
    s.recompute = HDT_STAGE_COST_KEEP_INPUTS;
    hdt_stage_cost_time(&s, &fwd, &bwd);
    NEAR(fwd, 3 * 4 + 0.5);
    NEAR(bwd, 3 * (9 + 3) + 0.75);
    NEAR(hdt_stage_cost_step_s(&s), 390 * 0.25);
}

Test(stage_cost, parameters_gradients_and_steps)
{
    struct hdt_stage_cost s = stage_of(&measured, 1);

    s.tp = 2;
    NEAR(hdt_stage_cost_params(&s), 150);
    s.is_first = true;
    NEAR(hdt_stage_cost_params(&s), 195);
    s.is_last = true; /* the head's table is the embedding's */
    NEAR(hdt_stage_cost_params(&s), 195);
    s.is_first = false;
    NEAR(hdt_stage_cost_params(&s), 182);
    NEAR(hdt_stage_cost_grad_bytes(&s), 728);
    NEAR(hdt_stage_cost_tied_bytes(&s), 128);
    NEAR(hdt_stage_cost_step_s(&s), 182 * (24 + 44) / 100.0);
}

Test(stage_cost, memory_by_class)
{
    struct hdt_stage_cost s = stage_of(&measured, 2);
    struct hdt_stage_cost_memory m;

    s.is_last = true;
    hdt_stage_cost_memory(&s, 5, &m); /* 364 parameters */
    NEAR(m.weights, 1456);
    NEAR(m.grads, 1456);
    NEAR(m.moments, 2912);
    NEAR(m.buffers, 2912);
    NEAR(m.activations, 5 * 2 * (3 * 1000 + 32) * 4);
    NEAR(m.head, 4 * 2 * 8 * 16 * 4);
    NEAR(m.framework, 7);
    NEAR(m.total, 1456 + 1456 + 2912 + 2912 + 121280 + 4096 + 7);

    s.recompute = HDT_STAGE_COST_KEEP_INPUTS; /* inputs of layers, and one layer at work */
    hdt_stage_cost_memory(&s, 5, &m);
    NEAR(m.activations, (5 * 2 * (3 * 32 + 32) + 2 * 1000) * 4);

    s.recompute = HDT_STAGE_COST_KEEP_LINEAR; /* without 5 of 2 bytes of 2 * 8 * 8 in a layer */
    hdt_stage_cost_memory(&s, 5, &m);
    NEAR(m.activations, 5 * 2 * (3 * (1000 - 320) + 32) * 4);
}

/* Five rows of 32 values stay whole on each rank, the other 840 are divided. */
Test(stage_cost, group_shares_activations)
{
    struct hdt_stage_cost s = stage_of(&measured, 1);
    struct hdt_stage_cost_memory m;

    s.tp = 4;
    s.is_first = s.is_last = true;
    hdt_stage_cost_memory(&s, 1, &m);
    NEAR(m.activations, 3 * (160 + 840 / 4) * 4);
}

/* fp16 training keeps a second, fp32 weight. */
Test(stage_cost, half_precision)
{
    struct hdt_stage_cost_model half = model;
    struct hdt_stage_cost s = stage_of(&measured, 1);
    struct hdt_stage_cost_memory m;

    half.value_bytes = half.grad_bytes = 2;
    s.model = &half;
    hdt_stage_cost_memory(&s, 1, &m);
    NEAR(m.weights, 300 * 2);
    NEAR(m.master, 300 * 4);
    NEAR(m.grads, 300 * 2);
    NEAR(m.moments, 300 * 8);
    NEAR(m.buffers, 300 * 4);
    NEAR(hdt_stage_cost_step_s(&s), 300 * (24 + 22) / 100.0);
}

static double state_bytes(const struct hdt_stage_cost *s)
{
    struct hdt_stage_cost_memory m;

    hdt_stage_cost_memory(s, 1, &m);
    return m.weights + m.grads + m.master + m.moments;
}

/* Bytes of a parameter that Megatron Core's manual gives for its distributed optimizer over d
 * replicas (bf16 with fp32 gradients 18 and 6 + 12 / d, fp32 16 and 8 + 8 / d), and those of ZeRO
 * (arXiv 1910.02054, section 5.1, K = 12: 16 and 4 + 12 / d). */
Test(stage_cost, replicas_share_the_optimizer)
{
    static const struct {
        double value, grad, all, whole, shared;
    } cases[] = {{2, 4, 18, 6, 12}, {4, 4, 16, 8, 8}, {2, 2, 16, 4, 12}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_stage_cost_model own = model;
        struct hdt_stage_cost s = stage_of(&measured, 1);

        own.value_bytes = cases[i].value;
        own.grad_bytes = cases[i].grad;
        s.model = &own;
        NEAR(state_bytes(&s), 300 * cases[i].all);
        NEAR(hdt_stage_cost_gather_bytes(&s), 0);
        s.optimizer.n_shards = 8;
        NEAR(state_bytes(&s), 300 * (cases[i].whole + cases[i].shared / 8));
        NEAR(hdt_stage_cost_gather_bytes(&s), 300 * cases[i].value);
    }
}

/* All gradients are cleared, copied, divided and copied back, 7 times 4 bytes; then each replica
 * sums, clips and reads an eighth, 4 times, and steps on it. */
Test(stage_cost, replicas_share_the_step)
{
    struct hdt_stage_cost s = stage_of(&measured, 1);

    s.optimizer.n_shards = 8;
    NEAR(hdt_stage_cost_step_s(&s), (300 * 28 + 300 / 8.0 * (24 + 16)) / 100);
}

/* A scale of 4 bytes for 2048 moments of 8 bits. */
Test(stage_cost, small_moments)
{
    struct hdt_stage_cost s = stage_of(&measured, 1);
    struct hdt_stage_cost_memory m;

    s.optimizer.moments_bytes = HDT_STAGE_COST_MOMENTS_INT8;
    hdt_stage_cost_memory(&s, 1, &m);
    NEAR(m.moments, 300 * (2 + 8 / 2048.0));
    s.optimizer.moments_bytes = 4;
    hdt_stage_cost_memory(&s, 1, &m);
    NEAR(m.moments, 300 * 4);
    NEAR(hdt_stage_cost_step_s(&s), 300 * (8 + 8 + 44) / 100.0);
}

/* ZeRO-Offload (arXiv 2101.06840, section 3): of 16 bytes a parameter 2 stay, the half-precision
 * weight; 14 are on the host. Here gradients that are summed over micro-batches stay, too. */
Test(stage_cost, optimizer_on_the_host)
{
    struct hdt_stage_cost_model half = model;
    struct hdt_stage_cost s = stage_of(&measured, 1);
    struct hdt_stage_cost_memory m;

    half.value_bytes = half.grad_bytes = 2;
    s.model = &half;
    s.optimizer.on_host = true;
    hdt_stage_cost_memory(&s, 1, &m);
    NEAR(m.weights, 300 * 2);
    NEAR(m.grads, 300 * 2);
    NEAR(m.master + m.moments, 0);
    NEAR(m.buffers, 300 * 2);
    NEAR(m.host_optimizer, 300 * 14);
    NEAR(hdt_stage_cost_down_bytes(&s), 300 * 2);
    NEAR(hdt_stage_cost_up_bytes(&s), 300 * 2);
    NEAR(hdt_stage_cost_host_step_bytes(&s), 300 * (8 + 16 + 2 + 2));
    NEAR(hdt_stage_cost_step_s(&s), 300 * 8 * 2 / 100.0);
    s.optimizer.n_shards = 4;
    NEAR(hdt_stage_cost_host_step_bytes(&s), 75 * 28);
    NEAR(hdt_stage_cost_down_bytes(&s), 75 * 2);
    NEAR(hdt_stage_cost_tied_down_bytes(&s), 0);
    s.is_last = true; /* a table of 64 */
    NEAR(hdt_stage_cost_tied_down_bytes(&s), 16 * 2);
}

Test(stage_cost, activations_on_the_host)
{
    struct hdt_stage_cost s = stage_of(&measured, 2);
    struct hdt_stage_cost_memory m;
    double slot = 2 * (3 * 1000 + 32) * 4;

    s.activations_on_host = true;
    hdt_stage_cost_memory(&s, 3, &m); /* all have a place on the device */
    NEAR(m.activations, 3 * slot);
    NEAR(m.host_activations, 0);
    hdt_stage_cost_memory(&s, 9, &m);
    NEAR(m.activations, 3 * slot);
    NEAR(m.host_activations, 9 * slot);
}
