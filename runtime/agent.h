/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_AGENT_H
#define HDT_RUNTIME_AGENT_H

/* The worker's main loop: takes the gateway's messages from the port's thread and acts on them. */
#include "runtime/backend.h"
#include "src/core/worker_conf.h"

#include <openssl/ssl.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_agent;

struct hdt_agent_conf {
    const struct hdt_worker_conf *worker;
    const struct hdt_backend *backend;
    struct hdt_device *device;
    uint64_t memory_bytes;   /* that jobs may use */
    struct hdt_tls_ctx *tls; /* for "tls:", else NULL */
    const char *version;     /* of the build */
};

/* Connect (in the background) and be ready to run. What conf points to outlives the agent. */
enum hdt_status hdt_agent_new(const struct hdt_agent_conf *conf, struct hdt_agent **agent,
                              struct hdt_error *err);

/* Serve until hdt_agent_stop. Ends the process, with a message, when a job that is over does not
 * come back from its device (hdt_runner_end). */
void hdt_agent_run(struct hdt_agent *agent);

/* End hdt_agent_run soon. Any thread. */
void hdt_agent_stop(struct hdt_agent *agent);

/* Ends a running job (its coordinator is told), closes the connection. */
void hdt_agent_free(struct hdt_agent *agent);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_AGENT_H */
