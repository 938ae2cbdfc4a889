/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/args.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

int hdt_args_int(const char *text, int min)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < min || value > INT_MAX) {
        fprintf(stderr, "'%s' is not a whole number of at least %d\n", text, min);
        exit(2);
    }
    return (int)value;
}

double hdt_args_double(const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0') {
        fprintf(stderr, "'%s' is not a number\n", text);
        exit(2);
    }
    return value;
}
