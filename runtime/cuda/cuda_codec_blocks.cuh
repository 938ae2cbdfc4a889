/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_CODEC_BLOCKS_CUH
#define HDT_RUNTIME_CUDA_CUDA_CODEC_BLOCKS_CUH

/* CUDA C++ for the block quantizers: facts about their kinds, and the rotation of blocks. */
#include "runtime/cuda/cuda_codec_math.cuh"

namespace hdt_codec
{

/* compress/kernels_quant.h: hdt_quant_facts */
template <hdt_quant_kind KIND> struct facts {
    static constexpr bool IS_MINMAX = KIND == HDT_QUANT_I8_MINMAX || KIND == HDT_QUANT_I4_MINMAX;
    static constexpr bool IS_F8 = KIND == HDT_QUANT_E4M3 || KIND == HDT_QUANT_E5M2;
    static constexpr bool IS_I4 = KIND == HDT_QUANT_I4 || KIND == HDT_QUANT_I4_MINMAX;
    static constexpr int DIGITS = KIND == HDT_QUANT_E4M3 ? 3 : 2;
    static constexpr int EXP_MIN = KIND == HDT_QUANT_E4M3 ? -6 : -14;
    static constexpr int EXP_MAX = KIND == HDT_QUANT_E4M3 ? 8 : 15;
    static constexpr float LO = KIND == HDT_QUANT_I8 ? -127 : KIND == HDT_QUANT_I4 ? -7 : 0;
    static constexpr float HI = KIND == HDT_QUANT_I8          ? 127
                                : KIND == HDT_QUANT_I8_MINMAX ? 255
                                : KIND == HDT_QUANT_I4        ? 7
                                                              : 15;
    static constexpr int BIAS = KIND == HDT_QUANT_I4 ? 8 : 0;
    static constexpr uint32_t LIMIT = IS_MINMAX ? 0x7e800000 : 0x7f000000;
    static constexpr int PARAMS_LEN = IS_F8                         ? 1
                                      : KIND == HDT_QUANT_I8        ? 4
                                      : KIND == HDT_QUANT_I8_MINMAX ? 8
                                      : KIND == HDT_QUANT_I4        ? 2
                                                                    : 4;
};

/* ---- rotation ---- */

static __constant__ uint32_t signs[32] = {
    0x806b8ff4, 0x481cc4a6, 0x86c72574, 0x30cbd56c, 0x9ab16602, 0x22537059, 0xd2490790, 0x8d5df899,
    0x26b2680a, 0x7a591bed, 0x476706ea, 0xede9e3ac, 0x9256f32b, 0x7a547ce8, 0x02c62051, 0xd7e84f8d,
    0xbc3c8d24, 0x7a9f6826, 0x7874c303, 0x5ef05ffd, 0xd8ce8050, 0x5d304217, 0x556644f8, 0x8b810e25,
    0xa6e4706a, 0x370c3a50, 0xf2753873, 0x3b484e1f, 0x475a24e6, 0x075998d7, 0x9d27c330, 0x062c3eae,
};

static __device__ __forceinline__ float hadamard_norm(unsigned log2_n)
{
    const float half = float_of((127 - log2_n / 2) << 23);

    return log2_n & 1 ? __fmul_rn(half, 0x1.6a09e6p-1f) : half;
}

static __device__ __forceinline__ void flip(float x[4 * STEPS], unsigned log2_block)
{
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const unsigned k = (j * STEP_VALUES + 4 * lane_id()) & ((1u << log2_block) - 1);
        const uint32_t four = signs[k / 32] >> (k % 32);

#pragma unroll
        for (int c = 0; c < 4; c++) {
            x[4 * j + c] = float_of(bits_of(x[4 * j + c]) ^ (four >> c & 1) << 31);
        }
    }
}

static __device__ __forceinline__ void butterfly(float &a, float &b)
{
    const float sum = __fadd_rn(a, b), difference = __fsub_rn(a, b);

    a = sum;
    b = difference;
}

/* All blocks of a piece, each whole. */
static __device__ __forceinline__ void rotate_piece(float x[4 * STEPS], unsigned log2_block,
                                                    bool back)
{
    const float norm = hadamard_norm(log2_block);

    if (!back) {
        flip(x, log2_block);
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            x[4 * j + c] = __fmul_rn(x[4 * j + c], norm);
        }
        butterfly(x[4 * j], x[4 * j + 1]);
        butterfly(x[4 * j + 2], x[4 * j + 3]);
        butterfly(x[4 * j], x[4 * j + 2]);
        butterfly(x[4 * j + 1], x[4 * j + 3]);
    }
    for (unsigned mask = 1; mask < WARP && 4 * mask < 1u << log2_block; mask *= 2) {
        const bool is_upper = (lane_id() & mask) != 0;

#pragma unroll
        for (int i = 0; i < 4 * STEPS; i++) {
            const float other = __shfl_xor_sync(ALL, x[i], mask);

            x[i] = __fadd_rn(other, is_upper ? -x[i] : x[i]);
        }
    }
#pragma unroll
    for (int h = 1; h < STEPS; h *= 2) {
        if (STEP_VALUES * h < 1 << log2_block) {
#pragma unroll
            for (int i = 0; i < 4 * STEPS; i++) {
                if (!(i / 4 & h)) {
                    butterfly(x[i], x[i + 4 * h]);
                }
            }
        }
    }
    if (back) {
        flip(x, log2_block);
    }
}

/* 2^log2_n values from number `first` of their block on, by one warp. */
static __device__ void rotate_run(float *x, unsigned first, unsigned log2_n, bool back)
{
    const unsigned n = 1u << log2_n;
    const float norm = hadamard_norm(log2_n);

    for (unsigned i = lane_id(); i < n; i += WARP) {
        const unsigned k = first + i;
        const uint32_t sign = (signs[k / 32] >> (k % 32) & 1) << 31;

        x[i] = __fmul_rn(back ? x[i] : float_of(bits_of(x[i]) ^ sign), norm);
    }
    __syncwarp();
    for (unsigned h = 1; h < n; h *= 2) {
        for (unsigned p = lane_id(); p < n / 2; p += WARP) {
            const unsigned i = p / h * 2 * h + p % h;

            butterfly(x[i], x[i + h]);
        }
        __syncwarp();
    }
    for (unsigned i = lane_id(); back && i < n; i += WARP) {
        const unsigned k = first + i;

        x[i] = float_of(bits_of(x[i]) ^ (signs[k / 32] >> (k % 32) & 1) << 31);
    }
    __syncwarp();
}

/* The last piece: of its n values a short block stands at the end, which is rotated in runs. */
static __device__ void rotate_last(float x[4 * STEPS], unsigned n, unsigned log2_block, bool back,
                                   float room[PIECE])
{
    const unsigned begin = n >> log2_block << log2_block;
    unsigned at = begin;

#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        room[i / 4 * STEP_VALUES + 4 * lane_id() + i % 4] = x[i];
    }
    __syncwarp();
    for (unsigned k = 10; k <= 10; k--) {
        if (n - at >= 1u << k) {
            rotate_run(room + at, at - begin, k, back);
            at += 1u << k;
        }
    }
    rotate_piece(x, log2_block, back);
#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        const unsigned v = i / 4 * STEP_VALUES + 4 * lane_id() + i % 4;

        x[i] = v >= begin ? room[v] : x[i];
    }
}

static __device__ __forceinline__ void rotate_any(float x[4 * STEPS], size_t piece, size_t n,
                                                  unsigned log2_block, bool back, float room[PIECE])
{
    if ((piece + 1) * PIECE <= n) {
        rotate_piece(x, log2_block, back);
    } else {
        rotate_last(x, static_cast<unsigned>(n - piece * PIECE), log2_block, back, room);
    }
}

static inline unsigned log2_of(size_t n)
{
    unsigned log2 = 0;

    while (n >> (log2 + 1) != 0) {
        log2++;
    }
    return log2;
}

} // namespace hdt_codec

#endif /* HDT_RUNTIME_CUDA_CUDA_CODEC_BLOCKS_CUH */
