/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backend_cuda.so, its one symbol. */
#include "config.h"

#include "runtime/cuda/cuda_codecs.h"
#include "runtime/cuda/cuda_device.h"

static const struct hdt_backend cuda_backend = {
    .abi = HDT_BACKEND_ABI,
    .caps = HDT_BACKEND_DETERMINISTIC | HDT_BACKEND_ASYNC,
    .name = "cuda",
    .about = "NVIDIA devices, by the CUDA runtime",
    .device_count = hdt_cuda_device_count,
    .device_open = hdt_cuda_device_open,
    .device_close = hdt_cuda_device_close,
    .device_info = hdt_cuda_device_info,
    .alloc = hdt_cuda_alloc,
    .free = hdt_cuda_free,
    .host_alloc = hdt_cuda_host_alloc,
    .host_free = hdt_cuda_host_free,
    .host_register = hdt_cuda_host_register,
    .host_unregister = hdt_cuda_host_unregister,
    .stream_new = hdt_cuda_stream_new,
    .stream_free = hdt_cuda_stream_free,
    .stream_wait = hdt_cuda_stream_wait,
    .event_new = hdt_cuda_event_new,
    .event_free = hdt_cuda_event_free,
    .event_record = hdt_cuda_event_record,
    .event_wait = hdt_cuda_event_wait,
    .event_done = hdt_cuda_event_done,
    .copy = hdt_cuda_copy,
    .ops = &hdt_cuda_ops,
    .mixed = &hdt_cuda_mixed_ops,
    .fp8 = &hdt_cuda_fp8_ops,
    .codecs = &hdt_cuda_codecs,
};

extern const struct hdt_backend *const hdt_backend_module;
__attribute__((visibility("default"))) const struct hdt_backend *const hdt_backend_module =
    &cuda_backend;
