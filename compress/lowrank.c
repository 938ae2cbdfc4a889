/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power iteration with the bits of a definition: dot products run in eight float lanes, everything
 * else element by element in a fixed order, norms in double, so that no table of kernels and no
 * restart changes a frame. The scale of the factor has no influence on the frame, which is why it
 * is brought to length one before use: products then stay far from overflow and underflow.
 */
#include "config.h"

#include "compress/lowrank.h"
#include "compress/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Values of a row that a decoder makes at a time. */
#define PIECE ((size_t)256)

/* A column of P that lies so far within the others that what is left is rounding. */
#define DEPENDENT 1e-6

struct hdt_lowrank hdt_lowrank_shape(size_t n, size_t columns, unsigned rank)
{
    struct hdt_lowrank s = {.n = n, .columns = columns, .rank = rank};

    if (columns == 0) {
        s.columns = 8;
        while (s.columns * s.columns < n) {
            s.columns += 8;
        }
    }
    s.columns = s.columns > n ? n : s.columns;
    s.rows = n > 0 ? (n + s.columns - 1) / s.columns : 0;
    s.rank = s.rank > s.rows ? s.rows : s.rank;
    s.rank = s.rank > s.columns ? s.columns : s.rank;
    return s;
}

size_t hdt_lowrank_len(const struct hdt_lowrank *shape)
{
    return 2 * shape->rank * (shape->rows + shape->columns);
}

static size_t row_len(const struct hdt_lowrank *s, size_t row)
{
    size_t rest = s->n - row * s->columns;

    return rest < s->columns ? rest : s->columns;
}

/* ---- vectors ---- */

static double dot_f64(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

static void scale(float *x, size_t n, double by)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)((double)x[i] * by);
    }
}

/* Any direction will do to begin with, as long as it is the same each time: splitmix64. */
static void fill_direction(float *q, size_t n, size_t component)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t z = ((uint64_t)component << 32) + (i + 1) * 0x9e3779b97f4a7c15u;

        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        q[i] = (float)(int32_t)(z >> 32) * 0x1p-31f;
    }
}

static void factor_prepare(const struct hdt_lowrank *s, float *factor)
{
    for (size_t c = 0; c < s->rank; c++) {
        float *q = factor + c * s->columns;
        double sq = dot_f64(q, q, s->columns);

        if (!(sq > 0)) {
            fill_direction(q, s->columns, c);
            sq = dot_f64(q, q, s->columns);
        }
        scale(q, s->columns, 1 / sqrt(sq));
    }
}

/* Gram-Schmidt, each column twice, which makes up for what rounding leaves of the first time. */
static void orthonormalize(const struct hdt_lowrank *s, float *p)
{
    for (size_t c = 0; c < s->rank; c++) {
        float *x = p + c * s->rows;
        double before = dot_f64(x, x, s->rows), after;

        for (int turn = 0; turn < 2; turn++) {
            for (size_t d = 0; d < c; d++) {
                const float *y = p + d * s->rows;
                double along = dot_f64(x, y, s->rows);

                for (size_t i = 0; i < s->rows; i++) {
                    x[i] = (float)((double)x[i] - along * (double)y[i]);
                }
            }
        }
        after = dot_f64(x, x, s->rows);
        if (after > DEPENDENT * DEPENDENT * before) {
            scale(x, s->rows, 1 / sqrt(after));
        } else {
            memset(x, 0, s->rows * sizeof(*x));
        }
    }
}

/* ---- frame ---- */

static float bf16_widen(const uint8_t *src)
{
    uint32_t u = (uint32_t)src[0] << 16 | (uint32_t)src[1] << 24;
    float x;

    memcpy(&x, &u, 4);
    return x;
}

/* Code n values and replace them by what a decoder sees. */
static void put_bf16(const struct hdt_kernels *kernels, float *x, size_t n, uint8_t *dst)
{
    kernels->bf16_encode((const uint8_t *)x, n, dst);
    kernels->bf16_decode(dst, n, (uint8_t *)x);
}

/* ---- encode ---- */

static enum hdt_status check_values(const struct hdt_kernels *kernels, const uint8_t *src, size_t n,
                                    struct hdt_codec_guard *guard, struct hdt_error *err)
{
    uint32_t max = kernels->abs_max(src, n, &guard->n_nonfinite);

    guard->n = n;
    memcpy(&guard->max_abs, &max, 4);
    if (guard->n_nonfinite > 0) {
        hdt_error_set(err, HDT_EINVAL,
                      "cannot code tensor as low rank: %" PRIu64
                      " of %zu values are NaN or infinite",
                      guard->n_nonfinite, n);
        hdt_error_hint(err, "codecs none, lossless and bf16 carry such values");
        return HDT_EINVAL;
    }
    if (guard->max_abs > HDT_LOWRANK_ABS_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "cannot code tensor as low rank: a value is %g",
                             (double)guard->max_abs);
    }
    return HDT_OK;
}

/* P and Q of one iteration; P in `p`, Q in `factor`. */
static void iterate(const struct hdt_lowrank *s, const struct hdt_sparse_kernels *sparse,
                    const float *m, float *p, float *factor)
{
    factor_prepare(s, factor);
    for (size_t i = 0; i < s->rows; i++) {
        for (size_t c = 0; c < s->rank; c++) {
            p[c * s->rows + i] =
                sparse->dot(m + i * s->columns, factor + c * s->columns, row_len(s, i));
        }
    }
    orthonormalize(s, p);
    memset(factor, 0, s->rank * s->columns * sizeof(*factor));
    for (size_t i = 0; i < s->rows; i++) {
        for (size_t c = 0; c < s->rank; c++) {
            sparse->axpy(factor + c * s->columns, m + i * s->columns, p[c * s->rows + i],
                         row_len(s, i));
        }
    }
}

enum hdt_status hdt_lowrank_encode(const struct hdt_lowrank *shape,
                                   const struct hdt_kernels *kernels,
                                   const struct hdt_sparse_kernels *sparse, const uint8_t *src,
                                   float *residual, float *factor, float *scratch, uint8_t *dst,
                                   struct hdt_codec_guard *guard, struct hdt_error *err)
{
    const struct hdt_lowrank *s = shape;
    double sq[HDT_KERNEL_LANES] = {0};
    uint32_t maxima[HDT_KERNEL_LANES];

    memset(guard, 0, sizeof(*guard));
    HDT_TRY(check_values(kernels, src, s->n, guard, err));
    if (s->n == 0) {
        return HDT_OK;
    }
    for (size_t i = 0; i < s->n; i += PIECE) {
        size_t len = s->n - i < PIECE ? s->n - i : PIECE;

        sparse->absorb(residual + i, src + 4 * i, len, PIECE / HDT_KERNEL_LANES, maxima, sq);
    }
    guard->ref_sq = hdt_kernels_sum_lanes_f64(sq);
    iterate(s, sparse, residual, scratch, factor);
    put_bf16(kernels, scratch, s->rank * s->rows, dst);
    put_bf16(kernels, factor, s->rank * s->columns, dst + 2 * s->rank * s->rows);
    for (size_t i = 0; i < s->rows; i++) {
        float *row = residual + i * s->columns;
        size_t len = row_len(s, i);

        for (size_t c = 0; c < s->rank; c++) {
            sparse->axpy(row, factor + c * s->columns, -scratch[c * s->rows + i], len);
        }
        guard->err_sq += dot_f64(row, row, len);
    }
    return HDT_OK;
}

/* ---- decode ---- */

static enum hdt_status check_frame(const struct hdt_lowrank *s, const uint8_t *src, size_t len,
                                   struct hdt_error *err)
{
    if (len != hdt_lowrank_len(s)) {
        return hdt_error_set(err, HDT_EPROTO, "low rank: %zu coded bytes for %zu values, not %zu",
                             len, s->n, hdt_lowrank_len(s));
    }
    for (size_t i = 0; i < len; i += 2) {
        if (!isfinite(bf16_widen(src + i))) {
            return hdt_error_set(err, HDT_EPROTO,
                                 "low rank: value %zu of the factors is not finite", i / 2);
        }
    }
    return HDT_OK;
}

/* Values at .. at + len - 1 of a row, as the sum of the components in their order. */
static void row_piece(const struct hdt_lowrank *s, const uint8_t *src, size_t row, size_t at,
                      size_t len, float *piece)
{
    const uint8_t *q = src + 2 * s->rank * s->rows;

    memset(piece, 0, len * sizeof(*piece));
    for (size_t c = 0; c < s->rank; c++) {
        const float p = bf16_widen(src + 2 * (c * s->rows + row));
        const uint8_t *from = q + 2 * (c * s->columns + at);

        for (size_t j = 0; j < len; j++) {
            piece[j] += p * bf16_widen(from + 2 * j);
        }
    }
}

enum hdt_status hdt_lowrank_decode(const struct hdt_lowrank *shape, const uint8_t *src,
                                   size_t src_len, uint8_t *dst, bool add, struct hdt_error *err)
{
    float piece[PIECE];

    HDT_TRY(check_frame(shape, src, src_len, err));
    for (size_t i = 0; i < shape->rows; i++) {
        for (size_t at = 0, len; at < row_len(shape, i); at += len) {
            uint8_t *to = dst + 4 * (i * shape->columns + at);

            len = row_len(shape, i) - at;
            len = len < PIECE ? len : PIECE;
            row_piece(shape, src, i, at, len, piece);
            for (size_t j = 0; add && j < len; j++) {
                float x;

                memcpy(&x, to + 4 * j, 4);
                piece[j] = x + piece[j];
            }
            memcpy(to, piece, 4 * len);
        }
    }
    return HDT_OK;
}
