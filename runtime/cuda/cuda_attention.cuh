/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_ATTENTION_CUH
#define HDT_RUNTIME_CUDA_CUDA_ATTENTION_CUH

/* What the kernels of attention share: arguments, the ring of tiles in flight, masks, results. */
#include "runtime/cuda/cuda_attention.h"
#include "runtime/cuda/cuda_tile.cuh"

namespace hdt_tile
{

constexpr float LOG2E = 1.4426950408889634f;
constexpr int STATS_ROUND = 128; /* rows of stats of a head are a multiple of it */

/* What the backward pass keeps of a query. A row past the last query has lse2 infinite: its
 * probabilities are 0. */
struct stats {
    float lse2;  /* lse * log2(e) */
    float delta; /* sum of out * dout */
};

/* Arguments of a kernel. The maps are those of the sources, where bulk copies are used. */
struct attention_args {
    CUtensorMap q_map;
    CUtensorMap k_map;
    CUtensorMap v_map;
    CUtensorMap dout_map;
    source q;
    source k;
    source v;
    source dout;
    int n_seqs;
    int n_heads;
    int n_kv_heads;
    float scale;
    __nv_bfloat16 *out; /* tight */
    float *lse;
    struct stats *stats;
    int n_stats; /* rows of a head */
    __nv_bfloat16 *dq;
    __nv_bfloat16 *dk;
    __nv_bfloat16 *dv;

    /* The last key that query t sees is t + key_offset(). */
    __device__ __forceinline__ int key_offset() const
    {
        return k.n_rows - q.n_rows;
    }
};

/*
 * Slots of shared memory through which n blocks of data pass in turn, block i by slot i % STAGES.
 * With bulk copies one thread fills, a barrier says that a slot is full and another that all warps
 * are done with it; else all threads fill, and a barrier of all threads says both. A reader
 * calls fill(0 .. AHEAD - 1), then for each block wait(i), fill(i + AHEAD), done(i); LAG is how
 * many blocks before i may still be read when fill(i + AHEAD) is called.
 */
template <class M, int STAGES, int LAG> struct ring {
    static constexpr int AHEAD = STAGES - 1 - LAG;
    static_assert(AHEAD >= 1);

    uint32_t full;  /* STAGES barriers, then as many of empty ones */
    uint32_t empty; /* unused without bulk copies */
    int n;

    /* One thread; a barrier of all threads must follow. */
    __device__ __forceinline__ void init(int n_warps) const
    {
        if constexpr (M::BULK) {
            for (int i = 0; i < STAGES; i++) {
                barrier_init(full + 8 * i, 1);
                barrier_init(empty + 8 * i, n_warps);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
    }

    /* copy(slot, barrier) queues the copies of block i, `bytes` in all. */
    template <class Copy> __device__ __forceinline__ void fill(int i, int bytes, Copy copy) const
    {
        const int slot = i % STAGES;

        if constexpr (M::BULK) {
            if (threadIdx.x == 0 && i < n) {
                if (i >= STAGES) {
                    barrier_wait(empty + 8 * slot, (i / STAGES - 1) & 1);
                }
                barrier_expect(full + 8 * slot, bytes);
                copy(slot, full + 8 * slot);
            }
            __syncwarp();
        } else {
            if (i < n) {
                copy(slot, 0u);
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
    }

    __device__ __forceinline__ void wait(int i) const
    {
        if constexpr (M::BULK) {
            barrier_wait(full + 8 * (i % STAGES), (i / STAGES) & 1);
        } else {
            asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
            __syncthreads();
        }
    }

    __device__ __forceinline__ void done(int i) const
    {
        if constexpr (M::BULK) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                barrier_arrive(empty + 8 * (i % STAGES));
            }
        }
    }
};

/* Place of this thread's values in an accumulator of its group. */
struct lane_place {
    int row; /* of values 0 and 1; 8 more for 2 and 3 */
    int col; /* of value 0 in the first 8 columns */

    __device__ __forceinline__ lane_place()
        : row(static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4)),
          col(static_cast<int>(threadIdx.x % 4 * 2))
    {
    }
};

/* Sum or maximum over the 4 lanes that share a row. */
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

/* Write acc times a factor for each of the two rows; rows and columns past n_rows and n_cols are
 * left out. data: row 0, column 0 of the block. The lanes of a quad trade values so that each
 * writes 16 bytes: lane t gets the 8 columns of every fourth j. */
template <int N>
__device__ __forceinline__ void store_rows(const float (&acc)[N][4], float factor0, float factor1,
                                           __nv_bfloat16 *data, size_t stride, int row, int n_rows,
                                           int n_cols)
{
    const int t = static_cast<int>(threadIdx.x % 4);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = row + 8 * half;
        const float factor = half ? factor1 : factor0;

#pragma unroll
        for (int j = 0; j < N; j += 4) {
            uint32_t pairs[4];
            uint32_t mine[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                pairs[i] = pack(acc[j + i][2 * half] * factor, acc[j + i][2 * half + 1] * factor);
            }
            /* Round i: lane t sends the pair of columns t ^ i and gets its own from lane t ^ i. */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int want = t ^ i;
                const uint32_t low = want & 1 ? pairs[1] : pairs[0];
                const uint32_t high = want & 1 ? pairs[3] : pairs[2];
                const uint32_t got = __shfl_xor_sync(0xffffffff, want & 2 ? high : low, i);

#pragma unroll
                for (int place = 0; place < 4; place++) {
                    mine[place] = want == place ? got : mine[place];
                }
            }
            if (at < n_rows && (j + t) * 8 < n_cols) {
                *reinterpret_cast<uint4 *>(data + static_cast<size_t>(at) * stride + (j + t) * 8) =
                    make_uint4(mine[0], mine[1], mine[2], mine[3]);
            }
        }
    }
}

/* The current device runs the wgmma kernels of this build. */
bool bulk_device();

/* Fill what forward and backward share; with_maps: the tensor maps of q, k, v too. `rows`: of one
 * copy of queries and of keys. */
cudaError_t args_init(const hdt_cuda_attention *a, attention_args *args);
cudaError_t map_init(const source &s, int n_seqs, int n_heads, int rows, CUtensorMap *map);

} // namespace hdt_tile

#endif /* HDT_RUNTIME_CUDA_CUDA_ATTENTION_CUH */
