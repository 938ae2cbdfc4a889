/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_ADAMW_H
#define HDT_RUNTIME_ADAMW_H

/*
 * AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2, with the
 * decay scaled by the learning rate) as every backend computes it, to the last bit: copies of one
 * matrix that two devices update from equal gradients (an embedding tied to the head) stay equal.
 * With every operation rounded to float32 by itself, none contracted:
 *
 *     g' = g * grad_scale
 *     m  = beta1 * m + m_new * g'
 *     v  = beta2 * v + (v_new * g') * g'
 *     w  = w * keep - (m_rate * m) / (sqrt(v) * v_unbias + eps)
 */
#include "runtime/backend.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What does not depend on the element. */
struct hdt_adamw_numbers {
    float beta1;
    float beta2;
    float m_new; /* 1 - beta1 */
    float v_new; /* 1 - beta2 */
    float eps;
    float grad_scale;
    float keep;     /* 1 - lr * weight_decay */
    float m_rate;   /* lr / (1 - beta1^step) */
    float v_unbias; /* 1 / sqrt(1 - beta2^step) */
};

/* x^n, n >= 0, by squaring: products alone, so that it is the same with every C library. */
static inline double hdt_adamw_power(double x, int64_t n)
{
    double power = 1;

    for (; n > 0; n /= 2) {
        power = n % 2 ? power * x : power;
        x *= x;
    }
    return power;
}

/* In float64, rounded once. The product of two floats is exact there, so that it does not matter
 * whether a compiler contracts it with the difference. */
static inline struct hdt_adamw_numbers hdt_adamw_prepare(const struct hdt_adamw *p)
{
    const double beta1_left = 1.0 - hdt_adamw_power((double)p->beta1, p->step);
    const double beta2_left = 1.0 - hdt_adamw_power((double)p->beta2, p->step);
    struct hdt_adamw_numbers numbers;

    numbers.beta1 = p->beta1;
    numbers.beta2 = p->beta2;
    numbers.m_new = 1.0f - p->beta1;
    numbers.v_new = 1.0f - p->beta2;
    numbers.eps = p->eps;
    numbers.grad_scale = p->grad_scale;
    numbers.keep = (float)(1.0 - (double)p->lr * (double)p->weight_decay);
    numbers.m_rate = (float)((double)p->lr / beta1_left);
    numbers.v_unbias = (float)(1.0 / sqrt(beta2_left));
    return numbers;
}

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_ADAMW_H */
