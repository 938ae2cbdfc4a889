/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_FOLLOW_H
#define HDT_CLI_FOLLOW_H

/*
 * Following a job to its end: "job.event" messages become one live line on a terminal, plain lines
 * elsewhere, and a record of the run. Shared by `hdt submit` and `hdt stop`.
 *
 * A job may be restarted from a checkpoint, as another epoch, and then says steps again: what is
 * new is judged by (epoch, step), and the record has each step as it was trained last. A gateway
 * that is lost is looked for until silence_ms is over; what was missed comes then.
 */
#include "src/net/gwclient.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_follow_step {
    json_int_t step, epoch;
    double loss, step_s; /* NaN: it was no number */
    double pace_s; /* of its round, where an outer step ends one: the mean of its steps, of which
                      only the last has the outer step in it; else step_s */
};

/* How far the events of a kind are known. */
struct hdt_follow_mark {
    json_int_t epoch, step;
};

struct hdt_follow {
    /* Set by the caller. */
    const struct hdt_gwclient_conf *conf; /* to connect again when the gateway restarts */
    struct hdt_gwclient *client;          /* owned by the caller; replaced on a reconnect */
    json_int_t job;                       /* as the gateway named it */
    json_int_t number;                    /* as people name it */
    int64_t steps;                        /* of the whole job; 0: not known */
    int64_t job_timeout_ms;  /* the job's own progress_timeout; 0: the gateway's, or not known */
    int64_t silence_ms;      /* so long without any event, or without a gateway, is given up; 0: as
                                the deadlines or --timeout say */
    double predicted_step_s; /* 0: not known; replaced by what steps say */
    bool every_step;         /* a line for each, however many, also where there is no terminal */
    bool stops_on_interrupt; /* first Ctrl-C asks the job to stop; the second does not wait */
    struct hdt_follow_mark last_step; /* what happened up to there is not asked for */

    /* What came. */
    struct hdt_follow_step *trained; /* in order, each step once */
    size_t n_trained, trained_cap;
    json_int_t epoch;   /* of the job; 0: none was said yet */
    json_int_t n_again; /* steps trained again after restarts */
    double lost_s;      /* by restarts, as the coordinator says */
    double val_loss;    /* NaN: none */
    char state[32];
    bool stop_asked; /* by our Ctrl-C */
    bool left;       /* nobody waits for its end */
    json_t *done;    /* body of the "done" event; NULL: none came */
    char checkpoint[512];
    char checkpoint_from[160]; /* worker on whose machine it is; "": not known */
    char stopped_by[160];      /* who asked first; "": nobody, or it is not known */
    struct hdt_error error;    /* of a failed job */

    /* Private. */
    struct hdt_follow_mark last_eval, last_failed_checkpoint;
    json_int_t checkpoint_step, restart_epoch;
    int64_t heard_us, said_us;       /* last event; last word about waiting */
    int64_t asked_us;                /* when the gateway was last asked whether it lives */
    int64_t recovering_us, until_us; /* since; what is waited for, until; 0: none */
    bool knows_why_not;              /* that the job cannot go on without those who are away */
    bool moves;                      /* to a new plan, rather than recovering from a loss */
    char waits_for[256], until_free[256];
    bool on_tty;
    int line_len;
    int64_t waiting_us; /* when a wait was last shown; 0: never */
    uint64_t n_steps_shown;
    int64_t step_shown_us;
    char step_left_out[256]; /* the newest step when it was not shown; "" */
};

/* Receive events until the job is over or left. HDT_OK: the job ended or was left, see state;
 * HDT_ETIMEDOUT: silence; HDT_EPEER, HDT_ENOENT: the gateway is gone for good, or knows the job no
 * more. */
enum hdt_status hdt_follow_run(struct hdt_follow *follow, struct hdt_error *err);
void hdt_follow_release(struct hdt_follow *follow);

/* Median of the step times since the job last began or was restarted, of *n steps (n may be NULL);
 * 0 when there is none. */
double hdt_follow_median_step(const struct hdt_follow *follow, size_t *n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_FOLLOW_H */
