/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/outer.h"

#include <math.h>

void hdt_outer_delta(const float *anchor, const float *w, float *delta, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        delta[i] = anchor[i] - w[i];
    }
}

void hdt_outer_add(double *sum, const float *delta, float share, bool first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sum[i] = (first ? 0.0 : sum[i]) + (double)share * (double)delta[i];
    }
}

bool hdt_outer_move(float *anchor, float *momentum, const double *sum, float lr, float mu, size_t n)
{
    bool finite = true;

    for (size_t i = 0; i < n; i++) {
        float d = (float)sum[i], m, g;

        m = (float)((double)mu * (double)momentum[i] + (double)d);
        g = (float)((double)mu * (double)m + (double)d);
        momentum[i] = m;
        anchor[i] = (float)((double)anchor[i] - (double)lr * (double)g);
        finite = finite && isfinite(anchor[i]);
    }
    return finite;
}
