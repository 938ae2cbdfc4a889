/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_COORDINATOR_H
#define HDT_GATEWAY_COORDINATOR_H

/* A job at the gateway that coordinates it: shared by coordinator.c (its life), job_requests.c
 * (what operators ask), job_store.c (its record), report.c (what its workers say of it) and
 * coordinator_watch.c (who leaves, what takes too long). Main thread. */
#include "gateway/control.h"
#include "src/core/plan.h"

#include <stdio.h>

enum hdt_gwjob_state {
    HDT_GWJOB_PREPARING, /* workers build their stages */
    HDT_GWJOB_RUNNING,
    HDT_GWJOB_STOPPING,  /* asked to end after the current step, with a checkpoint */
    HDT_GWJOB_FINISHING, /* the last step is done; checkpoint and traces are being written */
    HDT_GWJOB_DONE,
    HDT_GWJOB_STOPPED,
    HDT_GWJOB_FAILED,
};

/* What one site has sent over the WAN for the job. */
struct hdt_gwjob_wan {
    char site[HDT_NAME_CAP];
    int64_t raw, plain, sent;
};

struct hdt_gwjob {
    uint32_t job, epoch;
    int64_t number; /* counted at this gateway: what people type */
    char name[HDT_NAME_CAP];
    enum hdt_gwjob_state state;
    int64_t state_since_us;
    struct hdt_job conf;
    struct hdt_plan plan;
    json_t *conf_json, *model_json, *plan_json;
    json_t *cluster_json; /* that the plan was made with; NULL: the operator did not say */
    char *resume, *run_dir;
    FILE *metrics; /* run_dir/metrics.jsonl; NULL when it could not be opened */
    char (*followers)[HDT_ADDRESS_CAP];
    size_t n_followers;
    size_t n_waiting;  /* answers to "assign" (preparing) or "job.wan.get" (finishing) */
    size_t n_requests; /* of whose answers this job is the user: it lives until they came */
    bool root_done, user_stopped;
    bool *rank_is_done; /* by rank */
    size_t n_ranks_done;
    int64_t last_report_us;
    int64_t lost_since_us; /* a worker is away since; 0: none */
    char lost_worker[HDT_ADDRESS_CAP];
    struct hdt_error error;
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
/* run_dir/plan.json: job, model, plan, cluster, epoch and the traces' paths on their machines, for
 * `hdt plan --validate`. Again for each new plan, and at the end. A failure is logged. */
void hdt_gwjob_write_plan(const struct hdt_gwjob *job);

/* The number by which people know the job with this number on the wire. */
unsigned hdt_gwjob_number_of(uint32_t job);

/* Send "job.event" to all followers; body is stolen, gets "job" and "event". */
void hdt_gwjob_event(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *event,
                     json_t *body);

/* Move on; writes the record, tells followers. */
void hdt_gwjob_set_state(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state);

/* Tell the sites the plan, let the workers build their stages. */
void hdt_gwjob_assign(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* One message to every rank's worker; "rank" is filled in; mode may be NULL. */
void hdt_gwjob_tell_ranks(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *type,
                          const char *mode);

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

/* report.c: store one site's "job.wan". */
void hdt_gwjob_take_wan(struct hdt_gwjob *job, const char *site, const json_t *body);

#endif /* HDT_GATEWAY_COORDINATOR_H */
