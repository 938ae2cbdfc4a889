/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/doorman.h"
#include "src/base/buf.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Sources: what is remembered of where callers come from. An entry is a host (of IPv6 the network
 * of 64 bits, which one host has to itself) at one listening socket, or a user at the Unix socket.
 *
 * Scanners never stop, so a refusal is one line a minute for each source and cause, with the number
 * of those that it stands for; and as sources are many, only so many lines a minute in all.
 */

/* ---- table ---- */

/* The entry unused for longest that nobody refers to. */
static void sources_forget_one(struct hdt_sources *sources)
{
    struct hdt_source *source, *oldest = NULL;

    for (source = sources->table; source != NULL; source = source->hh.next) {
        if (source->n_callers + source->n_greeting == 0 &&
            (oldest == NULL || source->used_us < oldest->used_us)) {
            oldest = source;
        }
    }
    if (oldest != NULL) { /* there are fewer callers than entries */
        HASH_DEL(sources->table, oldest);
        free(oldest);
    }
}

struct hdt_source *hdt_source_get(struct hdt_sources *sources, const struct hdt_source_key *key,
                                  int64_t now_us)
{
    struct hdt_source *source;

    HASH_FIND(hh, sources->table, key, sizeof(*key), source);
    if (source == NULL) {
        if (HASH_CNT(hh, sources->table) >= HDT_ADMIT_SOURCES_MAX) {
            sources_forget_one(sources);
        }
        source = hdt_calloc(1, sizeof(*source));
        source->key = *key;
        HASH_ADD(hh, sources->table, key, sizeof(*key), source);
    }
    source->used_us = now_us;
    return source;
}

void hdt_sources_free(struct hdt_sources *sources)
{
    struct hdt_source *source, *next;

    HASH_ITER(hh, sources->table, source, next)
    {
        HASH_DEL(sources->table, source);
        free(source);
    }
}

void hdt_source_key_of(enum hdt_listener door, int fd, const struct sockaddr_storage *sa,
                       struct hdt_source_key *key, char address[64])
{
    struct ucred cred = {.uid = (uid_t)-1};
    socklen_t len = sizeof(cred);

    memset(key, 0, sizeof(*key));
    key->door = (uint8_t)door;
    if (sa->ss_family == AF_INET) {
        memcpy(key->bytes, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    } else if (sa->ss_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)sa)->sin6_addr;

        if (IN6_IS_ADDR_V4MAPPED(in6)) {
            memcpy(key->bytes, in6->s6_addr + 12, 4);
        } else {
            memcpy(key->bytes, in6->s6_addr, 8);
        }
    } else {
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len);
        memcpy(key->bytes, &cred.uid, sizeof(cred.uid));
        snprintf(address, 64, "user %u", (unsigned)cred.uid);
        return;
    }
    hdt_addr_of_socket(fd, true, address, 64);
}

/* ---- words ---- */

/* May one more line be written in this minute? */
static bool sources_have_line(struct hdt_sources *sources, int64_t now_us)
{
    if (now_us >= sources->window_us + HDT_ADMIT_LOG_US) {
        if (sources->n_unsaid > 0) {
            hdt_log_warn("%llu more connections were refused: /metrics has them by cause "
                         "(hdt_refused_connections_total)",
                         (unsigned long long)sources->n_unsaid);
        }
        sources->window_us = now_us;
        sources->n_lines = 0;
        sources->n_unsaid = 0;
    }
    return sources->n_lines < HDT_ADMIT_LOG_LINES;
}

/* Gateways are refused by name in /status and in the main thread's log; clients in the log alone.
 */
static void source_say(struct hdt_sources *sources, const struct hdt_source *source,
                       enum hdt_refused cause, const struct hdt_error *why, uint64_t n)
{
    char more[HDT_LOG_LEFT_OUT_CAP];

    sources->n_lines++;
    if (source->key.door == HDT_LISTENER_WAN) {
        hdt_dpevent_peer_refused(sources->dp, "", source->log[cause].address, why, n);
        return;
    }
    hdt_log_warn("dropped a client (%s) before its hello: %s%s%s%s%s", source->log[cause].address,
                 why->msg, why->hint[0] != '\0' ? " (hint: " : "", why->hint,
                 why->hint[0] != '\0' ? ")" : "", hdt_log_left_out(n - 1, more));
}

void hdt_source_refused(struct hdt_sources *sources, struct hdt_source *source,
                        enum hdt_refused cause, const char *address, const struct hdt_error *why)
{
    const int64_t now_us = hdt_clock_now_us();

    snprintf(source->log[cause].address, sizeof(source->log[cause].address), "%s", address);
    source->log[cause].n_unsaid++;
    if (now_us < source->log[cause].next_us) {
        return;
    }
    if (!sources_have_line(sources, now_us)) {
        sources->n_unsaid++;
        source->log[cause].n_unsaid = 0;
        return;
    }
    source_say(sources, source, cause, why, source->log[cause].n_unsaid);
    source->log[cause].n_unsaid = 0;
    source->log[cause].next_us = now_us + HDT_ADMIT_LOG_US;
}

void hdt_sources_tick(struct hdt_sources *sources, int64_t now_us)
{
    struct hdt_error why = {0};
    struct hdt_source *source;
    int cause;

    for (source = sources->table; source != NULL; source = source->hh.next) {
        for (cause = 0; cause < HDT_REFUSED_COUNT; cause++) {
            if (source->log[cause].n_unsaid > 0 && now_us >= source->log[cause].next_us &&
                sources_have_line(sources, now_us)) {
                hdt_refused_error((enum hdt_refused)cause,
                                  source->key.door != HDT_LISTENER_LAN_UNIX, &why);
                source_say(sources, source, (enum hdt_refused)cause, &why,
                           source->log[cause].n_unsaid);
                source->log[cause].n_unsaid = 0;
                source->log[cause].next_us = now_us + HDT_ADMIT_LOG_US;
            }
        }
    }
    (void)sources_have_line(sources, now_us);
}
