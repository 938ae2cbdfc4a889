/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_DOORMAN_H
#define HDT_GATEWAY_DOORMAN_H

/* Inside of the doorman: what its files share. All of it belongs to the
 * doorman's thread, except where a comment says otherwise. */
#include "gateway/admission.h"
#include "gateway/bucket.h"
#include "gateway/dp.h"

#include <stdatomic.h>

/* Where callers come from, and what became of them. */
struct hdt_source {
    UT_hash_handle hh;
    struct hdt_source_key key;
    unsigned n_callers, n_greeting;
    struct hdt_bucket handshakes;
    bool is_known; /* somebody from there was let in */
    bool is_dry;   /* no token, as of this round */
    int64_t used_us, served_us;
    struct {
        int64_t next_us;
        uint64_t n_unsaid;
        char address[64]; /* of the last one */
    } log[HDT_REFUSED_COUNT];
};

struct hdt_sources {
    struct hdt_dataplane *dp;
    struct hdt_source *table;
    int64_t window_us; /* of the lines below */
    unsigned n_lines;
    uint64_t n_unsaid; /* refusals that found no line in this window */
};

struct hdt_caller {
    int fd;
    struct hdt_door *door;
    struct hdt_source *source;
    int64_t came_us;
    int low_water; /* bytes that must be there before it is looked at again */
    bool is_ready; /* its greeting is there */
    char address[64];
    struct hdt_caller *next, *prev; /* at its door, oldest first */
};

struct hdt_door {
    enum hdt_listener kind;
    int fd; /* -1: there is none */
    bool is_paused, is_said;
    int64_t resume_us, evict_us;
    struct hdt_caller *callers;
    unsigned n_callers, n_greeting;
    struct hdt_bucket strangers;
};

struct hdt_verdict {
    struct hdt_verdict *next;
    struct hdt_source_key key;
    bool is_known, is_refused, is_said;
    enum hdt_refused cause;
    struct hdt_error why;
    char address[64];
};

struct hdt_doorman {
    struct hdt_dataplane *dp;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    int epoll_fd, wake_fd;
    unsigned next_io;
    unsigned rng;
    struct hdt_door doors[HDT_LISTENER_COUNT];
    struct hdt_sources sources;
    uint8_t bytes[5 + 16384];               /* one TLS record */
    atomic_int offered[HDT_LISTENER_COUNT]; /* listening sockets from the main thread; -1: none */
    _Atomic(struct hdt_verdict *) verdicts; /* newest first; any thread pushes */
    atomic_ullong refused[HDT_LISTENER_COUNT][HDT_REFUSED_COUNT];
};

/* ---- doorman_source.c ---- */

/* The entry of a key, made when it is new. Never NULL. */
struct hdt_source *hdt_source_get(struct hdt_sources *sources, const struct hdt_source_key *key,
                                  int64_t now_us);
/* Key and address of a connected socket's other end. */
void hdt_source_key_of(enum hdt_listener door, int fd, const struct sockaddr_storage *sa,
                       struct hdt_source_key *key, char address[64]);
/* Say a refusal, or count it for the next line about this source and cause. */
void hdt_source_refused(struct hdt_sources *sources, struct hdt_source *source,
                        enum hdt_refused cause, const char *address, const struct hdt_error *why);
/* Say what was counted and has waited for its minute. */
void hdt_sources_tick(struct hdt_sources *sources, int64_t now_us);
void hdt_sources_free(struct hdt_sources *sources);

/* ---- doorman_admit.c ---- */

/* Those of a door that may go on, as far as there are places and tokens. */
void hdt_door_admit(struct hdt_doorman *doorman, struct hdt_door *door, int64_t now_us);
/* What the I/O threads have told. */
void hdt_doorman_take_verdicts(struct hdt_doorman *doorman);

/* ---- doorman.c ---- */

void hdt_caller_free(struct hdt_caller *caller);
void hdt_doorman_count(struct hdt_doorman *doorman, enum hdt_listener kind, enum hdt_refused cause);
/* From any thread. */
void hdt_doorman_wake(struct hdt_doorman *doorman);

#endif /* HDT_GATEWAY_DOORMAN_H */
