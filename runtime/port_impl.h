/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_PORT_IMPL_H
#define HDT_RUNTIME_PORT_IMPL_H

/* What port.c (connection, messages), port_flow.c and port_job.c (flows of a job) and port_report.c
 * share; nobody else's. */
#include "runtime/port.h"
#include "runtime/report_queue.h"
#include "src/core/deadlines.h"
#include "src/core/window.h"
#include "src/base/buf.h"
#include "src/net/engine.h"
#include "src/net/gwlink.h"

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

enum port_record_kind { PORT_RECORD_DATA, PORT_RECORD_ACK, PORT_RECORD_POOL };

/* A record with what `sent` needs to know of it; record.user points to the struct itself. */
struct port_record {
    struct hdt_record record;
    enum port_record_kind kind;
    void *owner; /* struct port_slot, struct port_flow */
};

/* A message that waits for the port's thread. */
struct port_msg {
    struct hdt_buf bytes;
    struct port_msg *next;
};

/* What the coordinator of a job has not acknowledged yet (port_report.c). */
struct port_reports {
    pthread_mutex_t lock;      /* guards the rest: the file of the queue may make its holder wait */
    json_int_t job, epoch;     /* of the queue */
    struct hdt_buf checkpoint; /* the last "ckpt" that was reported of the job */
    struct hdt_report_queue *queue; /* NULL: none */
    uint64_t id_base;   /* what "id" has above the number: no answer is taken for another queue's */
    uint64_t sent;      /* last one that went out and need not yet be said again */
    unsigned window;    /* how many may be under way */
    int64_t silence_us; /* after which they are said again */
};

struct port_slot {
    struct port_record rec; /* src */
    uint8_t *data;
    uint32_t len, raw_len;
    uint8_t dtype;
    uint8_t mark;
    bool queued;        /* rec is on the stream */
    int64_t arrived_ns; /* dst: when the frame was whole here */
};

/* Guarded by the port's lock, except what never changes after open. */
struct port_flow {
    const struct hdt_plan_flow *plan;
    uint32_t idx;
    const char *peer_site;
    uint32_t frame_cap, slot_bytes;
    uint64_t pool_offset;
    uint8_t gateway_codec, plain_dtype;
    struct port_slot *slots; /* as many as the window is deep */

    struct hdt_window window;
    bool is_open;  /* on this connection */
    bool borrowed; /* dst: a thread reads the frame window.acked */
    bool ack_queued;
    struct port_record ack;
    int64_t moved_us;
};

struct hdt_port_job {
    struct hdt_port *port;
    struct hdt_port_job_conf conf;
    struct hdt_pool pool;
    struct port_flow *flows; /* of this rank */
    size_t n_flows;
    int *by_plan; /* plan index -> index in flows, -1 */
    struct port_record pool_rec;
    /* Guarded by the port's lock. */
    bool announced; /* pool handed over on this connection */
    bool closing, cancelled, placing;
    unsigned n_queued; /* records of the job on the stream */
    struct hdt_error why;
    int64_t progress_us;
    struct hdt_port_at at;
    pthread_t at_thread; /* that said it */
};

struct hdt_port {
    const json_t *hello;
    struct hdt_port_events events;
    void *user;
    const struct hdt_link_ops *link;
    struct hdt_engine *engine;
    pthread_t thread;
    char *spool_dir;
    struct port_reports reports; /* has a lock of its own */

    pthread_mutex_t lock; /* guards the members up to the next comment, and the job's flows */
    pthread_cond_t moved; /* whenever anything that somebody waits for may have changed */
    bool stopping, pump_posted, break_due;
    bool up; /* the gateway said welcome on this connection */
    uint64_t n_sessions;
    struct port_msg *out_head, *out_tail;
    size_t out_bytes;
    struct hdt_port_job *job;
    uint32_t held_job, held_epoch; /* for hello; 0: none */
    uint32_t next_pool;

    /* Touched by the port's thread only. */
    struct hdt_task pump_task;
    struct hdt_gwlink *gw;
    struct hdt_timer report_timer;
    bool ending, done;
    uint8_t *discard;
    size_t discard_cap;
};

/* A wait of one of the job's threads. */
struct port_waiting {
    int64_t begin_us;
    int64_t next_us;  /* when it is looked at again */
    const char *what; /* "arrival", "slot", "acknowledgement" */
    uint64_t seq;     /* of the frame waited for */
    bool said;        /* the gateway knows of it */
};

/* port_wait.c: the wait goes on; tells the gateway once a second. Sets next_us. The lock is held.
 */
void hdt_port_waits(struct hdt_port_job *job, const struct port_flow *flow,
                    struct port_waiting *waiting);
/* It is over. The lock is held. */
void hdt_port_waited(struct hdt_port_job *job, const struct port_flow *flow,
                     const struct port_waiting *waiting);

static inline struct port_slot *port_flow_slot(const struct port_flow *flow, uint64_t seq)
{
    return &flow->slots[seq % flow->window.depth];
}

/* Something moved: the progress deadline starts anew, waiters look again. The lock is held. */
void hdt_port_job_moved(struct hdt_port_job *job, struct port_flow *flow);

/* Run the pump on the port's thread soon. The lock is held. */
void hdt_port_post_pump(struct hdt_port *port);

/* Queue encoded bytes (copied) as a message. The lock is held. */
void hdt_port_enqueue(struct hdt_port *port, const void *bytes, size_t len);

/* Reports. On the port's thread, no lock held. */
void hdt_port_reports_init(struct hdt_port *port);
void hdt_port_reports_release(struct hdt_port *port);
void hdt_port_reports_up(struct hdt_port *port);   /* after welcome: say again */
void hdt_port_reports_pump(struct hdt_port *port); /* say what may be said */
/* A message came: true when it was an answer to a report and is dealt with. */
bool hdt_port_report_answered(struct hdt_port *port, const json_t *msg);

/* Flows, on the port's thread, lock not held. */
void hdt_port_flows_up(struct hdt_port *port);   /* after welcome: announce anew */
void hdt_port_flows_down(struct hdt_port *port); /* connection lost */
void hdt_port_flows_pump(struct hdt_port *port); /* open what is due, submit what may go */
void hdt_port_flows_sent(struct hdt_port *port, struct port_record *rec);
enum hdt_status hdt_port_flows_place(struct hdt_port *port, const struct hdt_frame *frame,
                                     size_t len, void **buf, struct hdt_error *err);
enum hdt_status hdt_port_flows_record(struct hdt_port *port, const struct hdt_frame *frame,
                                      struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_PORT_IMPL_H */
