/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_CONTROL_RIG_H
#define TESTS_SUPPORT_CONTROL_RIG_H

/* The control plane of site "a" over the data plane without sockets: worker a/w0 and an operator
 * are its clients, site "b" with worker b/w0 is its peer. */
#include "gateway/coordinator.h"
#include "tests/support/fake_dataplane.h"

enum { HDT_CTL_WORKER = 1, HDT_CTL_OPERATOR = 2 }; /* client numbers */

extern struct hdt_gateway hdt_ctl_gw;

void hdt_ctl_setup(void);
void hdt_ctl_teardown(void);
void hdt_ctl_gateway_open(void);
void hdt_ctl_gateway_close(void);
/* Close and open: what was sent before is forgotten, the store is not. */
void hdt_ctl_gateway_restart(void);
/* A session with that site comes up; it names its worker w0. */
void hdt_ctl_peer_up(const char *site);

/* Let `us` pass for sites and workers that are away. */
void hdt_ctl_pass(int64_t us);
/* Of a worker that takes so long for a block forward, and twice as long back. */
struct hdt_profile hdt_ctl_profile(double block_fwd_s);

/* Messages that come in; released. */
void hdt_ctl_from_client(uint64_t client, json_t *msg);
void hdt_ctl_from_peer(const char *site, const char *from, json_t *msg);
json_t *hdt_ctl_with_id(json_t *msg, int id);

/* The error status that was sent to `to`, "" when none was. */
const char *hdt_ctl_error_to(const char *to);
/* Among the events that the operator was told since is this state. */
void hdt_ctl_expect_state(const char *state);

/* A job of two stages, on a/w0 and b/w0. */
json_t *hdt_ctl_submit_msg(void);
uint32_t hdt_ctl_submit(void);
/* Answer the "assign" that went to `to` as the worker `from` would. */
void hdt_ctl_answer_ready(const char *to, const char *from);
/* Submit it, and let both be ready. */
struct hdt_gwjob *hdt_ctl_run(void);
/* Body with job and epoch 1. */
json_t *hdt_ctl_job_msg(const char *type, uint32_t job);
void hdt_ctl_rank_done(uint32_t job, int rank);

#endif /* TESTS_SUPPORT_CONTROL_RIG_H */
