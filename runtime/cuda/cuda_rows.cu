/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotations, SwiGLU, embedding forward and cross-entropy. All of them are bound by memory; where
 * arrays stand on 16-byte words a thread takes eight neighbouring elements.
 */
#include "runtime/cuda/cuda_rows.h"
#include "runtime/cuda/cuda_vec.cuh"

using namespace hdt_cuda;

namespace
{

constexpr int THREADS = 256;

int blocks_of(size_t n_items)
{
    return static_cast<int>((n_items + THREADS - 1) / THREADS);
}

/* Blocks for the items of each of `n` rows: a thread has one item, a block items of one row, so
 * that where a thread works needs no division of large numbers. */
constexpr int ROW_THREADS_MAX = 384;

struct row_grid {
    int n_across; /* blocks of a row */
    int threads;

    explicit row_grid(int n_items)
        : n_across((n_items + ROW_THREADS_MAX - 1) / ROW_THREADS_MAX), threads(0)
    {
        n_across = n_across < 1 ? 1 : n_across;
        threads = ((n_items + n_across - 1) / n_across + WARP - 1) / WARP * WARP;
        threads = threads < WARP ? WARP : threads;
    }

    cudaLaunchConfig_t config(cudaStream_t stream, int n) const
    {
        return launch_of(stream, dim3(static_cast<unsigned>(n) * static_cast<unsigned>(n_across)),
                         threads);
    }
};

/* Of a thread: its row and item. */
struct row_place {
    int row, item;
};

static __device__ __forceinline__ row_place row_place_of(int n_across)
{
    const int block = static_cast<int>(blockIdx.x);

    return {block / n_across,
            block % n_across * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)};
}

/* ---- Rotations ------------------------------------------------------------------------------- */

/* A thread: N neighbouring pairs (i, i + HS/2) of a head. */
template <class T, int N>
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    rope_kernel(hdt_cuda_rope_args p, T *x, int n_across)
{
    const row_place place = row_place_of(n_across);
    const int half = p.head_size / 2, per_head = half / N;

    if (place.item >= p.n_heads * per_head) {
        return;
    }
    const int i = place.item % per_head * N;
    const float *angles =
        p.cos_sin + static_cast<size_t>(place.row % p.t + p.pos) * p.head_size + i;
    T *at = x + static_cast<size_t>(place.row) * p.stride + place.item / per_head * p.head_size + i;
    float a[N], b[N], cosines[N], sines[N];

    load(at, a);
    load(at + half, b);
    load(angles, cosines);
    load(angles + half, sines);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float c = cosines[j], s = sines[j] * p.direction, low = a[j];

        a[j] = low * c - b[j] * s;
        b[j] = b[j] * c + low * s;
    }
    store(at, a);
    store(at + half, b);
}

template <class T, int N>
cudaError_t rope_launch(cudaStream_t stream, const hdt_cuda_rope_args &p, T *x)
{
    const row_grid grid(p.n_heads * (p.head_size / 2 / N));
    const cudaLaunchConfig_t config = grid.config(stream, p.n);

    return p.n == 0 || p.n_heads == 0
               ? cudaSuccess
               : cudaLaunchKernelEx(&config, rope_kernel<T, N>, p, x, grid.n_across);
}

template <class T> cudaError_t rope_run(cudaStream_t stream, const hdt_cuda_rope_args &p, T *x)
{
    const bool is_vec = p.head_size % 16 == 0 && is_aligned(x, static_cast<size_t>(p.stride)) &&
                        is_aligned(p.cos_sin, static_cast<size_t>(p.head_size));

    return is_vec ? rope_launch<T, 8>(stream, p, x) : rope_launch<T, 1>(stream, p, x);
}

/* ---- SwiGLU ---------------------------------------------------------------------------------- */

static __device__ __forceinline__ float sigmoid_of(float x, const float *)
{
    return 1.0f / (1.0f + expf(-x));
}

/* A value of 8 bits needs no better. */
static __device__ __forceinline__ float sigmoid_of(float x, const __nv_bfloat16 *)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

template <class T, int N>
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    swiglu_fwd_kernel(const T *gate_up, int n_across, int f, T *h, float *amax)
{
    const row_place place = row_place_of(n_across);
    const size_t row = static_cast<size_t>(place.row);
    const int col = place.item * N;
    float gate[N], up[N];
    uint32_t bits = 0;

    if (col < f) {
        load(gate_up + 2 * row * f + col, gate);
        load(gate_up + 2 * row * f + f + col, up);
#pragma unroll
        for (int i = 0; i < N; i++) {
            gate[i] = gate[i] * sigmoid_of(gate[i], gate_up) * up[i];
            bits = magnitude_max(bits, gate[i]);
        }
        store(h + row * f + col, gate);
    }
    if (amax) {
        amax_raise(amax, bits);
    }
}

template <class T, int N>
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    swiglu_bwd_kernel(const T *dh, const T *gate_up, int n_across, int f, T *dgate_up, T *h,
                      float *amax)
{
    const row_place place = row_place_of(n_across);
    const size_t row = static_cast<size_t>(place.row);
    const int col = place.item * N;
    float gate[N], up[N], d[N], out[N];
    uint32_t bits = 0;

    if (col < f) {
        load(gate_up + 2 * row * f + col, gate);
        load(gate_up + 2 * row * f + f + col, up);
        load(dh + row * f + col, d);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float sigmoid = sigmoid_of(gate[i], gate_up), silu = gate[i] * sigmoid;

            out[i] = silu * up[i];
            gate[i] = d[i] * up[i] * sigmoid * (1.0f + gate[i] - silu);
            up[i] = d[i] * silu;
            bits = magnitude_max(magnitude_max(bits, gate[i]), up[i]);
        }
        store(dgate_up + 2 * row * f + col, gate);
        store(dgate_up + 2 * row * f + f + col, up);
        if (h) {
            store(h + row * f + col, out);
        }
    }
    if (amax) {
        amax_raise(amax, bits);
    }
}

template <class T, int N>
cudaError_t swiglu_fwd_launch(cudaStream_t stream, const T *gate_up, int n, int f, T *h,
                              float *amax)
{
    const row_grid grid(f / N);
    const cudaLaunchConfig_t config = grid.config(stream, n);

    return n == 0 ? cudaSuccess
                  : cudaLaunchKernelEx(&config, swiglu_fwd_kernel<T, N>, gate_up, grid.n_across, f,
                                       h, amax);
}

template <class T, int N>
cudaError_t swiglu_bwd_launch(cudaStream_t stream, const T *dh, const T *gate_up, int n, int f,
                              T *dgate_up, T *h, float *amax)
{
    const row_grid grid(f / N);
    const cudaLaunchConfig_t config = grid.config(stream, n);

    return n == 0 ? cudaSuccess
                  : cudaLaunchKernelEx(&config, swiglu_bwd_kernel<T, N>, dh, gate_up, grid.n_across,
                                       f, dgate_up, h, amax);
}

template <class T>
cudaError_t swiglu_fwd(cudaStream_t stream, const T *gate_up, int n, int f, T *h, float *amax)
{
    return is_aligned(gate_up, f) && is_aligned(h, f)
               ? swiglu_fwd_launch<T, 8>(stream, gate_up, n, f, h, amax)
               : swiglu_fwd_launch<T, 1>(stream, gate_up, n, f, h, amax);
}

template <class T>
cudaError_t swiglu_bwd(cudaStream_t stream, const T *dh, const T *gate_up, int n, int f,
                       T *dgate_up, T *h, float *amax)
{
    return is_aligned(dh, f) && is_aligned(gate_up, f) && is_aligned(dgate_up, f) &&
                   (!h || is_aligned(h, f))
               ? swiglu_bwd_launch<T, 8>(stream, dh, gate_up, n, f, dgate_up, h, amax)
               : swiglu_bwd_launch<T, 1>(stream, dh, gate_up, n, f, dgate_up, h, amax);
}

/* ---- Embedding, forward ---------------------------------------------------------------------- */

template <int N>
__global__ void __launch_bounds__(THREADS)
    embedding_fwd_kernel(const int32_t *tokens, const float *w, size_t n_items, int c, float *out)
{
    const size_t item = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
    const int per_row = c / N;

    if (item >= n_items) {
        return;
    }
    const size_t row = item / per_row;
    const int col = static_cast<int>(item % per_row) * N;
    float value[N];

    load(w + static_cast<size_t>(tokens[row]) * c + col, value);
    store(out + row * c + col, value);
}

template <int N>
cudaError_t embedding_fwd_launch(cudaStream_t stream, const int32_t *tokens, const float *w, int n,
                                 int c, float *out)
{
    const size_t n_items = static_cast<size_t>(n) * (c / N);
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>(blocks_of(n_items))), THREADS);

    return n_items == 0
               ? cudaSuccess
               : cudaLaunchKernelEx(&config, embedding_fwd_kernel<N>, tokens, w, n_items, c, out);
}

/* ---- Cross-entropy --------------------------------------------------------------------------- */

constexpr int CE_THREADS = 512;

static __device__ __forceinline__ float exp_of(float x, const float *)
{
    return expf(x);
}

/* Logits of 8 bits need no better. */
static __device__ __forceinline__ float exp_of(float x, const __nv_bfloat16 *)
{
    return __expf(x);
}

/* The largest value of the row, and the sum of exponentials below it. */
template <class T, int N>
__device__ __forceinline__ void row_softmax(const T *row, int v, float *max_out, float *sum_out)
{
    __shared__ float warps[2][WARP];
    float max = -INFINITY, sum = 0;

    for (int col = static_cast<int>(threadIdx.x) * N; col < v; col += CE_THREADS * N) {
        float x[N], largest = max;

        load(row + col, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            largest = fmaxf(largest, x[i]);
        }
        if (largest > max) {
            sum *= exp_of(max - largest, row);
            max = largest;
        }
        if (max == -INFINITY) { /* nothing but masked ones so far: they add nothing */
            continue;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum += exp_of(x[i] - max, row);
        }
    }
    float all = warp_max(max);

    if (threadIdx.x % WARP == 0) {
        warps[0][threadIdx.x / WARP] = all;
    }
    __syncthreads();
    for (int i = 0; i < CE_THREADS / WARP; i++) {
        all = fmaxf(all, warps[0][i]);
    }
    *max_out = all;
    *sum_out = block_sum(max == -INFINITY ? 0 : sum * exp_of(max - all, row), warps[1]);
}

template <class T, int N>
__global__ void __launch_bounds__(CE_THREADS)
    cross_entropy_kernel(const int32_t *labels, int v, float scale, T *logits, double *row_loss)
{
    T *row = logits + static_cast<size_t>(blockIdx.x) * v;
    const int label = labels[blockIdx.x];
    float max = 0, sum = 1;

    if (label >= 0) {
        row_softmax<T, N>(row, v, &max, &sum);
    }
    if (threadIdx.x == 0) {
        float at[1] = {0};

        if (label >= 0) {
            load(row + label, at);
        }
        row_loss[blockIdx.x] = label >= 0
                                   ? (static_cast<double>(max) - static_cast<double>(at[0])) +
                                         static_cast<double>(logf(sum))
                                   : 0;
    }
    if (scale == 0) {
        return;
    }
    __syncthreads(); /* the label's logit was read */
    const float factor = label >= 0 ? scale / sum : 0;

    for (int col = static_cast<int>(threadIdx.x) * N; col < v; col += CE_THREADS * N) {
        float x[N];

        load(row + col, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = label >= 0 ? exp_of(x[i] - max, row) * factor : 0;
            x[i] -= col + i == label ? scale : 0;
        }
        store(row + col, x);
    }
}

constexpr int SUM_THREADS = 1024;

/* One block. */
__global__ void __launch_bounds__(SUM_THREADS)
    losses_add_kernel(const double *row_loss, int n, double *loss_sum)
{
    __shared__ double sums[SUM_THREADS];
    double sum = 0;

    for (int i = static_cast<int>(threadIdx.x); i < n; i += SUM_THREADS) {
        sum += row_loss[i];
    }
    sums[threadIdx.x] = sum;
    for (int step = SUM_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < step) {
            sums[threadIdx.x] += sums[threadIdx.x + step];
        }
    }
    if (threadIdx.x == 0) {
        *loss_sum += sums[0];
    }
}

template <class T>
cudaError_t cross_entropy(cudaStream_t stream, const int32_t *labels, int n, int v, float scale,
                          T *logits, double *row_loss)
{
    const cudaLaunchConfig_t config = launch_of(stream, dim3(static_cast<unsigned>(n)), CE_THREADS);

    return is_aligned(logits, v) ? cudaLaunchKernelEx(&config, cross_entropy_kernel<T, 8>, labels,
                                                      v, scale, logits, row_loss)
                                 : cudaLaunchKernelEx(&config, cross_entropy_kernel<T, 1>, labels,
                                                      v, scale, logits, row_loss);
}

} // namespace

cudaError_t hdt_cuda_rope(cudaStream_t stream, const struct hdt_cuda_rope_args *p,
                          enum hdt_dtype dtype, void *x)
{
    return dtype == HDT_DTYPE_BF16 ? rope_run(stream, *p, static_cast<__nv_bfloat16 *>(x))
                                   : rope_run(stream, *p, static_cast<float *>(x));
}

cudaError_t hdt_cuda_swiglu_fwd(cudaStream_t stream, const void *gate_up, int n, int f,
                                enum hdt_dtype dtype, void *h, float *amax)
{
    return dtype == HDT_DTYPE_BF16 ? swiglu_fwd(stream, static_cast<const __nv_bfloat16 *>(gate_up),
                                                n, f, static_cast<__nv_bfloat16 *>(h), amax)
                                   : swiglu_fwd(stream, static_cast<const float *>(gate_up), n, f,
                                                static_cast<float *>(h), amax);
}

cudaError_t hdt_cuda_swiglu_bwd(cudaStream_t stream, const void *dh, const void *gate_up, int n,
                                int f, enum hdt_dtype dtype, void *dgate_up, void *h, float *amax)
{
    return dtype == HDT_DTYPE_BF16
               ? swiglu_bwd(stream, static_cast<const __nv_bfloat16 *>(dh),
                            static_cast<const __nv_bfloat16 *>(gate_up), n, f,
                            static_cast<__nv_bfloat16 *>(dgate_up), static_cast<__nv_bfloat16 *>(h),
                            amax)
               : swiglu_bwd(stream, static_cast<const float *>(dh),
                            static_cast<const float *>(gate_up), n, f,
                            static_cast<float *>(dgate_up), static_cast<float *>(h), amax);
}

cudaError_t hdt_cuda_embedding_fwd(cudaStream_t stream, const int32_t *tokens, const float *w,
                                   int n, int c, float *out)
{
    return is_aligned(w, c) && is_aligned(out, c)
               ? embedding_fwd_launch<8>(stream, tokens, w, n, c, out)
               : embedding_fwd_launch<1>(stream, tokens, w, n, c, out);
}

cudaError_t hdt_cuda_cross_entropy(cudaStream_t stream, const int32_t *labels, int n, int v,
                                   float scale, enum hdt_dtype dtype, void *logits,
                                   double *row_loss, double *loss_sum)
{
    const cudaLaunchConfig_t config = launch_of(stream, dim3(1), SUM_THREADS);
    cudaError_t code;

    if (n == 0) {
        return cudaSuccess;
    }
    code = dtype == HDT_DTYPE_BF16
               ? cross_entropy(stream, labels, n, v, scale, static_cast<__nv_bfloat16 *>(logits),
                               row_loss)
               : cross_entropy(stream, labels, n, v, scale, static_cast<float *>(logits), row_loss);
    return code == cudaSuccess
               ? cudaLaunchKernelEx(&config, losses_add_kernel,
                                    static_cast<const double *>(row_loss), n, loss_sum)
               : code;
}
