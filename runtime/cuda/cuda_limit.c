/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/cuda/cuda_limit.h"
#include "runtime/cuda/cuda_device.h"
#include "src/base/buf.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdlib.h>
#include <string.h>

static enum hdt_status too_old(const char *what, struct hdt_error *err)
{
    hdt_error_set(err, HDT_ENOTSUP,
                  "cannot limit a cuda device to some multiprocessors: %s is older than CUDA 12.5",
                  what);
    hdt_error_hint(err, "leave out --sm-limit (sm_limit: 0), or install a newer one");
    return HDT_ENOTSUP;
}

#if CUDA_VERSION >= 12050

/* The driver's functions: of the library that the runtime has loaded, so that the module needs none
 * to be loaded itself. */
struct driver {
    PFN_cuDeviceGet_v2000 device_get;
    PFN_cuDeviceGetDevResource_v12040 resource_get;
    PFN_cuDevSmResourceSplitByCount_v12040 resource_split;
    PFN_cuDevResourceGenerateDesc_v12040 describe;
    PFN_cuGreenCtxCreate_v12040 create;
    PFN_cuGreenCtxDestroy_v12040 destroy;
    PFN_cuGreenCtxStreamCreate_v12050 stream_create;
};

struct hdt_cuda_limit {
    struct driver driver;
    CUgreenCtx context;
    int n_sms;
};

/* Codes of the driver are those of the runtime. */
static enum hdt_status driver_result(CUresult code, const char *what, struct hdt_error *err)
{
    return code == CUDA_SUCCESS ? HDT_OK : hdt_cuda_error((cudaError_t)code, what, err);
}

static enum hdt_status driver_find(struct driver *driver, struct hdt_error *err)
{
    const struct {
        const char *name;
        unsigned version;
        void *at;
    } rows[] = {
        {"cuDeviceGet", 2000, &driver->device_get},
        {"cuDeviceGetDevResource", 12040, &driver->resource_get},
        {"cuDevSmResourceSplitByCount", 12040, &driver->resource_split},
        {"cuDevResourceGenerateDesc", 12040, &driver->describe},
        {"cuGreenCtxCreate", 12040, &driver->create},
        {"cuGreenCtxDestroy", 12040, &driver->destroy},
        {"cuGreenCtxStreamCreate", 12050, &driver->stream_create},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum cudaDriverEntryPointQueryResult result;
        void *entry = NULL;

        if (cudaGetDriverEntryPointByVersion(rows[i].name, &entry, rows[i].version,
                                             cudaEnableDefault, &result) != cudaSuccess ||
            result != cudaDriverEntryPointSuccess || !entry) {
            cudaGetLastError();
            return too_old("the driver", err);
        }
        memcpy(rows[i].at, &entry, sizeof(entry));
    }
    return HDT_OK;
}

static enum hdt_status limit_refuse(int idx, int n_sms, const CUdevResource *all,
                                    struct hdt_error *err)
{
    hdt_error_set(
        err, HDT_EINVAL,
        "cannot limit cuda device %d to %d multiprocessors: it has %u, in parts of %u and "
        "more, in steps of %u",
        idx, n_sms, all->sm.smCount, all->sm.minSmPartitionSize, all->sm.smCoscheduledAlignment);
    hdt_error_hint(err, "ask for fewer, or leave out the limit for all of them");
    return HDT_EINVAL;
}

/* The part, and a context on it. */
static enum hdt_status limit_make(struct hdt_cuda_limit *limit, int idx, int n_sms,
                                  struct hdt_error *err)
{
    const struct driver *driver = &limit->driver;
    CUdevResource all, part;
    CUdevResourceDesc desc;
    unsigned n_parts = 1;
    CUdevice device;

    HDT_TRY(driver_result(driver->device_get(&device, idx), "find the cuda device", err));
    HDT_TRY(driver_result(driver->resource_get(device, &all, CU_DEV_RESOURCE_TYPE_SM),
                          "count the multiprocessors of the cuda device", err));
    if ((unsigned)n_sms > all.sm.smCount ||
        driver->resource_split(&part, &n_parts, &all, NULL, 0, (unsigned)n_sms) != CUDA_SUCCESS ||
        n_parts == 0) {
        return limit_refuse(idx, n_sms, &all, err);
    }
    HDT_TRY(driver_result(driver->describe(&desc, &part, 1), "describe a part of the cuda device",
                          err));
    HDT_TRY(
        driver_result(driver->create(&limit->context, desc, device, CU_GREEN_CTX_DEFAULT_STREAM),
                      "make a context of a part of the cuda device", err));
    limit->n_sms = (int)part.sm.smCount;
    return HDT_OK;
}

enum hdt_status hdt_cuda_limit_new(int idx, int n_sms, int n_all, struct hdt_cuda_limit **limit_out,
                                   struct hdt_error *err)
{
    struct hdt_cuda_limit *limit;
    enum hdt_status status;

    if (n_sms > n_all) { /* whatever the driver is */
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot limit cuda device %d to %d multiprocessors: it has %d", idx,
                             n_sms, n_all);
    }
    limit = hdt_calloc(1, sizeof(*limit));
    status = driver_find(&limit->driver, err);
    if (status == HDT_OK) {
        status = limit_make(limit, idx, n_sms, err);
    }
    if (status != HDT_OK) {
        free(limit);
        return status;
    }
    *limit_out = limit;
    return HDT_OK;
}

void hdt_cuda_limit_free(struct hdt_cuda_limit *limit)
{
    if (limit) {
        limit->driver.destroy(limit->context);
        free(limit);
    }
}

int hdt_cuda_limit_sms(const struct hdt_cuda_limit *limit)
{
    return limit->n_sms;
}

enum hdt_status hdt_cuda_limit_stream(const struct hdt_cuda_limit *limit, cudaStream_t *stream,
                                      struct hdt_error *err)
{
    return driver_result(
        limit->driver.stream_create(stream, limit->context, CU_STREAM_NON_BLOCKING, 0),
        "make a stream on a part of the cuda device", err);
}

#else /* no such functions */

enum hdt_status hdt_cuda_limit_new(int idx, int n_sms, int n_all, struct hdt_cuda_limit **limit_out,
                                   struct hdt_error *err)
{
    (void)idx;
    (void)n_sms;
    (void)n_all;
    *limit_out = NULL;
    return too_old("the toolkit that this module was built with", err);
}

void hdt_cuda_limit_free(struct hdt_cuda_limit *limit)
{
    (void)limit;
}

int hdt_cuda_limit_sms(const struct hdt_cuda_limit *limit)
{
    (void)limit;
    return 0;
}

enum hdt_status hdt_cuda_limit_stream(const struct hdt_cuda_limit *limit, cudaStream_t *stream,
                                      struct hdt_error *err)
{
    (void)limit;
    *stream = NULL;
    return too_old("the toolkit that this module was built with", err);
}

#endif
