/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_WORKER_RUN_H
#define HDT_CLI_WORKER_RUN_H

/*
 * `hdt` does no arithmetic on models: it runs hdt-worker in its stand-alone mode (--task), which
 * has the compute modules. The program is taken from beside `hdt`, else from PATH.
 */
#include "src/base/error.h"

struct hdt_buf;

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments for the worker: an array that ends in NULL, grown by add. Zero-initialise. */
struct hdt_worker_args {
    char **items;
    int n;
};
/* Append an option, and its value unless that is NULL; copies both. */
void hdt_worker_args_add(struct hdt_worker_args *args, const char *option, const char *value);
void hdt_worker_args_release(struct hdt_worker_args *args);

/* Run the worker and wait for it. `out` NULL: it writes to our standard output; else what it
 * writes is appended to `out`. *exit_code is its own. HDT_ENOENT: no such program; HDT_EIO. */
enum hdt_status hdt_worker_run(struct hdt_worker_args *args, struct hdt_buf *out, int *exit_code,
                               struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_WORKER_RUN_H */
