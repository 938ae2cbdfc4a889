/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_LIB_LIB_IMPL_H
#define HDT_LIB_LIB_IMPL_H

/* What the files of the library share. Two worlds of names meet here: inside, enum hdt_status and
 * struct hdt_error may change with every release; outside, enum hdt_err and struct hdt_error_info
 * may not. */
#include "src/hdt.h"
#include "src/base/error.h"

struct hdt_gwclient;

struct hdt_ctx {
    struct hdt_gwclient *client;
    int timeout_ms;
    char *ca, *cert, *key; /* NULL: none */
};

/* The outer code of a failure, and its words into *error, which may be NULL. */
enum hdt_err hdt_lib_failure(enum hdt_status status, const struct hdt_error *err,
                             struct hdt_error_info *error);

/* Copy a struct that the caller filled, of which it knows `*given` bytes (its first member), into
 * one of `cap` bytes; what it does not know is zero. NULL: all is. HDT_EINVAL: the size is not set;
 * `name` says how to. */
enum hdt_status hdt_lib_conf_read(const void *given, void *conf, size_t cap, const char *name,
                                  struct hdt_error *err);

#endif /* HDT_LIB_LIB_IMPL_H */
