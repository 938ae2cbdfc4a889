/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_PLAN_CLUSTER_H
#define HDT_TESTS_PLAN_CLUSTER_H

/* Clusters made of numbers, for tests of the planner: sites a, b, c, d with a worker w0 each, whose
 * block takes 10 ms forward and 20 ms backward at speed 1. */
#include "src/core/cluster.h"
#include "src/core/job.h"
#include "src/core/model.h"

/* 6 blocks: 8 units. */
extern const struct hdt_model_config hdt_test_model;

void hdt_test_cluster_add_worker(struct hdt_cluster *cluster, const char *site, const char *name,
                                 double speed);

/* One worker a site, links of `rate` bytes/s and round trip `rtt` both ways between all. */
void hdt_test_cluster(struct hdt_cluster *cluster, int n, const double *speeds, double rate,
                      double rtt);

/* n unlike workers at three sites, at most HDT_TEST_UNLIKE_MAX, whose profiles have all that a
 * schedule may ask for. */
#define HDT_TEST_UNLIKE_MAX 16
void hdt_test_cluster_unlike(struct hdt_cluster *cluster, int n, double rate, double rtt);

/* 16 micro-batches of 8 x 128 tokens, data at site a, schedule wan. */
struct hdt_job hdt_test_job(void);

#endif /* HDT_TESTS_PLAN_CLUSTER_H */
