/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_CODEC_MATH_CUH
#define HDT_RUNTIME_CUDA_CUDA_CODEC_MATH_CUH

/*
 * CUDA C++ for the codec kernels: the arithmetic of compress/kernels_quant.h, operation by
 * operation by intrinsics that the compiler does not contract, and what all encoders share.
 *
 * A warp works on a piece of 1024 values, 32 a thread: value 128 j + 4 lane + c of the piece is
 * x[4 j + c], so that each of the eight steps is one 16-byte access a thread, next to its
 * neighbour's. A block of a quantizer, 32 values at least, never divides a thread's four.
 */

/* A function of C may have the name of a struct. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include "compress/device.h"
#include "runtime/cuda/cuda_kernels.h"
#pragma GCC diagnostic pop

#include <cuda_runtime.h>
#include <stdint.h>

namespace hdt_codec
{

constexpr int THREADS = 256;
constexpr int WARP = 32;
constexpr int WARPS = THREADS / WARP;
constexpr int STEPS = 8; /* of four values */
constexpr int STEP_VALUES = 4 * WARP;
constexpr int PIECE = STEPS * STEP_VALUES;
constexpr int BLOCKS_PER_SM = 4;
constexpr unsigned ALL = 0xffffffff;

/* Blocks of a launch at most: each leaves one partial tally. */
constexpr int PARTIALS = 2048;

constexpr uint32_t INF_BITS = 0x7f800000;
constexpr uint32_t ABS_BITS = 0x7fffffff;
constexpr float MAGIC = 12582912.0f; /* 1.5 * 2^23 */

static __device__ __forceinline__ uint32_t bits_of(float x)
{
    return __float_as_uint(x);
}

static __device__ __forceinline__ float float_of(uint32_t u)
{
    return __uint_as_float(u);
}

static __device__ __forceinline__ uint32_t bf16_round(uint32_t u)
{
    return (u & ABS_BITS) > INF_BITS ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static __device__ __forceinline__ uint32_t f16_round(uint32_t u)
{
    uint16_t half;

    if ((u & ABS_BITS) > INF_BITS) {
        return (u >> 16 & 0x8000) | 0x7e00 | (u >> 13 & 0x3ff);
    }
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(float_of(u)));
    return half;
}

static __device__ __forceinline__ float f16_widen(uint32_t h)
{
    float value;

    if ((h & 0x7fff) > 0x7c00) {
        return float_of((h & 0x8000) << 16 | 0x7fc00000 | (h & 0x3ff) << 13);
    }
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(h)));
    return value;
}

/* A sum as the processors of the definition make it: they keep the bits of a NaN. */
static __device__ __forceinline__ float add_floats(float a, float b)
{
    const float sum = __fadd_rn(a, b);

    if (sum == sum) {
        return sum;
    }
    return a != a   ? float_of(bits_of(a) | 0x400000)
           : b != b ? float_of(bits_of(b) | 0x400000)
                    : float_of(0xffc00000);
}

static __device__ __forceinline__ uint32_t random_bits(hdt_random r, uint32_t i)
{
    uint32_t x = i + r.add;

    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x += r.mix;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

static __device__ __forceinline__ float random_dither(uint32_t bits)
{
    return static_cast<float>(static_cast<int>(bits >> 16) * 2 - 65535) * 0x1p-17f;
}

struct small_float {
    uint32_t code;
    float value;
};

static __device__ __forceinline__ small_float small_float_round(float a, int digits, int exp_min,
                                                                float dither)
{
    const uint32_t smallest = static_cast<uint32_t>(exp_min + 127) << 23;
    const uint32_t exponent = max(bits_of(a) & INF_BITS, smallest);
    const uint32_t magic_bits = exponent + (static_cast<uint32_t>(23 - digits) << 23) + 0x400000;
    const float magic = float_of(magic_bits);
    const float place = float_of(exponent - (static_cast<uint32_t>(digits) << 23));
    const float sum = __fadd_rn(__fadd_rn(a, __fmul_rn(dither, place)), magic);

    return {bits_of(sum) - magic_bits + ((exponent - smallest) >> (23 - digits)),
            __fsub_rn(sum, magic)};
}

/* See hdt_piece_factor. */
static __device__ __forceinline__ float piece_factor(uint32_t max_bits, double *weight)
{
    const uint32_t exponent = max(max_bits >> 23, 16u);
    const double back = static_cast<double>(float_of((exponent - 3) << 23));

    *weight = back * back;
    return float_of((257 - exponent) << 23);
}

/* ---- pieces ---- */

struct source {
    const void *src;
    bool is_bf16;
    size_t n;
};

static __device__ __forceinline__ unsigned lane_id()
{
    return threadIdx.x % WARP;
}

static __device__ __forceinline__ unsigned warp_id()
{
    return threadIdx.x / WARP;
}

/* The values of a piece that lies within the tensor. */
static __device__ __forceinline__ void piece_load_whole(const source &s, size_t piece,
                                                        float x[4 * STEPS])
{
    const size_t at = piece * PIECE + 4 * lane_id();

    if (s.is_bf16) {
        const uint16_t *src = static_cast<const uint16_t *>(s.src) + at;

#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            const uint2 two = *reinterpret_cast<const uint2 *>(src + j * STEP_VALUES);

            x[4 * j] = float_of(two.x << 16);
            x[4 * j + 1] = float_of(two.x & 0xffff0000);
            x[4 * j + 2] = float_of(two.y << 16);
            x[4 * j + 3] = float_of(two.y & 0xffff0000);
        }
        return;
    }
    const float *src = static_cast<const float *>(s.src) + at;

#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const float4 four = *reinterpret_cast<const float4 *>(src + j * STEP_VALUES);

        x[4 * j] = four.x;
        x[4 * j + 1] = four.y;
        x[4 * j + 2] = four.z;
        x[4 * j + 3] = four.w;
    }
}

/* The values of any piece; beyond the tensor's end they are 0. */
static __device__ __forceinline__ void piece_load(const source &s, size_t piece, float x[4 * STEPS])
{
    if ((piece + 1) * PIECE <= s.n) {
        piece_load_whole(s, piece, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        const size_t at = piece * PIECE + i / 4 * STEP_VALUES + 4 * lane_id() + i % 4;

        x[i] = 0;
        if (at < s.n) {
            x[i] = s.is_bf16
                       ? float_of(static_cast<uint32_t>(static_cast<const uint16_t *>(s.src)[at])
                                  << 16)
                       : static_cast<const float *>(s.src)[at];
        }
    }
}

/* What a decoder does with four values that stand together; `n_left` of them are the tensor's. */
template <hdt_emit EMIT>
static __device__ __forceinline__ void emit_four(void *dst, size_t i, size_t n, const float x[4])
{
    if (EMIT == HDT_EMIT_BF16) {
        uint16_t *to = static_cast<uint16_t *>(dst) + i;

        if (i + 4 <= n) {
            *reinterpret_cast<uint2 *>(to) =
                make_uint2(bf16_round(bits_of(x[0])) | bf16_round(bits_of(x[1])) << 16,
                           bf16_round(bits_of(x[2])) | bf16_round(bits_of(x[3])) << 16);
            return;
        }
        for (int c = 0; c < 4; c++) {
            if (i + c < n) {
                to[c] = static_cast<uint16_t>(bf16_round(bits_of(x[c])));
            }
        }
        return;
    }
    float *to = static_cast<float *>(dst) + i;

    if (i + 4 <= n) {
        float4 four = {x[0], x[1], x[2], x[3]};

        if (EMIT == HDT_EMIT_ADD) {
            const float4 old = *reinterpret_cast<const float4 *>(to);

            four = {add_floats(old.x, x[0]), add_floats(old.y, x[1]), add_floats(old.z, x[2]),
                    add_floats(old.w, x[3])};
        }
        *reinterpret_cast<float4 *>(to) = four;
        return;
    }
    for (int c = 0; c < 4; c++) {
        if (i + c < n) {
            to[c] = EMIT == HDT_EMIT_ADD ? add_floats(to[c], x[c]) : x[c];
        }
    }
}

/* ---- the guard ---- */

struct tally {
    double err, ref;
    unsigned long long n_bad;
    uint32_t max_bits;
};

struct scratch {
    unsigned n_done; /* blocks of the present launch that have left their partial */
    tally partials[PARTIALS];
};

static __device__ __forceinline__ tally tally_merge(const tally &a, const tally &b)
{
    return {a.err + b.err, a.ref + b.ref, a.n_bad + b.n_bad, max(a.max_bits, b.max_bits)};
}

/* Over the block, in an order that does not change; thread 0 has the result. */
static __device__ __forceinline__ tally tally_block(tally t)
{
    __shared__ tally warps[WARPS];

    for (int step = WARP / 2; step > 0; step /= 2) {
        const tally other = {__shfl_down_sync(ALL, t.err, step), __shfl_down_sync(ALL, t.ref, step),
                             __shfl_down_sync(ALL, t.n_bad, step),
                             __shfl_down_sync(ALL, t.max_bits, step)};

        t = tally_merge(t, other);
    }
    __syncthreads();
    if (lane_id() == 0) {
        warps[warp_id()] = t;
    }
    __syncthreads();
    for (int i = 1; i < WARPS && threadIdx.x == 0; i++) {
        t = tally_merge(t, warps[i]);
    }
    return t;
}

/* The block that comes last adds what all have found, in their order. True for one thread of the
 * grid, with the whole in *t. */
static __device__ __forceinline__ bool tally_finish(tally *t, scratch *s)
{
    __shared__ bool is_last;
    tally mine = tally_block(*t);

    if (threadIdx.x == 0) {
        s->partials[blockIdx.x] = mine;
        __threadfence();
        is_last = atomicAdd(&s->n_done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) {
        return false;
    }
    __threadfence();
    mine = {};
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) {
        const volatile tally *p = &s->partials[i];

        mine = tally_merge(mine, {p->err, p->ref, p->n_bad, p->max_bits});
    }
    *t = tally_block(mine);
    if (threadIdx.x == 0) {
        s->n_done = 0;
    }
    return threadIdx.x == 0;
}

static __device__ __forceinline__ void report_guard(tally *t, scratch *s, hdt_device_report *report,
                                                    size_t n)
{
    if (tally_finish(t, s)) {
        report->guard.n = n;
        report->guard.n_nonfinite = t->n_bad;
        report->guard.max_abs = float_of(t->max_bits);
        report->guard.err_sq = t->err;
        report->guard.ref_sq = t->ref;
        report->bad = HDT_DEVICE_GOOD;
    }
}

/* ---- launches ---- */

/* Blocks for n_items of which a block takes per_block at a time. */
static inline cudaError_t grid_size(size_t n_items, size_t per_block, int blocks_per_sm,
                                    unsigned *n_blocks)
{
    const size_t all = (n_items + per_block - 1) / per_block;
    const int n_sms = hdt_cuda_current_sms();
    size_t most = static_cast<size_t>(n_sms) * static_cast<size_t>(blocks_per_sm);

    most = most < PARTIALS ? most : PARTIALS;
    *n_blocks = static_cast<unsigned>(all < 1 ? 1 : all < most ? all : most);
    return n_sms > 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

static inline size_t n_pieces(size_t n)
{
    return (n + PIECE - 1) / PIECE;
}

} // namespace hdt_codec

#endif /* HDT_RUNTIME_CUDA_CUDA_CODEC_MATH_CUH */
