/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done to the values of a tensor on its way: codecs, which are defined for floats, and
 * sums.
 *
 * Elements of 16 bits are widened to floats for both. The loops are the kernels of the codecs,
 * which give the same bits on every processor; this file is compiled without contraction, like
 * them.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "compress/kernels.h"

#include <stdio.h>
#include <string.h>

#define BLOCK ((size_t)4096) /* elements: stays in the first cache */

const struct hdt_codec_spec hdt_piece_plain = {.worker = HDT_CODEC_NONE};

static enum hdt_status codec_refuse(const char *text, enum hdt_dtype type,
                                    const struct hdt_codec_spec *spec, struct hdt_error *err)
{
    if (spec->flags & HDT_CODEC_DELTA) {
        hdt_error_set(err, HDT_EINVAL, "codec %s is for jobs only", text);
        hdt_error_hint(err,
                       "delta: needs to know which sample a tensor is of, which a channel does "
                       "not; leave it out");
        return HDT_EINVAL;
    }
    if (spec->worker != HDT_CODEC_NONE && type != HDT_DTYPE_F32 && type != HDT_DTYPE_BF16 &&
        type != HDT_DTYPE_F16) {
        hdt_error_set(err, HDT_EINVAL, "codec %s is not for tensors of %s", text,
                      hdt_dtype_name(type));
        hdt_error_hint(err, "codecs none and lossless carry every type");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

enum hdt_status hdt_piece_codec(const char *text, enum hdt_dtype type, struct hdt_codec_spec *codec,
                                struct hdt_error *err)
{
    struct hdt_codec_spec spec;

    HDT_TRY(hdt_codec_spec_parse(text ? text : "none", &spec, err));
    HDT_TRY(codec_refuse(text, type, &spec, err));
    *codec = spec;
    if ((spec.worker == HDT_CODEC_BF16 && type == HDT_DTYPE_BF16) ||
        (spec.worker == HDT_CODEC_FP16 && type == HDT_DTYPE_F16)) {
        *codec = hdt_piece_plain; /* it is so already */
        codec->gateway = spec.gateway;
    }
    return HDT_OK;
}

bool hdt_piece_is_plain(const struct hdt_codec_spec *codec)
{
    return codec->worker == HDT_CODEC_NONE;
}

void hdt_piece_content(const struct hdt_codec_spec *codec, enum hdt_dtype type,
                       char text[HDT_CHANNEL_CONTENT_CAP])
{
    char name[HDT_CODEC_SPEC_TEXT];

    text[0] = '\0';
    if (!hdt_piece_is_plain(codec)) {
        snprintf(text, HDT_CHANNEL_CONTENT_CAP, "%s by %s", hdt_dtype_name(type),
                 hdt_codec_spec_format(codec, name));
    }
}

size_t hdt_piece_max(const struct hdt_codec_spec *codec, enum hdt_dtype type, size_t bytes)
{
    const size_t grain = 4096;
    size_t n = CHAN_PIECE_MAX;

    if (hdt_piece_is_plain(codec)) {
        return bytes / hdt_dtype_size(type);
    }
    while (n > grain && hdt_piece_bytes(codec, type, n) > bytes) {
        n -= grain;
    }
    return n;
}

size_t hdt_piece_bytes(const struct hdt_codec_spec *codec, enum hdt_dtype type, size_t n)
{
    return hdt_piece_is_plain(codec)
               ? n * hdt_dtype_size(type)
               : hdt_codec_spec_worker(codec)->bound(codec, HDT_DTYPE_F32, 4 * n);
}

enum hdt_dtype hdt_piece_dtype(const struct hdt_codec_spec *codec, enum hdt_dtype type)
{
    return hdt_piece_is_plain(codec) ? type : hdt_codec_spec_worker(codec)->coded_dtype;
}

void hdt_piece_widen(enum hdt_dtype type, const void *src, size_t n, float *dst)
{
    const struct hdt_kernels *k = hdt_kernels_best();

    switch (type) {
    case HDT_DTYPE_BF16:
        k->bf16_decode(src, n, (uint8_t *)dst);
        return;
    case HDT_DTYPE_F16:
        k->f16_decode(src, n, (uint8_t *)dst);
        return;
    default:
        memcpy(dst, src, 4 * n);
    }
}

void hdt_piece_narrow(enum hdt_dtype type, const float *src, size_t n, void *dst)
{
    const struct hdt_kernels *k = hdt_kernels_best();

    switch (type) {
    case HDT_DTYPE_BF16:
        k->bf16_encode((const uint8_t *)src, n, dst);
        return;
    case HDT_DTYPE_F16:
        k->f16_encode((const uint8_t *)src, n, dst);
        return;
    default:
        memcpy(dst, src, 4 * n);
    }
}

bool hdt_piece_encode(const struct chan_numeric *num, const struct hdt_codec_spec *codec,
                      enum hdt_dtype type, const void *src, size_t n, void *dst, size_t *len)
{
    struct hdt_codec_guard guard = {0};
    struct hdt_codec_io io = {.spec = codec,
                              .src = src,
                              .src_len = 4 * n,
                              .dst = dst,
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard,
                              .state = num->state,
                              .seed = num->seed};
    enum hdt_status status;

    if (hdt_piece_is_plain(codec)) {
        *len = n * hdt_dtype_size(type);
        memcpy(dst, src, *len);
        return true;
    }
    if (type != HDT_DTYPE_F32) {
        hdt_piece_widen(type, src, n, num->scratch);
        io.src = num->scratch;
    }
    io.dst_len = hdt_piece_bytes(codec, type, n);
    status = hdt_codec_encode(hdt_codec_spec_worker(codec), num->ctx, &io, len, NULL);
    if (num->guard) {
        hdt_codec_guard_add(num->guard, &guard);
    }
    return status == HDT_OK;
}

enum hdt_status hdt_piece_decode(const struct chan_numeric *num, const struct hdt_codec_spec *codec,
                                 enum hdt_dtype type, const void *src, size_t len, size_t n,
                                 void *dst, struct hdt_error *err)
{
    const struct hdt_codec_ops *ops = hdt_codec_spec_worker(codec);
    char text[HDT_CODEC_SPEC_TEXT];
    const struct hdt_codec_io io = {.spec = codec,
                                    .src = src,
                                    .src_len = len,
                                    .dst = type == HDT_DTYPE_F32 ? dst : num->scratch,
                                    .dst_len = 4 * n,
                                    .dtype = HDT_DTYPE_F32};

    if (len != hdt_piece_bytes(codec, type, n)) {
        return hdt_error_set(err, HDT_EPROTO, "%zu bytes came for %zu elements of %s by codec %s",
                             len, n, hdt_dtype_name(type), hdt_codec_spec_format(codec, text));
    }
    if (hdt_piece_is_plain(codec)) {
        memcpy(dst, src, len);
        return HDT_OK;
    }
    HDT_TRY(hdt_codec_decode(ops, num->ctx, &io, err));
    if (type != HDT_DTYPE_F32) {
        hdt_piece_narrow(type, num->scratch, n, dst);
    }
    return HDT_OK;
}

void hdt_piece_add(enum hdt_dtype type, const void *src, size_t n, bool first, float *sum,
                   float *scratch)
{
    const struct hdt_kernels *k = hdt_kernels_best();
    const size_t size = hdt_dtype_size(type);

    if (first) {
        hdt_piece_widen(type, src, n, sum);
        return;
    }
    if (type == HDT_DTYPE_F32) {
        k->add((const uint8_t *)sum, src, n, (uint8_t *)sum);
        return;
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t len = n - i < BLOCK ? n - i : BLOCK;

        hdt_piece_widen(type, (const uint8_t *)src + i * size, len, scratch);
        k->add((const uint8_t *)(sum + i), (const uint8_t *)scratch, len, (uint8_t *)(sum + i));
    }
}
