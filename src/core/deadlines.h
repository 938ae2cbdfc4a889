/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_DEADLINES_H
#define HDT_CORE_DEADLINES_H

/*
 * Every deadline of HDT, from one knob: `progress_timeout`, the longest time for which nothing may
 * move before a run is given up. It stands in gateway.yaml; a job may have its own. All others are
 * shares of it, so that they keep their order whatever the knob says:
 *
 *   who retries must be through before who waits for the retry gives up.
 *
 * heartbeat < suspect < session_dead           a peer is shown as silent, then dialled beside, then
 *                                              its session is closed
 * connect < handshake                          the handshake begins on a connection
 * gone < missing < session_dead                a process that ended is known soonest; one whose
 *                                              gateway was restarted has to dial first; a site
 *                                              that is silent may only be stopped
 * session_dead + reopen < rank                 a session that was closed is dialled again and
 *                                              carries before a rank gives up
 * reopen < answer                              who waits for it does not try the patience of who
 *                                              asks
 * rank + session_dead + reopen < back_stop     the rank's own words ("waiting for the activation
 *                                              of ...") reach the coordinator, even over a session
 *                                              opened anew, before it ends the job without words
 * probe < answer < relay < links < profile < survey
 *                                              a gateway that asks another one has its answer, or
 *                                              knows that none comes, before its asker gives up
 * back_stop + answer < follow                  'hdt submit' hears how the job ended
 *
 * hdt_deadlines_check says this to the machine.
 */
#include "src/base/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_DEADLINES_KNOB_DEFAULT    "60s"
#define HDT_DEADLINES_KNOB_DEFAULT_MS 60000
#define HDT_DEADLINES_KNOB_MIN_MS     10000
#define HDT_DEADLINES_KNOB_MAX_MS     86400000

/* All in microseconds. In brackets: what follows from the default of 60 s. */
struct hdt_deadlines {
    int64_t progress_us; /* [60 s] the knob of the site */

    /* ---- a connection ---- */
    int64_t heartbeat_us; /* [0.5 s] between two PINGs on a stream: what makes bytes when there are
                             no others */
    int64_t suspect_us;   /* [2 s] no byte from a peer on any stream: it is shown as suspect. When
                             its kernel is silent, too (no segment on any stream), it is dialled
                             beside the session that stands: the first that is heard carries on */
    int64_t stall_us;     /* [3 s] one stream's PING waits while others are answered, on a bulk one
                             without any segment: that stream is given up, its chunks go out again
                             on the others. Longer on a long link, where a loss of TCP's
                             retransmissions takes as long */
    int64_t connect_us;   /* [3 s] connect() of TCP or Unix: given up, dialled again */
    int64_t handshake_us; /* [6 s] from the connection to the answer of hello, both ends: closed */
    int64_t backoff_us;   /* [3 s] longest pause between two dials */
    int64_t reopen_us; /* [12 s] the longest way from the end of a session to one that carries, at a
                          peer that is there: whoever needs its site waits so long for it */
    int64_t session_dead_us; /* [36 s] no byte from a peer on any stream: the session is closed and
                                dialled again; flows resume. A peer that was stopped for 30 s is
                                not closed */

    /* ---- a worker, at its gateway and at the coordinator ---- */
    int64_t gone_us;    /* [3 s] the connection of a worker ended (its process did) and it has not
                           come back: lost. A job says so within 5 s */
    int64_t missing_us; /* [15 s] a site that came back (its gateway was restarted) does not name a
                           worker of the job: lost */

    /* ---- a job ---- */
    int64_t alive_us; /* [1 s] between two `task.alive` of a rank that builds, loads or saves */
    int64_t rank_us;  /* [60 s, or the job's own progress_timeout] nothing of the job moved at this
                         rank: it reports `failed` and names the flow. Also, at the coordinator:
                         a rank that builds, loads or saves has not said `task.alive`; a site of a
                         job has no session */
    int64_t start_us; /* [120 s] at a rank, from its `ready` and again from every sign of the
                         coordinator, to `start`: it gives the job back. Other ranks may still be
                         building; the coordinator's session speaks meanwhile */
    int64_t back_stop_us; /* [120 s] at the coordinator, no report of any rank of a running job:
                             the job fails. The ranks say more, and before */

    /* ---- questions ---- */
    int64_t answer_us;  /* [15 s] a gateway answers from its memory: the command ends, says who did
                           not answer and since when */
    int64_t relay_us;   /* [30 s] a gateway asks another site or a worker to answer */
    int64_t probe_us;   /* [7.5 s] the answer to a round of filler; twice that for all of a link */
    int64_t links_us;   /* [120 s] a site measures its links, one after the other */
    int64_t profile_us; /* [150 s] a worker measures its device */
    int64_t survey_us;  /* [480 s] both, at all sites */
    int64_t follow_us;  /* [150 s] no event of a job that runs: its coordinator is asked again */

    /* ---- the end ---- */
    /* They do not depend on the knob: who ends a daemon waits at a prompt. */
    int64_t stop_us; /* [2 s] last words to a peer, a gateway, a worker */
    int64_t end_us;  /* [10 s] a daemon that was told to end has ended: what still runs then (an
                        operation of a device, a disk that hangs) is named and left */
};

/* The deadlines that follow from the knob, and from the job's own timeout in place of the site's
 * where job_timeout_ms > 0. knob_ms within HDT_DEADLINES_KNOB_MIN_MS .. _MAX_MS. */
void hdt_deadlines_derive(struct hdt_deadlines *d, int64_t knob_ms, int64_t job_timeout_ms);

/* HDT_EINVAL when two of them are out of order; both are named with their values. What follows from
 * a knob alone is always in order; a job's own timeout may be too short for the site's knob. */
enum hdt_status hdt_deadlines_check(const struct hdt_deadlines *d, struct hdt_error *err);

/* The shortest timeout of a job, in milliseconds, that a site with this knob can keep. */
int64_t hdt_deadlines_job_min_ms(int64_t knob_ms);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_DEADLINES_H */
