/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and copies of the cuda backend. */
#include "config.h"

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_kernels.h"
#include "src/base/buf.h"

#include <stdlib.h>

struct hdt_event {
    struct hdt_device *device;
    cudaEvent_t handle;
};

/* The runtime tells the device's number, whatever the stream is limited to. */
static _Thread_local int current_sms;

int hdt_cuda_current_sms(void)
{
    return current_sms;
}

bool hdt_cuda_stream_enter(struct hdt_stream *s)
{
    if (s->error.status == HDT_OK) {
        hdt_cuda_stream_result(s, cudaSetDevice(s->device->idx), "use the cuda device");
        current_sms = s->device->info.n_sms;
    }
    return s->error.status == HDT_OK;
}

void hdt_cuda_stream_result(struct hdt_stream *s, cudaError_t code, const char *what)
{
    if (code != cudaSuccess && s->error.status == HDT_OK) {
        hdt_cuda_error(code, what, &s->error);
    }
}

static bool memory_grow(struct hdt_stream *s, size_t bytes, void **mem, size_t *mem_bytes)
{
    struct hdt_error err = {0};
    void *more;

    if (bytes <= *mem_bytes) {
        return true;
    }
    if (hdt_cuda_alloc(s->device, bytes, &more, &err) != HDT_OK) {
        if (s->error.status == HDT_OK) {
            s->error = err;
        }
        return false;
    }
    hdt_cuda_free(s->device, *mem); /* work that is queued still finds it */
    *mem = more;
    *mem_bytes = bytes;
    return true;
}

bool hdt_cuda_workspace(struct hdt_stream *s, size_t bytes)
{
    return memory_grow(s, bytes, &s->workspace, &s->workspace_bytes);
}

void *hdt_cuda_scratch(struct hdt_stream *s, size_t bytes)
{
    return memory_grow(s, bytes, &s->scratch, &s->scratch_bytes) ? s->scratch : NULL;
}

static enum hdt_status handle_new(const struct hdt_device *device, cudaStream_t *handle,
                                  struct hdt_error *err)
{
    cudaError_t code;

    if (device->limit) {
        return hdt_cuda_limit_stream(device->limit, handle, err);
    }
    /* Not ordered with the default stream, which libraries use behind our back. */
    code = cudaStreamCreateWithFlags(handle, cudaStreamNonBlocking);
    return code == cudaSuccess ? HDT_OK : hdt_cuda_error(code, "make a cuda stream", err);
}

enum hdt_status hdt_cuda_stream_new(struct hdt_device *device, struct hdt_stream **stream,
                                    struct hdt_error *err)
{
    struct hdt_stream *s = hdt_calloc(1, sizeof(*s));
    enum hdt_status status;

    s->device = device;
    status =
        hdt_cuda_alloc(device, HDT_CUDA_REDUCTIONS * sizeof(double), (void **)&s->reductions, err);
    if (status != HDT_OK) {
        goto err_free;
    }
    status = handle_new(device, &s->handle, err);
    if (status != HDT_OK) {
        goto err_reductions;
    }
    hdt_cuda_stream_result(
        s, cudaMemsetAsync(s->reductions, 0, HDT_CUDA_SUMS * sizeof(double), s->handle),
        "clear a cuda stream's counters");
    *stream = s;
    return HDT_OK;
err_reductions:
    hdt_cuda_free(device, s->reductions);
err_free:
    free(s);
    return status;
}

void hdt_cuda_stream_free(struct hdt_stream *stream)
{
    if (!stream) {
        return;
    }
    if (hdt_cuda_enter(stream->device, NULL) == HDT_OK) {
        cudaStreamDestroy(stream->handle);
    }
    hdt_cuda_free(stream->device, stream->reductions);
    hdt_cuda_free(stream->device, stream->workspace);
    hdt_cuda_free(stream->device, stream->scratch);
    free(stream);
}

enum hdt_status hdt_cuda_stream_wait(struct hdt_stream *stream, struct hdt_error *err)
{
    /* Wait also after a failure: the host memory of copies that were queued before it is only
     * the caller's again when they are done. */
    cudaSetDevice(stream->device->idx);
    hdt_cuda_stream_result(stream, cudaStreamSynchronize(stream->handle), "run on the cuda device");
    if (stream->error.status != HDT_OK && err) {
        *err = stream->error;
    }
    return stream->error.status;
}

enum hdt_status hdt_cuda_event_new(struct hdt_device *device, struct hdt_event **event_out,
                                   struct hdt_error *err)
{
    struct hdt_event *event;
    cudaError_t code;

    HDT_TRY(hdt_cuda_enter(device, err));
    event = hdt_calloc(1, sizeof(*event));
    event->device = device;
    code = cudaEventCreateWithFlags(&event->handle, cudaEventDisableTiming);
    if (code != cudaSuccess) {
        free(event);
        return hdt_cuda_error(code, "make a cuda event", err);
    }
    *event_out = event;
    return HDT_OK;
}

void hdt_cuda_event_free(struct hdt_event *event)
{
    if (!event) {
        return;
    }
    if (hdt_cuda_enter(event->device, NULL) == HDT_OK) {
        cudaEventDestroy(event->handle);
    }
    free(event);
}

void hdt_cuda_event_record(struct hdt_event *event, struct hdt_stream *stream)
{
    if (hdt_cuda_stream_enter(stream)) {
        hdt_cuda_stream_result(stream, cudaEventRecord(event->handle, stream->handle),
                               "record a cuda event");
    }
}

void hdt_cuda_event_wait(struct hdt_event *event, struct hdt_stream *stream)
{
    if (hdt_cuda_stream_enter(stream)) {
        hdt_cuda_stream_result(stream, cudaStreamWaitEvent(stream->handle, event->handle, 0),
                               "wait for a cuda event");
    }
}

bool hdt_cuda_event_done(struct hdt_event *event)
{
    /* A failed device reaches nothing any more. "Done" then lets the caller go on to stream_wait,
     * which has the error; "not done" would keep it polling for ever. */
    return cudaSetDevice(event->device->idx) != cudaSuccess ||
           cudaEventQuery(event->handle) != cudaErrorNotReady;
}

void hdt_cuda_copy(struct hdt_stream *stream, void *dst, const void *src, size_t bytes,
                   enum hdt_copy_kind kind)
{
    static const enum cudaMemcpyKind kinds[] = {
        [HDT_COPY_TO_DEVICE] = cudaMemcpyHostToDevice,
        [HDT_COPY_FROM_DEVICE] = cudaMemcpyDeviceToHost,
        [HDT_COPY_ON_DEVICE] = cudaMemcpyDeviceToDevice,
    };

    HDT_ASSERT((unsigned)kind < sizeof(kinds) / sizeof(kinds[0]));
    if (bytes > 0 && hdt_cuda_stream_enter(stream)) {
        hdt_cuda_stream_result(stream,
                               cudaMemcpyAsync(dst, src, bytes, kinds[kind], stream->handle),
                               "copy to or from the cuda device");
    }
}
