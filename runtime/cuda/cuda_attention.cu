/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a device: arguments checked and made ready for the kernels. */
#include "runtime/cuda/cuda_attention.cuh"

#include <atomic>
#include <math.h>
#include <string.h>

namespace hdt_tile
{

using encode_tiled = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                  const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                  const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

bool bulk_device()
{
#ifdef HDT_CUDA_SM_90A
    int device = 0, major = 0, minor = -1;

    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
#else
    return false;
#endif
}

/* The driver's function by way of the runtime: the module links no driver library. */
static cudaError_t encoder(encode_tiled *encode)
{
    static std::atomic<encode_tiled> found{nullptr};
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;

    *encode = found.load(std::memory_order_relaxed);
    if (*encode == nullptr) {
#if CUDART_VERSION >= 12050
        const cudaError_t code = cudaGetDriverEntryPointByVersion(
            "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
#else
        const cudaError_t code =
            cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &result);
#endif

        if (code != cudaSuccess) {
            return code;
        }
        if (result != cudaDriverEntryPointSuccess) {
            return cudaErrorNotSupported;
        }
        *encode = reinterpret_cast<encode_tiled>(entry);
        found.store(*encode, std::memory_order_relaxed);
    }
    return cudaSuccess;
}

cudaError_t map_init(const source &s, int n_seqs, int n_heads, int rows, CUtensorMap *map)
{
    const cuuint64_t row_bytes = static_cast<cuuint64_t>(s.stride) * sizeof(*s.data);
    const cuuint64_t sizes[4] = {
        static_cast<cuuint64_t>(s.n_cols), static_cast<cuuint64_t>(n_heads),
        static_cast<cuuint64_t>(s.n_rows), static_cast<cuuint64_t>(n_seqs)};
    const cuuint64_t strides[3] = {static_cast<cuuint64_t>(s.n_cols) * sizeof(*s.data), row_bytes,
                                   row_bytes * static_cast<cuuint64_t>(s.n_rows)};
    const cuuint32_t box[4] = {SLAB_COLS, 1, static_cast<cuuint32_t>(rows), 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    encode_tiled encode = nullptr;
    const cudaError_t code = encoder(&encode);

    if (code != cudaSuccess) {
        return code;
    }
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<__nv_bfloat16 *>(s.data),
                  sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

static bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

cudaError_t args_init(const hdt_cuda_attention *a, attention_args *args)
{
    const bool shape_ok = a->n_seqs > 0 && a->q_len > 0 && a->kv_len >= a->q_len &&
                          a->n_kv_heads > 0 && a->n_heads > 0 && a->n_heads % a->n_kv_heads == 0;
    const bool width_ok = a->head_size > 0 && a->head_size <= 128 && a->head_size % 8 == 0 &&
                          a->q_stride % 8 == 0 && a->kv_stride % 8 == 0;

    if (!shape_ok || !width_ok || !is_aligned(a->q) || !is_aligned(a->k) || !is_aligned(a->v) ||
        !is_aligned(a->out)) {
        return cudaErrorInvalidValue;
    }
    memset(args, 0, sizeof(*args));
    args->q = {static_cast<const __nv_bfloat16 *>(a->q), a->q_stride, a->q_len, a->head_size};
    args->k = {static_cast<const __nv_bfloat16 *>(a->k), a->kv_stride, a->kv_len, a->head_size};
    args->v = {static_cast<const __nv_bfloat16 *>(a->v), a->kv_stride, a->kv_len, a->head_size};
    args->n_seqs = a->n_seqs;
    args->n_heads = a->n_heads;
    args->n_kv_heads = a->n_kv_heads;
    args->scale = 1 / sqrtf(static_cast<float>(a->head_size));
    args->out = static_cast<__nv_bfloat16 *>(a->out);
    args->lse = a->lse;
    return cudaSuccess;
}

} // namespace hdt_tile

size_t hdt_cuda_attention_scratch(int n_seqs, int q_len, int n_heads)
{
    constexpr int ROUND = hdt_tile::STATS_ROUND;

    return static_cast<size_t>(n_seqs) * n_heads *
           static_cast<size_t>((q_len + ROUND - 1) / ROUND * ROUND) * sizeof(hdt_tile::stats);
}
