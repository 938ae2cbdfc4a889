/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library counts in columns, we in rows: a row-major (m, n) is its (n, m), so that it is asked
 * for the transposed product, D^T = op(B)^T op(A)^T, with B as its first operand.
 */
#include "config.h"

#include "runtime/cuda/cuda_gemm.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_kernels.h"
#include "src/base/buf.h"

#include <cublasLt.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES    32
#define TUNE_FLOPS 1e9 /* smaller products are not worth the trial */
#define TUNE_RUNS  4
#define PLANS_MAX  1024
#define ALIGN_MAX  256u

/* What the choice of a kernel depends on. No padding, so that it can be compared as bytes. */
struct key {
    int32_t m, n, k, lda, ldb, ldd;
    int32_t trans_a, trans_b, a_dtype, b_dtype, d_dtype, is_fast, has_c;
    uint32_t align_a, align_b, align_d;
};

struct plan {
    struct key key;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

struct hdt_cuda_gemms {
    cublasLtHandle_t handle;
    int32_t sm_target;    /* multiprocessors to choose kernels for; 0: the device's */
    pthread_mutex_t lock; /* guards the rest; plans, once made, stay as they are, but
                             for the scales of a product */
    struct plan *plans[PLANS_MAX];
    int n_plans;
};

static enum hdt_status gemm_error(cublasStatus_t code, const char *what, struct hdt_error *err)
{
    return hdt_error_set(err, code == CUBLAS_STATUS_ALLOC_FAILED ? HDT_ENOMEM : HDT_EIO,
                         "cannot %s: %s", what, cublasLtGetStatusString(code));
}

enum hdt_status hdt_cuda_gemms_new(int sm_target, struct hdt_cuda_gemms **gemms_out,
                                   struct hdt_error *err)
{
    struct hdt_cuda_gemms *gemms = hdt_calloc(1, sizeof(*gemms));
    cublasStatus_t code = cublasLtCreate(&gemms->handle);

    if (code != CUBLAS_STATUS_SUCCESS) {
        free(gemms);
        return gemm_error(code, "start cuBLASLt", err);
    }
    gemms->sm_target = sm_target;
    pthread_mutex_init(&gemms->lock, NULL);
    *gemms_out = gemms;
    return HDT_OK;
}

static void plan_free(struct plan *plan)
{
    if (plan->op) {
        cublasLtMatmulDescDestroy(plan->op);
    }
    if (plan->a) {
        cublasLtMatrixLayoutDestroy(plan->a);
    }
    if (plan->b) {
        cublasLtMatrixLayoutDestroy(plan->b);
    }
    if (plan->d) {
        cublasLtMatrixLayoutDestroy(plan->d);
    }
    free(plan);
}

void hdt_cuda_gemms_free(struct hdt_cuda_gemms *gemms)
{
    if (!gemms) {
        return;
    }
    for (int i = 0; i < gemms->n_plans; i++) {
        plan_free(gemms->plans[i]);
    }
    cublasLtDestroy(gemms->handle);
    pthread_mutex_destroy(&gemms->lock);
    free(gemms);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static uint32_t align_of(const void *mem)
{
    uint32_t align = 1;

    while (align < ALIGN_MAX && (uintptr_t)mem % (2 * align) == 0) {
        align *= 2;
    }
    return align;
}

static struct key key_of(const struct hdt_cuda_gemm *g)
{
    const uint32_t align_c = g->beta != 0 ? align_of(g->c) : ALIGN_MAX;
    const uint32_t align_d = align_of(g->d);

    return (struct key){.m = g->m,
                        .n = g->n,
                        .k = g->k,
                        .lda = g->lda,
                        .ldb = g->ldb,
                        .ldd = g->ldd,
                        .trans_a = g->trans_a,
                        .trans_b = g->trans_b,
                        .a_dtype = (int32_t)g->a_dtype,
                        .b_dtype = (int32_t)g->b_dtype,
                        .d_dtype = (int32_t)g->d_dtype,
                        .is_fast = g->is_fast,
                        .has_c = g->beta != 0,
                        .align_a = align_of(g->a),
                        .align_b = align_of(g->b),
                        .align_d = align_c < align_d ? align_c : align_d};
}

static cudaDataType_t type_of(int32_t dtype)
{
    switch (dtype) {
    case HDT_DTYPE_F8E4M3:
        return CUDA_R_8F_E4M3;
    case HDT_DTYPE_F8E5M2:
        return CUDA_R_8F_E5M2;
    case HDT_DTYPE_BF16:
        return CUDA_R_16BF;
    default:
        return CUDA_R_32F;
    }
}

/* A row-major matrix of rows x cols, as the library sees it. */
static cublasStatus_t layout_new(cublasLtMatrixLayout_t *layout, int32_t dtype, int rows, int cols,
                                 int ld)
{
    return cublasLtMatrixLayoutCreate(layout, type_of(dtype), (uint64_t)cols, (uint64_t)rows, ld);
}

static cublasStatus_t plan_describe(struct plan *plan, int32_t sm_target)
{
    const struct key *k = &plan->key;
    const cublasOperation_t first = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int8_t is_fast = (int8_t)k->is_fast;
    cublasStatus_t code = cublasLtMatmulDescCreate(&plan->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (code == CUBLAS_STATUS_SUCCESS) {
        code = cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                              sizeof(first));
    }
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                              sizeof(second));
    }
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                              &sm_target, sizeof(sm_target));
    }
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &is_fast,
                                              sizeof(is_fast));
    }
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = layout_new(&plan->a, k->a_dtype, k->trans_a ? k->k : k->m, k->trans_a ? k->m : k->k,
                          k->lda);
    }
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = layout_new(&plan->b, k->b_dtype, k->trans_b ? k->n : k->k, k->trans_b ? k->k : k->n,
                          k->ldb);
    }
    return code == CUBLAS_STATUS_SUCCESS ? layout_new(&plan->d, k->d_dtype, k->m, k->n, k->ldd)
                                         : code;
}

static cublasStatus_t preference_fill(cublasLtMatmulPreference_t preference, const struct key *k)
{
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const size_t workspace = HDT_CUDA_WORKSPACE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attr;
        const void *value;
        size_t size;
    } rows[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof(scheme)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->align_b, sizeof(k->align_b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->align_a, sizeof(k->align_a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->align_d, sizeof(k->align_d)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->align_d, sizeof(k->align_d)},
    };
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && code == CUBLAS_STATUS_SUCCESS; i++) {
        code = cublasLtMatmulPreferenceSetAttribute(preference, rows[i].attr, rows[i].value,
                                                    rows[i].size);
    }
    return code;
}

/* The operation holds the addresses of the scales, so each product of FP8 sets its own. */
static cublasStatus_t scales_set(const struct plan *plan, const struct hdt_cuda_gemm *g)
{
    cublasStatus_t code = cublasLtMatmulDescSetAttribute(
        plan->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b_scale, sizeof(g->b_scale));

    return code == CUBLAS_STATUS_SUCCESS
               ? cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                                &g->a_scale, sizeof(g->a_scale))
               : code;
}

/* Locked, as the operation may be changed. */
static cublasStatus_t product_queue(const struct hdt_cuda_gemms *gemms, struct hdt_stream *s,
                                    const struct plan *plan, const struct hdt_cuda_gemm *g,
                                    const cublasLtMatmulAlgo_t *algo, void *d)
{
    if (hdt_dtype_size(g->a_dtype) == 1) {
        const cublasStatus_t code = scales_set(plan, g);

        if (code != CUBLAS_STATUS_SUCCESS) {
            return code;
        }
    }
    return cublasLtMatmul(gemms->handle, plan->op, &g->alpha, g->b, plan->b, g->a, plan->a,
                          &g->beta, g->beta != 0 ? g->c : d, plan->d, d, plan->d, algo,
                          s->workspace, HDT_CUDA_WORKSPACE, s->handle);
}

/* ---- trials ---------------------------------------------------------------------------------- */

/*
 * Memory of a trial: the driver's, not the pool's, which would keep it. Its operands are its own:
 * those of the caller may be zeros, or add to zeros, which hides how an algorithm sums.
 */
struct trial {
    struct hdt_cuda_gemm g;
    void *a, *b, *c;
    void *first, *other; /* results, of `len` 16-bit words each */
    int *differs;        /* device memory */
    size_t len;
    cudaEvent_t begin, end;
};

static bool memory_zero(struct hdt_stream *s, size_t bytes, void **mem)
{
    return cudaMalloc(mem, bytes) == cudaSuccess &&
           cudaMemsetAsync(*mem, 0, bytes, s->handle) == cudaSuccess;
}

/* A matrix of `rows` rows of numbers that no two sums in another order are likely to agree on. */
static bool memory_random(struct hdt_stream *s, size_t rows, size_t ld, enum hdt_dtype dtype,
                          void **mem)
{
    const size_t bytes = rows * ld * hdt_dtype_size(dtype);

    return cudaMalloc(mem, bytes) == cudaSuccess &&
           hdt_cuda_random(s->handle, dtype, rows * ld, *mem) == cudaSuccess;
}

static bool trial_begin(struct hdt_stream *s, const struct hdt_cuda_gemm *g, struct trial *t)
{
    const size_t m = (size_t)g->m, n = (size_t)g->n, k = (size_t)g->k, ldd = (size_t)g->ldd;
    const size_t bytes = m * ldd * hdt_dtype_size(g->d_dtype);

    *t = (struct trial){.g = *g, .len = bytes / sizeof(uint16_t)};
    if (!memory_random(s, g->trans_a ? k : m, (size_t)g->lda, g->a_dtype, &t->a) ||
        !memory_random(s, g->trans_b ? n : k, (size_t)g->ldb, g->b_dtype, &t->b) ||
        (g->beta != 0 && !memory_random(s, m, ldd, g->d_dtype, &t->c)) ||
        !memory_zero(s, bytes, &t->first) || !memory_zero(s, bytes, &t->other) ||
        !memory_zero(s, sizeof(int), (void **)&t->differs)) {
        return false;
    }
    t->g.a = t->a;
    t->g.b = t->b;
    t->g.c = t->c;
    t->g.a_scale = t->g.b_scale = NULL;
    return cudaEventCreate(&t->begin) == cudaSuccess && cudaEventCreate(&t->end) == cudaSuccess;
}

static void trial_end(struct trial *t)
{
    void *const mem[] = {t->a, t->b, t->c, t->first, t->other, t->differs};

    for (size_t i = 0; i < sizeof(mem) / sizeof(mem[0]); i++) {
        cudaFree(mem[i]);
    }
    if (t->begin) {
        cudaEventDestroy(t->begin);
    }
    if (t->end) {
        cudaEventDestroy(t->end);
    }
    cudaGetLastError();
}

/* Milliseconds of one run; infinity when it cannot run or gives other bits than the first. */
static float trial_run(const struct hdt_cuda_gemms *gemms, struct hdt_stream *s,
                       const struct plan *plan, const cublasLtMatmulAlgo_t *algo,
                       const struct trial *t, bool is_first)
{
    void *d = is_first ? t->first : t->other;
    float ms = INFINITY;
    int differs = 1;

    if (product_queue(gemms, s, plan, &t->g, algo, d) != CUBLAS_STATUS_SUCCESS ||
        cudaMemsetAsync(t->differs, 0, sizeof(int), s->handle) != cudaSuccess ||
        hdt_cuda_compare(s->handle, t->first, d, t->len, t->differs) != cudaSuccess ||
        cudaMemcpyAsync(&differs, t->differs, sizeof(int), cudaMemcpyDeviceToHost, s->handle) !=
            cudaSuccess ||
        cudaEventRecord(t->begin, s->handle) != cudaSuccess) {
        cudaStreamSynchronize(s->handle); /* differs is ours no longer */
        return INFINITY;
    }
    for (int i = 0; i < TUNE_RUNS; i++) {
        if (product_queue(gemms, s, plan, &t->g, algo, d) != CUBLAS_STATUS_SUCCESS) {
            cudaStreamSynchronize(s->handle);
            return INFINITY;
        }
    }
    if (cudaEventRecord(t->end, s->handle) != cudaSuccess ||
        cudaEventSynchronize(t->end) != cudaSuccess || differs != 0 ||
        cudaEventElapsedTime(&ms, t->begin, t->end) != cudaSuccess) {
        return INFINITY;
    }
    return ms / TUNE_RUNS;
}

/* Which of the choices to take, by trial: of those with the bits of the first one that runs, the
 * fastest. That one without a trial, when the product is small or there is no room. */
static int plan_tune(const struct hdt_cuda_gemms *gemms, struct hdt_stream *s,
                     const struct plan *plan, const struct hdt_cuda_gemm *g,
                     const cublasLtMatmulHeuristicResult_t *choices, int n)
{
    float best_ms = INFINITY;
    struct trial t;
    int best = 0;

    while (best < n - 1 && choices[best].state != CUBLAS_STATUS_SUCCESS) {
        best++;
    }
    if (2.0 * g->m * g->n * g->k < TUNE_FLOPS || n < 2) {
        return best;
    }
    if (trial_begin(s, g, &t)) {
        for (int i = best; i < n; i++) {
            const float ms =
                choices[i].state != CUBLAS_STATUS_SUCCESS
                    ? INFINITY
                    : trial_run(gemms, s, plan, &choices[i].algo, &t, best_ms == INFINITY);

            if (ms < best_ms) {
                best_ms = ms;
                best = i;
            }
        }
    }
    trial_end(&t);
    return best;
}

static cublasStatus_t plan_choose(struct hdt_cuda_gemms *gemms, struct hdt_stream *s,
                                  const struct hdt_cuda_gemm *g, struct plan *plan)
{
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    cublasLtMatmulPreference_t preference;
    int n_found = 0;
    cublasStatus_t code = cublasLtMatmulPreferenceCreate(&preference);

    if (code != CUBLAS_STATUS_SUCCESS) {
        return code;
    }
    code = preference_fill(preference, &plan->key);
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = cublasLtMatmulAlgoGetHeuristic(gemms->handle, plan->op, plan->b, plan->a, plan->d,
                                              plan->d, preference, CHOICES, found, &n_found);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    if (code == CUBLAS_STATUS_SUCCESS && n_found == 0) {
        code = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (code == CUBLAS_STATUS_SUCCESS) {
        plan->algo = found[plan_tune(gemms, s, plan, g, found, n_found)].algo;
    }
    return code;
}

/* Locked. NULL with the reason in *code. */
static struct plan *plan_make(struct hdt_cuda_gemms *gemms, struct hdt_stream *s,
                              const struct hdt_cuda_gemm *g, const struct key *key,
                              cublasStatus_t *code)
{
    struct plan *plan = hdt_calloc(1, sizeof(*plan));

    plan->key = *key;
    *code = plan_describe(plan, gemms->sm_target);
    if (*code == CUBLAS_STATUS_SUCCESS) {
        *code = plan_choose(gemms, s, g, plan);
    }
    if (*code != CUBLAS_STATUS_SUCCESS) {
        plan_free(plan);
        return NULL;
    }
    if (gemms->n_plans == PLANS_MAX) { /* no job has so many shapes: start anew with this one */
        while (gemms->n_plans > 0) {
            plan_free(gemms->plans[--gemms->n_plans]);
        }
    }
    gemms->plans[gemms->n_plans++] = plan;
    return plan;
}

static struct plan *plan_find(const struct hdt_cuda_gemms *gemms, const struct key *key)
{
    for (int i = 0; i < gemms->n_plans; i++) {
        if (memcmp(&gemms->plans[i]->key, key, sizeof(*key)) == 0) {
            return gemms->plans[i];
        }
    }
    return NULL;
}

void hdt_cuda_gemm(struct hdt_stream *s, const struct hdt_cuda_gemm *g)
{
    struct hdt_cuda_gemms *gemms = s->device->gemms;
    const struct key key = key_of(g);
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    struct plan *plan;

    HDT_ASSERT(g->m > 0 && g->n > 0 && g->k > 0);
    if (!hdt_cuda_stream_enter(s) || !hdt_cuda_workspace(s, HDT_CUDA_WORKSPACE)) {
        return;
    }
    /* Held while the product is queued: plans may be dropped by another thread's. */
    pthread_mutex_lock(&gemms->lock);
    plan = plan_find(gemms, &key);
    if (!plan) {
        plan = plan_make(gemms, s, g, &key, &code);
    }
    if (plan) {
        code = product_queue(gemms, s, plan, g, &plan->algo, g->d);
    }
    pthread_mutex_unlock(&gemms->lock);
    if (code != CUBLAS_STATUS_SUCCESS && s->error.status == HDT_OK) {
        gemm_error(code, "queue a matrix product", &s->error);
        hdt_error_prefix(&s->error, "m %d, n %d, k %d", g->m, g->n, g->k);
    }
}
