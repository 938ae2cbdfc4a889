/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_COORDINATOR_H
#define HDT_GATEWAY_COORDINATOR_H

/* A job at the gateway that coordinates it: shared by coordinator.c (its life), job_requests.c
 * (what operators ask), job_store.c (its record), job_orders.c (orders to its workers), recovery.c
 * (its way back after a loss), report.c (what its workers say of it) and coordinator_watch.c (who
 * leaves, what takes too long). Main thread. */
#include "gateway/control.h"
#include "src/core/plan.h"

#include <stdio.h>

enum hdt_gwjob_state {
    HDT_GWJOB_PREPARING, /* workers build their stages */
    HDT_GWJOB_RUNNING,
    HDT_GWJOB_STOPPING,   /* asked to end after the current step, with a checkpoint */
    HDT_GWJOB_FINISHING,  /* the last step is done; checkpoint and traces are being written */
    HDT_GWJOB_RECOVERING, /* a worker was lost: the next epoch begins when its workers are there */
    HDT_GWJOB_DONE,
    HDT_GWJOB_STOPPED,
    HDT_GWJOB_FAILED,
};

/* What one site has sent over the WAN for the job: in this epoch, and in those before. */
struct hdt_gwjob_wan {
    char site[HDT_NAME_CAP];
    int64_t raw, plain, sent;
    int64_t raw_before, sent_before;
};

/* Where the worker of a rank stands in this epoch (job_orders.c). */
struct hdt_gwjob_rank {
    bool is_asked;   /* an order to it is not answered yet */
    bool is_free;    /* recovering: it has dropped the epoch before */
    bool is_ready;   /* preparing: its stages are built */
    bool is_started; /* it holds the job and was told to train */
    uint32_t serial; /* of the last order */
};

struct hdt_gwjob_wait;

struct hdt_gwjob {
    uint32_t job, epoch;
    int64_t number; /* counted at this gateway: what people type */
    char name[HDT_NAME_CAP];
    enum hdt_gwjob_state state;
    int64_t state_since_us;
    struct hdt_job conf;
    struct hdt_plan plan;
    json_t *conf_json, *model_json, *plan_json;
    char *resume, *run_dir;
    FILE *metrics; /* run_dir/metrics.jsonl; NULL when it could not be opened */
    char (*followers)[HDT_ADDRESS_CAP];
    size_t n_followers;
    size_t n_waiting;  /* answers to "job.wan.get" (finishing) */
    size_t n_requests; /* of whose answers this job is the user: it lives until they came */
    struct hdt_gwjob_wait *waits; /* those that are orders to workers */
    struct hdt_gwjob_rank *by_rank;
    bool root_done, user_stopped;
    bool *rank_is_done; /* by rank */
    size_t n_ranks_done;
    int64_t last_report_us;
    int64_t taken_us; /* this gateway has the job since */
    struct hdt_error error;
    /* recovering, and after it */
    int n_attempts;                 /* epochs in a row that brought nothing new */
    int64_t best_step;              /* most that was ever reported */
    int64_t first_step;             /* steps done before the job's first; -1: not known yet */
    int64_t lost_step, lost_us;     /* where the epoch before ended, and when */
    int64_t not_before_us, said_us; /* the next one begins; followers were told last */
    /* last report */
    int64_t step, start_step, tokens;
    double loss, val_loss, grad_norm, lr, step_s, tokens_per_s;
    bool has_val_loss;
    char weights_digest[20];
    char *checkpoint;
    int64_t checkpoint_step; /* 0: made before this gateway started */
    json_t *ranks, *traces;
    struct hdt_gwjob_wan *wan;
    size_t n_wan;
    int64_t wan_rate_us, wan_rate_sent; /* where the last rate was taken */
    double wan_bits_per_s;
    struct hdt_gwjob *next;
};

const char *hdt_gwjob_state_name(enum hdt_gwjob_state state);
bool hdt_gwjob_is_over(const struct hdt_gwjob *job);
/* Its workers hold it and train, or write what is left to write. */
bool hdt_gwjob_is_under_way(const struct hdt_gwjob *job);
/* Where the next epoch begins: the newest complete checkpoint, else what the job was submitted to
 * go on from, else ""; and the steps done there. */
const char *hdt_gwjob_resume(const struct hdt_gwjob *job);
int64_t hdt_gwjob_resume_step(const struct hdt_gwjob *job);
struct hdt_gwjob *hdt_gwjob_find(struct hdt_gateway *gw, int64_t job);
/* Has "SITE" or "SITE/WORKER" a part in it? */
bool hdt_gwjob_has_member(const struct hdt_gwjob *job, const char *address);
/* Does this worker run this rank? */
bool hdt_gwjob_rank_is_of(const struct hdt_gwjob *job, int64_t rank, const char *address);

/* ---- job_store.c ---- */

/* The record as "job.plan" has it: new reference. */
json_t *hdt_gwjob_record(const struct hdt_gateway *gw, const struct hdt_gwjob *job);
/* Write the record, from which a restarted gateway goes on. */
void hdt_gwjob_save(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* Parse what an operator or the store says; on success *job is a job in no list. */
enum hdt_status hdt_gwjob_parse(json_t *body, const char *conf_key, struct hdt_gwjob **job,
                                struct hdt_error *err);
void hdt_gwjob_free(struct hdt_gwjob *job);
/* Folder of the run, and metrics.jsonl in it. */
enum hdt_status hdt_gwjob_open_run_dir(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                       struct hdt_error *err);

/* The number by which people know the job with this number on the wire. */
unsigned hdt_gwjob_number_of(uint32_t job);

/* Send "job.event" to all followers; body is stolen, gets "job" and "event". */
void hdt_gwjob_event(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *event,
                     json_t *body);

/* Body of the event "state": new reference. */
json_t *hdt_gwjob_state_body(struct hdt_gateway *gw, const struct hdt_gwjob *job);
/* Tell followers of the state as it is. */
void hdt_gwjob_say_state(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* Move on; writes the record, tells followers. */
void hdt_gwjob_set_state(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state);

/* Tell the sites the plan, let the workers build their stages. Every worker is known. */
void hdt_gwjob_assign(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* All are ready: train. */
void hdt_gwjob_run(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* Nothing more comes of this rank; the job ends when it was the last. */
void hdt_gwjob_rank_done(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank);

/* ---- job_orders.c ---- */

void hdt_gwjob_rank_address(const struct hdt_gwjob *job, size_t rank,
                            char address[HDT_ADDRESS_CAP]);
/* No rank before this one is of the same site. */
bool hdt_gwjob_site_is_first(const struct hdt_gwjob *job, size_t rank);
/* One message to every rank's worker; "rank" is filled in; mode may be NULL. */
void hdt_gwjob_tell_ranks(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *type,
                          const char *mode);
/* The record to every site of the plan. */
void hdt_gwjob_tell_sites(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *type);
/* Give the orders that are due in this state to all workers that are connected. Every tick. */
void hdt_gwjob_orders_give(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* A site, or a worker of it, is back: give its workers' orders again. */
void hdt_gwjob_orders_again(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *site);
void hdt_gwjob_waits_free(struct hdt_gwjob *job);

/* End the job for this reason: workers drop it, followers are told. Once; later calls are ignored.
 */
void hdt_gwjob_fail(struct hdt_gateway *gw, struct hdt_gwjob *job, const struct hdt_error *why);

/* Have the root and all ranks reported their end? */
bool hdt_gwjob_all_done(const struct hdt_gwjob *job);
/* They have: collect WAN figures, then release everything. */
void hdt_gwjob_finish(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* Body of the event "done". */
json_t *hdt_gwjob_done_body(struct hdt_gateway *gw, const struct hdt_gwjob *job);

/* catchup.c: send the events after step `since` again, to one follower, and the state as it is. */
void hdt_gwjob_replay(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *to,
                      json_int_t since);

/* Forget jobs that are over: the newest of them stay, for 'hdt status'. */
void hdt_gwjobs_prune(struct hdt_gateway *gw);

/* Sums over sites. */
void hdt_gwjob_wan_totals(const struct hdt_gwjob *job, int64_t *raw, int64_t *sent);

/* report.c: write a line to metrics.jsonl; stolen. */
void hdt_gwjob_metrics_write(struct hdt_gwjob *job, json_t *line);
/* report.c: store one site's "job.wan". */
void hdt_gwjob_take_wan(struct hdt_gwjob *job, const char *site, const json_t *body);

#endif /* HDT_GATEWAY_COORDINATOR_H */
