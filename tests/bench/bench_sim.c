/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* How long the simulator takes for a step of equal pipelines. Prints seconds, CPU seconds,
 * events a CPU second, GiB that the process had at most, tasks, and seconds simulated.
 *
 *     bench_sim STAGES REPLICAS MICRO_BATCHES */
#include "src/base/clock.h"
#include "tests/support/args.h"
#include "tests/support/sim_pipe.h"

#include <stdio.h>
#include <sys/resource.h>

int main(int argc, char **argv)
{
    struct sim_pipe pipe = {.fwd_s = 10e-3,
                            .bwd_s = 20e-3,
                            .frame_bytes = 16 << 20,
                            .nic_bytes_per_s = 25e9,
                            .latency_s = 10e-6,
                            .sync_s = 50e-3,
                            .slot_bytes = 1 << 30,
                            .n_steps = 1};
    struct sim_pipe_tables tables;
    struct hdt_sim_setup setup;
    struct hdt_sim_result result;
    struct hdt_error err = {0};
    struct rusage usage;
    int64_t begin_us, begin_cpu_ns;
    double s, cpu_s;

    if (argc != 4) {
        fprintf(stderr, "usage: bench_sim STAGES REPLICAS MICRO_BATCHES\n");
        return 2;
    }
    pipe.n_stages = hdt_args_int(argv[1], 1);
    pipe.n_replicas = hdt_args_int(argv[2], 1);
    pipe.n_mb = hdt_args_int(argv[3], 1);
    hdt_sim_pipe_setup(&pipe, &tables, &setup);
    setup.jitter = 0.05; /* without it all ranks act at one time, which no cluster does */
    begin_us = hdt_clock_now_us();
    begin_cpu_ns = hdt_clock_process_cpu_ns();
    if (hdt_sim_run(&setup, &result, &err) != HDT_OK) {
        hdt_error_print(&err, "bench_sim");
        return 1;
    }
    s = (double)(hdt_clock_now_us() - begin_us) / HDT_US_PER_S;
    cpu_s = 1e-9 * (double)(hdt_clock_process_cpu_ns() - begin_cpu_ns);
    getrusage(RUSAGE_SELF, &usage);
    printf("%.3f %.3f %.0f %.3f %lld %.3f\n", s, cpu_s, (double)result.n_events / cpu_s,
           (double)usage.ru_maxrss / (1 << 20), (long long)result.n_tasks, result.makespan_s);
    hdt_sim_result_release(&result);
    hdt_sim_pipe_release(&tables);
    return 0;
}
