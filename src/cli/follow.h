/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_FOLLOW_H
#define HDT_CLI_FOLLOW_H

/*
 * Following a job to its end: "job.event" messages become one live line on a terminal, plain lines
 * elsewhere, and a record of the run. Shared by `hdt submit` and `hdt stop`.
 */
#include "src/net/gwclient.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_follow {
    /* Set by the caller. */
    const struct hdt_gwclient_conf *conf; /* to connect again when the gateway restarts */
    struct hdt_gwclient *client;          /* owned by the caller; replaced on a reconnect */
    json_int_t job;                       /* as the gateway named it */
    json_int_t number;                    /* as people name it */
    int64_t steps;                        /* of the whole job; 0: not known */
    int64_t silence_ms;                   /* so long without any event is given up */
    double predicted_step_s;              /* 0: not known */
    bool stops_on_interrupt;              /* first Ctrl-C asks the job to stop; the second leaves */

    /* What came. */
    double *losses, *step_s; /* a step */
    size_t n_losses, losses_cap;
    double val_loss; /* NaN: none */
    char state[32];
    bool stop_asked; /* by our Ctrl-C */
    bool left;       /* by a second one: the job goes on */
    json_t *done;    /* body of the "done" event; NULL: none came */
    char checkpoint[512];
    struct hdt_error error; /* of a failed job */

    /* Private. */
    json_int_t last_step, last_eval, last_checkpoint;
    bool on_tty;
    int line_len;
    int64_t waiting_us; /* when a wait was last shown; 0: never */
};

/* Receive events until the job is over or left. HDT_OK: the job ended or was left, see state;
 * HDT_ETIMEDOUT: silence; HDT_EPEER: the gateway is gone for good. */
enum hdt_status hdt_follow_run(struct hdt_follow *follow, struct hdt_error *err);
void hdt_follow_release(struct hdt_follow *follow);

/* Median of the step times; 0 when there is none. */
double hdt_follow_median_step(const struct hdt_follow *follow);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_FOLLOW_H */
