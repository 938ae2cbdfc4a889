/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_SHRINK_H
#define HDT_GATEWAY_SHRINK_H

/*
 * A job that recovers and whose worker does not come back: after recovery.wait it is planned over
 * the workers that are there (recovery.on_loss: shrink). Main thread.
 */
#include "gateway/coordinator.h"

/* Of a recovering job, every tick: look for a plan without those who are away, when it is time. */
void hdt_shrink_tick(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* A job begins to recover: is it plain already why it cannot do without those who are away? */
void hdt_shrink_judge(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* When that will be: a moment of the clock; 0: never (another setting, or it was in vain). */
int64_t hdt_shrink_due_us(const struct hdt_gwjob *job);

#endif /* HDT_GATEWAY_SHRINK_H */
