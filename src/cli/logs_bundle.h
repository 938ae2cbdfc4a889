/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LOGS_BUNDLE_H
#define HDT_CLI_LOGS_BUNDLE_H

/*
 * `hdt logs --bundle`: what every gateway and worker that can be reached says of itself, in one
 * archive for a bug report. Who could not be asked, and why, stands in its MANIFEST.
 */
#include "src/net/gwclient.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_logs_bundle_conf {
    const char *file;
    json_int_t job; /* number; 0: none */
    bool traces;    /* of that job */
    bool force;     /* replace `file` */
};

/* HDT_EEXIST: `file` is there, and not to be replaced. Before a gateway is asked. */
enum hdt_status hdt_logs_bundle_check(const struct hdt_logs_bundle_conf *conf,
                                      struct hdt_error *err);

/* Collect and write. *n_missing: what is not in it. HDT_EIO: the archive could not be written;
 * nothing is left behind then; HDT_EEXIST: as above, it came meanwhile. Each question has a
 * deadline; after one that is not answered in time a place is not asked any more. */
enum hdt_status hdt_logs_bundle_make(struct hdt_gwclient *client,
                                     const struct hdt_logs_bundle_conf *conf, int *n_missing,
                                     struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LOGS_BUNDLE_H */
