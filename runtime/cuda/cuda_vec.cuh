/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_VEC_CUH
#define HDT_RUNTIME_CUDA_CUDA_VEC_CUH

/*
 * What the row kernels share: elements of float32 or bfloat16 read and written as float32, one at a
 * time, four or eight (for which addresses must be multiples of 16 bytes), and sums over a
 * block in an order that its size alone decides.
 */
#include <cuda_bf16.h>

#include <stddef.h>
#include <stdint.h>

namespace hdt_cuda
{

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffff;

template <int N> __device__ __forceinline__ void load(const float *src, float (&x)[N])
{
    static_assert(N == 1 || N % 4 == 0, "one, or whole 16-byte words");
    if constexpr (N == 1) {
        x[0] = src[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 word = *reinterpret_cast<const float4 *>(src + i);

            x[i] = word.x;
            x[i + 1] = word.y;
            x[i + 2] = word.z;
            x[i + 3] = word.w;
        }
    }
}

template <int N> __device__ __forceinline__ void load(const __nv_bfloat16 *src, float (&x)[N])
{
    static_assert(N == 1 || N == 4 || N % 8 == 0, "one, or whole words");
    if constexpr (N == 1) {
        x[0] = __bfloat162float(src[0]);
    } else if constexpr (N == 4) {
        const uint2 word = *reinterpret_cast<const uint2 *>(src);

        x[0] = __uint_as_float(word.x << 16);
        x[1] = __uint_as_float(word.x & 0xffff0000);
        x[2] = __uint_as_float(word.y << 16);
        x[3] = __uint_as_float(word.y & 0xffff0000);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8) {
            const uint4 word = *reinterpret_cast<const uint4 *>(src + i);
            const uint32_t parts[4] = {word.x, word.y, word.z, word.w};

#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[i + 2 * j] = __uint_as_float(parts[j] << 16);
                x[i + 2 * j + 1] = __uint_as_float(parts[j] & 0xffff0000);
            }
        }
    }
}

template <int N> __device__ __forceinline__ void store(float *dst, const float (&x)[N])
{
    if constexpr (N == 1) {
        dst[0] = x[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            *reinterpret_cast<float4 *>(dst + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        }
    }
}

static __device__ __forceinline__ uint32_t pack(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<const uint32_t *>(&both);
}

template <int N> __device__ __forceinline__ void store(__nv_bfloat16 *dst, const float (&x)[N])
{
    if constexpr (N == 1) {
        dst[0] = __float2bfloat16_rn(x[0]);
    } else if constexpr (N == 4) {
        *reinterpret_cast<uint2 *>(dst) = make_uint2(pack(x[0], x[1]), pack(x[2], x[3]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8) {
            *reinterpret_cast<uint4 *>(dst + i) =
                make_uint4(pack(x[i], x[i + 1]), pack(x[i + 2], x[i + 3]), pack(x[i + 4], x[i + 5]),
                           pack(x[i + 6], x[i + 7]));
        }
    }
}

static __device__ __forceinline__ float warp_sum(float sum)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
    }
    return sum;
}

static __device__ __forceinline__ float warp_max(float max)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, step));
    }
    return max;
}

static __device__ __forceinline__ uint32_t magnitude_max(uint32_t bits, float x)
{
    return umax(bits, __float_as_uint(fabsf(x)));
}

/* Raises *amax, a float that is not negative, to the magnitude, rounded to bfloat16, whose bits are
 * given: their order is that of magnitudes, with NaN above all. By all threads of a block of whole
 * warps, which changes it once. */
static __device__ __forceinline__ void amax_raise(float *amax, uint32_t bits)
{
    __shared__ uint32_t warps[WARP];

    bits = __reduce_max_sync(ALL_LANES, bits);
    if (threadIdx.x % WARP == 0) {
        warps[threadIdx.x / WARP] = bits;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned i = 1; i < blockDim.x / WARP; i++) {
            bits = umax(bits, warps[i]);
        }
        bits = __float_as_uint(__bfloat162float(__float2bfloat16_rn(__uint_as_float(bits))));
        atomicMax(reinterpret_cast<uint32_t *>(amax), bits);
    }
}

/* The sum over a block of whole warps, in every thread. `warps` is shared memory of WARP floats; a
 * second sum needs another one, or a barrier between them. */
static __device__ __forceinline__ float block_sum(float sum, float *warps)
{
    const int n_warps = static_cast<int>(blockDim.x) / WARP;

    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) {
        warps[threadIdx.x / WARP] = sum;
    }
    __syncthreads();
    sum = 0;
    for (int i = 0; i < n_warps; i++) {
        sum += warps[i];
    }
    return sum;
}

/* Can vectors of eight be read and written there, in rows of `c`? */
static inline bool is_aligned(const void *mem, size_t c)
{
    return c % 8 == 0 && reinterpret_cast<uintptr_t>(mem) % 16 == 0;
}

static inline cudaLaunchConfig_t launch_of(cudaStream_t stream, dim3 grid, int threads,
                                           size_t shared = 0)
{
    cudaLaunchConfig_t config = {};

    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return config;
}

} // namespace hdt_cuda

#endif /* HDT_RUNTIME_CUDA_CUDA_VEC_CUH */
