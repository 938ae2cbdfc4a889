/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ops of the cpu backend: each cuts its problem into tiles by the shape alone and hands them to
 * the pool. Most tiles are ranges of rows; sums over rows (weight gradients of norms and embedding)
 * are tiles of columns that run through all rows in order.
 *
 * Matrix products are cut into tiles of C that each go through all of k, so no sum is ever split
 * between threads. OpenBLAS, kept to one thread, computes a tile: its own threading would change
 * the order of sums with the number of threads and the kernels at the edges with the split of rows.
 */
#include "config.h"

#include "runtime/cpu/cpu_device.h"

#include <string.h>
#ifdef HAVE_OPENBLAS
# include <cblas.h>
#endif

#define ELEMENT_TILE                                                                               \
 32768 /* values in a tile of an elementwise op: 128 KiB, half of a small L2                       \
        */
#define COLUMN_TILE 64
#define GEMM_TILES                                                                                 \
 8 /* smallest number of tiles that a product is cut into, if it is big enough                     \
    */
#define GEMM_TILE_MIN 64
#define GEMM_TILE_MAX 512

struct op_task {
    struct hdt_stream *s;
    const struct hdt_cpu_kernels *k;
    int n;         /* rows in all */
    int tile_rows; /* rows in a tile */
    int c;         /* width of a row */
    const float *x, *w, *dy;
    const float *rstd_in;
    const int32_t *idx; /* tokens or labels */
    float *y, *rstd_out;
    double *sums;
    float factor;
    /* rope */
    int t, pos, n_heads, head_size, stride;
    /* adamw and other flat ops */
    size_t len;
    const struct hdt_adamw *adamw;
    float *m, *v;
};

static int tiles_of(int n, int tile)
{
    return (n + tile - 1) / tile;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Rows a tile of rows `c` wide. */
static int rows_per_tile(int c)
{
    return c < ELEMENT_TILE ? ELEMENT_TILE / (c > 0 ? c : 1) : 1;
}

static struct op_task task_of(struct hdt_stream *s, int n, int c)
{
    return (struct op_task){
        .s = s, .k = s->device->kernels, .n = n, .c = c, .tile_rows = rows_per_tile(c)};
}

/* Run fn over tiles of rows. */
static void task_run_rows(struct op_task *task, hdt_pool_fn *fn)
{
    if (task->s->error.status == HDT_OK) {
        hdt_pool_run(task->s->device->pool, fn, task, tiles_of(task->n, task->tile_rows));
    }
}

/* Run fn over tiles of columns. */
static void task_run_cols(struct op_task *task, hdt_pool_fn *fn)
{
    if (task->s->error.status == HDT_OK) {
        hdt_pool_run(task->s->device->pool, fn, task, tiles_of(task->c, COLUMN_TILE));
    }
}

/* Run fn over tiles of a flat array. */
static void task_run_flat(struct op_task *task, hdt_pool_fn *fn)
{
    if (task->s->error.status == HDT_OK) {
        hdt_pool_run(task->s->device->pool, fn, task,
                     (int)((task->len + ELEMENT_TILE - 1) / ELEMENT_TILE));
    }
}

static int tile_rows_len(const struct op_task *task, int tile)
{
    return min_int(task->tile_rows, task->n - tile * task->tile_rows);
}

static size_t tile_flat_len(const struct op_task *task, int tile)
{
    size_t left = task->len - (size_t)tile * ELEMENT_TILE;

    return left < ELEMENT_TILE ? left : ELEMENT_TILE;
}

/* ---- gemm ------------------------------------------------------------------------------------ */

struct gemm_task {
    struct hdt_stream *s;
    const struct hdt_gemm *g;
    int tile_m, tile_n;
    int n_across; /* tiles in a row of tiles */
    char *scratch;
};

size_t hdt_cpu_gemm_scratch(void)
{
#ifdef HAVE_OPENBLAS
    return 0;
#else
    return HDT_CPU_GEMM_SCRATCH;
#endif
}

void hdt_cpu_gemm_tile(const struct hdt_cpu_kernels *k, const struct hdt_gemm *g, void *scratch)
{
    if (g->m == 1 && g->trans_b && g->beta == 0.0f && !g->trans_a) {
        k->gemv(g);
        return;
    }
#ifdef HAVE_OPENBLAS
    (void)scratch;
    cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans,
                g->trans_b ? CblasTrans : CblasNoTrans, g->m, g->n, g->k, g->alpha, g->a, g->lda,
                g->b, g->ldb, g->beta, g->c, g->ldc);
#else
    k->gemm(g, scratch);
#endif
}

static void gemm_tile(void *arg, int tile, int thread)
{
    const struct gemm_task *task = arg;
    struct hdt_gemm g = *task->g;
    int i = tile / task->n_across * task->tile_m;
    int j = tile % task->n_across * task->tile_n;

    g.m = min_int(task->tile_m, g.m - i);
    g.n = min_int(task->tile_n, g.n - j);
    g.a += g.trans_a ? (size_t)i : (size_t)i * g.lda;
    g.b += g.trans_b ? (size_t)j * g.ldb : (size_t)j;
    g.c += (size_t)i * g.ldc + j;
    hdt_cpu_gemm_tile(task->s->device->kernels, &g,
                      task->scratch + (size_t)thread * hdt_cpu_gemm_scratch());
}

/* Tiles as large as possible (a tile packs its operands anew), but enough of them for the threads
 * of a small machine to finish together. A function of the shape only. */
static void gemm_cut(struct gemm_task *task)
{
    const struct hdt_gemm *g = task->g;

    task->tile_m = GEMM_TILE_MAX;
    task->tile_n = GEMM_TILE_MAX;
    while (tiles_of(g->m, task->tile_m) * tiles_of(g->n, task->tile_n) < GEMM_TILES) {
        int m = min_int(task->tile_m, g->m), n = min_int(task->tile_n, g->n);

        if (m >= n && task->tile_m > GEMM_TILE_MIN) {
            task->tile_m /= 2;
        } else if (task->tile_n > GEMM_TILE_MIN) {
            task->tile_n /= 2;
        } else {
            break;
        }
    }
    task->n_across = tiles_of(g->n, task->tile_n);
}

static void cpu_gemm(struct hdt_stream *s, const struct hdt_gemm *g)
{
    struct gemm_task task = {.s = s, .g = g};
    size_t n_threads = (size_t)hdt_pool_n_threads(s->device->pool);

    HDT_ASSERT(g->m > 0 && g->n > 0 && g->k > 0);
    task.scratch = hdt_cpu_scratch(s, n_threads * hdt_cpu_gemm_scratch());
    if (s->error.status != HDT_OK) {
        return;
    }
    gemm_cut(&task);
    hdt_pool_run(s->device->pool, gemm_tile, &task, tiles_of(g->m, task.tile_m) * task.n_across);
}

/* ---- norms, rope, swiglu --------------------------------------------------------------------- */

static void rmsnorm_fwd_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    size_t row = (size_t)tile * t->tile_rows, at = row * t->c;

    (void)thread;
    t->k->rmsnorm_fwd(t->x + at, t->w, tile_rows_len(t, tile), t->c, t->factor, t->y + at,
                      t->rstd_out + row);
}

static void cpu_rmsnorm_fwd(struct hdt_stream *s, const float *x, const float *w, int n, int c,
                            float eps, float *y, float *rstd)
{
    struct op_task task = task_of(s, n, c);

    task.x = x;
    task.w = w;
    task.factor = eps;
    task.y = y;
    task.rstd_out = rstd;
    task_run_rows(&task, rmsnorm_fwd_tile);
}

static void rmsnorm_dx_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    size_t row = (size_t)tile * t->tile_rows, at = row * t->c;

    (void)thread;
    t->k->rmsnorm_dx(t->dy + at, t->x + at, t->w, t->rstd_in + row, tile_rows_len(t, tile), t->c,
                     t->y + at);
}

static void rmsnorm_dw_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    int col = tile * COLUMN_TILE;

    (void)thread;
    t->k->rmsnorm_dw(t->dy + col, t->x + col, t->rstd_in, t->n, t->c,
                     min_int(COLUMN_TILE, t->c - col), t->m + col);
}

static void cpu_rmsnorm_bwd(struct hdt_stream *s, const float *dy, const float *x, const float *w,
                            const float *rstd, int n, int c, float *dx, float *dw)
{
    struct op_task task = task_of(s, n, c);

    task.dy = dy;
    task.x = x;
    task.w = w;
    task.rstd_in = rstd;
    task.y = dx;
    task.m = dw;
    task_run_rows(&task, rmsnorm_dx_tile);
    task_run_cols(&task, rmsnorm_dw_tile);
}

static void rope_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    int row = tile * t->tile_rows;

    (void)thread;
    t->k->rope(t->x, row, tile_rows_len(t, tile), t->t, t->pos, t->n_heads, t->head_size, t->stride,
               t->factor, t->y + (size_t)row * t->stride);
}

static void rope_run(struct hdt_stream *s, struct op_task *task, const float *cos_sin, float *x,
                     float direction)
{
    HDT_ASSERT(task->head_size % 2 == 0);
    task->s = s;
    task->k = s->device->kernels;
    task->tile_rows = rows_per_tile(task->n_heads * task->head_size);
    task->x = cos_sin;
    task->y = x;
    task->factor = direction;
    task_run_rows(task, rope_tile);
}

static void cpu_rope_fwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                         int n_heads, int head_size, int stride, float *x)
{
    struct op_task task = {
        .n = n, .t = t, .pos = pos, .n_heads = n_heads, .head_size = head_size, .stride = stride};

    rope_run(s, &task, cos_sin, x, 1.0f);
}

static void cpu_rope_bwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                         int n_heads, int head_size, int stride, float *dx)
{
    struct op_task task = {
        .n = n, .t = t, .pos = pos, .n_heads = n_heads, .head_size = head_size, .stride = stride};

    rope_run(s, &task, cos_sin, dx, -1.0f);
}

static void swiglu_fwd_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    size_t at = (size_t)tile * t->tile_rows * t->c;

    (void)thread;
    t->k->swiglu_fwd(t->x + 2 * at, tile_rows_len(t, tile), t->c, t->y + at);
}

static void cpu_swiglu_fwd(struct hdt_stream *s, const float *gate_up, int n, int f, float *h)
{
    struct op_task task = task_of(s, n, f);

    task.x = gate_up;
    task.y = h;
    task_run_rows(&task, swiglu_fwd_tile);
}

static void swiglu_bwd_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    size_t at = (size_t)tile * t->tile_rows * t->c;

    (void)thread;
    t->k->swiglu_bwd(t->dy + at, t->x + 2 * at, tile_rows_len(t, tile), t->c, t->y + 2 * at);
}

static void cpu_swiglu_bwd(struct hdt_stream *s, const float *dh, const float *gate_up, int n,
                           int f, float *dgate_up)
{
    struct op_task task = task_of(s, n, f);

    task.dy = dh;
    task.x = gate_up;
    task.y = dgate_up;
    task_run_rows(&task, swiglu_bwd_tile);
}

/* ---- embedding, cross-entropy ---------------------------------------------------------------- */

static void embedding_fwd_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    int row = tile * t->tile_rows, n = tile_rows_len(t, tile);

    (void)thread;
    for (int i = row; i < row + n; i++) {
        memcpy(t->y + (size_t)i * t->c, t->w + (size_t)t->idx[i] * t->c,
               (size_t)t->c * sizeof(float));
    }
}

static void cpu_embedding_fwd(struct hdt_stream *s, const int32_t *tokens, const float *w, int n,
                              int c, float *out)
{
    struct op_task task = task_of(s, n, c);

    task.idx = tokens;
    task.w = w;
    task.y = out;
    task_run_rows(&task, embedding_fwd_tile);
}

static void embedding_bwd_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    int col = tile * COLUMN_TILE;

    (void)thread;
    t->k->embedding_bwd(t->idx, t->dy + col, t->n, t->c, min_int(COLUMN_TILE, t->c - col),
                        t->y + col);
}

static void cpu_embedding_bwd(struct hdt_stream *s, const int32_t *tokens, const float *dout, int n,
                              int c, float *dw)
{
    struct op_task task = task_of(s, n, c);

    task.idx = tokens;
    task.dy = dout;
    task.y = dw;
    task_run_cols(&task, embedding_bwd_tile);
}

static void cross_entropy_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    size_t row = (size_t)tile * t->tile_rows;

    (void)thread;
    t->k->cross_entropy(t->idx + row, tile_rows_len(t, tile), t->c, t->factor, t->y + row * t->c,
                        t->sums + row);
}

static void cpu_cross_entropy(struct hdt_stream *s, const int32_t *labels, int n, int v,
                              float scale, float *logits, double *loss_sum)
{
    struct op_task task = task_of(s, n, v);

    task.idx = labels;
    task.factor = scale;
    task.y = logits;
    task.sums = hdt_cpu_scratch(s, (size_t)n * sizeof(double));
    task_run_rows(&task, cross_entropy_tile);
    for (int i = 0; i < n && s->error.status == HDT_OK; i++) {
        *loss_sum += task.sums[i];
    }
}

/* ---- flat ops -------------------------------------------------------------------------------- */

static void add_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    size_t at = (size_t)tile * ELEMENT_TILE;

    (void)thread;
    t->k->add(t->x + at, tile_flat_len(t, tile), t->y + at);
}

static void cpu_add(struct hdt_stream *s, const float *x, size_t len, float *y)
{
    struct op_task task = {.s = s, .k = s->device->kernels, .len = len, .x = x, .y = y};

    task_run_flat(&task, add_tile);
}

static void scale_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;

    (void)thread;
    t->k->scale(t->factor, tile_flat_len(t, tile), t->y + (size_t)tile * ELEMENT_TILE);
}

static void cpu_scale(struct hdt_stream *s, float factor, size_t len, float *x)
{
    struct op_task task = {.s = s, .k = s->device->kernels, .len = len, .factor = factor, .y = x};

    task_run_flat(&task, scale_tile);
}

struct zero_task {
    char *x;
    size_t bytes;
};

#define ZERO_TILE_BYTES ((size_t)1 << 20)

static void zero_tile(void *arg, int tile, int thread)
{
    const struct zero_task *t = arg;
    size_t at = (size_t)tile * ZERO_TILE_BYTES, left = t->bytes - at;

    (void)thread;
    memset(t->x + at, 0, left < ZERO_TILE_BYTES ? left : ZERO_TILE_BYTES);
}

static void cpu_zero(struct hdt_stream *s, void *x, size_t bytes)
{
    struct zero_task task = {.x = x, .bytes = bytes};

    if (s->error.status == HDT_OK) {
        hdt_pool_run(s->device->pool, zero_tile, &task,
                     (int)((bytes + ZERO_TILE_BYTES - 1) / ZERO_TILE_BYTES));
    }
}

struct cast_task {
    const struct hdt_cpu_kernels *k;
    const char *src;
    char *dst;
    size_t len;
    enum hdt_dtype src_dtype, dst_dtype;
};

static void cast_tile(void *arg, int tile, int thread)
{
    const struct cast_task *t = arg;
    size_t at = (size_t)tile * ELEMENT_TILE, left = t->len - at;

    (void)thread;
    t->k->cast(t->src + at * hdt_dtype_size(t->src_dtype), t->src_dtype,
               left < ELEMENT_TILE ? left : ELEMENT_TILE, t->dst_dtype,
               t->dst + at * hdt_dtype_size(t->dst_dtype));
}

static bool dtype_is_castable(enum hdt_dtype dtype)
{
    return dtype == HDT_DTYPE_F32 || dtype == HDT_DTYPE_BF16 || dtype == HDT_DTYPE_F16;
}

static void cpu_cast(struct hdt_stream *s, const void *src, enum hdt_dtype src_dtype, size_t len,
                     enum hdt_dtype dst_dtype, void *dst)
{
    struct cast_task task = {.k = s->device->kernels,
                             .src = src,
                             .dst = dst,
                             .len = len,
                             .src_dtype = src_dtype,
                             .dst_dtype = dst_dtype};

    HDT_ASSERT(dtype_is_castable(src_dtype) && dtype_is_castable(dst_dtype));
    if (s->error.status == HDT_OK) {
        hdt_pool_run(s->device->pool, cast_tile, &task,
                     (int)((len + ELEMENT_TILE - 1) / ELEMENT_TILE));
    }
}

static void sumsq_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;

    (void)thread;
    t->sums[tile] = t->k->sumsq(t->x + (size_t)tile * ELEMENT_TILE, tile_flat_len(t, tile));
}

static void span_sumsq(struct hdt_stream *s, const struct hdt_span *span, double *sum)
{
    struct op_task task = {.s = s, .k = s->device->kernels, .len = span->len, .x = span->x};
    size_t n_tiles = (span->len + ELEMENT_TILE - 1) / ELEMENT_TILE;
    double total = 0;

    task.sums = hdt_cpu_scratch(s, n_tiles * sizeof(double));
    task_run_flat(&task, sumsq_tile);
    if (s->error.status != HDT_OK) {
        return;
    }
    for (size_t i = 0; i < n_tiles; i++) {
        total += task.sums[i];
    }
    *sum = total;
}

static void cpu_sumsq(struct hdt_stream *s, const struct hdt_span *spans, int n, double *sums)
{
    for (int i = 0; i < n; i++) {
        span_sumsq(s, &spans[i], &sums[i]);
    }
}

static void adamw_tile(void *arg, int tile, int thread)
{
    const struct op_task *t = arg;
    size_t at = (size_t)tile * ELEMENT_TILE;

    (void)thread;
    hdt_cpu_adamw(t->adamw, t->x + at, tile_flat_len(t, tile), t->y + at, t->m + at, t->v + at);
}

static void cpu_adamw(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                      float *w, float *m, float *v)
{
    struct op_task task = {
        .s = s, .k = s->device->kernels, .len = len, .adamw = p, .x = g, .y = w, .m = m, .v = v};

    task_run_flat(&task, adamw_tile);
}

const struct hdt_ops hdt_cpu_ops = {
    .gemm = cpu_gemm,
    .rmsnorm_fwd = cpu_rmsnorm_fwd,
    .rmsnorm_bwd = cpu_rmsnorm_bwd,
    .rope_fwd = cpu_rope_fwd,
    .rope_bwd = cpu_rope_bwd,
    .attention_fwd = hdt_cpu_attention_fwd,
    .attention_bwd = hdt_cpu_attention_bwd,
    .swiglu_fwd = cpu_swiglu_fwd,
    .swiglu_bwd = cpu_swiglu_bwd,
    .embedding_fwd = cpu_embedding_fwd,
    .embedding_bwd = cpu_embedding_bwd,
    .cross_entropy = cpu_cross_entropy,
    .add = cpu_add,
    .scale = cpu_scale,
    .zero = cpu_zero,
    .cast = cpu_cast,
    .sumsq = cpu_sumsq,
    .adamw = cpu_adamw,
};
