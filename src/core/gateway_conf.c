/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/gateway_conf.h"
#include "src/base/log.h"
#include "src/core/deadlines.h"

#define KIB 1024.0
#define MIB (1024.0 * KIB)
#define TIB (1024.0 * 1024.0 * MIB)

static const struct hdt_conf_row tls_rows[] = {
    HDT_CONF_PATH(struct hdt_gateway_tls_conf, ca, NULL,
                  "Certificate of the federation's authority (ca.pem of 'hdt ca init'): who it "
                  "signed is trusted, nobody else. Example: tls/ca.pem."),
    HDT_CONF_PATH(struct hdt_gateway_tls_conf, cert, NULL,
                  "This site's certificate, from 'hdt ca sign' or 'hdt ca issue site NAME'. "
                  "Example: tls/cert.pem."),
    HDT_CONF_PATH(struct hdt_gateway_tls_conf, key, NULL,
                  "Private key of that certificate. It stays on this machine, readable by the "
                  "gateway alone. Example: tls/key.pem."),
    HDT_CONF_PATH(
        struct hdt_gateway_tls_conf, crl, "",
        "Revocation list (crl.pem of 'hdt ca revoke'). It is read again on SIGHUP and goes to the "
        "other sites; the newer of this one and of what they sent counts. Empty: only theirs."),
    HDT_CONF_END,
};

static const struct hdt_conf_row wan_rows[] = {
    HDT_CONF_STRING(struct hdt_gateway_wan_conf, listen, "0.0.0.0:7420",
                    "Address and port where other sites reach this one. Empty: do not listen; this "
                    "site dials the others (behind NAT)."),
    HDT_CONF_STRING(struct hdt_gateway_wan_conf, advertise, "",
                    "Address and port that other sites should dial, where it is not the one that "
                    "they see (a forwarded port). Empty: as they see us."),
    HDT_CONF_COUNT(
        struct hdt_gateway_wan_conf, streams, "4", 1, 64,
        "Bulk streams (TLS connections) to each peer. With auto there are 4 at first; "
        "under load more and fewer are tried, and what carries most is kept. A search "
        "costs rate while it lasts, some hundred round trips, and needs load without "
        "pauses for as long: where there is none, 4 it stays. With BBR and 4 at most, bursts go "
        "over the first of them alone where a measurement of the link shows that it "
        "carries as much as the others together, load that lasts over all."),
    HDT_CONF_BYTES(struct hdt_gateway_wan_conf, chunk, "256KiB", 64 * KIB, 8 * MIB,
                   "Unit that a tensor is cut into; each chunk takes whichever stream is free."),
    HDT_CONF_RATE(struct hdt_gateway_wan_conf, rate, "max",
                  "Cap on what this site sends to all its peers together."),
    HDT_CONF_BOOL(
        struct hdt_gateway_wan_conf, pace, "false",
        "Hold less urgent tensors to a little less than the link carries while more urgent "
        "ones travel beside, so that these find no queue on the way. Load in bursts is held "
        "back only when one lasts long enough to know by it what the link carries."),
    HDT_CONF_STRING(struct hdt_gateway_wan_conf, congestion, "auto",
                    "TCP congestion control of the WAN streams, as bbr or cubic. With auto it is "
                    "BBR at first where the kernel has it, else the kernel's default; under load "
                    "the others that the kernel offers are tried, and what carries most is kept, "
                    "as with wan.streams; what carries 2 to 5 % more, not with wan.pace, and for "
                    "as long as the load is steady and of one urgency. Empty: the kernel's "
                    "default."),
    HDT_CONF_END,
};

static const struct hdt_conf_row lan_rows[] = {
    HDT_CONF_PATH(struct hdt_gateway_lan_conf, socket, "/run/hdt/gateway.sock",
                  "Unix socket for workers and for 'hdt' on this machine."),
    HDT_CONF_STRING(struct hdt_gateway_lan_conf, listen, "",
                    "Address and port (mutual TLS) for workers and operators on other machines of "
                    "this site. Empty: only the Unix socket."),
    HDT_CONF_END,
};

static const struct hdt_conf_row http_rows[] = {
    HDT_CONF_STRING(
        struct hdt_gateway_http_conf, listen, "127.0.0.1:7421",
        "Address and port of /status (JSON) and /metrics (Prometheus). It has no access "
        "control: keep it on loopback. Empty: off."),
    HDT_CONF_END,
};

const char *const hdt_gateway_engine_names[] = {"auto", "epoll", "io_uring", NULL};

static const struct hdt_conf_row data_rows[] = {
    HDT_CONF_ENUM(struct hdt_gateway_data_conf, engine, "auto", hdt_gateway_engine_names,
                  "How the kernel is asked to move bytes. auto: both are tried for some "
                  "milliseconds at the start, and the one that needs less CPU time here is taken. "
                  "Where io_uring is refused, epoll serves."),
    HDT_CONF_INT(struct hdt_gateway_data_conf, io_threads, "1", 1, 64,
                 "Threads that move bytes between sockets; each drives its own streams."),
    HDT_CONF_INT(struct hdt_gateway_data_conf, codec_threads, "1", 1, 64,
                 "Threads that compress and decompress."),
    HDT_CONF_BYTES(struct hdt_gateway_data_conf, memory, "512MiB", 16 * MIB, TIB,
                   "Memory for chunk buffers and for frames of workers on other machines, taken at "
                   "start."),
    HDT_CONF_END,
};

static const struct hdt_conf_row peer_rows[] = {
    HDT_CONF_STRING(struct hdt_gateway_peer_conf, site, NULL,
                    "Name that the peer's certificate must carry. Example: site-b."),
    HDT_CONF_STRING(struct hdt_gateway_peer_conf, address, "",
                    "Host and port to dial, as gw.site-b.example:7420. Empty: this peer dials us."),
    HDT_CONF_END,
};

const char *const hdt_gateway_budget_class_names[] = {"any",   "activation", "gradient",
                                                      "outer", "checkpoint", NULL};

static const struct hdt_conf_row budget_rows[] = {
    HDT_CONF_STRING(struct hdt_gateway_budget_conf, peer, "",
                    "Site that it is sent to. Empty: all of them together."),
    {.name = "class",
     .type = HDT_CONF_T_ENUM,
     .offset = offsetof(struct hdt_gateway_budget_conf, prio),
     .def = "any",
     .names = hdt_gateway_budget_class_names,
     .help =
         "What it is: activations, their gradients and urgent tensors of channels; gradients of "
         "parameters; outer gradients and all other tensors of channels; checkpoints."},
    HDT_CONF_STRING(struct hdt_gateway_budget_conf, job, "",
                    "Name of a job, or of a channel of libhdt. Empty: all of them."),
    HDT_CONF_RATE(struct hdt_gateway_budget_conf, rate, "max",
                  "Cap on what fits, all together. A job waits for what is held back: its deadline "
                  "for progress counts."),
    HDT_CONF_INT(struct hdt_gateway_budget_conf, weight, "1", 1, 1000,
                 "Share beside other jobs of the same class: one of weight 3 sends three times as "
                 "much as one of weight 1, while both have something to send. A more urgent class "
                 "goes first all the same."),
    HDT_CONF_STRING(struct hdt_gateway_budget_conf, hours, "",
                    "When it holds, as 22:00-06:00, in UTC. Empty: all day."),
    HDT_CONF_STRING(struct hdt_gateway_budget_conf, days, "",
                    "On which days, as mon-fri or sat,sun; those on which its hours begin. Empty: "
                    "all."),
    HDT_CONF_END,
};

static const struct hdt_conf_row gateway_rows[] = {
    HDT_CONF_STRING(struct hdt_gateway_conf, site, NULL,
                    "Name of this site, as in its certificate. Example: site-a."),
    HDT_CONF_STRING(struct hdt_gateway_conf, federation, NULL,
                    "Name of the federation, as given to 'hdt ca init'. Example: example."),
    HDT_CONF_PATH(struct hdt_gateway_conf, state_dir, "/var/lib/hdt",
                  "Folder for the state of jobs (SQLite), their metrics.jsonl and their traces, "
                  "audit.jsonl, and crl.pem as learned from other sites."),
    HDT_CONF_ENUM(struct hdt_gateway_conf, log_level, "info", hdt_log_level_names,
                  "What is logged: life events with info, each object with debug, each chunk with "
                  "trace."),
    HDT_CONF_DURATION(struct hdt_gateway_conf, progress_timeout, HDT_DEADLINES_KNOB_DEFAULT,
                      HDT_DEADLINES_KNOB_MIN_MS, HDT_DEADLINES_KNOB_MAX_MS,
                      "The longest time for which nothing may move before a run is given up; every "
                      "other deadline is a share of it: a peer that is silent for three fifths of "
                      "it is dialled anew, a job fails after all of it. Of two sites the larger "
                      "value counts for the link between them. A job may have its own."),
    HDT_CONF_SECTION(struct hdt_gateway_conf, tls, tls_rows,
                     "Certificates; see hdt(1), 'hdt ca'. Read again on SIGHUP."),
    HDT_CONF_SECTION(struct hdt_gateway_conf, wan, wan_rows, "Links to other sites."),
    HDT_CONF_SECTION(struct hdt_gateway_conf, lan, lan_rows, "Links to the workers of this site."),
    HDT_CONF_SECTION(struct hdt_gateway_conf, http, http_rows, "Page for monitoring."),
    HDT_CONF_SECTION(struct hdt_gateway_conf, data, data_rows, "Threads and memory."),
    HDT_CONF_LIST(struct hdt_gateway_conf, peers, peer_rows, struct hdt_gateway_peer_conf,
                  "Other sites known from the start; further ones are learned from these."),
    HDT_CONF_LIST(
        struct hdt_gateway_conf, budgets, budget_rows, struct hdt_gateway_budget_conf,
        "How much of the links a class or a job may take, and when; up to 32. All that fit "
        "what is sent count: no cap is passed, weights are multiplied. Control messages "
        "are never held back."),
    HDT_CONF_END,
};

const struct hdt_conf_schema hdt_gateway_conf_schema = {
    .name = "gateway",
    .help =
        "Settings of hdt-gateway, one per site. Check them with 'hdt config check gateway FILE'.",
    .rows = gateway_rows,
    .size = sizeof(struct hdt_gateway_conf),
};
