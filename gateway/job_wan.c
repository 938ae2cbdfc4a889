/* SPDX-License-Identifier: Apache-2.0 */
/* What a job sent over the WAN: each gateway counts for itself and says its sums every second. They
 * begin at zero when the gateway is restarted and with each epoch; what was counted before is kept
 * here, and in the job's record for a restart of this gateway. */
#include "config.h"

#include "gateway/coordinator.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <string.h>

#define WAN_RATE_WINDOW_US 900000 /* gateways report every second */
#define SAVE_EVERY_US      (30 * HDT_US_PER_S)
#define COUNT_MAX          ((int64_t)1 << 60)

/* A count of another program: bounded, so that sums of them are. */
static int64_t body_count(const json_t *body, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(body, key));

    return n < 0 ? 0 : n > COUNT_MAX ? COUNT_MAX : n;
}

static int64_t sum_capped(int64_t a, int64_t b)
{
    return a > COUNT_MAX - b ? COUNT_MAX : a + b;
}

static struct hdt_gwjob_wan *wan_of(struct hdt_gwjob *job, const char *site)
{
    struct hdt_gwjob_wan *wan;

    for (size_t i = 0; i < job->n_wan; i++) {
        if (strcmp(job->wan[i].site, site) == 0) {
            return &job->wan[i];
        }
    }
    job->wan = hdt_realloc(job->wan, (job->n_wan + 1) * sizeof(*wan));
    wan = &job->wan[job->n_wan++];
    memset(wan, 0, sizeof(*wan));
    snprintf(wan->site, sizeof(wan->site), "%s", site);
    return wan;
}

/* The counter of these sums; another one begins at zero. */
static void counter_name(const json_t *body, char name[HDT_GWJOB_COUNTER_CAP])
{
    const char *instance = json_string_value(json_object_get(body, "instance"));

    snprintf(name, HDT_GWJOB_COUNTER_CAP, "%.16s-%lld", instance ? instance : "",
             (long long)json_integer_value(json_object_get(body, "epoch")));
}

static void wan_rate(struct hdt_gwjob *job)
{
    int64_t now_us = hdt_clock_now_us(), raw, sent;

    if (now_us - job->wan_rate_us < WAN_RATE_WINDOW_US) {
        return;
    }
    hdt_gwjob_wan_totals(job, &raw, &sent);
    if (job->wan_rate_us && sent >= job->wan_rate_sent) {
        job->wan_bits_per_s =
            8e6 * (double)(sent - job->wan_rate_sent) / (double)(now_us - job->wan_rate_us);
    }
    job->wan_rate_us = now_us;
    job->wan_rate_sent = sent;
}

void hdt_gwjob_take_wan(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *site,
                        const json_t *body)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_gwjob_wan *wan = wan_of(job, site);
    int64_t raw = body_count(body, "raw"), sent = body_count(body, "sent");
    char counter[HDT_GWJOB_COUNTER_CAP];

    counter_name(body, counter);
    if (strcmp(counter, wan->counter) != 0 || raw < wan->raw || sent < wan->sent) {
        wan->raw_before = sum_capped(wan->raw_before, wan->raw);
        wan->sent_before = sum_capped(wan->sent_before, wan->sent);
        snprintf(wan->counter, sizeof(wan->counter), "%s", counter);
    }
    wan->raw = raw;
    wan->sent = sent;
    wan_rate(job);
    if (!job->wan_saved_us || now_us - job->wan_saved_us > SAVE_EVERY_US) {
        if (job->wan_saved_us) {
            hdt_gwjob_save(gw, job);
        }
        job->wan_saved_us = now_us;
    }
}

void hdt_gwjob_wan_totals(const struct hdt_gwjob *job, int64_t *raw, int64_t *sent)
{
    *raw = 0;
    *sent = 0;
    for (size_t i = 0; i < job->n_wan; i++) {
        const struct hdt_gwjob_wan *wan = &job->wan[i];

        *raw = sum_capped(*raw, sum_capped(wan->raw_before, wan->raw));
        *sent = sum_capped(*sent, sum_capped(wan->sent_before, wan->sent));
    }
}

/* ---- over a restart of this gateway ---- */

json_t *hdt_gwjob_wan_json(const struct hdt_gwjob *job)
{
    json_t *array = json_array();

    for (size_t i = 0; i < job->n_wan; i++) {
        const struct hdt_gwjob_wan *wan = &job->wan[i];

        json_array_append_new(array, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "site", wan->site,
                                               "counter", wan->counter, "raw", (json_int_t)wan->raw,
                                               "sent", (json_int_t)wan->sent, "raw_before",
                                               (json_int_t)wan->raw_before, "sent_before",
                                               (json_int_t)wan->sent_before));
    }
    return array;
}

void hdt_gwjob_wan_load(struct hdt_gwjob *job, const json_t *record)
{
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(record, "wan"), i, item)
    {
        const char *site = json_string_value(json_object_get(item, "site"));
        const char *counter = json_string_value(json_object_get(item, "counter"));

        if (site && counter && strlen(site) < HDT_NAME_CAP) {
            struct hdt_gwjob_wan *wan = wan_of(job, site);

            snprintf(wan->counter, sizeof(wan->counter), "%s", counter);
            wan->raw = body_count(item, "raw");
            wan->sent = body_count(item, "sent");
            wan->raw_before = body_count(item, "raw_before");
            wan->sent_before = body_count(item, "sent_before");
        }
    }
}
