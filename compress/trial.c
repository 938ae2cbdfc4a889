/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fastest of several passes counts, as in rate.c: what disturbs a pass only ever makes it
 * slower. The error is taken from what was decoded, not from the guard, so that it judges the
 * encoder, the decoder and the guard alike.
 */
#include "config.h"

#include "compress/trial.h"
#include "compress/codec_ctx.h"
#include "compress/codec_state.h"
#include "src/base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 256

/* One tensor under way. */
struct way {
    struct hdt_codec_ctx *ctx;
    const struct hdt_codec_spec *spec;
    const struct hdt_codec_ops *worker, *gateway;
    enum hdt_dtype dtype, frame_dtype;
    const uint8_t *data;
    size_t len, frame_len, frame_cap;
    uint8_t *frame; /* what the worker codec made; NULL when it makes nothing else of the tensor */
    uint8_t *wire, *frame_back, *back;
    size_t *lens; /* of the coded chunks; the first is the frame's when there is no gateway codec */
    size_t n_chunks, wire_len, wire_cap;
    struct hdt_codec_state *state; /* of the sender; NULL: the codec remembers nothing */
};

/* ---- floor ---- */

static double plane_floor_bytes(const uint64_t counts[BYTES], uint64_t n)
{
    double bits = 0;

    for (int i = 0; i < BYTES; i++) {
        if (counts[i] > 0) {
            bits -= (double)counts[i] * log2((double)counts[i] / (double)n);
        }
    }
    return bits / 8;
}

double hdt_codec_floor_bytes(enum hdt_dtype dtype, const void *frame, size_t len)
{
    uint64_t counts[sizeof(uint64_t)][BYTES] = {{0}};
    const size_t size = hdt_dtype_size(dtype), n = len / size;
    const unsigned turn = hdt_planes_rotates(dtype) ? 1 : 0;
    const uint64_t mask = size < 8 ? ((uint64_t)1 << 8 * size) - 1 : UINT64_MAX;
    double bytes = (double)(len % size);

    for (size_t i = 0; i < n; i++) {
        uint64_t u = 0;

        memcpy(&u, (const uint8_t *)frame + size * i, size);
        u = turn ? (u << 1 | u >> (8 * size - 1)) & mask : u;
        for (size_t p = 0; p < size; p++) {
            counts[p][u >> (8 * p) & 0xff]++;
        }
    }
    for (size_t p = 0; p < size && n > 0; p++) {
        bytes += plane_floor_bytes(counts[p], n);
    }
    return bytes;
}

/* ---- there and back ---- */

static const uint8_t *way_frame(const struct way *w)
{
    return w->frame ? w->frame : w->data;
}

static enum hdt_status worker_pass(struct way *w, bool decode, struct hdt_error *err)
{
    struct hdt_codec_guard guard;
    struct hdt_codec_io io = {
        .spec = w->spec, .dtype = w->dtype, .seed = 1, .guard = decode ? NULL : &guard};

    io.state = decode ? NULL : w->state;
    io.src = decode ? (w->frame_back ? w->frame_back : w->frame) : w->data;
    io.src_len = decode ? w->frame_len : w->len;
    io.dst = decode ? w->back : w->frame;
    io.dst_len = decode ? w->len : w->frame_cap;
    return decode ? hdt_codec_decode(w->worker, w->ctx, &io, err)
                  : hdt_codec_encode(w->worker, w->ctx, &io, &w->frame_len, err);
}

static enum hdt_status gateway_pass(struct way *w, bool decode, struct hdt_error *err)
{
    uint8_t *wire = w->wire, *back = w->frame_back ? w->frame_back : w->back;
    size_t i = 0;

    for (size_t at = 0; at < w->frame_len; at += HDT_CODEC_TRIAL_CHUNK, i++) {
        size_t len = w->frame_len - at;
        struct hdt_codec_io io = {.spec = w->spec, .dtype = w->frame_dtype, .offset = at};

        len = len < HDT_CODEC_TRIAL_CHUNK ? len : HDT_CODEC_TRIAL_CHUNK;
        io.src = decode ? wire : way_frame(w) + at;
        io.src_len = decode ? w->lens[i] : len;
        io.dst = decode ? back + at : wire;
        io.dst_len = decode ? len : w->wire_cap - (size_t)(wire - w->wire);
        HDT_TRY(decode ? hdt_codec_decode(w->gateway, w->ctx, &io, err)
                       : hdt_codec_encode(w->gateway, w->ctx, &io, &w->lens[i], err));
        wire += w->lens[i];
    }
    w->wire_len = (size_t)(wire - w->wire);
    return HDT_OK;
}

static enum hdt_status pass(struct way *w, bool decode, struct hdt_error *err)
{
    if (!decode) {
        if (w->frame) {
            HDT_TRY(worker_pass(w, false, err));
        }
        return w->wire ? gateway_pass(w, false, err) : HDT_OK;
    }
    if (w->wire) {
        HDT_TRY(gateway_pass(w, true, err));
    }
    return w->frame ? worker_pass(w, true, err) : HDT_OK;
}

static enum hdt_status pass_time(struct way *w, bool decode, int budget_ms, double *seconds,
                                 struct hdt_error *err)
{
    int64_t now = hdt_clock_now_ns(), end = now + (int64_t)budget_ms * 1000000, best = INT64_MAX;

    do {
        int64_t begin = now;

        HDT_TRY(pass(w, decode, err));
        now = hdt_clock_now_ns();
        best = now - begin < best ? now - begin : best;
    } while (now < end);
    *seconds = (double)best * 1e-9;
    return HDT_OK;
}

/* ---- what came back ---- */

/* Values i and on as floats, at most `n`; NULL when the dtype is none that widens. */
static const float *widen(const struct hdt_codec_ctx *ctx, enum hdt_dtype dtype,
                          const uint8_t *data, size_t i, size_t n, float *to)
{
    switch (dtype) {
    case HDT_DTYPE_F32:
        memcpy(to, data + 4 * i, 4 * n);
        return to;
    case HDT_DTYPE_BF16:
        ctx->kernels->bf16_decode(data + 2 * i, n, (uint8_t *)to);
        return to;
    case HDT_DTYPE_F16:
        ctx->kernels->f16_decode(data + 2 * i, n, (uint8_t *)to);
        return to;
    default:
        return NULL;
    }
}

static void error_add(const struct way *w, struct hdt_codec_trial *sums)
{
    enum { GROUP = 1024 };
    const size_t n = w->len / hdt_dtype_size(w->dtype);
    float x[GROUP], y[GROUP];

    for (size_t at = 0; at < n; at += GROUP) {
        size_t m = n - at < GROUP ? n - at : GROUP;

        if (!widen(w->ctx, w->dtype, w->data, at, m, x) ||
            !widen(w->ctx, w->dtype, w->back, at, m, y)) {
            return;
        }
        for (size_t i = 0; i < m; i++) {
            double e = (double)x[i] - (double)y[i];

            if (isfinite(e)) {
                sums->err_sq += e * e;
                sums->ref_sq += (double)x[i] * (double)x[i];
            }
        }
    }
}

static enum hdt_status way_judge(const struct way *w, struct hdt_codec_trial *sums,
                                 struct hdt_error *err)
{
    if (!(w->worker->caps & HDT_CODEC_EXACT)) {
        error_add(w, sums);
        return HDT_OK;
    }
    if (w->len > 0 && memcmp(w->data, w->back, w->len) != 0) {
        return hdt_error_set(err, HDT_EPROTO, "codec %s+%s gives other bits back", w->worker->name,
                             w->gateway->name);
    }
    return HDT_OK;
}

/* ---- a trial ---- */

static enum hdt_status way_open(struct way *w, struct hdt_error *err)
{
    const bool through_gateway = w->gateway->id != HDT_CODEC_NONE;

    if (w->spec->flags & HDT_CODEC_DELTA) {
        return hdt_error_set(err, HDT_EINVAL, "the change of a sample needs two visits of it");
    }
    HDT_TRY(hdt_codec_bound(w->worker, w->spec, w->dtype, w->len, &w->frame_cap, err));
    if (w->worker->has_state) {
        HDT_TRY(hdt_codec_state_new(w->spec, w->len / hdt_dtype_size(w->dtype), 0, &w->state, err));
    }
    w->frame_dtype = hdt_codec_coded_dtype(w->worker, w->dtype);
    w->frame_len = w->frame_cap;
    w->n_chunks = w->frame_cap / HDT_CODEC_TRIAL_CHUNK + 1;
    w->wire_cap = w->frame_cap + w->n_chunks; /* a chunk grows by a byte at most */
    w->lens = calloc(w->n_chunks, sizeof(*w->lens));
    w->back = malloc(w->len + 1);
    if (w->worker->id != HDT_CODEC_NONE || !through_gateway) {
        w->frame = malloc(w->frame_cap + 1);
    }
    if (through_gateway) {
        w->wire = malloc(w->wire_cap + 1);
        w->frame_back = w->frame ? malloc(w->frame_cap + 1) : NULL;
    }
    if (!w->lens || !w->back || !(w->frame || w->wire) || (through_gateway && !w->wire) ||
        (through_gateway && w->frame && !w->frame_back)) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot try a codec on %zu bytes: out of memory",
                             w->len);
    }
    return HDT_OK;
}

static void way_close(struct way *w)
{
    hdt_codec_state_free(w->state);
    free(w->lens);
    free(w->frame);
    free(w->wire);
    free(w->frame_back);
    free(w->back);
}

static enum hdt_status way_run(struct way *w, int budget_ms, struct hdt_codec_trial *sums,
                               struct hdt_error *err)
{
    struct hdt_codec_trial sum = *sums;
    double encode_s, decode_s;

    HDT_TRY(pass_time(w, false, budget_ms, &encode_s, err));
    if (w->state) { /* what the passes left is not the first frame */
        hdt_codec_state_reset(w->state);
        HDT_TRY(pass(w, false, err));
    }
    HDT_TRY(pass_time(w, true, budget_ms, &decode_s, err));
    HDT_TRY(way_judge(w, &sum, err));
    sum.n_tensors++;
    sum.n_values += w->len / hdt_dtype_size(w->dtype);
    sum.plain_bytes += w->len;
    sum.coded_bytes += w->wire ? w->wire_len : w->frame_len;
    sum.floor_bytes += hdt_codec_floor_bytes(w->frame_dtype, way_frame(w), w->frame_len);
    sum.encode_s += encode_s;
    sum.decode_s += decode_s;
    *sums = sum;
    return HDT_OK;
}

enum hdt_status hdt_codec_trial_run(struct hdt_codec_ctx *ctx, const struct hdt_codec_spec *spec,
                                    enum hdt_dtype dtype, const void *data, size_t len,
                                    int budget_ms, struct hdt_codec_trial *sums,
                                    struct hdt_error *err)
{
    struct way w = {.ctx = ctx, .spec = spec, .dtype = dtype, .data = data, .len = len};
    enum hdt_status status;

    w.worker = hdt_codec_spec_worker(spec);
    w.gateway = hdt_codec_spec_gateway(spec);
    status = way_open(&w, err);
    if (status == HDT_OK) {
        status = way_run(&w, budget_ms, sums, err);
    }
    way_close(&w);
    return status;
}

bool hdt_codec_trial_takes(const struct hdt_codec_spec *spec, enum hdt_dtype dtype)
{
    return (hdt_codec_spec_worker(spec)->dtypes >> dtype & 1) != 0;
}

/* One text of a word's list; returns what follows it. */
static const char *text_cut(const char *texts, char text[HDT_CODEC_SPEC_TEXT])
{
    size_t len = strcspn(texts, " ");

    HDT_ASSERT(len < HDT_CODEC_SPEC_TEXT);
    memcpy(text, texts, len);
    text[len] = '\0';
    return texts + len + strspn(texts + len, " ");
}

size_t hdt_codec_trial_specs(struct hdt_codec_spec *specs, size_t cap)
{
    size_t n_words, n = 0;
    const struct hdt_codec_word *words = hdt_codec_words(&n_words);
    char text[HDT_CODEC_SPEC_TEXT];

    for (size_t i = 0; i < n_words; i++) {
        for (const char *at = words[i].texts; *at != '\0';) {
            struct hdt_codec_spec spec;

            at = text_cut(at, text);
            if (hdt_codec_spec_parse(text, &spec, NULL) != HDT_OK) {
                continue;
            }
            for (int with = 0; with < 2; with++, n++) {
                if (with && (spec.worker == HDT_CODEC_NONE || spec.gateway != HDT_CODEC_NONE)) {
                    break; /* "none+lossless" is the word "lossless" */
                }
                spec.gateway = with ? HDT_CODEC_LOSSLESS : spec.gateway;
                if (n < cap) {
                    specs[n] = spec;
                }
            }
        }
    }
    return n;
}

double hdt_codec_trial_error(const struct hdt_codec_trial *sums)
{
    return sums->ref_sq > 0 ? sqrt(sums->err_sq / sums->ref_sq) : 0;
}
