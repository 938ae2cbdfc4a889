/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CONFIG_JSON_H
#define HDT_CORE_CONFIG_JSON_H

/*
 * Fields of a model's config.json, as Hugging Face writes it: what a model that is trained
 * (model.h) and one that is only predicted (model_shape.h) read alike. Failures of fields are
 * HDT_EINVAL and name the key and where it was read. Any thread.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_config_json {
    const json_t *json;
    const char *where; /* file or source, for messages */
    struct hdt_error *err;
};

/* "cannot use the model: KEY WHY" */
enum hdt_status hdt_config_json_fail(const struct hdt_config_json *r, const char *key,
                                     const char *why);

/* An integer from 1 to max. Absent or null it is `def`; 0: it must be there. */
enum hdt_status hdt_config_json_int(const struct hdt_config_json *r, const char *key, int64_t def,
                                    int64_t max, int64_t *out);

/* Absent or null it is `def`. */
enum hdt_status hdt_config_json_bool(const struct hdt_config_json *r, const char *key, bool def,
                                     bool *out);

/* "model_type", or where it is missing the first of "architectures"; NULL where both are.
 * *is_architecture tells which. */
const char *hdt_config_json_type(const struct hdt_config_json *r, bool *is_architecture);

/* Read a file; new reference. HDT_ENOENT and HDT_EIO: it cannot be opened; HDT_EINVAL: it is no
 * JSON, with file:line. */
enum hdt_status hdt_config_json_load(const char *path, json_t **json, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CONFIG_JSON_H */
