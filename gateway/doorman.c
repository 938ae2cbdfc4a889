/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/doorman.h"
#include "src/base/buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The doorman: one thread that accepts connections and keeps them until their greeting is there.
 *
 * The problem: whoever can reach a port can connect, say nothing, say it slowly, say nonsense, or
 * begin handshake after handshake, and an I/O thread that serves all of it serves the job later.
 *
 * The idea: strangers are looked at by a thread of low priority that has no lock in common with the
 * data path. A caller costs it a descriptor and a few hundred bytes. What it is, its first bytes
 * tell (they are only peeked at); the wrong ones end here. The right ones are admitted: an I/O
 * thread takes the descriptor and does the handshake. How many are at it, and how many begin in a
 * second, is bounded, and sources take turns, so that a host which knocks ten thousand times waits
 * behind one that knocks once. Within a source (a site and a scanner behind one NAT) chance picks.
 *
 * What becomes of those admitted, I/O threads tell by verdicts, a stack without a lock: this
 * thread may be kept from the processor for long, and nobody who moves tensors is to wait for it.
 *
 * Refused: handshakes on this thread, too. A stream would have to change its thread in the middle,
 * and the low priority would make honest peers wait for strangers where processors are busy.
 */
#define ACCEPTS_AT_ONCE 16
#define EVENTS_MAX      64
#define TICK_US         (100 * HDT_US_PER_MS)

void hdt_doorman_wake(struct hdt_doorman *doorman)
{
    const uint64_t one = 1;

    if (write(doorman->wake_fd, &one, sizeof(one)) < 0) {
        return; /* EAGAIN only: it is awake */
    }
}

/* ---- callers ---- */

void hdt_caller_free(struct hdt_caller *caller)
{
    DL_DELETE(caller->door->callers, caller);
    caller->door->n_callers--;
    caller->source->n_callers--;
    free(caller);
}

void hdt_doorman_count(struct hdt_doorman *doorman, enum hdt_listener kind, enum hdt_refused cause)
{
    atomic_fetch_add_explicit(&doorman->refused[kind][cause], 1, memory_order_relaxed);
}

static void caller_refuse(struct hdt_doorman *doorman, struct hdt_caller *caller,
                          enum hdt_refused cause)
{
    static const uint8_t alert_version[] = {21, 3, 3, 0, 2, 2, 70}; /* fatal, protocol_version */
    struct hdt_error why = {0};

    hdt_refused_error(cause, caller->door->kind != HDT_LISTENER_LAN_UNIX, &why);
    hdt_doorman_count(doorman, caller->door->kind, cause);
    hdt_source_refused(&doorman->sources, caller->source, cause, caller->address, &why);
    if (cause == HDT_REFUSED_OLD_TLS) {
        (void)send(caller->fd, alert_version, sizeof(alert_version), MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)recv(caller->fd, doorman->bytes, sizeof(doorman->bytes), MSG_DONTWAIT);
    }
    close(caller->fd);
    hdt_caller_free(caller);
}

/* Has this one more right to go than that one? Who has said nothing before who has. */
static bool caller_goes_before(const struct hdt_caller *a, const struct hdt_caller *b)
{
    return b == NULL || (!a->is_ready && b->is_ready) ||
           (a->is_ready == b->is_ready && a->source->n_callers > b->source->n_callers);
}

/* The oldest that has said nothing, of that source or (NULL) of the one that has most. */
static void door_make_room(struct hdt_doorman *doorman, struct hdt_door *door,
                           const struct hdt_source *source)
{
    struct hdt_caller *caller, *goes = NULL;

    DL_FOREACH(door->callers, caller)
    {
        if ((source == NULL || caller->source == source) && caller_goes_before(caller, goes)) {
            goes = caller;
        }
    }
    if (goes != NULL) {
        caller_refuse(doorman, goes, HDT_REFUSED_CROWDED);
    }
}

/* Of a greeting in pieces, the piece that tells more wakes this thread, not every byte. */
static void caller_await(struct hdt_caller *caller, size_t n_bytes)
{
    const int low_water = (int)n_bytes;

    if (low_water != caller->low_water &&
        setsockopt(caller->fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof(low_water)) == 0) {
        caller->low_water = low_water;
    }
}

/* is_leaving: the other end sends no more. */
static void caller_look(struct hdt_doorman *doorman, struct hdt_caller *caller, bool is_leaving)
{
    const bool is_tls = caller->door->kind != HDT_LISTENER_LAN_UNIX;
    enum hdt_refused cause = HDT_REFUSED_BYTES;
    const ssize_t n =
        recv(caller->fd, doorman->bytes, sizeof(doorman->bytes), MSG_PEEK | MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        caller_refuse(doorman, caller, HDT_REFUSED_GONE);
        return;
    }
    switch (hdt_greeting_check(doorman->bytes, (size_t)n, is_tls, &cause)) {
    case HDT_GREETING_MORE:
        if (is_leaving) {
            caller_refuse(doorman, caller, HDT_REFUSED_GONE);
        } else if (is_tls) {
            caller_await(caller, hdt_greeting_len(doorman->bytes, (size_t)n));
        }
        return;
    case HDT_GREETING_GOOD:
        if (is_leaving && is_tls) {
            caller_refuse(doorman, caller, HDT_REFUSED_GONE);
        } else {
            caller->is_ready = true;
            caller_await(caller, 1);
        }
        return;
    case HDT_GREETING_WRONG:
        caller_refuse(doorman, caller, cause);
        return;
    }
}

static void door_add_caller(struct hdt_doorman *doorman, struct hdt_door *door, int fd,
                            const struct sockaddr_storage *sa)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_caller *caller = hdt_calloc(1, sizeof(*caller));
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = caller};
    struct hdt_source_key key;

    hdt_source_key_of(door->kind, fd, sa, &key, caller->address);
    caller->fd = fd;
    caller->door = door;
    caller->source = hdt_source_get(&doorman->sources, &key, now_us);
    caller->came_us = now_us;
    caller->low_water = 1;
    if (caller->source->n_callers >= HDT_ADMIT_CALLERS_PER_SOURCE) {
        door_make_room(doorman, door, caller->source);
    } else if (door->n_callers >= HDT_ADMIT_CALLERS_MAX) {
        door_make_room(doorman, door, NULL);
    }
    DL_APPEND(door->callers, caller);
    door->n_callers++;
    caller->source->n_callers++;
    if (epoll_ctl(doorman->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        caller_refuse(doorman, caller, HDT_REFUSED_CROWDED);
    }
}

/* ---- accepting ---- */

static void door_watch(struct hdt_doorman *doorman, struct hdt_door *door, bool is_on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = door};

    door->is_paused = !is_on;
    epoll_ctl(doorman->epoll_fd, is_on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, door->fd, &event);
}

/* Out of descriptors or memory. Those who have not said who they are give up some of what they
 * hold; the others wait in the kernel's queue until there is more. */
static void door_pause(struct hdt_doorman *doorman, struct hdt_door *door, int errno_value)
{
    unsigned n_go = (door->n_callers + 1) / 2;

    if (!door->is_said) {
        door->is_said = true;
        hdt_log_warn("cannot accept connections for now: %s (hint: raise the limit of open files "
                     "of this service, LimitNOFILE)",
                     strerror(errno_value));
    }
    while (n_go-- > 0) {
        door_make_room(doorman, door, NULL);
    }
    door_watch(doorman, door, false);
    door->resume_us = hdt_clock_now_us() + HDT_ADMIT_PAUSE_US;
}

/* Errors of one connection, which accept4 passes on, are no matter. */
static bool accept_is_out_of(int errno_value)
{
    return errno_value == EMFILE || errno_value == ENFILE || errno_value == ENOBUFS ||
           errno_value == ENOMEM;
}

static void door_accept(struct hdt_doorman *doorman, struct hdt_door *door)
{
    unsigned i;

    for (i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct sockaddr_storage sa = {0};
        socklen_t len = sizeof(sa);
        const int fd =
            accept4(door->fd, (struct sockaddr *)&sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0) {
            if (accept_is_out_of(errno)) {
                door_pause(doorman, door, errno);
            }
            return;
        }
        if (door->is_said) {
            door->is_said = false;
            hdt_log_info("connections are accepted again");
        }
        door_add_caller(doorman, door, fd, &sa);
    }
}

/* ---- the thread ---- */

static void doorman_take_offers(struct hdt_doorman *doorman)
{
    int kind;

    for (kind = 0; kind < HDT_LISTENER_COUNT; kind++) {
        const int fd = atomic_exchange(&doorman->offered[kind], -1);

        if (fd >= 0) {
            doorman->doors[kind].fd = fd;
            door_watch(doorman, &doorman->doors[kind], true);
        }
    }
}

static void door_tick(struct hdt_doorman *doorman, struct hdt_door *door, int64_t now_us)
{
    struct hdt_caller *caller, *next;

    if (door->is_paused && now_us >= door->resume_us) {
        door_watch(doorman, door, true);
    }
    DL_FOREACH_SAFE(door->callers, caller, next)
    {
        if (now_us < caller->came_us + HDT_ADMIT_CALLER_US) {
            break; /* younger ones follow */
        }
        caller_refuse(doorman, caller, caller->is_ready ? HDT_REFUSED_CROWDED : HDT_REFUSED_SLOW);
    }
}

static bool doorman_is_door(const struct hdt_doorman *doorman, const void *ptr)
{
    return (const char *)ptr >= (const char *)doorman->doors &&
           (const char *)ptr < (const char *)(doorman->doors + HDT_LISTENER_COUNT);
}

/* Before it is looked for what woke us: whatever is offered after that wakes us again. */
static void doorman_woken(struct hdt_doorman *doorman, const struct epoll_event *events, int n)
{
    uint64_t count;
    int i;

    for (i = 0; i < n; i++) {
        if (events[i].data.ptr == NULL) {
            (void)!read(doorman->wake_fd, &count, sizeof(count));
        }
    }
}

/* One event may free the caller of another: callers are looked at first, and one has one event. */
static void doorman_serve(struct hdt_doorman *doorman, const struct epoll_event *events, int n)
{
    int i;

    for (i = 0; i < n; i++) {
        if (events[i].data.ptr != NULL && !doorman_is_door(doorman, events[i].data.ptr)) {
            caller_look(doorman, events[i].data.ptr,
                        (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
        }
    }
    for (i = 0; i < n; i++) {
        if (events[i].data.ptr != NULL && doorman_is_door(doorman, events[i].data.ptr)) {
            door_accept(doorman, events[i].data.ptr);
        }
    }
}

static bool doorman_has_work(const struct hdt_doorman *doorman)
{
    int kind;

    for (kind = 0; kind < HDT_LISTENER_COUNT; kind++) {
        if (doorman->doors[kind].callers != NULL || doorman->doors[kind].is_paused) {
            return true;
        }
    }
    return doorman->sources.table != NULL;
}

static void *doorman_main(void *arg)
{
    struct hdt_doorman *doorman = arg;
    struct epoll_event events[EVENTS_MAX];
    int64_t tick_us = 0;
    int kind;

    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), HDT_ADMIT_NICE);
    while (!atomic_load(&doorman->stop)) {
        const int n = epoll_wait(doorman->epoll_fd, events, EVENTS_MAX,
                                 doorman_has_work(doorman) ? TICK_US / HDT_US_PER_MS : -1);
        const int64_t now_us = hdt_clock_now_us();

        doorman_woken(doorman, events, n);
        doorman_take_offers(doorman);
        hdt_doorman_take_verdicts(doorman);
        doorman_serve(doorman, events, n);
        for (kind = 0; kind < HDT_LISTENER_COUNT; kind++) {
            hdt_door_admit(doorman, &doorman->doors[kind], now_us);
        }
        if (now_us >= tick_us + TICK_US) {
            tick_us = now_us;
            for (kind = 0; kind < HDT_LISTENER_COUNT; kind++) {
                door_tick(doorman, &doorman->doors[kind], now_us);
            }
            hdt_sources_tick(&doorman->sources, now_us);
        }
    }
    return NULL;
}

/* ---- life ---- */

enum hdt_status hdt_doorman_start(struct hdt_dataplane *dp, struct hdt_error *err)
{
    struct hdt_doorman *doorman = hdt_calloc(1, sizeof(*doorman));
    struct epoll_event event = {.events = EPOLLIN};
    int rc, kind;

    doorman->dp = dp;
    doorman->sources.dp = dp;
    doorman->rng = (unsigned)hdt_dp_random(dp) | 1u;
    for (kind = 0; kind < HDT_LISTENER_COUNT; kind++) {
        doorman->doors[kind].kind = (enum hdt_listener)kind;
        doorman->doors[kind].fd = -1;
        atomic_init(&doorman->offered[kind], -1);
    }
    dp->doorman = doorman;
    doorman->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    doorman->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (doorman->epoll_fd < 0 || doorman->wake_fd < 0 ||
        epoll_ctl(doorman->epoll_fd, EPOLL_CTL_ADD, doorman->wake_fd, &event) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot watch for connections");
    }
    if (dp->conf.stepped != NULL) {
        return HDT_OK; /* nobody knocks: its owner lets them in */
    }
    rc = pthread_create(&doorman->thread, NULL, doorman_main, doorman);
    if (rc != 0) {
        return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start a thread for connections");
    }
    doorman->started = true;
    return HDT_OK;
}

void hdt_doorman_listen(struct hdt_doorman *doorman, enum hdt_listener kind, int fd)
{
    const int old = atomic_exchange(&doorman->offered[kind], fd);

    HDT_ASSERT(old == -1);
    hdt_doorman_wake(doorman);
}

void hdt_doorman_stop(struct hdt_doorman *doorman)
{
    int kind;

    if (doorman == NULL || !doorman->started) {
        return;
    }
    atomic_store(&doorman->stop, true);
    hdt_doorman_wake(doorman);
    pthread_join(doorman->thread, NULL);
    doorman->started = false;
    doorman_take_offers(doorman);
    for (kind = 0; kind < HDT_LISTENER_COUNT; kind++) {
        struct hdt_door *door = &doorman->doors[kind];

        while (door->callers != NULL) {
            close(door->callers->fd);
            hdt_caller_free(door->callers);
        }
        if (door->fd >= 0) {
            close(door->fd);
        }
    }
}

void hdt_doorman_free(struct hdt_doorman *doorman)
{
    struct hdt_verdict *verdict, *next;

    if (doorman == NULL) {
        return;
    }
    for (verdict = atomic_load(&doorman->verdicts); verdict != NULL; verdict = next) {
        next = verdict->next;
        free(verdict);
    }
    hdt_sources_free(&doorman->sources);
    if (doorman->epoll_fd >= 0) {
        close(doorman->epoll_fd);
    }
    if (doorman->wake_fd >= 0) {
        close(doorman->wake_fd);
    }
    free(doorman);
}

void hdt_doorman_counts(struct hdt_doorman *doorman,
                        uint64_t refused[HDT_LISTENER_COUNT][HDT_REFUSED_COUNT])
{
    int kind, cause;

    for (kind = 0; kind < HDT_LISTENER_COUNT; kind++) {
        for (cause = 0; cause < HDT_REFUSED_COUNT; cause++) {
            refused[kind][cause] =
                atomic_load_explicit(&doorman->refused[kind][cause], memory_order_relaxed);
        }
    }
}
