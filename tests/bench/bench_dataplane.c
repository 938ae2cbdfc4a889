/* SPDX-License-Identifier: Apache-2.0 */
/* Goodput and CPU time of two data planes over loopback, both in this process:
 *   make tests/bench/bench_dataplane && tests/bench/bench_dataplane [codec-number [streams
 * [chunk-KiB]]] */
#include "config.h"

#include "src/base/clock.h"
#include "tests/support/dp_rig.h"

#include <sys/resource.h>

#define FRAME_BYTES (16u << 20)
#define N_FRAMES    128

static double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
    const uint8_t codec = argc > 1 ? (uint8_t)strtoul(argv[1], NULL, 10) : 0;
    struct hdt_peer_stats stats = {0};
    struct rig rig;
    double cpu, seconds, gigabytes;
    int64_t began_us;

    hdt_rig_open(&rig, 2);
    rig.unchecked = true;
    rig.conf.n_streams = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 4;
    rig.conf.chunk_bytes = (argc > 3 ? strtoull(argv[3], NULL, 10) : 256) << 10;
    rig.flows[rig.n_flows++] = (struct rig_flow){.src_site = 0,
                                                 .dst_site = 1,
                                                 .depth = 4,
                                                 .frame_cap = FRAME_BYTES,
                                                 .n_frames = N_FRAMES,
                                                 .prio = HDT_PRIO_ACTIVATION,
                                                 .codec = codec};
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_wait_frames(&rig, 8);
    cpu = cpu_seconds();
    began_us = hdt_clock_now_us();
    hdt_rig_wait_done(&rig, 60);
    seconds = 1e-6 * (double)(hdt_clock_now_us() - began_us);
    cpu = cpu_seconds() - cpu;
    gigabytes = 1e-9 * (N_FRAMES - 8) * (double)FRAME_BYTES;
    hdt_rig_peer_stats(&rig, 0, 1, &stats);
    printf("codec %u: %.2f GB/s, %.2f CPU-seconds/GB (both ends), ratio %.3f, measured goodput "
           "%.2f GB/s, rtt %lld us\n",
           codec, gigabytes / seconds, cpu / gigabytes,
           (double)stats.plain_bytes / (double)stats.coded_bytes, 1e-9 * stats.goodput_bytes_per_s,
           (long long)stats.rtt_us);
    hdt_rig_close(&rig);
    return 0;
}
