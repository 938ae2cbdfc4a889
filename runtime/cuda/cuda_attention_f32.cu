/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in float32: plain fused multiply-adds, the same passes as in bf16.
 *
 * 256 threads stand as 16 x 16 over a tile of ROWS x COLS scores; thread (y, x) has the rows
 * y * ROWS / 16 and following, and every 16th column from x on. In products with a matrix of HS
 * columns it has the same rows and, of each 64 columns, the four from 4 x on. Matrices in shared
 * memory have 4 floats of padding in a row. TF32 products of three terms were refused: they would
 * be faster, but this is what other precisions are measured against.
 */
#include "runtime/cuda/cuda_attention.h"

#include <math.h>
#include <stdint.h>

namespace
{

constexpr int THREADS = 256;
constexpr int SIDE = 16;
constexpr int COLS = 32;        /* keys or queries of a block that passes */
constexpr int PAD = 4;          /* floats */
constexpr int STATS_ROUND = 32; /* rows of stats of a head, at most those of the scratch */

struct matrix {
    const float *data;
    int stride;
    int n_rows; /* of a sequence */
};

struct attention_f32 {
    matrix q, k, v, dout;
    int n_heads, n_kv_heads, head_size;
    float scale;
    float *out, *lse, *dq, *dk, *dv;
    float2 *stats; /* lse, delta */
    int n_stats;
};

/* Where a block of threads works. */
struct place {
    int seq, head, tile;

    __device__ __forceinline__ place(int n_seqs, int n_heads)
        : seq(static_cast<int>(blockIdx.x) % (n_seqs * n_heads) / n_heads),
          head(static_cast<int>(blockIdx.x) % n_heads),
          tile(static_cast<int>(blockIdx.x) / (n_seqs * n_heads))
    {
    }
};

__device__ __forceinline__ int thread_x()
{
    return static_cast<int>(threadIdx.x % SIDE);
}

__device__ __forceinline__ int thread_y()
{
    return static_cast<int>(threadIdx.x / SIDE);
}

/* Rows row .. row + N - 1 of one head; what is outside becomes zeros. */
template <int N, int HS>
__device__ __forceinline__ void load(float *tile, const matrix &m, int head_size, int seq, int head,
                                     int row)
{
    const float *const data = m.data + static_cast<size_t>(seq) * m.n_rows * m.stride +
                              static_cast<size_t>(head) * head_size;

    for (int i = static_cast<int>(threadIdx.x); i < N * HS / 4; i += THREADS) {
        const int r = i / (HS / 4), c = i % (HS / 4) * 4;
        const bool there = row + r < m.n_rows && c < head_size;
        const float4 none = make_float4(0, 0, 0, 0);

        *reinterpret_cast<float4 *>(tile + r * (HS + PAD) + c) =
            there ? *reinterpret_cast<const float4 *>(data +
                                                      static_cast<size_t>(row + r) * m.stride + c)
                  : none;
    }
}

/* acc = rows of a times rows of b, over HS. */
template <int HS, int R, int C>
__device__ __forceinline__ void dots(float (&acc)[R][C], const float *a, const float *b)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int c = 0; c < C; c++) {
            acc[r][c] = 0;
        }
    }
#pragma unroll 4
    for (int d = 0; d < HS; d += 4) {
        float4 left[R];

#pragma unroll
        for (int r = 0; r < R; r++) {
            left[r] = *reinterpret_cast<const float4 *>(a + (thread_y() * R + r) * (HS + PAD) + d);
        }
#pragma unroll
        for (int c = 0; c < C; c++) {
            const float4 right =
                *reinterpret_cast<const float4 *>(b + (thread_x() + SIDE * c) * (HS + PAD) + d);

#pragma unroll
            for (int r = 0; r < R; r++) {
                acc[r][c] = fmaf(left[r].x, right.x, acc[r][c]);
                acc[r][c] = fmaf(left[r].y, right.y, acc[r][c]);
                acc[r][c] = fmaf(left[r].z, right.z, acc[r][c]);
                acc[r][c] = fmaf(left[r].w, right.w, acc[r][c]);
            }
        }
    }
}

/* Weights of a block are kept turned: weight of row r and column c at c * (16 R + PAD) + r. */
template <int R, int C> __device__ __forceinline__ void keep(float *w, const float (&acc)[R][C])
{
#pragma unroll
    for (int c = 0; c < C; c++) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            w[(thread_x() + SIDE * c) * (SIDE * R + PAD) + thread_y() * R + r] = acc[r][c];
        }
    }
}

/* acc += weights times the COLS rows of b. */
template <int HS, int R>
__device__ __forceinline__ void weigh(float (&acc)[R][HS / SIDE], const float *w, const float *b)
{
#pragma unroll 4
    for (int j = 0; j < COLS; j++) {
        float left[R];

#pragma unroll
        for (int r = 0; r < R; r++) {
            left[r] = w[j * (SIDE * R + PAD) + thread_y() * R + r];
        }
#pragma unroll
        for (int c = 0; c < HS / 64; c++) {
            const float4 right =
                *reinterpret_cast<const float4 *>(b + j * (HS + PAD) + c * 64 + thread_x() * 4);

#pragma unroll
            for (int r = 0; r < R; r++) {
                acc[r][4 * c] = fmaf(left[r], right.x, acc[r][4 * c]);
                acc[r][4 * c + 1] = fmaf(left[r], right.y, acc[r][4 * c + 1]);
                acc[r][4 * c + 2] = fmaf(left[r], right.z, acc[r][4 * c + 2]);
                acc[r][4 * c + 3] = fmaf(left[r], right.w, acc[r][4 * c + 3]);
            }
        }
    }
}

/* Rows of acc times a factor, to the head's place in memory. */
template <int HS, int R>
__device__ __forceinline__ void store(const float (&acc)[R][HS / SIDE], const float (&factor)[R],
                                      float *data, size_t stride, int row, int n_rows,
                                      int head_size)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int at = row + thread_y() * R + r;

#pragma unroll
        for (int c = 0; c < HS / 64; c++) {
            const int col = c * 64 + thread_x() * 4;

            if (at < n_rows && col < head_size) {
                *reinterpret_cast<float4 *>(data + static_cast<size_t>(at) * stride + col) =
                    make_float4(acc[r][4 * c] * factor[r], acc[r][4 * c + 1] * factor[r],
                                acc[r][4 * c + 2] * factor[r], acc[r][4 * c + 3] * factor[r]);
            }
        }
    }
}

/* Over the 16 threads of a row. */
__device__ __forceinline__ float row_sum(float x)
{
    for (int step = SIDE / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffff, x, step);
    }
    return x;
}

__device__ __forceinline__ float row_max(float x)
{
    for (int step = SIDE / 2; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    }
    return x;
}

/* Floats of a matrix and of the weights in shared memory. */
template <int HS, int ROWS> constexpr int TILE = ROWS *(HS + PAD);
template <int R> constexpr int WEIGHTS = COLS *(SIDE *R + PAD);

/* ---- Forward --------------------------------------------------------------------------------- */

/* One block of keys of the running softmax of a thread's rows; see cuda_attention_fwd.cu. */
template <int R, int C, int N>
__device__ __forceinline__ void softmax_step(float (&s)[R][C], const attention_f32 &a, int row,
                                             int key, float (&top)[R], float (&sum)[R],
                                             float (&out)[R][N])
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int last = row + thread_y() * R + r + a.k.n_rows - a.q.n_rows;
        float high = top[r], part = 0;

#pragma unroll
        for (int c = 0; c < C; c++) {
            const bool seen = key + thread_x() + SIDE * c <= last;

            s[r][c] = seen ? s[r][c] * a.scale : -INFINITY;
            high = fmaxf(high, s[r][c]);
        }
        high = row_max(high);
        const float base = high == -INFINITY ? 0 : high;
        const float kept = expf(top[r] - base);

#pragma unroll
        for (int c = 0; c < C; c++) {
            s[r][c] = expf(s[r][c] - base);
            part += s[r][c];
        }
        top[r] = high;
        sum[r] = sum[r] * kept + row_sum(part);
#pragma unroll
        for (int i = 0; i < N; i++) {
            out[r][i] *= kept;
        }
    }
}

template <int HS, int R>
__global__ void __launch_bounds__(THREADS) fwd_kernel(const attention_f32 a, int n_seqs)
{
    extern __shared__ float4 smem[];
    constexpr int ROWS = SIDE * R;
    const place at(n_seqs, a.n_heads);
    const int row = at.tile * ROWS, kv_head = at.head / (a.n_heads / a.n_kv_heads);
    const int n_keys = min(a.k.n_rows, row + ROWS + a.k.n_rows - a.q.n_rows);
    const size_t stride = static_cast<size_t>(a.n_heads) * a.head_size;
    const size_t lse_row = (static_cast<size_t>(at.seq) * a.n_heads + at.head) * a.q.n_rows;
    float *const q = reinterpret_cast<float *>(smem);
    float *const k = q + TILE<HS, ROWS>, *const v = k + TILE<HS, COLS>;
    float *const p = v + TILE<HS, COLS>;
    float out[R][HS / SIDE] = {}, s[R][COLS / SIDE], top[R], sum[R] = {}, inverse[R];

#pragma unroll
    for (int r = 0; r < R; r++) {
        top[r] = -INFINITY;
    }
    load<ROWS, HS>(q, a.q, a.head_size, at.seq, at.head, row);
    for (int key = 0; key < n_keys; key += COLS) {
        __syncthreads();
        load<COLS, HS>(k, a.k, a.head_size, at.seq, kv_head, key);
        load<COLS, HS>(v, a.v, a.head_size, at.seq, kv_head, key);
        __syncthreads();
        dots<HS>(s, q, k);
        softmax_step(s, a, row, key, top, sum, out);
        keep(p, s);
        __syncthreads();
        weigh<HS>(out, p, v);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int t = row + thread_y() * R + r;

        inverse[r] = 1 / sum[r];
        if (thread_x() == 0 && t < a.q.n_rows) {
            a.lse[lse_row + t] = top[r] + logf(sum[r]);
        }
    }
    store<HS>(out, inverse,
              a.out + static_cast<size_t>(at.seq) * a.q.n_rows * stride +
                  static_cast<size_t>(at.head) * a.head_size,
              stride, row, a.q.n_rows, a.head_size);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* lse and delta of a thread's rows, kept for dk and dv too. Rows past the end: no probability. */
template <int R>
__device__ __forceinline__ void stats_make(const attention_f32 &a, const place &at, int row,
                                           float2 (&st)[R])
{
    const size_t head = static_cast<size_t>(at.seq) * a.n_heads + at.head;
    const size_t stride = static_cast<size_t>(a.n_heads) * a.head_size;

#pragma unroll
    for (int r = 0; r < R; r++) {
        const int t = row + thread_y() * R + r;
        const size_t first = (static_cast<size_t>(at.seq) * a.q.n_rows + t) * stride +
                             static_cast<size_t>(at.head) * a.head_size;
        float sum = 0;

        for (int c = thread_x(); c < a.head_size && t < a.q.n_rows; c += SIDE) {
            sum = fmaf(a.out[first + c], a.dout.data[first + c], sum);
        }
        st[r].y = row_sum(sum);
        st[r].x = t < a.q.n_rows ? a.lse[head * a.q.n_rows + t] : INFINITY;
        if (thread_x() == 0 && t < a.n_stats) {
            a.stats[head * a.n_stats + t] = st[r];
        }
    }
}

template <int HS, int R>
__global__ void __launch_bounds__(THREADS) dq_kernel(const attention_f32 a, int n_seqs)
{
    extern __shared__ float4 smem[];
    constexpr int ROWS = SIDE * R;
    const place at(n_seqs, a.n_heads);
    const int row = at.tile * ROWS, kv_head = at.head / (a.n_heads / a.n_kv_heads);
    const int offset = a.k.n_rows - a.q.n_rows, n_keys = min(a.k.n_rows, row + ROWS + offset);
    float *const q = reinterpret_cast<float *>(smem), *const dout = q + TILE<HS, ROWS>;
    float *const k = dout + TILE<HS, ROWS>, *const v = k + TILE<HS, COLS>;
    float *const ds = v + TILE<HS, COLS>;
    float dq[R][HS / SIDE] = {}, s[R][COLS / SIDE], dp[R][COLS / SIDE], scale[R];
    float2 st[R];

    stats_make(a, at, row, st);
    load<ROWS, HS>(q, a.q, a.head_size, at.seq, at.head, row);
    load<ROWS, HS>(dout, a.dout, a.head_size, at.seq, at.head, row);
    for (int key = 0; key < n_keys; key += COLS) {
        __syncthreads();
        load<COLS, HS>(k, a.k, a.head_size, at.seq, kv_head, key);
        load<COLS, HS>(v, a.v, a.head_size, at.seq, kv_head, key);
        __syncthreads();
        dots<HS>(s, q, k);
        dots<HS>(dp, dout, v);
#pragma unroll
        for (int r = 0; r < R; r++) {
            scale[r] = a.scale;
#pragma unroll
            for (int c = 0; c < COLS / SIDE; c++) {
                const bool seen = key + thread_x() + SIDE * c <= row + thread_y() * R + r + offset;

                s[r][c] = seen ? expf(s[r][c] * a.scale - st[r].x) * (dp[r][c] - st[r].y) : 0;
            }
        }
        keep(ds, s);
        __syncthreads();
        weigh<HS>(dq, ds, k);
    }
    store<HS>(dq, scale,
              a.dq + static_cast<size_t>(at.seq) * a.q.n_rows * a.q.stride +
                  static_cast<size_t>(at.head) * a.head_size,
              static_cast<size_t>(a.q.stride), row, a.q.n_rows, a.head_size);
}

/* Turned scores of a thread's keys become probabilities, and dp their gradients. */
template <int R, int C>
__device__ __forceinline__ void dkv_step(float (&s)[R][C], float (&dp)[R][C],
                                         const attention_f32 &a, const float2 *st, int row,
                                         int query)
{
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int t = query + thread_x() + SIDE * c;
        const float2 it = st[t];

#pragma unroll
        for (int r = 0; r < R; r++) {
            const bool seen = row + thread_y() * R + r <= t + a.k.n_rows - a.q.n_rows;

            s[r][c] = seen ? expf(s[r][c] * a.scale - it.x) : 0;
            dp[r][c] = s[r][c] * (dp[r][c] - it.y);
        }
    }
}

template <int HS, int R>
__global__ void __launch_bounds__(THREADS) dkv_kernel(const attention_f32 a, int n_seqs)
{
    extern __shared__ float4 smem[];
    constexpr int ROWS = SIDE * R;
    const place at(n_seqs, a.n_kv_heads);
    const int row = at.tile * ROWS, group = a.n_heads / a.n_kv_heads;
    const int first = max(0, row - (a.k.n_rows - a.q.n_rows)) / COLS * COLS;
    const size_t kv_at = static_cast<size_t>(at.seq) * a.k.n_rows * a.k.stride +
                         static_cast<size_t>(at.head) * a.head_size;
    float *const k = reinterpret_cast<float *>(smem), *const v = k + TILE<HS, ROWS>;
    float *const q = v + TILE<HS, ROWS>, *const dout = q + TILE<HS, COLS>;
    float *const p = dout + TILE<HS, COLS>, *const ds = p + WEIGHTS<R>;
    float dk[R][HS / SIDE] = {}, dv[R][HS / SIDE] = {};
    float s[R][COLS / SIDE], dp[R][COLS / SIDE], scale[R], one[R];

#pragma unroll
    for (int r = 0; r < R; r++) {
        scale[r] = a.scale;
        one[r] = 1;
    }
    load<ROWS, HS>(k, a.k, a.head_size, at.seq, at.head, row);
    load<ROWS, HS>(v, a.v, a.head_size, at.seq, at.head, row);
    for (int head = at.head * group; head < (at.head + 1) * group; head++) {
        const float2 *const st =
            a.stats + (static_cast<size_t>(at.seq) * a.n_heads + head) * a.n_stats;

        for (int query = first; query < a.q.n_rows; query += COLS) {
            __syncthreads();
            load<COLS, HS>(q, a.q, a.head_size, at.seq, head, query);
            load<COLS, HS>(dout, a.dout, a.head_size, at.seq, head, query);
            __syncthreads();
            dots<HS>(s, k, q);
            dots<HS>(dp, v, dout);
            dkv_step(s, dp, a, st, row, query);
            keep(p, s);
            keep(ds, dp);
            __syncthreads();
            weigh<HS>(dv, p, dout);
            weigh<HS>(dk, ds, q);
        }
    }
    store<HS>(dk, scale, a.dk + kv_at, static_cast<size_t>(a.k.stride), row, a.k.n_rows,
              a.head_size);
    store<HS>(dv, one, a.dv + kv_at, static_cast<size_t>(a.k.stride), row, a.k.n_rows, a.head_size);
}

/* ---- Launches -------------------------------------------------------------------------------- */

bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

cudaError_t args_init(const hdt_cuda_attention *a, attention_f32 *args)
{
    const bool shape_ok = a->n_seqs > 0 && a->q_len > 0 && a->kv_len >= a->q_len &&
                          a->n_kv_heads > 0 && a->n_heads > 0 && a->n_heads % a->n_kv_heads == 0;
    const bool width_ok = a->head_size > 0 && a->head_size <= 128 && a->head_size % 4 == 0 &&
                          a->q_stride % 4 == 0 && a->kv_stride % 4 == 0;

    if (!shape_ok || !width_ok || !is_aligned(a->q) || !is_aligned(a->k) || !is_aligned(a->v) ||
        !is_aligned(a->out)) {
        return cudaErrorInvalidValue;
    }
    *args = {};
    args->q = {static_cast<const float *>(a->q), a->q_stride, a->q_len};
    args->k = {static_cast<const float *>(a->k), a->kv_stride, a->kv_len};
    args->v = {static_cast<const float *>(a->v), a->kv_stride, a->kv_len};
    args->n_heads = a->n_heads;
    args->n_kv_heads = a->n_kv_heads;
    args->head_size = a->head_size;
    args->scale = 1 / sqrtf(static_cast<float>(a->head_size));
    args->out = static_cast<float *>(a->out);
    args->lse = a->lse;
    return cudaSuccess;
}

/* n_floats: shared memory of a block. */
cudaError_t launch(cudaStream_t stream, const attention_f32 &args, int n_seqs, int n_blocks,
                   int n_floats, void (*kernel)(attention_f32, int))
{
    const int bytes = n_floats * static_cast<int>(sizeof(float));
    cudaLaunchConfig_t config = {};
    const cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);

    if (code != cudaSuccess) {
        return code;
    }
    config.gridDim = dim3(static_cast<unsigned>(n_blocks));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args, n_seqs);
}

template <int R> int n_tiles(const matrix &m)
{
    return (m.n_rows + SIDE * R - 1) / (SIDE * R);
}

template <int HS, int R>
cudaError_t fwd_launch(cudaStream_t stream, const attention_f32 &args, int n_seqs)
{
    constexpr int FLOATS = TILE<HS, SIDE * R> + 2 * TILE<HS, COLS> + WEIGHTS<R>;

    return launch(stream, args, n_seqs, n_tiles<R>(args.q) * n_seqs * args.n_heads, FLOATS,
                  fwd_kernel<HS, R>);
}

template <int HS, int R>
cudaError_t bwd_launch(cudaStream_t stream, const attention_f32 &args, int n_seqs)
{
    constexpr int FLOATS = 2 * TILE<HS, SIDE * R> + 2 * TILE<HS, COLS>;
    const cudaError_t code =
        launch(stream, args, n_seqs, n_tiles<R>(args.q) * n_seqs * args.n_heads,
               FLOATS + WEIGHTS<R>, dq_kernel<HS, R>);

    if (code != cudaSuccess) {
        return code;
    }
    return launch(stream, args, n_seqs, n_tiles<R>(args.k) * n_seqs * args.n_kv_heads,
                  FLOATS + 2 * WEIGHTS<R>, dkv_kernel<HS, R>);
}

} // namespace

cudaError_t hdt_cuda_attention_fwd_f32(cudaStream_t stream, const struct hdt_cuda_attention *a)
{
    attention_f32 args;
    const cudaError_t code = args_init(a, &args);

    if (code != cudaSuccess) {
        return code;
    }
    return a->head_size <= 64 ? fwd_launch<64, 4>(stream, args, a->n_seqs)
                              : fwd_launch<128, 4>(stream, args, a->n_seqs);
}

cudaError_t hdt_cuda_attention_bwd_f32(cudaStream_t stream, const struct hdt_cuda_attention *a,
                                       const struct hdt_cuda_attention_grads *g)
{
    attention_f32 args;
    const cudaError_t code = args_init(a, &args);

    if (code != cudaSuccess) {
        return code;
    }
    args.dout = {static_cast<const float *>(g->dout), a->n_heads * a->head_size, a->q_len};
    args.stats = static_cast<float2 *>(g->scratch);
    args.n_stats = (a->q_len + STATS_ROUND - 1) / STATS_ROUND * STATS_ROUND;
    args.dq = static_cast<float *>(g->dq);
    args.dk = static_cast<float *>(g->dk);
    args.dv = static_cast<float *>(g->dv);
    return a->head_size <= 64 ? bwd_launch<64, 4>(stream, args, a->n_seqs)
                              : bwd_launch<128, 2>(stream, args, a->n_seqs);
}
