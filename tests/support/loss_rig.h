/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_LOSS_RIG_H
#define TESTS_SUPPORT_LOSS_RIG_H

/* Workers of the control rig that go, come and answer, and time that passes for them. */
#include "tests/support/control_rig.h"

/* a/w0's connection ends; it joins. */
void hdt_loss_own_worker_goes(void);
void hdt_loss_own_worker_comes(const char *instance, uint32_t job, int epoch);
/* What site b says of its worker. */
void hdt_loss_other_worker_is(bool up, const char *instance);
void hdt_loss_tick(void);
/* Let `us` pass for those who are away. */
void hdt_loss_pass(int64_t us);
/* Answer the order `type` that went to `to` ("1": a/w0, "b": b/w0); false: none did. */
bool hdt_loss_answer(const char *to, const char *type, const char *with, json_t *body);
bool hdt_loss_answer_released(const char *to);
bool hdt_loss_answer_ready_at(const char *to, int step);
bool hdt_loss_answer_started(const char *to, bool held);
bool hdt_loss_answer_refused(const char *to, enum hdt_status status);
/* Of the job in its epoch; body is stolen. */
json_t *hdt_loss_report(const char *type, const struct hdt_gwjob *job, json_t *body);
void hdt_loss_report_step(const struct hdt_gwjob *job, int step);
void hdt_loss_report_checkpoint(const struct hdt_gwjob *job, int step, const char *path);
void hdt_loss_report_failed(const struct hdt_gwjob *job, enum hdt_status status);
/* The job runs; nothing that was sent so far is of interest. */
struct hdt_gwjob *hdt_loss_running(void);
void hdt_loss_stop_job(void);

#endif /* TESTS_SUPPORT_LOSS_RIG_H */
