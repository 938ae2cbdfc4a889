/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/worker_conf.h"
#include "src/base/log.h"

static const struct hdt_conf_row tls_rows[] = {
    HDT_CONF_PATH(struct hdt_worker_tls_conf, ca, "", "Certificate of the federation's authority."),
    HDT_CONF_PATH(struct hdt_worker_tls_conf, cert, "",
                  "This worker's certificate, from 'hdt ca issue worker SITE/NAME'."),
    HDT_CONF_PATH(struct hdt_worker_tls_conf, key, "", "Private key of that certificate."),
    HDT_CONF_END,
};

static const struct hdt_conf_row worker_rows[] = {
    HDT_CONF_STRING(struct hdt_worker_conf, name, "w0",
                    "Name of this worker, unique within its site."),
    HDT_CONF_STRING(struct hdt_worker_conf, gateway, "unix:/run/hdt/gateway.sock",
                    "The site's gateway: unix:PATH on the same machine (tensors then pass through "
                    "shared memory), else tls:HOST:PORT."),
    HDT_CONF_STRING(struct hdt_worker_conf, backend, "auto",
                    "Compute module, as cpu; auto takes the fastest one that runs here."),
    HDT_CONF_INT(struct hdt_worker_conf, threads, "0", 0, 1024,
                 "Threads of the CPU backend. 0: one for each core that this process may use."),
    HDT_CONF_INT(struct hdt_worker_conf, sm_limit, "0", 0, 1024,
                 "Multiprocessors of the GPU that the worker computes on, so that a fast device is "
                 "a slower one; rounded up to what the driver can part (Hopper: multiples of 8). "
                 "0: all."),
    HDT_CONF_BYTES(struct hdt_worker_conf, memory, "0", 0, 0,
                   "Memory for models, which the planner keeps to. 0: 80 % of what is free at "
                   "start."),
    HDT_CONF_PATH(struct hdt_worker_conf, data_dir, "/var/lib/hdt",
                  "Folder that relative data and checkpoint paths of jobs start from; the worker's "
                  "user must be able to write there."),
    HDT_CONF_PATH(struct hdt_worker_conf, state_dir, "/var/lib/hdt",
                  "Folder for device profiles and traces."),
    HDT_CONF_ENUM(struct hdt_worker_conf, log_level, "info", hdt_log_level_names,
                  "What is logged: life events with info, each object with debug, each operation "
                  "with trace."),
    HDT_CONF_SECTION(struct hdt_worker_conf, tls, tls_rows,
                     "Certificates, only for a gateway on another machine (tls:HOST:PORT)."),
    HDT_CONF_END,
};

const struct hdt_conf_schema hdt_worker_conf_schema = {
    .name = "worker",
    .help = "Settings of hdt-worker, one per accelerator node. Check them with 'hdt config check "
            "worker FILE'.",
    .rows = worker_rows,
    .size = sizeof(struct hdt_worker_conf),
};
