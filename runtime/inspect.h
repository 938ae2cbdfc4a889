/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_INSPECT_H
#define HDT_RUNTIME_INSPECT_H

/* What an operator may ask a worker about itself, besides its log: "doctor", "bundle.list",
 * "bundle.read". */
#include "src/base/error.h"

#include <jansson.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_worker_conf;

struct hdt_inspect_conf {
    const struct hdt_worker_conf *worker;
    const char *version;
    int threads;
    uint64_t memory_bytes;
    const char *checkpoint_dir; /* of the job that runs; NULL: none */
};

/* The answer's body for a request of this type; HDT_ENOTSUP: not one of these. */
enum hdt_status hdt_inspect_answer(const struct hdt_inspect_conf *conf, const char *type,
                                   const json_t *request, json_t **body, struct hdt_error *err);
/* Its type: "doctor.is"; NULL for a request that is not one of these. */
const char *hdt_inspect_answer_type(const char *type);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_INSPECT_H */
