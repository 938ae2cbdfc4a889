/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SELFTEST_CASES_H
#define HDT_RUNTIME_SELFTEST_CASES_H

/*
 * What each op of a backend is tested with: its arrays, how to call it, and the same in float64.
 * The program that runs the cases (selftest.c) knows no op.
 */
#include "runtime/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BACKEND_ARRAYS_MAX 8

enum backend_role { BACKEND_IN, BACKEND_INOUT, BACKEND_OUT };

enum backend_fill {
    BACKEND_FILL_NORMAL, /* about N(0, 1) */
    BACKEND_FILL_SQUARE, /* of such a value: second moments */
    BACKEND_FILL_INDEX,  /* whole numbers 0 .. n_index - 1 */
    BACKEND_FILL_LABEL,  /* as indexes, each fifth one negative */
    BACKEND_FILL_WIDE, /* over 2^24 of size, after NaN, infinities and the limits of 16-bit types */
};

struct backend_array {
    const char *name;
    enum backend_role role;
    enum hdt_dtype dtype;
    enum backend_fill fill;
    size_t len;
    double tolerance; /* of outputs: largest error by error_of in selftest.c, against float64 */
    int rounds; /* 1 + index of the float32 output that this bfloat16 one must be, as it came out,
                   rounded to nearest even; 0: of none */
};

/* Shape of a case; each op reads its own. */
struct backend_shape {
    size_t len; /* flat ops */
    int n, c, k;
    int t, n_heads, n_kv_heads, head_size;
    int n_index;
    int flags;
    enum hdt_dtype src, dst;
};

/* Attention with the head sizes of most models over tiles that are not full; and its last queries
 * alone, as when a text is continued. */
#define BACKEND_HEADS                                                                              \
 {.n = 1, .t = 130, .n_heads = 4, .n_kv_heads = 2, .head_size = 64},                               \
     {.n = 1, .t = 200, .n_heads = 2, .n_kv_heads = 1, .head_size = 64},                           \
     {.n = 1, .t = 130, .n_heads = 2, .n_kv_heads = 1, .head_size = 128},                          \
 {                                                                                                 \
  .n = 1, .t = 200, .n_heads = 2, .n_kv_heads = 2, .head_size = 128                                \
 }
#define BACKEND_LATE_HEADS                                                                         \
 {.n = 1, .t = 201, .k = 196, .n_heads = 4, .n_kv_heads = 2, .head_size = 64},                     \
 {                                                                                                 \
  .n = 1, .t = 201, .k = 196, .n_heads = 2, .n_kv_heads = 1, .head_size = 128                      \
 }

struct backend_case {
    const char *op; /* a member of struct hdt_ops, hdt_mixed_ops or hdt_fp8_ops */
    /* Set the arrays from the shape. */
    void (*describe)(const struct backend_shape *shape, struct backend_array *arrays);
    /* Optional: complete the inputs, of which some follow from others. */
    void (*prepare)(const struct backend_shape *shape, double *const *x);
    void (*launch)(const struct hdt_backend *backend, struct hdt_stream *s,
                   const struct backend_shape *shape, void *const *mem);
    /* In float64, on arrays that hold the inputs as the op gets them. */
    void (*reference)(const struct backend_shape *shape, double *const *x);
    bool is_exact;                   /* the cpu backend's bits are the only right ones */
    bool is_mixed;                   /* of struct hdt_mixed_ops: arrays are aligned to 16 bytes, and
                                        the cpu backend has nothing to compare with */
    bool is_wide;                    /* errors are relative to each value, not to the array */
    struct backend_shape shapes[10]; /* small and odd; all zeros: no more */
    struct backend_shape large;      /* big enough to fill a device; for rates */
};

extern const struct backend_case hdt_backend_cases[];
extern const size_t hdt_n_backend_cases;
extern const struct backend_case hdt_mixed_cases[];
extern const size_t hdt_n_mixed_cases;
extern const struct backend_case hdt_fp8_cases[];
extern const size_t hdt_n_fp8_cases;

/* What the cases of adamw compute with. */
extern const struct hdt_adamw hdt_backend_adamw;

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SELFTEST_CASES_H */
