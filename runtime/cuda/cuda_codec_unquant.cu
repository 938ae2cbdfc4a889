/* SPDX-License-Identifier: Apache-2.0 */
/* The decoders of the block quantizers: codes and their block's numbers become values. */
#include "runtime/cuda/cuda_codec_blocks.cuh"
#include "runtime/cuda/cuda_codecs.h"

using namespace hdt_codec;

namespace
{

struct unquant_job {
    const uint8_t *params, *codes;
    unsigned log2_block;
    size_t n;
    void *dst;
    hdt_device_report *report;
};

template <hdt_quant_kind KIND>
__device__ __forceinline__ void params_read(const uint8_t *params, size_t block, float *scale,
                                            float *zero)
{
    *zero = 0.0f;
    switch (KIND) {
    case HDT_QUANT_I8_MINMAX: {
        const float2 both = reinterpret_cast<const float2 *>(params)[block];

        *scale = both.x;
        *zero = both.y;
        break;
    }
    case HDT_QUANT_I8:
        *scale = reinterpret_cast<const float *>(params)[block];
        break;
    case HDT_QUANT_I4_MINMAX: {
        const uint32_t both = reinterpret_cast<const uint32_t *>(params)[block];

        *scale = float_of(both << 16);
        *zero = float_of(both & 0xffff0000);
        break;
    }
    case HDT_QUANT_I4:
        *scale = float_of(static_cast<uint32_t>(reinterpret_cast<const uint16_t *>(params)[block])
                          << 16);
        break;
    default:
        *scale = float_of(static_cast<uint32_t>(params[block]) << 23);
        break;
    }
}

/* A scale is not negative (-0 is 0), a zero point any finite number. */
__device__ __forceinline__ bool params_are_fit(float scale, float zero)
{
    const uint32_t s = bits_of(scale);

    return (s < INF_BITS || s == 0x80000000) && (bits_of(zero) & ABS_BITS) < INF_BITS;
}

template <hdt_quant_kind KIND> __device__ __forceinline__ float f8_value(uint32_t code)
{
    const uint32_t sign = (code & 0x80) << 8;

    if (KIND == HDT_QUANT_E5M2) {
        return f16_widen(code << 8);
    }
    if ((code & 0x7f) == 0x7f) {
        return f16_widen(sign | 0x7fff);
    }
    return __fmul_rn(f16_widen(sign | (code & 0x7f) << 7), 256.0f);
}

template <hdt_quant_kind KIND>
__device__ __forceinline__ float value_of(uint32_t code, float scale, float zero)
{
    if (facts<KIND>::IS_F8) {
        const float wide = f8_value<KIND>(code), x = __fmul_rn(wide, scale);

        return wide != wide ? wide : x == x ? x : float_of(0xffc00000);
    }
    if (facts<KIND>::IS_MINMAX) {
        return __fadd_rn(__fmul_rn(static_cast<float>(code), scale), zero);
    }
    return __fmul_rn(KIND == HDT_QUANT_I8 ? static_cast<float>(static_cast<int8_t>(code))
                                          : static_cast<float>(static_cast<int>(code) - 8),
                     scale);
}

/* Four codes from value i on as one word. */
template <hdt_quant_kind KIND>
__device__ __forceinline__ uint32_t load_codes(const uint8_t *codes, size_t i, size_t n)
{
    uint32_t all = 0;

    if (facts<KIND>::IS_I4) {
        if (i + 4 <= n) {
            return *reinterpret_cast<const uint16_t *>(codes + i / 2);
        }
        all = i < n ? codes[i / 2] : 0;
        return i + 2 < n ? all | static_cast<uint32_t>(codes[i / 2 + 1]) << 8 : all;
    }
    if (i + 4 <= n) {
        return *reinterpret_cast<const uint32_t *>(codes + i);
    }
    for (int c = 0; c < 3; c++) {
        all |= i + c < n ? static_cast<uint32_t>(codes[i + c]) << (8 * c) : 0;
    }
    return all;
}

template <hdt_quant_kind KIND>
__device__ __forceinline__ void decode_piece(const unquant_job &job, size_t piece,
                                             float x[4 * STEPS])
{
    constexpr int BITS = facts<KIND>::IS_I4 ? 4 : 8;
    const size_t at = piece * PIECE + 4 * lane_id();
    uint32_t all[STEPS];
    float scale[STEPS], zero[STEPS];

#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const size_t i = at + j * STEP_VALUES;

        all[j] = load_codes<KIND>(job.codes, i, job.n);
        scale[j] = zero[j] = 0;
        if (i < job.n) {
            params_read<KIND>(job.params, i >> job.log2_block, &scale[j], &zero[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        if (!params_are_fit(scale[j], zero[j])) {
            atomicMin(
                reinterpret_cast<unsigned long long *>(&job.report->bad),
                2 * static_cast<unsigned long long>((at + j * STEP_VALUES) >> job.log2_block));
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            x[4 * j + c] =
                value_of<KIND>(all[j] >> (BITS * c) & ((1u << BITS) - 1), scale[j], zero[j]);
        }
    }
}

template <hdt_quant_kind KIND, hdt_emit EMIT, bool IS_ROTATED>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) quant_decode_kernel(unquant_job job)
{
    __shared__ float room[IS_ROTATED ? PIECE : 1];
    const size_t end = (job.n + PIECE - 1) / PIECE;

    for (size_t p = blockIdx.x * WARPS + warp_id(); p < end; p += gridDim.x * WARPS) {
        float x[4 * STEPS];

        decode_piece<KIND>(job, p, x);
        if (IS_ROTATED) {
            rotate_any(x, p, job.n, job.log2_block, true, room);
        }
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            emit_four<EMIT>(job.dst, p * PIECE + 4 * lane_id() + j * STEP_VALUES, job.n, x + 4 * j);
        }
    }
}

/* ---- launches ---- */

template <hdt_quant_kind KIND, bool IS_ROTATED>
cudaError_t decode_launch(cudaStream_t stream, const unquant_job &job, hdt_emit emit)
{
    unsigned n_blocks;
    const cudaError_t code = grid_size(n_pieces(job.n), WARPS, BLOCKS_PER_SM, &n_blocks);

    if (code != cudaSuccess) {
        return code;
    }
    switch (emit) {
    case HDT_EMIT_F32:
        quant_decode_kernel<KIND, HDT_EMIT_F32, IS_ROTATED><<<n_blocks, THREADS, 0, stream>>>(job);
        break;
    case HDT_EMIT_ADD:
        quant_decode_kernel<KIND, HDT_EMIT_ADD, IS_ROTATED><<<n_blocks, THREADS, 0, stream>>>(job);
        break;
    default:
        quant_decode_kernel<KIND, HDT_EMIT_BF16, IS_ROTATED><<<n_blocks, THREADS, 0, stream>>>(job);
        break;
    }
    return cudaGetLastError();
}

template <hdt_quant_kind KIND>
cudaError_t decode_any(cudaStream_t stream, const unquant_job &job, hdt_emit emit, bool rotate)
{
    return rotate ? decode_launch<KIND, true>(stream, job, emit)
                  : decode_launch<KIND, false>(stream, job, emit);
}

} // namespace

cudaError_t hdt_cuda_codec_quant_decode(cudaStream_t stream, const struct hdt_device_quant *q,
                                        const void *src, const struct hdt_device_out *out)
{
    const uint8_t *params = static_cast<const uint8_t *>(src);
    const unquant_job job = {params,   params + q->head_len, log2_of(q->block), out->n,
                             out->dst, out->report};
    const cudaError_t code =
        cudaMemsetAsync(&out->report->bad, 0xff, sizeof(out->report->bad), stream);

    if (code != cudaSuccess) {
        return code;
    }
    switch (q->kind) {
    case HDT_QUANT_I8:
        return decode_any<HDT_QUANT_I8>(stream, job, out->emit, q->rotate);
    case HDT_QUANT_I8_MINMAX:
        return decode_any<HDT_QUANT_I8_MINMAX>(stream, job, out->emit, q->rotate);
    case HDT_QUANT_I4:
        return decode_any<HDT_QUANT_I4>(stream, job, out->emit, q->rotate);
    case HDT_QUANT_I4_MINMAX:
        return decode_any<HDT_QUANT_I4_MINMAX>(stream, job, out->emit, q->rotate);
    case HDT_QUANT_E4M3:
        return decode_any<HDT_QUANT_E4M3>(stream, job, out->emit, q->rotate);
    case HDT_QUANT_E5M2:
        return decode_any<HDT_QUANT_E5M2>(stream, job, out->emit, q->rotate);
    default:
        return cudaErrorInvalidValue;
    }
}
