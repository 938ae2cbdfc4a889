/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_BUDGET_H
#define HDT_CORE_BUDGET_H

/* A budget of the WAN as the settings of a gateway give it: for whom, how much, when. */
#include "src/base/error.h"
#include "src/core/frame.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_BUDGET_NAME_CAP 64

struct hdt_budget {
    char peer[HDT_BUDGET_NAME_CAP]; /* "": all */
    char job[HDT_BUDGET_NAME_CAP];  /* name of a job or channel; "": all */
    int prio;                       /* enum hdt_prio; HDT_PRIO_COUNT: all */
    uint64_t rate_bits_per_s;       /* 0: no cap */
    unsigned weight;                /* at least 1 */
    uint8_t days;                   /* bit 0: Monday ... bit 6: Sunday, on which its hours begin */
    int from_min, to_min;           /* minutes after midnight UTC; equal: a whole day */
};

struct hdt_gateway_budget_conf;

/* From its settings. HDT_EINVAL; *field is then the setting that is wrong. */
enum hdt_status hdt_budget_parse(const struct hdt_gateway_budget_conf *conf,
                                 struct hdt_budget *budget, const char **field,
                                 struct hdt_error *err);

bool hdt_budget_is_on(const struct hdt_budget *budget, int64_t wall_us);

/* HDT_PRIO_CONTROL is under none. */
bool hdt_budget_fits(const struct hdt_budget *budget, const char *peer, const char *job,
                     enum hdt_prio prio);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_BUDGET_H */
