/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_BUDGET_USE_H
#define HDT_GATEWAY_BUDGET_USE_H

/*
 * Budgets: how much of the WAN a class or a job may take, at which hours, and its share beside
 * others of its class. All of the budgets that fit what is to be sent count together: none of their
 * caps is passed, and weights are multiplied. What is held back waits where it does not stand
 * before others, and keeps its order. Control tensors are under no budget: a step that waits for a
 * few bytes would waste what it was to save.
 *
 * Plain figures: clocks are given. The data plane's lock guards a struct hdt_budgets.
 */
#include "gateway/bucket.h"
#include "src/core/budget.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_BUDGETS_MAX    32   /* a bit each */
#define HDT_BUDGET_BURST_S 0.02 /* of a cap, that may pass at once: a round of the scheduler */

struct hdt_budget_use {
    struct hdt_bucket bucket;
    bool is_on;
    uint64_t sent_bytes;   /* on the wire, while it was on */
    int64_t held_us;       /* for which something waited for its cap */
    int64_t held_since_us; /* 0: nothing waits */
    int64_t held_until_us; /* of what waits: its turn */
};

struct hdt_budgets {
    const struct hdt_budget *all; /* owned by who opened the data plane */
    struct hdt_budget_use uses[HDT_BUDGETS_MAX];
    unsigned n;
    int64_t looked_us;     /* when it was last seen which are on */
    int64_t held_until_us; /* the first of what the last search for work found held may go on; 0:
                              nothing is held */
};

/* Which are on; looks again once a second. To be called before those below. */
void hdt_budgets_look(struct hdt_budgets *budgets, int64_t now_us, int64_t wall_us);

/* Bit i: budget i fits, whether it is on or not. None fits HDT_PRIO_CONTROL. */
uint32_t hdt_budgets_of(const struct hdt_budgets *budgets, const char *peer, const char *job,
                        enum hdt_prio prio);

/* May something pass under these? Else it is held, which is noted. */
bool hdt_budgets_allow(struct hdt_budgets *budgets, uint32_t fit, double least_burst,
                       int64_t now_us);
void hdt_budgets_spend(struct hdt_budgets *budgets, uint32_t fit, size_t len);
/* Of those that are on. */
unsigned hdt_budgets_weight(const struct hdt_budgets *budgets, uint32_t fit);
/* The lowest cap of those that are on, bits a second; 0: none. */
uint64_t hdt_budgets_cap(const struct hdt_budgets *budgets, uint32_t fit);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_BUDGET_USE_H */
