/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What codecs remember of a flow: a run that is saved and loaded goes on with the same bytes,
 * foreign states are refused, and both ends of a delta flow hold the same.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_state.h"
#include "compress/delta.h"
#include "compress/rate.h"
#include "src/base/buf.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N    5000
#define KEYS 3

static struct hdt_codec_ctx *ctx;
static struct values_rng rng;

static void setup(void)
{
    cr_assert_eq(hdt_codec_ctx_new(0, &ctx, NULL), HDT_OK);
}

static void teardown(void)
{
    hdt_codec_ctx_free(ctx);
}

TestSuite(codec_state, .init = setup, .fini = teardown);

static const char *const texts[] = {"topk:16",   "topk:8,bits=16",      "randk:32,bits=8",
                                    "lowrank:2", "lowrank:3,block=128", "delta:int8"};
#define N_TEXTS (sizeof(texts) / sizeof(texts[0]))

static struct hdt_codec_spec spec_of(const char *text)
{
    struct hdt_codec_spec spec;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_codec_spec_parse(text, &spec, &err), HDT_OK, "%s: %s", text, err.msg);
    return spec;
}

static struct hdt_codec_state *state_of(const struct hdt_codec_spec *spec)
{
    struct hdt_codec_state *state;

    cr_assert_eq(hdt_codec_state_new(spec, N, KEYS, &state, NULL), HDT_OK);
    return state;
}

/* One end of a flow. */
struct end {
    struct hdt_codec_spec spec;
    struct hdt_codec_state *state;
    uint8_t frame[4 * N + 1024];
    size_t len;
    struct hdt_codec_guard guard;
};

static void end_init(struct end *end, const char *text)
{
    end->spec = spec_of(text);
    end->state = state_of(&end->spec);
}

static enum hdt_status end_send(struct end *end, const float *x, uint64_t seed, uint64_t key)
{
    struct hdt_codec_io io = {.spec = &end->spec,
                              .src = x,
                              .src_len = 4 * N,
                              .dst = end->frame,
                              .dst_len = sizeof(end->frame),
                              .dtype = HDT_DTYPE_F32,
                              .guard = &end->guard,
                              .state = end->state,
                              .seed = seed,
                              .key = key};

    return hdt_codec_encode(hdt_codec_spec_worker(&end->spec), ctx, &io, &end->len, NULL);
}

static enum hdt_status end_take(struct end *end, const struct end *from, float *y, bool add)
{
    struct hdt_codec_io io = {.spec = &end->spec,
                              .src = from->frame,
                              .src_len = from->len,
                              .dst = y,
                              .dst_len = 4 * N,
                              .dtype = HDT_DTYPE_F32,
                              .state = end->state,
                              .add = add};

    return hdt_codec_decode(hdt_codec_spec_worker(&end->spec), ctx, &io, NULL);
}

/* ---- memory ---- */

Test(codec_state, memory_is_known_before)
{
    struct hdt_codec_spec topk = spec_of("topk:64"), lowrank = spec_of("lowrank:4,block=64");
    struct hdt_codec_spec delta = spec_of("delta:int8"), bf16 = spec_of("bf16");

    cr_expect_eq(hdt_codec_state_mem(&topk, 1000, 0), 4000);
    /* 16 rows of 64: the residual, the factor, and both factors on their way */
    cr_expect_eq(hdt_codec_state_mem(&lowrank, 1024, 0), 4 * (1024 + 4 * 64 + 4 * (16 + 64)));
    cr_expect_eq(hdt_codec_state_mem(&delta, 1000, 7), 7 * (4000 + 16) + 4000);
    cr_expect_eq(hdt_codec_state_mem(&bf16, 1000, 7), 0);
}

Test(codec_state, states_that_cannot_be_are_refused)
{
    struct hdt_codec_spec topk = spec_of("topk"), delta = spec_of("delta:int8");
    struct hdt_codec_spec bf16 = spec_of("bf16"), none = topk;
    struct hdt_codec_state *state;

    none.keep = 3;
    cr_expect_eq(hdt_codec_state_new(&bf16, 10, 0, &state, NULL), HDT_EINVAL);
    cr_expect_eq(hdt_codec_state_new(&none, 10, 0, &state, NULL), HDT_EINVAL);
    cr_expect_eq(hdt_codec_state_new(&topk, (size_t)1 << 60, 0, &state, NULL), HDT_EINVAL);
    cr_expect_eq(hdt_codec_state_new(&delta, 10, 0, &state, NULL), HDT_EINVAL);
    cr_expect_eq(hdt_codec_state_new(&delta, 10, HDT_CODEC_KEYS_MAX + 1, &state, NULL), HDT_EINVAL);
    cr_assert_eq(hdt_codec_state_new(&topk, 0, 0, &state, NULL), HDT_OK);
    cr_expect_eq(hdt_codec_state_fits(state, &topk, 0, NULL), HDT_OK);
    cr_expect_eq(hdt_codec_state_fits(state, &topk, 1, NULL), HDT_EINVAL);
    cr_expect_eq(hdt_codec_state_fits(state, &delta, 0, NULL), HDT_EINVAL);
    cr_expect_eq(hdt_codec_state_fits(NULL, &topk, 0, NULL), HDT_EINVAL);
    hdt_codec_state_free(state);
}

Test(codec_state, codecs_that_need_one_can_be_measured)
{
    struct hdt_codec_rate rate;

    cr_assert_eq(hdt_codec_rate_measure(&hdt_codec_topk, HDT_DTYPE_F32, 2, &rate, NULL), HDT_OK);
    cr_expect(rate.ratio > 195 && rate.ratio < 196, "%g", rate.ratio); /* 16384 / 84 */
    cr_assert_eq(hdt_codec_rate_measure(&hdt_codec_randk, HDT_DTYPE_F32, 2, &rate, NULL), HDT_OK);
    cr_expect(rate.ratio > 800 && rate.encode_bytes_per_s > 0 && rate.decode_bytes_per_s > 0);
    cr_assert_eq(hdt_codec_rate_measure(&hdt_codec_lowrank, HDT_DTYPE_F32, 2, &rate, NULL), HDT_OK);
    cr_expect_eq(rate.ratio, 4.0 * 512 * 512 / (2 * 4 * (512 + 512)));
}

/* ---- saving ---- */

static void move_to(struct end *from, struct end *to)
{
    size_t len = hdt_codec_state_bytes(from->state);
    uint8_t *mem = hdt_malloc(len);

    hdt_codec_state_save(from->state, mem);
    cr_assert_eq(hdt_codec_state_load(to->state, mem, len, NULL), HDT_OK);
    free(mem);
}

static void check_resume(const char *text)
{
    static struct end whole, parted, rest;
    static float x[N];

    end_init(&whole, text);
    end_init(&parted, text);
    end_init(&rest, text);
    for (uint64_t step = 0; step < 12; step++) {
        struct end *second = step < 5 ? &parted : &rest;

        if (step == 5) {
            move_to(&parted, &rest);
        }
        hdt_values_fill(&rng, VALUES_NORMAL, x, N);
        cr_assert_eq(end_send(&whole, x, step, step % 4), HDT_OK, "%s", text);
        cr_assert_eq(end_send(second, x, step, step % 4), HDT_OK, "%s", text);
        cr_assert_eq(whole.len, second->len);
        cr_assert_eq(memcmp(whole.frame, second->frame, whole.len), 0, "%s, step %d", text,
                     (int)step);
    }
    hdt_codec_state_free(whole.state);
    hdt_codec_state_free(parted.state);
    hdt_codec_state_free(rest.state);
}

Test(codec_state, a_run_that_was_saved_and_loaded_sends_the_same_bytes)
{
    hdt_values_rng_init(&rng, "a_run_that_was_saved_and_loaded_sends_the_same_bytes");
    for (size_t i = 0; i < N_TEXTS; i++) {
        check_resume(texts[i]);
    }
}

/* A state with something in it, and its saved form. */
static uint8_t *filled(struct end *end, const char *text, size_t *len)
{
    static float x[N];
    uint8_t *mem;

    end_init(end, text);
    hdt_values_fill(&rng, VALUES_NORMAL, x, N);
    cr_assert_eq(end_send(end, x, 1, 1), HDT_OK);
    *len = hdt_codec_state_bytes(end->state);
    mem = hdt_malloc(*len);
    hdt_codec_state_save(end->state, mem);
    return mem;
}

static void check_damaged(const char *text)
{
    static struct end end;
    size_t len;
    uint8_t *mem, *after;
    const float nan = NAN;

    mem = filled(&end, text, &len);
    after = hdt_malloc(len);
    for (size_t cut = 0; cut < len; cut += 1 + cut / 8) {
        cr_expect_eq(hdt_codec_state_load(end.state, mem, cut, NULL), HDT_EPROTO, "%s: %zu", text,
                     cut);
    }
    for (size_t at = 0; at < 48; at++) { /* magic, version, lengths, spec: every byte counts */
        mem[at] ^= 0x41;
        cr_expect_neq(hdt_codec_state_load(end.state, mem, len, NULL), HDT_OK, "%s: %zu", text, at);
        mem[at] ^= 0x41;
    }
    memcpy(mem + len - 4, &nan, 4);
    cr_expect_eq(hdt_codec_state_load(end.state, mem, len, NULL), HDT_EPROTO);
    hdt_codec_state_save(end.state, after);
    cr_expect_eq(memcmp(mem, after, len - 4), 0, "%s: a refusal changed the state", text);
    cr_expect_eq(hdt_codec_state_load(end.state, after, len, NULL), HDT_OK);
    hdt_codec_state_reset(end.state);
    hdt_codec_state_save(end.state, after);
    for (size_t i = 48; i < len; i++) {
        cr_assert_eq(after[i], 0);
    }
    free(mem);
    free(after);
    hdt_codec_state_free(end.state);
}

Test(codec_state, damaged_or_foreign_states_are_refused)
{
    hdt_values_rng_init(&rng, "damaged_or_foreign_states_are_refused");
    for (size_t i = 0; i < N_TEXTS; i++) {
        check_damaged(texts[i]);
    }
}

/* The gateway's codec is none of the state's business. */
Test(codec_state, what_the_gateway_does_may_change)
{
    const struct hdt_codec_spec coded = spec_of("topk:8+lossless");
    struct hdt_codec_state *state = state_of(&coded);
    static struct end end;
    uint8_t *mem, *after;
    size_t len;

    hdt_values_rng_init(&rng, "what_the_gateway_does_may_change");
    mem = filled(&end, "topk:8", &len);
    after = hdt_malloc(len);
    cr_assert_eq(hdt_codec_state_bytes(state), len);
    cr_assert_eq(hdt_codec_state_load(state, mem, len, NULL), HDT_OK);
    hdt_codec_state_save(state, after);
    cr_expect_eq(memcmp(mem, after, len), 0);
    free(mem);
    free(after);
    hdt_codec_state_free(state);
    hdt_codec_state_free(end.state);
}

/* ---- refusal ---- */

static void check_refusal(const char *text)
{
    static struct end end;
    static float x[N];
    size_t len;
    uint8_t *before = filled(&end, text, &len), *after = hdt_malloc(len);

    hdt_values_fill(&rng, VALUES_NORMAL, x, N);
    x[17] = NAN;
    x[N - 1] = -INFINITY;
    cr_expect_eq(end_send(&end, x, 2, 1), HDT_EINVAL, "%s", text);
    cr_expect_eq(end.guard.n_nonfinite, 2, "%s", text);
    hdt_codec_state_save(end.state, after);
    cr_expect_eq(memcmp(before, after, len), 0, "%s", text);
    free(before);
    free(after);
    hdt_codec_state_free(end.state);
}

Test(codec_state, values_that_are_refused_leave_the_state_as_it_was)
{
    hdt_values_rng_init(&rng, "values_that_are_refused_leave_the_state_as_it_was");
    for (size_t i = 0; i < N_TEXTS; i++) {
        check_refusal(texts[i]);
    }
}

/* ---- delta ---- */

static double distance(const float *a, const float *b)
{
    double err = 0, ref = 0;

    for (size_t i = 0; i < N; i++) {
        err += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        ref += (double)a[i] * (double)a[i];
    }
    return sqrt(err / ref);
}

Test(codec_state, delta_comes_nearer_each_time_a_sample_is_sent)
{
    static struct end here, there;
    static float x[N], y[N], z[N];
    double error[4];

    hdt_values_rng_init(&rng, "delta_comes_nearer_each_time_a_sample_is_sent");
    end_init(&here, "delta:int8");
    end_init(&there, "delta:int8");
    hdt_values_fill(&rng, VALUES_NORMAL, x, N);
    for (int turn = 0; turn < 4; turn++) {
        cr_assert_eq(end_send(&here, x, 0, 42), HDT_OK);
        cr_assert_eq(here.len, HDT_DELTA_HEAD + N + 16 * ((N + 1023) / 1024));
        cr_assert_eq(end_take(&there, &here, y, false), HDT_OK);
        error[turn] = distance(x, y);
        cr_expect_eq(memcmp(here.state->sample, y, sizeof(y)), 0, "both ends hold the same");
        cr_expect_lt(fabs(hdt_codec_guard_error(&here.guard) - error[turn]), 1e-3 * error[0]);
    }
    /* an error of about 0.7 %, then 0.7 % of it, until fp32 ends it */
    cr_expect(error[0] > 1e-3 && error[0] < 1e-2, "%g", error[0]);
    cr_expect(error[1] < 1e-2 * error[0], "%g", error[1]);
    cr_expect(error[3] < 1e-6, "%g", error[3]);
    memset(z, 0, sizeof(z));
    end_send(&here, x, 0, 42);
    cr_assert_eq(end_take(&there, &here, z, true), HDT_OK);
    cr_expect_eq(distance(here.state->sample, z), 0);
    hdt_codec_state_free(here.state);
    hdt_codec_state_free(there.state);
}

Test(codec_state, delta_says_which_sample_how_often_and_whether_it_is_kept)
{
    static const uint8_t first[] = {2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};
    static const uint8_t second[] = {2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0};
    static const uint8_t not_kept[] = {9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    static struct end here;
    static float x[N];

    hdt_values_rng_init(&rng, "delta_says_which_sample_how_often_and_whether_it_is_kept");
    end_init(&here, "delta:int8");
    hdt_values_fill(&rng, VALUES_NORMAL, x, N);
    cr_assert_eq(end_send(&here, x, 0, 0x102), HDT_OK);
    cr_expect_eq(memcmp(here.frame, first, sizeof(first)), 0);
    cr_assert_eq(end_send(&here, x, 0, 0x102), HDT_OK);
    cr_expect_eq(memcmp(here.frame, second, sizeof(second)), 0);
    for (uint64_t key = 1; key < KEYS; key++) {
        cr_assert_eq(end_send(&here, x, 0, key), HDT_OK);
    }
    cr_assert_eq(end_send(&here, x, 0, 9), HDT_OK);
    cr_expect_eq(memcmp(here.frame, not_kept, sizeof(not_kept)), 0);
    hdt_codec_state_free(here.state);
}

Test(codec_state, delta_keeps_as_many_samples_as_it_was_given_room_for)
{
    static struct end here, there;
    static float x[5][N], y[N];

    hdt_values_rng_init(&rng, "delta_keeps_as_many_samples_as_it_was_given_room_for");
    end_init(&here, "delta:int8");
    end_init(&there, "delta:int8");
    hdt_values_fill(&rng, VALUES_NORMAL, x[0], 5 * N);
    for (int turn = 0; turn < 3; turn++) {
        for (uint64_t key = 0; key < 5; key++) {
            cr_assert_eq(end_send(&here, x[key], 0, key), HDT_OK);
            cr_assert_eq(end_take(&there, &here, y, false), HDT_OK);
            double error = distance(x[key], y);

            /* the last two find no room: the error of int8 each time */
            cr_expect(turn > 0 && key < KEYS ? error < 1e-4 : error > 1e-3,
                      "sample %d, turn %d: %g", (int)key, turn, error);
        }
    }
    hdt_codec_state_free(here.state);
    hdt_codec_state_free(there.state);
}

Test(codec_state, delta_refuses_frames_that_do_not_fit_what_it_holds)
{
    static struct end here, there;
    static float x[N], y[N];

    hdt_values_rng_init(&rng, "delta_refuses_frames_that_do_not_fit_what_it_holds");
    end_init(&here, "delta:int8");
    end_init(&there, "delta:int8");
    hdt_values_fill(&rng, VALUES_NORMAL, x, N);
    cr_assert_eq(end_send(&here, x, 0, 1), HDT_OK);
    cr_assert_eq(end_send(&here, x, 0, 1), HDT_OK); /* the first one is lost */
    cr_expect_eq(end_take(&there, &here, y, false), HDT_EPROTO);
    cr_assert_eq(end_send(&here, x, 0, 2), HDT_OK);
    cr_expect_eq(end_take(&there, &here, y, false), HDT_OK);
    cr_expect_eq(end_take(&there, &here, y, false), HDT_EPROTO, "the same frame again");
    here.len = 7;
    cr_expect_eq(end_take(&there, &here, y, false), HDT_EPROTO);
    hdt_codec_state_free(here.state);
    hdt_codec_state_free(there.state);
}
