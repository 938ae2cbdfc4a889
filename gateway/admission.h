/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_ADMISSION_H
#define HDT_GATEWAY_ADMISSION_H

/*
 * Who is let in, and what the others may cost: all limits on connections that have not said who
 * they are, in one place, and the causes by which refusals are counted.
 *
 * A connection is a *caller* until its greeting is there (a whole ClientHello; on the Unix socket
 * the first bytes of a record), then *admitted* until the other end is known (its certificate is
 * checked and its hello accepted). Callers are kept by one thread of low priority (doorman.c); the
 * admitted are served by the I/O threads, so their number and rate are what strangers can take from
 * a job.
 */
#include "src/base/clock.h"
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Callers of one listening socket, and of one source there. Beyond that the oldest goes that has
 * said nothing, of the source that has most. */
#define HDT_ADMIT_CALLERS_MAX        256
#define HDT_ADMIT_CALLERS_PER_SOURCE 96

/* Admitted ones that are not known yet: as above. One peer opens up to 65 streams at once. */
#define HDT_ADMIT_GREETING_MAX        128
#define HDT_ADMIT_GREETING_PER_SOURCE 80

/* From accept to the greeting, and to the welcome: for all of it together, not for each byte. */
#define HDT_ADMIT_CALLER_US  (5 * HDT_US_PER_S)
#define HDT_ADMIT_WELCOME_US (10 * HDT_US_PER_S)

/* When all places are taken and others wait, who has been at it for so long may lose its own. */
#define HDT_ADMIT_EVICT_US (2 * HDT_US_PER_S)

/* Handshakes: each costs an I/O thread some 0.8 ms. A source has a bucket of its own; sources from
 * which nobody ever was let in also share one, and get back what a success took. So a flood costs a
 * few hundredths of a core, sources take turns, and a known one does not wait for strangers. */
#define HDT_ADMIT_SOURCE_BURST    160
#define HDT_ADMIT_SOURCE_PER_S    32
#define HDT_ADMIT_STRANGERS_BURST 128
#define HDT_ADMIT_STRANGERS_PER_S 24

/* Sources that are remembered. */
#define HDT_ADMIT_SOURCES_MAX 1024

/* A cause is logged once in so long for each source; all sources together so many lines in it. */
#define HDT_ADMIT_LOG_US    (60 * HDT_US_PER_S)
#define HDT_ADMIT_LOG_LINES 40

/* Out of descriptors or memory: accept nothing for so long. */
#define HDT_ADMIT_PAUSE_US (200 * HDT_US_PER_MS)

/* Added to the nice value of the doorman's thread. */
#define HDT_ADMIT_NICE 15

/* The page for monitoring: connections in all, and from accept to the end of the answer. */
#define HDT_ADMIT_HTTP_MAX 64
#define HDT_ADMIT_HTTP_US  (10 * HDT_US_PER_S)

enum hdt_refused {
    HDT_REFUSED_CROWDED, /* gave way to others */
    HDT_REFUSED_SLOW,    /* not done in time */
    HDT_REFUSED_GONE,    /* left by itself */
    HDT_REFUSED_HTTP,    /* plain HTTP */
    HDT_REFUSED_SSH,
    HDT_REFUSED_PLAIN,       /* records of HDT without TLS */
    HDT_REFUSED_TLS,         /* TLS, on the Unix socket */
    HDT_REFUSED_OLD_TLS,     /* no TLS 1.3 */
    HDT_REFUSED_BYTES,       /* none of these */
    HDT_REFUSED_CERTIFICATE, /* none, or one that is not good here */
    HDT_REFUSED_HANDSHAKE,   /* TLS broke */
    HDT_REFUSED_HELLO,       /* version, federation, name, role; or something else than hello */
    HDT_REFUSED_COUNT
};

/* "crowded", "slow", ...: for labels. */
const char *hdt_refused_name(enum hdt_refused cause);

/* What peers that were let in do against the protocol, other than with chunks. */
enum hdt_misdeed {
    HDT_MISDEED_FOREIGN, /* ACK, HAVE or QUERY for a flow that is not of this peer */
    HDT_MISDEED_BREACH,  /* closed a stream */
    HDT_MISDEED_FLOOD,   /* times that a stream was not read for a while */
    HDT_MISDEED_COUNT
};
const char *hdt_misdeed_name(enum hdt_misdeed misdeed);

/* What a caller's first bytes are. */
enum hdt_greeting {
    HDT_GREETING_MORE,  /* not all there */
    HDT_GREETING_GOOD,  /* to be admitted */
    HDT_GREETING_WRONG, /* *cause says what it is */
};
enum hdt_greeting hdt_greeting_check(const uint8_t *bytes, size_t len, bool is_tls,
                                     enum hdt_refused *cause);
/* Of a TLS greeting that is HDT_GREETING_MORE: the length from which more can be said of it. */
size_t hdt_greeting_len(const uint8_t *bytes, size_t len);
/* The refusal in words, with the remedy. */
void hdt_refused_error(enum hdt_refused cause, bool is_tls, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_ADMISSION_H */
