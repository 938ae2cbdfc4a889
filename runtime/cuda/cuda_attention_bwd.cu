/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in bf16, backward: one kernel for dq, then one for dk and dv.
 *
 * Both compute the scores again from lse. The first takes 64 queries for each group of threads, as
 * forward does, and leaves the stats of its rows for the second. The second takes 64 keys for each
 * group and goes through the queries that see them, of all heads that share the keys, so sums over
 * heads and queries stay in registers. It works on turned scores (rows are keys): rounded to bf16
 * they are the left operand of the next product as they stand in registers, and nothing but inputs
 * passes through shared memory.
 *
 * Refused: one kernel for all three with dq summed in memory, which does 5 products where these do
 * 7. Sums by atomics would depend on timing, and sums in a fixed order make blocks of threads wait
 * for each other.
 */
#include "runtime/cuda/cuda_attention.cuh"

#include <math.h>

namespace hdt_tile
{

constexpr int BARRIERS = 128; /* bytes of a ring's barriers */
constexpr int BLOCK = 64;     /* keys or queries that pass through the ring at a time */

/* acc += a B, done when it returns. */
template <class M, int N, int STEPS>
__device__ __forceinline__ void product_done(float (&acc)[N][4], uint32_t (&a)[STEPS][4],
                                             uint32_t b)
{
    M::begin(acc, a);
    M::product(acc, a, b, true);
    M::commit();
    M::template wait<0>(acc, a);
}

/* ---- dq -------------------------------------------------------------------------------------- */

/* BEHIND: the product for dq of a block is queued after the next block's scores; the first one is
 * of zeros. */
template <int HS_, int GROUPS_, int STAGES_, bool BEHIND_, class M_> struct dq_shape {
    using M = M_;
    static constexpr bool BEHIND = BEHIND_;
    static constexpr int HS = HS_;
    static constexpr int STAGES = STAGES_;
    static constexpr int THREADS = GROUPS_ * GROUP;
    static constexpr int ROWS = GROUPS_ * GROUP_ROWS;
    static constexpr int Q_BYTES = ROWS * HS * 2;
    static constexpr int KEY_BYTES = BLOCK * HS * 2;
    static constexpr int SMEM = 2 * Q_BYTES + 2 * STAGES * KEY_BYTES + SLAB_ALIGN + BARRIERS;
    using ring_type = ring<M, STAGES, M::BULK ? 1 : 0>;
};

/* What one block of threads works on, and where. */
template <class S> struct dq_block {
    const attention_args &args;
    int seq, head, kv_head, row;
    uint32_t q_tile, slots;
    typename S::ring_type ring;

    __device__ __forceinline__ dq_block(const attention_args &a, uint8_t *smem) : args(a)
    {
        const int n_heads = a.n_heads * a.n_seqs;
        const int at = static_cast<int>(blockIdx.x) % n_heads;
        const int n_tiles = static_cast<int>(gridDim.x) / n_heads;

        row = (n_tiles - 1 - static_cast<int>(blockIdx.x) / n_heads) * S::ROWS;
        seq = at / a.n_heads;
        head = at % a.n_heads;
        kv_head = head / (a.n_heads / a.n_kv_heads);
        q_tile = smem_at(slab_align(smem));
        slots = q_tile + 2 * S::Q_BYTES;
        ring.full = slots + 2 * S::STAGES * S::KEY_BYTES;
        ring.empty = ring.full + 8 * S::STAGES;
        ring.n = (min(a.k.n_rows, row + S::ROWS + a.key_offset()) + BLOCK - 1) / BLOCK;
    }

    __device__ __forceinline__ uint32_t dout_tile() const
    {
        return q_tile + S::Q_BYTES;
    }

    __device__ __forceinline__ uint32_t k_tile(int i) const
    {
        return slots + static_cast<uint32_t>(i % S::STAGES * 2 * S::KEY_BYTES);
    }

    __device__ __forceinline__ uint32_t v_tile(int i) const
    {
        return k_tile(i) + S::KEY_BYTES;
    }

    __device__ __forceinline__ int first_key(int i) const
    {
        return (ring.n - 1 - i) * BLOCK;
    }

    __device__ __forceinline__ void fill_bulk(int i, uint32_t bar) const
    {
        if (i == 0) {
            bulk_tile<S::ROWS, S::HS>(q_tile, &args.q_map, bar, seq, head, row);
            bulk_tile<S::ROWS, S::HS>(dout_tile(), &args.dout_map, bar, seq, head, row);
        }
        bulk_tile<BLOCK, S::HS>(k_tile(i), &args.k_map, bar, seq, kv_head, first_key(i));
        bulk_tile<BLOCK, S::HS>(v_tile(i), &args.v_map, bar, seq, kv_head, first_key(i));
    }

    __device__ __forceinline__ void fill_plain(int i) const
    {
        if (i == 0) {
            copy_tile<S::ROWS, S::HS, S::THREADS>(q_tile, args.q, seq, head, row);
            copy_tile<S::ROWS, S::HS, S::THREADS>(dout_tile(), args.dout, seq, head, row);
        }
        copy_tile<BLOCK, S::HS, S::THREADS>(k_tile(i), args.k, seq, kv_head, first_key(i));
        copy_tile<BLOCK, S::HS, S::THREADS>(v_tile(i), args.v, seq, kv_head, first_key(i));
    }

    __device__ __forceinline__ void fill(int i) const
    {
        ring.fill(i, 2 * S::KEY_BYTES + (i == 0 ? 2 * S::Q_BYTES : 0), [&](int, uint32_t bar) {
            if constexpr (S::M::BULK) {
                fill_bulk(i, bar);
            } else {
                fill_plain(i);
            }
        });
    }
};

/* Stats of this thread's two rows: computed from out and dout, kept for the other kernel. */
template <class S>
__device__ __forceinline__ void stats_make(const dq_block<S> &b, int row,
                                           const uint32_t (&dout)[S::HS / 16][4], stats (&st)[2])
{
    const attention_args &a = b.args;
    const size_t head = static_cast<size_t>(b.seq) * a.n_heads + b.head;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = row + 8 * r;
        const bool there = t < a.q.n_rows;
        const size_t out_row = static_cast<size_t>(b.seq) * a.q.n_rows + t;
        const uint32_t *const out =
            reinterpret_cast<const uint32_t *>(a.out + (out_row * a.n_heads + b.head) * a.q.n_cols);
        float sum = 0;

#pragma unroll
        for (int i = 0; i < S::HS / 8; i++) {
            const int col = i * 8 + static_cast<int>(threadIdx.x % 4 * 2);
            const uint32_t o = there && col < a.q.n_cols ? out[col / 2] : 0;
            const uint32_t d = dout[i / 2][i % 2 * 2 + r];

            sum += pair_low(o) * pair_low(d) + pair_high(o) * pair_high(d);
        }
        st[r].delta = quad_sum(sum);
        st[r].lse2 = there ? a.lse[head * a.q.n_rows + t] * LOG2E : INFINITY;
        if (threadIdx.x % 4 == 0 && t < a.n_stats) {
            a.stats[head * a.n_stats + t] = st[r];
        }
    }
}

/* Scores become probabilities; keys after a row's last become 0. */
template <int N>
__device__ __forceinline__ void dq_probs(float (&s)[N][4], const stats (&st)[2], float scale2,
                                         bool masked, int last_key, int first_col)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const bool seen = !masked || first_col + j * 8 + e % 2 <= last_key + e / 2 * 8;

            s[j][e] = seen ? exp2_fast(fmaf(s[j][e], scale2, -st[e / 2].lse2)) : 0;
        }
    }
}

template <int N>
__device__ __forceinline__ void dq_score_grads(float (&s)[N][4], const float (&dp)[N][4],
                                               const stats (&st)[2])
{
#pragma unroll
    for (int j = 0; j < N; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[j][e] *= dp[j][e] - st[e / 2].delta;
        }
    }
}

template <class S> __device__ __forceinline__ void dq_run(const attention_args &args)
{
    using M = typename S::M;
    extern __shared__ uint8_t smem[];
    const lane_place lane;
    const dq_block<S> b(args, smem);
    const int row = b.row + lane.row, last_key = row + args.key_offset();
    const float scale2 = args.scale * LOG2E;
    uint32_t q[S::HS / 16][4], dout[S::HS / 16][4], ds[BLOCK / 16][4] = {};
    float s[BLOCK / 8][4], dp[BLOCK / 8][4], dq[S::HS / 8][4] = {};
    stats st[2];

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
            load_operand<S::ROWS>(b.dout_tile(), static_cast<int>(threadIdx.x / 32) * 16, dout);
            stats_make(b, row, dout, st);
        }
        if constexpr (S::BEHIND) {
            M::begin(s, dp, dq, ds);
        } else {
            M::begin(s, dp);
        }
        M::template product_turned<BLOCK>(s, q, b.k_tile(i), false);
        M::commit();
        M::template product_turned<BLOCK>(dp, dout, b.v_tile(i), false);
        M::commit();
        if constexpr (S::BEHIND) {
            M::product(dq, ds, b.k_tile(max(i - 1, 0)), true);
            M::commit();
        }
        M::template wait<1 + S::BEHIND>(s);
        dq_probs(s, st, scale2, b.first_key(i) + BLOCK - 1 > b.row + args.key_offset(),
                 last_key - b.first_key(i), lane.col);
        M::template wait<S::BEHIND>(dp);
        dq_score_grads(s, dp, st);
        if constexpr (S::BEHIND) {
            M::template wait<0>(dq, ds);
            if (i > 0) {
                b.ring.done(i - 1);
            }
        }
        acc_to_operand(s, ds);
        if constexpr (!S::BEHIND) {
            product_done<M>(dq, ds, b.k_tile(i));
            b.ring.done(i);
        }
    }
    if constexpr (S::BEHIND) {
        product_done<M>(dq, ds, b.k_tile(b.ring.n - 1));
    }
    const size_t at = static_cast<size_t>(b.seq) * args.q.n_rows * args.q.stride +
                      static_cast<size_t>(b.head) * args.q.n_cols;

    store_rows(dq, args.scale, args.scale, args.dq + at, static_cast<size_t>(args.q.stride), row,
               args.q.n_rows, args.q.n_cols);
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    dq_kernel(const __grid_constant__ attention_args args)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    dq_run<S>(args);
#elif defined(__CUDA_ARCH__)
    if constexpr (!S::M::BULK) {
        dq_run<S>(args);
    } else {
        __trap(); /* code that was chosen for another architecture */
    }
#endif
}

/* ---- dk, dv ---------------------------------------------------------------------------------- */

/* RESIDENT: blocks of threads on a multiprocessor. HELD: the keys and values of a group stay in
 * registers instead of shared memory. BEHIND: as in dq_shape, for dk. */
template <int HS_, int GROUPS_, int STAGES_, int RESIDENT_, bool HELD_, bool BEHIND_, class M_>
struct dkv_shape {
    using M = M_;
    static constexpr int RESIDENT = RESIDENT_;
    static constexpr bool BEHIND = BEHIND_;
    static constexpr int HS = HS_;
    static constexpr int STAGES = STAGES_;
    static constexpr bool HELD = HELD_;
    static constexpr int THREADS = GROUPS_ * GROUP;
    static constexpr int ROWS = GROUPS_ * GROUP_ROWS;
    static constexpr int KEY_BYTES = ROWS * HS * 2;
    static constexpr int Q_BYTES = BLOCK * HS * 2;
    static constexpr int STATS_BYTES = BLOCK * static_cast<int>(sizeof(stats));
    static constexpr int SMEM =
        2 * KEY_BYTES + STAGES * (2 * Q_BYTES + STATS_BYTES) + SLAB_ALIGN + BARRIERS;
    using ring_type = ring<M, STAGES, M::BULK ? 1 : 0>;
};

template <class S> struct dkv_block {
    const attention_args &args;
    int seq, kv_head, row; /* row: the first key */
    int group;             /* query heads that share the keys */
    int first_block;       /* of queries that see one of the keys */
    int n_blocks;          /* of queries of one head */
    uint32_t tiles;
    typename S::ring_type ring;

    __device__ __forceinline__ dkv_block(const attention_args &a, uint8_t *smem) : args(a)
    {
        const int n_heads = a.n_kv_heads * a.n_seqs;
        const int at = static_cast<int>(blockIdx.x) % n_heads;

        row = static_cast<int>(blockIdx.x) / n_heads * S::ROWS;
        seq = at / a.n_kv_heads;
        kv_head = at % a.n_kv_heads;
        group = a.n_heads / a.n_kv_heads;
        first_block = max(0, row - a.key_offset()) / BLOCK;
        n_blocks = (a.q.n_rows + BLOCK - 1) / BLOCK - first_block;
        tiles = smem_at(slab_align(smem));
        ring.full = stats_tile(S::STAGES);
        ring.empty = ring.full + 8 * S::STAGES;
        ring.n = group * n_blocks;
    }

    __device__ __forceinline__ uint32_t v_tile() const
    {
        return tiles + S::KEY_BYTES;
    }

    __device__ __forceinline__ uint32_t q_tile(int slot) const
    {
        return tiles + 2 * S::KEY_BYTES + static_cast<uint32_t>(slot * 2 * S::Q_BYTES);
    }

    __device__ __forceinline__ uint32_t stats_tile(int slot) const
    {
        return q_tile(S::STAGES) + static_cast<uint32_t>(slot * S::STATS_BYTES);
    }

    __device__ __forceinline__ int first_query(int i) const
    {
        return (first_block + i % n_blocks) * BLOCK;
    }

    __device__ __forceinline__ void fill_bulk(int i, int slot, int head, const void *st,
                                              uint32_t bar) const
    {
        if (i == 0) {
            bulk_tile<S::ROWS, S::HS>(tiles, &args.k_map, bar, seq, kv_head, row);
            bulk_tile<S::ROWS, S::HS>(v_tile(), &args.v_map, bar, seq, kv_head, row);
        }
        bulk_tile<BLOCK, S::HS>(q_tile(slot), &args.q_map, bar, seq, head, first_query(i));
        bulk_tile<BLOCK, S::HS>(q_tile(slot) + S::Q_BYTES, &args.dout_map, bar, seq, head,
                                first_query(i));
        bulk_bytes(stats_tile(slot), st, S::STATS_BYTES, bar);
    }

    __device__ __forceinline__ void fill_plain(int i, int slot, int head, const void *st) const
    {
        const int t = static_cast<int>(threadIdx.x);

        if (i == 0) {
            copy_tile<S::ROWS, S::HS, S::THREADS>(tiles, args.k, seq, kv_head, row);
            copy_tile<S::ROWS, S::HS, S::THREADS>(v_tile(), args.v, seq, kv_head, row);
        }
        copy_tile<BLOCK, S::HS, S::THREADS>(q_tile(slot), args.q, seq, head, first_query(i));
        copy_tile<BLOCK, S::HS, S::THREADS>(q_tile(slot) + S::Q_BYTES, args.dout, seq, head,
                                            first_query(i));
        if (t < S::STATS_BYTES / 16) {
            copy_chunk(stats_tile(slot) + t * 16, static_cast<const uint8_t *>(st) + t * 16, true);
        }
    }

    __device__ __forceinline__ void fill(int i) const
    {
        const int bytes = 2 * S::Q_BYTES + S::STATS_BYTES + (i == 0 ? 2 * S::KEY_BYTES : 0);

        ring.fill(i, bytes, [&](int slot, uint32_t bar) {
            const int head = kv_head * group + i / n_blocks;
            const size_t stats_row =
                (static_cast<size_t>(seq) * args.n_heads + head) * args.n_stats + first_query(i);

            if constexpr (S::M::BULK) {
                fill_bulk(i, slot, head, args.stats + stats_row, bar);
            } else {
                fill_plain(i, slot, head, args.stats + stats_row);
            }
        });
    }
};

/* Stats of two queries, as they stand beside each other. */
struct stats_pair {
    float lse2[2];
    float delta[2];

    __device__ __forceinline__ explicit stats_pair(uint32_t at)
    {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(lse2[0]), "=f"(delta[0]), "=f"(lse2[1]), "=f"(delta[1])
                     : "r"(at)
                     : "memory");
    }
};

/* Turned scores become probabilities, 0 where the query does not see the key. `lead`: this row's
 * key less the last key that the block's query 0 sees. */
template <int N>
__device__ __forceinline__ void dkv_probs(float (&s)[N][4], uint32_t st, float scale2, bool masked,
                                          int lead, int first_col)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const stats_pair pair(st + (first_col + j * 8) * static_cast<int>(sizeof(stats)));

#pragma unroll
        for (int e = 0; e < 4; e++) {
            const bool seen = !masked || lead + e / 2 * 8 <= first_col + j * 8 + e % 2;

            s[j][e] = seen ? exp2_fast(fmaf(s[j][e], scale2, -pair.lse2[e % 2])) : 0;
        }
    }
}

template <int N>
__device__ __forceinline__ void dkv_score_grads(float (&s)[N][4], const float (&dp)[N][4],
                                                uint32_t st, int first_col)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const stats_pair pair(st + (first_col + j * 8) * static_cast<int>(sizeof(stats)));

#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[j][e] *= dp[j][e] - pair.delta[e % 2];
        }
    }
}

/* Keys and values of this group, where the products take them from. */
template <class S> struct dkv_operands {
    static constexpr int STEPS = S::HELD ? S::HS / 16 : 1;
    uint32_t k[STEPS][4], v[STEPS][4];

    __device__ __forceinline__ void load(const dkv_block<S> &b)
    {
        if constexpr (S::HELD) {
            load_operand<S::ROWS>(b.tiles, static_cast<int>(threadIdx.x / 32) * 16, k);
            load_operand<S::ROWS>(b.v_tile(), static_cast<int>(threadIdx.x / 32) * 16, v);
        }
    }

    /* Queue turned scores and turned gradients of probabilities, one group of products each. */
    __device__ __forceinline__ void products(const dkv_block<S> &b, uint32_t q_tile,
                                             float (&s)[BLOCK / 8][4], float (&dp)[BLOCK / 8][4])
    {
        using M = typename S::M;
        const int row = static_cast<int>(threadIdx.x / GROUP) * GROUP_ROWS;

        if constexpr (S::HELD) {
            M::template product_turned<BLOCK>(s, k, q_tile, false);
            M::commit();
            M::template product_turned<BLOCK>(dp, v, q_tile + S::Q_BYTES, false);
            M::commit();
        } else {
            M::template tiles_turned<S::ROWS, BLOCK, S::HS / 16>(s, b.tiles, row, q_tile);
            M::commit();
            M::template tiles_turned<S::ROWS, BLOCK, S::HS / 16>(dp, b.v_tile(), row,
                                                                 q_tile + S::Q_BYTES);
            M::commit();
        }
    }
};

template <class S>
__device__ __forceinline__ void dkv_finish(const dkv_block<S> &b, const float (&dk)[S::HS / 8][4],
                                           const float (&dv)[S::HS / 8][4], int row)
{
    const source &k = b.args.k;
    const size_t at = static_cast<size_t>(b.seq) * k.n_rows * k.stride +
                      static_cast<size_t>(b.kv_head) * k.n_cols;

    store_rows(dk, b.args.scale, b.args.scale, b.args.dk + at, static_cast<size_t>(k.stride), row,
               k.n_rows, k.n_cols);
    store_rows(dv, 1, 1, b.args.dv + at, static_cast<size_t>(k.stride), row, k.n_rows, k.n_cols);
}

template <class S> __device__ __forceinline__ void dkv_run(const attention_args &args)
{
    using M = typename S::M;
    extern __shared__ uint8_t smem[];
    const lane_place lane;
    const dkv_block<S> b(args, smem);
    const int row = b.row + lane.row;
    const float scale2 = args.scale * LOG2E;
    dkv_operands<S> operands;
    uint32_t p[BLOCK / 16][4], ds[BLOCK / 16][4] = {};
    float s[BLOCK / 8][4], dp[BLOCK / 8][4], dk[S::HS / 8][4] = {}, dv[S::HS / 8][4] = {};

    if (threadIdx.x == 0) {
        b.ring.init(S::THREADS / 32);
    }
    __syncthreads();
    for (int i = 0; i < S::ring_type::AHEAD; i++) {
        b.fill(i);
    }
    for (int i = 0; i < b.ring.n; i++) {
        const int slot = i % S::STAGES;
        const int last_key = b.first_query(i) + args.key_offset(); /* that query 0 sees */
        const uint32_t q_tile = b.q_tile(slot), st = b.stats_tile(slot);

        b.ring.wait(i);
        b.fill(i + S::ring_type::AHEAD);
        if (i == 0) {
            operands.load(b);
        }
        if constexpr (S::BEHIND) {
            M::begin(s, dp, dk, ds);
        } else {
            M::begin(s, dp);
        }
        operands.products(b, q_tile, s, dp);
        if constexpr (S::BEHIND) {
            M::product(dk, ds, b.q_tile(max(i - 1, 0) % S::STAGES), true);
            M::commit();
            M::template wait<2>(s, dv, p);
        } else {
            M::template wait<1>(s);
        }
        dkv_probs(s, st, scale2, b.row + S::ROWS - 1 > last_key, row - last_key, lane.col);
        acc_to_operand(s, p);
        M::begin(dv, p);
        M::product(dv, p, q_tile + S::Q_BYTES, true);
        M::commit();
        M::template wait<1 + S::BEHIND>(dp);
        dkv_score_grads(s, dp, st, lane.col);
        if constexpr (S::BEHIND) {
            M::template wait<1>(dk, ds);
            if (i > 0) {
                b.ring.done(i - 1);
            }
            acc_to_operand(s, ds);
        } else {
            M::template wait<0>(dv, p);
            acc_to_operand(s, p);
            product_done<M>(dk, p, q_tile);
            b.ring.done(i);
        }
    }
    if constexpr (S::BEHIND) {
        M::begin(dk, ds);
        M::product(dk, ds, b.q_tile((b.ring.n - 1) % S::STAGES), true);
        M::commit();
        M::template wait<0>(dk, dv, ds, p);
    }
    dkv_finish(b, dk, dv, row);
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::RESIDENT)
    dkv_kernel(const __grid_constant__ attention_args args)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    dkv_run<S>(args);
#elif defined(__CUDA_ARCH__)
    if constexpr (!S::M::BULK) {
        dkv_run<S>(args);
    } else {
        __trap(); /* code that was chosen for another architecture */
    }
#endif
}

/* ---- Launches -------------------------------------------------------------------------------- */

static cudaError_t bwd_maps(attention_args *args, int q_rows, int k_rows)
{
    cudaError_t code = map_init(args->q, args->n_seqs, args->n_heads, q_rows, &args->q_map);

    if (code == cudaSuccess) {
        code = map_init(args->dout, args->n_seqs, args->n_heads, q_rows, &args->dout_map);
    }
    if (code == cudaSuccess) {
        code = map_init(args->k, args->n_seqs, args->n_kv_heads, k_rows, &args->k_map);
    }
    if (code == cudaSuccess) {
        code = map_init(args->v, args->n_seqs, args->n_kv_heads, k_rows, &args->v_map);
    }
    return code;
}

template <class S>
static cudaError_t bwd_launch(cudaStream_t stream, const attention_args &args, int n_rows,
                              int n_heads, void (*kernel)(attention_args))
{
    const int n_tiles = (n_rows + S::ROWS - 1) / S::ROWS;
    cudaLaunchConfig_t config = {};
    const cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM);

    if (code != cudaSuccess) {
        return code;
    }
    config.gridDim = dim3(static_cast<unsigned>(n_tiles * n_heads * args.n_seqs));
    config.blockDim = dim3(S::THREADS);
    config.dynamicSmemBytes = S::SMEM;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args);
}

template <class Dq, class Dkv>
static cudaError_t bwd_launch_both(cudaStream_t stream, attention_args *args)
{
    cudaError_t code = Dq::M::BULK ? bwd_maps(args, Dq::ROWS, BLOCK) : cudaSuccess;

    if (code == cudaSuccess) {
        code = bwd_launch<Dq>(stream, *args, args->q.n_rows, args->n_heads, dq_kernel<Dq>);
    }
    if (code == cudaSuccess && Dkv::M::BULK) {
        code = bwd_maps(args, BLOCK, Dkv::ROWS);
    }
    if (code == cudaSuccess) {
        code = bwd_launch<Dkv>(stream, *args, args->k.n_rows, args->n_kv_heads, dkv_kernel<Dkv>);
    }
    return code;
}

} // namespace hdt_tile

using namespace hdt_tile;

cudaError_t hdt_cuda_attention_bwd_bf16(cudaStream_t stream, const struct hdt_cuda_attention *a,
                                        const struct hdt_cuda_attention_grads *g)
{
    attention_args args;
    const cudaError_t code = args_init(a, &args);

    if (code != cudaSuccess) {
        return code;
    }
    args.dout = {static_cast<const __nv_bfloat16 *>(g->dout), a->n_heads * a->head_size, a->q_len,
                 a->head_size};
    args.stats = static_cast<struct stats *>(g->scratch);
    args.n_stats = (a->q_len + STATS_ROUND - 1) / STATS_ROUND * STATS_ROUND;
    args.dq = static_cast<__nv_bfloat16 *>(g->dq);
    args.dk = static_cast<__nv_bfloat16 *>(g->dk);
    args.dv = static_cast<__nv_bfloat16 *>(g->dv);
    if (!a->plain && bulk_device()) {
        using M = tile_group;
        using dq_64 = dq_shape<64, 3, 5, false, M>;
        using dkv_64 = dkv_shape<64, 1, 4, 2, true, true, M>;
        using dq_128 = dq_shape<128, 2, 4, true, M>;
        using dkv_128 = dkv_shape<128, 2, 4, 1, false, true, M>;

        return a->head_size <= 64 ? bwd_launch_both<dq_64, dkv_64>(stream, &args)
                                  : bwd_launch_both<dq_128, dkv_128>(stream, &args);
    }
    using M = tile_warp;
    using dq_64 = dq_shape<64, 2, 2, false, M>;
    using dkv_64 = dkv_shape<64, 2, 2, 1, true, false, M>;
    using dq_128 = dq_shape<128, 1, 2, false, M>;
    using dkv_128 = dkv_shape<128, 1, 2, 1, false, false, M>;

    return a->head_size <= 64 ? bwd_launch_both<dq_64, dkv_64>(stream, &args)
                              : bwd_launch_both<dq_128, dkv_128>(stream, &args);
}
