/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the cuda backend, their memory and the host memory that they can reach. */
#include "config.h"

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_gemm.h"
#include "runtime/cuda/cuda_kernels.h"
#include "src/base/buf.h"

#include <stdio.h>
#include <stdlib.h>

/* Of a stream: sums of rows and heads, of the shapes that a device has room for. */
#define SCRATCH_BYTES ((size_t)16 << 20)

enum hdt_status hdt_cuda_error(cudaError_t code, const char *what, struct hdt_error *err)
{
    enum hdt_status status = code == cudaErrorMemoryAllocation ? HDT_ENOMEM : HDT_EIO;

    cudaGetLastError();
    return hdt_error_set(err, status, "cannot %s: %s (%s)", what, cudaGetErrorString(code),
                         cudaGetErrorName(code));
}

enum hdt_status hdt_cuda_enter(const struct hdt_device *device, struct hdt_error *err)
{
    cudaError_t code = cudaSetDevice(device->idx);

    return code == cudaSuccess ? HDT_OK : hdt_cuda_error(code, "use the cuda device", err);
}

/* Versions as the runtime counts them: 13000 is 13.0. */
static int version_major(int version)
{
    return version / 1000;
}

static int version_minor(int version)
{
    return version % 1000 / 10;
}

/* The runtime says "insufficient driver" for one that is too old and for none. */
static enum hdt_status driver_refuse(struct hdt_error *err)
{
    int driver = 0, runtime = 0;
    enum hdt_status status;

    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0) {
        status = hdt_error_set(err, HDT_ENOTSUP,
                               "cannot use cuda devices: no NVIDIA driver is here (libcuda.so.1: "
                               "not found)");
    } else {
        status = hdt_error_set(err, HDT_ENOTSUP,
                               "cannot use cuda devices: the driver is for CUDA %d.%d, this module "
                               "needs %d.%d",
                               version_major(driver), version_minor(driver), version_major(runtime),
                               version_minor(runtime));
    }
    hdt_error_hint(err, "install an NVIDIA driver for CUDA %d or newer, or choose backend cpu",
                   version_major(runtime));
    return status;
}

enum hdt_status hdt_cuda_device_count(int *n_devices, struct hdt_error *err)
{
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);

    if (code == cudaErrorNoDevice) {
        cudaGetLastError();
        n = 0;
    } else if (code == cudaErrorInsufficientDriver) {
        return driver_refuse(err);
    } else if (code != cudaSuccess) {
        return hdt_cuda_error(code, "count cuda devices", err);
    }
    *n_devices = n;
    return HDT_OK;
}

/* "NVIDIA H100 80GB HBM3 (compute 9.0, 132 multiprocessors, driver 13.0, runtime 13.0)"; of a part
 * "16 of 132 multiprocessors". */
static enum hdt_status info_read(int idx, const struct hdt_cuda_limit *limit,
                                 struct hdt_device_info *info, struct hdt_error *err)
{
    struct cudaDeviceProp prop;
    struct hdt_buf name = {0};
    int driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceProperties(&prop, idx);

    if (code != cudaSuccess) {
        return hdt_cuda_error(code, "read the properties of a cuda device", err);
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    hdt_buf_appendf(&name, "%.31s (compute %d.%d, ", prop.name, prop.major, prop.minor);
    if (limit) {
        hdt_buf_appendf(&name, "%d of ", hdt_cuda_limit_sms(limit));
    }
    hdt_buf_appendf(&name, "%d multiprocessors, driver %d.%d, runtime %d.%d)",
                    prop.multiProcessorCount, version_major(driver), version_minor(driver),
                    version_major(runtime), version_minor(runtime));
    *info = (struct hdt_device_info){.memory_bytes = prop.totalGlobalMem,
                                     .stream_bytes = HDT_CUDA_WORKSPACE + SCRATCH_BYTES,
                                     .n_sms = limit ? hdt_cuda_limit_sms(limit)
                                                    : prop.multiProcessorCount,
                                     .has_fp8 = 10 * prop.major + prop.minor >= 89};
    snprintf(info->name, sizeof(info->name), "%s", hdt_buf_str(&name));
    hdt_buf_release(&name);
    return HDT_OK;
}

/* Start the driver's context, and see whether the kernels of this build run on the device. Waits
 * sleep rather than spin: the cores are the gateway's and the codecs' too. */
static enum hdt_status device_start(struct hdt_device *device, struct hdt_error *err)
{
    cudaError_t code;
    enum hdt_status status;

    HDT_TRY(hdt_cuda_enter(device, err));
    code = cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync);
    if (code == cudaSuccess) {
        code = cudaFree(NULL);
    }
    if (code != cudaSuccess) {
        return hdt_cuda_error(code, "start the cuda device", err);
    }
    code = hdt_cuda_kernels_probe();
    if (code == cudaSuccess) {
        return HDT_OK;
    }
    status = hdt_cuda_error(code, "run the kernels of this build", err);
    hdt_error_prefix(err, "%s", device->info.name);
    if (code == cudaErrorNoKernelImageForDevice) {
        hdt_error_hint(err, "build with CUDA_ARCH=sm_NN for the device's compute capability N.N");
    }
    return status;
}

/* Start a device, or the part of it that is asked for. */
static enum hdt_status device_init(struct hdt_device *device, int sm_limit, struct hdt_error *err)
{
    HDT_TRY(info_read(device->idx, NULL, &device->info, err));
    HDT_TRY(device_start(device, err));
    if (sm_limit > 0 && sm_limit != device->info.n_sms) {
        HDT_TRY(hdt_cuda_limit_new(device->idx, sm_limit, device->info.n_sms, &device->limit, err));
        HDT_TRY(info_read(device->idx, device->limit, &device->info, err));
    }
    return hdt_cuda_gemms_new(device->limit ? device->info.n_sms : 0, &device->gemms, err);
}

enum hdt_status hdt_cuda_device_open(const struct hdt_device_conf *conf,
                                     struct hdt_device **device_out, struct hdt_error *err)
{
    struct hdt_device *device;
    enum hdt_status status;
    int n_devices = 0;

    HDT_TRY(hdt_cuda_device_count(&n_devices, err));
    if (conf->device_idx < 0 || conf->device_idx >= n_devices) {
        return hdt_error_set(err, HDT_EINVAL, "cannot open cuda device %d: there are %d, from 0",
                             conf->device_idx, n_devices);
    }
    device = hdt_calloc(1, sizeof(*device));
    device->idx = conf->device_idx;
    status = device_init(device, conf->sm_limit, err);
    if (status != HDT_OK) {
        hdt_cuda_limit_free(device->limit);
        free(device);
        return status;
    }
    hdt_cuda_pool_init(&device->pool);
    *device_out = device;
    return HDT_OK;
}

void hdt_cuda_device_close(struct hdt_device *device)
{
    if (device) {
        hdt_cuda_enter(device, NULL);
        hdt_cuda_gemms_free(device->gemms);
        hdt_cuda_pool_release(&device->pool);
        hdt_cuda_limit_free(device->limit);
        free(device);
    }
}

void hdt_cuda_device_info(struct hdt_device *device, struct hdt_device_info *info)
{
    size_t free_bytes = 0, all_bytes = 0;

    *info = device->info;
    if (hdt_cuda_enter(device, NULL) == HDT_OK &&
        cudaMemGetInfo(&free_bytes, &all_bytes) == cudaSuccess) {
        info->memory_free = free_bytes;
    }
    cudaGetLastError();
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum hdt_status hdt_cuda_alloc(struct hdt_device *device, size_t bytes, void **mem,
                               struct hdt_error *err)
{
    HDT_TRY(hdt_cuda_enter(device, err));
    return hdt_cuda_pool_get(&device->pool, bytes, mem, err);
}

void hdt_cuda_free(struct hdt_device *device, void *mem)
{
    hdt_cuda_pool_put(&device->pool, mem);
}

enum hdt_status hdt_cuda_host_alloc(struct hdt_device *device, size_t bytes, void **mem,
                                    struct hdt_error *err)
{
    void *got = NULL;
    cudaError_t code;

    HDT_TRY(hdt_cuda_enter(device, err));
    code = cudaHostAlloc(&got, bytes ? bytes : 1, cudaHostAllocPortable);
    if (code != cudaSuccess) {
        enum hdt_status status = hdt_cuda_error(code, "allocate pinned memory", err);

        hdt_error_prefix(err, "%zu bytes", bytes);
        return status;
    }
    *mem = got;
    return HDT_OK;
}

void hdt_cuda_host_free(struct hdt_device *device, void *mem)
{
    if (mem && hdt_cuda_enter(device, NULL) == HDT_OK) {
        cudaFreeHost(mem);
    }
}

enum hdt_status hdt_cuda_host_register(struct hdt_device *device, void *mem, size_t bytes,
                                       struct hdt_error *err)
{
    cudaError_t code;

    HDT_TRY(hdt_cuda_enter(device, err));
    code = cudaHostRegister(mem, bytes, cudaHostRegisterPortable);
    if (code != cudaSuccess) {
        enum hdt_status status = hdt_cuda_error(code, "pin memory for the cuda device", err);

        hdt_error_hint(err, "raise the limit of locked memory (ulimit -l, LimitMEMLOCK=)");
        return status;
    }
    return HDT_OK;
}

void hdt_cuda_host_unregister(struct hdt_device *device, void *mem)
{
    if (hdt_cuda_enter(device, NULL) == HDT_OK) {
        cudaHostUnregister(mem);
    }
}
