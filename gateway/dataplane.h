/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_DATAPLANE_H
#define HDT_GATEWAY_DATAPLANE_H

/*
 * The data plane of a gateway: sessions with peer gateways, links to clients (workers and
 * operators), flows between them. It runs on its own I/O and codec threads; the control plane
 * (jobs, federation, HTTP) runs on the main thread and talks to it through this header only.
 *
 * All functions are called on the main thread and do not block. Events are queued by the data plane
 * and delivered on the main thread by hdt_dataplane_dispatch, which the main loop calls when
 * hdt_dataplane_fd is readable.
 *
 * Soft state only: a gateway may die at any instant. The two ends (workers) own sequence numbers
 * and the copy kept for resending; after a restart they open their flows again and both sides learn
 * from ACK and QUERY records where they are.
 */
#include "gateway/admission.h"
#include "gateway/budget_use.h"
#include "src/base/error.h"
#include "src/core/deadlines.h"
#include "src/core/frame.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_dataplane;
struct hdt_engine_ops;
struct hdt_tls_ctx;

struct hdt_dataplane_conf {
    const char *site, *federation;
    uint64_t instance;       /* random number of this process start */
    struct hdt_tls_ctx *tls; /* outlives the data plane */
    const char *version;     /* of the build, in hello */
    const char *advertise;   /* "" or address that others should dial, in hello */
    int n_io_threads, n_codec_threads;
    int n_streams;                    /* 0: as many as pay */
    uint64_t chunk_bytes;             /* multiple of HDT_FRAME_GRANULE */
    uint64_t memory_bytes;            /* bound on chunk buffers and frames of clients without shm */
    uint64_t rate_bits_per_s;         /* cap to all peers; 0 = none */
    const struct hdt_budget *budgets; /* outlive the data plane; not when it is stepped */
    unsigned n_budgets;               /* at most HDT_BUDGETS_MAX */
    bool pace;                        /* hold less urgent classes back beside more urgent ones */
    const char *congestion;           /* "" = the kernel's, "auto" = what carries most */
    const char *engine;               /* as hdt_engine_open takes it; NULL: the default */
    struct hdt_deadlines deadlines; /* of this site; of a session: of the larger knob of the two */
    const struct hdt_engine_ops *stepped; /* NULL: threads, and that engine. Else neither:
                                             its owner does their work (gateway/dpstep.h) */
};

/* A program of libhdt is let in with the certificate of an operator or of a worker of the site. */
enum hdt_client_role { HDT_CLIENT_WORKER, HDT_CLIENT_OPERATOR, HDT_CLIENT_PROGRAM };

struct hdt_client_info {
    uint64_t client; /* its number */
    enum hdt_client_role role;
    const char *name;
    const char *identity; /* that was checked: "uid 1000" or "hdt://lab/operator/ann" */
    const char *address;  /* where it comes from: "unix pid 17" or "10.0.0.2:4444" */
};

/* What the data plane tells the control plane. Strings and JSON are borrowed for the call (take a
 * reference with json_incref). `client` numbers are never reused. */
struct hdt_dataplane_events {
    void (*peer_up)(void *user, const char *site, const json_t *hello);
    void (*peer_down)(void *user, const char *site, const struct hdt_error *why);
    void (*peer_msg)(void *user, const char *site, json_t *msg);
    /* A dial failed or a connection was refused; site may be "" when unknown. Once per cause, and
     * for a stranger once a minute for each cause and source: it stands for n of them. */
    void (*peer_refused)(void *user, const char *site, const char *address,
                         const struct hdt_error *why, uint64_t n);
    /* After its hello was checked (federation, protocol version, role in its certificate or, on the
     * Unix socket, its peer credentials); `hello` is the body. Answered with "welcome" already. */
    void (*client_up)(void *user, const struct hdt_client_info *info, const json_t *hello);
    void (*client_msg)(void *user, uint64_t client, json_t *msg);
    void (*client_down)(void *user, uint64_t client, const struct hdt_error *why);
    /* Answer to hdt_dataplane_probe: goodput of the bulk streams to this peer. */
    void (*probed)(void *user, const char *site, double bytes_per_s, double rtt_s);
    /* A flow met something that the job must know (a frame of wrong size, a foreign flow). */
    void (*flow_failed)(void *user, uint32_t job, uint32_t epoch, const struct hdt_error *why);
};

enum hdt_status hdt_dataplane_open(const struct hdt_dataplane_conf *conf,
                                   const struct hdt_dataplane_events *events, void *user,
                                   struct hdt_dataplane **dp, struct hdt_error *err);
/* Ends threads and connections; blocks for at most two seconds. NULL is allowed. */
void hdt_dataplane_close(struct hdt_dataplane *dp);

int hdt_dataplane_fd(const struct hdt_dataplane *dp);
void hdt_dataplane_dispatch(struct hdt_dataplane *dp);

/* Listeners take an open listening socket (src/net/addr.h), owned by the data plane from here; one
 * of each kind. */
enum hdt_listener {
    HDT_LISTENER_WAN,
    HDT_LISTENER_LAN_UNIX,
    HDT_LISTENER_LAN_TLS,
    HDT_LISTENER_COUNT
};
void hdt_dataplane_listen(struct hdt_dataplane *dp, enum hdt_listener kind, int fd);

/* Keep a session with `site` at `address` (host:port): dial now and again after a loss, with
 * jittered back-off (0.1 s doubling to deadlines.backoff_us), until undialled. When both sides
 * dial, the session dialled by the site with the smaller name stands. Dialling again with another
 * address moves it.
 */
void hdt_dataplane_dial(struct hdt_dataplane *dp, const char *site, const char *address);
void hdt_dataplane_undial(struct hdt_dataplane *dp, const char *site);

/* Send a control message (borrowed; encoded before return). Dropped with HDT_EPEER when there is no
 * such session, HDT_ENOENT when there is no such client; HDT_ENOMEM when more than 32 MiB wait. */
enum hdt_status hdt_dataplane_peer_send(struct hdt_dataplane *dp, const char *site,
                                        const json_t *msg, struct hdt_error *err);
enum hdt_status hdt_dataplane_client_send(struct hdt_dataplane *dp, uint64_t client,
                                          const json_t *msg, struct hdt_error *err);
void hdt_dataplane_client_close(struct hdt_dataplane *dp, uint64_t client,
                                const struct hdt_error *why);

/* One end of a flow at a local client, as its "flow.open" message says and the plan confirms. */
struct hdt_dataplane_flow {
    uint64_t client;
    uint32_t job, epoch, flow;
    bool is_src;
    char peer_site[64]; /* site of the other end; this site: both ends are local */
    char job_name[64];  /* for budgets; of a channel its name */
    enum hdt_prio prio;
    uint8_t codec;        /* gateway codec number for chunks (src side; compress/codec.h) */
    enum hdt_dtype dtype; /* of the plaintext, for the codec */
    uint32_t depth;       /* slots; frame seq lies in slot seq % depth */
    uint32_t frame_cap;   /* bytes a slot; slots start at multiples of it, rounded up to 4096 */
    uint32_t pool;        /* pool number of a shared memory client */
    uint64_t pool_offset; /* of slot 0 */
    uint64_t next_seq;    /* src: next frame that the worker will hand over if nothing is lost;
                             dst: first frame that it has not taken */
};
/* Open (or open again, after a reconnect of client or peer) this end. Frames of a src end come as
 * DATA records of the client; for a dst end the data plane sends DATA records in order of seq.
 * HDT_EINVAL when slots do not lie in the client's pool; HDT_ENOMEM past memory_bytes. */
enum hdt_status hdt_dataplane_flow_open(struct hdt_dataplane *dp,
                                        const struct hdt_dataplane_flow *flow,
                                        struct hdt_error *err);
/* Forget all flows of a job and the pools of its clients (0xffffffff as epoch: any epoch). */
void hdt_dataplane_job_close(struct hdt_dataplane *dp, uint32_t job, uint32_t epoch);

/* Fill the bulk streams to the peer with PROBE records, `bytes` at first and then as many as their
 * rate asks for, and time them by the peer's count. The `probed` event follows: timeout_ms after
 * the last answer of the peer at most, and twice that in all (rate 0 on failure). */
void hdt_dataplane_probe(struct hdt_dataplane *dp, const char *site, uint64_t bytes,
                         int timeout_ms);

/* Check all live sessions and TLS clients against the certificates and the revocation list as they
 * are now (after hdt_tls_ctx_reload): the revoked are closed. */
void hdt_dataplane_recheck(struct hdt_dataplane *dp);

/* Break the n-th bulk stream to a peer as a fault would (tests, `hdt` fault drills). */
void hdt_dataplane_break_stream(struct hdt_dataplane *dp, const char *site, unsigned n);

/* Why a received chunk was refused. */
enum hdt_bad_chunk {
    HDT_BAD_CHECKSUM, /* or the codec cannot read it: damaged on the way or in memory */
    HDT_BAD_FLOW,     /* there is no such flow here */
    HDT_BAD_CREDIT,   /* beyond the credit given */
    HDT_BAD_FRAME,    /* longer than a slot, or unlike other chunks of its frame */
    HDT_BAD_CODEC,    /* not one that may be used there */
    HDT_BAD_COUNT
};

/* What keeps the streams to a peer from carrying more. */
enum hdt_link_limit {
    HDT_LIMIT_APPLICATION, /* there was nothing to send */
    HDT_LIMIT_CODEC,       /* frames wait for the codec threads */
    HDT_LIMIT_RATE,        /* the setting wan.rate */
    HDT_LIMIT_RECEIVER,    /* the window that the peer's kernel gives is full */
    HDT_LIMIT_BUFFER,      /* bytes in flight fill the socket's send buffer */
    HDT_LIMIT_CPU,         /* the I/O thread does not come to fill a socket that has room */
    HDT_LIMIT_PATH,        /* none of these: the congestion window, so the way itself */
    HDT_LIMIT_COUNT
};

/* One bulk stream, as its kernel had it at the last tick. */
struct hdt_tcp_stats {
    unsigned stream;     /* its number, from 1 */
    char congestion[16]; /* "cubic" */
    int64_t rtt_us, min_rtt_us;
    double delivery_bytes_per_s;      /* TCP's own estimate of what the way delivers to it */
    double rate_bytes_per_s, share;   /* acknowledged in the last second; of that of all streams, in
                                         the last second with traffic */
    uint64_t sent_bytes, acked_bytes; /* since it began; sent: with what was sent again */
    uint64_t resent_bytes;
    uint64_t delivered_bytes;    /* since it began: that came there, be it behind a gap, for which
                                    acked_bytes stands still and then jumps */
    uint32_t delivered_segments; /* as the kernel counts, modulo 2^32 */
    int64_t busy_us, rwnd_limited_us, sndbuf_limited_us; /* since it began */
    uint64_t in_flight_bytes, unsent_bytes, cwnd_bytes;
    double cwnd_used;           /* share of the window's segments that are in flight */
    uint64_t peer_window_bytes; /* 0: unknown */
    uint64_t send_buffer_bytes;
    uint32_t path_mtu, mss;
};

/* All bulk streams that what is sent to a peer goes over. */
struct hdt_link_stats {
    unsigned n_tcp;      /* streams of which the kernel tells; 0: what is no total is absent */
    char congestion[16]; /* "mixed": they differ */
    int64_t rtt_us, min_rtt_us; /* mean; shortest */
    int64_t queue_us;           /* mean of how far each is above its own shortest */
    double rate_bytes_per_s;    /* acknowledged in the last second */
    uint64_t cwnd_bytes, in_flight_bytes;
    /* totals, of streams that are gone, too */
    uint64_t sent_bytes, resent_bytes;
    int64_t limit_us[HDT_LIMIT_COUNT]; /* time of streams in use, by what limited them */
    struct hdt_link_load {
        int64_t ago_us;          /* -1: there was none, and the rest is 0 */
        int64_t at_us;           /* of the monotonic clock */
        double rate_bytes_per_s; /* that arrived, by the time in which any stream was in use */
        double resent_share;     /* of bytes sent */
        int64_t queue_us;
        double limit_share[HDT_LIMIT_COUNT]; /* sum: 1 */
        double loaded_share;                 /* of the second: there was something to send */
    } load; /* the last second in which they were in use for half of the time; of those in ten
               seconds the one in which there was something to send for longest */
};

struct hdt_peer_stats {
    char site[64];
    char address[160];
    bool up, suspect, dialled_by_us;
    unsigned n_streams;
    int64_t rtt_us, min_rtt_us, clock_skew_us;
    int64_t silent_us;                   /* since the last byte from it */
    uint64_t sent_bytes, recv_bytes;     /* on the sockets */
    uint64_t sent_chunks, resent_chunks; /* resent: sent before on a stream that was lost */
    uint64_t recv_chunks, dup_chunks, bad_chunks; /* bad: checksum or bounds */
    uint64_t bad_by_cause[HDT_BAD_COUNT];         /* the same, apart */
    uint64_t misdeeds[HDT_MISDEED_COUNT];         /* other records */
    uint64_t plain_bytes, coded_bytes;            /* of chunks sent, before and after the codec */
    uint64_t raw_bytes; /* of the tensors they carry, before worker codecs */
    uint64_t n_sessions, n_stream_losses, n_suspects;
    double goodput_bytes_per_s; /* sent, last measured under load or probe; 0: none */
    int64_t loaded_us;          /* since it was measured under load last; -1: it never was */
    double
        edge_bytes_per_s; /* at which frames of jobs got there, also where the link is not full */
    int64_t edge_us;      /* since that was measured; -1: it never was */
    uint64_t queued_bytes;
    char tls[64];           /* "TLSv1.3 TLS_AES_256_GCM_SHA384" */
    char certificate[224];  /* the peer's, as in its SAN: "hdt://lab/site/b"; "": none yet */
    int64_t cert_left_s;    /* until its end */
    uint32_t path_mtu, mss; /* smallest of the bulk streams, as the kernel has them; 0: unknown */
    uint64_t acked_bytes;   /* of the bulk streams that are up, by the peer's kernel */
    struct hdt_link_stats link;
    unsigned n_streams_used; /* by what this site sends; more may be open, that the peer uses */
    char why_streams[192], why_congestion[192]; /* "8 streams: 4 gave 412 Mbit/s, 8 gave 598" */
    char why_bursts[128]; /* what a probe said of one stream, and what follows; "": nothing */
    char buffers[192], buffers_hint[192]; /* TCP buffers are the limit, and the remedy; "": no */
    double pace_bytes_per_s; /* that bulk is held to beside something urgent; 0: to none */
};

struct hdt_flow_stats {
    uint32_t job, epoch, flow;
    bool is_src;
    char peer_site[64];
    uint64_t next_seq, acked_seq, credit_seq;
    uint64_t n_frames, plain_bytes, coded_bytes, raw_bytes;
    uint64_t sent_bytes; /* of plain_bytes, those that left; what coded_bytes were made of */
    int64_t idle_us;     /* since the flow last moved */
    bool attached;       /* its client is connected */
    bool asks;           /* src: waits to hear where the other end is */
    uint64_t partial_bytes, partial_len; /* dst: of the frame next_seq, what is there; 0: nothing */
};

/* Snapshots into arrays of the caller; return how many there are (may be more than cap). */
size_t hdt_dataplane_peer_stats(struct hdt_dataplane *dp, struct hdt_peer_stats *stats, size_t cap);
size_t hdt_dataplane_flow_stats(struct hdt_dataplane *dp, struct hdt_flow_stats *stats, size_t cap);
/* The bulk streams to a peer of which the kernel tells something. */
size_t hdt_dataplane_stream_stats(struct hdt_dataplane *dp, const char *site,
                                  struct hdt_tcp_stats *stats, size_t cap);

/* One end of a flow; false: it is not open. */
bool hdt_dataplane_flow_find(struct hdt_dataplane *dp, uint32_t job, uint32_t flow, bool is_src,
                             struct hdt_flow_stats *stats);

struct hdt_dataplane_stats {
    uint64_t strangers; /* connections dropped before a valid hello: the sum of these */
    uint64_t refused[HDT_LISTENER_COUNT][HDT_REFUSED_COUNT];
    uint64_t encode_bytes, encode_ns, decode_bytes, decode_ns; /* lossless codec work */
    /* CPU time of this process for a byte of a probe, sent and received; 0: none was made. */
    double probe_send_s_per_byte, probe_recv_s_per_byte;
    /* Of what is open now, since it is: sockets to peers; ends of flows. */
    uint64_t sent_bytes, recv_bytes;
    uint64_t n_frames;
    uint64_t events_queued;
    const char *engine; /* "epoll", "io_uring" */
};
void hdt_dataplane_stats(struct hdt_dataplane *dp, struct hdt_dataplane_stats *stats);

/* What became of each budget: as many as were given. */
void hdt_dataplane_budget_uses(struct hdt_dataplane *dp, struct hdt_budget_use *uses);
/* The lowest cap that now holds for what a class of a job ("": of any) sends to a peer, bits a
 * second; 0: none. */
uint64_t hdt_dataplane_budget_cap(struct hdt_dataplane *dp, const char *site, const char *job,
                                  enum hdt_prio prio);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_DATAPLANE_H */
