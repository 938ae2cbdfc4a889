/* SPDX-License-Identifier: Apache-2.0 */
/* Budgets of the settings: what they say, and what became of it. */
#include "config.h"

#include "gateway/budget_use.h"
#include "gateway/control.h"
#include "gateway/metrics.h"
#include "src/base/buf.h"

#include <stdio.h>

enum hdt_status hdt_budgets_load(struct hdt_gateway *gw, const struct hdt_conf_doc *doc,
                                 struct hdt_error *err)
{
    const struct hdt_gateway_budget_conf *confs = gw->conf.budgets.items;
    struct hdt_error why = {0};
    const char *field;
    char key[64];

    if (gw->conf.budgets.n > HDT_BUDGETS_MAX) {
        return hdt_conf_error(doc, "budgets", err, HDT_EINVAL, "%zu budgets are more than %d",
                              gw->conf.budgets.n, HDT_BUDGETS_MAX);
    }
    for (size_t i = 0; i < gw->conf.budgets.n; i++) {
        if (hdt_budget_parse(&confs[i], &gw->budgets[i], &field, &why) != HDT_OK) {
            snprintf(key, sizeof(key), "budgets[%zu].%s", i, field);
            hdt_conf_error(doc, key, err, HDT_EINVAL, "%s", why.msg);
            hdt_error_hint(err, "%s", why.hint);
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

json_t *hdt_budgets_json(struct hdt_gateway *gw)
{
    const struct hdt_gateway_budget_conf *confs = gw->conf.budgets.items;
    struct hdt_budget_use uses[HDT_BUDGETS_MAX];
    json_t *budgets = json_array();

    hdt_dataplane_budget_uses(gw->dp, uses);
    for (size_t i = 0; i < gw->conf.budgets.n; i++) {
        json_array_append_new(
            budgets,
            json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:b, s:I, s:f}", "peer", confs[i].peer,
                      "class", hdt_gateway_budget_class_names[confs[i].prio], "job", confs[i].job,
                      "rate_bits_per_s", (json_int_t)confs[i].rate, "weight",
                      (json_int_t)confs[i].weight, "hours", confs[i].hours, "days", confs[i].days,
                      "on", uses[i].is_on, "sent_bytes", (json_int_t)uses[i].sent_bytes, "held_s",
                      (double)uses[i].held_us / 1e6));
    }
    return budgets;
}

/* Which of several, as in the settings. */
static void budget_begin(struct hdt_buf *out, const struct hdt_gateway *gw, const char *name,
                         size_t i)
{
    const struct hdt_gateway_budget_conf *conf =
        (const struct hdt_gateway_budget_conf *)gw->conf.budgets.items + i;
    char number[8];

    snprintf(number, sizeof(number), "%zu", i);
    hdt_metrics_begin(out, gw, name);
    hdt_metrics_label(out, "budget", number);
    hdt_metrics_label(out, "peer", conf->peer);
    hdt_metrics_label(out, "class", hdt_gateway_budget_class_names[conf->prio]);
    hdt_metrics_label(out, "for_job", conf->job);
}

void hdt_metrics_budgets(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct hdt_budget_use uses[HDT_BUDGETS_MAX];
    const size_t n = gw->conf.budgets.n;

    hdt_dataplane_budget_uses(gw->dp, uses);
    hdt_metrics_head(out, "hdt_budget_on", "gauge", "1 at the hours of a budget, else 0.");
    for (size_t i = 0; i < n; i++) {
        budget_begin(out, gw, "hdt_budget_on", i);
        hdt_metrics_end(out, uses[i].is_on);
    }
    hdt_metrics_head(out, "hdt_budget_sent_bytes_total", "counter",
                     "Bytes on the wire that were sent under a budget.");
    for (size_t i = 0; i < n; i++) {
        budget_begin(out, gw, "hdt_budget_sent_bytes_total", i);
        hdt_metrics_end(out, (double)uses[i].sent_bytes);
    }
    hdt_metrics_head(out, "hdt_budget_held_seconds_total", "counter",
                     "Time for which something was held back by the cap of a budget.");
    for (size_t i = 0; i < n; i++) {
        budget_begin(out, gw, "hdt_budget_held_seconds_total", i);
        hdt_metrics_end(out, (double)uses[i].held_us / 1e6);
    }
}
