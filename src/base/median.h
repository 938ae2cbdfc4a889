/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_MEDIAN_H
#define HDT_BASE_MEDIAN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Median of n numbers, of an even count the mean of the middle two; sorts them. 0: there are none.
 */
double hdt_median(double *values, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_MEDIAN_H */
