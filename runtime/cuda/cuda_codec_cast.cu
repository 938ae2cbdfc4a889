/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts, planes and what only looks. All are bound by memory: a warp takes 1024 values at a time,
 * as many warps as stay on the device walk over the tensor.
 */
#include "runtime/cuda/cuda_codec_math.cuh"
#include "runtime/cuda/cuda_codecs.h"

using namespace hdt_codec;

namespace
{

/* Largest magnitude, NaN and infinity beyond all, over the warp. */
__device__ __forceinline__ uint32_t piece_max(const float x[4 * STEPS])
{
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        most = max(most, bits_of(x[i]) & ABS_BITS);
    }
    return __reduce_max_sync(ALL, most);
}

/* The same without NaN and infinity; adds their number, this thread's, to *n_bad. */
__device__ uint32_t piece_max_finite(const float x[4 * STEPS], unsigned long long *n_bad)
{
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        const uint32_t a = bits_of(x[i]) & ABS_BITS;

        *n_bad += a >= INF_BITS;
        most = a < INF_BITS ? max(most, a) : most;
    }
    return __reduce_max_sync(ALL, most);
}

/* ---- looking ---- */

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    look_kernel(source in, scratch *s, hdt_device_report *report)
{
    const size_t end = (in.n + PIECE - 1) / PIECE;
    tally t = {};

    for (size_t p = blockIdx.x * WARPS + warp_id(); p < end; p += gridDim.x * WARPS) {
        float x[4 * STEPS];
        uint32_t most;

        piece_load(in, p, x);
        most = piece_max(x);
        if (most >= INF_BITS) {
            most = piece_max_finite(x, &t.n_bad);
        }
        t.max_bits = max(t.max_bits, most);
    }
    report_guard(&t, s, report, in.n);
}

/* ---- casts ---- */

struct cast_job {
    source in;
    hdt_random random;
    bool is_random;
    uint16_t *dst;
    scratch *s;
    hdt_device_report *report;
};

template <hdt_cast_kind KIND> __device__ __forceinline__ float cast_back(uint32_t h)
{
    return KIND == HDT_CAST_BF16 ? float_of(h << 16) : f16_widen(h);
}

template <hdt_cast_kind KIND> __device__ __forceinline__ uint32_t cast_near(float x)
{
    return KIND == HDT_CAST_BF16 ? bf16_round(bits_of(x)) : f16_round(bits_of(x));
}

template <hdt_cast_kind KIND>
__device__ uint32_t cast_random(float x, const hdt_random &random, uint32_t i)
{
    const uint32_t u = bits_of(x), noise = random_bits(random, i);

    if (KIND == HDT_CAST_BF16) {
        return (u & ABS_BITS) >= INF_BITS ? bf16_round(u) : (u + (noise >> 16)) >> 16;
    }
    if ((u & ABS_BITS) >= 0x47800000) {
        return f16_round(u);
    }
    return (u >> 16 & 0x8000) |
           small_float_round(float_of(u & ABS_BITS), 10, -14, random_dither(noise)).code;
}

__device__ __forceinline__ void cast_store(const cast_job &job, size_t i, uint32_t low,
                                           uint32_t high)
{
    uint16_t *to = job.dst + i;

    if (i + 4 <= job.in.n) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
        return;
    }
    if (i < job.in.n) {
        to[0] = static_cast<uint16_t>(low);
    }
    if (i + 1 < job.in.n) {
        to[1] = static_cast<uint16_t>(low >> 16);
    }
    if (i + 2 < job.in.n) {
        to[2] = static_cast<uint16_t>(high);
    }
}

/* One piece of any kind; returns what it adds to the guard. Sums are in double, as in
 * hdt_cast_piece_rare. */
template <hdt_cast_kind KIND>
__device__ __noinline__ tally cast_any(const cast_job &job, size_t piece)
{
    const size_t at = piece * PIECE + 4 * lane_id();
    float x[4 * STEPS];
    tally t = {};

    piece_load(job.in, piece, x);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        uint32_t h[4];

#pragma unroll
        for (int c = 0; c < 4; c++) {
            const size_t i = at + j * STEP_VALUES + c;
            const float value = x[4 * j + c];
            double e;
            float y;

            h[c] = job.is_random ? cast_random<KIND>(value, job.random, static_cast<uint32_t>(i))
                                 : cast_near<KIND>(value);
            y = cast_back<KIND>(h[c]);
            e = static_cast<double>(value) - static_cast<double>(y);
            if ((bits_of(value) & INF_BITS) != INF_BITS) {
                t.max_bits = max(t.max_bits, bits_of(value) & ABS_BITS);
            }
            if ((bits_of(y) & INF_BITS) == INF_BITS) {
                t.n_bad++;
            } else {
                t.err += e * e;
                t.ref += static_cast<double>(value) * static_cast<double>(value);
            }
        }
        cast_store(job, at + j * STEP_VALUES, h[0] | h[1] << 16, h[2] | h[3] << 16);
    }
    return t;
}

/* Two values rounded to nearest, the first in the lower half; not for NaN. */
template <hdt_cast_kind KIND> __device__ __forceinline__ uint32_t cast_two(float a, float b)
{
    uint32_t both;

    if (KIND == HDT_CAST_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    }
    return both;
}

constexpr uint32_t CAST_LEAST = (127 - 50) << 23; /* 2^-50: squares of errors stay normal */
constexpr uint32_t CAST_MOST_BF16 = (127 + 50) << 23;
constexpr uint32_t CAST_MOST_F16 = 0x477fe000; /* 65504 */

/* A whole piece that is rounded to nearest and whose squares a float can hold; false, with *t as it
 * was, when it is none. A NaN shows in the sum of errors. */
template <hdt_cast_kind KIND>
__device__ __forceinline__ bool cast_fast(const cast_job &job, size_t piece, tally *t)
{
    float x[4 * STEPS], most = 0, err = 0, ref = 0;
    uint2 *to = reinterpret_cast<uint2 *>(job.dst + piece * PIECE + 4 * lane_id());
    uint32_t piece_max;

    piece_load_whole(job.in, piece, x);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const uint32_t low = cast_two<KIND>(x[4 * j], x[4 * j + 1]);
        const uint32_t high = cast_two<KIND>(x[4 * j + 2], x[4 * j + 3]);
        const float y[4] = {cast_back<KIND>(low & 0xffff), cast_back<KIND>(low >> 16),
                            cast_back<KIND>(high & 0xffff), cast_back<KIND>(high >> 16)};

        to[j * STEP_VALUES / 4] = make_uint2(low, high);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float e = x[4 * j + c] - y[c];

            most = fmaxf(most, fabsf(x[4 * j + c]));
            err = fmaf(e, e, err);
            ref = fmaf(x[4 * j + c], x[4 * j + c], ref);
        }
    }
    piece_max = __reduce_max_sync(ALL, bits_of(most));
    if (piece_max > (KIND == HDT_CAST_BF16 ? CAST_MOST_BF16 : CAST_MOST_F16) ||
        (piece_max < CAST_LEAST && piece_max > 0) || __any_sync(ALL, err != err)) {
        return false;
    }
    t->max_bits = max(t->max_bits, piece_max);
    t->err += static_cast<double>(err);
    t->ref += static_cast<double>(ref);
    return true;
}

template <hdt_cast_kind KIND>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    cast_encode_kernel(const __grid_constant__ cast_job job)
{
    const size_t end = (job.in.n + PIECE - 1) / PIECE;
    const size_t n_fast = job.is_random ? 0 : job.in.n / PIECE;
    tally t = {};

    for (size_t p = blockIdx.x * WARPS + warp_id(); p < end; p += gridDim.x * WARPS) {
        if (p >= n_fast || !cast_fast<KIND>(job, p, &t)) {
            t = tally_merge(t, cast_any<KIND>(job, p));
        }
    }
    report_guard(&t, job.s, job.report, job.in.n);
}

template <hdt_cast_kind KIND, hdt_emit EMIT>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    cast_decode_kernel(const uint16_t *src, size_t n, void *dst, hdt_device_report *report)
{
    const size_t end = (n + PIECE - 1) / PIECE;

    if (blockIdx.x == 0 && threadIdx.x == 0) {
        report->bad = HDT_DEVICE_GOOD;
    }
    for (size_t p = blockIdx.x * WARPS + warp_id(); p < end; p += gridDim.x * WARPS) {
        const size_t at = p * PIECE + 4 * lane_id();
        uint2 h[STEPS];

#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            const size_t i = at + j * STEP_VALUES;

            h[j] = make_uint2(0, 0);
            if (i + 4 <= n) {
                h[j] = *reinterpret_cast<const uint2 *>(src + i);
            } else if (i < n) {
                h[j].x = src[i] | (i + 1 < n ? src[i + 1] : 0u) << 16;
                h[j].y = i + 2 < n ? src[i + 2] : 0u;
            }
        }
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            const float x[4] = {cast_back<KIND>(h[j].x & 0xffff), cast_back<KIND>(h[j].x >> 16),
                                cast_back<KIND>(h[j].y & 0xffff), cast_back<KIND>(h[j].y >> 16)};

            emit_four<EMIT>(dst, at + j * STEP_VALUES, n, x);
        }
    }
}

/* ---- sums ---- */

__global__ void __launch_bounds__(THREADS) add_kernel(const float *src, size_t n, float *dst)
{
    for (size_t i = 4 * (blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x); i < n;
         i += 4 * static_cast<size_t>(gridDim.x) * THREADS) {
        float x[4] = {};

        for (int c = 0; c < 4 && i + c < n; c++) {
            x[c] = src[i + c];
        }
        emit_four<HDT_EMIT_ADD>(dst, i, n, x);
    }
}

/* ---- planes ---- */

struct planes {
    uint8_t *of[8];
};

template <int SIZE> struct element;
template <> struct element<2> {
    using word = uint16_t;
};
template <> struct element<4> {
    using word = uint32_t;
};
template <> struct element<8> {
    using word = uint64_t;
};

template <class Word> __device__ __forceinline__ Word rotate_left(Word u, int by)
{
    constexpr int BITS = 8 * static_cast<int>(sizeof(Word));

    return by == 0 ? u : static_cast<Word>(u << by | u >> (BITS - by));
}

/* Four elements: their words in registers, and the bytes p of all four as one word. */
template <int SIZE> struct four {
    using word = typename element<SIZE>::word;
    word u[4];

    __device__ void load(const void *src, size_t i)
    {
        constexpr int N = 4 * SIZE >= 16 ? SIZE / 4 : 1;

        if constexpr (SIZE == 2) {
            const uint2 two = static_cast<const uint2 *>(src)[i / 4];

            memcpy(u, &two, sizeof(u));
        } else {
            uint4 wide[N];

#pragma unroll
            for (int k = 0; k < N; k++) {
                wide[k] = static_cast<const uint4 *>(src)[i / 4 * N + k];
            }
            memcpy(u, wide, sizeof(u));
        }
    }

    __device__ void store(void *dst, size_t i) const
    {
        constexpr int N = 4 * SIZE >= 16 ? SIZE / 4 : 1;

        if constexpr (SIZE == 2) {
            uint2 two;

            memcpy(&two, u, sizeof(u));
            static_cast<uint2 *>(dst)[i / 4] = two;
        } else {
            uint4 wide[N];

            memcpy(wide, u, sizeof(u));
#pragma unroll
            for (int k = 0; k < N; k++) {
                static_cast<uint4 *>(dst)[i / 4 * N + k] = wide[k];
            }
        }
    }

    __device__ uint32_t bytes(int p) const
    {
        uint32_t all = 0;

#pragma unroll
        for (int e = 0; e < 4; e++) {
            all |= static_cast<uint32_t>(u[e] >> (8 * p) & 0xff) << (8 * e);
        }
        return all;
    }

    __device__ void set_bytes(int p, uint32_t all)
    {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u[e] = static_cast<word>(u[e] | static_cast<word>(all >> (8 * e) & 0xff) << (8 * p));
        }
    }

    __device__ void rotate(int by)
    {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u[e] = rotate_left(u[e], by);
        }
    }
};

/* Fours that a thread has under way. */
template <int SIZE> constexpr int PLANE_STEPS = SIZE == 2 ? 8 : 4;

/* `n_fast` elements by four, where all is aligned; the rest one by one. */
template <int SIZE>
__global__ void __launch_bounds__(THREADS)
    split_kernel(const void *src, size_t n, size_t n_fast, int left, planes to)
{
    const size_t stride = static_cast<size_t>(gridDim.x) * THREADS;
    const size_t self = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;

    for (size_t q = self; q < n_fast / 4; q += PLANE_STEPS<SIZE> * stride) {
        four<SIZE> it[PLANE_STEPS<SIZE>];

#pragma unroll
        for (int k = 0; k < PLANE_STEPS<SIZE>; k++) {
            if (q + k * stride < n_fast / 4) {
                it[k].load(src, 4 * (q + k * stride));
            }
        }
#pragma unroll
        for (int k = 0; k < PLANE_STEPS<SIZE>; k++) {
            if (q + k * stride < n_fast / 4) {
                it[k].rotate(left);
#pragma unroll
                for (int p = 0; p < SIZE; p++) {
                    reinterpret_cast<uint32_t *>(to.of[p])[q + k * stride] = it[k].bytes(p);
                }
            }
        }
    }
    for (size_t i = n_fast + self; i < n; i += stride) {
        typename element<SIZE>::word u = static_cast<const typename element<SIZE>::word *>(src)[i];

        u = rotate_left(u, left);
        for (int p = 0; p < SIZE; p++) {
            to.of[p][i] = static_cast<uint8_t>(u >> (8 * p));
        }
    }
}

template <int SIZE>
__global__ void __launch_bounds__(THREADS)
    join_kernel(planes from, size_t n, size_t n_fast, int right, void *dst)
{
    using word = typename element<SIZE>::word;
    constexpr int BITS = 8 * SIZE;
    const size_t stride = static_cast<size_t>(gridDim.x) * THREADS;
    const size_t self = blockIdx.x * static_cast<size_t>(THREADS) + threadIdx.x;

    for (size_t q = self; q < n_fast / 4; q += PLANE_STEPS<SIZE> * stride) {
        uint32_t bytes[PLANE_STEPS<SIZE>][SIZE];

#pragma unroll
        for (int k = 0; k < PLANE_STEPS<SIZE>; k++) {
#pragma unroll
            for (int p = 0; p < SIZE && q + k * stride < n_fast / 4; p++) {
                bytes[k][p] = reinterpret_cast<const uint32_t *>(from.of[p])[q + k * stride];
            }
        }
#pragma unroll
        for (int k = 0; k < PLANE_STEPS<SIZE>; k++) {
            four<SIZE> it = {};

            if (q + k * stride < n_fast / 4) {
#pragma unroll
                for (int p = 0; p < SIZE; p++) {
                    it.set_bytes(p, bytes[k][p]);
                }
                it.rotate(right ? BITS - right : 0);
                it.store(dst, 4 * (q + k * stride));
            }
        }
    }
    for (size_t i = n_fast + self; i < n; i += stride) {
        word u = 0;

        for (int p = 0; p < SIZE; p++) {
            u = static_cast<word>(u | static_cast<word>(from.of[p][i]) << (8 * p));
        }
        static_cast<word *>(dst)[i] = rotate_left(u, right ? BITS - right : 0);
    }
}

size_t fast_len(size_t n, size_t size, const planes &p)
{
    uintptr_t all = 0;

    for (size_t i = 0; i < size; i++) {
        all |= reinterpret_cast<uintptr_t>(p.of[i]);
    }
    return all % 4 == 0 ? n / 4 * 4 : 0;
}

template <int SIZE>
cudaError_t split_launch(cudaStream_t stream, bool rotate, const void *src, size_t n,
                         const planes &to)
{
    unsigned n_blocks;
    const cudaError_t code = grid_size(n, 4 * PLANE_STEPS<SIZE> * THREADS, 8, &n_blocks);

    if (code != cudaSuccess || n == 0) {
        return code;
    }
    split_kernel<SIZE><<<n_blocks, THREADS, 0, stream>>>(src, n, fast_len(n, SIZE, to), rotate, to);
    return cudaGetLastError();
}

template <int SIZE>
cudaError_t join_launch(cudaStream_t stream, bool rotate, const planes &from, size_t n, void *dst)
{
    unsigned n_blocks;
    const cudaError_t code = grid_size(n, 4 * PLANE_STEPS<SIZE> * THREADS, 8, &n_blocks);

    if (code != cudaSuccess || n == 0) {
        return code;
    }
    join_kernel<SIZE>
        <<<n_blocks, THREADS, 0, stream>>>(from, n, fast_len(n, SIZE, from), rotate, dst);
    return cudaGetLastError();
}

/* ---- launches ---- */

template <hdt_cast_kind KIND>
cudaError_t cast_decode_launch(cudaStream_t stream, const void *src, const hdt_device_out &out)
{
    const uint16_t *from = static_cast<const uint16_t *>(src);
    unsigned n_blocks;
    const cudaError_t code = grid_size(n_pieces(out.n), WARPS, BLOCKS_PER_SM, &n_blocks);

    if (code != cudaSuccess) {
        return code;
    }
    switch (out.emit) {
    case HDT_EMIT_F32:
        cast_decode_kernel<KIND, HDT_EMIT_F32>
            <<<n_blocks, THREADS, 0, stream>>>(from, out.n, out.dst, out.report);
        break;
    case HDT_EMIT_ADD:
        cast_decode_kernel<KIND, HDT_EMIT_ADD>
            <<<n_blocks, THREADS, 0, stream>>>(from, out.n, out.dst, out.report);
        break;
    default:
        cast_decode_kernel<KIND, HDT_EMIT_BF16>
            <<<n_blocks, THREADS, 0, stream>>>(from, out.n, out.dst, out.report);
        break;
    }
    return cudaGetLastError();
}

} // namespace

cudaError_t hdt_cuda_codec_look(cudaStream_t stream, const struct hdt_device_in *in)
{
    const source src = {in->src, in->dtype == HDT_DTYPE_BF16, in->n};
    unsigned n_blocks;
    const cudaError_t code = grid_size(n_pieces(in->n), WARPS, BLOCKS_PER_SM, &n_blocks);

    if (code != cudaSuccess) {
        return code;
    }
    look_kernel<<<n_blocks, THREADS, 0, stream>>>(src, static_cast<scratch *>(in->scratch),
                                                  in->report);
    return cudaGetLastError();
}

cudaError_t hdt_cuda_codec_cast_encode(cudaStream_t stream, enum hdt_cast_kind kind,
                                       const struct hdt_device_in *in, void *dst)
{
    cast_job job = {};
    unsigned n_blocks;
    const cudaError_t code = grid_size(n_pieces(in->n), WARPS, BLOCKS_PER_SM, &n_blocks);

    if (code != cudaSuccess) {
        return code;
    }
    job.in = {in->src, in->dtype == HDT_DTYPE_BF16, in->n};
    job.is_random = in->random != nullptr;
    job.random = in->random ? *in->random : hdt_random{};
    job.dst = static_cast<uint16_t *>(dst);
    job.s = static_cast<scratch *>(in->scratch);
    job.report = in->report;
    if (kind == HDT_CAST_BF16) {
        cast_encode_kernel<HDT_CAST_BF16><<<n_blocks, THREADS, 0, stream>>>(job);
    } else {
        cast_encode_kernel<HDT_CAST_F16><<<n_blocks, THREADS, 0, stream>>>(job);
    }
    return cudaGetLastError();
}

cudaError_t hdt_cuda_codec_cast_decode(cudaStream_t stream, enum hdt_cast_kind kind,
                                       const void *src, const struct hdt_device_out *out)
{
    return kind == HDT_CAST_BF16 ? cast_decode_launch<HDT_CAST_BF16>(stream, src, *out)
                                 : cast_decode_launch<HDT_CAST_F16>(stream, src, *out);
}

cudaError_t hdt_cuda_codec_add(cudaStream_t stream, const void *src, size_t n, void *dst)
{
    unsigned n_blocks;
    const cudaError_t code = grid_size(n, 4 * THREADS, 8, &n_blocks);

    if (code != cudaSuccess) {
        return code;
    }
    add_kernel<<<n_blocks, THREADS, 0, stream>>>(static_cast<const float *>(src), n,
                                                 static_cast<float *>(dst));
    return cudaGetLastError();
}

cudaError_t hdt_cuda_codec_split(cudaStream_t stream, size_t size, bool rotate, const void *src,
                                 size_t n, uint8_t *const to[])
{
    planes p = {};

    for (size_t i = 0; i < size; i++) {
        p.of[i] = to[i];
    }
    switch (size) {
    case 1:
        return cudaMemcpyAsync(to[0], src, n, cudaMemcpyDeviceToDevice, stream);
    case 2:
        return split_launch<2>(stream, rotate, src, n, p);
    case 4:
        return split_launch<4>(stream, rotate, src, n, p);
    case 8:
        return split_launch<8>(stream, rotate, src, n, p);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t hdt_cuda_codec_join(cudaStream_t stream, size_t size, bool rotate,
                                const uint8_t *const from[], size_t n, void *dst)
{
    planes p = {};

    for (size_t i = 0; i < size; i++) {
        p.of[i] = const_cast<uint8_t *>(from[i]);
    }
    switch (size) {
    case 1:
        return cudaMemcpyAsync(dst, from[0], n, cudaMemcpyDeviceToDevice, stream);
    case 2:
        return join_launch<2>(stream, rotate, p, n, dst);
    case 4:
        return join_launch<4>(stream, rotate, p, n, dst);
    case 8:
        return join_launch<8>(stream, rotate, p, n, dst);
    default:
        return cudaErrorInvalidValue;
    }
}
