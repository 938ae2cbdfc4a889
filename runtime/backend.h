/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_BACKEND_H
#define HDT_RUNTIME_BACKEND_H

/*
 * The contract of a device backend.
 *
 * A backend is a module loaded at run time (backend_load.h), so that a worker that was built with
 * CUDA starts where no CUDA library is. It exports one symbol, `hdt_backend_module`: a pointer to a
 * constant table of facts (caps) and functions.
 *
 * Rules that hold for every backend:
 *
 *  - Device memory is opaque. Code outside the backend never dereferences it, except when caps
 *    has HDT_BACKEND_HOST_MEMORY; it moves bytes with copy() and lets ops work on them. Address
 *    arithmetic on device pointers (`w + offset`) is allowed.
 *  - Ops and copies are queued on a stream and run in the order they were queued. They may return
 *    before the work is done. Host memory given to copy() must stay until then, and must come from
 *    host_alloc() for the copy to overlap with anything.
 *  - Ops and copy() return nothing. A failure sticks to the stream: later ops on it do nothing and
 *    stream_wait() returns the error. Bad shapes are a bug of the caller (HDT_ASSERT).
 *  - A device may be used by several threads at once; a stream by one thread at a time.
 *  - The result of an op depends on its arguments only, never on the number of threads or on what
 *    else runs: same arguments, same bits on one machine, when caps has HDT_BACKEND_DETERMINISTIC.
 *
 * Letters of shapes: B sequences, T positions, N = B * T rows, C hidden size, V vocabulary, L
 * layers, NH query heads, NKV key/value heads, HS head size, F feed-forward size, and
 * Q = (NH + 2 NKV) HS, the width of a row that holds query, key and value heads side by side.
 * Matrices are row-major and tight unless a leading dimension is given. "Sets" means that the
 * output is overwritten, "adds" that it is added to. The cpu backend is the definition of each op.
 */
#include "src/base/error.h"
#include "src/base/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a table below changes; a module of another number is refused. */
#define HDT_BACKEND_ABI 6

/* Name of the one symbol that a module exports: `const struct hdt_backend *const`. */
#define HDT_BACKEND_SYMBOL "hdt_backend_module"

enum hdt_backend_cap {
    HDT_BACKEND_HOST_MEMORY = 1 << 0,   /* device memory is ordinary memory of this process */
    HDT_BACKEND_DETERMINISTIC = 1 << 1, /* same arguments, same bits */
    HDT_BACKEND_ASYNC = 1 << 2,         /* ops and copies may return before they are done */
};

enum hdt_copy_kind {
    HDT_COPY_TO_DEVICE,   /* dst device, src host */
    HDT_COPY_FROM_DEVICE, /* dst host, src device */
    HDT_COPY_ON_DEVICE,   /* both device; the ranges do not overlap */
};

/* What to open. All zeros is the first device with the backend's own choice of threads. */
struct hdt_device_conf {
    int device_idx; /* 0 .. device_count() - 1 */
    int n_threads;  /* CPU threads that compute, the caller's included; 0: all of the machine */
    int sm_limit;   /* multiprocessors that ops run on, or the next number that the device can be
                       parted by; 0: all. HDT_EINVAL: it has fewer; HDT_ENOTSUP: it has none, or
                       cannot be parted */
};

/* What was opened, for plans and messages. */
struct hdt_device_info {
    char name[96];         /* "AMD EPYC (2 threads, AVX2, OpenBLAS)" */
    uint64_t memory_bytes; /* memory that the device has in all */
    uint64_t memory_free;  /* of it, what nobody has taken now; 0: the system knows (CPUs) */
    uint64_t stream_bytes; /* that a stream takes for its ops beside what is asked for, about */
    int n_threads;         /* CPU threads that compute; 0 when it is not a CPU */
    bool has_fp8;          /* runs the backend's products of FP8; false where it has none */
    int n_sms;             /* multiprocessors that ops run on; 0 when it has none */
};

struct hdt_device; /* one opened device; the backend's own */
struct hdt_stream; /* a queue of work of a device; the backend's own */
struct hdt_event;  /* a point in a stream; the backend's own */

struct hdt_device_codecs;

/* C = alpha op(A) op(B) + beta C, with op(A) (m, k), op(B) (k, n), C (m, n). With beta 0 C is set
 * and need not hold numbers. op(X) is X, or its transpose when the flag is set; ld* is the distance
 * of two rows as they stand in memory. */
struct hdt_gemm {
    int m;
    int n;
    int k;
    bool trans_a; /* A stands as (k, m) */
    bool trans_b; /* B stands as (n, k) */
    float alpha;
    float beta;
    const float *a;
    int lda;
    const float *b;
    int ldb;
    float *c;
    int ldc;
};

/*
 * Causal grouped-query attention. Query head h uses key/value head h / (NH / NKV). Sequence b's
 * query row t is at q + (b * q_len + t) * q_stride, head h at + h * HS; keys and values likewise
 * with kv_len and kv_stride. Query t attends to keys 0 .. kv_len - q_len + t (so kv_len >= q_len;
 * equal in training, longer when keys of earlier positions stand in a cache). Scores are scaled by
 * 1 / sqrt(HS). `lse` is the log of the sum of exponentials of each query's scaled scores.
 */
struct hdt_attention {
    int n_seqs; /* B */
    int q_len;  /* T of the queries */
    int kv_len; /* T of keys and values */
    int n_heads;
    int n_kv_heads;
    int head_size;  /* HS */
    const float *q; /* (B, q_len, NH, HS), rows q_stride apart */
    int q_stride;
    const float *k; /* (B, kv_len, NKV, HS), rows kv_stride apart */
    const float *v; /* (B, kv_len, NKV, HS), rows kv_stride apart */
    int kv_stride;
    float *out; /* (B, q_len, NH, HS), tight; forward sets, backward reads */
    float *lse; /* (B, NH, q_len); forward sets, backward reads */
};

/* One of the arrays that an op takes together. */
struct hdt_span {
    const float *x; /* device memory */
    size_t len;
};

/* Numbers of one AdamW update. The gradient is multiplied by grad_scale first (clipping). */
struct hdt_adamw {
    float lr;
    float beta1;
    float beta2;
    float eps;
    float weight_decay; /* decoupled: w -= lr * weight_decay * w */
    float grad_scale;
    int64_t step; /* 1 for the first update; for the bias correction */
};

/*
 * The ops. Every pointer is device memory. Outputs come last and never overlap inputs unless the
 * comment says so. Row counts are `n`, which is B * T where tokens are meant. A module that is
 * still growing may leave ops out (NULL): it can be listed and tested, and whoever is to compute
 * with it refuses it by hdt_backend_require (backend_find.h), which names what is missing.
 */
struct hdt_ops {
    /* C = alpha op(A) op(B) + beta C. See struct hdt_gemm. */
    void (*gemm)(struct hdt_stream *s, const struct hdt_gemm *g);

    /* y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps), row by row. Sets y and rstd.
     * x (n, c), w (c), y (n, c), rstd (n). */
    void (*rmsnorm_fwd)(struct hdt_stream *s, const float *x, const float *w, int n, int c,
                        float eps, float *y, float *rstd);

    /* Adds to dx, adds to dw. dy (n, c), x (n, c), w (c), rstd (n), dx (n, c), dw (c). `dx` holds
     * the gradient that comes by the residual path, or zeros. */
    void (*rmsnorm_bwd)(struct hdt_stream *s, const float *dy, const float *x, const float *w,
                        const float *rstd, int n, int c, float *dx, float *dw);

    /* Rotates, in place, the first n_heads heads of each row of x by the angles of its position
     * (the row's place in its sequence of `t` rows, plus `pos`). Pairs are (i, i + HS/2), as
     * Hugging Face stores them. The inverse rotation is the backward pass.
     * x (n, ...) with rows `stride` apart; cos_sin (positions, HS): HS/2 cosines, HS/2 sines. */
    void (*rope_fwd)(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos, int n_heads,
                     int head_size, int stride, float *x);
    void (*rope_bwd)(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos, int n_heads,
                     int head_size, int stride, float *dx);

    /* Sets out and lse. See struct hdt_attention. */
    void (*attention_fwd)(struct hdt_stream *s, const struct hdt_attention *a);

    /* Sets dq, dk, dv, which stand as q, k, v do (same strides). dout as out. kv_len == q_len. */
    void (*attention_bwd)(struct hdt_stream *s, const struct hdt_attention *a, const float *dout,
                          float *dq, float *dk, float *dv);

    /* h = silu(gate) * up. Sets h. gate_up (n, 2f): gate in columns 0 .. f - 1, then up; h (n, f).
     */
    void (*swiglu_fwd)(struct hdt_stream *s, const float *gate_up, int n, int f, float *h);

    /* Sets dgate_up (n, 2f). dh (n, f), gate_up (n, 2f). */
    void (*swiglu_bwd)(struct hdt_stream *s, const float *dh, const float *gate_up, int n, int f,
                       float *dgate_up);

    /* Sets out (n, c) to rows of w (v, c). tokens (n), each in 0 .. v - 1: checked by the caller.
     */
    void (*embedding_fwd)(struct hdt_stream *s, const int32_t *tokens, const float *w, int n, int c,
                          float *out);

    /* Adds dout (n, c) to the rows of dw (v, c), in the order of the rows. */
    void (*embedding_bwd)(struct hdt_stream *s, const int32_t *tokens, const float *dout, int n,
                          int c, float *dw);

    /* Cross-entropy of logits (n, v) and its gradient, fused. Rows whose label is negative count
     * nothing. *loss_sum (one float64) gets the rows' losses added, in an order fixed by n, in
     * float64. When scale is not 0 logits become dlogits = (softmax - onehot) * scale, where scale
     * is 1 / global tokens; when it is 0 (evaluation) logits are left as they were. */
    void (*cross_entropy)(struct hdt_stream *s, const int32_t *labels, int n, int v, float scale,
                          float *logits, double *loss_sum);

    /* y += x. Adds. (len) */
    void (*add)(struct hdt_stream *s, const float *x, size_t len, float *y);

    /* x *= factor, in place. (len) */
    void (*scale)(struct hdt_stream *s, float factor, size_t len, float *x);

    /* Sets all bytes to zero. */
    void (*zero)(struct hdt_stream *s, void *x, size_t bytes);

    /* dst = src converted, round to nearest even; F32, BF16 and F16 in any pair. Sets. (len) */
    void (*cast)(struct hdt_stream *s, const void *src, enum hdt_dtype src_dtype, size_t len,
                 enum hdt_dtype dst_dtype, void *dst);

    /* Of each of n arrays the sum of squares in float64, in an order fixed by its len, 0 without
     * elements: the others change nothing. Sets. spans (n): host memory, the caller's again at
     * once; sums (n). */
    void (*sumsq)(struct hdt_stream *s, const struct hdt_span *spans, int n, double *sums);

    /* One AdamW update. Sets w, m, v; reads g. (len) */
    void (*adamw)(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                  float *w, float *m, float *v);
};

/*
 * Mixed precision: matrix products and attention take bfloat16 and add up in float32. Activations
 * within a block and their gradients are bfloat16 (void pointers below), rounded to nearest even
 * where they are stored; the residual stream, its gradient, gradients of weights, weights and
 * moments are float32, and of the weights there is a copy in bfloat16 for the products. All
 * arithmetic but the products of two bfloat16 values is in float32. Head sizes: multiples of 8 up
 * to HDT_MIXED_HEAD_MAX. Arrays are aligned to 16 bytes, widths and strides are multiples of 8.
 * Ops that mixed precision shares with float32 (embedding, add, zero, sumsq, ...) are in struct
 * hdt_ops. Each op means what its namesake in struct hdt_ops does.
 */
#define HDT_MIXED_HEAD_MAX 128

/* D = alpha op(A) op(B) + beta C, with A and B bfloat16; C may be D, or not be read (beta 0). */
struct hdt_mixed_gemm {
    int m;
    int n;
    int k;
    bool trans_a; /* A stands as (k, m) */
    bool trans_b; /* B stands as (n, k) */
    float alpha;
    float beta;
    const void *a;
    int lda;
    const void *b;
    int ldb;
    enum hdt_dtype d_dtype; /* of C and D: HDT_DTYPE_F32 or HDT_DTYPE_BF16 */
    const void *c;          /* rows ldd apart */
    void *d;
    int ldd;
};

/* As struct hdt_attention. */
struct hdt_mixed_attention {
    int n_seqs;
    int q_len;
    int kv_len;
    int n_heads;
    int n_kv_heads;
    int head_size;
    const void *q;
    int q_stride;
    const void *k;
    const void *v;
    int kv_stride;
    void *out;
    float *lse;
};

/* `amax`, where an op has it: NULL, or (1) that is raised to the largest magnitude of the bfloat16
 * values which the op stores for products (NaN is above all), for struct hdt_quantize. */
struct hdt_mixed_ops {
    void (*gemm)(struct hdt_stream *s, const struct hdt_mixed_gemm *g);
    void (*rmsnorm_fwd)(struct hdt_stream *s, const float *x, const float *w, int n, int c,
                        float eps, void *y, float *rstd);
    /* Adds to dx and dw, and sets dx16 to what dx then is. */
    void (*rmsnorm_bwd)(struct hdt_stream *s, const void *dy, const float *x, const float *w,
                        const float *rstd, int n, int c, float *dx, void *dx16, float *dw);
    void (*rope_fwd)(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos, int n_heads,
                     int head_size, int stride, void *x);
    void (*rope_bwd)(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos, int n_heads,
                     int head_size, int stride, void *dx);
    void (*attention_fwd)(struct hdt_stream *s, const struct hdt_mixed_attention *a);
    void (*attention_bwd)(struct hdt_stream *s, const struct hdt_mixed_attention *a,
                          const void *dout, void *dq, void *dk, void *dv);
    void (*swiglu_fwd)(struct hdt_stream *s, const void *gate_up, int n, int f, void *h,
                       float *amax);
    /* Sets dgate_up and, unless h is NULL, h to what swiglu_fwd gives. */
    void (*swiglu_bwd)(struct hdt_stream *s, const void *dh, const void *gate_up, int n, int f,
                       void *dgate_up, void *h, float *amax); /* of dgate_up */
    void (*cross_entropy)(struct hdt_stream *s, const int32_t *labels, int n, int v, float scale,
                          void *logits, double *loss_sum);
    /* Sets w16 to what w then is. */
    void (*adamw)(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                  float *w, float *m, float *v, void *w16, float *amax);
};

/*
 * Products of FP8, for the linear layers of a model that is else in mixed precision. A tensor of
 * FP8 is one of E4M3 (as the OCP 8-bit floating point specification has it: no infinities, largest
 * 448) or E5M2 (largest 57344), and one float32 scale that its values are multiplied by. Widths are
 * multiples of HDT_FP8_DIM, matrices are tight, they and scales stand at multiples of 16 bytes.
 */
#define HDT_FP8_DIM      16
#define HDT_FP8_E4M3_MAX 448.0f
#define HDT_FP8_E5M2_MAX 57344.0f

/*
 * With amax the largest magnitude in x and max that of the format:
 *
 *     scale = amax / max, but at least 2^-126; 1 when amax is 0
 *     y     = x * (1 / scale), each operation rounded to float32, then to the format: to nearest
 *             even, beyond its range the largest number of that sign, NaN 0x7f
 *
 * so that the same x gives the same bits everywhere. When x has infinities or NaN, scale is no
 * finite number, and neither is what is computed from the tensor.
 */
struct hdt_quantize {
    int n;
    int c;
    const void *x;        /* (n, c) bfloat16 */
    const float *amax;    /* (1) of x, by who made it (struct hdt_mixed_ops); NULL: not known */
    enum hdt_dtype dtype; /* HDT_DTYPE_F8E4M3 or HDT_DTYPE_F8E5M2 */
    void *y;              /* (n, c); NULL: not asked for */
    void *yt;             /* (c, n), the same values; NULL: not asked for */
    float *scale;         /* (1) */
};

/* D = sa sb A B^T + beta C, with A (m, k) and B (n, k): both stand with k along their rows, which
 * is the only way that matrix units take FP8. Sums are of float32; `is_fast`: they may be of what
 * the matrix units add up in by themselves, which is less. C may be D, or not be read (beta 0). */
struct hdt_fp8_gemm {
    int m;
    int n;
    int k;
    bool is_fast;
    float beta;
    enum hdt_dtype a_dtype; /* HDT_DTYPE_F8E4M3 or HDT_DTYPE_F8E5M2; not both E5M2 */
    enum hdt_dtype b_dtype;
    const void *a;
    const float *a_scale;
    const void *b;
    const float *b_scale;
    enum hdt_dtype d_dtype; /* of C and D: HDT_DTYPE_F32 or HDT_DTYPE_BF16 */
    const void *c;
    void *d;
};

struct hdt_fp8_ops {
    void (*quantize)(struct hdt_stream *s, const struct hdt_quantize *q);
    void (*gemm)(struct hdt_stream *s, const struct hdt_fp8_gemm *g);
};

/* The table. Functions without a note must be there. */
struct hdt_backend {
    uint32_t abi;      /* HDT_BACKEND_ABI */
    uint32_t caps;     /* enum hdt_backend_cap, or-ed */
    const char *name;  /* "cpu", "cuda" */
    const char *about; /* one line for humans */

    /* Number of devices here; 0 is no error. HDT_ENOTSUP: no driver, or one too old for the module.
     * HDT_EIO: the driver is broken. */
    enum hdt_status (*device_count)(int *n_devices, struct hdt_error *err);

    /* Open a device; close gives it back once all its memory and streams are freed. */
    enum hdt_status (*device_open)(const struct hdt_device_conf *conf, struct hdt_device **device,
                                   struct hdt_error *err);
    void (*device_close)(struct hdt_device *device);
    void (*device_info)(struct hdt_device *device, struct hdt_device_info *info);

    /* Device memory, aligned to 256 bytes, not cleared. HDT_ENOMEM. free takes NULL; work that is
     * queued and uses the memory still finds it. Both may block until such work is done. */
    enum hdt_status (*alloc)(struct hdt_device *device, size_t bytes, void **mem,
                             struct hdt_error *err);
    void (*free)(struct hdt_device *device, void *mem);

    /* Host memory that the device can read and write at full speed (pinned). */
    enum hdt_status (*host_alloc)(struct hdt_device *device, size_t bytes, void **mem,
                                  struct hdt_error *err);
    void (*host_free)(struct hdt_device *device, void *mem);

    /* Pin memory that somebody else allocated (a shared segment of a link), and let go of it.
     * Optional (NULL: nothing to do). */
    enum hdt_status (*host_register)(struct hdt_device *device, void *mem, size_t bytes,
                                     struct hdt_error *err);
    void (*host_unregister)(struct hdt_device *device, void *mem);

    enum hdt_status (*stream_new)(struct hdt_device *device, struct hdt_stream **stream,
                                  struct hdt_error *err);
    void (*stream_free)(struct hdt_stream *stream);
    /* Blocks until all queued work is done; returns the stream's sticking error, if any. */
    enum hdt_status (*stream_wait)(struct hdt_stream *stream, struct hdt_error *err);

    enum hdt_status (*event_new)(struct hdt_device *device, struct hdt_event **event,
                                 struct hdt_error *err);
    void (*event_free)(struct hdt_event *event);
    /* Mark the point that the stream's queued work has reached so far. */
    void (*event_record)(struct hdt_event *event, struct hdt_stream *stream);
    /* Let the stream's later work wait for the event; does not block the caller. */
    void (*event_wait)(struct hdt_event *event, struct hdt_stream *stream);
    /* True when the recorded point was reached; does not block. */
    bool (*event_done)(struct hdt_event *event);

    void (*copy)(struct hdt_stream *stream, void *dst, const void *src, size_t bytes,
                 enum hdt_copy_kind kind);

    const struct hdt_ops *ops;
    const struct hdt_mixed_ops *mixed; /* all of them; NULL: float32 is all there is */
    const struct hdt_fp8_ops *fp8;     /* all of them, and mixed; NULL: none. By device: has_fp8 */
    const struct hdt_device_codecs *codecs; /* compress/device.h; NULL: the host codes tensors */
};

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_BACKEND_H */
