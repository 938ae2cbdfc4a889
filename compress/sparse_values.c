/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept values are few, so that one plain loop serves every processor; sums are in double and in
 * the order of the values.
 */
#include "config.h"

#include "compress/sparse_values.h"

#include <math.h>
#include <string.h>

#define HEAD 4 /* bytes of low and step */

static inline uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

static inline float bf16_widen(unsigned h)
{
    return float_of((uint32_t)h << 16);
}

/* Nearest bf16 of a finite value, ties to even; the largest bf16 instead of infinity. */
static unsigned bf16_nearest(float x)
{
    uint32_t u = bits_of(x);
    unsigned h = (u + 0x7fff + (u >> 16 & 1)) >> 16;

    return (h & 0x7fff) == 0x7f80 ? h - 1 : h;
}

bool hdt_sparse_values_bits_fit(unsigned bits)
{
    return bits == 2 || bits == 4 || bits == 8 || bits == 16;
}

size_t hdt_sparse_values_len(size_t k, unsigned bits)
{
    return (bits < 16 ? HEAD : 0) + (k * bits + 7) / 8;
}

/* low and step as bf16 */
struct levels {
    unsigned low, step, n;
};

static float level(const struct levels *l, unsigned c)
{
    return bf16_widen(l->low) + (float)c * bf16_widen(l->step);
}

static inline double magnitude(float x)
{
    return fabs((double)x);
}

/* The two magnitudes of 2-bit codes: means of the parts below and above the mean of all. Without
 * branches, as which part a value falls into cannot be foretold. */
static void two_means(const float *values, size_t k, double mean, double *low, double *high)
{
    double sums[2] = {0, 0};
    size_t n_high = 0;

    for (size_t i = 0; i < k; i++) {
        double m = magnitude(values[i]);
        bool above = m > mean;

        sums[0] += above ? 0 : m;
        sums[1] += above ? m : 0;
        n_high += above;
    }
    *low = n_high < k ? sums[0] / (double)(k - n_high) : mean;
    *high = n_high > 0 ? sums[1] / (double)n_high : mean;
}

/* Least and largest magnitude that a code can say. */
static void range(const float *values, size_t k, unsigned bits, double *low, double *high)
{
    double sum = 0, least = INFINITY, most = 0;

    for (size_t i = 0; i < k; i++) {
        double m = magnitude(values[i]);

        sum += m;
        least = m < least ? m : least;
        most = m > most ? m : most;
    }
    *low = least;
    *high = most;
    if (bits == 2) {
        two_means(values, k, sum / (double)k, low, high);
    }
}

static struct levels levels_of(const float *values, size_t k, unsigned bits)
{
    struct levels l = {.n = 1u << (bits - 1)};
    double low, high, step;

    range(values, k, bits, &low, &high);
    l.low = bf16_nearest((float)low);
    step = (high - (double)bf16_widen(l.low)) / (double)(l.n - 1);
    l.step = step > 0 ? bf16_nearest((float)step) : 0;
    while (!isfinite(level(&l, l.n - 1))) { /* rounded up beside the largest float */
        l.step--;
    }
    return l;
}

void hdt_sparse_values_encode(const float *values, size_t k, unsigned bits, uint8_t *dst,
                              float *decoded)
{
    struct hdt_bit_writer w = {.dst = dst};
    struct levels l;
    uint16_t head[2];
    double low, inv, top;

    if (bits == 16) {
        for (size_t i = 0; i < k; i++) {
            unsigned h = bf16_nearest(values[i]);

            hdt_bit_put(&w, h, 16);
            decoded[i] = bf16_widen(h);
        }
        return;
    }
    l = levels_of(values, k, bits);
    low = (double)bf16_widen(l.low);
    inv = l.step > 0 ? 1.0 / (double)bf16_widen(l.step) : 0;
    top = (double)(l.n - 1);
    head[0] = (uint16_t)l.low;
    head[1] = (uint16_t)l.step;
    memcpy(dst, head, HEAD);
    w.dst += HEAD;
    for (size_t i = 0; i < k; i++) {
        double at = (magnitude(values[i]) - low) * inv + 0.5;
        uint32_t sign = bits_of(values[i]) & 0x80000000u;
        unsigned c;

        at = at > top ? top : at;
        c = (unsigned)(int)(at > 0 ? at : 0);
        hdt_bit_put(&w, (sign >> (32 - bits)) | c, bits);
        decoded[i] = float_of(bits_of(level(&l, c)) | sign);
    }
    hdt_bit_end(&w);
}

enum hdt_status hdt_sparse_values_decode(const uint8_t *src, size_t k, unsigned bits, float *values,
                                         struct hdt_error *err)
{
    struct hdt_bit_reader r = {.src = src};
    struct levels l = {0};
    uint16_t head[2];

    if (bits < 16 && k > 0) {
        memcpy(head, src, HEAD);
        r.src += HEAD;
        l = (struct levels){.low = head[0], .step = head[1], .n = 1u << (bits - 1)};
        if (head[0] >> 15 || head[1] >> 15 || !isfinite(level(&l, l.n - 1))) {
            return hdt_error_set(err, HDT_EPROTO,
                                 "sparse block: its magnitudes are negative or not finite");
        }
    }
    for (size_t i = 0; i < k; i++) {
        unsigned code = hdt_bit_get(&r, bits);
        unsigned c = code & ((1u << (bits - 1)) - 1);

        if (bits == 16) {
            values[i] = bf16_widen(code);
            if (!isfinite(values[i])) {
                return hdt_error_set(err, HDT_EPROTO, "sparse block: a value is not finite");
            }
        } else {
            values[i] = code >> (bits - 1) ? -level(&l, c) : level(&l, c);
        }
    }
    return HDT_OK;
}
