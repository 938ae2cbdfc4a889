/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_WORKER_CONF_H
#define HDT_CORE_WORKER_CONF_H

/* Settings of hdt-worker (worker.yaml). Defaults in brackets. */
#include "src/base/conf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_worker_tls_conf { /* only for a gateway on another host */
    char *ca;                /* PATH [""] */
    char *cert;              /* PATH [""]: role worker */
    char *key;               /* PATH [""] */
};

struct hdt_worker_conf {
    char *name;       /* STRING ["w0"]: unique within its site */
    char *gateway;    /* STRING ["unix:/run/hdt/gateway.sock"]: "unix:PATH" or "tls:host:port" */
    char *backend;    /* STRING ["auto"]: module name; auto = fastest present */
    int64_t threads;  /* INT [0] 0..1024: CPU backend threads; 0 = as many as cores allowed */
    int64_t sm_limit; /* INT [0] 0..1024: multiprocessors of a GPU to use; 0 = all */
    uint64_t memory;  /* BYTES ["0"]: memory for models; 0 = 80 % of what is free at start */
    char *
        data_dir; /* PATH ["/var/lib/hdt"]: relative data and checkpoint paths of jobs start here */
    char *state_dir; /* PATH ["/var/lib/hdt"]: profiles and traces */
    int log_level;   /* ENUM hdt_log_level_names [info] */
    struct hdt_worker_tls_conf tls;
};

extern const struct hdt_conf_schema hdt_worker_conf_schema; /* name "worker" */

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_WORKER_CONF_H */
