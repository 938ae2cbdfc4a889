/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "doctor": what is wrong with this gateway's machine, its peers and the links to them. Each site
 * is asked for itself, so that every link is looked at from both ends: large records, clocks,
 * certificates and dialling go both ways.
 */
#include "config.h"

#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "src/net/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_PEERS    256
#define SKEW_WARN_MS 1000
#define SKEW_FAIL_MS 30000
#define MTU_LOW      1280u       /* what IPv6 asks of every link */
#define PROBE_LOST   (64u << 10) /* fewer bytes than this of a probe arrived: none of its records */
#define BUFFER_SHARE 0.8         /* of what a stream may hold: from here on it limits */

struct doctor {
    json_t *request, *checks;
    size_t n_waiting;
    struct hdt_peer_stats *before; /* the measurement */
    size_t n_before;
    struct doctor *next;
};

static const struct hdt_peer_stats *stats_find(const struct hdt_peer_stats *stats, size_t n,
                                               const char *site)
{
    for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
        if (strcmp(stats[i].site, site) == 0) {
            return &stats[i];
        }
    }
    return NULL;
}

static struct hdt_peer_stats *stats_get(struct hdt_gateway *gw, size_t *n)
{
    struct hdt_peer_stats *stats = hdt_calloc(MAX_PEERS, sizeof(*stats));

    *n = hdt_dataplane_peer_stats(gw->dp, stats, MAX_PEERS);
    return stats;
}

/* ---- a peer as it is ---- */

static void peer_check(json_t *checks, const struct hdt_gwsite *site,
                       const struct hdt_peer_stats *peer)
{
    char name[HDT_NAME_CAP + 16];
    int64_t skew_ms = peer ? peer->clock_skew_us / HDT_US_PER_MS : 0;

    snprintf(name, sizeof(name), "peer %s", site->name);
    if (!site->up || !peer) {
        hdt_doctor_add(checks, name, "fail",
                       site->remedy[0] ? site->remedy
                       : site->address[0]
                           ? "check address, firewall (one TCP port) and both logs"
                           : "it has to dial us: start it and check its address for us",
                       "%s", site->why_down);
        return;
    }
    hdt_doctor_add(checks, name, peer->suspect ? "warn" : "ok",
                   peer->suspect ? "silent for seconds: look at the link" : "",
                   "%s, %s, rtt %.1f ms, %u streams, hdt %s, %s", peer->address, peer->tls,
                   (double)peer->rtt_us / 1e3, peer->n_streams, site->version,
                   peer->dialled_by_us ? "we dialled" : "it dialled");
    snprintf(name, sizeof(name), "version of %s", site->name);
    hdt_doctor_add(checks, name, strcmp(site->version, PACKAGE_VERSION) == 0 ? "ok" : "warn",
                   strcmp(site->version, PACKAGE_VERSION) == 0
                       ? ""
                       : "they understand each other, but upgrade the older one",
                   "hdt %s there, %s here", site->version, PACKAGE_VERSION);
    snprintf(name, sizeof(name), "certificate of %s", site->name);
    if (peer->certificate[0]) {
        hdt_doctor_expiry(checks, name, peer->certificate, peer->cert_left_s);
    }
    snprintf(name, sizeof(name), "clock %s", site->name);
    hdt_doctor_add(checks, name,
                   llabs(skew_ms) > SKEW_FAIL_MS   ? "fail"
                   : llabs(skew_ms) > SKEW_WARN_MS ? "warn"
                                                   : "ok",
                   llabs(skew_ms) > SKEW_WARN_MS
                       ? "run NTP on both: certificates are judged by the clock"
                       : "",
                   "%s's differs from ours by %ld ms", site->name, (long)skew_ms);
}

/* Dials of ours are told by their peers above; what is left came from outside. */
static void refusals_check(struct hdt_gateway *gw, json_t *checks)
{
    json_t *refused = hdt_refusals_json(gw), *item;
    size_t i;

    json_array_foreach(refused, i, item)
    {
        const char *who = json_string_value(json_object_get(item, "who"));
        bool is_site = json_is_true(json_object_get(item, "is_site"));
        char name[HDT_ADDRESS_CAP + 8];

        if (is_site && hdt_federation_site(gw, who + strlen("site "))) {
            continue;
        }
        snprintf(name, sizeof(name), "refused %s", who);
        hdt_doctor_add(checks, name, is_site ? "fail" : "warn",
                       json_string_value(json_object_get(item, "hint")), "%s",
                       json_string_value(json_object_get(item, "why")));
    }
    json_decref(refused);
}

/* ---- a link under load ---- */

static double link_rate(const struct hdt_gateway *gw, const char *site)
{
    const json_t *link;
    size_t i;

    json_array_foreach(gw->survey.links, i, link)
    {
        const char *to = json_string_value(json_object_get(link, "to"));

        if (to && strcmp(to, site) == 0) {
            return json_number_value(json_object_get(link, "rate_bytes_per_s"));
        }
    }
    return 0;
}

/* Large records out; the other site's doctor tries those in. Small ones are known to arrive: the
 * answers to our PINGs do. */
static void mtu_check(json_t *checks, const struct hdt_peer_stats *peer, double rate,
                      uint64_t arrived)
{
    const bool answers = peer->up && !peer->suspect && peer->rtt_us > 0;
    char name[HDT_NAME_CAP + 16];

    snprintf(name, sizeof(name), "mtu to %s", peer->site);
    if (rate <= 0 && answers && arrived < PROBE_LOST) {
        hdt_doctor_add(checks, name, "fail",
                       "let ICMP 'fragmentation needed' through, or set the real MTU (ip link set "
                       "DEV mtu 1400), or sysctl net.ipv4.tcp_mtu_probing=1",
                       "small records get through, large ones do not: a black hole for packets "
                       "below the path MTU of %u bytes that this end believes in",
                       peer->path_mtu);
    } else if (rate <= 0) {
        hdt_doctor_add(checks, name, "warn", "a link this slow is left out of plans",
                       "%.2f MB of large records arrived within the time of a measurement",
                       (double)arrived / 1e6);
    } else if (peer->path_mtu != 0 && peer->path_mtu < MTU_LOW) {
        hdt_doctor_add(checks, name, "warn", "look for a tunnel on the way that cuts packets small",
                       "the path MTU is %u bytes", peer->path_mtu);
    } else {
        hdt_doctor_add(checks, name, "ok", "",
                       "path MTU %u, segments of %u bytes; large records get through, %.1f Mbit/s",
                       peer->path_mtu, peer->mss, rate * 8e-6);
    }
}

/* A stream that holds all it may is held by it: rate x RTT is then what the buffer is, not what the
 * link could have in flight. The kernel keeps half of a buffer for its own bookkeeping. */
static void buffers_check(json_t *checks, const struct hdt_peer_stats *peer, double rate)
{
    const double streams = peer->n_streams > 0 ? peer->n_streams : 1;
    const double used = 2 * rate * (double)peer->min_rtt_us / 1e6 / streams;
    char name[HDT_NAME_CAP + 24], remedy[192] = "";
    double out, in;

    hdt_doctor_buffers("", &out, &in);
    if (rate <= 0 || out <= 0) {
        return;
    }
    snprintf(name, sizeof(name), "socket buffers to %s", peer->site);
    if (used > BUFFER_SHARE * out) {
        snprintf(remedy, sizeof(remedy),
                 "sysctl -w net.ipv4.tcp_wmem='4096 65536 %.0f' here and net.ipv4.tcp_rmem='4096 "
                 "131072 %.0f' at %s, or more wan.streams",
                 4 * out, 4 * out, peer->site);
    }
    hdt_doctor_add(checks, name, remedy[0] ? "warn" : "ok", remedy,
                   "rate x RTT takes %.2f MB of the %.2f MB that a stream may hold", 1e-6 * used,
                   1e-6 * out);
}

static void links_check(struct hdt_gateway *gw, const struct doctor *doctor)
{
    size_t n;
    struct hdt_peer_stats *now = stats_get(gw, &n);

    for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
        const struct hdt_peer_stats *before =
            stats_find(doctor->before, doctor->n_before, now[i].site);
        const double rate = link_rate(gw, now[i].site);

        /* Streams that were given up meanwhile took their count along. */
        const uint64_t old = before ? before->acked_bytes : 0;

        if (now[i].up && before && before->up) {
            mtu_check(doctor->checks, &now[i], rate,
                      now[i].acked_bytes > old ? now[i].acked_bytes - old : 0);
            buffers_check(doctor->checks, &now[i], rate);
        }
    }
    free(now);
}

/* ---- the request ---- */

static void doctor_drop(struct hdt_gateway *gw, struct doctor *doctor)
{
    LL_DELETE(gw->survey.doctors, doctor);
    json_decref(doctor->request);
    json_decref(doctor->checks);
    free(doctor->before);
    free(doctor);
}

static void doctor_maybe_answer(struct hdt_gateway *gw, struct doctor *doctor)
{
    struct hdt_error err = {0};

    if (--doctor->n_waiting > 0) {
        return;
    }
    hdt_route_send(
        gw,
        hdt_msg_reply(doctor->request, "doctor.is",
                      json_pack("{s:s, s:s, s:s, s:I, s:O}", "site", gw->conf.site, "federation",
                                gw->conf.federation, "version", PACKAGE_VERSION, "clock_us",
                                (json_int_t)hdt_clock_wall_us(), "checks", doctor->checks)),
        &err);
    doctor_drop(gw, doctor);
}

static void links_measured(struct hdt_gateway *gw, void *user)
{
    struct doctor *doctor = user;

    links_check(gw, doctor);
    doctor_maybe_answer(gw, doctor);
}

static void dial_back_answered(struct hdt_gateway *gw, void *user, const json_t *reply,
                               const struct hdt_error *why)
{
    struct doctor *doctor = user;
    const json_t *body = reply ? hdt_msg_body(reply) : NULL;
    const char *detail = json_string_value(json_object_get(body, "detail"));
    bool ok = json_is_true(json_object_get(body, "ok"));

    hdt_doctor_add(
        doctor->checks, "dial back", ok ? "ok" : "warn",
        ok ? "" : "fine while we dial that site; else open the WAN port or set wan.advertise", "%s",
        detail ? detail
        : why  ? why->msg
               : "no answer");
    doctor_maybe_answer(gw, doctor);
}

static void doctor_own(struct hdt_gateway *gw, json_t *checks)
{
    const struct hdt_doctor_machine machine = {.root = "",
                                               .cert = gw->conf.tls.cert,
                                               .memory_bytes = gw->conf.data.memory,
                                               .dirs = {{"state_dir", gw->conf.state_dir}}};
    const struct hdt_gwworker *worker;
    int n_workers = 0;

    hdt_doctor_machine(checks, &machine);
    LL_FOREACH(gw->workers, worker)
    {
        n_workers += worker->up;
    }
    hdt_doctor_add(checks, "workers", n_workers ? "ok" : "warn",
                   n_workers ? "" : "start hdt-worker on the accelerator nodes",
                   "%d connected in the federation", n_workers);
}

void hdt_doctor_request(struct hdt_gateway *gw, const json_t *msg)
{
    struct doctor *doctor = hdt_calloc(1, sizeof(*doctor));
    const struct hdt_gwsite *site;

    doctor->request = json_incref((json_t *)msg);
    doctor->checks = json_array();
    doctor->before = stats_get(gw, &doctor->n_before);
    doctor->n_waiting = 2; /* held until all are asked; the measurement */
    LL_PREPEND(gw->survey.doctors, doctor);
    doctor_own(gw, doctor->checks);
    LL_FOREACH(gw->sites, site)
    {
        peer_check(doctor->checks, site, stats_find(doctor->before, doctor->n_before, site->name));
        if (site->up && gw->conf.wan.advertise[0]) {
            doctor->n_waiting++;
            hdt_route_request(
                gw, site->name, "dial.back", json_pack("{s:s}", "address", gw->conf.wan.advertise),
                (int)(gw->deadlines.answer_us / HDT_US_PER_MS), dial_back_answered, doctor);
        }
    }
    refusals_check(gw, doctor->checks);
    hdt_survey_measure(gw, links_measured, doctor);
    doctor_maybe_answer(gw, doctor);
}

void hdt_doctor_free(struct hdt_gateway *gw)
{
    while (gw->survey.doctors) {
        doctor_drop(gw, gw->survey.doctors);
    }
}
