/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_FAKE_DATAPLANE_H
#define TESTS_SUPPORT_FAKE_DATAPLANE_H

/* A data plane without sockets: what the control plane sends is kept, what comes is played by the
 * test. Linked instead of the real one. */
#include "gateway/dataplane.h"

/* The oldest message sent to this peer (site) or client that has type `type`; taken out of the
 * list; NULL when there is none. New reference. */
json_t *hdt_fake_dataplane_take(const char *to, const char *type);
/* From now on sending to this peer or client ends so (HDT_OK: it does not fail any more). */
void hdt_fake_dataplane_fail(const char *to, enum hdt_status status);
size_t hdt_fake_dataplane_n_flows(void);
size_t hdt_fake_dataplane_n_jobs_closed(void);
size_t hdt_fake_dataplane_n_rechecks(void);
size_t hdt_fake_dataplane_n_probes(void);
/* The only peer that there are figures of, until the next reset. */
void hdt_fake_dataplane_set_peer(const struct hdt_peer_stats *peer);
void hdt_fake_dataplane_reset(void);

#endif /* TESTS_SUPPORT_FAKE_DATAPLANE_H */
