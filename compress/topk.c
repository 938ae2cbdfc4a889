/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The k largest of a block, found without sorting it.
 *
 * While a block is added to the residual, its values are dealt into at least 2 k groups and the
 * maximum of each group is kept. The k-th largest of these maxima is a bound that k values of the
 * block reach, so one pass collects candidates, mostly a third more than k. Among them the k-th
 * largest magnitude is found by bisection over its bits, which is counting alone. A histogram of
 * exponents was refused: its scattered increments cost more than all of this, and values whose
 * exponents are alike fall into one bin.
 *
 * Positions are coded as Elias and Fano did: of each the l lowest bits as they are, the rest of all
 * in unary as one run of bits, where bit (high + j) is set for the j-th position. For one value of
 * 64 that is 8 bits instead of 12, close to the entropy of 7.4, and the length is fixed.
 *
 *     block:  | unary, to a byte | low bits, to a byte | values (sparse_values.h) |
 */
#include "config.h"

#include "compress/topk.h"
#include "compress/sparse_values.h"

#include <inttypes.h>
#include <string.h>

#define BLOCK HDT_SPARSE_BLOCK

/* Bytes of the random-k frame before its values. */
#define SEED_LEN 8

/* Scratch memory of one block. */
struct work {
    float lost[BLOCK]; /* takes the residual's place where there is none */
    uint32_t magnitudes[BLOCK];
    uint16_t positions[BLOCK + HDT_SPARSE_COLLECT_MORE];
    float values[BLOCK / HDT_TOPK_KEEP_MIN], decoded[BLOCK / HDT_TOPK_KEEP_MIN];
};

/* ---- the layout of a block of n values ---- */

static size_t kept(size_t n, unsigned keep)
{
    return (n + keep - 1) / keep;
}

struct hdt_topk_layout hdt_topk_layout_of(const struct hdt_topk *topk, size_t n)
{
    struct hdt_topk_layout l = {.n = n, .k = kept(n, topk->keep)};

    while (l.k << (l.low_bits + 1) <= n) {
        l.low_bits++;
    }
    l.unary_len = (l.k + ((n - 1) >> l.low_bits) + 7) / 8;
    l.low_len = (l.k * l.low_bits + 7) / 8;
    l.values_len = hdt_sparse_values_len(l.k, topk->bits);
    return l;
}

static size_t layout_len(const struct hdt_topk_layout *l)
{
    return l->unary_len + l->low_len + l->values_len;
}

size_t hdt_topk_len(const struct hdt_topk *topk, size_t n)
{
    struct hdt_topk_layout whole = hdt_topk_layout_of(topk, BLOCK);
    size_t len = n / BLOCK * layout_len(&whole);

    if (n % BLOCK != 0) {
        struct hdt_topk_layout rest = hdt_topk_layout_of(topk, n % BLOCK);

        len += layout_len(&rest);
    }
    return len;
}

size_t hdt_randk_len(const struct hdt_topk *topk, size_t n)
{
    size_t len = n / BLOCK * hdt_sparse_values_len(kept(BLOCK, topk->keep), topk->bits);

    if (n % BLOCK != 0) {
        len += hdt_sparse_values_len(kept(n % BLOCK, topk->keep), topk->bits);
    }
    return n > 0 ? SEED_LEN + len : 0;
}

static void put_positions(const struct hdt_topk_layout *l, const uint16_t *positions, uint8_t *dst)
{
    struct hdt_bit_writer w = {.dst = dst + l->unary_len};
    unsigned mask = (1u << l->low_bits) - 1;

    memset(dst, 0, l->unary_len);
    for (size_t j = 0; j < l->k; j++) {
        size_t at = ((size_t)positions[j] >> l->low_bits) + j;

        dst[at / 8] = (uint8_t)(dst[at / 8] | 1u << at % 8);
        hdt_bit_put(&w, positions[j] & mask, l->low_bits);
    }
    hdt_bit_end(&w);
}

/* False when the bits are not k ascending positions below n. */
static bool get_positions(const struct hdt_topk_layout *l, const uint8_t *src, uint16_t *positions)
{
    struct hdt_bit_reader low = {.src = src + l->unary_len};
    size_t j = 0, last = 0;

    for (size_t byte = 0; byte < l->unary_len; byte++) {
        for (unsigned rest = src[byte]; rest != 0; rest &= rest - 1) {
            size_t at = 8 * byte + (size_t)__builtin_ctz(rest), position;

            if (j == l->k) {
                return false;
            }
            position = (at - j) << l->low_bits | hdt_bit_get(&low, l->low_bits);
            if (position >= l->n || (j > 0 && position <= last)) {
                return false;
            }
            positions[j++] = (uint16_t)position;
            last = position;
        }
    }
    return j == l->k;
}

/* ---- choosing ---- */

/* The k-th largest of n >= k magnitudes; bits below `lowest` are left 0, which is a lower bound. */
static uint32_t kth_largest(const struct hdt_sparse_kernels *sparse, const uint32_t *magnitudes,
                            size_t n, size_t k, int lowest)
{
    uint32_t found = 0;

    for (int bit = 30; bit >= lowest; bit--) {
        uint32_t next = found | (uint32_t)1 << bit;

        if (sparse->count(magnitudes, n, next) >= k) {
            found = next;
        }
    }
    return found;
}

/* Vectors of eight whose maxima form one group: so many that there are 2 k groups. */
static size_t group_stride(const struct hdt_topk_layout *l)
{
    size_t stride = 1;

    while (4 * l->k * stride <= l->n) {
        stride *= 2;
    }
    return stride;
}

/* Positions of the k largest magnitudes of r, ascending, into w->positions; w->magnitudes holds the
 * n_groups maxima of its groups. */
static void choose(const struct hdt_topk_layout *l, const struct hdt_sparse_kernels *sparse,
                   const float *r, size_t n_groups, struct work *w)
{
    uint32_t bound = 0, limit;
    size_t n, above, ties, out = 0;

    if (n_groups >= l->k) {
        bound = kth_largest(sparse, w->magnitudes, n_groups, l->k, 16);
    }
    n = sparse->collect(r, l->n, bound, w->positions);
    if (n == l->k) {
        return;
    }
    for (size_t j = 0; j < n; j++) {
        memcpy(&w->magnitudes[j], &r[w->positions[j]], 4);
        w->magnitudes[j] &= 0x7fffffffu;
    }
    limit = kth_largest(sparse, w->magnitudes, n, l->k, 0);
    above = sparse->count(w->magnitudes, n, limit + 1);
    ties = l->k - above;
    for (size_t j = 0; j < n; j++) {
        bool tie = w->magnitudes[j] == limit;

        if (w->magnitudes[j] > limit || (tie && ties > 0)) {
            ties -= tie;
            w->positions[out++] = w->positions[j];
        }
    }
}

/* splitmix64 (Steele, Lea & Flood 2014) of seed and run, scaled to [0, len). */
static size_t draw(uint64_t seed, uint64_t run, size_t len)
{
    uint64_t z = seed + (run + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (size_t)((z >> 32) * len >> 32);
}

/* Positions that random-k keeps of n values from value `first` of the tensor on. */
static void choose_random(const struct hdt_topk *topk, uint64_t seed, size_t first, size_t n,
                          uint16_t *positions)
{
    for (size_t j = 0, at = 0; at < n; j++, at += topk->keep) {
        size_t run = n - at < topk->keep ? n - at : topk->keep;

        positions[j] = (uint16_t)(at + draw(seed, first + at, run));
    }
}

/* ---- encode ---- */

enum hdt_status hdt_topk_check_guard(const char *name, const struct hdt_codec_guard *guard,
                                     struct hdt_error *err)
{
    if (guard->n_nonfinite == 0) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL,
                  "cannot code tensor as %s: %" PRIu64 " of %" PRIu64 " values are NaN or infinite",
                  name, guard->n_nonfinite, guard->n);
    hdt_error_hint(err, "codecs none, lossless and bf16 carry such values");
    return HDT_EINVAL;
}

static enum hdt_status check_finite(const struct hdt_kernels *kernels, const char *name,
                                    const uint8_t *src, size_t n, struct hdt_codec_guard *guard,
                                    struct hdt_error *err)
{
    uint32_t max = kernels->abs_max(src, n, &guard->n_nonfinite);

    guard->n = n;
    memcpy(&guard->max_abs, &max, 4);
    return hdt_topk_check_guard(name, guard, err);
}

/* Code the k values of r at w->positions, and take from r what the receiver will see. */
static void send_values(const struct hdt_topk *topk, float *r, size_t k, struct work *w,
                        uint8_t *dst, double ref_sq, struct hdt_codec_guard *guard)
{
    double err_sq = ref_sq;

    for (size_t j = 0; j < k; j++) {
        w->values[j] = r[w->positions[j]];
    }
    hdt_sparse_values_encode(w->values, k, topk->bits, dst, w->decoded);
    for (size_t j = 0; j < k; j++) {
        float left = w->values[j] - w->decoded[j];

        err_sq += (double)left * (double)left - (double)w->values[j] * (double)w->values[j];
        r[w->positions[j]] = left;
    }
    guard->ref_sq += ref_sq;
    guard->err_sq += err_sq > 0 ? err_sq : 0;
}

/* One block: absorb the values at src, choose, code; returns the bytes written. */
static size_t topk_block(const struct hdt_topk *topk, const struct hdt_sparse_kernels *sparse,
                         const uint8_t *src, size_t n, float *r, uint8_t *dst, struct work *w,
                         struct hdt_codec_guard *guard)
{
    struct hdt_topk_layout l = hdt_topk_layout_of(topk, n);
    size_t stride = group_stride(&l), span = HDT_KERNEL_LANES * stride;
    double sq[HDT_KERNEL_LANES] = {0};

    sparse->absorb(r, src, n, stride, w->magnitudes, sq);
    choose(&l, sparse, r, (n + span - 1) / span * HDT_KERNEL_LANES, w);
    put_positions(&l, w->positions, dst);
    send_values(topk, r, l.k, w, dst + l.unary_len + l.low_len, hdt_kernels_sum_lanes_f64(sq),
                guard);
    return layout_len(&l);
}

enum hdt_status hdt_topk_encode(const struct hdt_topk *topk, const struct hdt_kernels *kernels,
                                const struct hdt_sparse_kernels *sparse, const uint8_t *src,
                                size_t n, float *residual, uint8_t *dst,
                                struct hdt_codec_guard *guard, struct hdt_error *err)
{
    struct work w;

    memset(guard, 0, sizeof(*guard));
    HDT_TRY(check_finite(kernels, "top-k", src, n, guard, err));
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t len = n - i < BLOCK ? n - i : BLOCK;
        float *r = residual ? residual + i : memset(w.lost, 0, sizeof(w.lost));

        dst += topk_block(topk, sparse, src + 4 * i, len, r, dst, &w, guard);
    }
    return HDT_OK;
}

enum hdt_status hdt_randk_encode(const struct hdt_topk *topk, const struct hdt_kernels *kernels,
                                 const struct hdt_sparse_kernels *sparse, uint64_t seed,
                                 const uint8_t *src, size_t n, float *residual, uint8_t *dst,
                                 struct hdt_codec_guard *guard, struct hdt_error *err)
{
    struct work w;

    memset(guard, 0, sizeof(*guard));
    HDT_TRY(check_finite(kernels, "random-k", src, n, guard, err));
    if (n > 0) {
        memcpy(dst, &seed, SEED_LEN);
        dst += SEED_LEN;
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t len = n - i < BLOCK ? n - i : BLOCK, k = kept(len, topk->keep);
        float *r = residual ? residual + i : memset(w.lost, 0, sizeof(w.lost));
        double sq[HDT_KERNEL_LANES] = {0};

        sparse->absorb(r, src + 4 * i, len, BLOCK / HDT_KERNEL_LANES, w.magnitudes, sq);
        choose_random(topk, seed, i, len, w.positions);
        send_values(topk, r, k, &w, dst, hdt_kernels_sum_lanes_f64(sq), guard);
        dst += hdt_sparse_values_len(k, topk->bits);
    }
    return HDT_OK;
}

/* ---- decode ---- */

static void scatter(const struct work *w, size_t k, uint8_t *dst, bool add)
{
    for (size_t j = 0; j < k; j++) {
        uint8_t *at = dst + 4 * (size_t)w->positions[j];
        float x = 0;

        if (add) {
            memcpy(&x, at, 4);
        }
        x += w->values[j];
        memcpy(at, &x, 4);
    }
}

static enum hdt_status refuse_len(const char *name, size_t got, size_t want, size_t n,
                                  struct hdt_error *err)
{
    return hdt_error_set(err, HDT_EPROTO, "%s: %zu coded bytes for %zu values, not %zu", name, got,
                         n, want);
}

enum hdt_status hdt_topk_refuse_block(const struct hdt_topk *topk, size_t n, size_t block,
                                      struct hdt_error *err)
{
    const size_t left = n - block * BLOCK;
    const struct hdt_topk_layout l = hdt_topk_layout_of(topk, left < BLOCK ? left : BLOCK);

    return hdt_error_set(err, HDT_EPROTO,
                         "top-k: block %zu does not hold %zu ascending positions below %zu", block,
                         l.k, l.n);
}

enum hdt_status hdt_topk_decode(const struct hdt_topk *topk, const uint8_t *src, size_t src_len,
                                uint8_t *dst, size_t n, bool add, struct hdt_error *err)
{
    size_t want = hdt_topk_len(topk, n);
    struct work w;

    if (src_len != want) {
        return refuse_len("top-k", src_len, want, n, err);
    }
    if (!add && n > 0) {
        memset(dst, 0, 4 * n);
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        struct hdt_topk_layout l = hdt_topk_layout_of(topk, n - i < BLOCK ? n - i : BLOCK);

        if (!get_positions(&l, src, w.positions)) {
            return hdt_topk_refuse_block(topk, n, i / BLOCK, err);
        }
        HDT_TRY(hdt_sparse_values_decode(src + l.unary_len + l.low_len, l.k, topk->bits, w.values,
                                         err));
        scatter(&w, l.k, dst + 4 * i, add);
        src += layout_len(&l);
    }
    return HDT_OK;
}

enum hdt_status hdt_randk_decode(const struct hdt_topk *topk, const uint8_t *src, size_t src_len,
                                 uint8_t *dst, size_t n, bool add, struct hdt_error *err)
{
    size_t want = hdt_randk_len(topk, n);
    struct work w;
    uint64_t seed = 0;

    if (src_len != want) {
        return refuse_len("random-k", src_len, want, n, err);
    }
    if (n > 0) {
        memcpy(&seed, src, SEED_LEN);
        src += SEED_LEN;
    }
    if (!add && n > 0) {
        memset(dst, 0, 4 * n);
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t len = n - i < BLOCK ? n - i : BLOCK, k = kept(len, topk->keep);

        HDT_TRY(hdt_sparse_values_decode(src, k, topk->bits, w.values, err));
        choose_random(topk, seed, i, len, w.positions);
        scatter(&w, k, dst + 4 * i, add);
        src += hdt_sparse_values_len(k, topk->bits);
    }
    return HDT_OK;
}
