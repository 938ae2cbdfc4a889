/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_DP_RIG_H
#define HDT_TESTS_DP_RIG_H

/*
 * Several data planes in one process, joined over loopback TLS, each with one worker that the rig
 * plays over a real Unix socket with a memfd pool (or over TLS). Workers send frames whose bytes
 * follow from (seed, flow, number) and check what they receive: every frame, once, in order, bit
 * for bit. When a check fails the process ends with a message and the seed.
 */
#include "gateway/dataplane.h"
#include "src/net/link.h"
#include "src/net/tls.h"

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define RIG_SITES_MAX 3
#define RIG_FLOWS_MAX 12

#define RIG_CHECK(cond, ...)                                                                       \
 do {                                                                                              \
  if (!(cond)) {                                                                                   \
   fprintf(stderr, "%s:%d: seed %u: ", __FILE__, __LINE__, hdt_rig_seed);                          \
   fprintf(stderr, __VA_ARGS__);                                                                   \
   fputc('\n', stderr);                                                                            \
   abort();                                                                                        \
  }                                                                                                \
 } while (0)

extern unsigned hdt_rig_seed; /* HDT_TEST_SEED or the time; printed by hdt_rig_open */

/* One flow from a worker to another. */
struct rig_flow {
    unsigned src_site, dst_site;
    uint32_t depth, frame_cap;
    uint64_t n_frames;
    enum hdt_prio prio;
    uint8_t codec;
};

struct rig_end {
    uint64_t next, acked, credit; /* src: next to hand over; dst: next expected */
    uint64_t most;                /* src: the largest `next` so far */
    bool is_synced;
    bool ack_due;
    uint64_t offset; /* of slot 0 in the pool */
};

struct rig_worker {
    struct rig *rig;
    unsigned site;
    bool over_tls;
    pthread_t thread;
    atomic_bool stop;
    int fd;
    SSL *ssl;
    SSL_CTX *ssl_ctx;
    struct hdt_pool pool;
    struct rig_end src[RIG_FLOWS_MAX], dst[RIG_FLOWS_MAX];
    unsigned rng;
    uint8_t *expected; /* room for one frame */
};

struct rig_site {
    struct rig *rig;
    unsigned idx;
    char name[16];
    char sock[128], wan[64], lan[64];
    int wan_port;
    const char *netns; /* network namespace of the site's sockets (ip netns); NULL: ours */
    struct hdt_tls_ctx *tls;
    struct hdt_dataplane *dp;
    pthread_t main_thread;
    atomic_bool stop;
    struct rig_worker worker;
    atomic_int n_up, n_down, n_refused, n_flow_failed, n_client_up, n_client_down;
    atomic_int n_probed;
    atomic_int n_timed_out; /* of n_down: no byte came for too long */
    atomic_int n_crossed;   /* of n_down: HDT_EEXIST, another one stands */
    double probed_bytes_per_s;
    struct hdt_error last_refused;
};

struct rig {
    char dir[64];
    unsigned n_sites, n_flows;
    bool unchecked; /* benchmarks: all frames full, bytes neither made nor looked at */
    struct rig_flow flows[RIG_FLOWS_MAX];
    struct rig_site sites[RIG_SITES_MAX];
    struct hdt_dataplane_conf conf;    /* site, tls and instance are filled for each */
    atomic_ullong done[RIG_FLOWS_MAX]; /* frames taken */
};

/* Certificates and defaults; then set flows and conf, then hdt_rig_start. */
void hdt_rig_open(struct rig *rig, unsigned n_sites);
void hdt_rig_start(struct rig *rig);
/* Site i dials site j at `address` (NULL: where it listens). */
void hdt_rig_dial(struct rig *rig, unsigned i, unsigned j, const char *address);
/* Wait until all frames of all flows were taken; fails after `seconds` without one more. */
void hdt_rig_wait_done(struct rig *rig, int seconds);
/* Wait until so many frames of all flows together were taken. */
void hdt_rig_wait_frames(struct rig *rig, uint64_t n);
void hdt_rig_wait_peer(struct rig *rig, unsigned i, unsigned j, struct hdt_peer_stats *stats);
/* Counter of a site reaches n. */
void hdt_rig_wait_count(atomic_int *count, int n);
bool hdt_rig_peer_stats(struct rig *rig, unsigned i, unsigned j, struct hdt_peer_stats *stats);
/* Close and open a site's data plane again; its worker reconnects. */
void hdt_rig_restart(struct rig *rig, unsigned i);
void hdt_rig_close(struct rig *rig);
uint64_t hdt_rig_frames_total(const struct rig *rig);
uint64_t hdt_rig_frames_done(struct rig *rig);
unsigned hdt_rig_random(unsigned *state);
void hdt_rig_sleep_ms(int ms);
/* The calling thread, and those that it makes, are in this network namespace from now on. Returns a
 * descriptor of the one that it was in, for hdt_rig_netns_back; -1 when `name` is NULL: it stays.
 */
int hdt_rig_netns_enter(const char *name);
void hdt_rig_netns_back(int was);
/* Port of "host:port". */
int hdt_rig_port(const char *address);
/* Folder of a bundle: certificate of another site or role. */
char *hdt_rig_issue(struct rig *rig, const char *role, const char *name);

/* Revoke the certificate of site i and let site j know. */
void hdt_rig_revoke(struct rig *rig, unsigned i, unsigned j);

/* The worker of a site (dp_worker.c). */
void hdt_rig_worker_start(struct rig_worker *worker);
void hdt_rig_worker_stop(struct rig_worker *worker);

/* ---- a TCP proxy that can be stopped ---- */

struct rig_proxy;
/* Listens on a free port of loopback (in *port) and passes on to `target`. */
struct rig_proxy *hdt_rig_proxy_open(int target_port, int *port);
void hdt_rig_proxy_close(struct rig_proxy *proxy);
/* Hold all bytes, also of new connections, without closing any. */
void hdt_rig_proxy_hold(struct rig_proxy *proxy, bool hold);
/* Hold the n-th connection (in order of opening) for ever. */
void hdt_rig_proxy_hold_old(struct rig_proxy *proxy); /* those that are there, for ever */
void hdt_rig_proxy_hold_one(struct rig_proxy *proxy, unsigned n);
/* Reset all connections. */
void hdt_rig_proxy_reset(struct rig_proxy *proxy);

/* ---- scenarios, for the unit test and for ThreadSanitizer ---- */

void hdt_rig_scenario_exchange(uint8_t codec, bool over_tls, uint64_t n_frames);
void hdt_rig_scenario_three_sites(uint64_t n_frames);
void hdt_rig_scenario_breaks(uint64_t n_frames);
/* A middlebox forgets all connections and says nothing; new ones pass. */
void hdt_rig_scenario_forgotten(uint64_t n_frames);
void hdt_rig_scenario_restart(uint64_t n_frames);

#endif /* HDT_TESTS_DP_RIG_H */
