/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal grouped-query attention in float32, without matrix units. A warp owns a query (forward and
 * the queries' gradient) or a key (the gradients of keys and values), a block eight neighbours; the
 * other side comes by tiles of 32 rows in shared memory, a row a lane for the scores, a column a
 * lane for the sums. Softmax goes on line: largest score and sum so far, put right as they grow
 * (Milakov and Gimelshein, arXiv 1805.02867). No atomics: every sum has one order.
 */
#include "runtime/cuda/cuda_rows.h"
#include "runtime/cuda/cuda_vec.cuh"

using namespace hdt_cuda;

namespace
{

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP;
constexpr int TILE = WARP;

/* Rows of queries or keys, of one sequence and head. */
struct rows {
    const float *mem;
    int stride;
};

/* Rows first .. first + TILE - 1 of `len` into shared memory, HS + 1 floats apart: so a lane a row
 * meets no other lane's bank. Rows beyond are zeros. */
static __device__ void tile_load(rows src, int first, int len, int head_size, float *tile)
{
    for (int i = static_cast<int>(threadIdx.x); i < TILE * head_size; i += THREADS) {
        const int row = i / head_size, col = i % head_size;

        tile[row * (head_size + 1) + col] =
            first + row < len ? src.mem[static_cast<size_t>(first + row) * src.stride + col] : 0;
    }
}

/* In four sums: fewer roundings one upon the other, and no waiting for each addition. */
static __device__ float dot_of(const float *a, const float *b, int head_size)
{
    float sums[4] = {0, 0, 0, 0};
    int i = 0;

    for (; i + 4 <= head_size; i += 4) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sums[j] += a[i + j] * b[i + j];
        }
    }
    for (; i < head_size; i++) {
        sums[0] += a[i] * b[i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Adds the rows of a tile, times the lanes' weights, to the columns of this lane: the tile's sum
 * first, so that a long sum has few roundings. */
template <int NC>
static __device__ __forceinline__ void tile_add(float weight, const float *tile, int head_size,
                                                float (&sums)[NC])
{
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    float part[NC];

#pragma unroll
    for (int i = 0; i < NC; i++) {
        part[i] = 0;
    }
    for (int j = 0; j < TILE; j++) {
        const float w = __shfl_sync(ALL_LANES, weight, j);

#pragma unroll
        for (int i = 0; i < NC; i++) {
            const int col = lane + i * WARP;

            part[i] += col < head_size ? w * tile[j * (head_size + 1) + col] : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < NC; i++) {
        sums[i] += part[i];
    }
}

static __device__ rows queries_of(const hdt_attention &a, const float *mem, int stride, int seq,
                                  int head)
{
    return {mem + static_cast<size_t>(seq) * a.q_len * stride + head * a.head_size, stride};
}

static __device__ rows keys_of(const hdt_attention &a, const float *mem, int seq, int head)
{
    return {mem + static_cast<size_t>(seq) * a.kv_len * a.kv_stride + head * a.head_size,
            a.kv_stride};
}

/* Of a block: its sequence, head and first row. */
struct place {
    int seq, head, first;
};

static __device__ place place_of(int n_heads, int len)
{
    const int n_tiles = (len + WARPS - 1) / WARPS, which = static_cast<int>(blockIdx.x) / n_tiles;

    return {which / n_heads, which % n_heads, static_cast<int>(blockIdx.x) % n_tiles * WARPS};
}

/* NC: columns of a lane, at least HS / 32. */
template <int NC> __global__ void __launch_bounds__(THREADS) plain_fwd_kernel(hdt_attention a)
{
    extern __shared__ float shared[];
    const int hs = a.head_size, pitch = hs + 1;
    float *const k_tile = shared, *const v_tile = k_tile + TILE * pitch;
    float *const q_rows = v_tile + TILE * pitch;
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const place at = place_of(a.n_heads, a.q_len);
    const int t = at.first + warp, kv_head = at.head / (a.n_heads / a.n_kv_heads);
    const int n_keys = t < a.q_len ? a.kv_len - a.q_len + t + 1 : 0;
    const int t_last = at.first + WARPS < a.q_len ? at.first + WARPS : a.q_len;
    const int n_keys_block = a.kv_len - a.q_len + t_last;
    const rows q = queries_of(a, a.q, a.q_stride, at.seq, at.head);
    const rows k = keys_of(a, a.k, at.seq, kv_head), v = keys_of(a, a.v, at.seq, kv_head);
    const float factor = 1.0f / sqrtf(static_cast<float>(hs));
    float out[NC], max = -INFINITY, sum = 0;

#pragma unroll
    for (int i = 0; i < NC; i++) {
        out[i] = 0;
    }
    for (int i = lane; i < hs; i += WARP) {
        q_rows[warp * hs + i] = t < a.q_len ? q.mem[static_cast<size_t>(t) * q.stride + i] : 0;
    }
    for (int first = 0; first < n_keys_block; first += TILE) {
        __syncthreads();
        tile_load(k, first, a.kv_len, hs, k_tile);
        tile_load(v, first, a.kv_len, hs, v_tile);
        __syncthreads();
        if (first >= n_keys) {
            continue;
        }
        const bool is_seen = first + lane < n_keys;
        const float score =
            is_seen ? dot_of(q_rows + warp * hs, k_tile + lane * pitch, hs) * factor : -INFINITY;
        const float largest = fmaxf(max, warp_max(score)), shrink = expf(max - largest);
        const float weight = is_seen ? expf(score - largest) : 0;

        max = largest;
        sum = sum * shrink + warp_sum(weight);
#pragma unroll
        for (int i = 0; i < NC; i++) {
            out[i] *= shrink;
        }
        tile_add<NC>(weight, v_tile, hs, out);
    }
    if (t >= a.q_len) {
        return;
    }
    const size_t row = (static_cast<size_t>(at.seq) * a.q_len + t) * a.n_heads + at.head;

#pragma unroll
    for (int i = 0; i < NC; i++) {
        if (lane + i * WARP < hs) {
            a.out[row * hs + lane + i * WARP] = out[i] / sum;
        }
    }
    if (lane == 0) {
        a.lse[(static_cast<size_t>(at.seq) * a.n_heads + at.head) * a.q_len + t] = max + logf(sum);
    }
}

/* delta (B, NH, T): sums of out * dout over a head. A warp a row and head. */
static __global__ void __launch_bounds__(THREADS)
    delta_kernel(hdt_attention a, const float *dout, float *delta)
{
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const size_t item = static_cast<size_t>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    const size_t n_rows = static_cast<size_t>(a.n_seqs) * a.q_len;
    float sum = 0;

    if (item >= n_rows * a.n_heads) {
        return;
    }
    for (int i = lane; i < a.head_size; i += WARP) {
        sum += a.out[item * a.head_size + i] * dout[item * a.head_size + i];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        const size_t row = item / a.n_heads, head = item % a.n_heads;

        delta[(row / a.q_len * a.n_heads + head) * a.q_len + row % a.q_len] = sum;
    }
}

struct grads {
    const float *dout, *delta;
    float *dq, *dk, *dv;
};

template <int NC>
__global__ void __launch_bounds__(THREADS) plain_dq_kernel(hdt_attention a, grads g)
{
    extern __shared__ float shared[];
    const int hs = a.head_size, pitch = hs + 1;
    float *const k_tile = shared, *const v_tile = k_tile + TILE * pitch;
    float *const q_rows = v_tile + TILE * pitch, *const d_rows = q_rows + WARPS * hs;
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const place at = place_of(a.n_heads, a.q_len);
    const int t = at.first + warp, kv_head = at.head / (a.n_heads / a.n_kv_heads);
    const bool is_row = t < a.q_len;
    const rows q = queries_of(a, a.q, a.q_stride, at.seq, at.head);
    const rows d = queries_of(a, g.dout, a.n_heads * hs, at.seq, at.head);
    const rows k = keys_of(a, a.k, at.seq, kv_head), v = keys_of(a, a.v, at.seq, kv_head);
    const size_t stat = (static_cast<size_t>(at.seq) * a.n_heads + at.head) * a.q_len + t;
    const float factor = 1.0f / sqrtf(static_cast<float>(hs));
    const float lse = is_row ? a.lse[stat] : 0, delta = is_row ? g.delta[stat] : 0;
    const int t_end = at.first + WARPS < a.q_len ? at.first + WARPS : a.q_len;
    float dq[NC];

#pragma unroll
    for (int i = 0; i < NC; i++) {
        dq[i] = 0;
    }
    for (int i = lane; i < hs; i += WARP) {
        q_rows[warp * hs + i] = is_row ? q.mem[static_cast<size_t>(t) * q.stride + i] : 0;
        d_rows[warp * hs + i] = is_row ? d.mem[static_cast<size_t>(t) * d.stride + i] : 0;
    }
    for (int first = 0; first < t_end; first += TILE) {
        __syncthreads();
        tile_load(k, first, a.kv_len, hs, k_tile);
        tile_load(v, first, a.kv_len, hs, v_tile);
        __syncthreads();
        if (!is_row || first > t) {
            continue;
        }
        float ds = 0;

        if (first + lane <= t) {
            const float score = dot_of(q_rows + warp * hs, k_tile + lane * pitch, hs) * factor;
            const float dp = dot_of(d_rows + warp * hs, v_tile + lane * pitch, hs);

            ds = expf(score - lse) * (dp - delta) * factor;
        }
        tile_add<NC>(ds, k_tile, hs, dq);
    }
    for (int i = 0; i < NC && is_row; i++) {
        if (lane + i * WARP < hs) {
            g.dq[(static_cast<size_t>(at.seq) * a.q_len + t) * a.q_stride + at.head * hs + lane +
                 i * WARP] = dq[i];
        }
    }
}

/* Of a key head: over all query heads that use it, and the queries from its own position on. */
template <int NC>
__global__ void __launch_bounds__(THREADS) plain_dkv_kernel(hdt_attention a, grads g)
{
    extern __shared__ float shared[];
    const int hs = a.head_size, pitch = hs + 1, group = a.n_heads / a.n_kv_heads;
    float *const q_tile = shared, *const d_tile = q_tile + TILE * pitch;
    float *const k_rows = d_tile + TILE * pitch, *const v_rows = k_rows + WARPS * hs;
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const place at = place_of(a.n_kv_heads, a.kv_len);
    const int t = at.first + warp;
    const bool is_row = t < a.kv_len;
    const rows k = keys_of(a, a.k, at.seq, at.head), v = keys_of(a, a.v, at.seq, at.head);
    const float factor = 1.0f / sqrtf(static_cast<float>(hs));
    float dk[NC], dv[NC];

#pragma unroll
    for (int i = 0; i < NC; i++) {
        dk[i] = dv[i] = 0;
    }
    for (int i = lane; i < hs; i += WARP) {
        k_rows[warp * hs + i] = is_row ? k.mem[static_cast<size_t>(t) * k.stride + i] : 0;
        v_rows[warp * hs + i] = is_row ? v.mem[static_cast<size_t>(t) * v.stride + i] : 0;
    }
    for (int head = at.head * group; head < (at.head + 1) * group; head++) {
        const rows q = queries_of(a, a.q, a.q_stride, at.seq, head);
        const rows d = queries_of(a, g.dout, a.n_heads * hs, at.seq, head);
        const size_t stats = (static_cast<size_t>(at.seq) * a.n_heads + head) * a.q_len;

        for (int first = at.first / TILE * TILE; first < a.q_len; first += TILE) {
            const int query = first + lane;
            float p = 0, ds = 0;

            __syncthreads();
            tile_load(q, first, a.q_len, hs, q_tile);
            tile_load(d, first, a.q_len, hs, d_tile);
            __syncthreads();
            if (is_row && query >= t && query < a.q_len) {
                const float score = dot_of(k_rows + warp * hs, q_tile + lane * pitch, hs) * factor;
                const float dp = dot_of(v_rows + warp * hs, d_tile + lane * pitch, hs);

                p = expf(score - a.lse[stats + query]);
                ds = p * (dp - g.delta[stats + query]) * factor;
            }
            tile_add<NC>(ds, q_tile, hs, dk);
            tile_add<NC>(p, d_tile, hs, dv);
        }
    }
    for (int i = 0; i < NC && is_row; i++) {
        const size_t out = (static_cast<size_t>(at.seq) * a.kv_len + t) * a.kv_stride +
                           at.head * hs + lane + i * WARP;

        if (lane + i * WARP < hs) {
            g.dk[out] = dk[i];
            g.dv[out] = dv[i];
        }
    }
}

template <class... Args>
cudaError_t plain_launch(cudaStream_t stream, void (*kernel)(Args...), int len, int n_heads,
                         const hdt_attention &a, Args... args)
{
    const size_t shared =
        (2 * TILE * (static_cast<size_t>(a.head_size) + 1) + 2 * WARPS * a.head_size) *
        sizeof(float);
    const size_t n_blocks = static_cast<size_t>((len + WARPS - 1) / WARPS) * a.n_seqs * n_heads;
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>(n_blocks)), THREADS, shared);
    const cudaError_t code = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));

    return code == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, args...) : code;
}

template <int NC>
cudaError_t plain_bwd(cudaStream_t stream, const hdt_attention &a, const grads &g, float *delta)
{
    const size_t n_items = static_cast<size_t>(a.n_seqs) * a.q_len * a.n_heads;
    const cudaLaunchConfig_t config =
        launch_of(stream, dim3(static_cast<unsigned>((n_items + WARPS - 1) / WARPS)), THREADS);
    cudaError_t code = cudaLaunchKernelEx(&config, delta_kernel, a, g.dout, delta);

    if (code == cudaSuccess) {
        code = plain_launch(stream, plain_dq_kernel<NC>, a.q_len, a.n_heads, a, a, g);
    }
    if (code == cudaSuccess) {
        code = plain_launch(stream, plain_dkv_kernel<NC>, a.kv_len, a.n_kv_heads, a, a, g);
    }
    return code;
}

} // namespace

cudaError_t hdt_cuda_plain_fwd(cudaStream_t stream, const struct hdt_attention *a)
{
    if (a->head_size > HDT_CUDA_PLAIN_HEAD_MAX) {
        return cudaErrorInvalidValue;
    }
    if (a->n_seqs == 0 || a->q_len == 0) {
        return cudaSuccess;
    }
    return a->head_size <= 64
               ? plain_launch(stream, plain_fwd_kernel<2>, a->q_len, a->n_heads, *a, *a)
           : a->head_size <= 128
               ? plain_launch(stream, plain_fwd_kernel<4>, a->q_len, a->n_heads, *a, *a)
               : plain_launch(stream, plain_fwd_kernel<8>, a->q_len, a->n_heads, *a, *a);
}

cudaError_t hdt_cuda_plain_bwd(cudaStream_t stream, const struct hdt_attention *a,
                               const float *dout, float *scratch, float *dq, float *dk, float *dv)
{
    const grads g = {dout, scratch, dq, dk, dv};

    if (a->head_size > HDT_CUDA_PLAIN_HEAD_MAX || a->kv_len != a->q_len) {
        return cudaErrorInvalidValue;
    }
    if (a->n_seqs == 0 || a->q_len == 0) {
        return cudaSuccess;
    }
    return a->head_size <= 64    ? plain_bwd<2>(stream, *a, g, scratch)
           : a->head_size <= 128 ? plain_bwd<4>(stream, *a, g, scratch)
                                 : plain_bwd<8>(stream, *a, g, scratch);
}
