/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs on an accelerator: the checks of compress/codec.c, and which kernels make a frame. What
 * only the values can tell comes back with the report and is refused in the codec's own words.
 */
#include "config.h"

#include "compress/device.h"
#include "compress/quant_form.h"
#include "compress/sparse_values.h"

#include <string.h>

#define ALIGN ((uintptr_t)16)

bool hdt_codec_device_takes(const struct hdt_codec_spec *spec, enum hdt_dtype dtype)
{
    if (spec->flags & HDT_CODEC_DELTA) {
        return false;
    }
    switch (spec->worker) {
    case HDT_CODEC_NONE:
    case HDT_CODEC_TOPK:
        return dtype == HDT_DTYPE_F32;
    case HDT_CODEC_BF16:
    case HDT_CODEC_FP16:
    case HDT_CODEC_INT8:
    case HDT_CODEC_INT4:
    case HDT_CODEC_FP8:
        return dtype == HDT_DTYPE_F32 || dtype == HDT_DTYPE_BF16;
    default:
        return false;
    }
}

static enum hdt_status check_call(const struct hdt_codec_io *io, struct hdt_error *err)
{
    char text[HDT_CODEC_SPEC_TEXT];

    HDT_ASSERT(io->spec != NULL);
    if (!hdt_codec_device_takes(io->spec, io->dtype)) {
        return hdt_error_set(err, HDT_ENOTSUP, "codec %s of %s values has no form on the device",
                             hdt_codec_spec_format(io->spec, text), hdt_dtype_name(io->dtype));
    }
    HDT_ASSERT(((uintptr_t)io->src | (uintptr_t)io->dst) % ALIGN == 0);
    return HDT_OK;
}

static enum hdt_cast_kind cast_kind(const struct hdt_codec_spec *spec)
{
    return spec->worker == HDT_CODEC_BF16 ? HDT_CAST_BF16 : HDT_CAST_F16;
}

static struct hdt_device_quant quant_of(const struct hdt_codec_spec *spec, size_t n)
{
    const struct hdt_quant_form f = hdt_quant_form_of(spec, (enum hdt_codec_id)spec->worker);

    return (struct hdt_device_quant){.kind = f.kind,
                                     .block = f.block,
                                     .params_len = f.params_len,
                                     .head_len = hdt_quant_head_len(&f, n),
                                     .rotate = f.rotate};
}

static struct hdt_topk topk_params(const struct hdt_codec_spec *spec)
{
    return (struct hdt_topk){.keep = spec->keep, .bits = spec->bits};
}

static struct hdt_device_topk topk_of(const struct hdt_codec_spec *spec, size_t n)
{
    const struct hdt_topk params = topk_params(spec);
    struct hdt_device_topk t = {.whole = hdt_topk_layout_of(&params, HDT_SPARSE_BLOCK),
                                .bits = spec->bits};

    if (n % HDT_SPARSE_BLOCK != 0) {
        t.rest = hdt_topk_layout_of(&params, n % HDT_SPARSE_BLOCK);
    }
    return t;
}

enum hdt_status hdt_codec_device_encode(const struct hdt_device_call *call,
                                        const struct hdt_codec_io *io, size_t *coded_len,
                                        struct hdt_error *err)
{
    const struct hdt_codec_ops *codec = hdt_codec_by_id(io->spec->worker);
    const struct hdt_device_codecs *codecs = call->codecs;
    struct hdt_device_in in = {
        .src = io->src, .dtype = io->dtype, .scratch = call->scratch, .report = call->report};
    struct hdt_device_quant quant;
    struct hdt_device_topk topk;
    struct hdt_random random;

    HDT_TRY(check_call(io, err));
    HDT_TRY(hdt_codec_bound(codec, io->spec, io->dtype, io->src_len, coded_len, err));
    if (io->dst_len < *coded_len) {
        return hdt_error_set(err, HDT_EINVAL,
                             "codec %s: room for %zu bytes is less than the %zu needed",
                             codec->name, io->dst_len, *coded_len);
    }
    in.n = io->src_len / hdt_dtype_size(io->dtype);
    if (io->spec->flags & HDT_CODEC_STOCHASTIC) {
        hdt_random_seed(&random, io->seed);
        in.random = &random;
    }
    switch (io->spec->worker) {
    case HDT_CODEC_NONE:
        codecs->look(call->stream, &in);
        if (io->dst) {
            codecs->copy(call->stream, io->src, io->src_len, io->dst);
        }
        break;
    case HDT_CODEC_BF16:
    case HDT_CODEC_FP16:
        codecs->cast_encode(call->stream, cast_kind(io->spec), &in, io->dst);
        break;
    case HDT_CODEC_TOPK:
        topk = topk_of(io->spec, in.n);
        codecs->topk_encode(call->stream, &topk, &in, call->residual, io->dst);
        break;
    default:
        quant = quant_of(io->spec, in.n);
        codecs->quant_encode(call->stream, &quant, &in, io->dst);
        break;
    }
    return HDT_OK;
}

enum hdt_status hdt_codec_device_encoded(const struct hdt_codec_io *io,
                                         const struct hdt_device_report *report,
                                         struct hdt_error *err)
{
    const enum hdt_codec_id id = (enum hdt_codec_id)io->spec->worker;

    if (io->guard) {
        *io->guard = report->guard;
    }
    switch (id) {
    case HDT_CODEC_INT8:
    case HDT_CODEC_INT4:
    case HDT_CODEC_FP8:
        return hdt_quant_check_guard(io->spec, id, &report->guard, err);
    case HDT_CODEC_TOPK:
        return hdt_topk_check_guard("top-k", &report->guard, err);
    default:
        return HDT_OK;
    }
}

static enum hdt_status check_decode(const struct hdt_codec_ops *codec,
                                    const struct hdt_codec_io *io, struct hdt_error *err)
{
    size_t bound;

    HDT_TRY(hdt_codec_bound(codec, io->spec, io->dtype, io->dst_len, &bound, err));
    if (io->src_len != bound) {
        return hdt_error_set(err, HDT_EPROTO,
                             "codec %s: %zu coded bytes do not fit %zu plain bytes of %s",
                             codec->name, io->src_len, io->dst_len, hdt_dtype_name(io->dtype));
    }
    if (io->add && io->dtype != HDT_DTYPE_F32) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s cannot add to values of %s", codec->name,
                             hdt_dtype_name(io->dtype));
    }
    return HDT_OK;
}

enum hdt_status hdt_codec_device_decode(const struct hdt_device_call *call,
                                        const struct hdt_codec_io *io, struct hdt_error *err)
{
    const struct hdt_codec_ops *codec = hdt_codec_by_id(io->spec->worker);
    const struct hdt_device_codecs *codecs = call->codecs;
    struct hdt_device_out out = {.dst = io->dst,
                                 .emit = io->dtype == HDT_DTYPE_BF16 ? HDT_EMIT_BF16
                                         : io->add                   ? HDT_EMIT_ADD
                                                                     : HDT_EMIT_F32,
                                 .report = call->report};
    struct hdt_device_quant quant;
    struct hdt_device_topk topk;

    HDT_TRY(check_call(io, err));
    HDT_TRY(check_decode(codec, io, err));
    out.n = io->dst_len / hdt_dtype_size(io->dtype);
    switch (io->spec->worker) {
    case HDT_CODEC_NONE:
        if (io->add) {
            codecs->add(call->stream, io->src, out.n, io->dst);
        } else {
            codecs->copy(call->stream, io->src, io->src_len, io->dst);
        }
        break;
    case HDT_CODEC_BF16:
    case HDT_CODEC_FP16:
        codecs->cast_decode(call->stream, cast_kind(io->spec), io->src, &out);
        break;
    case HDT_CODEC_TOPK:
        topk = topk_of(io->spec, out.n);
        codecs->topk_decode(call->stream, &topk, io->src, &out);
        break;
    default:
        quant = quant_of(io->spec, out.n);
        codecs->quant_decode(call->stream, &quant, io->src, &out);
        break;
    }
    return HDT_OK;
}

enum hdt_status hdt_codec_device_decoded(const struct hdt_codec_io *io,
                                         const struct hdt_device_report *report,
                                         struct hdt_error *err)
{
    const struct hdt_topk params = topk_params(io->spec);
    const size_t block = (size_t)(report->bad / 2);

    switch (io->spec->worker) {
    case HDT_CODEC_INT8:
    case HDT_CODEC_INT4:
    case HDT_CODEC_FP8:
        return report->bad == HDT_DEVICE_GOOD
                   ? HDT_OK
                   : hdt_quant_refuse_block((enum hdt_codec_id)io->spec->worker, block, err);
    case HDT_CODEC_TOPK:
        if (report->bad == HDT_DEVICE_GOOD) {
            return HDT_OK;
        }
        if (report->bad % 2 != 0) {
            return hdt_error_set(err, HDT_EPROTO,
                                 "top-k: the values of block %zu are negative magnitudes or not "
                                 "finite",
                                 block);
        }
        return hdt_topk_refuse_block(&params, io->dst_len / 4, block, err);
    default:
        return HDT_OK;
    }
}
