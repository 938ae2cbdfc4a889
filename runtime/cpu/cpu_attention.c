/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal grouped-query attention on CPU cores.
 *
 * The idea: take 64 queries of one head at a time. Their scores against all keys that they may see
 * (64 x T values, 64 KiB at T = 256, 256 KiB at T = 1024) stay in the second-level cache between
 * the two small matrix products, and each row is there whole, so that softmax needs no running
 * rescale. Scores above the diagonal block are never computed; within it they are masked. The
 * backward pass computes the scores again from the log-sum that forward kept, which costs less than
 * storing them.
 *
 * Backward tiles are (sequence, key/value head): one thread adds all contributions to a key's
 * gradient, in an order that the shape fixes. Refused: tiles by query block with partial sums of dk
 * and dv, which would be more parallel but need memory and a second pass.
 */
#include "config.h"

#include "runtime/cpu/cpu_device.h"

#include <math.h>

#define QUERY_BLOCK   64
#define SCRATCH_ALIGN 64 /* floats: areas of two threads share no cache line */

struct attention_task {
    const struct hdt_attention *a;
    const struct hdt_cpu_kernels *k;
    const float *dout;
    float *dq, *dk, *dv;
    int n_blocks;
    float scale;
    float *scratch;
    size_t scratch_len; /* floats of one thread */
};

/* One block of queries of one head. */
struct query_block {
    const float *q;
    const float *k;
    const float *v;
    float *out;
    float *lse;
    int n;    /* queries */
    int len0; /* keys that the first query sees */
    int kv;   /* keys that the last query sees */
    int out_stride;
};

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static size_t score_len(const struct hdt_attention *a)
{
    return (size_t)QUERY_BLOCK * (size_t)a->kv_len;
}

static struct query_block query_block_at(const struct hdt_attention *a, int seq, int head,
                                         int block)
{
    int t0 = block * QUERY_BLOCK;
    int kv_head = head / (a->n_heads / a->n_kv_heads);
    size_t row = (size_t)seq * a->q_len + t0;
    size_t kv_at = (size_t)seq * a->kv_len * a->kv_stride + (size_t)kv_head * a->head_size;
    struct query_block b = {.n = min_int(QUERY_BLOCK, a->q_len - t0)};

    b.out_stride = a->n_heads * a->head_size;
    b.q = a->q + row * a->q_stride + (size_t)head * a->head_size;
    b.k = a->k + kv_at;
    b.v = a->v + kv_at;
    b.out = a->out + row * b.out_stride + (size_t)head * a->head_size;
    b.lse = a->lse + ((size_t)seq * a->n_heads + head) * a->q_len + t0;
    b.len0 = a->kv_len - a->q_len + t0 + 1;
    b.kv = b.len0 + b.n - 1;
    return b;
}

static void attention_fwd_tile(void *arg, int tile, int thread)
{
    const struct attention_task *task = arg;
    const struct hdt_attention *a = task->a;
    int head_tile = tile / task->n_blocks;
    struct query_block b =
        query_block_at(a, head_tile / a->n_heads, head_tile % a->n_heads, tile % task->n_blocks);
    float *s = task->scratch + (size_t)thread * task->scratch_len;
    float *inv_sum = s + score_len(a);
    float *gemm = inv_sum + QUERY_BLOCK;
    struct hdt_gemm scores = {.m = b.n,
                              .n = b.kv,
                              .k = a->head_size,
                              .trans_b = true,
                              .alpha = 1,
                              .a = b.q,
                              .lda = a->q_stride,
                              .b = b.k,
                              .ldb = a->kv_stride,
                              .c = s,
                              .ldc = b.kv};
    struct hdt_gemm out = {.m = b.n,
                           .n = a->head_size,
                           .k = b.kv,
                           .alpha = 1,
                           .a = s,
                           .lda = b.kv,
                           .b = b.v,
                           .ldb = a->kv_stride,
                           .c = b.out,
                           .ldc = b.out_stride};

    hdt_cpu_gemm_tile(task->k, &scores, gemm);
    task->k->softmax_causal(s, b.n, b.kv, b.len0, b.kv, task->scale, inv_sum, b.lse);
    hdt_cpu_gemm_tile(task->k, &out, gemm);
    task->k->rows_scale(inv_sum, b.n, a->head_size, b.out_stride, b.out);
}

/* Gradients of one block of queries. `first`: its products with dk and dv set, later ones add. */
static void query_block_bwd(const struct attention_task *task, const struct query_block *b,
                            const float *dout, float *dq, float *dk, float *dv, bool first,
                            float *scratch)
{
    const struct hdt_attention *a = task->a;
    float *p = scratch, *ds = p + score_len(a), *delta = ds + score_len(a);
    float *gemm = delta + QUERY_BLOCK;
    int hs = a->head_size;
    struct hdt_gemm g_scores = {.m = b->n,
                                .n = b->kv,
                                .k = hs,
                                .trans_b = true,
                                .alpha = 1,
                                .a = b->q,
                                .lda = a->q_stride,
                                .b = b->k,
                                .ldb = a->kv_stride,
                                .c = p,
                                .ldc = b->kv};
    struct hdt_gemm g_dp = {.m = b->n,
                            .n = b->kv,
                            .k = hs,
                            .trans_b = true,
                            .alpha = 1,
                            .a = dout,
                            .lda = b->out_stride,
                            .b = b->v,
                            .ldb = a->kv_stride,
                            .c = ds,
                            .ldc = b->kv};
    struct hdt_gemm g_dq = {.m = b->n,
                            .n = hs,
                            .k = b->kv,
                            .alpha = 1,
                            .a = ds,
                            .lda = b->kv,
                            .b = b->k,
                            .ldb = a->kv_stride,
                            .c = dq,
                            .ldc = a->q_stride};
    struct hdt_gemm g_dk = {.m = b->kv,
                            .n = hs,
                            .k = b->n,
                            .trans_a = true,
                            .alpha = 1,
                            .beta = first ? 0 : 1,
                            .a = ds,
                            .lda = b->kv,
                            .b = b->q,
                            .ldb = a->q_stride,
                            .c = dk,
                            .ldc = a->kv_stride};
    struct hdt_gemm g_dv = g_dk;

    g_dv.a = p;
    g_dv.b = dout;
    g_dv.ldb = b->out_stride;
    g_dv.c = dv;
    hdt_cpu_gemm_tile(task->k, &g_scores, gemm);
    hdt_cpu_gemm_tile(task->k, &g_dp, gemm);
    task->k->rows_dot(b->out, dout, b->n, hs, b->out_stride, delta);
    task->k->softmax_causal_bwd(p, ds, b->n, b->kv, b->len0, b->kv, task->scale, b->lse, delta);
    hdt_cpu_gemm_tile(task->k, &g_dq, gemm);
    hdt_cpu_gemm_tile(task->k, &g_dk, gemm);
    hdt_cpu_gemm_tile(task->k, &g_dv, gemm);
}

/* The last block of queries sees all keys, so it goes first and sets; the others add. */
static void attention_bwd_tile(void *arg, int tile, int thread)
{
    const struct attention_task *task = arg;
    const struct hdt_attention *a = task->a;
    int seq = tile / a->n_kv_heads, kv_head = tile % a->n_kv_heads;
    int group = a->n_heads / a->n_kv_heads;
    size_t kv_at = (size_t)seq * a->kv_len * a->kv_stride + (size_t)kv_head * a->head_size;
    float *scratch = task->scratch + (size_t)thread * task->scratch_len;

    for (int g = 0; g < group; g++) {
        int head = kv_head * group + g;

        for (int block = task->n_blocks - 1; block >= 0; block--) {
            struct query_block b = query_block_at(a, seq, head, block);
            const float *dout = task->dout + (b.out - a->out);
            float *dq = task->dq + (b.q - a->q);

            query_block_bwd(task, &b, dout, dq, task->dk + kv_at, task->dv + kv_at,
                            g == 0 && block == task->n_blocks - 1, scratch);
        }
    }
}

/* Scratch of one thread: n_scores score blocks, a value for each query, room for gemm. */
static bool task_init(struct attention_task *task, struct hdt_stream *s,
                      const struct hdt_attention *a, int n_scores)
{
    size_t len =
        (size_t)n_scores * score_len(a) + QUERY_BLOCK + hdt_cpu_gemm_scratch() / sizeof(float);

    HDT_ASSERT(a->kv_len >= a->q_len && a->n_heads % a->n_kv_heads == 0);
    HDT_ASSERT((int64_t)a->n_seqs * a->n_heads * a->q_len < INT32_MAX);
    task->a = a;
    task->k = s->device->kernels;
    task->n_blocks = (a->q_len + QUERY_BLOCK - 1) / QUERY_BLOCK;
    task->scale = 1.0f / sqrtf((float)a->head_size);
    task->scratch_len = (len + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    task->scratch = hdt_cpu_scratch(s, (size_t)hdt_pool_n_threads(s->device->pool) *
                                           task->scratch_len * sizeof(float));
    return s->error.status == HDT_OK;
}

void hdt_cpu_attention_fwd(struct hdt_stream *s, const struct hdt_attention *a)
{
    struct attention_task task = {0};

    if (task_init(&task, s, a, 1)) {
        hdt_pool_run(s->device->pool, attention_fwd_tile, &task,
                     a->n_seqs * a->n_heads * task.n_blocks);
    }
}

void hdt_cpu_attention_bwd(struct hdt_stream *s, const struct hdt_attention *a, const float *dout,
                           float *dq, float *dk, float *dv)
{
    struct attention_task task = {.dout = dout, .dq = dq, .dk = dk, .dv = dv};

    HDT_ASSERT(a->kv_len == a->q_len);
    if (task_init(&task, s, a, 2)) {
        hdt_pool_run(s->device->pool, attention_bwd_tile, &task, a->n_seqs * a->n_kv_heads);
    }
}
