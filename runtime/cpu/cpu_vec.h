/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CPU_CPU_VEC_H
#define HDT_RUNTIME_CPU_CPU_VEC_H

/*
 * Eight floats at a time by the compiler's vector types, which it lowers to what the target has
 * (one AVX register, two SSE or NEON ones). Written out rather than left to the auto-vectorizer
 * because a sum's order is part of the result: lane i holds elements i, i + 8, ..., and lanes are
 * added in the order of vec_sum. A row's tail is read into a vector padded with a value that
 * changes nothing.
 */
#include <stdint.h>
#include <string.h>

/* Vectors are passed by value only between functions that are inlined, so that it does not matter
 * in which registers another compiler flag would pass them. */
#pragma GCC diagnostic ignored "-Wpsabi"

#define VEC_LEN    8
#define VEC_INLINE static inline __attribute__((always_inline))

typedef float vec_f32 __attribute__((vector_size(4 * VEC_LEN)));
typedef int32_t vec_i32 __attribute__((vector_size(4 * VEC_LEN)));

VEC_INLINE vec_f32 vec_set(float x)
{
    return x - (vec_f32){0};
}

VEC_INLINE vec_f32 vec_load(const float *p)
{
    vec_f32 x;

    memcpy(&x, p, sizeof(x));
    return x;
}

VEC_INLINE void vec_store(float *p, vec_f32 x)
{
    memcpy(p, &x, sizeof(x));
}

/* The first n of VEC_LEN values; the others are `pad`. */
VEC_INLINE vec_f32 vec_get(const float *p, int n, float pad)
{
    float part[VEC_LEN];

    if (n >= VEC_LEN) {
        return vec_load(p);
    }
    for (int i = 0; i < VEC_LEN; i++) {
        part[i] = i < n ? p[i] : pad;
    }
    return vec_load(part);
}

VEC_INLINE void vec_put(float *p, int n, vec_f32 x)
{
    if (n >= VEC_LEN) {
        vec_store(p, x);
        return;
    }
    for (int i = 0; i < n; i++) {
        p[i] = x[i];
    }
}

/* x where mask is all ones, y where it is zero. */
VEC_INLINE vec_f32 vec_select(vec_i32 mask, vec_f32 x, vec_f32 y)
{
    return (vec_f32)(((vec_i32)x & mask) | ((vec_i32)y & ~mask));
}

VEC_INLINE vec_f32 vec_max(vec_f32 x, vec_f32 y)
{
    return vec_select(x > y, x, y);
}

VEC_INLINE vec_f32 vec_min(vec_f32 x, vec_f32 y)
{
    return vec_select(x < y, x, y);
}

VEC_INLINE float vec_sum(vec_f32 x)
{
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

VEC_INLINE float vec_largest(vec_f32 x)
{
    float max = x[0];

    for (int i = 1; i < VEC_LEN; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

/*
 * e^x to 1.5 units in the last place for -87 <= x <= 88; beyond, the value at the bound, which is
 * what a softmax needs. x = n ln 2 + r with |r| <= ln 2 / 2, e^r by a polynomial of degree 6 (the
 * Taylor series with coefficients moved a little to level the error), 2^n put into the exponent.
 * A NaN comes out as a NaN: the bound is checked so that a comparison with NaN keeps it.
 */
VEC_INLINE vec_f32 vec_exp(vec_f32 x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vec_f32 t, n, r, p;
    vec_i32 exponent;

    x = vec_select(x < -87.0f, vec_set(-87.0f), x);
    x = vec_select(x > 88.0f, vec_set(88.0f), x);
    t = x * 1.44269504f + round;
    n = t - round;
    exponent = ((vec_i32)t - 0x4b400000) << 23;
    r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (vec_f32)((vec_i32)p + exponent);
}

#endif /* HDT_RUNTIME_CPU_CPU_VEC_H */
