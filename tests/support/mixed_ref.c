/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/mixed_ref.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct hdt_ops *ops;
static struct hdt_backend mixed_backend;
static void (*cpu_device_info)(struct hdt_device *device, struct hdt_device_info *info);
static bool truncates;

/* A float32 copy of bfloat16 values, to be freed; without a source of zeros. */
static float *wide(struct hdt_stream *s, const void *src, size_t len)
{
    float *x = hdt_calloc(len, sizeof(*x));

    if (src) {
        ops->cast(s, src, HDT_DTYPE_BF16, len, HDT_DTYPE_F32, x);
    }
    return x;
}

static void rounded(struct hdt_stream *s, const float *x, size_t len, void *dst)
{
    uint16_t *halves = dst;

    if (!truncates) {
        ops->cast(s, x, HDT_DTYPE_F32, len, HDT_DTYPE_BF16, dst);
        return;
    }
    for (size_t i = 0; i < len; i++) { /* little-endian: the upper half */
        memcpy(&halves[i], (const char *)&x[i] + sizeof(*halves), sizeof(*halves));
    }
}

/* Round into dst, and free. */
static void narrow(struct hdt_stream *s, float *x, size_t len, void *dst)
{
    rounded(s, x, len, dst);
    free(x);
}

static void ref_gemm(struct hdt_stream *s, const struct hdt_mixed_gemm *g)
{
    const size_t d_len = (size_t)g->m * g->ldd, d_size = hdt_dtype_size(g->d_dtype);
    float *a = wide(s, g->a, (size_t)(g->trans_a ? g->k : g->m) * g->lda);
    float *b = wide(s, g->b, (size_t)(g->trans_b ? g->n : g->k) * g->ldb);
    float *d = hdt_calloc(d_len, sizeof(*d));
    const struct hdt_gemm plain = {.m = g->m,
                                   .n = g->n,
                                   .k = g->k,
                                   .trans_a = g->trans_a,
                                   .trans_b = g->trans_b,
                                   .alpha = g->alpha,
                                   .beta = g->beta,
                                   .a = a,
                                   .lda = g->lda,
                                   .b = b,
                                   .ldb = g->ldb,
                                   .c = d,
                                   .ldc = g->ldd};

    HDT_ASSERT(g->ldd == g->n && (d_size == 4 || d_size == 2));
    if (g->beta != 0) {
        ops->cast(s, g->c, g->d_dtype, d_len, HDT_DTYPE_F32, d);
    }
    ops->gemm(s, &plain);
    if (g->d_dtype == HDT_DTYPE_BF16) {
        rounded(s, d, d_len, g->d);
    } else {
        memcpy(g->d, d, d_len * sizeof(*d));
    }
    free(a);
    free(b);
    free(d);
}

static void ref_rmsnorm_fwd(struct hdt_stream *s, const float *x, const float *w, int n, int c,
                            float eps, void *y, float *rstd)
{
    float *out = wide(s, NULL, (size_t)n * c);

    ops->rmsnorm_fwd(s, x, w, n, c, eps, out, rstd);
    narrow(s, out, (size_t)n * c, y);
}

static void ref_rmsnorm_bwd(struct hdt_stream *s, const void *dy, const float *x, const float *w,
                            const float *rstd, int n, int c, float *dx, void *dx16, float *dw)
{
    float *in = wide(s, dy, (size_t)n * c);

    ops->rmsnorm_bwd(s, in, x, w, rstd, n, c, dx, dw);
    rounded(s, dx, (size_t)n * c, dx16);
    free(in);
}

static void ref_rope_fwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                         int n_heads, int head_size, int stride, void *x)
{
    float *rows = wide(s, x, (size_t)n * stride);

    ops->rope_fwd(s, cos_sin, n, t, pos, n_heads, head_size, stride, rows);
    narrow(s, rows, (size_t)n * stride, x);
}

static void ref_rope_bwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                         int n_heads, int head_size, int stride, void *dx)
{
    float *rows = wide(s, dx, (size_t)n * stride);

    ops->rope_bwd(s, cos_sin, n, t, pos, n_heads, head_size, stride, rows);
    narrow(s, rows, (size_t)n * stride, dx);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Values from the first head of the first row to the last of the last. */
static size_t heads_len(const struct hdt_mixed_attention *a, int len, int n_heads, int stride)
{
    return ((size_t)a->n_seqs * len - 1) * stride + (size_t)n_heads * a->head_size;
}

static size_t q_len(const struct hdt_mixed_attention *a)
{
    return heads_len(a, a->q_len, a->n_heads, a->q_stride);
}

static size_t kv_len(const struct hdt_mixed_attention *a)
{
    return heads_len(a, a->kv_len, a->n_kv_heads, a->kv_stride);
}

static size_t out_len(const struct hdt_mixed_attention *a)
{
    return (size_t)a->n_seqs * a->q_len * a->n_heads * a->head_size;
}

/* The same in float32; q, k and v are the caller's, who frees them. */
static struct hdt_attention attention_wide(struct hdt_stream *s,
                                           const struct hdt_mixed_attention *a, float *parts[3],
                                           float *out)
{
    parts[0] = wide(s, a->q, q_len(a));
    parts[1] = wide(s, a->k, kv_len(a));
    parts[2] = wide(s, a->v, kv_len(a));
    return (struct hdt_attention){.n_seqs = a->n_seqs,
                                  .q_len = a->q_len,
                                  .kv_len = a->kv_len,
                                  .n_heads = a->n_heads,
                                  .n_kv_heads = a->n_kv_heads,
                                  .head_size = a->head_size,
                                  .q = parts[0],
                                  .q_stride = a->q_stride,
                                  .k = parts[1],
                                  .v = parts[2],
                                  .kv_stride = a->kv_stride,
                                  .out = out,
                                  .lse = a->lse};
}

static void parts_free(float *parts[3])
{
    for (int i = 0; i < 3; i++) {
        free(parts[i]);
    }
}

static void ref_attention_fwd(struct hdt_stream *s, const struct hdt_mixed_attention *a)
{
    float *parts[3], *out = wide(s, NULL, out_len(a));
    const struct hdt_attention plain = attention_wide(s, a, parts, out);

    ops->attention_fwd(s, &plain);
    narrow(s, out, out_len(a), a->out);
    parts_free(parts);
}

/* Round the heads of each row, and leave alone what lies between; frees. */
static void heads_narrow(struct hdt_stream *s, float *x, int n_rows, int width, int stride,
                         void *dst)
{
    for (int i = 0; i < n_rows; i++) {
        ops->cast(s, x + (size_t)i * stride, HDT_DTYPE_F32, (size_t)width, HDT_DTYPE_BF16,
                  (uint16_t *)dst + (size_t)i * stride);
    }
    free(x);
}

static void ref_attention_bwd(struct hdt_stream *s, const struct hdt_mixed_attention *a,
                              const void *dout, void *dq, void *dk, void *dv)
{
    const int n_q = a->n_seqs * a->q_len, n_kv = a->n_seqs * a->kv_len;
    float *parts[3], *out = wide(s, a->out, out_len(a)), *in = wide(s, dout, out_len(a));
    const struct hdt_attention plain = attention_wide(s, a, parts, out);
    float *q = wide(s, NULL, q_len(a)), *k = wide(s, NULL, kv_len(a)),
          *v = wide(s, NULL, kv_len(a));

    ops->attention_bwd(s, &plain, in, q, k, v);
    heads_narrow(s, q, n_q, a->n_heads * a->head_size, a->q_stride, dq);
    heads_narrow(s, k, n_kv, a->n_kv_heads * a->head_size, a->kv_stride, dk);
    heads_narrow(s, v, n_kv, a->n_kv_heads * a->head_size, a->kv_stride, dv);
    parts_free(parts);
    free(out);
    free(in);
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Raise *amax, if it is asked for. */
static void amax_raise(struct hdt_stream *s, const void *stored, size_t len, float *amax)
{
    float *x = amax ? wide(s, stored, len) : NULL;

    for (size_t i = 0; i < len && amax; i++) {
        *amax = isnan(x[i]) || isnan(*amax) ? NAN : fmaxf(*amax, fabsf(x[i]));
    }
    free(x);
}

static void ref_swiglu_fwd(struct hdt_stream *s, const void *gate_up, int n, int f, void *h,
                           float *amax)
{
    float *in = wide(s, gate_up, (size_t)n * 2 * f), *out = wide(s, NULL, (size_t)n * f);

    ops->swiglu_fwd(s, in, n, f, out);
    narrow(s, out, (size_t)n * f, h);
    amax_raise(s, h, (size_t)n * f, amax);
    free(in);
}

static void ref_swiglu_bwd(struct hdt_stream *s, const void *dh, const void *gate_up, int n, int f,
                           void *dgate_up, void *h, float *amax)
{
    float *in = wide(s, gate_up, (size_t)n * 2 * f), *d = wide(s, dh, (size_t)n * f);
    float *out = wide(s, NULL, (size_t)n * 2 * f);

    ops->swiglu_bwd(s, d, in, n, f, out);
    narrow(s, out, (size_t)n * 2 * f, dgate_up);
    amax_raise(s, dgate_up, (size_t)n * 2 * f, amax);
    if (h) {
        ops->swiglu_fwd(s, in, n, f, d);
        rounded(s, d, (size_t)n * f, h);
    }
    free(in);
    free(d);
}

static void ref_cross_entropy(struct hdt_stream *s, const int32_t *labels, int n, int v,
                              float scale, void *logits, double *loss_sum)
{
    float *rows = wide(s, logits, (size_t)n * v);

    ops->cross_entropy(s, labels, n, v, scale, rows, loss_sum);
    narrow(s, rows, (size_t)n * v, logits);
}

static void ref_adamw(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                      float *w, float *m, float *v, void *w16, float *amax)
{
    ops->adamw(s, p, g, len, w, m, v);
    rounded(s, w, len, w16);
    amax_raise(s, w16, len, amax);
}

static const struct hdt_mixed_ops mixed_ops = {
    .gemm = ref_gemm,
    .rmsnorm_fwd = ref_rmsnorm_fwd,
    .rmsnorm_bwd = ref_rmsnorm_bwd,
    .rope_fwd = ref_rope_fwd,
    .rope_bwd = ref_rope_bwd,
    .attention_fwd = ref_attention_fwd,
    .attention_bwd = ref_attention_bwd,
    .swiglu_fwd = ref_swiglu_fwd,
    .swiglu_bwd = ref_swiglu_bwd,
    .cross_entropy = ref_cross_entropy,
    .adamw = ref_adamw,
};

/* ---- FP8 ------------------------------------------------------------------------------------- */

struct format {
    int digits;  /* of the mantissa behind the point */
    int exp_min; /* of the smallest normal number */
    double max;
};

static struct format format_of(enum hdt_dtype dtype)
{
    return dtype == HDT_DTYPE_F8E4M3 ? (struct format){3, -6, 448} : (struct format){2, -14, 57344};
}

double hdt_fp8_round(enum hdt_dtype dtype, double x)
{
    const struct format f = format_of(dtype);
    int exp;

    if (isnan(x) || x == 0) {
        return x;
    }
    frexp(x, &exp); /* x is 0.5 .. 1 times 2^exp */
    exp = exp - 1 < f.exp_min ? f.exp_min : exp - 1;
    x = ldexp(nearbyint(ldexp(x, f.digits - exp)), exp - f.digits);
    return fmax(-f.max, fmin(f.max, x));
}

uint8_t hdt_fp8_code(enum hdt_dtype dtype, double x)
{
    const struct format f = format_of(dtype);
    const int sign = signbit(x) ? 0x80 : 0;
    int exp;

    if (isnan(x)) {
        return 0x7f;
    }
    x = fabs(hdt_fp8_round(dtype, x));
    frexp(x, &exp);
    if (x == 0 || exp - 1 < f.exp_min) {
        return (uint8_t)(sign | (int)ldexp(x, f.digits - f.exp_min));
    }
    return (uint8_t)(sign | ((exp - f.exp_min) << f.digits |
                             ((int)ldexp(x, f.digits - exp + 1) & ((1 << f.digits) - 1))));
}

double hdt_fp8_value(enum hdt_dtype dtype, uint8_t code)
{
    const struct format f = format_of(dtype);
    const int exp = (code & 0x7f) >> f.digits, mantissa = code & ((1 << f.digits) - 1);
    double x = exp == 0 ? ldexp(mantissa, f.exp_min - f.digits)
                        : ldexp((1 << f.digits) + mantissa, exp - 1 + f.exp_min - f.digits);

    if ((code & 0x7f) == 0x7f) {
        x = (double)NAN;
    } else if (x > f.max) { /* E5M2 alone */
        x = mantissa ? (double)NAN : (double)INFINITY;
    }
    return code & 0x80 ? -x : x;
}

static void ref_quantize(struct hdt_stream *s, const struct hdt_quantize *q)
{
    const size_t n = (size_t)q->n, c = (size_t)q->c;
    float *x = wide(s, q->x, n * c), amax = 0, inv;

    HDT_ASSERT(n % HDT_FP8_DIM == 0 && c % HDT_FP8_DIM == 0);
    amax_raise(s, q->x, n * c, &amax);
    HDT_ASSERT(!q->amax || *q->amax == amax || isnan(amax)); /* who made x is right */
    *q->scale = amax / (float)format_of(q->dtype).max;
    *q->scale = amax == 0 ? 1 : *q->scale < 0x1p-126f ? 0x1p-126f : *q->scale;
    inv = 1 / *q->scale;
    for (size_t i = 0; i < n * c; i++) {
        const uint8_t code = hdt_fp8_code(q->dtype, (double)(x[i] * inv));

        if (q->y) {
            ((uint8_t *)q->y)[i] = code;
        }
        if (q->yt) {
            ((uint8_t *)q->yt)[i % c * n + i / c] = code;
        }
    }
    free(x);
}

static double *fp8_wide(enum hdt_dtype dtype, const void *src, size_t len)
{
    double *x = hdt_calloc(len, sizeof(*x)), values[256];

    for (int code = 0; code < 256; code++) {
        values[code] = hdt_fp8_value(dtype, (uint8_t)code);
    }
    for (size_t i = 0; i < len; i++) {
        x[i] = values[((const uint8_t *)src)[i]];
    }
    return x;
}

/* The transpose, freed is what it was made of. */
static double *turned(double *x, size_t rows, size_t cols)
{
    double *y = hdt_calloc(rows * cols, sizeof(*y));

    for (size_t i = 0; i < rows * cols; i++) {
        y[i % cols * rows + i / cols] = x[i];
    }
    free(x);
    return y;
}

static void ref_fp8_gemm(struct hdt_stream *s, const struct hdt_fp8_gemm *g)
{
    const size_t m = (size_t)g->m, n = (size_t)g->n, k = (size_t)g->k;
    const double factor = (double)*g->a_scale * (double)*g->b_scale;
    double *a = fp8_wide(g->a_dtype, g->a, m * k), *sums = hdt_calloc(n, sizeof(*sums));
    double *b = turned(fp8_wide(g->b_dtype, g->b, n * k), n, k);
    float *d = hdt_calloc(m * n, sizeof(*d));

    HDT_ASSERT(m % HDT_FP8_DIM == 0 && n % HDT_FP8_DIM == 0 && k % HDT_FP8_DIM == 0);
    HDT_ASSERT((uintptr_t)g->a_scale % 16 == 0 && (uintptr_t)g->b_scale % 16 == 0 &&
               (uintptr_t)g->a % 16 == 0 && (uintptr_t)g->b % 16 == 0);
    if (g->beta != 0) {
        ops->cast(s, g->c, g->d_dtype, m * n, HDT_DTYPE_F32, d);
    }
    for (size_t i = 0; i < m; i++) {
        memset(sums, 0, n * sizeof(*sums));
        for (size_t j = 0; j < k; j++) {
            for (size_t l = 0; l < n; l++) {
                sums[l] += a[i * k + j] * b[j * n + l];
            }
        }
        for (size_t l = 0; l < n; l++) {
            d[i * n + l] = (float)(factor * sums[l] + (double)g->beta * (double)d[i * n + l]);
        }
    }
    ops->cast(s, d, HDT_DTYPE_F32, m * n, g->d_dtype, g->d);
    free(sums);
    free(a);
    free(b);
    free(d);
}

static const struct hdt_fp8_ops fp8_ops = {.quantize = ref_quantize, .gemm = ref_fp8_gemm};

static void info_with_fp8(struct hdt_device *device, struct hdt_device_info *info)
{
    cpu_device_info(device, info);
    info->has_fp8 = true;
}

const struct hdt_backend *hdt_mixed_ref(const struct hdt_backend *cpu)
{
    HDT_ASSERT(cpu->caps & HDT_BACKEND_HOST_MEMORY);
    ops = cpu->ops;
    mixed_backend = *cpu;
    mixed_backend.mixed = &mixed_ops;
    mixed_backend.fp8 = &fp8_ops;
    cpu_device_info = cpu->device_info;
    mixed_backend.device_info = info_with_fp8;
    truncates = false;
    return &mixed_backend;
}

const struct hdt_backend *hdt_mixed_ref_truncating(const struct hdt_backend *cpu)
{
    hdt_mixed_ref(cpu);
    truncates = true;
    return &mixed_backend;
}
