/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled without contraction, and once for all instruction sets: the optimizer is bound by
 * memory, which the smallest set keeps busy.
 */
#include "config.h"

#include "runtime/adamw.h"
#include "runtime/cpu/cpu_kernels.h"

void hdt_cpu_adamw(const struct hdt_adamw *p, const float *g, size_t len, float *restrict w,
                   float *restrict m, float *restrict v)
{
    const struct hdt_adamw_numbers k = hdt_adamw_prepare(p);

    for (size_t i = 0; i < len; i++) {
        const float gi = g[i] * k.grad_scale;
        const float mi = k.beta1 * m[i] + k.m_new * gi;
        const float vi = k.beta2 * v[i] + k.v_new * gi * gi;

        m[i] = mi;
        v[i] = vi;
        w[i] = w[i] * k.keep - k.m_rate * mi / (sqrtf(vi) * k.v_unbias + k.eps);
    }
}
