/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_LINK_SIM_IMPL_H
#define HDT_TESTS_LINK_SIM_IMPL_H

/* Inside of the simulation: what its files share. Nothing is freed before the end of a run, so that
 * an event may name what is gone. */
#include "gateway/dp.h"
#include "gateway/dpstep.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/net/engine_impl.h"
#include "tests/support/link_sim.h"

#define SIM_SITES_MAX   3
#define SIM_WORKERS_MAX 2 /* of a site */
#define SIM_FLOWS_MAX   16
#define SIM_FAULTS_MAX  48
#define SIM_IO_MAX      2
#define SIM_CODECS_MAX  3
#define SIM_TAIL        400 /* events that are shown when something is wrong */
#define SIM_JOB         7u
#define SIM_PORT        7000 /* of the first site; the others follow */
#define SIM_MS          HDT_US_PER_MS
#define SIM_S           HDT_US_PER_S

struct sim;
struct sim_blob;
struct sim_conn;
struct sim_pipe;
struct sim_site;
struct sim_sock;
struct sim_worker;

/* ---- the plan: all that is drawn before the first event (link_sim_plan.c) ---- */

struct sim_flow_plan {
    unsigned src_site, src_worker, dst_site, dst_worker;
    uint32_t depth, frame_cap;
    uint64_t n_frames;
    enum hdt_prio prio;
    enum hdt_dtype dtype;
    uint8_t codec;
};

struct sim_link_plan { /* one direction between two sites */
    double bytes_per_us;
    int64_t delay_us, jitter_us;
    unsigned loss_per_10000; /* of segments */
};

/* `how` of HDT_SIM_FORGET, below: which of the streams between two sites; odd: something in between
 * acknowledges what it does not pass on. */
#define SIM_FORGET_CONTROL 150
#define SIM_FORGET_BULK    300
#define SIM_FORGET_ONE     500

struct sim_fault_plan {
    enum hdt_sim_fault kind;
    unsigned per_mille; /* of all frames: when so many were taken */
    int64_t after_us;   /* and so long after that */
    int64_t for_us;
    unsigned a, b, how; /* sites, flows, workers: as the kind has it */
};

struct sim_site_plan {
    unsigned n_workers, n_io, n_codecs, n_streams;
    uint64_t chunk_bytes[2]; /* when it starts, and when it is started again, in turn */
    uint64_t rate_bits_per_s;
    bool eager_send, eager_recv; /* the engine tries at once */
    bool one_for_bursts; /* where a probe says so; else a stream is kept for what is urgent */
    unsigned burst;      /* operations that finish in one round, at most */
    int64_t knob_ms;
};

struct sim_worker_plan {
    bool over_tls;
    unsigned read_max; /* bytes in a turn */
    int64_t turn_us;   /* between turns */
    int64_t think_us;  /* for a frame, before it is acknowledged; up to that */
};

struct sim_plan {
    unsigned n_sites, n_flows, n_faults;
    struct sim_site_plan sites[SIM_SITES_MAX];
    struct sim_worker_plan workers[SIM_SITES_MAX][SIM_WORKERS_MAX];
    struct sim_flow_plan flows[SIM_FLOWS_MAX];
    struct sim_link_plan links[SIM_SITES_MAX][SIM_SITES_MAX];
    bool dials[SIM_SITES_MAX][SIM_SITES_MAX];
    int64_t dial_us[SIM_SITES_MAX][SIM_SITES_MAX];
    struct sim_fault_plan faults[SIM_FAULTS_MAX];
    unsigned io_max;      /* bytes that a WAN socket moves at once; 0: all */
    unsigned skew;        /* streams are up to so many times as far as the link */
    unsigned segment_max; /* bytes that travel together */
    unsigned flip_per_1000, twice_per_1000, cut_record_per_1000; /* of records on links */
    unsigned crowd_per_1000; /* rounds of a thread that come late */
    int64_t probe_us;        /* a link is measured then; 0: none is */
    bool messages;           /* sites talk */
};

/* *faults: HDT_SIM_DRAWN becomes what was drawn. */
void hdt_sim_plan_draw(struct sim_plan *plan, uint64_t seed, unsigned *faults);
void hdt_sim_plan_print(const struct sim_plan *plan);

/* ---- the core (link_sim.c) ---- */

struct sim_event {
    int64_t at_us;
    uint64_t order;
    void (*run)(struct sim *sim, void *arg, uint64_t n);
    void *arg;
    uint64_t n;
};

struct sim_note {
    int64_t at_us;
    const char *what;
    uint64_t n[4];
};

struct sim_codec {
    enum { SIM_CODEC_WAITS, SIM_CODEC_WOKEN, SIM_CODEC_TAKEN, SIM_CODEC_RUN } state;
};

struct sim_engine {
    struct hdt_engine base;
    struct sim_site *site;
    unsigned idx;
    struct sim_sock **ready; /* with an operation that can be done */
    unsigned n_ready, cap_ready;
    int64_t round_us; /* when its next round is due; INT64_MAX: none is */
    uint64_t round_n; /* of that event; 0: none */
    bool is_woken;    /* it is due because there is something to do */
};

struct sim_site {
    struct sim *sim;
    unsigned idx;
    char name[16];
    struct hdt_dataplane *dp; /* NULL: it does not run */
    uint64_t life;            /* counts its starts */
    struct sim_engine *engines[SIM_IO_MAX];
    unsigned n_engines;
    struct sim_codec codecs[SIM_CODECS_MAX];
    bool is_dispatch_due, is_resolve_due, is_off; /* off: its machine is */
    int64_t paused_until_us;
    uint64_t said[SIM_SITES_MAX];                             /* messages to each */
    uint64_t heard[SIM_SITES_MAX], heard_life[SIM_SITES_MAX]; /* and the last of each */
    bool is_up[SIM_SITES_MAX];                                /* the last that was said of each */
    bool is_probing;
    uint32_t closed_epoch; /* the job is told that this one is over */
};

struct sim_end {
    uint64_t next, acked, credit; /* src: next to hand over; dst: next expected */
    uint64_t handed;              /* src: after the newest that was ever handed over */
    uint64_t taken;               /* dst: frames before it may be acknowledged */
    uint64_t offset;              /* of slot 0 in the pool */
    bool is_synced;               /* src: the gateway has said where to begin */
};

struct sim_worker {
    struct sim *sim;
    struct sim_site *site;
    unsigned idx;
    char name[16];
    const struct sim_worker_plan *plan;
    struct hdt_pool pool;
    uint64_t instance, n_connects;
    uint32_t epoch; /* 0: between two */
    struct sim_sock *sock;
    bool is_turn_due;
    int64_t asleep_until_us;
    struct sim_end src[SIM_FLOWS_MAX], dst[SIM_FLOWS_MAX];
    struct hdt_buf out;
    size_t out_start; /* what is before it was sent */
    size_t out_fd_at; /* where in `out` the descriptor of the pool goes; SIZE_MAX: nowhere */
    uint8_t header[HDT_FRAME_HEADER_LEN];
    size_t header_len;
    struct hdt_frame frame; /* whose payload is coming */
    uint8_t *payload;
    size_t payload_len, payload_have;
    uint8_t *spare; /* for what nobody wants, and what is expected */
    size_t spare_len;
};

struct sim {
    uint64_t seed, rng;
    unsigned faults;
    struct sim_plan plan;
    int64_t now_us, began_us;
    struct sim_event *events; /* a heap */
    size_t n_events, cap_events;
    uint64_t next_order, next_round, n_run, digest;
    struct sim_note tail[SIM_TAIL];
    uint64_t n_notes;
    struct sim_site sites[SIM_SITES_MAX];
    struct sim_worker workers[SIM_SITES_MAX][SIM_WORKERS_MAX];
    struct sim_site *running; /* whose code runs now, or is opened */
    uint64_t next_instance;

    /* network */
    struct sim_conn **conns;
    unsigned n_conns, cap_conns;
    struct sim_sock **by_fd;
    int cap_fd;
    int64_t free_us[SIM_SITES_MAX][SIM_SITES_MAX]; /* when the link may send again */
    bool down[SIM_SITES_MAX][SIM_SITES_MAX];
    unsigned n_down[SIM_SITES_MAX][SIM_SITES_MAX]; /* cuts that last */

    /* progress */
    uint32_t epoch;
    int64_t epoch_us;                                 /* before that it is beginning */
    uint64_t frames_total, frames_done, frames_taken; /* of this epoch; of all */
    uint64_t bytes_taken;
    int64_t moved_us;                         /* a frame was taken, or bytes of one came */
    uint64_t bytes_there;                     /* of frames, at gateways, then; a test of progress */
    int64_t disturbed_us;                     /* until then something is broken */
    unsigned n_due, n_played;                 /* faults */
    unsigned n_flips, n_twice, n_cut_records; /* done to records */
    struct sim_blob *blobs;
    bool is_over;
    struct hdt_sim_outcome sum; /* of data planes that are gone */
};

extern struct sim *hdt_sim_now; /* the one that runs */

/* As hdt_sim_run, with a plan that is changed before it is played. */
void hdt_sim_run_adapted(uint64_t seed, unsigned faults, void (*adapt)(struct sim_plan *),
                         struct hdt_sim_outcome *outcome);

__attribute__((noreturn, format(printf, 4, 5))) void hdt_sim_fail(struct sim *sim, const char *file,
                                                                  int line, const char *fmt, ...);
#define SIM_CHECK(sim, cond, ...)                                                                  \
 do {                                                                                              \
  if (!(cond)) {                                                                                   \
   hdt_sim_fail(sim, __FILE__, __LINE__, __VA_ARGS__);                                             \
  }                                                                                                \
 } while (0)

/* [0, n); n > 0 */
uint64_t hdt_sim_below(struct sim *sim, uint64_t n);
bool hdt_sim_chance(struct sim *sim, unsigned per_mille);
uint64_t hdt_sim_mix(uint64_t z);
void hdt_sim_at(struct sim *sim, int64_t at_us, void (*run)(struct sim *, void *, uint64_t),
                void *arg, uint64_t n);
/* Into the digest and the tail. */
void hdt_sim_note(struct sim *sim, const char *what, uint64_t a, uint64_t b, uint64_t c,
                  uint64_t d);
/* A frame was taken. */
void hdt_sim_moved(struct sim *sim);
/* Nothing need move before `until_us`, and a deadline after it. */
void hdt_sim_disturbed(struct sim *sim, int64_t until_us);
/* Everything, to standard error (link_sim_show.c). */
void hdt_sim_show(struct sim *sim);

/* ---- the network (link_sim_net.c) ---- */

struct sim_segment {
    uint64_t end; /* of its bytes, in the pipe's count */
    int64_t due_us;
    bool is_fin;
};

/* Where in a stream of records (link_sim_meddle.c). */
struct sim_parser {
    uint8_t header[HDT_FRAME_HEADER_LEN];
    size_t header_len;
    size_t payload_left;
    bool is_bulk;  /* a chunk went by */
    bool is_lost;  /* it was damaged: no more is known */
    uint8_t *copy; /* of the chunk that goes by, header first; NULL: not wanted */
    size_t copy_len;
    size_t flip_at;  /* byte of what is left that is damaged; SIZE_MAX: none */
    size_t reset_at; /* and at which the connection is reset */
};

/* One direction of a connection. Counts are of bytes since its begin: read <= arrived <= sent <=
 * written, acked <= arrived. */
struct sim_pipe {
    struct sim_conn *conn;
    unsigned dir; /* from sock `dir` to the other */
    uint8_t *buf; /* bytes [read, written) */
    size_t cap, start;
    uint64_t written, sent, arrived, read, acked, swallowed;
    struct sim_segment *segments; /* under way, oldest first */
    unsigned n_segments, first_segment, cap_segments;
    int64_t last_due_us, rto_us, unacked_us, stalled_until_us;
    bool is_arrival_due, is_ack_due;
    bool fin, has_ended; /* nothing is written any more; and that has arrived */
    int passed_fd;       /* rides on byte passed_at */
    uint64_t passed_at;
    size_t window;
    struct sim_parser parser;
};

struct sim_sock {
    struct sim_conn *conn;
    unsigned side;
    int fd; /* a descriptor that stands for it; -1: of a worker, or closed */
    bool is_closed, is_ready;
    int error;          /* of the connection: told once its bytes are read */
    int64_t segment_us; /* one came */
    struct sim_engine *engine;
    struct hdt_io *recv, *send;
    struct sim_worker *worker;
};

struct sim_conn {
    struct sim *sim;
    uint64_t id;
    enum hdt_listener door;
    unsigned site[2]; /* of the two ends; worker connections: the same */
    uint64_t life[2]; /* of the sites when it was made: a machine that came back knows it not */
    struct sim_sock socks[2];
    struct sim_pipe pipes[2];
    struct hdt_io *connecting;
    int64_t syn_us;
    unsigned n_syns;
    bool is_connected, is_admitted;
    bool is_forgotten; /* nothing passes any more */
    bool is_swallowed; /* and somebody acknowledges all the same */
    int64_t extra_us[2];
    unsigned worker_idx; /* of a worker's connection */
};

struct sim_sock *hdt_sim_sock_of(int fd);
struct sim_pipe *hdt_sim_pipe_out(struct sim_sock *sock);
struct sim_pipe *hdt_sim_pipe_in(struct sim_sock *sock);
void hdt_sim_connect(struct sim *sim, struct sim_engine *engine, struct hdt_io *io);
void hdt_sim_connect_cancel(struct hdt_io *io);
/* A worker's connection to its gateway; NULL: nobody accepts. */
struct sim_sock *hdt_sim_connect_worker(struct sim_worker *worker);
/* As far as there is room; 0: none. -errno when the connection is broken. */
int64_t hdt_sim_write(struct sim_sock *sock, const void *bytes, size_t len, int passed_fd);
/* -EAGAIN: nothing there; 0: the end; -errno. */
int64_t hdt_sim_read(struct sim_sock *sock, void *bytes, size_t len, int *passed_fd);
bool hdt_sim_can_write(const struct sim_sock *sock);
bool hdt_sim_can_read(const struct sim_sock *sock);
void hdt_sim_sock_close(struct sim_sock *sock);
/* Both ends are told. */
void hdt_sim_reset(struct sim_conn *conn);
/* Its bytes go no further for now. */
void hdt_sim_stall(struct sim_conn *conn, unsigned dir, int64_t until_us);
void hdt_sim_forget(struct sim_conn *conn, bool is_swallowed);
/* Append to a pipe what its owner did not write. */
void hdt_sim_inject(struct sim_pipe *pipe, const void *bytes, size_t len);
void hdt_sim_net_free(struct sim *sim);

/* Bytes are about to be written: damage them, remember chunks (link_sim_meddle.c). `bytes` are the
 * pipe's own copy. */
void hdt_sim_meddle(struct sim_pipe *pipe, uint8_t *bytes, size_t len);
void hdt_sim_meddle_free(struct sim *sim);

/* ---- the engine (link_sim_engine.c) ---- */

extern const struct hdt_engine_ops hdt_sim_engine_ops;
/* Something of it may go on. */
void hdt_sim_sock_ready(struct sim_sock *sock);
void hdt_sim_connected(struct sim_conn *conn, int64_t result);
/* A socket that stands for an end of a connection. */
int hdt_sim_token(enum hdt_listener door);
int64_t hdt_sim_real_ns(void);

/* ---- sites (link_sim_site.c) ---- */

void hdt_sim_site_start(struct sim_site *site);
/* is_off: nobody is told. */
void hdt_sim_site_stop(struct sim_site *site, bool is_off);
/* Have those run that have something to do. */
void hdt_sim_sites_settle(struct sim *sim);
/* A condition was signalled in the data plane that runs. */
void hdt_sim_signalled(struct sim *sim, const void *cond);
void hdt_sim_site_check_idle(struct sim_site *site);
/* Bytes of frames that have come to it, in whole chunks; in_part: and of those that are coming. */
uint64_t hdt_sim_site_bytes(const struct sim_site *site, bool in_part);

/* ---- faults (link_sim_fault.c) ---- */

/* Those whose time has come by the frames that were taken. */
void hdt_sim_faults_due(struct sim *sim);

/* ---- workers (link_sim_worker.c) ---- */

void hdt_sim_workers_open(struct sim *sim);
void hdt_sim_workers_close(struct sim *sim);
void hdt_sim_worker_ready(struct sim_worker *worker);
/* It gives up the epoch that it is in, and begins another. */
void hdt_sim_worker_release(struct sim_worker *worker);
void hdt_sim_worker_begin(struct sim_worker *worker, uint32_t epoch);
uint32_t hdt_sim_frame_len(const struct sim *sim, unsigned flow, uint32_t epoch, uint64_t seq);

#endif /* HDT_TESTS_LINK_SIM_IMPL_H */
