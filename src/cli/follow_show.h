/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_FOLLOW_SHOW_H
#define HDT_CLI_FOLLOW_SHOW_H

/*
 * What a person reads of a job that is followed: one live line on a terminal, which is written
 * over, and lasting lines for what changes. Elsewhere than on a terminal each is a line, of steps
 * the first HDT_FOLLOW_STEPS and then one in HDT_FOLLOW_STEP_US, so that a job of a million steps
 * does not fill a disk; the step that another line follows is shown before it.
 */
#include "src/cli/follow.h"
#include "src/base/clock.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_FOLLOW_STEPS   1000
#define HDT_FOLLOW_STEP_US (10 * HDT_US_PER_S)

/* Take the live line away, so that something else can be printed. */
void hdt_follow_show_clear(struct hdt_follow *f);

/* A lasting line. */
__attribute__((format(printf, 2, 3))) void hdt_follow_show(struct hdt_follow *f, const char *fmt,
                                                           ...);
/* The live line. */
__attribute__((format(printf, 2, 3))) void hdt_follow_show_live(struct hdt_follow *f,
                                                                const char *fmt, ...);

/* Events; the state's when it is another one, or waits for others than before. */
void hdt_follow_show_step(struct hdt_follow *f, const json_t *body);
void hdt_follow_show_state(struct hdt_follow *f, const json_t *body);
void hdt_follow_show_replan(struct hdt_follow *f, const json_t *body);
void hdt_follow_show_restart(struct hdt_follow *f, const json_t *body);

/* The event "waiting": no step for some seconds; which rank waits for which. The live line, and
 * elsewhere a line in half a minute. */
void hdt_follow_show_rank_wait(struct hdt_follow *f, const json_t *body);

/* Nothing came for a while: say what the job does. Often on a terminal, once a minute elsewhere. */
void hdt_follow_show_waiting(struct hdt_follow *f, int64_t now_us);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_FOLLOW_SHOW_H */
