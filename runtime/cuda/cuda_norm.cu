/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Root-mean-square norms. They are bound by memory: a block, or forward a warp, keeps a whole row
 * in registers, so that each array is read once; a thread has four neighbouring columns, and those
 * that are as many further on as the block has threads, so that a warp's float32 accesses are whole
 * lines. Rows that are too wide, or that do not stand on 16-byte words, take kernels that read
 * twice, element by element.
 *
 * Backward: a block goes through many rows and adds up its own share of the weights' gradient on
 * the way; a second kernel adds the shares, in the order of the blocks.
 */
#include "runtime/cuda/cuda_rows.h"
#include "runtime/cuda/cuda_vec.cuh"

using namespace hdt_cuda;

namespace
{

constexpr int VEC = 4;
constexpr int THREADS_MAX = 512;
constexpr int COLS = 32; /* of a block that adds columns up */
constexpr int ROW_GROUPS = 32;
constexpr int FWD_WARPS = 4; /* rows of a block, forward */

/* Threads so that each has one vector, or more when a row has more than THREADS_MAX. */
int row_threads(int c)
{
    const int n_vecs = (c + VEC - 1) / VEC;

    return n_vecs >= THREADS_MAX ? THREADS_MAX : (n_vecs + WARP - 1) / WARP * WARP;
}

/* Vectors of a thread. */
int row_vecs(int c)
{
    return (c / VEC + row_threads(c) - 1) / row_threads(c);
}

/* Blocks that share out the rows in the backward pass: as many as the multiprocessors of an H100
 * hold at a time (1024 threads by their registers, with one vector each). Of the width alone, so
 * that sums have one order on all devices. */
int n_shares(int c)
{
    constexpr int n_multiprocessors = 132;

    return n_multiprocessors * (row_vecs(c) <= 1 ? 1024 / row_threads(c) : 1);
}

template <class T, int NV>
__global__ void __launch_bounds__(THREADS_MAX)
    norm_fwd_vec(const float *x, const float *w, int c, float eps, T *y, float *rstd)
{
    __shared__ float warps[WARP];
    const size_t at = static_cast<size_t>(blockIdx.x) * c;
    float values[NV][VEC], sum = 0;

#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = static_cast<int>(v * blockDim.x + threadIdx.x) * VEC;

        if (col < c) {
            load(x + at + col, values[v]);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                sum += values[v][i] * values[v][i];
            }
        }
    }
    const float r = 1.0f / sqrtf(block_sum(sum, warps) / static_cast<float>(c) + eps);

#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = static_cast<int>(v * blockDim.x + threadIdx.x) * VEC;

        if (col < c) {
            float weights[VEC];

            load(w + col, weights);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                values[v][i] = values[v][i] * r * weights[i];
            }
            store(y + at + col, values[v]);
        }
    }
    if (threadIdx.x == 0) {
        rstd[blockIdx.x] = r;
    }
}

/* A row for each warp, all of it in registers: no barriers, and many loads under way. */
template <class T, int NV>
__global__ void __launch_bounds__(FWD_WARPS *WARP)
    norm_fwd_warp(const float *x, const float *w, int n, int c, float eps, T *y, float *rstd)
{
    const int row = static_cast<int>(blockIdx.x) * FWD_WARPS + static_cast<int>(threadIdx.x) / WARP;
    const int first = static_cast<int>(threadIdx.x) % WARP * VEC;
    const size_t at = static_cast<size_t>(row) * c;
    float values[NV][VEC], sum = 0;

    if (row >= n) {
        return;
    }
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = v * WARP * VEC + first;

        if (col < c) {
            load(x + at + col, values[v]);
        }
    }
#pragma unroll
    for (int v = 0; v < NV; v++) {
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            sum += v * WARP * VEC + first < c ? values[v][i] * values[v][i] : 0;
        }
    }
    const float r = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(c) + eps);

#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = v * WARP * VEC + first;

        if (col < c) {
            float weights[VEC];

            load(w + col, weights);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                values[v][i] = values[v][i] * r * weights[i];
            }
            store(y + at + col, values[v]);
        }
    }
    if (first == 0) {
        rstd[row] = r;
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS_MAX)
    norm_fwd_any(const float *x, const float *w, int c, float eps, T *y, float *rstd)
{
    __shared__ float warps[WARP];
    const size_t at = static_cast<size_t>(blockIdx.x) * c;
    float sum = 0;

    for (int col = static_cast<int>(threadIdx.x); col < c; col += static_cast<int>(blockDim.x)) {
        sum += x[at + col] * x[at + col];
    }
    const float r = 1.0f / sqrtf(block_sum(sum, warps) / static_cast<float>(c) + eps);

    for (int col = static_cast<int>(threadIdx.x); col < c; col += static_cast<int>(blockDim.x)) {
        const float value[1] = {x[at + col] * r * w[col]};

        store(y + at + col, value);
    }
    if (threadIdx.x == 0) {
        rstd[blockIdx.x] = r;
    }
}

template <class T>
cudaError_t norm_fwd(cudaStream_t stream, const float *x, const float *w, int n, int c, float eps,
                     T *y, float *rstd)
{
    const int n_vecs = row_vecs(c);
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>(n)), row_threads(c));
    const cudaLaunchConfig_t warps = launch_of(
        stream, dim3(static_cast<unsigned>((n + FWD_WARPS - 1) / FWD_WARPS)), FWD_WARPS * WARP);
    const bool is_vec = is_aligned(x, c) && is_aligned(w, c) && is_aligned(y, c);

    if (is_vec && c <= 8 * WARP * VEC) {
        return cudaLaunchKernelEx(&warps, norm_fwd_warp<T, 8>, x, w, n, c, eps, y, rstd);
    }
    if (is_vec && c <= 16 * WARP * VEC) {
        return cudaLaunchKernelEx(&warps, norm_fwd_warp<T, 16>, x, w, n, c, eps, y, rstd);
    }
    if (is_vec && n_vecs == 2) {
        return cudaLaunchKernelEx(&config, norm_fwd_vec<T, 2>, x, w, c, eps, y, rstd);
    }
    if (is_vec && n_vecs <= 4) {
        return cudaLaunchKernelEx(&config, norm_fwd_vec<T, 4>, x, w, c, eps, y, rstd);
    }
    return cudaLaunchKernelEx(&config, norm_fwd_any<T>, x, w, c, eps, y, rstd);
}

/* Sums over rows r of column `col`, in an order that the number of rows decides, added to dw. */
template <class Term>
__global__ void __launch_bounds__(COLS *ROW_GROUPS) columns_add(Term term, int n, int c, float *dw)
{
    __shared__ float sums[ROW_GROUPS][COLS];
    const int lane = static_cast<int>(threadIdx.x) % COLS;
    const int group = static_cast<int>(threadIdx.x) / COLS;
    const int col = static_cast<int>(blockIdx.x) * COLS + lane;
    float sum = 0;

#pragma unroll 4
    for (int row = group; row < n; row += ROW_GROUPS) {
        sum += col < c ? term(row, col) : 0;
    }
    sums[group][lane] = sum;
    __syncthreads();
    if (group == 0 && col < c) {
        for (int i = 1; i < ROW_GROUPS; i++) {
            sum += sums[i][lane];
        }
        dw[col] += sum;
    }
}

template <class Term>
cudaError_t columns_launch(cudaStream_t stream, const Term &term, int n, int c, float *dw)
{
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>((c + COLS - 1) / COLS)), COLS * ROW_GROUPS);

    return cudaLaunchKernelEx(&config, columns_add<Term>, term, n, c, dw);
}

struct partial_term {
    const float *partials;
    int c;

    __device__ float operator()(int row, int col) const
    {
        return partials[static_cast<size_t>(row) * c + col];
    }
};

template <class T> struct dw_term {
    const T *dy;
    const float *x, *rstd;
    int c;

    __device__ float operator()(int row, int col) const
    {
        const size_t at = static_cast<size_t>(row) * c + col;
        float value[1];

        load(dy + at, value);
        return value[0] * (x[at] * rstd[row]);
    }
};

template <class T> struct norm_bwd_args {
    const T *dy;
    const float *x, *w, *rstd;
    int n, c;
    float *dx;
    T *dx_act; /* NULL: dx in float32 alone */
    float *partials;
};

/* A row as the threads of a block hold it. */
template <class T, int NV> struct norm_row {
    float dy[NV][VEC], x[NV][VEC], dx[NV][VEC];

    __device__ __forceinline__ void read(const norm_bwd_args<T> &p, int row)
    {
        const size_t at = static_cast<size_t>(row) * p.c;

#pragma unroll
        for (int v = 0; v < NV; v++) {
            const int col = static_cast<int>(v * blockDim.x + threadIdx.x) * VEC;

            if (row < p.n && col < p.c) {
                load(p.dy + at + col, dy[v]);
                load(p.x + at + col, x[v]);
                load(p.dx + at + col, dx[v]);
            }
        }
    }

    /* This thread's part of the sum of dy w x / rms; adds to the share. */
    __device__ __forceinline__ float sum(const norm_bwd_args<T> &p, int row,
                                         const float (&weights)[NV][VEC], float (&share)[NV][VEC])
    {
        const float r = row < p.n ? p.rstd[row] : 0;
        float total = 0;

#pragma unroll
        for (int v = 0; v < NV; v++) {
            const int col = static_cast<int>(v * blockDim.x + threadIdx.x) * VEC;

            if (row < p.n && col < p.c) {
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    x[v][i] *= r;
                    share[v][i] += dy[v][i] * x[v][i];
                    dy[v][i] *= weights[v][i];
                    total += dy[v][i] * x[v][i];
                }
            }
        }
        return total;
    }

    __device__ __forceinline__ void write(const norm_bwd_args<T> &p, int row, float mean)
    {
        const size_t at = static_cast<size_t>(row) * p.c;
        const float r = row < p.n ? p.rstd[row] : 0;

#pragma unroll
        for (int v = 0; v < NV; v++) {
            const int col = static_cast<int>(v * blockDim.x + threadIdx.x) * VEC;

            if (row < p.n && col < p.c) {
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    dx[v][i] += r * (dy[v][i] - x[v][i] * mean);
                }
                store(p.dx + at + col, dx[v]);
                if (p.dx_act) {
                    store(p.dx_act + at + col, dx[v]);
                }
            }
        }
    }
};

/* Two rows at a time: twice as many loads are under way, and one barrier serves both. */
template <class T, int NV>
__global__ void __launch_bounds__(THREADS_MAX) norm_bwd_vec(norm_bwd_args<T> p)
{
    __shared__ float warps[2][2][WARP];
    float weights[NV][VEC], share[NV][VEC];

#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = static_cast<int>(v * blockDim.x + threadIdx.x) * VEC;

#pragma unroll
        for (int i = 0; i < VEC; i++) {
            share[v][i] = 0;
        }
        if (col < p.c) {
            load(p.w + col, weights[v]);
        }
    }
    for (int row = static_cast<int>(blockIdx.x) * 2, turn = 0; row < p.n;
         row += static_cast<int>(gridDim.x) * 2, turn ^= 1) {
        norm_row<T, NV> a, b;

        a.read(p, row);
        b.read(p, row + 1);
        const float sum_a = warp_sum(a.sum(p, row, weights, share));
        const float sum_b = warp_sum(b.sum(p, row + 1, weights, share));

        if (threadIdx.x % WARP == 0) {
            warps[turn][0][threadIdx.x / WARP] = sum_a;
            warps[turn][1][threadIdx.x / WARP] = sum_b;
        }
        /* Two sets of sums in turn: no second barrier is needed. */
        __syncthreads();
        float mean_a = 0, mean_b = 0;

        for (int i = 0; i < static_cast<int>(blockDim.x) / WARP; i++) {
            mean_a += warps[turn][0][i];
            mean_b += warps[turn][1][i];
        }
        a.write(p, row, mean_a / static_cast<float>(p.c));
        b.write(p, row + 1, mean_b / static_cast<float>(p.c));
    }
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int col = static_cast<int>(v * blockDim.x + threadIdx.x) * VEC;

        if (col < p.c) {
            store(p.partials + static_cast<size_t>(blockIdx.x) * p.c + col, share[v]);
        }
    }
}

template <class T> __global__ void __launch_bounds__(THREADS_MAX) norm_dx_any(norm_bwd_args<T> p)
{
    __shared__ float warps[WARP];
    const size_t at = static_cast<size_t>(blockIdx.x) * p.c;
    const float r = p.rstd[blockIdx.x];
    float sum = 0;

    for (int col = static_cast<int>(threadIdx.x); col < p.c; col += static_cast<int>(blockDim.x)) {
        float dy[1];

        load(p.dy + at + col, dy);
        sum += dy[0] * p.w[col] * (p.x[at + col] * r);
    }
    const float mean = block_sum(sum, warps) / static_cast<float>(p.c);

    for (int col = static_cast<int>(threadIdx.x); col < p.c; col += static_cast<int>(blockDim.x)) {
        float value[1];

        load(p.dy + at + col, value);
        value[0] = p.dx[at + col] + r * (value[0] * p.w[col] - p.x[at + col] * r * mean);
        store(p.dx + at + col, value);
        if (p.dx_act) {
            store(p.dx_act + at + col, value);
        }
    }
}

template <class T, int NV>
cudaError_t norm_bwd_run(cudaStream_t stream, const norm_bwd_args<T> &p, float *dw)
{
    const int n_pairs = (p.n + 1) / 2;
    const int n_blocks = n_pairs < n_shares(p.c) ? n_pairs : n_shares(p.c);
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>(n_blocks)), row_threads(p.c));
    const cudaError_t code = cudaLaunchKernelEx(&config, norm_bwd_vec<T, NV>, p);

    return code == cudaSuccess
               ? columns_launch(stream, partial_term{p.partials, p.c}, n_blocks, p.c, dw)
               : code;
}

template <class T> cudaError_t norm_bwd(cudaStream_t stream, const norm_bwd_args<T> &p, float *dw)
{
    const int n_vecs = row_vecs(p.c);

    if (is_aligned(p.dy, p.c) && is_aligned(p.x, p.c) && is_aligned(p.w, p.c) &&
        is_aligned(p.dx, p.c) && (!p.dx_act || is_aligned(p.dx_act, p.c))) {
        if (n_vecs == 1) {
            return norm_bwd_run<T, 1>(stream, p, dw);
        }
        if (n_vecs == 2) {
            return norm_bwd_run<T, 2>(stream, p, dw);
        }
        if (n_vecs <= 4) {
            return norm_bwd_run<T, 4>(stream, p, dw);
        }
    }
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>(p.n)), row_threads(p.c));
    const cudaError_t code = cudaLaunchKernelEx(&config, norm_dx_any<T>, p);

    return code == cudaSuccess
               ? columns_launch(stream, dw_term<T>{p.dy, p.x, p.rstd, p.c}, p.n, p.c, dw)
               : code;
}

} // namespace

cudaError_t hdt_cuda_rmsnorm_fwd(cudaStream_t stream, const float *x, const float *w, int n, int c,
                                 float eps, enum hdt_dtype dtype, void *y, float *rstd)
{
    if (n == 0) {
        return cudaSuccess;
    }
    return dtype == HDT_DTYPE_BF16
               ? norm_fwd(stream, x, w, n, c, eps, static_cast<__nv_bfloat16 *>(y), rstd)
               : norm_fwd(stream, x, w, n, c, eps, static_cast<float *>(y), rstd);
}

size_t hdt_cuda_rmsnorm_bwd_scratch(int c)
{
    return static_cast<size_t>(n_shares(c)) * static_cast<size_t>(c) * sizeof(float);
}

cudaError_t hdt_cuda_rmsnorm_bwd(cudaStream_t stream, const struct hdt_cuda_norm_bwd *p,
                                 void *scratch)
{
    if (p->n == 0) {
        return cudaSuccess;
    }
    if (p->dtype == HDT_DTYPE_BF16) {
        return norm_bwd(stream,
                        norm_bwd_args<__nv_bfloat16>{static_cast<const __nv_bfloat16 *>(p->dy),
                                                     p->x, p->w, p->rstd, p->n, p->c, p->dx,
                                                     static_cast<__nv_bfloat16 *>(p->dx_act),
                                                     static_cast<float *>(scratch)},
                        p->dw);
    }
    return norm_bwd(stream,
                    norm_bwd_args<float>{static_cast<const float *>(p->dy), p->x, p->w, p->rstd,
                                         p->n, p->c, p->dx, nullptr, static_cast<float *>(scratch)},
                    p->dw);
}
