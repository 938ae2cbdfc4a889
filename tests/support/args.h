/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_ARGS_H
#define HDT_TESTS_SUPPORT_ARGS_H

/* Numbers on the command line of test programs: a bad one ends the program with status 2. */

#ifdef __cplusplus
extern "C" {
#endif

/* A whole number of at least `min`. */
int hdt_args_int(const char *text, int min);

double hdt_args_double(const char *text);

#ifdef __cplusplus
}
#endif
#endif /* HDT_TESTS_SUPPORT_ARGS_H */
