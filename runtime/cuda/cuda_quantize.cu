/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From bfloat16 to FP8: a pass for the largest magnitude, which makes the scale, and one that
 * rounds and stores rows, columns or both. Both are bound by memory.
 *
 * The second has tiles of TILE x TILE. A thread takes eight neighbouring columns of four rows, so
 * that it can turn bytes of a column into a word by itself; these words wait in shared memory,
 * from which a thread then takes four of them, 16 bytes of a column. A word stands at a place that
 * is exchanged with others of its column, so that the threads of a warp that write words of one row
 * of tiles, or read 16 bytes of four columns, meet each bank once.
 */
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/cuda_quantize.h"
#include "runtime/cuda/cuda_vec.cuh"

#include <cuda_fp8.h>

using namespace hdt_cuda;

namespace
{

constexpr int THREADS = 256;
constexpr int N_WARPS = THREADS / WARP;
constexpr int VEC = 8; /* values of bfloat16 in 16 bytes */
constexpr int UNROLL = 8;

constexpr int TILE = 128;
constexpr int ROWS = 4; /* of a thread at a time */
constexpr int TILE_WORDS = TILE / 4;
constexpr int ROW_GROUPS = THREADS / (TILE / VEC); /* groups of ROWS that a block does at a time */
constexpr int PASSES = TILE / (ROW_GROUPS * ROWS);

/* Places of words that are exchanged in a column: an even number, so that words stay in pairs. */
__device__ __forceinline__ int exchange_of(int col)
{
    return (col / VEC * 2) % TILE_WORDS;
}

/* ---- the scale ------------------------------------------------------------------------------- */

/* Magnitudes of two values of bfloat16, whose order is that of their bits: NaN above infinity. */
__device__ __forceinline__ uint32_t magnitudes(uint32_t pair)
{
    return pair & 0x7fff7fff;
}

__device__ __forceinline__ uint32_t block_max(uint32_t max, uint32_t *warps)
{
    max = __reduce_max_sync(ALL_LANES, max);
    if (threadIdx.x % WARP == 0) {
        warps[threadIdx.x / WARP] = max;
    }
    __syncthreads();
    max = warps[0];
    for (int i = 1; i < N_WARPS; i++) {
        max = umax(max, warps[i]);
    }
    return max;
}

/* As struct hdt_quantize has it. */
__device__ __forceinline__ float scale_of(float amax, float format_max)
{
    const float scale = __fdiv_rn(amax, format_max);

    return amax == 0 ? 1.0f : scale < 0x1p-126f ? 0x1p-126f : scale;
}

/* The block that ends last makes the scale of what all of them found. `n_done` is 0 before and
 * after. */
__global__ void __launch_bounds__(THREADS)
    scale_kernel(const uint4 *x, size_t n_vecs, float format_max, uint32_t *partials,
                 unsigned *n_done, float *scale_out)
{
    __shared__ uint32_t warps[2][N_WARPS];
    __shared__ bool is_last;
    const size_t step = static_cast<size_t>(gridDim.x) * THREADS * UNROLL;
    uint32_t pair = 0, max;

    for (size_t first = static_cast<size_t>(blockIdx.x) * THREADS * UNROLL; first < n_vecs;
         first += step) {
        uint4 words[UNROLL];

#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const size_t at = first + static_cast<size_t>(i) * THREADS + threadIdx.x;

            words[i] = at < n_vecs ? x[at] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            pair =
                __vmaxu2(pair, __vmaxu2(__vmaxu2(magnitudes(words[i].x), magnitudes(words[i].y)),
                                        __vmaxu2(magnitudes(words[i].z), magnitudes(words[i].w))));
        }
    }
    max = block_max(umax(pair & 0xffff, pair >> 16), warps[0]);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = max;
        __threadfence();
        is_last = atomicAdd(n_done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) {
        return;
    }
    __threadfence();
    max = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) {
        max = umax(max, __ldcg(partials + i));
    }
    max = block_max(max, warps[1]);
    if (threadIdx.x == 0) {
        *scale_out = scale_of(__uint_as_float(max << 16), format_max);
        *n_done = 0;
    }
}

/* ---- rounding -------------------------------------------------------------------------------- */

template <__nv_fp8_interpretation_t Format>
__device__ __forceinline__ uint32_t round_four(const float *x, float inv)
{
    const uint32_t low = __nv_cvt_float2_to_fp8x2(
        make_float2(__fmul_rn(x[0], inv), __fmul_rn(x[1], inv)), __NV_SATFINITE, Format);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(
        make_float2(__fmul_rn(x[2], inv), __fmul_rn(x[3], inv)), __NV_SATFINITE, Format);

    return low | high << 16;
}

/* Four words of four bytes each, rows, to their columns. */
__device__ __forceinline__ void turn(const uint32_t (&rows)[ROWS], uint32_t (&cols)[4])
{
    const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140);
    const uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140);
    const uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362);
    const uint32_t high23 = __byte_perm(rows[2], rows[3], 0x7362);

    cols[0] = __byte_perm(low01, low23, 0x5410);
    cols[1] = __byte_perm(low01, low23, 0x7632);
    cols[2] = __byte_perm(high01, high23, 0x5410);
    cols[3] = __byte_perm(high01, high23, 0x7632);
}

struct quantize_args {
    const __nv_bfloat16 *x;
    const float *amax; /* NULL: scale is set */
    float *scale;
    float format_max;
    uint8_t *y, *yt;
    int n, c;
};

/* One pass of a block over its tile: rounds, stores rows, and leaves columns in `words`. */
template <__nv_fp8_interpretation_t Format>
__device__ __forceinline__ void rows_round(const quantize_args &p, float inv, int row, int col,
                                           const uint4 (&in)[ROWS], uint32_t *words)
{
    uint32_t out[2][ROWS];

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint32_t parts[4] = {in[r].x, in[r].y, in[r].z, in[r].w};
        float x[VEC];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[2 * j] = __uint_as_float(parts[j] << 16);
            x[2 * j + 1] = __uint_as_float(parts[j] & 0xffff0000);
        }
        out[0][r] = round_four<Format>(x, inv);
        out[1][r] = round_four<Format>(x + 4, inv);
        if (p.y) {
            *reinterpret_cast<uint2 *>(p.y + static_cast<size_t>(row + r) * p.c + col) =
                make_uint2(out[0][r], out[1][r]);
        }
    }
    if (!p.yt) {
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t cols[4];

        turn(out[half], cols);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = col % TILE + 4 * half + j;

            words[at * TILE_WORDS + ((row % TILE / ROWS) ^ exchange_of(at))] = cols[j];
        }
    }
}

/* Columns of the tile from shared memory. */
__device__ __forceinline__ void columns_store(const quantize_args &p, int row0, int col0,
                                              const uint32_t *words)
{
    constexpr int PIECES = TILE / 16; /* of a column */

    for (int i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
        const int at = i / PIECES, row = i % PIECES * 16, exchange = exchange_of(at);
        uint4 piece = *reinterpret_cast<const uint4 *>(words + at * TILE_WORDS +
                                                       ((row / 4) ^ (exchange & ~3)));

        if (exchange & 2) {
            piece = make_uint4(piece.z, piece.w, piece.x, piece.y);
        }
        if (col0 + at < p.c && row0 + row < p.n) {
            *reinterpret_cast<uint4 *>(p.yt + static_cast<size_t>(col0 + at) * p.n + row0 + row) =
                piece;
        }
    }
}

template <__nv_fp8_interpretation_t Format>
__global__ void __launch_bounds__(THREADS) quantize_kernel(quantize_args p)
{
    __shared__ __align__(16) uint32_t words[TILE * TILE_WORDS];
    const int n_across = (p.c + TILE - 1) / TILE;
    const int row0 = static_cast<int>(blockIdx.x) / n_across * TILE;
    const int col0 = static_cast<int>(blockIdx.x) % n_across * TILE;
    const int group = static_cast<int>(threadIdx.x) / (TILE / VEC);
    const int col = col0 + static_cast<int>(threadIdx.x) % (TILE / VEC) * VEC;
    uint4 in[PASSES][ROWS];

#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int row = row0 + (i * ROW_GROUPS + group) * ROWS;

#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            in[i][r] = row < p.n && col < p.c ? *reinterpret_cast<const uint4 *>(
                                                    p.x + static_cast<size_t>(row + r) * p.c + col)
                                              : make_uint4(0, 0, 0, 0);
        }
    }
    const float scale = p.amax ? scale_of(*p.amax, p.format_max) : *p.scale;
    const float inv = __fdiv_rn(1.0f, scale);

    if (p.amax && blockIdx.x == 0 && threadIdx.x == 0) {
        *p.scale = scale;
    }
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int row = row0 + (i * ROW_GROUPS + group) * ROWS;

        if (row < p.n && col < p.c) {
            rows_round<Format>(p, inv, row, col, in[i], words);
        }
    }
    if (p.yt) {
        __syncthreads();
        columns_store(p, row0, col0, words);
    }
}

} // namespace

static cudaError_t scale_launch(cudaStream_t stream, const struct hdt_quantize *q, float format_max,
                                double *reductions)
{
    const size_t n_vecs = static_cast<size_t>(q->n) * q->c / VEC;
    const size_t n_tiles = (n_vecs + THREADS * UNROLL - 1) / (THREADS * UNROLL);
    const size_t most = HDT_CUDA_PARTIALS;
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>(n_tiles < most ? n_tiles : most)), THREADS);

    return cudaLaunchKernelEx(&config, scale_kernel, static_cast<const uint4 *>(q->x), n_vecs,
                              format_max, reinterpret_cast<uint32_t *>(reductions + HDT_CUDA_SUMS),
                              reinterpret_cast<unsigned *>(reductions), q->scale);
}

cudaError_t hdt_cuda_quantize(cudaStream_t stream, const struct hdt_quantize *q, double *reductions)
{
    const bool is_e4m3 = q->dtype == HDT_DTYPE_F8E4M3;
    const float format_max = is_e4m3 ? HDT_FP8_E4M3_MAX : HDT_FP8_E5M2_MAX;
    const unsigned n_across = static_cast<unsigned>((q->c + TILE - 1) / TILE);
    const unsigned n_down = static_cast<unsigned>((q->n + TILE - 1) / TILE);
    const cudaLaunchConfig_t config = launch_of(stream, dim3(n_across * n_down), THREADS);
    const quantize_args args = {static_cast<const __nv_bfloat16 *>(q->x),
                                q->amax,
                                q->scale,
                                format_max,
                                static_cast<uint8_t *>(q->y),
                                static_cast<uint8_t *>(q->yt),
                                q->n,
                                q->c};
    const cudaError_t code =
        q->amax ? cudaSuccess : scale_launch(stream, q, format_max, reductions);

    if (code != cudaSuccess) {
        return code;
    }
    return is_e4m3 ? cudaLaunchKernelEx(&config, quantize_kernel<__NV_E4M3>, args)
                   : cudaLaunchKernelEx(&config, quantize_kernel<__NV_E5M2>, args);
}
