/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in bf16, forward.
 *
 * A block of threads takes 64 queries of one head for each of its groups and goes through the
 * blocks of keys that they see, from the last, where the mask is, to the first. Scores, running
 * maximum and sum, and the output stay in registers; keys and values pass through a ring of shared
 * memory. Blocks with the most keys are started first, so that the short ones fill the end.
 */
#include "runtime/cuda/cuda_attention.cuh"

#include <math.h>

namespace hdt_tile
{

/* Shape of a kernel: groups of 64 queries, keys of a block, slots, blocks of threads on a
 * multiprocessor. BEHIND: the product of a block's probabilities and values is queued after the
 * next block's scores, so that it runs while the softmax of those is computed; the first one is of
 * no probabilities at all. */
template <int HS_, int GROUPS_, int KEYS_, int STAGES_, int RESIDENT_, bool BEHIND_, class M_>
struct fwd_shape {
    using M = M_;
    static constexpr bool BEHIND = BEHIND_;
    static constexpr int HS = HS_;
    static constexpr int GROUPS = GROUPS_;
    static constexpr int KEYS = KEYS_;
    static constexpr int STAGES = STAGES_;
    static constexpr int RESIDENT = RESIDENT_;
    static constexpr int THREADS = GROUPS * GROUP;
    static constexpr int ROWS = GROUPS * GROUP_ROWS;
    static constexpr int Q_BYTES = ROWS * HS * 2;
    static constexpr int KEY_BYTES = KEYS * HS * 2;
    static constexpr int BARRIERS = 128;
    static constexpr int SMEM = Q_BYTES + 2 * STAGES * KEY_BYTES + SLAB_ALIGN + BARRIERS;
    using ring_type = ring<M, STAGES, M::BULK ? 1 : 0>;
};

/* Running softmax of this thread's two rows. Maxima are of the scores as they come from the
 * product; `scale2` is the scale times log2(e). */
struct softmax_rows {
    float max[2];
    float sum[2];

    __device__ __forceinline__ softmax_rows() : max{-INFINITY, -INFINITY}, sum{0, 0}
    {
    }

    /* Scores become probabilities relative to the new maximum; keep[] is what earlier sums and
     * outputs must be multiplied by. */
    template <int N>
    __device__ __forceinline__ void step(float (&s)[N][4], float scale2, float (&keep)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = max[r];

#pragma unroll
            for (int j = 0; j < N; j++) {
                top = fmaxf(top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
            }
            top = quad_max(top);
            const float base = top == -INFINITY ? 0 : top * scale2;
            float part = 0;

            keep[r] = exp2_fast(max[r] * scale2 - base);
            max[r] = top;
#pragma unroll
            for (int j = 0; j < N; j++) {
                s[j][2 * r] = exp2_fast(fmaf(s[j][2 * r], scale2, -base));
                s[j][2 * r + 1] = exp2_fast(fmaf(s[j][2 * r + 1], scale2, -base));
                part += s[j][2 * r] + s[j][2 * r + 1];
            }
            sum[r] = sum[r] * keep[r] + part;
        }
    }
};

/* Scores of keys after the last that a row sees become -infinity. */
template <int N>
__device__ __forceinline__ void mask_keys(float (&s)[N][4], int last_key, int first_col)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int col = first_col + j * 8;

        s[j][0] = col <= last_key ? s[j][0] : -INFINITY;
        s[j][1] = col + 1 <= last_key ? s[j][1] : -INFINITY;
        s[j][2] = col <= last_key + 8 ? s[j][2] : -INFINITY;
        s[j][3] = col + 1 <= last_key + 8 ? s[j][3] : -INFINITY;
    }
}

template <int N>
__device__ __forceinline__ void scale_rows(float (&acc)[N][4], const float (&factor)[2])
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        acc[j][0] *= factor[0];
        acc[j][1] *= factor[0];
        acc[j][2] *= factor[1];
        acc[j][3] *= factor[1];
    }
}

/* What one block of threads works on, and where. */
template <class S> struct fwd_block {
    const attention_args &args;
    int seq, head, kv_head, row; /* row: the first query */
    uint32_t q_tile, slots;
    typename S::ring_type ring;

    __device__ __forceinline__ fwd_block(const attention_args &a, uint8_t *smem) : args(a)
    {
        const int n_heads = a.n_heads * a.n_seqs;
        const int at = static_cast<int>(blockIdx.x) % n_heads;
        const int n_tiles = static_cast<int>(gridDim.x) / n_heads;
        uint8_t *const tiles = slab_align(smem);

        row = (n_tiles - 1 - static_cast<int>(blockIdx.x) / n_heads) * S::ROWS;
        seq = at / a.n_heads;
        head = at % a.n_heads;
        kv_head = head / (a.n_heads / a.n_kv_heads);
        q_tile = smem_at(tiles);
        slots = q_tile + S::Q_BYTES;
        ring.full = slots + 2 * S::STAGES * S::KEY_BYTES;
        ring.empty = ring.full + 8 * S::STAGES;
        ring.n = (min(a.k.n_rows, row + S::ROWS + a.key_offset()) + S::KEYS - 1) / S::KEYS;
    }

    __device__ __forceinline__ uint32_t k_tile(int i) const
    {
        return slots + static_cast<uint32_t>(i % S::STAGES * 2 * S::KEY_BYTES);
    }

    /* The first key of the i-th block: blocks go from the last to the first. */
    __device__ __forceinline__ int first_key(int i) const
    {
        return (ring.n - 1 - i) * S::KEYS;
    }

    /* Block i of keys and values; the first one comes with the queries. */
    __device__ __forceinline__ void fill(int i) const
    {
        ring.fill(i, 2 * S::KEY_BYTES + (i == 0 ? S::Q_BYTES : 0), [&](int, uint32_t barrier) {
            const uint32_t tile = k_tile(i);

            if constexpr (S::M::BULK) {
                if (i == 0) {
                    bulk_tile<S::ROWS, S::HS>(q_tile, &args.q_map, barrier, seq, head, row);
                }
                bulk_tile<S::KEYS, S::HS>(tile, &args.k_map, barrier, seq, kv_head, first_key(i));
                bulk_tile<S::KEYS, S::HS>(tile + S::KEY_BYTES, &args.v_map, barrier, seq, kv_head,
                                          first_key(i));
            } else {
                if (i == 0) {
                    copy_tile<S::ROWS, S::HS, S::THREADS>(q_tile, args.q, seq, head, row);
                }
                copy_tile<S::KEYS, S::HS, S::THREADS>(tile, args.k, seq, kv_head, first_key(i));
                copy_tile<S::KEYS, S::HS, S::THREADS>(tile + S::KEY_BYTES, args.v, seq, kv_head,
                                                      first_key(i));
            }
        });
    }
};

/* Divide by the sums and write out and lse. */
template <class S>
__device__ __forceinline__ void fwd_finish(const fwd_block<S> &b, softmax_rows &rows,
                                           const float (&out)[S::HS / 8][4], int row)
{
    const attention_args &a = b.args;
    const size_t stride = static_cast<size_t>(a.n_heads) * a.q.n_cols;
    float inverse[2];

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = row + 8 * r;
        const float sum = quad_sum(rows.sum[r]);

        inverse[r] = 1 / sum;
        if (threadIdx.x % 4 == 0 && t < a.q.n_rows) {
            a.lse[(static_cast<size_t>(b.seq) * a.n_heads + b.head) * a.q.n_rows + t] =
                rows.max[r] * a.scale + logf(sum);
        }
    }
    store_rows(out, inverse[0], inverse[1],
               a.out + static_cast<size_t>(b.seq) * a.q.n_rows * stride +
                   static_cast<size_t>(b.head) * a.q.n_cols,
               stride, row, a.q.n_rows, a.q.n_cols);
}

/* out += probabilities p times the values of block i. */
template <class S>
__device__ __forceinline__ void weigh(const fwd_block<S> &b, float (&out)[S::HS / 8][4],
                                      uint32_t (&p)[S::KEYS / 16][4], int i)
{
    using M = typename S::M;

    M::begin(out, p);
    M::product(out, p, b.k_tile(i) + S::KEY_BYTES, true);
    M::commit();
    M::template wait<0>(out, p);
}

template <class S> __device__ __forceinline__ void fwd_run(const attention_args &args)
{
    using M = typename S::M;
    extern __shared__ uint8_t smem[];
    const lane_place lane;
    const fwd_block<S> b(args, smem);
    const int row = b.row + lane.row, last_key = row + args.key_offset();
    const float scale2 = args.scale * LOG2E;
    uint32_t q[S::HS / 16][4], p[S::KEYS / 16][4] = {};
    float s[S::KEYS / 8][4], out[S::HS / 8][4] = {}, keep[2];
    softmax_rows rows;

    if (threadIdx.x == 0) {
        b.ring.init(S::THREADS / 32);
    }
    __syncthreads();
    for (int i = 0; i < S::ring_type::AHEAD; i++) {
        b.fill(i);
    }
    for (int i = 0; i < b.ring.n; i++) {
        b.ring.wait(i);
        b.fill(i + S::ring_type::AHEAD);
        if (i == 0) {
            load_operand<S::ROWS>(b.q_tile, static_cast<int>(threadIdx.x / 32) * 16, q);
        }
        if constexpr (S::BEHIND) {
            M::begin(s, out, p);
        } else {
            M::begin(s);
        }
        M::template product_turned<S::KEYS>(s, q, b.k_tile(i), false);
        M::commit();
        if constexpr (S::BEHIND) {
            M::product(out, p, b.k_tile(max(i - 1, 0)) + S::KEY_BYTES, true);
            M::commit();
        }
        M::template wait<S::BEHIND>(s);
        if (b.first_key(i) + S::KEYS - 1 > b.row + args.key_offset()) {
            mask_keys(s, last_key - b.first_key(i), lane.col);
        }
        rows.step(s, scale2, keep);
        if constexpr (S::BEHIND) {
            M::template wait<0>(out, p);
            if (i > 0) {
                b.ring.done(i - 1);
            }
        }
        acc_to_operand(s, p);
        scale_rows(out, keep);
        if constexpr (!S::BEHIND) {
            weigh(b, out, p, i);
            b.ring.done(i);
        }
    }
    if constexpr (S::BEHIND) {
        weigh(b, out, p, b.ring.n - 1);
    }
    fwd_finish(b, rows, out, row);
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::RESIDENT)
    fwd_kernel(const __grid_constant__ attention_args args)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    fwd_run<S>(args);
#elif defined(__CUDA_ARCH__)
    if constexpr (!S::M::BULK) {
        fwd_run<S>(args);
    } else {
        __trap(); /* code that was chosen for another architecture */
    }
#endif
}

template <class S> cudaError_t fwd_launch(cudaStream_t stream, attention_args *args)
{
    const int n_tiles = (args->q.n_rows + S::ROWS - 1) / S::ROWS;
    cudaLaunchConfig_t config = {};
    cudaError_t code = cudaSuccess;

    if (S::M::BULK) {
        code = map_init(args->q, args->n_seqs, args->n_heads, S::ROWS, &args->q_map);
        if (code == cudaSuccess) {
            code = map_init(args->k, args->n_seqs, args->n_kv_heads, S::KEYS, &args->k_map);
        }
        if (code == cudaSuccess) {
            code = map_init(args->v, args->n_seqs, args->n_kv_heads, S::KEYS, &args->v_map);
        }
    }
    if (code == cudaSuccess) {
        code = cudaFuncSetAttribute(fwd_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    S::SMEM);
    }
    if (code != cudaSuccess) {
        return code;
    }
    config.gridDim = dim3(static_cast<unsigned>(n_tiles * args->n_heads * args->n_seqs));
    config.blockDim = dim3(S::THREADS);
    config.dynamicSmemBytes = S::SMEM;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, fwd_kernel<S>, *args);
}

} // namespace hdt_tile

using namespace hdt_tile;

cudaError_t hdt_cuda_attention_fwd_bf16(cudaStream_t stream, const struct hdt_cuda_attention *a)
{
    attention_args args;
    const cudaError_t code = args_init(a, &args);

    if (code != cudaSuccess) {
        return code;
    }
    if (!a->plain && bulk_device()) {
        return a->head_size <= 64
                   ? fwd_launch<fwd_shape<64, 2, 64, 5, 2, true, tile_group>>(stream, &args)
                   : fwd_launch<fwd_shape<128, 2, 128, 3, 1, false, tile_group>>(stream, &args);
    }
    return a->head_size <= 64
               ? fwd_launch<fwd_shape<64, 2, 64, 2, 1, false, tile_warp>>(stream, &args)
               : fwd_launch<fwd_shape<128, 2, 64, 2, 1, false, tile_warp>>(stream, &args);
}
