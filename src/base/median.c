/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/median.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double hdt_median(double *values, size_t n)
{
    if (n == 0) {
        return 0;
    }
    qsort(values, n, sizeof(values[0]), by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}
