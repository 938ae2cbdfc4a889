/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public library over the client that the `hdt` command uses: contexts, errors, names. Numbers
 * that are inside and outside are equal, checked below.
 */
#include "config.h"

#include "src/lib/lib_impl.h"
#include "src/base/buf.h"
#include "src/base/tensor.h"
#include "src/net/gwclient.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 10000

HDT_STATIC_ASSERT((int)HDT_ERR_NONE == (int)HDT_OK, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_INVALID == (int)HDT_EINVAL, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_MEMORY == (int)HDT_ENOMEM, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_IO == (int)HDT_EIO, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_NOT_FOUND == (int)HDT_ENOENT, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_EXISTS == (int)HDT_EEXIST, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_ACCESS == (int)HDT_EACCES, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_NOT_SUPPORTED == (int)HDT_ENOTSUP, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_CANCELED == (int)HDT_ECANCELED, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_TIMEOUT == (int)HDT_ETIMEDOUT, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_PROTOCOL == (int)HDT_EPROTO, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_PEER == (int)HDT_EPEER, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_VERSION == (int)HDT_EVERSION, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_WORKER == (int)HDT_ERANK, "codes are statuses");
HDT_STATIC_ASSERT((int)HDT_ERR_JOB == (int)HDT_EJOB, "codes are statuses");

HDT_STATIC_ASSERT((int)HDT_TYPE_F32 == (int)HDT_DTYPE_F32, "types are dtypes");
HDT_STATIC_ASSERT((int)HDT_TYPE_BF16 == (int)HDT_DTYPE_BF16, "types are dtypes");
HDT_STATIC_ASSERT((int)HDT_TYPE_F16 == (int)HDT_DTYPE_F16, "types are dtypes");
HDT_STATIC_ASSERT((int)HDT_TYPE_F8E5M2 == (int)HDT_DTYPE_F8E5M2, "types are dtypes");
HDT_STATIC_ASSERT((int)HDT_DTYPE_COUNT == (int)HDT_TYPE_F8E5M2 + 1, "types are dtypes");

static const struct {
    enum hdt_err code;
    const char *text;
} texts[] = {
    {HDT_ERR_NONE, "no error"},
    {HDT_ERR_INVALID, "an argument, address or file is wrong"},
    {HDT_ERR_MEMORY, "memory or another resource is exhausted"},
    {HDT_ERR_IO, "a file or the operating system refused"},
    {HDT_ERR_NOT_FOUND, "not found"},
    {HDT_ERR_EXISTS, "exists already or is in use"},
    {HDT_ERR_ACCESS, "permission, certificate or role refused"},
    {HDT_ERR_NOT_SUPPORTED, "not supported here"},
    {HDT_ERR_CANCELED, "ended on request"},
    {HDT_ERR_TIMEOUT, "no progress before the deadline"},
    {HDT_ERR_PROTOCOL, "the other end broke the protocol"},
    {HDT_ERR_PEER, "the gateway is not there, is lost or refuses"},
    {HDT_ERR_VERSION, "versions do not fit"},
    {HDT_ERR_WORKER, "a worker, or another member's program, is lost"},
    {HDT_ERR_JOB, "the job has failed"},
};

/* What inside has a finer name is outside the loss of the gateway. */
static enum hdt_err code_of(enum hdt_status status)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if ((int)texts[i].code == (int)status) {
            return texts[i].code;
        }
    }
    return HDT_ERR_PEER;
}

enum hdt_err hdt_lib_failure(enum hdt_status status, const struct hdt_error *err,
                             struct hdt_error_info *error)
{
    enum hdt_err code = code_of(status);

    if (error) {
        error->code = code;
        snprintf(error->message, sizeof(error->message), "%s", err->msg);
        snprintf(error->where, sizeof(error->where), "%s", err->where);
        snprintf(error->hint, sizeof(error->hint), "%s", err->hint);
    }
    return code;
}

enum hdt_status hdt_lib_conf_read(const void *given, void *conf, size_t cap, const char *name,
                                  struct hdt_error *err)
{
    size_t size;

    memset(conf, 0, cap);
    if (!given) {
        return HDT_OK;
    }
    memcpy(&size, given, sizeof(size));
    if (size < sizeof(size)) {
        hdt_error_set(err, HDT_EINVAL, "cannot use a struct of which the size is not set");
        hdt_error_hint(err, "%s", name);
        return HDT_EINVAL;
    }
    memcpy(conf, given, size < cap ? size : cap);
    return HDT_OK;
}

static enum hdt_status options_read(const struct hdt_options *given, struct hdt_options *options,
                                    struct hdt_error *err)
{
    HDT_TRY(hdt_lib_conf_read(given, options, sizeof(*options),
                              "struct hdt_options options = HDT_OPTIONS_INIT;", err));
    if (options->timeout_ms < 0) {
        return hdt_error_set(err, HDT_EINVAL, "cannot wait for %d ms", options->timeout_ms);
    }
    if (options->timeout_ms == 0) {
        options->timeout_ms = DEFAULT_TIMEOUT_MS;
    }
    return HDT_OK;
}

#pragma GCC visibility push(default)

const char *hdt_version(void)
{
    return PACKAGE_VERSION;
}

int hdt_version_number(void)
{
    return HDT_VERSION_NUMBER;
}

size_t hdt_type_size(int type)
{
    return type >= 0 ? hdt_dtype_size((enum hdt_dtype)type) : 0;
}

const char *hdt_type_name(int type)
{
    if (type == HDT_TYPE_BYTES) {
        return "bytes";
    }
    return type > 0 ? hdt_dtype_name((enum hdt_dtype)type) : "?";
}

const char *hdt_strerror(int err)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if ((int)texts[i].code == err) {
            return texts[i].text;
        }
    }
    return "unknown error";
}

enum hdt_err hdt_open(const char *gateway, const struct hdt_options *given, struct hdt_ctx **ctx,
                      struct hdt_error_info *error)
{
    struct hdt_gwclient_conf conf = {.gateway = gateway, .name = "libhdt", .is_program = true};
    struct hdt_gwclient *client = NULL;
    struct hdt_options options;
    struct hdt_error err = {0};
    enum hdt_status status;

    *ctx = NULL;
    status = options_read(given, &options, &err);
    if (status == HDT_OK) {
        conf.ca = options.ca;
        conf.cert = options.cert;
        conf.key = options.key;
        conf.timeout_ms = options.timeout_ms;
        status = hdt_gwclient_open(&conf, &client, &err);
    }
    if (status != HDT_OK) {
        return hdt_lib_failure(status, &err, error);
    }
    *ctx = hdt_calloc(1, sizeof(**ctx));
    (*ctx)->client = client;
    (*ctx)->ca = options.ca ? hdt_strdup(options.ca) : NULL;
    (*ctx)->cert = options.cert ? hdt_strdup(options.cert) : NULL;
    (*ctx)->key = options.key ? hdt_strdup(options.key) : NULL;
    (*ctx)->timeout_ms = options.timeout_ms;
    return HDT_ERR_NONE;
}

void hdt_close(struct hdt_ctx *ctx)
{
    if (ctx) {
        hdt_gwclient_close(ctx->client);
        free(ctx->ca);
        free(ctx->cert);
        free(ctx->key);
        free(ctx);
    }
}

const char *hdt_site(const struct hdt_ctx *ctx)
{
    return hdt_gwclient_site(ctx->client);
}

enum hdt_err hdt_status(struct hdt_ctx *ctx, char **json, struct hdt_error_info *error)
{
    struct hdt_gwclient_request request = {
        .type = "status", .expect = "status.is", .timeout_ms = ctx->timeout_ms};
    struct hdt_error err = {0};
    enum hdt_status status;
    json_t *body;

    *json = NULL;
    status = hdt_gwclient_ask(ctx->client, &request, &body, &err);
    if (status != HDT_OK) {
        return hdt_lib_failure(status, &err, error);
    }
    *json = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!*json) {
        status = hdt_error_set(&err, HDT_ENOMEM, "cannot write the status as JSON: out of memory");
        return hdt_lib_failure(status, &err, error);
    }
    return HDT_ERR_NONE;
}

void hdt_free(void *memory)
{
    free(memory);
}

#pragma GCC visibility pop
