/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this gateway costs its machine, for the planner: a worker on the same processors computes
 * more slowly for it. CPU time a byte comes from the probes of links, the lossless codec's from the
 * chunks of jobs; before the first job it is measured once, on numbers that are as hard to code.
 * What a frame costs beside them is known by jobs alone: a probe has none.
 */
#include "config.h"

#include "compress/rate.h"
#include "gateway/control.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#define RATE_BUDGET_MS 60
#define LIVE_BYTES     (16u << 20) /* from so many on, jobs know better */

static double rate_of(uint64_t bytes, uint64_t ns)
{
    return ns > 0 ? 1e9 * (double)bytes / (double)ns : 0;
}

static void codec_rate(struct hdt_gateway *gw)
{
    struct hdt_codec_rate rate;
    struct hdt_error err = {0};

    if (gw->survey.encode_bytes_per_s > 0) {
        return;
    }
    if (hdt_codec_rate_measure(&hdt_codec_lossless, HDT_DTYPE_F32, RATE_BUDGET_MS, &rate, &err) !=
        HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &err);
        return;
    }
    gw->survey.encode_bytes_per_s = rate.encode_bytes_per_s;
    gw->survey.decode_bytes_per_s = rate.decode_bytes_per_s;
}

void hdt_own_cost_tick(struct hdt_gateway *gw)
{
    struct hdt_dataplane_stats stats;
    struct hdt_frame_work now;

    hdt_dataplane_stats(gw->dp, &stats);
    now = (struct hdt_frame_work){.cpu_ns = hdt_clock_process_cpu_ns(),
                                  .codec_ns = stats.encode_ns + stats.decode_ns,
                                  .sent_bytes = stats.sent_bytes,
                                  .recv_bytes = stats.recv_bytes,
                                  .n_frames = stats.n_frames,
                                  .n_strangers = stats.strangers};
    hdt_frame_cost_saw(&gw->survey.frame_cost, &now, stats.probe_send_s_per_byte,
                       stats.probe_recv_s_per_byte);
}

void hdt_survey_own_cost(struct hdt_gateway *gw, struct hdt_cluster_gateway *cost)
{
    struct hdt_dataplane_stats stats;

    codec_rate(gw);
    hdt_dataplane_stats(gw->dp, &stats);
    *cost = (struct hdt_cluster_gateway){.send_s_per_byte = stats.probe_send_s_per_byte,
                                         .recv_s_per_byte = stats.probe_recv_s_per_byte,
                                         .frame_s = hdt_frame_cost_s(&gw->survey.frame_cost),
                                         .encode_bytes_per_s = gw->survey.encode_bytes_per_s,
                                         .decode_bytes_per_s = gw->survey.decode_bytes_per_s};
    if (stats.encode_bytes >= LIVE_BYTES) {
        cost->encode_bytes_per_s = rate_of(stats.encode_bytes, stats.encode_ns);
    }
    if (stats.decode_bytes >= LIVE_BYTES) {
        cost->decode_bytes_per_s = rate_of(stats.decode_bytes, stats.decode_ns);
    }
    hdt_host_id(cost->host);
    hdt_host_cpus(cost->cpus);
}
