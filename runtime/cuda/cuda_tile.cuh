/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_TILE_CUH
#define HDT_RUNTIME_CUDA_CUDA_TILE_CUH

/*
 * Tiles of bf16 in shared memory and products of them, for the attention kernels, in two ways:
 * tile_warp (mma.sync and cp.async, from sm_80 on) and tile_group (wgmma and bulk tensor copies,
 * sm_90a). Both use the same tiles and the same registers, so one kernel text serves both.
 *
 * A tile of R rows stands as slabs of 64 columns; a slab is R rows of 128 bytes, aligned to 1024
 * bytes, whose 16-byte chunks are swizzled: chunk c of row r is at place c ^ (r % 8). That is what
 * the copy engine writes, what wgmma reads, and free of bank conflicts for ldmatrix.
 *
 * A group of 128 threads (4 warps) computes 64 rows of a product, warp w the rows 16 w to 16 w
 * + 15. Its accumulator acc[N / 8][4] holds, in lane l with g = l / 4 and t = l % 4, of the 8
 * columns j: row g columns 8 j + 2 t and the next (0, 1), row g + 8 the same columns (2, 3). The
 * left operand in registers a[K / 16][4] holds pairs of bf16 in the order of mma.m16n8k16, which
 * makes an accumulator rounded to bf16 (acc_to_operand) the left operand of the next product.
 */
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

namespace hdt_tile
{

constexpr int GROUP = 128;     /* threads that share one wgmma */
constexpr int GROUP_ROWS = 64; /* rows of a product that they hold */
constexpr int SLAB_COLS = 64;
constexpr int ROW_BYTES = SLAB_COLS * 2;
constexpr int SLAB_ALIGN = 1024;

/* A matrix in global memory as a tile's source: (sequences, rows, heads, cols). */
struct source {
    const __nv_bfloat16 *data;
    int stride; /* of two rows */
    int n_rows; /* of a sequence */
    int n_cols; /* of a head */
};

__device__ __forceinline__ uint32_t smem_at(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* First byte at or after p that a slab may begin at. */
__device__ __forceinline__ uint8_t *slab_align(uint8_t *p)
{
    const uint32_t at = smem_at(p);

    return p + ((at + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN - at);
}

__device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float pair_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float pair_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000);
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int N>
__device__ __forceinline__ void acc_to_operand(const float (&acc)[N][4], uint32_t (&a)[N / 2][4])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        a[i][0] = pack(acc[2 * i][0], acc[2 * i][1]);
        a[i][1] = pack(acc[2 * i][2], acc[2 * i][3]);
        a[i][2] = pack(acc[2 * i + 1][0], acc[2 * i + 1][1]);
        a[i][3] = pack(acc[2 * i + 1][2], acc[2 * i + 1][3]);
    }
}

__device__ __forceinline__ uint32_t chunk_at(uint32_t slab, int row, int chunk)
{
    return slab + static_cast<uint32_t>(row * ROW_BYTES + ((chunk ^ (row & 7)) << 4));
}

__device__ __forceinline__ void load_matrix(uint32_t at, uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrix_turned(uint32_t at, uint32_t (&r)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* 16 columns of this warp's 16 rows of a tile, as a left operand. `row`: the warp's first. */
template <int ROWS>
__device__ __forceinline__ void load_operand_step(uint32_t tile, int row, int step,
                                                  uint32_t (&a)[4])
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t slab = tile + static_cast<uint32_t>(step / 4 * ROWS * ROW_BYTES);

    load_matrix(chunk_at(slab, row + lane % 16, step % 4 * 2 + lane / 16), a);
}

template <int ROWS, int STEPS>
__device__ __forceinline__ void load_operand(uint32_t tile, int row, uint32_t (&a)[STEPS][4])
{
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        load_operand_step<ROWS>(tile, row, i, a[i]);
    }
}

/* ---- mma.sync and cp.async ------------------------------------------------------------------- */

struct tile_warp {
    static constexpr bool BULK = false;

    static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }

    /* Nothing runs behind: products are done when they return. */
    template <class... Held> static __device__ __forceinline__ void begin(Held &...)
    {
    }

    static __device__ __forceinline__ void commit()
    {
    }

    template <int PENDING, class... Held> static __device__ __forceinline__ void wait(Held &...)
    {
    }

    template <int N> static __device__ __forceinline__ void clear(float (&acc)[N][4])
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
        }
    }

    /* One step of 16 of the inner dimension of acc += a B^T, B a tile of (8 N, ...). */
    template <int N, int ROWS>
    static __device__ __forceinline__ void step_turned(float (&acc)[N][4], const uint32_t (&a)[4],
                                                       uint32_t b, int step)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const uint32_t slab = b + static_cast<uint32_t>(step / 4 * ROWS * ROW_BYTES);

#pragma unroll
        for (int j = 0; j < N; j += 2) {
            uint32_t r[4];

            load_matrix(
                chunk_at(slab, j * 8 + lane / 16 * 8 + lane % 8, step % 4 * 2 + lane / 8 % 2), r);
            mma(acc[j], a, r[0], r[1]);
            mma(acc[j + 1], a, r[2], r[3]);
        }
    }

    /* acc (64, 8 N) = a B^T, or += with `add`; B is a tile of ROWS = 8 N rows, 16 STEPS columns. */
    template <int ROWS, int N, int STEPS>
    static __device__ __forceinline__ void
    product_turned(float (&acc)[N][4], const uint32_t (&a)[STEPS][4], uint32_t b, bool add)
    {
        static_assert(ROWS == 8 * N);
        if (!add) {
            clear(acc);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            step_turned<N, ROWS>(acc, a[i], b, i);
        }
    }

    /* The same with A in a tile of A_ROWS rows, this group's 64 from a_row on. */
    template <int A_ROWS, int ROWS, int STEPS, int N>
    static __device__ __forceinline__ void tiles_turned(float (&acc)[N][4], uint32_t a_tile,
                                                        int a_row, uint32_t b)
    {
        const int row = a_row + static_cast<int>(threadIdx.x % GROUP / 32) * 16;

        static_assert(ROWS == 8 * N);
        clear(acc);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];

            load_operand_step<A_ROWS>(a_tile, row, i, a);
            step_turned<N, ROWS>(acc, a, b, i);
        }
    }

    /* acc (64, 8 N) += a B; B is a tile of 16 STEPS rows, 8 N columns. */
    template <int N, int STEPS>
    static __device__ __forceinline__ void
    product(float (&acc)[N][4], const uint32_t (&a)[STEPS][4], uint32_t b, bool add)
    {
        const int lane = static_cast<int>(threadIdx.x % 32);

        if (!add) {
            clear(acc);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                const uint32_t slab = b + static_cast<uint32_t>(j / 8 * STEPS * 16 * ROW_BYTES);
                uint32_t r[4];

                load_matrix_turned(chunk_at(slab, i * 16 + lane % 16, j % 8 + lane / 16), r);
                mma(acc[j], a[i], r[0], r[1]);
                mma(acc[j + 1], a[i], r[2], r[3]);
            }
        }
    }
};

/* Copy 16 bytes, or zeros when `there` is false. */
__device__ __forceinline__ void copy_chunk(uint32_t dst, const void *src, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* All THREADS threads copy rows row .. row + ROWS - 1 of one head; what is outside becomes zeros.
 */
template <int ROWS, int COLS, int THREADS>
__device__ __forceinline__ void copy_tile(uint32_t tile, const source &s, int seq, int head,
                                          int row)
{
    constexpr int CHUNKS = COLS / 8;
    const __nv_bfloat16 *const data = s.data + static_cast<size_t>(seq) * s.n_rows * s.stride +
                                      static_cast<size_t>(head) * s.n_cols;

#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS;
        const bool there = row + r < s.n_rows && c * 8 < s.n_cols;
        const uint32_t slab = tile + static_cast<uint32_t>(c / 8 * ROWS * ROW_BYTES);

        copy_chunk(chunk_at(slab, r, c % 8),
                   there ? data + static_cast<size_t>(row + r) * s.stride + c * 8 : s.data, there);
    }
}

/* ---- wgmma and bulk tensor copies ------------------------------------------------------------ */

/* What a wgmma reads from shared memory: 128-byte swizzle, groups of 8 rows 1024 bytes apart. In a
 * turned operand (rows are the inner dimension) the same distance leads to the next 8 of it. */
__device__ __forceinline__ uint64_t describe(uint32_t at)
{
    constexpr uint64_t GROUPS = SLAB_ALIGN >> 4;

    return static_cast<uint64_t>((at & 0x3ffff) >> 4) | 1ull << 16 | GROUPS << 32 | 1ull << 62;
}

#define HDT_TILE_ACC4(j)                                                                           \
 "+f"(d[J + (j)][0]), "+f"(d[J + (j)][1]), "+f"(d[J + (j)][2]), "+f"(d[J + (j)][3])
#define HDT_TILE_ACC32                                                                             \
 HDT_TILE_ACC4(0), HDT_TILE_ACC4(1), HDT_TILE_ACC4(2), HDT_TILE_ACC4(3), HDT_TILE_ACC4(4),         \
     HDT_TILE_ACC4(5), HDT_TILE_ACC4(6), HDT_TILE_ACC4(7)
#define HDT_TILE_OUT32                                                                             \
 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "     \
 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"

struct tile_group {
    static constexpr bool BULK = true;

    /* Products run behind the program, which the compiler does not see: what they read or write in
     * registers is named at the begin() before them, and what they wrote at the wait() after. */
    template <int N> static __device__ __forceinline__ void hold(float (&x)[N][4])
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            asm volatile("" : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])::"memory");
        }
    }

    template <int N> static __device__ __forceinline__ void hold(uint32_t (&x)[N][4])
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]), "+r"(x[i][3])::"memory");
        }
    }

    template <class... Held> static __device__ __forceinline__ void begin(Held &...held)
    {
        (hold(held), ...);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    }

    static __device__ __forceinline__ void commit()
    {
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }

    template <int PENDING, class... Held> static __device__ __forceinline__ void wait(Held &...held)
    {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
        (hold(held), ...);
    }

    /* 64 columns, those of d[J] to d[J + 7]; TURN: B stands with its rows as inner dimension.
     *
     * Beware of `a` that lasts over a loop: in some shapes ptxas 13.0 gives its registers to
     * another operand too, and says nothing (seen with forward, head size 64, 64 keys, products not
     * behind). A new shape or compiler is to pass tests/support/cuda_attention on a device. */
    template <int TURN, int J, int N>
    static __device__ __forceinline__ void mma(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b,
                                               int add)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HDT_TILE_OUT32
                     ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                     : HDT_TILE_ACC32
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURN));
    }

    template <int J, int N>
    static __device__ __forceinline__ void mma_tiles(float (&d)[N][4], uint64_t a, uint64_t b,
                                                     int add)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HDT_TILE_OUT32
                     ", %32, %33, p, 1, 1, 0, 0;\n}"
                     : HDT_TILE_ACC32
                     : "l"(a), "l"(b), "r"(add));
    }

    /* As in tile_warp; queued only. */
    template <int ROWS, int N, int STEPS>
    static __device__ __forceinline__ void
    product_turned(float (&acc)[N][4], const uint32_t (&a)[STEPS][4], uint32_t b, bool add)
    {
        static_assert(ROWS == 8 * N && N % 8 == 0);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint64_t at = describe(b) + (i / 4 * ROWS * ROW_BYTES + i % 4 * 32) / 16;

            mma<0, 0>(acc, a[i], at, add || i > 0);
            if constexpr (N == 16) {
                mma<0, 8>(acc, a[i], at + 64 * ROW_BYTES / 16, add || i > 0);
            }
        }
    }

    template <int A_ROWS, int ROWS, int STEPS, int N>
    static __device__ __forceinline__ void tiles_turned(float (&acc)[N][4], uint32_t a_tile,
                                                        int a_row, uint32_t b)
    {
        static_assert(ROWS == 64 && N == 8);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint64_t a_at = describe(a_tile + static_cast<uint32_t>(a_row * ROW_BYTES)) +
                                  (i / 4 * A_ROWS * ROW_BYTES + i % 4 * 32) / 16;
            const uint64_t b_at = describe(b) + (i / 4 * ROWS * ROW_BYTES + i % 4 * 32) / 16;

            mma_tiles<0>(acc, a_at, b_at, i > 0);
        }
    }

    template <int N, int STEPS>
    static __device__ __forceinline__ void
    product(float (&acc)[N][4], const uint32_t (&a)[STEPS][4], uint32_t b, bool add)
    {
        static_assert(N == 8 || N == 16);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint64_t at = describe(b) + i * 16 * ROW_BYTES / 16;

            mma<1, 0>(acc, a[i], at, add || i > 0);
            if constexpr (N == 16) {
                mma<1, 8>(acc, a[i], at + STEPS * 16 * ROW_BYTES / 16, add || i > 0);
            }
        }
    }
};

__device__ __forceinline__ void barrier_init(uint32_t barrier, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity)
{
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra done;\nbra again;\n"
                 "done:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* One thread: queue the copy of a tile; the barrier counts its bytes. */
template <int ROWS, int COLS>
__device__ __forceinline__ void bulk_tile(uint32_t tile, const CUtensorMap *map, uint32_t barrier,
                                          int seq, int head, int row)
{
#pragma unroll
    for (int i = 0; i < COLS / SLAB_COLS; i++) {
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(tile + i * ROWS * ROW_BYTES),
                     "l"(map), "r"(i * SLAB_COLS), "r"(head), "r"(row), "r"(seq), "r"(barrier)
                     : "memory");
    }
}

/* One thread: queue the copy of contiguous bytes, a multiple of 16. */
__device__ __forceinline__ void bulk_bytes(uint32_t dst, const void *src, int bytes,
                                           uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(barrier)
                 : "memory");
}

} // namespace hdt_tile

#endif /* HDT_RUNTIME_CUDA_CUDA_TILE_CUH */
