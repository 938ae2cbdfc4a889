/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementwise kernels and reductions of the cuda backend, with their launchers.
 *
 * All of them are bound by memory. A block takes a tile of the array; a thread takes UNROLL
 * elements of it that stand THREADS apart, loads all of them and only then computes and stores, so
 * that many loads are under way at once. Neighbouring threads touch neighbouring elements, so plain
 * 4-byte accesses fill whole sectors, and arrays need no alignment beyond an element's (16-byte
 * accesses were refused for that: weights of a stage stand at any offset).
 */
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/cuda_vec.cuh"

#include <cuda_bf16.h>
#include <stdint.h>

namespace
{

constexpr int THREADS = 256;
constexpr int UNROLL = 8;
constexpr size_t TILE = static_cast<size_t>(THREADS) * UNROLL;
constexpr int WARP = 32;

/* ---- Elementwise ops ------------------------------------------------------------------------- */

/* An op has a struct `item`, the registers of one element; load() reads it, store() computes and
 * writes. */
template <class Op> __global__ void __launch_bounds__(THREADS) flat_kernel(Op op, size_t len)
{
    const size_t first = static_cast<size_t>(blockIdx.x) * TILE;
    const size_t at = first + threadIdx.x;
    typename Op::item items[UNROLL];

    if (first + TILE <= len) {
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            items[i] = op.load(at + static_cast<size_t>(i) * THREADS);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            op.store(at + static_cast<size_t>(i) * THREADS, items[i]);
        }
        return;
    }
    for (size_t i = at; i < len; i += THREADS) {
        op.store(i, op.load(i));
    }
}

} // namespace

static cudaLaunchConfig_t launch_config(cudaStream_t stream, size_t n_blocks)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3(static_cast<unsigned>(n_blocks));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return config;
}

namespace
{

template <class Op> cudaError_t flat_launch(cudaStream_t stream, size_t len, const Op &op)
{
    const size_t n_blocks = (len + TILE - 1) / TILE;
    const cudaLaunchConfig_t config = launch_config(stream, n_blocks);

    if (n_blocks == 0) {
        return cudaSuccess;
    }
    if (n_blocks > INT32_MAX) {
        return cudaErrorInvalidConfiguration;
    }
    return cudaLaunchKernelEx(&config, flat_kernel<Op>, op, len);
}

struct add_op {
    const float *x;
    float *y;

    struct item {
        float x, y;
    };

    __device__ item load(size_t i) const
    {
        return {x[i], y[i]};
    }

    __device__ void store(size_t i, item it) const
    {
        y[i] = it.y + it.x;
    }
};

struct scale_op {
    float factor;
    float *x;

    using item = float;

    __device__ item load(size_t i) const
    {
        return x[i];
    }

    __device__ void store(size_t i, item it) const
    {
        x[i] = it * factor;
    }
};

struct adamw_op {
    hdt_adamw_numbers p;
    const float *g;
    float *w, *m, *v;

    struct item {
        float g, w, m, v;
    };

    __device__ item load(size_t i) const
    {
        return {g[i], w[i], m[i], v[i]};
    }

    /* Gives the new weight. In the order of adamw.h, by functions that nvcc does not contract. */
    __device__ float store(size_t i, item it) const
    {
        const float gi = __fmul_rn(it.g, p.grad_scale);
        const float mi = __fadd_rn(__fmul_rn(p.beta1, it.m), __fmul_rn(p.m_new, gi));
        const float vi = __fadd_rn(__fmul_rn(p.beta2, it.v), __fmul_rn(__fmul_rn(p.v_new, gi), gi));
        const float size = __fadd_rn(__fmul_rn(__fsqrt_rn(vi), p.v_unbias), p.eps);
        const float move = __fdiv_rn(__fmul_rn(p.m_rate, mi), size);

        m[i] = mi;
        v[i] = vi;
        return w[i] = __fsub_rn(__fmul_rn(it.w, p.keep), move);
    }
};

/* And a copy of the weights in bfloat16. */
struct adamw16_op {
    adamw_op op;
    __nv_bfloat16 *w16;

    using item = adamw_op::item;

    __device__ item load(size_t i) const
    {
        return op.load(i);
    }

    /* Gives the new weight. */
    __device__ float store(size_t i, item it) const
    {
        const float w = op.store(i, it);

        w16[i] = __float2bfloat16_rn(w);
        return w;
    }
};

/* flat_kernel for these, and the largest magnitude of the copy. */
__global__ void __launch_bounds__(THREADS)
    adamw16_amax_kernel(adamw16_op op, size_t len, float *amax)
{
    const size_t first = static_cast<size_t>(blockIdx.x) * TILE + threadIdx.x;
    adamw16_op::item items[UNROLL];
    uint32_t bits = 0;

#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const size_t at = first + static_cast<size_t>(i) * THREADS;

        if (at < len) {
            items[i] = op.load(at);
        }
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
        const size_t at = first + static_cast<size_t>(i) * THREADS;

        if (at < len) {
            bits = hdt_cuda::magnitude_max(bits, op.store(at, items[i]));
        }
    }
    hdt_cuda::amax_raise(amax, bits);
}

/* Words of 16 bits: sign, an exponent of 126 or 127 and seven bits of a number; of float, the lower
 * half before it is sixteen more; of FP8 there are two in a word. Bits of an index mixed as in the
 * finalizer of MurmurHash3. */
struct random_op {
    uint16_t *x;
    int value_size;

    struct item {
    };

    __device__ item load(size_t) const
    {
        return {};
    }

    __device__ void store(size_t i, item) const
    {
        uint32_t h = static_cast<uint32_t>(i) + static_cast<uint32_t>(i >> 32) * 0x9e3779b9u + 1;

        h = (h ^ h >> 16) * 0x85ebca6bu;
        h = (h ^ h >> 13) * 0xc2b2ae35u;
        h ^= h >> 16;
        if (value_size == 1) {
            x[i] = static_cast<uint16_t>(h & 0xbfbf); /* of either format: below 2 */
        } else if (value_size == 4 && i % 2 == 0) {
            x[i] = static_cast<uint16_t>(h);
        } else {
            x[i] = static_cast<uint16_t>((h & 0x8000) | (126 + (h >> 8 & 1)) << 7 | (h & 0x7f));
        }
    }
};

struct compare_op {
    const uint16_t *a, *b;
    int *differs;

    struct item {
        uint16_t a, b;
    };

    __device__ item load(size_t i) const
    {
        return {a[i], b[i]};
    }

    __device__ void store(size_t, item it) const
    {
        if (it.a != it.b) {
            *differs = 1;
        }
    }
};

/* ---- Casts ----------------------------------------------------------------------------------- */

/* Bit for bit as the cpu backend, NaNs included: the device's own conversions give every NaN one
 * pattern, which would make the bytes on a wire depend on the vendor. */
struct as_f32 {
    using word = float;

    static __device__ float get(word x)
    {
        return x;
    }

    static __device__ word put(float x)
    {
        return x;
    }
};

struct as_bf16 {
    using word = uint16_t;

    static __device__ float get(word x)
    {
        return __uint_as_float(static_cast<uint32_t>(x) << 16);
    }

    static __device__ word put(float x)
    {
        const uint32_t bits = __float_as_uint(x);

        if ((bits & 0x7fffffff) > 0x7f800000) {
            return static_cast<word>(bits >> 16 | 0x40);
        }
        return static_cast<word>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

struct as_f16 {
    using word = uint16_t;

    static __device__ float get(word x)
    {
        float value;

        if ((x & 0x7fff) > 0x7c00) {
            return __uint_as_float(static_cast<uint32_t>(x & 0x8000) << 16 | 0x7f800000 |
                                   static_cast<uint32_t>(x & 0x3ff) << 13);
        }
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x));
        return value;
    }

    static __device__ word put(float x)
    {
        const uint32_t bits = __float_as_uint(x);
        word half;

        if ((bits & 0x7fffffff) > 0x7f800000) {
            return static_cast<word>((bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff));
        }
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
        return half;
    }
};

template <class Src, class Dst> struct cast_op {
    const typename Src::word *src;
    typename Dst::word *dst;

    using item = typename Src::word;

    __device__ item load(size_t i) const
    {
        return src[i];
    }

    __device__ void store(size_t i, item it) const
    {
        dst[i] = Dst::put(Src::get(it));
    }
};

template <class Src, class Dst>
cudaError_t cast_launch(cudaStream_t stream, const void *src, size_t len, void *dst)
{
    const cast_op<Src, Dst> op = {static_cast<const typename Src::word *>(src),
                                  static_cast<typename Dst::word *>(dst)};

    return flat_launch(stream, len, op);
}

template <class Src>
cudaError_t cast_from(cudaStream_t stream, const void *src, size_t len, hdt_dtype dst_dtype,
                      void *dst)
{
    switch (dst_dtype) {
    case HDT_DTYPE_F32:
        return cast_launch<Src, as_f32>(stream, src, len, dst);
    case HDT_DTYPE_BF16:
        return cast_launch<Src, as_bf16>(stream, src, len, dst);
    case HDT_DTYPE_F16:
        return cast_launch<Src, as_f16>(stream, src, len, dst);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

/* ---- Sum of squares -------------------------------------------------------------------------- */

/* Sum over the block, in the same order each time: a tree in each warp, then over the warps. The
 * result is thread 0's. */
static __device__ double block_sum(double sum)
{
    __shared__ double warps[THREADS / WARP];

    for (int step = WARP / 2; step > 0; step /= 2) {
        sum += __shfl_down_sync(0xffffffff, sum, step);
    }
    if (threadIdx.x % WARP == 0) {
        warps[threadIdx.x / WARP] = sum;
    }
    __syncthreads();
    sum = threadIdx.x < THREADS / WARP ? warps[threadIdx.x] : 0;
    for (int step = THREADS / WARP / 2; step > 0; step /= 2) {
        sum += __shfl_down_sync(0xffffffff, sum, step);
    }
    return sum;
}

/* The arrays of one launch: array i has the blocks from begin[i] up to begin[i + 1]. */
struct sumsq_args {
    const float *x[HDT_CUDA_SUMS];
    size_t len[HDT_CUDA_SUMS];
    unsigned begin[HDT_CUDA_SUMS + 1];
    unsigned *n_done; /* of each */
    double *partials; /* of each block */
    double *sums;
};

/* A block adds the squares of each n-th tile of its array, which has n blocks. The squares of
 * float32 values are exact in float64. The block of an array that ends last adds the sums of all,
 * in the order of the blocks: which one that is does not matter. */
static __global__ void __launch_bounds__(THREADS) sumsq_kernel(const __grid_constant__ sumsq_args p)
{
    __shared__ bool is_last;
    unsigned i_array = 0;
    double sum = 0;

    while (blockIdx.x >= p.begin[i_array + 1]) {
        i_array++;
    }
    const unsigned n_blocks = p.begin[i_array + 1] - p.begin[i_array];
    const unsigned block = blockIdx.x - p.begin[i_array];
    const float *x = p.x[i_array];
    const size_t len = p.len[i_array];
    double *partials = p.partials + p.begin[i_array];

    for (size_t first = block * TILE; first < len; first += n_blocks * TILE) {
        float values[UNROLL];

#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const size_t at = first + static_cast<size_t>(i) * THREADS + threadIdx.x;

            values[i] = at < len ? x[at] : 0;
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        partials[block] = sum;
        __threadfence();
        is_last = atomicAdd(p.n_done + i_array, 1) == n_blocks - 1;
    }
    __syncthreads();
    if (!is_last) {
        return;
    }
    __threadfence();
    sum = 0;
    for (unsigned i = threadIdx.x; i < n_blocks; i += THREADS) {
        sum += __ldcg(partials + i);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        p.sums[i_array] = sum;
        p.n_done[i_array] = 0;
    }
}

cudaError_t hdt_cuda_kernels_probe(void)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, sumsq_kernel);
}

cudaError_t hdt_cuda_add(cudaStream_t stream, const float *x, size_t len, float *y)
{
    return flat_launch(stream, len, add_op{x, y});
}

cudaError_t hdt_cuda_scale(cudaStream_t stream, float factor, size_t len, float *x)
{
    return flat_launch(stream, len, scale_op{factor, x});
}

cudaError_t hdt_cuda_cast(cudaStream_t stream, const void *src, enum hdt_dtype src_dtype,
                          size_t len, enum hdt_dtype dst_dtype, void *dst)
{
    switch (src_dtype) {
    case HDT_DTYPE_F32:
        return cast_from<as_f32>(stream, src, len, dst_dtype, dst);
    case HDT_DTYPE_BF16:
        return cast_from<as_bf16>(stream, src, len, dst_dtype, dst);
    case HDT_DTYPE_F16:
        return cast_from<as_f16>(stream, src, len, dst_dtype, dst);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t hdt_cuda_adamw(cudaStream_t stream, const struct hdt_adamw_numbers *p, const float *g,
                           size_t len, float *w, float *m, float *v)
{
    return flat_launch(stream, len, adamw_op{*p, g, w, m, v});
}

cudaError_t hdt_cuda_adamw16(cudaStream_t stream, const struct hdt_adamw_numbers *p, const float *g,
                             size_t len, float *w, float *m, float *v, void *w16, float *amax)
{
    const adamw16_op op = {{*p, g, w, m, v}, static_cast<__nv_bfloat16 *>(w16)};
    const size_t n_blocks = (len + TILE - 1) / TILE;
    const cudaLaunchConfig_t config = launch_config(stream, n_blocks);

    if (!amax || n_blocks == 0 || n_blocks > INT32_MAX) {
        return flat_launch(stream, len, op);
    }
    return cudaLaunchKernelEx(&config, adamw16_amax_kernel, op, len, amax);
}

cudaError_t hdt_cuda_compare(cudaStream_t stream, const uint16_t *a, const uint16_t *b, size_t len,
                             int *differs)
{
    return flat_launch(stream, len, compare_op{a, b, differs});
}

cudaError_t hdt_cuda_random(cudaStream_t stream, enum hdt_dtype dtype, size_t len, void *x)
{
    const size_t value_size = hdt_dtype_size(dtype);

    return flat_launch(stream, len * value_size / 2,
                       random_op{static_cast<uint16_t *>(x), static_cast<int>(value_size)});
}

cudaError_t hdt_cuda_sumsq(cudaStream_t stream, const struct hdt_span *spans, int n,
                           double *reductions, double *sums)
{
    sumsq_args args = {};

    if (n < 1 || n > HDT_CUDA_SUMS) {
        return cudaErrorInvalidValue;
    }
    args.n_done = reinterpret_cast<unsigned *>(reductions);
    args.partials = reductions + HDT_CUDA_SUMS;
    args.sums = sums;
    for (int i = 0; i < n; i++) {
        const size_t n_tiles = (spans[i].len + TILE - 1) / TILE, most = HDT_CUDA_PARTIALS;

        args.x[i] = spans[i].x;
        args.len[i] = spans[i].len;
        args.begin[i + 1] = args.begin[i] + static_cast<unsigned>(n_tiles == 0     ? 1
                                                                  : n_tiles < most ? n_tiles
                                                                                   : most);
    }

    const cudaLaunchConfig_t config = launch_config(stream, args.begin[n]);

    return cudaLaunchKernelEx(&config, sumsq_kernel, args);
}
