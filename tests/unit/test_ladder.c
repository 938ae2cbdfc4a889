/* SPDX-License-Identifier: Apache-2.0 */
/* The codecs an edge may use, and the guard that steps up. */
#include "config.h"

#include "compress/ladder.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR ((size_t)4 * 65536)

static struct hdt_codec_spec spec_of(const char *text)
{
    struct hdt_codec_spec spec;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_codec_spec_parse(text, &spec, &err), HDT_OK, "%s", err.msg);
    return spec;
}

static struct hdt_ladder ladder_of(const char *planned, bool is_live, double budget, size_t cap)
{
    const struct hdt_codec_spec spec = spec_of(planned);
    struct hdt_ladder ladder;

    hdt_ladder_init(&ladder, &spec, is_live, budget, TENSOR, cap);
    return ladder;
}

static void expect_rungs(const struct hdt_ladder *ladder, const char *want, int planned)
{
    char text[HDT_LADDER_TEXT];

    hdt_ladder_text(ladder, text);
    cr_expect_str_eq(text, want);
    cr_expect_eq(ladder->planned, planned, "planned is rung %d of %s", ladder->planned, text);
}

Test(ladder, rungs)
{
    struct hdt_ladder l;

    l = ladder_of("int8", false, 0.02, TENSOR);
    expect_rungs(&l, "none, bf16, int8", 2);
    l = ladder_of("bf16+lossless", false, 0.02, TENSOR);
    expect_rungs(&l, "lossless, bf16+lossless", 1);
    l = ladder_of("lossless", false, 0.02, TENSOR);
    expect_rungs(&l, "lossless", 0);
    l = ladder_of("lossless", true, 0.02, TENSOR);
    expect_rungs(&l, "lossless, bf16+lossless, int8+lossless", 0);
    l = ladder_of("bf16", true, 0.02, TENSOR);
    expect_rungs(&l, "none, bf16, int8", 1);
    l = ladder_of("bf16", true, 0.003, TENSOR);
    expect_rungs(&l, "none, bf16", 1);
    cr_expect(l.is_live);
    l = ladder_of("none", true, 0.001, TENSOR);
    expect_rungs(&l, "none", 0);
    cr_expect(!l.is_live, "there is nothing to choose");
}

/* Without a budget there is no guard; slots that a plan made for int8 take no other rung. */
Test(ladder, what_leaves_only_the_planned_codec)
{
    struct hdt_ladder l = ladder_of("int8", false, 0, TENSOR);

    expect_rungs(&l, "int8", 0);
    cr_expect(isinf(hdt_ladder_limit(&l, 0)));
    l = ladder_of("int8", false, 0.02, TENSOR / 4 + TENSOR / 256); /* 65536 codes, 256 scales */
    expect_rungs(&l, "int8", 0);
    l = ladder_of("int8", false, 0.02, TENSOR / 2);
    expect_rungs(&l, "bf16, int8", 1);
}

Test(ladder, slots_take_the_longest_rung)
{
    struct hdt_codec_spec spec = spec_of("int8");

    cr_expect_eq(hdt_ladder_frame_bytes(&spec, false, 0.02, TENSOR), TENSOR);
    cr_expect_eq(hdt_ladder_frame_bytes(&spec, false, 0, TENSOR), TENSOR / 4 + 4 * 256);
}

/* What the codecs make of 2^16 normal values is what the arithmetic of their rounding expects. */
Test(ladder, expected_errors)
{
    static const char *const texts[] = {"none", "bf16", "int8"};
    float *values = malloc(TENSOR);
    uint8_t *frame = malloc(TENSOR);
    struct hdt_codec_ctx *ctx;
    struct values_rng rng;

    cr_assert_eq(hdt_codec_ctx_new(0, &ctx, NULL), HDT_OK);
    hdt_values_rng_init(&rng, "expected_errors");
    hdt_values_fill(&rng, VALUES_NORMAL, values, TENSOR / 4);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const struct hdt_codec_spec spec = spec_of(texts[i]);
        const double want = hdt_codec_expected_error(&spec);
        struct hdt_codec_guard guard = {0};
        struct hdt_codec_io io = {.spec = &spec,
                                  .src = values,
                                  .src_len = TENSOR,
                                  .dst = frame,
                                  .dst_len = TENSOR,
                                  .dtype = HDT_DTYPE_F32,
                                  .guard = &guard};
        size_t len;

        cr_assert_eq(hdt_codec_encode(hdt_codec_by_id(spec.worker), ctx, &io, &len, NULL), HDT_OK);
        cr_expect(fabs(hdt_codec_guard_error(&guard) - want) <= 0.12 * want,
                  "%s: error %g, expected %g", texts[i], hdt_codec_guard_error(&guard), want);
    }
    hdt_codec_ctx_free(ctx);
    free(values);
    free(frame);
}

/* ---- the guard ---- */

static struct hdt_codec_guard seen_of(double error)
{
    return (struct hdt_codec_guard){.n = 100, .err_sq = error * error * 9, .ref_sq = 9};
}

/* Four times the budget: 0.08. A frame at it passes, one above goes to bf16, whose limit is the
 * same, and from there to none, which loses nothing. */
Test(ladder, steps_up_by_error)
{
    const struct hdt_ladder l = ladder_of("int8", false, 0.02, TENSOR);
    struct hdt_codec_guard seen = seen_of(0.079);
    struct hdt_ladder_guard guard;

    hdt_ladder_guard_init(&guard, &l);
    cr_expect_eq(guard.least, 2);
    cr_expect_eq(hdt_ladder_check(&guard, &l, 2, &seen, false), HDT_LADDER_PASS);
    seen = seen_of(0.081);
    cr_expect_eq(hdt_ladder_check(&guard, &l, 2, &seen, false), HDT_LADDER_ERROR);
    cr_expect_eq(guard.least, 1);
    cr_expect_eq(hdt_ladder_check(&guard, &l, 1, &seen, false), HDT_LADDER_ERROR);
    cr_expect_eq(guard.least, 0);
    cr_expect_eq(hdt_ladder_check(&guard, &l, 0, &seen, false), HDT_LADDER_PASS);
    cr_expect_eq(guard.n_up, 2);
    cr_expect_eq(guard.n_again, 2);
}

Test(ladder, steps_up_from_what_a_codec_cannot_carry)
{
    const struct hdt_ladder l = ladder_of("int8", false, 0.02, TENSOR);
    struct hdt_codec_guard seen = seen_of(0);
    struct hdt_ladder_guard guard;

    hdt_ladder_guard_init(&guard, &l);
    seen.n_nonfinite = 1;
    cr_expect_eq(hdt_ladder_check(&guard, &l, 2, &seen, true), HDT_LADDER_NONFINITE);
    cr_expect_eq(hdt_ladder_check(&guard, &l, 1, &seen, false), HDT_LADDER_NONFINITE);
    cr_expect_eq(hdt_ladder_check(&guard, &l, 0, &seen, false), HDT_LADDER_PASS);
    seen = seen_of(NAN); /* sums that overflowed */
    cr_expect_eq(hdt_ladder_check(&guard, &l, 2, &seen, false), HDT_LADDER_ERROR);
}

static int frames_until_down(struct hdt_ladder_guard *guard, const struct hdt_ladder *l)
{
    int n = 1;

    while (!hdt_ladder_left(guard, l)) {
        n++;
        cr_assert(n < 1000000);
    }
    return n;
}

/* A try that went well for as long as was needed is no failed one when trouble comes much later. */
Test(ladder, a_try_that_went_well_is_forgotten)
{
    const struct hdt_ladder l = ladder_of("int8", false, 0.02, TENSOR);
    const struct hdt_codec_guard bad = seen_of(0.5);
    struct hdt_ladder_guard guard;
    int i;

    hdt_ladder_guard_init(&guard, &l);
    for (i = 0; i < 8; i++) {
        hdt_ladder_check(&guard, &l, 2, &bad, false);
        cr_assert_eq(frames_until_down(&guard, &l), 1000, "trouble %d", i);
        for (int calm = 0; calm < 5000; calm++) {
            cr_assert(!hdt_ladder_left(&guard, &l));
        }
    }
}

/* 1000 calm frames, then int8 is tried again; it fails at once, and 2000 are needed; it holds, and
 * nothing steps further down than the plan. */
Test(ladder, steps_down_after_a_long_calm)
{
    const struct hdt_ladder l = ladder_of("int8", false, 0.02, TENSOR);
    const struct hdt_codec_guard bad = seen_of(0.5);
    struct hdt_ladder_guard guard;
    int i;

    hdt_ladder_guard_init(&guard, &l);
    cr_expect(!hdt_ladder_left(&guard, &l));
    hdt_ladder_check(&guard, &l, 2, &bad, false);
    cr_expect_eq(frames_until_down(&guard, &l), 1000);
    cr_expect_eq(guard.least, 2);
    hdt_ladder_check(&guard, &l, 2, &bad, false);
    cr_expect_eq(guard.least, 1);
    cr_expect_eq(frames_until_down(&guard, &l), 2000);
    for (i = 0; i < 1000; i++) {
        cr_assert(!hdt_ladder_left(&guard, &l));
    }
    cr_expect_eq(guard.least, 2);
    cr_expect_eq(guard.n_down, 2);
    for (i = 0; i < 20; i++) { /* never more than 64000 */
        hdt_ladder_check(&guard, &l, 2, &bad, false);
        frames_until_down(&guard, &l);
    }
    hdt_ladder_check(&guard, &l, 2, &bad, false);
    cr_expect_eq(frames_until_down(&guard, &l), 64000);
}

/* ---- saved ---- */

static enum hdt_status load(const uint8_t *mem, size_t len, const struct hdt_ladder *l,
                            struct hdt_ladder_guard *guard)
{
    hdt_ladder_guard_init(guard, l);
    return hdt_ladder_guard_load(guard, l, mem, len, NULL);
}

/* In the middle of the calm before a try, and in the middle of a try: both go on as if nothing had
 * been. */
Test(ladder, a_guard_that_was_saved_goes_on)
{
    const struct hdt_ladder l = ladder_of("int8+lossless", false, 0.02, TENSOR);
    const struct hdt_codec_guard bad = seen_of(0.5);
    struct hdt_ladder_guard guard, loaded;
    uint8_t mem[HDT_LADDER_GUARD_BYTES];

    hdt_ladder_guard_init(&guard, &l);
    hdt_ladder_check(&guard, &l, 2, &bad, false);
    for (int i = 0; i < 400; i++) {
        cr_assert(!hdt_ladder_left(&guard, &l));
    }
    hdt_ladder_guard_save(&guard, &l, mem);
    cr_assert_eq(load(mem, sizeof(mem), &l, &loaded), HDT_OK);
    cr_expect_eq(loaded.least, 1);
    cr_expect_eq(loaded.n_up, 1u);
    cr_expect_eq(frames_until_down(&loaded, &l), 600);
    hdt_ladder_guard_save(&loaded, &l, mem);
    cr_assert_eq(load(mem, sizeof(mem), &l, &loaded), HDT_OK);
    cr_expect_eq(loaded.least, 2);
    hdt_ladder_check(&loaded, &l, 2, &bad, false); /* the try fails */
    cr_expect_eq(frames_until_down(&loaded, &l), 2000);
}

Test(ladder, foreign_guards_are_refused)
{
    const struct hdt_ladder l = ladder_of("int8", false, 0.02, TENSOR);
    const struct hdt_ladder other = ladder_of("fp8", false, 0.02, TENSOR);
    const struct hdt_ladder live = ladder_of("int8", true, 0.02, TENSOR);
    /* As compress/ladder.c has them: magic, version, spec, rungs, least, is_trial, n_calm, n_needed
     * (1000 = 0x3e8). */
    static const size_t at[] = {0, 8, 16, 32, 35, 36, 47, 49};
    struct hdt_ladder_guard guard;
    uint8_t mem[HDT_LADDER_GUARD_BYTES], bad[HDT_LADDER_GUARD_BYTES];

    hdt_ladder_guard_init(&guard, &l);
    hdt_ladder_guard_save(&guard, &l, mem);
    cr_expect_arr_eq(mem, "HDTGUARD\1\0\0\0\12\0\0\0", 16);
    cr_expect_arr_eq(mem + 48, "\xe8\3\0\0\0\0\0\0", 8);
    cr_expect_eq(load(mem, sizeof(mem), &l, &guard), HDT_OK);
    cr_expect_eq(load(mem, sizeof(mem) - 1, &l, &guard), HDT_EPROTO);
    cr_expect_eq(load(mem, sizeof(mem), &other, &guard), HDT_EINVAL);
    cr_expect_eq(load(mem, sizeof(mem), &live, &guard), HDT_EINVAL);
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        memcpy(bad, mem, sizeof(bad));
        bad[at[i]] = 0xff;
        cr_expect_neq(load(bad, sizeof(bad), &l, &guard), HDT_OK, "byte %zu", at[i]);
        cr_expect_eq(guard.least, 2);
    }
}
