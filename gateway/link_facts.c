/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request "link" of an operator: all that this gateway knows of its way to one peer, for `hdt link
 * explain`. Facts only: which of them matters is said where both ends' are there.
 *
 * How fast the codecs are here is measured when it is first asked for, some 20 ms for each; the
 * main thread does it, and streams do not wait for that one.
 */
#include "config.h"

#include "compress/rate.h"
#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/cgroup.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/near.h"
#include "src/core/msg.h"
#include "src/net/doctor.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_PEERS      256
#define RATE_BUDGET_MS 20

static json_t *codec_json(const struct hdt_codec_ops *codec, enum hdt_dtype dtype, int threads)
{
    struct hdt_codec_rate rate;
    struct hdt_error err = {0};

    if (hdt_codec_rate_measure(codec, dtype, RATE_BUDGET_MS, &rate, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &err);
        return NULL;
    }
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:i}", "codec", codec->name, "dtype",
                     hdt_dtype_name(dtype), "ratio", rate.ratio, "encode_bytes_per_s",
                     rate.encode_bytes_per_s, "decode_bytes_per_s", rate.decode_bytes_per_s,
                     "threads", threads);
}

static json_t *codecs_json(struct hdt_gateway *gw)
{
    const struct {
        const struct hdt_codec_ops *codec;
        enum hdt_dtype dtype;
        int threads; /* a worker, and a channel, codes on one */
    } measured[] = {{&hdt_codec_lossless, HDT_DTYPE_BF16, (int)gw->conf.data.codec_threads},
                    {&hdt_codec_lossless, HDT_DTYPE_F32, (int)gw->conf.data.codec_threads},
                    {&hdt_codec_bf16, HDT_DTYPE_F32, 1},
                    {&hdt_codec_int8, HDT_DTYPE_F32, 1}};

    if (!gw->survey.codecs) {
        gw->survey.codecs = json_array();
        for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
            json_t *codec = codec_json(measured[i].codec, measured[i].dtype, measured[i].threads);

            if (codec) {
                json_array_append_new(gw->survey.codecs, codec);
            }
        }
    }
    return json_incref(gw->survey.codecs);
}

/* The first line of a file of the kernel; "": it has none. */
static json_t *kernel_line(const char *path)
{
    struct hdt_buf buf = {0};
    struct hdt_error err = {0};
    json_t *text;

    if (hdt_file_read(path, 4096, &buf, &err) != HDT_OK) {
        return json_string("");
    }
    text = json_sprintf("%.*s", (int)strcspn(hdt_buf_str(&buf), "\n"), hdt_buf_str(&buf));
    hdt_buf_release(&buf);
    return text;
}

static json_t *kernel_json(void)
{
    double out, in;

    hdt_doctor_buffers("", &out, &in);
    return json_pack("{s:f, s:f, s:o, s:o}", "tcp_wmem_max_bytes", out, "tcp_rmem_max_bytes", in,
                     "congestion", kernel_line("/proc/sys/net/ipv4/tcp_congestion_control"),
                     "congestion_available",
                     kernel_line("/proc/sys/net/ipv4/tcp_available_congestion_control"));
}

static json_t *settings_json(const struct hdt_gateway *gw)
{
    return json_pack(
        "{s:I, s:I, s:I, s:i, s:s, s:I, s:I}", "streams", (json_int_t)gw->conf.wan.streams,
        "chunk_bytes", (json_int_t)gw->conf.wan.chunk, "rate_bits_per_s",
        (json_int_t)gw->conf.wan.rate, "budgets", (int)gw->conf.budgets.n, "congestion",
        gw->conf.wan.congestion, "io_threads", (json_int_t)gw->conf.data.io_threads,
        "codec_threads", (json_int_t)gw->conf.data.codec_threads);
}

static json_t *facts_json(struct hdt_gateway *gw, const struct hdt_peer_stats *peer)
{
    struct hdt_dataplane_stats dp;
    json_t *facts, *tcp = hdt_link_json(gw, peer);
    struct hdt_cgroup cgroup;

    hdt_dataplane_stats(gw->dp, &dp);
    hdt_cgroup_read("", &cgroup);
    facts = json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:i, s:s}", "site", gw->conf.site, "peer",
                      peer->site, "version", PACKAGE_VERSION, "settings", settings_json(gw),
                      "kernel", kernel_json(), "codecs", codecs_json(gw), "cores",
                      hdt_cgroup_cores(&cgroup), "engine", dp.engine);
    json_object_set_new(facts, "streams", json_integer(peer->n_streams));
    json_object_set_new(facts, "streams_used", json_integer(peer->n_streams_used));
    json_object_set_new(facts, "why_streams", json_string(peer->why_streams));
    json_object_set_new(facts, "why_bursts", json_string(peer->why_bursts));
    json_object_set_new(facts, "why_congestion", json_string(peer->why_congestion));
    json_object_set_new(facts, "buffers", json_string(peer->buffers));
    json_object_set_new(facts, "buffers_hint", json_string(peer->buffers_hint));
    json_object_set_new(facts, "pace_bits_per_s", json_real(8 * peer->pace_bytes_per_s));
    json_object_set_new(facts, "rtt_ms", json_real((double)peer->rtt_us / 1e3));
    json_object_set_new(facts, "min_rtt_ms", json_real((double)peer->min_rtt_us / 1e3));
    json_object_set_new(facts, "goodput_bits_per_s", json_real(8 * peer->goodput_bytes_per_s));
    json_object_set_new(facts, "raw_bytes", json_integer((json_int_t)peer->raw_bytes));
    json_object_set_new(facts, "plain_bytes", json_integer((json_int_t)peer->plain_bytes));
    json_object_set_new(facts, "coded_bytes", json_integer((json_int_t)peer->coded_bytes));
    json_object_set_new(facts, "send_s_per_byte", json_real(dp.probe_send_s_per_byte));
    json_object_set_new(facts, "recv_s_per_byte", json_real(dp.probe_recv_s_per_byte));
    json_object_set_new(facts, "tcp", tcp ? tcp : json_null());
    return facts;
}

/* The site and its session, or why there is none. */
enum hdt_status hdt_link_find(struct hdt_gateway *gw, const char *name, struct hdt_error *err)
{
    const struct hdt_gwsite *site = hdt_federation_site(gw, name);
    const struct hdt_gwsite *other;
    struct hdt_near near;

    if (strcmp(name, gw->conf.site) == 0) {
        hdt_error_set(err, HDT_EINVAL, "'%s' is the site of this gateway: a link leads to another",
                      name);
        hdt_error_hint(err, "'hdt status' lists the peers");
        return HDT_EINVAL;
    }
    if (!site) {
        hdt_near_init(&near, name);
        LL_FOREACH(gw->sites, other)
        {
            hdt_near_offer(&near, other->name);
        }
        hdt_error_set(err, HDT_ENOENT, "site %s knows no site '%.64s'", gw->conf.site, name);
        if (near.best) {
            hdt_error_hint(err, "did you mean '%s'?", near.best);
        } else {
            hdt_error_hint(err, "'hdt status' lists the peers");
        }
        return HDT_ENOENT;
    }
    if (!site->up) {
        hdt_error_set(err, HDT_EPEER, "there is no link from site %s to site %s: %s", gw->conf.site,
                      name, site->why_down[0] ? site->why_down : "not connected");
        hdt_error_hint(err, "%s",
                       site->remedy[0] ? site->remedy
                                       : "'hdt doctor' looks for what is in the way");
        return HDT_EPEER;
    }
    return HDT_OK;
}

void hdt_link_request(struct hdt_gateway *gw, const json_t *msg)
{
    const char *name = json_string_value(json_object_get(hdt_msg_body(msg), "site"));
    struct hdt_peer_stats *peers;
    const struct hdt_peer_stats *peer = NULL;
    struct hdt_error err = {0}, ignored = {0};
    size_t n;

    if (hdt_link_find(gw, name ? name : "", &err) != HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
        return;
    }
    peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
    n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS);
    for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
        peer = strcmp(peers[i].site, name) == 0 ? &peers[i] : peer;
    }
    if (peer) {
        hdt_route_send(gw, hdt_msg_reply(msg, "link.is", facts_json(gw, peer)), &ignored);
    } else {
        hdt_error_set(&err, HDT_EPEER, "the session with site %s has just ended", name);
        hdt_error_hint(&err, "try again in a few seconds");
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
    }
    free(peers);
}
