/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_COORDINATOR_H
#define HDT_GATEWAY_COORDINATOR_H

/* A job at the gateway that coordinates it: shared by coordinator.c (its life), job_requests.c
 * (what operators ask), job_store.c (its record), job_orders.c (orders to its workers), recovery.c
 * (its way back after a loss), shrink.c, replan.c, job_plan.c (another plan), report.c, intake.c
 * (what its workers say of it), follower.c, catchup.c (who is told), job_wan.c (bytes) and
 * coordinator_watch.c (who leaves, what takes too long). Main thread. */
#include "gateway/control.h"
#include "src/core/plan.h"

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

/* What one site has sent over the WAN for the job: by the counter that its gateway has now, and by
 * those before it. */
#define HDT_GWJOB_COUNTER_CAP 40
struct hdt_gwjob_wan {
    char site[HDT_NAME_CAP];
    char counter[HDT_GWJOB_COUNTER_CAP]; /* instance of the gateway and epoch */
    int64_t raw, sent, raw_before, sent_before;
};

/* What a rank last said it was at ("task.alive"). */
struct hdt_gwjob_alive {
    char phase[32];
    int64_t done, total;
    int64_t at_us; /* 0: never */
};

/* The last report taken of each rank's worker in an epoch (intake.c). */
struct hdt_gwintake {
    uint32_t epoch;
    size_t n_ranks;
    int64_t *taken;
};

struct hdt_gwfollower {
    char address[HDT_ADDRESS_CAP];
    bool behind;  /* not all events could be sent: it catches up from metrics.jsonl */
    uint64_t off; /* in the file: what is before was sent */
    json_int_t since_epoch, since_step; /* it has lines up to there */
};

/* Where the worker of a rank stands in this epoch (job_orders.c). */
struct hdt_gwjob_rank {
    bool is_asked;   /* an order to it is not answered yet */
    bool is_free;    /* recovering: it has dropped the epoch before */
    bool is_ready;   /* preparing: its stages are built */
    bool is_started; /* it holds the job and was told to train */
    uint32_t serial; /* of the last order */
};

/* A plan without those who are away (shrink.c). */
struct hdt_gwjob_shrink {
    bool is_asked;                   /* it is being looked for */
    uint32_t epoch;                  /* the job's then */
    int64_t again_us;                /* not before */
    char why_not[HDT_ERROR_MSG_CAP]; /* there was none; "": not tried in this recovery */
};

/* Why a job goes on with another plan, for those who read of it. */
struct hdt_gwreplan {
    const char *cause; /* "loss", "speed" */
    double from_step_s, to_step_s, gain;
    char reason[768], moves[256];
};

/* A faster plan (replan.c). */
#define HDT_REPLAN_BATCH 10
struct hdt_gwjob_replan {
    double step_s[HDT_REPLAN_BATCH],
        *busy_s; /* of the batch; sums by rank, NaN: not of all steps */
    int n_steps, n_warm;
    double measured_s, *rank_busy_s; /* of the last batch: median, means */
    double predicted_s;              /* as corrected; 0: the plan's */
    json_t *cluster;                 /* as corrected; NULL: the plan's */
    bool learned;  /* what its plan says of profiles; or it says nothing of them */
    bool joined;   /* a worker that the cluster has not is idle */
    bool is_asked; /* it is being judged */
    uint32_t epoch;
    int64_t pause, next_step, next_us; /* before the next judgement */
    bool is_wanted;                    /* the ranks stop for `plan` */
    struct hdt_plan plan;
    json_t *plan_cluster;
    struct hdt_gwreplan said;
    double before_s;                         /* measured before the last change; 0: judged */
    double checkpoint_s, start_s, restart_s; /* what they took last; 0: not known */
};

struct hdt_gwjob_wait;
struct hdt_journal;

struct hdt_gwjob {
    uint32_t job, epoch;
    char submitted[20]; /* instance of the gateway that took it, 16 hexadecimal digits */
    int64_t number;     /* counted at this gateway: what people type */
    char name[HDT_NAME_CAP];
    enum hdt_gwjob_state state;
    int64_t state_since_us;
    struct hdt_job conf; /* its progress_timeout is settled: never 0 */
    struct hdt_deadlines deadlines;
    struct hdt_plan plan;
    json_t *conf_json, *model_json, *plan_json;
    json_t *cluster_json; /* that the plan was made with; NULL: the operator did not say */
    char *resume, *run_dir;
    struct hdt_journal *metrics; /* run_dir/metrics.jsonl; NULL when it could not be opened */
    int64_t metrics_failed_us;   /* it cannot be written since; 0: it can */
    json_t *metrics_notes;       /* lines of our own that wait to be written; NULL: none */
    struct hdt_gwintake intake;
    struct hdt_gwfollower *followers;
    size_t n_followers;
    size_t n_waiting;  /* answers to "job.wan.get" (finishing) */
    size_t n_requests; /* of whose answers this job is the user: it lives until they came */
    struct hdt_gwjob_wait *waits; /* those that are orders to workers */
    struct hdt_gwjob_rank *by_rank;
    bool root_done, user_stopped;
    char stopped_by[HDT_ADDRESS_CAP]; /* "": nobody, or it is not known */
    bool *rank_is_done;               /* by rank */
    size_t n_ranks_done;
    int64_t last_report_us;        /* of any rank, signs of life among them */
    struct hdt_gwjob_alive *alive; /* by rank */
    int64_t alive_passed_us;       /* when one was last passed on */
    int64_t taken_us;              /* this gateway has the job since */
    struct hdt_error error;
    /* recovering, and after it */
    int n_attempts;                 /* epochs in a row that brought nothing new */
    int64_t best_step;              /* most that was ever reported */
    int64_t first_step;             /* steps done before the job's first; -1: not known yet */
    int64_t lost_step, lost_us;     /* where the epoch before ended, and when */
    int64_t not_before_us, said_us; /* the next one begins; followers were told last */
    struct hdt_gwjob_shrink shrink;
    struct hdt_gwjob_replan replan;
    /* last report */
    int64_t step, start_step;
    int64_t tokens, tokens_step; /* trained by this job, up to which step */
    double loss, val_loss, grad_norm, lr, step_s, tokens_per_s;
    bool has_val_loss;
    char weights_digest[20];
    char *checkpoint;
    int64_t checkpoint_step; /* 0: made before this gateway started */
    char *bad_checkpoint;    /* one that could not be used; NULL: none */
    int64_t best_checkpoint_step;
    json_t *ranks;
    json_t *traces, *traces_from; /* paths, and the worker on whose machine each is */
    json_t *rank_ends;            /* of ranks that are done, what they said of their time */
    struct hdt_gwjob_wan *wan;
    size_t n_wan;
    int64_t wan_rate_us, wan_rate_sent; /* where the last rate was taken */
    int64_t wan_saved_us;
    double wan_bits_per_s;
    struct hdt_rank_wait *rank_waits; /* rank_state.c */
    int64_t waits_told_us;
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
/* run_dir/plan.json: job, model, plan, cluster, epoch and the traces' paths on their machines, for
 * `hdt plan --validate`. Again for each new plan, and at the end. A failure is logged. */
void hdt_gwjob_write_plan(const struct hdt_gwjob *job);

/* ---- job_deadlines.c ---- */

/* Derive the job's deadlines from the knobs of its sites and its own; HDT_EINVAL with both values
 * when its own is too short. What workers are told is settled, too. */
enum hdt_status hdt_gwjob_settle_deadlines(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                           struct hdt_error *err);
/* "task.alive" of a rank: it works. Passed on to followers and to the other ranks. */
void hdt_gwjob_take_alive(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *msg);
/* Who is not done, and what each last said: "rank 2 (b/w0, saving 3 of 9 61 s ago)". */
void hdt_gwjob_append_waiting(const struct hdt_gwjob *job, struct hdt_buf *text);

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
/* Answers to orders that were given so far count no more: the ranks are others. */
void hdt_gwjob_orders_forget(struct hdt_gwjob *job);

/* ---- job_plan.c ---- */

/* The job goes on with this plan (stolen), made with that cluster, in its next epoch: writes the
 * record and a line of metrics, tells followers. No worker holds the job. */
void hdt_gwjob_take_plan(struct hdt_gateway *gw, struct hdt_gwjob *job, struct hdt_plan *plan,
                         json_t *cluster, const struct hdt_gwreplan *replan);

/* End the job for this reason: workers drop it, followers are told. Once; later calls are ignored.
 */
void hdt_gwjob_fail(struct hdt_gateway *gw, struct hdt_gwjob *job, const struct hdt_error *why);

/* Have the root and all ranks reported their end? */
bool hdt_gwjob_all_done(const struct hdt_gwjob *job);
/* They have: collect WAN figures, then release everything. */
void hdt_gwjob_finish(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* Body of the event "done". */
json_t *hdt_gwjob_done_body(struct hdt_gateway *gw, const struct hdt_gwjob *job);

/* ---- follower.c, catchup.c ---- */

/* Events of the job go to this address from now on. HDT_ENOMEM: too many follow it. *follower may
 * be NULL; it is valid until somebody else begins or ends to follow. */
enum hdt_status hdt_gwjob_follow(struct hdt_gwjob *job, const char *address,
                                 struct hdt_gwfollower **follower, struct hdt_error *err);
/* Send a follower what it has not (from `off` on, and after `since`), and the state at its end.
 * HDT_OK: it has all. Else it is behind, and the next tick goes on; HDT_ENOENT: it is gone. */
enum hdt_status hdt_gwjob_catch_up(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                   struct hdt_gwfollower *follower);
/* The same for one who has all up to a step of an epoch. */
enum hdt_status hdt_gwjob_catch_up_since(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                         struct hdt_gwfollower *follower, json_int_t epoch,
                                         json_int_t step);
void hdt_gwjob_followers_tick(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* Forget jobs that are over: the newest of them stay, for 'hdt status'. */
void hdt_gwjobs_prune(struct hdt_gateway *gw);

/* ---- job_wan.c ---- */

/* Sums over sites. */
void hdt_gwjob_wan_totals(const struct hdt_gwjob *job, int64_t *raw, int64_t *sent);

/* Store one site's "job.wan". */
void hdt_gwjob_take_wan(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *site,
                        const json_t *body);
/* For the record, and back. */
json_t *hdt_gwjob_wan_json(const struct hdt_gwjob *job);
void hdt_gwjob_wan_load(struct hdt_gwjob *job, const json_t *record);

/* ---- intake.c: reports by number ---- */

enum hdt_gwintake_verdict {
    HDT_GWINTAKE_NEXT,  /* to be taken now */
    HDT_GWINTAKE_TAKEN, /* it was before */
    HDT_GWINTAKE_EARLY, /* others come first */
};
/* Report n of the worker of a rank, which has none before `first` any more. */
enum hdt_gwintake_verdict hdt_gwjob_judge(struct hdt_gwjob *job, size_t rank, int64_t n,
                                          int64_t first);
int64_t hdt_gwjob_taken(struct hdt_gwjob *job, size_t rank);
void hdt_gwjob_set_taken(struct hdt_gwjob *job, size_t rank, int64_t n);
/* Say up to which report all were taken; `again`: and that those after it did not come. */
void hdt_gwjob_acknowledge(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank, bool again);
/* For the record; back, with what metrics.jsonl says beyond it (numbers, and the last step). */
json_t *hdt_gwjob_intake_json(struct hdt_gwjob *job);
void hdt_gwjob_intake_load(struct hdt_gwjob *job, const json_t *record);

/* report.c: a whole checkpoint: {step, path, seconds}. Nothing new is ignored. */
void hdt_gwjob_take_checkpoint(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body);
/* report.c: a line of metrics.jsonl of our own (stolen): "epoch" and "time" are added. When it
 * cannot be written now, it is with the next one that can. */
void hdt_gwjob_metrics_note(struct hdt_gwjob *job, json_t *line);

#endif /* HDT_GATEWAY_COORDINATOR_H */
