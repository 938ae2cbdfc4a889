/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_BACKEND_LOAD_H
#define HDT_RUNTIME_BACKEND_LOAD_H

/* Finding and loading backend modules. */
#include "runtime/backend.h"

struct hdt_buf;

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Load the module `backend_<name>.so` and check its ABI. Looked for, in this order: each folder of
 * $HDT_MODULE_PATH (colons between), the build tree the program was started from (so that nothing
 * need be installed to try a build), the package's library folder. *backend is constant and stays
 * valid until the process ends: modules are never unloaded, since their threads and thread-local
 * data may outlive any owner. May block on the disk. Any thread.
 *
 * HDT_EINVAL: the name is not of letters, digits and '_'. HDT_ENOENT: no such module; the message
 * names every path tried. HDT_ENOTSUP: it is there but cannot be loaded (a library that it needs is
 * missing). HDT_EVERSION: built for another ABI.
 */
enum hdt_status hdt_backend_load(const char *name, const struct hdt_backend **backend,
                                 struct hdt_error *err);

/* As hdt_backend_load for a file: no search. */
enum hdt_status hdt_backend_load_file(const char *path, const struct hdt_backend **backend,
                                      struct hdt_error *err);

/* Append the folders that hdt_backend_load looks in, in that order, each ended by '\0'. */
void hdt_backend_dirs(struct hdt_buf *dirs);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_BACKEND_LOAD_H */
