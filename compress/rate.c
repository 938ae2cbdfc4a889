/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The best of several passes counts, not their mean: what disturbs a pass (another process, a clock
 * that has yet to rise) only ever makes it slower.
 */
#include "config.h"

#include "compress/rate.h"
#include "compress/codec_state.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)1 << 20)

/* One pass that another process holds up may take all of the time. */
#define PASSES_MIN 4

struct rate_bench {
    struct hdt_codec_ctx *ctx;
    struct hdt_codec_state *state; /* of codecs with feedback */
    const struct hdt_codec_ops *codec;
    enum hdt_dtype dtype;
    uint8_t *plain, *coded, *back;
    size_t bound, coded_len;
};

/* Normal enough: the sum of twelve uniform numbers, from a fixed seed. */
static void fill_normal(uint8_t *dst, size_t n)
{
    uint64_t state = 1;

    for (size_t i = 0; i < n; i++) {
        float x = -6.0f;

        for (int k = 0; k < 12; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            x += (float)(state >> 40) * 0x1p-24f;
        }
        memcpy(dst + 4 * i, &x, 4);
    }
}

static enum hdt_status rate_fill(struct rate_bench *b, struct hdt_error *err)
{
    size_t len;

    fill_normal(b->plain, PIECE / 4);
    if (b->dtype != HDT_DTYPE_BF16) {
        return HDT_OK;
    }
    struct hdt_codec_io io = {.src = b->plain,
                              .src_len = PIECE,
                              .dst = b->back,
                              .dst_len = PIECE,
                              .dtype = HDT_DTYPE_F32};
    HDT_TRY(hdt_codec_encode(&hdt_codec_bf16, b->ctx, &io, &len, err));
    memcpy(b->plain, b->back, len);
    memcpy(b->plain + len, b->back, len);
    return HDT_OK;
}

static enum hdt_status rate_pass(struct rate_bench *b, int decode, struct hdt_error *err)
{
    struct hdt_codec_guard guard;
    struct hdt_codec_io to = {.src = b->plain,
                              .src_len = PIECE,
                              .dst = b->coded,
                              .dst_len = b->bound,
                              .dtype = b->dtype,
                              .guard = &guard,
                              .state = b->state};
    struct hdt_codec_io from = {.src = b->coded,
                                .src_len = b->coded_len,
                                .dst = b->back,
                                .dst_len = PIECE,
                                .dtype = b->dtype};

    return decode ? hdt_codec_decode(b->codec, b->ctx, &from, err)
                  : hdt_codec_encode(b->codec, b->ctx, &to, &b->coded_len, err);
}

static enum hdt_status rate_side(struct rate_bench *b, int decode, int budget_ms,
                                 double *bytes_per_s, struct hdt_error *err)
{
    int64_t end = hdt_clock_now_ns() + (int64_t)budget_ms * 1000000, best = INT64_MAX, now;
    int n = 0;

    do {
        int64_t begin = hdt_clock_now_ns();

        HDT_TRY(rate_pass(b, decode, err));
        now = hdt_clock_now_ns();
        best = now - begin < best ? now - begin : best;
    } while (++n < PASSES_MIN || now < end);
    *bytes_per_s = (double)PIECE * 1e9 / (double)(best > 0 ? best : 1);
    return HDT_OK;
}

static enum hdt_status rate_run(struct rate_bench *b, int budget_ms, struct hdt_codec_rate *rate,
                                struct hdt_error *err)
{
    struct hdt_codec_rate r;

    HDT_TRY(hdt_codec_ctx_new(PIECE, &b->ctx, err));
    if (b->codec->has_state) {
        struct hdt_codec_spec spec = hdt_codec_spec_default(b->codec->id);

        HDT_TRY(hdt_codec_state_new(&spec, PIECE / 4, 0, &b->state, err));
    }
    HDT_TRY(rate_fill(b, err));
    HDT_TRY(rate_side(b, 0, budget_ms / 2, &r.encode_bytes_per_s, err));
    HDT_TRY(rate_side(b, 1, budget_ms / 2, &r.decode_bytes_per_s, err));
    r.ratio = (double)PIECE / (double)b->coded_len;
    *rate = r;
    return HDT_OK;
}

enum hdt_status hdt_codec_rate_measure(const struct hdt_codec_ops *codec, enum hdt_dtype dtype,
                                       int budget_ms, struct hdt_codec_rate *rate,
                                       struct hdt_error *err)
{
    struct rate_bench b = {.codec = codec, .dtype = dtype};
    enum hdt_status status;

    HDT_TRY(hdt_codec_bound(codec, NULL, dtype, PIECE, &b.bound, err));
    b.plain = hdt_malloc(PIECE);
    b.coded = hdt_malloc(b.bound);
    b.back = hdt_malloc(PIECE);
    status = rate_run(&b, budget_ms, rate, err);
    hdt_codec_ctx_free(b.ctx);
    hdt_codec_state_free(b.state);
    free(b.plain);
    free(b.coded);
    free(b.back);
    return status;
}
