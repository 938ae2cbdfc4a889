/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CPU_CPU_GEMM_H
#define HDT_RUNTIME_CPU_CPU_GEMM_H

/* The plain matrix product, compiled once for each instruction set as the kernels are. */
#include "runtime/backend.h"

/* One name for each instruction set, so that the copies can stand in one program. */
#define HDT_CPU_NAME_(name, isa) name##_##isa
#define HDT_CPU_NAME(name, isa)  HDT_CPU_NAME_(name, isa)
#define hdt_cpu_gemm_plain       HDT_CPU_NAME(hdt_cpu_gemm_plain, HDT_CPU_ISA)

#ifdef __cplusplus
extern "C" {
#endif

/* g->c = alpha op(A) op(B) + beta C on this thread. scratch: HDT_CPU_GEMM_SCRATCH bytes, aligned to
 * 64. The order of every sum depends on the shape only. */
void hdt_cpu_gemm_plain(const struct hdt_gemm *g, float *scratch);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CPU_CPU_GEMM_H */
