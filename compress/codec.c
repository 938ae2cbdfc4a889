/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of codecs and the checks that every call shares. A codec's
 * own function runs only after dtype, lengths and room were found to fit, so that none of them has
 * to be written five times, or forgotten once.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "compress/delta.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

HDT_STATIC_ASSERT(sizeof(size_t) == 8, "HDT_CODEC_PLAIN_MAX needs 64-bit sizes");

static const struct hdt_codec_ops *const codecs[HDT_CODEC_COUNT] = {
    [HDT_CODEC_NONE] = &hdt_codec_none,       [HDT_CODEC_BF16] = &hdt_codec_bf16,
    [HDT_CODEC_INT8] = &hdt_codec_int8,       [HDT_CODEC_LOSSLESS] = &hdt_codec_lossless,
    [HDT_CODEC_TOPK] = &hdt_codec_topk,       [HDT_CODEC_RANDK] = &hdt_codec_randk,
    [HDT_CODEC_LOWRANK] = &hdt_codec_lowrank,
};

const struct hdt_codec_ops *hdt_codec_by_id(unsigned id)
{
    return id < HDT_CODEC_COUNT ? codecs[id] : NULL;
}

const struct hdt_codec_ops *hdt_codec_spec_worker(const struct hdt_codec_spec *spec)
{
    return hdt_codec_by_id(spec->worker);
}

const struct hdt_codec_ops *hdt_codec_spec_gateway(const struct hdt_codec_spec *spec)
{
    return hdt_codec_by_id(spec->gateway);
}

bool hdt_codec_spec_has_state(const struct hdt_codec_spec *spec)
{
    return hdt_codec_spec_worker(spec)->has_state || (spec->flags & HDT_CODEC_DELTA) != 0;
}

enum hdt_dtype hdt_codec_coded_dtype(const struct hdt_codec_ops *codec, enum hdt_dtype dtype)
{
    return codec->coded_dtype == HDT_DTYPE_NONE ? dtype : codec->coded_dtype;
}

enum hdt_status hdt_codec_ctx_new(size_t chunk_cap, struct hdt_codec_ctx **ctx,
                                  struct hdt_error *err)
{
    struct hdt_codec_ctx *c;
    enum hdt_status status;

    if (chunk_cap > HDT_CODEC_CHUNK_MAX) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot make codec context: chunks of %zu bytes are longer than %zu",
                             chunk_cap, HDT_CODEC_CHUNK_MAX);
    }
    c = calloc(1, sizeof(*c));
    if (!c) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot make codec context: out of memory");
    }
    c->kernels = hdt_kernels_best();
    c->chunk_cap = chunk_cap;
    if (chunk_cap > 0) {
        status = hdt_lossless_ctx_init(c, err);
        if (status != HDT_OK) {
            free(c);
            return status;
        }
    }
    *ctx = c;
    return HDT_OK;
}

void hdt_codec_ctx_free(struct hdt_codec_ctx *ctx)
{
    if (ctx) {
        hdt_lossless_ctx_release(ctx);
        free(ctx);
    }
}

/* What is true of a plain length at any codec. */
static enum hdt_status check_plain(const struct hdt_codec_ops *codec, enum hdt_dtype dtype,
                                   size_t plain_len, struct hdt_error *err)
{
    if ((unsigned)dtype >= HDT_DTYPE_COUNT || !(codec->dtypes >> dtype & 1)) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s does not take %s values", codec->name,
                             hdt_dtype_name(dtype));
    }
    if (plain_len > HDT_CODEC_PLAIN_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s: %zu bytes are above the limit of %zu",
                             codec->name, plain_len, HDT_CODEC_PLAIN_MAX);
    }
    if (!(codec->caps & HDT_CODEC_AT_GATEWAY) && plain_len % hdt_dtype_size(dtype) != 0) {
        return hdt_error_set(err, HDT_EINVAL,
                             "codec %s: %zu bytes are no whole number of %s values", codec->name,
                             plain_len, hdt_dtype_name(dtype));
    }
    return HDT_OK;
}

enum hdt_status hdt_codec_bound(const struct hdt_codec_ops *codec,
                                const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                                size_t plain_len, size_t *bound, struct hdt_error *err)
{
    struct hdt_codec_spec plain;

    HDT_TRY(check_plain(codec, dtype, plain_len, err));
    if (!spec) {
        plain = hdt_codec_spec_default(codec->id);
        spec = &plain;
    }
    *bound = codec->bound(spec, dtype, plain_len);
    *bound += spec->flags & HDT_CODEC_DELTA ? HDT_DELTA_HEAD : 0;
    return HDT_OK;
}

static enum hdt_status check_state(const struct hdt_codec_ops *codec, const struct hdt_codec_io *io,
                                   struct hdt_error *err)
{
    if (!io->state && (codec->has_state || (io->spec && io->spec->flags & HDT_CODEC_DELTA))) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s needs the feedback of its flow",
                             codec->name);
    }
    return HDT_OK;
}

/* An empty tensor may come with NULL; codecs may then still add 0 to the pointer. */
static struct hdt_codec_io without_null(const struct hdt_codec_ops *codec,
                                        const struct hdt_codec_io *io, uint8_t *nothing,
                                        struct hdt_codec_spec *plain)
{
    struct hdt_codec_io whole = *io;

    if (!io->spec) {
        *plain = hdt_codec_spec_default(codec->id);
        whole.spec = plain;
    }
    whole.src = io->src ? io->src : nothing;
    whole.dst = io->dst ? io->dst : nothing;
    return whole;
}

enum hdt_status hdt_codec_encode(const struct hdt_codec_ops *codec, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, size_t *coded_len,
                                 struct hdt_error *err)
{
    struct hdt_codec_io whole;
    struct hdt_codec_spec plain;
    uint8_t nothing = 0;
    size_t bound;

    if (io->guard) {
        memset(io->guard, 0, sizeof(*io->guard));
    }
    HDT_TRY(hdt_codec_bound(codec, io->spec, io->dtype, io->src_len, &bound, err));
    if (io->dst_len < bound) {
        return hdt_error_set(err, HDT_EINVAL,
                             "codec %s: room for %zu bytes is less than the %zu needed",
                             codec->name, io->dst_len, bound);
    }
    HDT_TRY(check_state(codec, io, err));
    whole = without_null(codec, io, &nothing, &plain);
    if (whole.spec->flags & HDT_CODEC_DELTA) {
        return hdt_delta_encode(codec, ctx, &whole, coded_len, err);
    }
    return codec->encode(ctx, &whole, coded_len, err);
}

enum hdt_status hdt_codec_decode(const struct hdt_codec_ops *codec, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, struct hdt_error *err)
{
    struct hdt_codec_io whole;
    struct hdt_codec_spec plain;
    uint8_t nothing = 0;
    size_t bound;

    HDT_TRY(hdt_codec_bound(codec, io->spec, io->dtype, io->dst_len, &bound, err));
    if (io->src_len > bound || (codec->plain_len && io->src_len != bound)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "codec %s: %zu coded bytes do not fit %zu plain bytes of %s",
                             codec->name, io->src_len, io->dst_len, hdt_dtype_name(io->dtype));
    }
    if (io->spec && io->spec->flags & HDT_CODEC_DELTA) {
        whole = without_null(codec, io, &nothing, &plain);
        return hdt_delta_decode(codec, ctx, &whole, err);
    }
    if (io->add && (io->dtype != HDT_DTYPE_F32 || !(codec->caps & HDT_CODEC_ADDS))) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s cannot add to values of %s", codec->name,
                             hdt_dtype_name(io->dtype));
    }
    whole = without_null(codec, io, &nothing, &plain);
    return codec->decode(ctx, &whole, err);
}

double hdt_codec_guard_error(const struct hdt_codec_guard *guard)
{
    return guard->ref_sq > 0 ? sqrt(guard->err_sq / guard->ref_sq) : 0.0;
}

void hdt_codec_guard_add(struct hdt_codec_guard *to, const struct hdt_codec_guard *from)
{
    to->n += from->n;
    to->n_nonfinite += from->n_nonfinite;
    to->max_abs = to->max_abs < from->max_abs ? from->max_abs : to->max_abs;
    to->err_sq += from->err_sq;
    to->ref_sq += from->ref_sq;
}
