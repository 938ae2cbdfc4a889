/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_LIMIT_H
#define HDT_RUNTIME_CUDA_CUDA_LIMIT_H

/*
 * A part of a device: so many of its multiprocessors, by a green context of the driver (CUDA driver
 * API, "Green Contexts"; CUDA 12.5). Streams that are made in it run on that part; all else, memory
 * and events too, stays in the device's primary context, which remains the current one.
 */
#include "src/base/error.h"

#include <cuda_runtime_api.h>

struct hdt_cuda_limit;

/*
 * At least n_sms > 0 of the n_all multiprocessors of device idx, whose context was started: the
 * driver parts it in steps of its own (on Hopper 8, and at least 8). HDT_EINVAL: there are not so
 * many, or not in such parts. HDT_ENOTSUP: the driver, or the toolkit of this build, is too old.
 */
enum hdt_status hdt_cuda_limit_new(int idx, int n_sms, int n_all, struct hdt_cuda_limit **limit,
                                   struct hdt_error *err);
/* After its streams. NULL: nothing. */
void hdt_cuda_limit_free(struct hdt_cuda_limit *limit);

/* How many there are in it. */
int hdt_cuda_limit_sms(const struct hdt_cuda_limit *limit);

/* A stream that does not wait for the default one, for cudaStreamDestroy. */
enum hdt_status hdt_cuda_limit_stream(const struct hdt_cuda_limit *limit, cudaStream_t *stream,
                                      struct hdt_error *err);

#endif /* HDT_RUNTIME_CUDA_CUDA_LIMIT_H */
