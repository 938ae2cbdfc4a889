/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoder and decoder add the same decoded change to the same memory, by the same additions, so
 * their memories stay equal to the bit. Slots are taken in the order in which samples come and
 * never given up: which samples are kept then follows from the frames alone, and no end has to tell
 * the other what it forgot.
 */
#include "config.h"

#include "compress/delta.h"
#include "compress/codec_state.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

struct delta_head {
    uint64_t key;
    uint32_t visits, kept;
};
HDT_STATIC_ASSERT(sizeof(struct delta_head) == HDT_DELTA_HEAD, "on the wire");

/* What is not finite would stay in the memory of both ends for good. */
static enum hdt_status check_change(const struct hdt_codec_state *s, enum hdt_status status,
                                    struct hdt_error *err)
{
    for (size_t i = 0; i < s->n; i++) {
        if (!isfinite(s->scratch[i])) {
            return hdt_error_set(err, status, "delta: the change of a value is not finite");
        }
    }
    return HDT_OK;
}

static enum hdt_status check_call(const struct hdt_codec_io *io, size_t len, struct hdt_error *err)
{
    if (io->dtype != HDT_DTYPE_F32) {
        return hdt_error_set(err, HDT_EINVAL, "delta does not take %s values",
                             hdt_dtype_name(io->dtype));
    }
    return hdt_codec_state_fits(io->state, io->spec, len / 4, err);
}

/* The slot of a sample, or the first free one, or `keys` when there is none. */
static size_t slot_of(const struct hdt_codec_state *s, uint64_t key)
{
    size_t i = 0;

    while (i < s->keys && s->visits[i] > 0 && s->key[i] != key) {
        i++;
    }
    return i;
}

/* What a frame of this sample has to say about it at this end. */
static struct delta_head head_of(const struct hdt_codec_state *s, uint64_t key, size_t slot)
{
    struct delta_head head = {.key = key, .kept = slot < s->keys};

    head.visits = head.kept ? (uint32_t)s->visits[slot] : 0;
    return head;
}

static const float *held(const struct hdt_codec_state *s, size_t slot)
{
    return s->sample + slot * s->n;
}

/* m += the decoded change in s->scratch, at most the largest float, beside which a quantizer may
 * round up; then the sample counts as sent once more. */
static void keep(struct hdt_codec_state *s, uint64_t key, size_t slot)
{
    float *m = s->sample + slot * s->n;

    for (size_t i = 0; i < s->n; i++) {
        float sum = m[i] + s->scratch[i];

        sum = sum > FLT_MAX ? FLT_MAX : sum;
        m[i] = sum < -FLT_MAX ? -FLT_MAX : sum;
    }
    s->key[slot] = key;
    s->visits[slot] = s->visits[slot] < UINT32_MAX ? s->visits[slot] + 1 : UINT32_MAX;
}

/* The decoder of the inner frame, with s->scratch as its destination. */
static enum hdt_status decode_inner(const struct hdt_codec_ops *inner, struct hdt_codec_ctx *ctx,
                                    const struct hdt_codec_spec *spec, const void *frame,
                                    size_t len, struct hdt_codec_state *s, struct hdt_error *err)
{
    struct hdt_codec_io io = {.spec = spec,
                              .src = frame,
                              .src_len = len,
                              .dst = s->scratch,
                              .dst_len = 4 * s->n,
                              .dtype = HDT_DTYPE_F32};

    return hdt_codec_decode(inner, ctx, &io, err);
}

static struct hdt_codec_spec spec_without_delta(const struct hdt_codec_spec *spec)
{
    struct hdt_codec_spec plain = *spec;

    plain.flags &= (uint16_t)~HDT_CODEC_DELTA;
    return plain;
}

/* s->scratch = x - m; returns the sum of x^2 over what is finite. */
static double take_change(struct hdt_codec_state *s, const uint8_t *src, size_t slot)
{
    const float *m = slot < s->keys ? held(s, slot) : NULL;
    double sq = 0;

    for (size_t i = 0; i < s->n; i++) {
        float x;

        memcpy(&x, src + 4 * i, 4);
        s->scratch[i] = m ? x - m[i] : x;
        sq += x - x == 0 ? (double)x * (double)x : 0;
    }
    return sq;
}

enum hdt_status hdt_delta_encode(const struct hdt_codec_ops *inner, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, size_t *coded_len,
                                 struct hdt_error *err)
{
    struct hdt_codec_spec plain = spec_without_delta(io->spec);
    struct hdt_codec_state *s = io->state;
    size_t slot, len;
    struct delta_head head;
    struct hdt_codec_io to = *io;
    double ref_sq;

    HDT_TRY(check_call(io, io->src_len, err));
    slot = slot_of(s, io->key);
    head = head_of(s, io->key, slot);
    ref_sq = take_change(s, io->src, slot);
    to.spec = &plain;
    to.src = s->scratch;
    to.dst = (uint8_t *)io->dst + HDT_DELTA_HEAD;
    to.dst_len = io->dst_len - HDT_DELTA_HEAD;
    to.state = NULL;
    HDT_TRY(hdt_codec_encode(inner, ctx, &to, &len, err));
    if (io->guard) {
        io->guard->ref_sq = ref_sq;
    }
    memcpy(io->dst, &head, sizeof(head));
    *coded_len = HDT_DELTA_HEAD + len;
    if (!head.kept) {
        return HDT_OK;
    }
    HDT_TRY(decode_inner(inner, ctx, &plain, to.dst, len, s, err));
    HDT_TRY(check_change(s, HDT_EINVAL, err));
    keep(s, io->key, slot);
    return HDT_OK;
}

static void give(const struct hdt_codec_io *io, const float *values, size_t n)
{
    uint8_t *dst = io->dst;

    for (size_t i = 0; i < n; i++) {
        float x = values[i];

        if (io->add) {
            memcpy(&x, dst + 4 * i, 4);
            x += values[i];
        }
        memcpy(dst + 4 * i, &x, 4);
    }
}

enum hdt_status hdt_delta_decode(const struct hdt_codec_ops *inner, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, struct hdt_error *err)
{
    struct hdt_codec_spec plain = spec_without_delta(io->spec);
    struct hdt_codec_state *s = io->state;
    struct delta_head got, want;
    size_t slot;

    HDT_TRY(check_call(io, io->dst_len, err));
    if (io->src_len < HDT_DELTA_HEAD) {
        return hdt_error_set(err, HDT_EPROTO, "delta: a frame of %zu bytes has no head",
                             io->src_len);
    }
    memcpy(&got, io->src, sizeof(got));
    slot = slot_of(s, got.key);
    want = head_of(s, got.key, slot);
    if (got.visits != want.visits || got.kept != want.kept) {
        return hdt_error_set(err, HDT_EPROTO,
                             "delta: sample %" PRIu64 " was sent %u times before (kept: %u), here "
                             "it came %u times (kept: %u)",
                             got.key, got.visits, got.kept, want.visits, want.kept);
    }
    HDT_TRY(decode_inner(inner, ctx, &plain, (const uint8_t *)io->src + HDT_DELTA_HEAD,
                         io->src_len - HDT_DELTA_HEAD, s, err));
    HDT_TRY(check_change(s, HDT_EPROTO, err));
    if (got.kept) {
        keep(s, got.key, slot);
        give(io, held(s, slot), s->n);
    } else {
        give(io, s->scratch, s->n);
    }
    return HDT_OK;
}
