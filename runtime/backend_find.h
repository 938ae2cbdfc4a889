/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_BACKEND_FIND_H
#define HDT_RUNTIME_BACKEND_FIND_H

/* Choosing a backend to compute with, and telling what is here. Loading one: backend_load.h. */
#include "runtime/backend.h"

struct hdt_buf;

#ifdef __cplusplus
extern "C" {
#endif

/* Name of op number `idx` of struct hdt_ops ("gemm"), in the order of the struct; NULL beyond the
 * last. */
const char *hdt_backend_op_name(size_t idx);

/* The same of struct hdt_mixed_ops, and of struct hdt_fp8_ops. */
const char *hdt_backend_mixed_name(size_t idx);
const char *hdt_backend_fp8_name(size_t idx);

/* Whether the backend has op number `idx` of struct hdt_ops. */
bool hdt_backend_has_op(const struct hdt_backend *backend, size_t idx);

/* Append the names of the ops that the backend lacks, "gemm, rope_fwd", to `names` (may be NULL);
 * returns how many. A table of mixed or fp8 ops has all or is not there: "mixed gemm". */
size_t hdt_backend_missing(const struct hdt_backend *backend, struct hdt_buf *names);

/* HDT_OK when the backend has all ops, so that stages can run on it. HDT_ENOTSUP names those that
 * it lacks. */
enum hdt_status hdt_backend_require(const struct hdt_backend *backend, struct hdt_error *err);

/* Whether this device has products of FP8. require: HDT_ENOTSUP names backend and device. */
bool hdt_backend_has_fp8(const struct hdt_backend *backend, struct hdt_device *device);
enum hdt_status hdt_backend_require_fp8(const struct hdt_backend *backend,
                                        struct hdt_device *device, struct hdt_error *err);

/*
 * Load a backend, check that it can compute, and open its device conf->device_idx. "auto" or "" is
 * the fastest backend that passes all that on this machine; what was passed over, and why, is
 * logged in one line at info level (a module that is not installed is not worth a word). May block
 * on disk and driver. The device is the caller's, who closes it.
 *
 * As hdt_backend_load, hdt_backend_require and the backend's own device_open; HDT_ENOENT: there is
 * no device of this backend. With "auto" the error is that of the last backend tried.
 */
enum hdt_status hdt_backend_open(const char *name, const struct hdt_device_conf *conf,
                                 const struct hdt_backend **backend, struct hdt_device **device,
                                 struct hdt_error *err);

/* One device, or one module that has none to offer. Valid during the call. */
struct hdt_backend_found {
    const char *name;                   /* of the module: "cuda" */
    const char *path;                   /* its file */
    const struct hdt_backend *backend;  /* NULL: could not be loaded */
    const char *missing;                /* ops that it lacks, "gemm, rope_fwd"; "" = can compute */
    int device_idx;                     /* -1: about the module, which has no usable device */
    const struct hdt_device_info *info; /* NULL: the device could not be opened */
    const struct hdt_error *error;      /* why backend or info is NULL or no device is there */
};

typedef void hdt_backend_found_fn(const struct hdt_backend_found *found, void *arg);

/* Call fn for each device of each module that hdt_backend_load would find, modules by name. Devices
 * are opened as `conf` says (but for its device_idx) and closed for it. Loads every module: for a
 * command that lists, not for a run. */
void hdt_backend_list(const struct hdt_device_conf *conf, hdt_backend_found_fn *fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_BACKEND_FIND_H */
