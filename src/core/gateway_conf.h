/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_GATEWAY_CONF_H
#define HDT_CORE_GATEWAY_CONF_H

/* Settings of hdt-gateway (gateway.yaml). Defaults in brackets, "required" where there is none. */
#include "src/base/conf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_gateway_tls_conf {
    char *ca;   /* PATH required: CA certificate of the federation */
    char *cert; /* PATH required: this site's certificate */
    char *key;  /* PATH required: its private key */
    char *crl;  /* PATH [""]: revocation list (crl.pem); "" = only what peers send */
};

struct hdt_gateway_peer_conf {
    char *site;    /* STRING required: name that its certificate must carry */
    char *address; /* STRING [""]: host:port to dial; "": this peer dials us */
};

struct hdt_gateway_wan_conf {
    char *listen;     /* STRING ["0.0.0.0:7420"]: address:port; "": do not listen (behind NAT) */
    char *advertise;  /* STRING [""]: address that other sites should dial; "" = as they see us */
    int64_t streams;  /* COUNT [4] 1..64: bulk streams to each peer; 0: as many as pay */
    uint64_t chunk;   /* BYTES ["256KiB"] 64KiB..8MiB: unit a frame is cut into */
    uint64_t rate;    /* RATE ["max"]: cap on what we send to all peers */
    bool pace;        /* BOOL [false]: hold less urgent classes back beside more urgent ones */
    char *congestion; /* STRING [""]: TCP congestion control ("bbr", "cubic"); "" = the kernel's
                       */
};

struct hdt_gateway_lan_conf {
    char *
        socket; /* PATH ["/run/hdt/gateway.sock"]: Unix socket for workers and `hdt` on this host */
    char *listen; /* STRING [""]: address:port (mutual TLS) for workers and operators on other hosts
                   */
};

struct hdt_gateway_http_conf {
    char *listen; /* STRING ["127.0.0.1:7421"]: /status and /metrics; "": off */
};

/* "auto", then the engines of src/net/engine.h. */
extern const char *const hdt_gateway_engine_names[];

struct hdt_gateway_data_conf {
    int engine;            /* ENUM hdt_gateway_engine_names [auto] */
    int64_t io_threads;    /* INT [1] 1..64 */
    int64_t codec_threads; /* INT [1] 1..64 */
    uint64_t memory; /* BYTES ["512MiB"] 16MiB..1TiB: chunk buffers and frames of TCP workers */
};

extern const char *const hdt_gateway_budget_class_names[]; /* "any", then those of enum hdt_prio
                                                               after control */

struct hdt_gateway_budget_conf {
    char *peer;     /* STRING [""]: site that it is sent to; "": all of them */
    int prio;       /* "class", ENUM hdt_gateway_budget_class_names [any]: 0, or an enum hdt_prio */
    char *job;      /* STRING [""]: name of a job or channel; "": all */
    uint64_t rate;  /* RATE ["max"]: cap on what fits */
    int64_t weight; /* INT [1] 1..1000: its share beside other jobs of the same class */
    char *hours;    /* STRING [""]: "22:00-06:00" UTC; "": all day */
    char *days;     /* STRING [""]: "mon-fri,sun"; "": all */
};

struct hdt_gateway_conf {
    char *site;       /* STRING required: name of this site */
    char *federation; /* STRING required: federation, as in the certificates */
    char *
        state_dir; /* PATH ["/var/lib/hdt"]: job state (SQLite), metrics.jsonl and traces of jobs */
    int log_level; /* ENUM hdt_log_level_names [info] */
    int64_t progress_timeout; /* DURATION ms [60s] 10s..24h: the knob of src/core/deadlines.h */
    struct hdt_gateway_tls_conf tls;
    struct hdt_gateway_wan_conf wan;
    struct hdt_gateway_lan_conf lan;
    struct hdt_gateway_http_conf http;
    struct hdt_gateway_data_conf data;
    struct hdt_conf_list peers; /* of struct hdt_gateway_peer_conf; others are learned from these */
    struct hdt_conf_list budgets; /* of struct hdt_gateway_budget_conf; all that fit count */
};

extern const struct hdt_conf_schema hdt_gateway_conf_schema; /* name "gateway" */

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_GATEWAY_CONF_H */
