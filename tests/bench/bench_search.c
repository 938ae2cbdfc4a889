/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* How long the planner takes for a job whose codec and schedule are to be chosen, on unlike workers
 * of three sites with 200 Mbit/s and 40 ms between them. Prints CPU seconds, ends of pipelines that
 * were tried, plans that were played, and the seconds that a step is predicted to take.
 *
 *     bench_search WORKERS UNITS */
#include "src/base/clock.h"
#include "src/plan/search.h"
#include "tests/support/args.h"
#include "tests/support/plan_cluster.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct hdt_model_config model = hdt_test_model;
    struct hdt_job job = hdt_test_job();
    struct hdt_cluster cluster;
    const struct hdt_cost_inputs in = {&job, &model, &cluster};
    struct hdt_search_result result;
    struct hdt_error err = {0};
    int64_t begin_ns;

    if (argc != 3) {
        fprintf(stderr, "usage: bench_search WORKERS UNITS\n");
        return 2;
    }
    model.L = hdt_args_int(argv[2], 3) - 2;
    job.plan.schedule = HDT_SCHEDULE_AUTO;
    hdt_test_cluster_unlike(&cluster, hdt_args_int(argv[1], 3), 25e6, 0.04);
    begin_ns = hdt_clock_process_cpu_ns();
    if (hdt_search_plan(&in, &result, &err) != HDT_OK) {
        hdt_error_print(&err, "bench_search");
        return 1;
    }
    printf("%.3f %lld %zu %.6f\n", 1e-9 * (double)(hdt_clock_process_cpu_ns() - begin_ns),
           (long long)result.n_tried, result.n_judged, result.cost.step_s);
    hdt_search_result_release(&result);
    hdt_cluster_release(&cluster);
    return 0;
}
