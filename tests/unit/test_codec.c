/* SPDX-License-Identifier: Apache-2.0 */
/* What a user of the codecs relies on: what comes back, how far off, and what is refused. */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "compress/rate.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_CAP ((size_t)1 << 20)
#define CANARY    0xa5

static const size_t sizes[] = {0,  1,   2,   3,   7,    8,    31,   32,   33,   63,    64,
                               65, 255, 256, 257, 1023, 1024, 1025, 4095, 4097, 65537, 262144};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static const struct hdt_codec_spec plain_spec; /* no options */

static struct hdt_codec_ctx *ctx;

static void setup(void)
{
    cr_assert_eq(hdt_codec_ctx_new(CHUNK_CAP, &ctx, NULL), HDT_OK);
}

static void teardown(void)
{
    hdt_codec_ctx_free(ctx);
}

TestSuite(codec, .init = setup, .fini = teardown);

/* Encode and decode in exactly sized memory between canaries. */
struct trip {
    uint8_t *coded; /* malloc'ed, coded_len bytes */
    size_t coded_len;
    uint8_t *back; /* malloc'ed, plain_len bytes */
    struct hdt_codec_guard guard;
    enum hdt_status encode, decode;
};

static struct trip trip_make(const struct hdt_codec_ops *codec, enum hdt_dtype dtype,
                             const void *plain, size_t plain_len, uint64_t offset)
{
    struct trip t = {0};
    struct hdt_codec_io io = {
        .src = plain, .src_len = plain_len, .dtype = dtype, .offset = offset, .guard = &t.guard};
    size_t bound = 0;
    uint8_t *room;

    cr_assert_eq(hdt_codec_bound(codec, NULL, dtype, plain_len, &bound, NULL), HDT_OK);
    room = hdt_malloc(bound + 8);
    memset(room, CANARY, bound + 8);
    io.dst = room;
    io.dst_len = bound;
    t.encode = hdt_codec_encode(codec, ctx, &io, &t.coded_len, NULL);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(room[bound + i], CANARY, "%s wrote beyond its bound", codec->name);
    }
    if (t.encode == HDT_OK) {
        cr_assert_leq(t.coded_len, bound);
        t.coded = hdt_malloc(t.coded_len);
        memcpy(t.coded, room, t.coded_len);
        t.back = hdt_malloc(plain_len);
        struct hdt_codec_io back = {.src = t.coded,
                                    .src_len = t.coded_len,
                                    .dst = t.back,
                                    .dst_len = plain_len,
                                    .dtype = dtype,
                                    .offset = offset};
        t.decode = hdt_codec_decode(codec, ctx, &back, NULL);
    }
    free(room);
    return t;
}

static void trip_release(struct trip *t)
{
    free(t->coded);
    free(t->back);
}

Test(codec, every_word_has_its_codec)
{
    size_t n;
    const struct hdt_codec_word *words = hdt_codec_words(&n);
    struct hdt_codec_spec spec;

    for (size_t i = 0; i < n; i++) {
        const struct hdt_codec_ops *ops = hdt_codec_by_id(words[i].id);
        bool is_gateway = words[i].id == HDT_CODEC_LOSSLESS;

        cr_assert_not_null(ops, "%s", words[i].name);
        cr_expect_eq(ops->id, words[i].id);
        cr_expect_str_eq(ops->name, words[i].name);
        cr_expect(ops->caps & (is_gateway ? HDT_CODEC_AT_GATEWAY : HDT_CODEC_AT_WORKER));
        spec = hdt_codec_spec_default(words[i].id);
        cr_expect_eq(hdt_codec_spec_worker(&spec)->id, is_gateway ? HDT_CODEC_NONE : words[i].id);
        cr_expect_eq(hdt_codec_spec_gateway(&spec)->id,
                     is_gateway ? HDT_CODEC_LOSSLESS : HDT_CODEC_NONE);
    }
    for (unsigned id = 0; id <= HDT_CODEC_COUNT; id++) {
        cr_expect_eq(hdt_codec_by_id(id) != NULL, hdt_codec_word(id) != NULL, "%u", id);
    }
}

Test(codec, exact_codecs_give_back_every_bit)
{
    static const struct hdt_codec_ops *const exact[] = {&hdt_codec_none, &hdt_codec_lossless};
    struct values_rng rng;
    float *x = hdt_malloc(4 * 262144);

    hdt_values_rng_init(&rng, "exact_codecs_give_back_every_bit");
    for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
        hdt_values_fill(&rng, (enum values_kind)kind, x, 262144);
        for (size_t i = 0; i < N_SIZES * HDT_DTYPE_COUNT * 2; i++) {
            const struct hdt_codec_ops *codec = exact[i % 2];
            enum hdt_dtype dtype = (enum hdt_dtype)(i / 2 % HDT_DTYPE_COUNT);
            size_t n = sizes[i / 2 / HDT_DTYPE_COUNT], start = hdt_values_below(&rng, 4);
            size_t len = n * hdt_dtype_size(dtype);
            struct trip t;

            len = len > CHUNK_CAP - 4 ? CHUNK_CAP - 4 : len;
            t = trip_make(codec, dtype, (uint8_t *)x + start * (len > 0), len, 0);
            cr_assert_eq(t.encode, HDT_OK);
            cr_assert_eq(t.decode, HDT_OK, "%s %s %s n %zu", codec->name, hdt_dtype_name(dtype),
                         hdt_values_kind_name((enum values_kind)kind), n);
            cr_assert(len == 0 || memcmp(t.back, (uint8_t *)x + start, len) == 0, "%s %s %s n %zu",
                      codec->name, hdt_dtype_name(dtype),
                      hdt_values_kind_name((enum values_kind)kind), n);
            trip_release(&t);
        }
    }
    free(x);
}

/* A frame cut anywhere: each chunk comes back on its own, and odd cuts cost next to nothing. */
Test(codec, lossless_takes_chunks_cut_anywhere)
{
    static const enum hdt_dtype dtypes[] = {HDT_DTYPE_F32, HDT_DTYPE_BF16, HDT_DTYPE_F64,
                                            HDT_DTYPE_I8};
    struct values_rng rng;
    size_t len = 100000, coded = 0;
    float *x = hdt_malloc(4 * len);
    uint8_t *frame = (uint8_t *)x;

    hdt_values_rng_init(&rng, "lossless_takes_chunks_cut_anywhere");
    hdt_values_fill(&rng, VALUES_NORMAL, x, len);
    for (size_t d = 0; d < 4; d++) {
        for (size_t at = 0; at < len;) {
            size_t n = hdt_values_below(&rng, at % 3 ? 20000 : 10);
            struct trip t;

            n = n > len - at ? len - at : n;
            t = trip_make(&hdt_codec_lossless, dtypes[d], frame + at, n, at);
            cr_assert_eq(t.decode, HDT_OK);
            cr_assert(n == 0 || memcmp(t.back, frame + at, n) == 0);
            coded += t.coded_len;
            trip_release(&t);
            at += n > 0 ? n : 1;
        }
    }
    struct trip even = trip_make(&hdt_codec_lossless, HDT_DTYPE_F32, frame, 80000, 0);
    struct trip odd = trip_make(&hdt_codec_lossless, HDT_DTYPE_F32, frame + 1, 80000, 1);
    cr_expect_lt(even.coded_len, 80000 * 9 / 10);
    cr_expect_lt(odd.coded_len, even.coded_len + 500);
    trip_release(&even);
    trip_release(&odd);
    free(x);
}

/* Entropy of the exponent bounds what can be had: normal values in bf16 need 2.6 + 8 bits of 16. */
Test(codec, lossless_pays_on_floats_and_never_expands_by_more_than_a_byte)
{
    struct values_rng rng;
    size_t n = 262144;
    float *x = hdt_malloc(4 * n);
    struct trip half, f32, half_lossless, zeros, noise;

    hdt_values_rng_init(&rng, "lossless_pays_on_floats");
    hdt_values_fill(&rng, VALUES_NORMAL, x, n);
    half = trip_make(&hdt_codec_bf16, HDT_DTYPE_F32, x, 4 * n, 0);
    half_lossless = trip_make(&hdt_codec_lossless, HDT_DTYPE_BF16, half.coded, half.coded_len, 0);
    cr_expect_gt((double)half.coded_len / (double)half_lossless.coded_len, 1.45);
    f32 = trip_make(&hdt_codec_lossless, HDT_DTYPE_F32, x, 4 * n, 0);
    cr_expect_gt(4.0 * (double)n / (double)f32.coded_len, 1.18);
    memset(x, 0, 4 * n);
    zeros = trip_make(&hdt_codec_lossless, HDT_DTYPE_F32, x, 4 * n, 0);
    cr_expect_lt(zeros.coded_len, 4 * n / 1000);
    hdt_values_fill(&rng, VALUES_BITS, x, n);
    noise = trip_make(&hdt_codec_lossless, HDT_DTYPE_F32, x, 4 * n, 0);
    cr_expect_eq(noise.coded_len, 4 * n + 1);
    trip_release(&half);
    trip_release(&half_lossless);
    trip_release(&f32);
    trip_release(&zeros);
    trip_release(&noise);
    free(x);
}

/* The nearest of the two bf16 neighbours, found by comparing distances in double. */
static void check_bf16(float x, float y)
{
    uint32_t bx, by, down;
    float low, high;

    memcpy(&bx, &x, 4);
    memcpy(&by, &y, 4);
    cr_assert_eq(by & 0xffff, 0);
    if (isnan(x)) {
        cr_assert(isnan(y));
        cr_assert_eq(bx >> 31, by >> 31);
        return;
    }
    if (isinf(x)) {
        cr_assert_eq(bx, by);
        return;
    }
    down = bx & 0xffff0000u;
    memcpy(&low, &down, 4);
    down += 0x10000u;
    memcpy(&high, &down, 4);
    /* beyond the largest bf16 the next one up is 2^128 for the purpose of rounding */
    double h = isinf(high) ? copysign(0x1p128, x) : (double)high;
    double dl = fabs((double)x - (double)low), dh = fabs(h - (double)x);
    uint32_t want = dl < dh || (dl == dh && (down >> 16 & 1)) ? down - 0x10000u : down;
    cr_assert_eq(by, want, "%a -> %a", (double)x, (double)y);
}

Test(codec, bf16_rounds_to_nearest_even)
{
    struct values_rng rng;
    float x[5000];
    uint8_t *back;

    hdt_values_rng_init(&rng, "bf16_rounds_to_nearest_even");
    for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
        hdt_values_fill(&rng, (enum values_kind)kind, x, 5000);
        for (size_t i = 0; i < 5000; i += 7) { /* ties */
            uint32_t u;

            memcpy(&u, &x[i], 4);
            u = (u & 0xffff0000u) | 0x8000u;
            memcpy(&x[i], &u, 4);
        }
        struct trip t = trip_make(&hdt_codec_bf16, HDT_DTYPE_F32, x, sizeof(x), 0);

        cr_assert_eq(t.decode, HDT_OK);
        back = t.back;
        for (size_t i = 0; i < 5000; i++) {
            float y;

            memcpy(&y, back + 4 * i, 4);
            check_bf16(x[i], y);
        }
        trip_release(&t);
    }
}

/* The guard's figures against their definition in double. */
static void check_guard(const struct trip *t, const float *x, size_t n, double tolerance)
{
    double err = 0, ref = 0;
    float max = 0, y;
    uint64_t bad = 0;

    for (size_t i = 0; i < n; i++) {
        memcpy(&y, t->back + 4 * i, 4);
        if (isfinite(x[i]) && fabsf(x[i]) > max) {
            max = fabsf(x[i]);
        }
        if (!isfinite(y)) {
            bad++;
            continue;
        }
        err += ((double)x[i] - (double)y) * ((double)x[i] - (double)y);
        ref += (double)x[i] * (double)x[i];
    }
    cr_expect_eq(t->guard.n, n);
    cr_expect_eq(t->guard.n_nonfinite, bad);
    cr_expect_eq(t->guard.max_abs, max);
    cr_expect_leq(fabs(t->guard.err_sq - err), tolerance * err + 1e-12 * ref, "%g %g",
                  t->guard.err_sq, err);
    cr_expect_leq(fabs(t->guard.ref_sq - ref), tolerance * ref, "%g %g", t->guard.ref_sq, ref);
    cr_expect_leq(fabs(hdt_codec_guard_error(&t->guard) - (ref > 0 ? sqrt(err / ref) : 0)), 1e-5);
}

Test(codec, none_guard_finds_what_is_not_finite)
{
    float x[1003], back[1003];
    struct hdt_codec_guard guard;
    struct hdt_codec_io io = {.src = x,
                              .src_len = sizeof(x),
                              .dst = back,
                              .dst_len = sizeof(back),
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard};
    size_t len;

    for (int i = 0; i < 1003; i++) {
        x[i] = (float)(i % 100) - 50.0f;
    }
    x[3] = NAN;
    x[1002] = -INFINITY;
    cr_assert_eq(hdt_codec_encode(&hdt_codec_none, ctx, &io, &len, NULL), HDT_OK);
    cr_expect_eq(guard.n, 1003);
    cr_expect_eq(guard.n_nonfinite, 2);
    cr_expect_eq(guard.max_abs, 50.0f);
    cr_expect_eq(hdt_codec_guard_error(&guard), 0);
    cr_expect_eq(memcmp(x, back, sizeof(x)), 0);
}

Test(codec, bf16_guard_tells_the_truth)
{
    struct values_rng rng;
    float x[3001];

    hdt_values_rng_init(&rng, "bf16_guard_tells_the_truth");
    for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
        hdt_values_fill(&rng, (enum values_kind)kind, x, 3001);
        struct trip t = trip_make(&hdt_codec_bf16, HDT_DTYPE_F32, x, sizeof(x), 0);

        check_guard(&t, x, 3001, 1e-5);
        trip_release(&t);
    }
}

/* A uniform quantizer of step d cannot do better than d / 2 in the worst case and d^2 / 12 in the
 * mean for values that spread over many steps. */
static void check_int8(const struct trip *t, const float *x, size_t n, bool dense)
{
    double floor_sq = 0, err = 0;

    for (size_t b = 0; b < n; b += 256) {
        size_t end = b + 256 < n ? b + 256 : n;
        float max = 0, y;
        double step;

        for (size_t i = b; i < end; i++) {
            max = fmaxf(max, fabsf(x[i]));
        }
        step = (double)max / 127;
        for (size_t i = b; i < end; i++) {
            memcpy(&y, t->back + 4 * i, 4);
            double e = fabs((double)x[i] - (double)y);

            cr_assert(max < 0x1p-110f ? y == 0 : e <= step * 0.50001, "%g, step %g", e, step);
            cr_assert(x[i] != 0 || y == 0);
            err += e * e;
            floor_sq += step * step / 12;
        }
    }
    if (dense) {
        cr_expect_lt(err, floor_sq * 1.02, "%g of %g", err, floor_sq);
        cr_expect_gt(err, floor_sq * 0.90);
    }
}

Test(codec, int8_is_as_good_as_a_uniform_quantizer_can_be)
{
    struct values_rng rng;
    float *x = hdt_malloc(4 * 262144);

    hdt_values_rng_init(&rng, "int8_is_as_good");
    for (int kind = 0; kind <= VALUES_DENORMAL; kind++) {
        hdt_values_fill(&rng, (enum values_kind)kind, x, 262144);
        for (size_t i = 0; i < N_SIZES; i++) {
            size_t n = sizes[i];
            struct trip t = trip_make(&hdt_codec_int8, HDT_DTYPE_F32, x, 4 * n, 0);

            cr_assert_eq(t.decode, HDT_OK);
            cr_expect_eq(hdt_codec_int8.plain_len(&plain_spec, HDT_DTYPE_F32, t.coded_len), 4 * n);
            check_int8(&t, x, n, kind == VALUES_NORMAL && n > 60000);
            /* The guard subtracts in float: x and its decoded value agree in up to eight bits, so
             * a square may be off by 2^-15 of its largest; a few values do not average that out. */
            check_guard(&t, x, n, 1e-3);
            trip_release(&t);
        }
    }
    free(x);
}

Test(codec, int8_refuses_values_that_have_no_code)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct hdt_error err = {0};
    struct hdt_codec_guard guard;
    uint8_t coded[2000];
    float x[1000];
    size_t len;
    struct hdt_codec_io io = {.src = x,
                              .src_len = sizeof(x),
                              .dst = coded,
                              .dst_len = sizeof(coded),
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard};

    for (size_t i = 0; i < 1000; i++) {
        x[i] = (float)i;
    }
    for (size_t i = 0; i < 3; i++) {
        x[300 * i + 5] = bad[i];
    }
    cr_expect_eq(hdt_codec_encode(&hdt_codec_int8, ctx, &io, &len, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "3 of 1000"), "%s", err.msg);
    cr_expect_eq(guard.n_nonfinite, 3);
    cr_expect_eq(guard.max_abs, 999.0f);
}

Test(codec, lengths_and_types_are_checked_first)
{
    struct hdt_error err = {0};
    uint8_t room[64] = {0};
    size_t bound, len;
    struct hdt_codec_io io = {
        .src = room, .src_len = 16, .dst = room + 32, .dst_len = 7, .dtype = HDT_DTYPE_F32};

    cr_expect_eq(hdt_codec_bound(&hdt_codec_bf16, NULL, HDT_DTYPE_I32, 16, &bound, &err),
                 HDT_EINVAL);
    cr_expect_eq(hdt_codec_bound(&hdt_codec_bf16, NULL, (enum hdt_dtype)77, 16, &bound, &err),
                 HDT_EINVAL);
    cr_expect_eq(hdt_codec_bound(&hdt_codec_bf16, NULL, HDT_DTYPE_F32, 15, &bound, &err),
                 HDT_EINVAL);
    cr_expect_eq(hdt_codec_bound(&hdt_codec_none, NULL, HDT_DTYPE_F32, SIZE_MAX, &bound, &err),
                 HDT_EINVAL);
    cr_expect_eq(hdt_codec_encode(&hdt_codec_bf16, ctx, &io, &len, &err), HDT_EINVAL);
    io.src_len = 7;
    io.dst_len = 16;
    cr_expect_eq(hdt_codec_decode(&hdt_codec_bf16, ctx, &io, &err), HDT_EPROTO);
    io.dst_len = CHUNK_CAP + 1; /* refused before a byte of it is touched */
    cr_expect_eq(hdt_codec_decode(&hdt_codec_lossless, ctx, &io, &err), HDT_EINVAL);
    cr_expect_eq(hdt_codec_int8.plain_len(&plain_spec, HDT_DTYPE_F32, 16), SIZE_MAX);
    cr_expect_eq(hdt_codec_int8.plain_len(&plain_spec, HDT_DTYPE_F32, 1040 + 3), SIZE_MAX);
    cr_expect_eq(hdt_codec_bf16.plain_len(&plain_spec, HDT_DTYPE_F32, 3), SIZE_MAX);
    cr_expect_eq(hdt_codec_ctx_new(HDT_CODEC_CHUNK_MAX + 1, &ctx, &err), HDT_EINVAL);
}

/* Damage a coded form; the decoder must stay inside its memory and say HDT_EPROTO or decode. */
static void damage_and_decode(struct values_rng *rng, const struct hdt_codec_ops *codec,
                              enum hdt_dtype dtype, const struct trip *t, size_t plain_len)
{
    size_t cut =
        hdt_values_below(rng, 3) == 0 ? hdt_values_below(rng, t->coded_len + 1) : t->coded_len;
    uint8_t *coded = hdt_malloc(cut), *back = hdt_malloc(plain_len + 8);
    size_t head = cut < 64 ? cut : 64;

    memcpy(coded, t->coded, cut);
    for (uint64_t flips = hdt_values_below(rng, 4) + 1; cut > 0 && flips > 0; flips--) {
        /* most flips where the lengths are */
        size_t at =
            hdt_values_below(rng, 2) ? hdt_values_below(rng, head) : hdt_values_below(rng, cut);

        coded[at] ^= (uint8_t)(1u << hdt_values_below(rng, 8));
    }
    memset(back, CANARY, plain_len + 8);
    struct hdt_codec_io io = {
        .src = coded, .src_len = cut, .dst = back, .dst_len = plain_len, .dtype = dtype};
    enum hdt_status status = hdt_codec_decode(codec, ctx, &io, NULL);
    cr_assert(status == HDT_OK || status == HDT_EPROTO, "%s: %s", codec->name,
              hdt_status_name(status));
    for (size_t i = 0; i < 8; i++) {
        cr_assert_eq(back[plain_len + i], CANARY);
    }
    free(coded);
    free(back);
}

Test(codec, damaged_input_never_leads_outside)
{
    static const struct {
        const struct hdt_codec_ops *codec;
        enum hdt_dtype dtype;
    } cases[] = {{&hdt_codec_none, HDT_DTYPE_F32},      {&hdt_codec_bf16, HDT_DTYPE_F32},
                 {&hdt_codec_int8, HDT_DTYPE_F32},      {&hdt_codec_lossless, HDT_DTYPE_F32},
                 {&hdt_codec_lossless, HDT_DTYPE_BF16}, {&hdt_codec_lossless, HDT_DTYPE_F64},
                 {&hdt_codec_lossless, HDT_DTYPE_I8}};
    struct values_rng rng;
    float x[2500];

    hdt_values_rng_init(&rng, "damaged_input_never_leads_outside");
    for (size_t round = 0; round < 6; round++) {
        size_t n = round < 3 ? 2500 : hdt_values_below(&rng, 2500);

        hdt_values_fill(&rng, round % 3 == 2 ? VALUES_ZEROS : VALUES_NORMAL, x, n);
        for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
            size_t len = n * 4 / 8 * 8;
            struct trip t = trip_make(cases[c].codec, cases[c].dtype, x, len, 0);

            cr_assert_eq(t.decode, HDT_OK);
            for (int i = 0; i < 300; i++) {
                damage_and_decode(&rng, cases[c].codec, cases[c].dtype, &t, len);
            }
            trip_release(&t);
        }
    }
}

/* After foreign rubbish the same context still decodes what is right. */
Test(codec, a_context_survives_damage)
{
    struct values_rng rng;
    float x[4096];
    struct trip t;

    hdt_values_rng_init(&rng, "a_context_survives_damage");
    hdt_values_fill(&rng, VALUES_NORMAL, x, 4096);
    t = trip_make(&hdt_codec_lossless, HDT_DTYPE_F32, x, sizeof(x), 0);
    for (int i = 0; i < 200; i++) {
        damage_and_decode(&rng, &hdt_codec_lossless, HDT_DTYPE_F32, &t, sizeof(x));
    }
    trip_release(&t);
    t = trip_make(&hdt_codec_lossless, HDT_DTYPE_F32, x, sizeof(x), 0);
    cr_assert_eq(t.decode, HDT_OK);
    cr_assert_eq(memcmp(t.back, x, sizeof(x)), 0);
    trip_release(&t);
}

/* A codec whose first pass each way is held up for 20 ms, by whatever else computes there. */
static int n_encoded, n_decoded;

static void held_up(void)
{
    const int64_t end_ns = hdt_clock_now_ns() + 20 * 1000000;

    while (hdt_clock_now_ns() < end_ns) {
    }
}

static enum hdt_status slow_at_first_encode(struct hdt_codec_ctx *own,
                                            const struct hdt_codec_io *io, size_t *coded_len,
                                            struct hdt_error *err)
{
    if (n_encoded++ == 0) {
        held_up();
    }
    return hdt_codec_none.encode(own, io, coded_len, err);
}

static enum hdt_status slow_at_first_decode(struct hdt_codec_ctx *own,
                                            const struct hdt_codec_io *io, struct hdt_error *err)
{
    if (n_decoded++ == 0) {
        held_up();
    }
    return hdt_codec_none.decode(own, io, err);
}

/* One pass of 1 MiB in 20 ms is 52 MB/s, and takes all of the time that there is. */
Test(codec, a_pass_that_is_held_up_is_not_the_rate)
{
    struct hdt_codec_ops codec = hdt_codec_none;
    struct hdt_codec_rate rate = {0};

    codec.encode = slow_at_first_encode;
    codec.decode = slow_at_first_decode;
    cr_assert_eq(hdt_codec_rate_measure(&codec, HDT_DTYPE_F32, 20, &rate, NULL), HDT_OK);
    cr_expect_gt(rate.encode_bytes_per_s, 200e6);
    cr_expect_gt(rate.decode_bytes_per_s, 200e6);
}

Test(codec, rates_are_measured_for_the_planner)
{
    struct hdt_codec_rate rate = {0};

    cr_assert_eq(hdt_codec_rate_measure(&hdt_codec_lossless, HDT_DTYPE_BF16, 4, &rate, NULL),
                 HDT_OK);
    cr_expect_gt(rate.encode_bytes_per_s, 1e6);
    cr_expect_gt(rate.decode_bytes_per_s, 1e6);
    cr_expect_gt(rate.ratio, 1.4);
    cr_assert_eq(hdt_codec_rate_measure(&hdt_codec_int8, HDT_DTYPE_F32, 0, &rate, NULL), HDT_OK);
    cr_expect_gt(rate.ratio, 3.9);
    cr_expect_eq(hdt_codec_rate_measure(&hdt_codec_int8, HDT_DTYPE_I64, 0, &rate, NULL),
                 HDT_EINVAL);
}
