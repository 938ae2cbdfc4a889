/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulator has done, as a table for people and as JSON for scripts. */
#include "config.h"

#include "tests/wanem/wanem.h"

#include "src/base/clock.h"

static int64_t backlog_ns(const struct hdt_wanem_link *link)
{
    int64_t wait_ns = link->busy_until_ns - hdt_clock_now_ns();

    return wait_ns > 0 ? wait_ns : 0;
}

static void link_show_text(const char *from, const char *to, const struct hdt_wanem_link *link,
                           struct hdt_buf *out)
{
    const struct hdt_wanem_shape *shape = &link->shape;
    const struct hdt_wanem_counters *count = &link->count;

    hdt_buf_appendf(out, "%s>%s %s", from, to, shape->up ? "up" : "down");
    if (shape->rate_bits_per_s) {
        hdt_buf_appendf(out, " rate %gmbit", (double)shape->rate_bits_per_s / 1e6);
    } else {
        hdt_buf_append_str(out, " rate max");
    }
    hdt_buf_appendf(out, " delay %gms jitter %gms loss %g%% burst %g",
                    (double)shape->delay_ns / 1e6, (double)shape->jitter_ns / 1e6,
                    shape->loss * 100, shape->loss_burst);
    if (shape->queue_bytes) {
        hdt_buf_appendf(out, " queue %llub", (unsigned long long)shape->queue_bytes);
    } else {
        hdt_buf_appendf(out, " queue %gms", (double)shape->queue_ns / 1e6);
    }
    hdt_buf_appendf(out, "\n    in %llu packets %llu bytes, out %llu packets %llu bytes\n",
                    (unsigned long long)count->n_segments_in, (unsigned long long)count->n_bytes_in,
                    (unsigned long long)count->n_segments_out,
                    (unsigned long long)count->n_bytes_out);
    hdt_buf_appendf(out,
                    "    lost %llu, queue full %llu, cut %llu; queue now %.1fms peak %.1fms; "
                    "latest by %.1fms\n",
                    (unsigned long long)count->n_lost, (unsigned long long)count->n_overflowed,
                    (unsigned long long)count->n_cut, (double)backlog_ns(link) / 1e6,
                    (double)count->queue_peak_ns / 1e6, (double)count->late_peak_ns / 1e6);
}

static void link_show_json(const char *from, const char *to, const struct hdt_wanem_link *link,
                           struct hdt_buf *out)
{
    const struct hdt_wanem_shape *shape = &link->shape;
    const struct hdt_wanem_counters *count = &link->count;

    hdt_buf_appendf(out,
                    "{\"from\":\"%s\",\"to\":\"%s\",\"up\":%s,\"rate_bits_per_s\":%llu,"
                    "\"delay_us\":%lld,\"jitter_us\":%lld,\"loss\":%.9g,\"burst\":%.9g,"
                    "\"queue_us\":%lld,\"queue_bytes\":%llu,\"overhead\":%u,",
                    from, to, shape->up ? "true" : "false",
                    (unsigned long long)shape->rate_bits_per_s, (long long)shape->delay_ns / 1000,
                    (long long)shape->jitter_ns / 1000, shape->loss, shape->loss_burst,
                    (long long)shape->queue_ns / 1000, (unsigned long long)shape->queue_bytes,
                    shape->overhead);
    hdt_buf_appendf(out,
                    "\"packets_in\":%llu,\"bytes_in\":%llu,\"packets_out\":%llu,"
                    "\"bytes_out\":%llu,\"lost\":%llu,\"queue_full\":%llu,\"cut\":%llu,"
                    "\"backlog_us\":%lld,\"backlog_peak_us\":%lld,\"late_peak_us\":%lld}",
                    (unsigned long long)count->n_segments_in, (unsigned long long)count->n_bytes_in,
                    (unsigned long long)count->n_segments_out,
                    (unsigned long long)count->n_bytes_out, (unsigned long long)count->n_lost,
                    (unsigned long long)count->n_overflowed, (unsigned long long)count->n_cut,
                    (long long)backlog_ns(link) / 1000, (long long)count->queue_peak_ns / 1000,
                    (long long)count->late_peak_ns / 1000);
}

static void ports_show(const struct hdt_wanem *em, bool as_json, struct hdt_buf *out)
{
    for (int i = 0; i < em->n_ports; i++) {
        const struct hdt_wanem_port *port = &em->ports[i];

        hdt_buf_appendf(out,
                        as_json ? "%s{\"name\":\"%s\",\"site\":\"%s\",\"dev\":\"%s\",\"mtu\":%u,"
                                  "\"stray\":%llu,\"refused\":%llu}"
                                : "%sport %s site %s dev %s mtu %u; stray %llu, refused %llu\n",
                        as_json && i > 0 ? "," : "", port->name, port->site, port->dev, port->mtu,
                        (unsigned long long)port->n_stray,
                        (unsigned long long)port->n_write_errors);
    }
}

void hdt_wanem_show(const struct hdt_wanem *em, bool as_json, struct hdt_buf *out)
{
    const char *separator = "";

    hdt_buf_append_str(out, as_json ? "{\"ports\":[" : "");
    ports_show(em, as_json, out);
    hdt_buf_append_str(out, as_json ? "],\"links\":[" : "");
    for (int from = 0; from < em->n_ports; from++) {
        for (int to = 0; to < em->n_ports; to++) {
            const struct hdt_wanem_link *link = em->links[from][to];

            if (link && as_json) {
                hdt_buf_append_str(out, separator);
                link_show_json(em->ports[from].name, em->ports[to].name, link, out);
                separator = ",";
            } else if (link) {
                link_show_text(em->ports[from].name, em->ports[to].name, link, out);
            }
        }
    }
    hdt_buf_append_str(out, as_json ? "]}\n" : "");
}
