/* SPDX-License-Identifier: Apache-2.0 */
/*
 * C = alpha op(A) op(B) + beta C without a library.
 *
 * The idea is Goto's: the product is cut along k into blocks; of each block B's part is packed into
 * panels NR columns wide and A's into panels MR rows high, so that the inner kernel reads both
 * straight through and keeps an MR x NR piece of C in registers. Packing also undoes transposes, so
 * there is one kernel for all four cases. Edges are packed with zeros and written through a small
 * buffer. A block of A (MC x KC) stays in the second-level cache, a panel of B (KC x NR) in the
 * first.
 */
#include "config.h"

#include "runtime/cpu/cpu_gemm.h"
#include "runtime/cpu/cpu_vec.h"

#if defined(__AVX2__)
# define MR 6
# define NR 16
#else
# define MR 4
# define NR 8
#endif
#define NV (NR / VEC_LEN)
#define KC 256
#define MC 96
#define NC 1024

struct gemm_block {
    const struct hdt_gemm *g;
    float *a_pack; /* (MC / MR panels, KC, MR) */
    float *b_pack; /* (NC / NR panels, KC, NR) */
    int k0, kc;
};

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Panels of `width` rows of a matrix that stands as rows of k values: dst[p][i] = src[i][p]. */
static void pack_rows(const float *src, int ld, int n, int kc, int width, float *dst)
{
    for (int i0 = 0; i0 < n; i0 += width) {
        for (int i = 0; i < width; i++) {
            const float *row = src + (size_t)(i0 + i) * ld;
            bool inside = i0 + i < n;

            for (int p = 0; p < kc; p++) {
                dst[(size_t)p * width + i] = inside ? row[p] : 0;
            }
        }
        dst += (size_t)kc * width;
    }
}

/* Panels of `width` columns of a matrix that stands as k rows: dst[p][i] = src[p][i]. */
static void pack_cols(const float *src, int ld, int n, int kc, int width, float *dst)
{
    for (int i0 = 0; i0 < n; i0 += width) {
        int len = min_int(width, n - i0);

        for (int p = 0; p < kc; p++) {
            const float *row = src + (size_t)p * ld + i0;

            for (int i = 0; i < len; i++) {
                dst[i] = row[i];
            }
            for (int i = len; i < width; i++) {
                dst[i] = 0;
            }
            dst += width;
        }
    }
}

/* The MR x NR product of two panels, in registers. */
VEC_INLINE void panel_product(const float *a, const float *b, int kc, vec_f32 acc[MR][NV])
{
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NV; j++) {
            acc[i][j] = (vec_f32){0};
        }
    }
    for (int p = 0; p < kc; p++) {
        vec_f32 bv[NV];

#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) {
            bv[j] = vec_load(b + j * VEC_LEN);
        }
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            vec_f32 av = vec_set(a[i]);

#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) {
                acc[i][j] += av * bv[j];
            }
        }
        a += MR;
        b += NR;
    }
}

/* c = alpha acc + beta c for the m x n values that exist. */
static void piece_store(float acc[MR][NR], int m, int n, float alpha, float beta, float *c, int ldc)
{
    for (int i = 0; i < m; i++) {
        float *row = c + (size_t)i * ldc;

        for (int j = 0; j < n; j++) {
            row[j] = beta != 0.0f ? alpha * acc[i][j] + beta * row[j] : alpha * acc[i][j];
        }
    }
}

VEC_INLINE void piece_compute(const struct gemm_block *blk, const float *a, const float *b, int i,
                              int j)
{
    const struct hdt_gemm *g = blk->g;
    float beta = blk->k0 > 0 ? 1.0f : g->beta;
    int m = min_int(MR, g->m - i), n = min_int(NR, g->n - j);
    vec_f32 acc[MR][NV];
    float edge[MR][NR];

    panel_product(a, b, blk->kc, acc);
    if (m == MR && n == NR) {
#pragma GCC unroll 8
        for (int r = 0; r < MR; r++) {
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) {
                float *c = g->c + (size_t)(i + r) * g->ldc + j + v * VEC_LEN;
                vec_f32 x = acc[r][v] * g->alpha;

                vec_store(c, beta != 0.0f ? x + vec_load(c) * beta : x);
            }
        }
        return;
    }
    memcpy(edge, acc, sizeof(edge));
    piece_store(edge, m, n, g->alpha, beta, g->c + (size_t)i * g->ldc + j, g->ldc);
}

static void block_compute(const struct gemm_block *blk, int i0, int mc, int j0, int nc)
{
    for (int j = 0; j < nc; j += NR) {
        for (int i = 0; i < mc; i += MR) {
            piece_compute(blk, blk->a_pack + (size_t)i * blk->kc, blk->b_pack + (size_t)j * blk->kc,
                          i0 + i, j0 + j);
        }
    }
}

static void block_pack_a(const struct gemm_block *blk, int i0, int mc)
{
    const struct hdt_gemm *g = blk->g;

    if (g->trans_a) {
        pack_cols(g->a + (size_t)blk->k0 * g->lda + i0, g->lda, mc, blk->kc, MR, blk->a_pack);
    } else {
        pack_rows(g->a + (size_t)i0 * g->lda + blk->k0, g->lda, mc, blk->kc, MR, blk->a_pack);
    }
}

static void block_pack_b(const struct gemm_block *blk, int j0, int nc)
{
    const struct hdt_gemm *g = blk->g;

    if (g->trans_b) {
        pack_rows(g->b + (size_t)j0 * g->ldb + blk->k0, g->ldb, nc, blk->kc, NR, blk->b_pack);
    } else {
        pack_cols(g->b + (size_t)blk->k0 * g->ldb + j0, g->ldb, nc, blk->kc, NR, blk->b_pack);
    }
}

void hdt_cpu_gemm_plain(const struct hdt_gemm *g, float *scratch)
{
    struct gemm_block blk = {.g = g, .a_pack = scratch, .b_pack = scratch + (size_t)MC * KC};

    for (int j0 = 0; j0 < g->n; j0 += NC) {
        int nc = min_int(NC, g->n - j0);

        for (blk.k0 = 0; blk.k0 < g->k; blk.k0 += KC) {
            blk.kc = min_int(KC, g->k - blk.k0);
            block_pack_b(&blk, j0, nc);
            for (int i0 = 0; i0 < g->m; i0 += MC) {
                int mc = min_int(MC, g->m - i0);

                block_pack_a(&blk, i0, mc);
                block_compute(&blk, i0, mc, j0, nc);
            }
        }
    }
}
