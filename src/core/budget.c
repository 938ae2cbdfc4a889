/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/budget.h"
#include "src/base/clock.h"
#include "src/core/gateway_conf.h"

#include <stdio.h>
#include <string.h>

#define MINUTES_PER_DAY 1440
#define EPOCH_WEEKDAY   3 /* 1970-01-01 was a Thursday; Monday is 0 */

static const char *const day_names[] = {"mon", "tue", "wed", "thu", "fri", "sat", "sun"};

static int day_read(const char *text, size_t len)
{
    for (int i = 0; i < 7; i++) {
        if (len == 3 && strncmp(text, day_names[i], 3) == 0) {
            return i;
        }
    }
    return -1;
}

/* "mon-fri,sun"; a range may pass Sunday. */
static bool days_read(const char *text, uint8_t *days)
{
    *days = 0;
    while (true) {
        const size_t len = strcspn(text, ",");
        const size_t begin_len = strcspn(text, ",-");
        const int first = day_read(text, begin_len);
        const int last =
            begin_len < len ? day_read(text + begin_len + 1, len - begin_len - 1) : first;

        if (first < 0 || last < 0) {
            return false;
        }
        for (int day = first;; day = (day + 1) % 7) {
            *days |= (uint8_t)(1u << day);
            if (day == last) {
                break;
            }
        }
        if (text[len] == '\0') {
            return true;
        }
        text += len + 1;
    }
}

/* "06:30" */
static bool minutes_read(const char *text, int *minutes)
{
    for (int i = 0; i < 5; i++) {
        if (i == 2 ? text[i] != ':' : text[i] < '0' || text[i] > '9') {
            return false;
        }
    }
    *minutes = ((text[0] - '0') * 10 + text[1] - '0') * 60 + (text[3] - '0') * 10 + text[4] - '0';
    if (text[3] > '5' || *minutes > MINUTES_PER_DAY) {
        return false;
    }
    *minutes %= MINUTES_PER_DAY; /* 24:00 */
    return true;
}

/* "22:00-06:00" */
static bool hours_read(const char *text, int *from_min, int *to_min)
{
    return strlen(text) == 11 && text[5] == '-' && minutes_read(text, from_min) &&
           minutes_read(text + 6, to_min);
}

enum hdt_status hdt_budget_parse(const struct hdt_gateway_budget_conf *conf,
                                 struct hdt_budget *budget, const char **field,
                                 struct hdt_error *err)
{
    *budget = (struct hdt_budget){
        .prio = conf->prio == 0 ? HDT_PRIO_COUNT : conf->prio,
        .rate_bits_per_s = conf->rate,
        .weight = (unsigned)conf->weight,
        .days = 0x7f,
    };
    *field = "peer";
    if (strlen(conf->peer) >= sizeof(budget->peer)) {
        return hdt_error_set(err, HDT_EINVAL, "'%s' is no site name", conf->peer);
    }
    snprintf(budget->peer, sizeof(budget->peer), "%s", conf->peer);
    *field = "job";
    if (strlen(conf->job) >= sizeof(budget->job)) {
        return hdt_error_set(err, HDT_EINVAL, "'%s' is no name of a job", conf->job);
    }
    snprintf(budget->job, sizeof(budget->job), "%s", conf->job);
    *field = "hours";
    if (conf->hours[0] != '\0' && !hours_read(conf->hours, &budget->from_min, &budget->to_min)) {
        hdt_error_set(err, HDT_EINVAL, "'%s' are no hours", conf->hours);
        hdt_error_hint(err, "write begin and end as 22:00-06:00, in UTC");
        return HDT_EINVAL;
    }
    *field = "days";
    if (conf->days[0] != '\0' && !days_read(conf->days, &budget->days)) {
        hdt_error_set(err, HDT_EINVAL, "'%s' are no days", conf->days);
        hdt_error_hint(err, "write days as mon-fri or sat,sun");
        return HDT_EINVAL;
    }
    *field = "rate";
    if (budget->rate_bits_per_s == 0 && budget->weight == 1) {
        hdt_error_set(err, HDT_EINVAL, "a budget without rate and weight changes nothing");
        hdt_error_hint(err, "give it a rate (200mbit), a weight (2), or remove it");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

bool hdt_budget_is_on(const struct hdt_budget *budget, int64_t wall_us)
{
    const int64_t minutes = wall_us / (60 * HDT_US_PER_S);
    const int minute = (int)(minutes % MINUTES_PER_DAY);
    int day = (int)((minutes / MINUTES_PER_DAY + EPOCH_WEEKDAY) % 7);

    if (budget->from_min < budget->to_min) {
        if (minute < budget->from_min || minute >= budget->to_min) {
            return false;
        }
    } else if (minute < budget->to_min) {
        day = (day + 6) % 7; /* it began yesterday */
    } else if (minute < budget->from_min) {
        return false;
    }
    return (budget->days >> day & 1) != 0;
}

bool hdt_budget_fits(const struct hdt_budget *budget, const char *peer, const char *job,
                     enum hdt_prio prio)
{
    return prio != HDT_PRIO_CONTROL &&
           (budget->peer[0] == '\0' || strcmp(budget->peer, peer) == 0) &&
           (budget->job[0] == '\0' || strcmp(budget->job, job) == 0) &&
           (budget->prio == HDT_PRIO_COUNT || budget->prio == (int)prio);
}
