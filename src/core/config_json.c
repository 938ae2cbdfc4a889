/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/config_json.h"

#include <errno.h>
#include <stdio.h>

enum hdt_status hdt_config_json_fail(const struct hdt_config_json *r, const char *key,
                                     const char *why)
{
    hdt_error_set(r->err, HDT_EINVAL, "cannot use the model: %s %s", key, why);
    hdt_error_where(r->err, "%s", r->where);
    return HDT_EINVAL;
}

enum hdt_status hdt_config_json_int(const struct hdt_config_json *r, const char *key, int64_t def,
                                    int64_t max, int64_t *out)
{
    const json_t *value = json_object_get(r->json, key);
    int64_t v = def;
    char why[96];

    if (value && !json_is_null(value)) {
        if (!json_is_integer(value)) {
            return hdt_config_json_fail(r, key, "must be an integer");
        }
        v = json_integer_value(value);
    } else if (def == 0) {
        return hdt_config_json_fail(r, key, "is missing");
    }
    if (v < 1 || v > max) {
        snprintf(why, sizeof(why), "is %lld, allowed are 1 to %lld", (long long)v, (long long)max);
        return hdt_config_json_fail(r, key, why);
    }
    *out = v;
    return HDT_OK;
}

enum hdt_status hdt_config_json_bool(const struct hdt_config_json *r, const char *key, bool def,
                                     bool *out)
{
    const json_t *value = json_object_get(r->json, key);

    if (value && !json_is_null(value) && !json_is_boolean(value)) {
        return hdt_config_json_fail(r, key, "must be true or false");
    }
    *out = value && !json_is_null(value) ? json_is_true(value) : def;
    return HDT_OK;
}

const char *hdt_config_json_type(const struct hdt_config_json *r, bool *is_architecture)
{
    const char *type = json_string_value(json_object_get(r->json, "model_type"));

    *is_architecture = !type;
    return type ? type
                : json_string_value(json_array_get(json_object_get(r->json, "architectures"), 0));
}

enum hdt_status hdt_config_json_load(const char *path, json_t **json, struct hdt_error *err)
{
    json_error_t json_err;
    FILE *file = fopen(path, "re");
    enum hdt_status status;

    if (!file) {
        status = errno == ENOENT ? HDT_ENOENT : HDT_EIO;
        return hdt_error_set_errno(err, status, errno, "cannot open the model '%s'", path);
    }
    *json = json_loadf(file, JSON_REJECT_DUPLICATES, &json_err);
    fclose(file);
    if (!*json) {
        hdt_error_set(err, HDT_EINVAL, "cannot read the model: %s", json_err.text);
        hdt_error_where(err, "%s:%d", path, json_err.line);
        return HDT_EINVAL;
    }
    return HDT_OK;
}
