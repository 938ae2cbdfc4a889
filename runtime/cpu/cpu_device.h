/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CPU_CPU_DEVICE_H
#define HDT_RUNTIME_CPU_CPU_DEVICE_H

/* Inside of the cpu backend: what device, ops and attention share. */
#include "runtime/backend.h"
#include "runtime/cpu/cpu_kernels.h"
#include "runtime/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_device {
    struct hdt_pool *pool;
    const struct hdt_cpu_kernels *kernels;
};

/* Work runs in the caller's thread, before the op returns. */
struct hdt_stream {
    struct hdt_device *device;
    struct hdt_error error; /* status HDT_OK: none */
    /* Memory of the op that runs now; grows to the largest that was needed, then stays. */
    void *scratch;
    size_t scratch_bytes;
};

/* The backend, for programs that link it rather than load it. */
extern const struct hdt_backend hdt_backend_cpu;
extern const struct hdt_ops hdt_cpu_ops;

/* Scratch of at least `bytes`, aligned to 64. NULL when there is no memory: the stream has the
 * error then. */
void *hdt_cpu_scratch(struct hdt_stream *s, size_t bytes);

/* Bytes of scratch that each thread must have for hdt_cpu_gemm_tile; 0 with OpenBLAS. */
size_t hdt_cpu_gemm_scratch(void);

/* One product on the calling thread. scratch: hdt_cpu_gemm_scratch() bytes. */
void hdt_cpu_gemm_tile(const struct hdt_cpu_kernels *k, const struct hdt_gemm *g, void *scratch);

void hdt_cpu_attention_fwd(struct hdt_stream *s, const struct hdt_attention *a);
void hdt_cpu_attention_bwd(struct hdt_stream *s, const struct hdt_attention *a, const float *dout,
                           float *dq, float *dk, float *dv);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CPU_CPU_DEVICE_H */
