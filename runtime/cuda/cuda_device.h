/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_DEVICE_H
#define HDT_RUNTIME_CUDA_CUDA_DEVICE_H

/*
 * Inside of the cuda backend. Only kernels and their launchers are CUDA C++ (*.cu); all else is C
 * on the CUDA runtime. The module needs libcudart and libcublasLt to be loaded, and no driver: that
 * is opened by the runtime when the first device is asked for.
 *
 * The runtime keeps one current device per thread, so every function that a caller may enter makes
 * its device current first.
 */
#include "runtime/backend.h"
#include "runtime/cuda/cuda_limit.h"
#include "runtime/cuda/cuda_pool.h"

#include <cuda_runtime_api.h>

struct hdt_cuda_gemms;

struct hdt_device {
    int idx;
    struct hdt_device_info info;
    struct hdt_cuda_limit *limit; /* where streams are made; NULL: on all of the device */
    struct hdt_cuda_gemms *gemms;
    struct hdt_cuda_pool pool;
};

struct hdt_stream {
    struct hdt_device *device;
    cudaStream_t handle;
    struct hdt_error error; /* the first failure, which sticks; status HDT_OK: none */
    double *reductions;     /* device memory, HDT_CUDA_REDUCTIONS of them */
    void *workspace;        /* of matrix products */
    size_t workspace_bytes;
    void *scratch; /* of one op at a time */
    size_t scratch_bytes;
};

extern const struct hdt_ops hdt_cuda_ops;
extern const struct hdt_mixed_ops hdt_cuda_mixed_ops;
extern const struct hdt_fp8_ops hdt_cuda_fp8_ops;

/* Fill *err for a failed call of the runtime: "cannot <what>: <cause>". The runtime's own note of
 * the failure is cleared, so that no later call reports it again. */
enum hdt_status hdt_cuda_error(cudaError_t code, const char *what, struct hdt_error *err);

/* Make the device current for this thread. */
enum hdt_status hdt_cuda_enter(const struct hdt_device *device, struct hdt_error *err);

/* Whether work can be queued: makes the device current; false once the stream has failed. */
bool hdt_cuda_stream_enter(struct hdt_stream *s);

/* Take the result of queueing `what`; a failure sticks to the stream. */
void hdt_cuda_stream_result(struct hdt_stream *s, cudaError_t code, const char *what);

/* Device memory of the stream, at least so many bytes, for matrix products; and for what one op
 * keeps between its kernels. They grow when an op needs more than any before (a first run of each
 * shape, then no more), and are freed with the stream. False, NULL: there was none; sticks. */
bool hdt_cuda_workspace(struct hdt_stream *s, size_t bytes);
void *hdt_cuda_scratch(struct hdt_stream *s, size_t bytes);

/* The members of the table. See struct hdt_backend. */
enum hdt_status hdt_cuda_device_count(int *n_devices, struct hdt_error *err);
enum hdt_status hdt_cuda_device_open(const struct hdt_device_conf *conf, struct hdt_device **device,
                                     struct hdt_error *err);
void hdt_cuda_device_close(struct hdt_device *device);
void hdt_cuda_device_info(struct hdt_device *device, struct hdt_device_info *info);

enum hdt_status hdt_cuda_alloc(struct hdt_device *device, size_t bytes, void **mem,
                               struct hdt_error *err);
void hdt_cuda_free(struct hdt_device *device, void *mem);
enum hdt_status hdt_cuda_host_alloc(struct hdt_device *device, size_t bytes, void **mem,
                                    struct hdt_error *err);
void hdt_cuda_host_free(struct hdt_device *device, void *mem);
enum hdt_status hdt_cuda_host_register(struct hdt_device *device, void *mem, size_t bytes,
                                       struct hdt_error *err);
void hdt_cuda_host_unregister(struct hdt_device *device, void *mem);

enum hdt_status hdt_cuda_stream_new(struct hdt_device *device, struct hdt_stream **stream,
                                    struct hdt_error *err);
void hdt_cuda_stream_free(struct hdt_stream *stream);
enum hdt_status hdt_cuda_stream_wait(struct hdt_stream *stream, struct hdt_error *err);

enum hdt_status hdt_cuda_event_new(struct hdt_device *device, struct hdt_event **event,
                                   struct hdt_error *err);
void hdt_cuda_event_free(struct hdt_event *event);
void hdt_cuda_event_record(struct hdt_event *event, struct hdt_stream *stream);
void hdt_cuda_event_wait(struct hdt_event *event, struct hdt_stream *stream);
bool hdt_cuda_event_done(struct hdt_event *event);

void hdt_cuda_copy(struct hdt_stream *stream, void *dst, const void *src, size_t bytes,
                   enum hdt_copy_kind kind);

#endif /* HDT_RUNTIME_CUDA_CUDA_DEVICE_H */
