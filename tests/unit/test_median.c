/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/median.h"

#include <criterion/criterion.h>

static double median_of(double a, double b, double c, double d, size_t n)
{
    double values[] = {a, b, c, d};

    return hdt_median(values, n);
}

Test(median, odd_even_and_none)
{
    cr_expect_eq(median_of(7, 0, 0, 0, 1), 7);
    cr_expect_eq(median_of(9, 2, 0, 0, 2), 5.5);
    cr_expect_eq(median_of(9, -1, 2, 0, 3), 2);
    cr_expect_eq(median_of(9, 2, 100, 4, 4), 6.5);
    cr_expect_eq(median_of(3, 3, 3, 1, 4), 3);
    cr_expect_eq(hdt_median(NULL, 0), 0);
}
