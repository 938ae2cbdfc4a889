/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The self-test of a backend (runtime/selftest/selftest.h), as a program of its own:
 *
 *     backend_ops [--large] [--threads N] [NAME]       the module's name; default cpu
 *
 * Exit status: 0 all right, 1 a miss, 2 wrong usage, 77 the backend or its device is not here.
 */
#include "config.h"

#include "runtime/selftest/selftest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole number of 1 .. 1024; 0 for anything else. */
static int threads_parse(const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);

    return *end == '\0' && n >= 1 && n <= 1024 ? (int)n : 0;
}

int main(int argc, char **argv)
{
    const char *name = "cpu";
    bool with_large = false;
    int n_threads = 2;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--large") == 0) {
            with_large = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            n_threads = threads_parse(argv[++i]);
        } else if (argv[i][0] != '-') {
            name = argv[i];
        } else {
            n_threads = 0;
        }
    }
    if (n_threads == 0) {
        fprintf(stderr, "usage: backend_ops [--large] [--threads 1..1024] [NAME]\n");
        return 2;
    }
    return hdt_selftest_run(name, &(struct hdt_selftest_conf){.device = {.n_threads = n_threads},
                                                              .with_large = with_large});
}
