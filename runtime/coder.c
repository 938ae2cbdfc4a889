/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/coder.h"

#include "compress/device.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>

/* What a frame of a codec of the device may be longer than its fp32 tensor: parameters of a block
 * and what fills them up, of a tensor of few values. */
#define CODED_MORE ((size_t)4096)

struct hdt_coder {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_stream *stream;
    size_t tensor_bytes;
    struct hdt_device_call call;
    void *coded;                           /* device: a frame */
    struct hdt_device_report *report_host; /* pinned */
    void *staging;                         /* pinned: a tensor, for codecs of the host */
};

static size_t coded_cap(size_t tensor_bytes)
{
    return tensor_bytes + CODED_MORE;
}

uint64_t hdt_coder_bytes(const struct hdt_backend *backend, size_t tensor_bytes)
{
    return backend->codecs ? coded_cap(tensor_bytes) + backend->codecs->scratch_bytes +
                                 sizeof(struct hdt_device_report)
                           : 0;
}

static enum hdt_status device_prepare(struct hdt_coder *c, struct hdt_error *err)
{
    const struct hdt_backend *b = c->backend;
    const size_t scratch_bytes = b->codecs->scratch_bytes;

    c->call = (struct hdt_device_call){.codecs = b->codecs, .stream = c->stream};
    HDT_TRY(b->alloc(c->device, coded_cap(c->tensor_bytes), &c->coded, err));
    HDT_TRY(b->alloc(c->device, scratch_bytes, &c->call.scratch, err));
    HDT_TRY(b->alloc(c->device, sizeof(*c->call.report), (void **)&c->call.report, err));
    HDT_TRY(b->host_alloc(c->device, sizeof(*c->report_host), (void **)&c->report_host, err));
    b->ops->zero(c->stream, c->call.scratch, scratch_bytes);
    return b->stream_wait(c->stream, err);
}

enum hdt_status hdt_coder_new(const struct hdt_backend *backend, struct hdt_device *device,
                              size_t tensor_bytes, struct hdt_coder **coder, struct hdt_error *err)
{
    struct hdt_coder *c = hdt_calloc(1, sizeof(*c));
    enum hdt_status status;

    c->backend = backend;
    c->device = device;
    c->tensor_bytes = tensor_bytes;
    status = backend->stream_new(device, &c->stream, err);
    if (status == HDT_OK) {
        status = backend->host_alloc(device, tensor_bytes, &c->staging, err);
    }
    if (status == HDT_OK && backend->codecs) {
        status = device_prepare(c, err);
    }
    if (status != HDT_OK) {
        hdt_coder_free(c);
        return status;
    }
    *coder = c;
    return HDT_OK;
}

void hdt_coder_free(struct hdt_coder *coder)
{
    if (!coder) {
        return;
    }
    coder->backend->host_free(coder->device, coder->staging);
    coder->backend->host_free(coder->device, coder->report_host);
    coder->backend->free(coder->device, coder->call.report);
    coder->backend->free(coder->device, coder->call.scratch);
    coder->backend->free(coder->device, coder->coded);
    coder->backend->stream_free(coder->stream);
    free(coder);
}

/* What has state keeps it in host memory, to be saved with checkpoints. */
bool hdt_coder_is_device(const struct hdt_coder *coder, const struct hdt_codec_spec *spec)
{
    return coder->call.codecs && !hdt_codec_spec_has_state(spec) &&
           hdt_codec_device_takes(spec, HDT_DTYPE_F32);
}

static const struct hdt_codec_ops *codec_of(const struct hdt_codec_io *io)
{
    HDT_ASSERT(io->spec && io->dtype == HDT_DTYPE_F32);
    return hdt_codec_spec_worker(io->spec);
}

/* ---- by the host ---- */

static enum hdt_status host_encode(struct hdt_coder *c, struct hdt_codec_ctx *ctx,
                                   const struct hdt_codec_io *io, size_t *coded_len,
                                   struct hdt_error *err)
{
    struct hdt_codec_io host = *io;

    HDT_ASSERT(io->src_len <= c->tensor_bytes);
    c->backend->copy(c->stream, c->staging, io->src, io->src_len, HDT_COPY_FROM_DEVICE);
    HDT_TRY(c->backend->stream_wait(c->stream, err));
    host.src = c->staging;
    return hdt_codec_encode(codec_of(io), ctx, &host, coded_len, err);
}

static enum hdt_status host_decode(struct hdt_coder *c, struct hdt_codec_ctx *ctx,
                                   const struct hdt_codec_io *io, struct hdt_error *err)
{
    struct hdt_codec_io host = *io;

    HDT_ASSERT(io->dst_len <= c->tensor_bytes);
    host.dst = c->staging;
    if (io->add) {
        c->backend->copy(c->stream, c->staging, io->dst, io->dst_len, HDT_COPY_FROM_DEVICE);
        HDT_TRY(c->backend->stream_wait(c->stream, err));
    }
    HDT_TRY(hdt_codec_decode(codec_of(io), ctx, &host, err));
    c->backend->copy(c->stream, io->dst, c->staging, io->dst_len, HDT_COPY_TO_DEVICE);
    return c->backend->stream_wait(c->stream, err);
}

/* ---- by the device ---- */

/* The report's copy is queued behind all else, so that one wait is enough. */
static enum hdt_status report_wait(struct hdt_coder *c, struct hdt_error *err)
{
    c->backend->copy(c->stream, c->report_host, c->call.report, sizeof(*c->report_host),
                     HDT_COPY_FROM_DEVICE);
    return c->backend->stream_wait(c->stream, err);
}

/* A frame of `none` is the tensor: it crosses without a copy on the device. */
static bool is_as_it_is(const struct hdt_codec_io *io)
{
    return io->spec->worker == HDT_CODEC_NONE && !io->add;
}

static enum hdt_status device_encode(struct hdt_coder *c, const struct hdt_codec_io *io,
                                     size_t *coded_len, struct hdt_error *err)
{
    struct hdt_codec_io device = *io;
    size_t len = 0;

    HDT_ASSERT(io->src_len <= c->tensor_bytes);
    device.dst = is_as_it_is(io) ? NULL : c->coded;
    HDT_TRY(hdt_codec_device_encode(&c->call, &device, &len, err));
    c->backend->copy(c->stream, io->dst, is_as_it_is(io) ? io->src : c->coded, len,
                     HDT_COPY_FROM_DEVICE);
    HDT_TRY(report_wait(c, err));
    HDT_TRY(hdt_codec_device_encoded(io, c->report_host, err));
    *coded_len = len;
    return HDT_OK;
}

static enum hdt_status device_decode(struct hdt_coder *c, const struct hdt_codec_io *io,
                                     struct hdt_error *err)
{
    struct hdt_codec_io device = *io;

    if (io->src_len > coded_cap(c->tensor_bytes)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "codec %s: %zu coded bytes do not fit %zu plain bytes of f32",
                             codec_of(io)->name, io->src_len, io->dst_len);
    }
    if (is_as_it_is(io) && io->src_len == io->dst_len) {
        c->backend->copy(c->stream, io->dst, io->src, io->src_len, HDT_COPY_TO_DEVICE);
        return c->backend->stream_wait(c->stream, err);
    }
    device.src = c->coded;
    c->backend->copy(c->stream, c->coded, io->src, io->src_len, HDT_COPY_TO_DEVICE);
    HDT_TRY(hdt_codec_device_decode(&c->call, &device, err));
    HDT_TRY(report_wait(c, err));
    return hdt_codec_device_decoded(io, c->report_host, err);
}

/* Kernels read and write a tensor by 16 bytes. */
static bool is_for_device(const struct hdt_coder *coder, const struct hdt_codec_io *io,
                          const void *tensor)
{
    return hdt_coder_is_device(coder, io->spec) && (uintptr_t)tensor % 16 == 0;
}

enum hdt_status hdt_coder_encode(struct hdt_coder *coder, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, size_t *coded_len,
                                 struct hdt_error *err)
{
    return is_for_device(coder, io, io->src) ? device_encode(coder, io, coded_len, err)
                                             : host_encode(coder, ctx, io, coded_len, err);
}

enum hdt_status hdt_coder_decode(struct hdt_coder *coder, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, struct hdt_error *err)
{
    return is_for_device(coder, io, io->dst) ? device_decode(coder, io, err)
                                             : host_decode(coder, ctx, io, err);
}
