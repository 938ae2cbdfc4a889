/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_METRICS_H
#define HDT_GATEWAY_METRICS_H

/*
 * Writing Prometheus' text format: a family (head), then its samples, each begun, labelled and
 * ended. The rules of names: base units (bytes, seconds) as suffix, counters end in _total, nothing
 * is called `job` or `instance`, which a scraper sets itself. Every family and label stands in
 * doc/metrics.md, which tests/e2e/metrics.sh compares with a live gateway.
 */
#include "gateway/control.h"

struct hdt_buf;

void hdt_metrics_head(struct hdt_buf *out, const char *name, const char *type, const char *help);

/* `NAME{site="OURS"`; labels may follow, then the end. */
void hdt_metrics_begin(struct hdt_buf *out, const struct hdt_gateway *gw, const char *name);
void hdt_metrics_label(struct hdt_buf *out, const char *key, const char *value);
void hdt_metrics_end(struct hdt_buf *out, double value);

/* A family with one sample, without labels but the site. */
struct hdt_metric {
    const char *name, *type, *help;
    double value;
};
void hdt_metrics_singles(struct hdt_buf *out, const struct hdt_gateway *gw,
                         const struct hdt_metric *metrics, size_t n);

/* link_show.c: the streams to peers. */
void hdt_metrics_links(struct hdt_gateway *gw, struct hdt_buf *out,
                       const struct hdt_peer_stats *peers, size_t n);

/* budget_show.c */
void hdt_metrics_budgets(struct hdt_gateway *gw, struct hdt_buf *out);

/* metrics_jobs.c: the jobs that are coordinated here. */
void hdt_metrics_jobs(struct hdt_gateway *gw, struct hdt_buf *out);

#endif /* HDT_GATEWAY_METRICS_H */
