/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings, the thread that has them written, the signals.
 *
 * A writer takes numbers of cells with one atomic addition, claims each cell, and marks it as whole
 * when its words are there, so that writers never wait for each other, nor for a dump. A writer may
 * sleep in between while the others go once round the ring. They leave a cell alone that somebody
 * is writing to, and so does who finds it taken by a later round: an event is lost, and none is a
 * mix of two. One ring for each thread was refused: most threads record little, and a thread that
 * is gone would take its last minutes along.
 *
 * Signals: the recorder's thread waits for SIGUSR1, from outside or from hdt_recorder_dump, so that
 * there is one way to wake it and no handler interrupts anybody.
 */
#include "config.h"

#include "src/base/recorder.h"
#include "src/base/recorder_internal.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SELDOM_CELLS   (1u << 16) /* 4 MiB */
#define OFTEN_CELLS    (1u << 17) /* 8 MiB */
#define DUMP_APART_US  (10 * HDT_US_PER_S)
#define ASKED_APART_US HDT_US_PER_S
#define RINGS_BYTES    ((SELDOM_CELLS + OFTEN_CELLS) * REC_CELL_BYTES)
#define FIRST_OFTEN    HDT_REC_RESENT

HDT_STATIC_ASSERT(REC_CELLS_MAX < 256, "the number of cells fits a byte");

static struct {
    struct rec_ring rings[2];
    _Atomic bool on;
    void *memory;
    pthread_t thread;
    _Atomic bool stopping, crashing;
    _Atomic uint64_t n_dumps;
    pthread_mutex_t lock; /* guards the rest */
    char dir[REC_PATH_CAP], name[128];
    char asked[32]; /* reason of the next dump; "": none */
    char last[REC_PATH_CAP];
    int64_t last_us;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- recording ---- */

static unsigned thread_number(void)
{
    static _Thread_local unsigned number;

    if (number == 0) {
        number = (unsigned)syscall(SYS_gettid);
    }
    return number;
}

/* The texts one behind the other, each with its end; 0 bytes when there is none. */
static size_t texts_join(const struct hdt_rec *rec, char out[HDT_REC_TEXT_CAP])
{
    size_t len = 0;

    if (!rec->text[0] && !rec->text[1] && !rec->text[2]) {
        return 0;
    }
    for (int i = 0; i < HDT_REC_TEXTS; i++) {
        size_t room = HDT_REC_TEXT_CAP - len - (size_t)(HDT_REC_TEXTS - i);
        size_t n = rec->text[i] ? strnlen(rec->text[i], room) : 0;

        if (n > 0) {
            memcpy(out + len, rec->text[i], n);
        }
        len += n;
        out[len++] = '\0';
    }
    return len;
}

static void cell_set(_Atomic uint64_t *cell, int word, uint64_t value)
{
    atomic_store_explicit(&cell[word], value, memory_order_relaxed);
}

static _Atomic uint64_t *ring_cell(const struct rec_ring *ring, uint64_t number)
{
    return ring->words + (number & (ring->n_cells - 1)) * REC_CELL_WORDS;
}

/* From now on no reader takes it, and no other writer. false: it is not to be written to. */
static bool cell_claim(_Atomic uint64_t *cell, uint64_t number)
{
    uint64_t mark = atomic_load_explicit(&cell[0], memory_order_relaxed);

    if (mark > number || /* of a later round, or REC_WRITING */
        !atomic_compare_exchange_strong_explicit(&cell[0], &mark, REC_WRITING, memory_order_acquire,
                                                 memory_order_relaxed)) {
        return false;
    }
    atomic_thread_fence(memory_order_release); /* before its words */
    return true;
}

/* From now on a reader takes the cell for this round's. */
static void cell_release(_Atomic uint64_t *cell, uint64_t number)
{
    atomic_store_explicit(&cell[0], number + 1, memory_order_release);
}

/* The rest of the text, REC_MORE_TEXT bytes a cell. */
static void cells_add_text(const struct rec_ring *ring, uint64_t first, const char *text,
                           size_t len)
{
    for (uint64_t number = first; len > 0; number++) {
        _Atomic uint64_t *cell = ring_cell(ring, number);
        size_t n = len < REC_MORE_TEXT ? len : REC_MORE_TEXT;
        uint64_t words[REC_CELL_WORDS - 1] = {0};

        if (!cell_claim(cell, number)) {
            return;
        }
        memcpy(words, text, n);
        for (int i = 0; i < REC_CELL_WORDS - 1; i++) {
            cell_set(cell, i + 1, words[i]);
        }
        cell_release(cell, number);
        text += n;
        len -= n;
    }
}

void hdt_recorder_add(const struct hdt_rec *rec)
{
    struct rec_ring *ring = &state.rings[rec->kind >= FIRST_OFTEN];
    char text[HDT_REC_TEXT_CAP];
    size_t len, head;
    uint64_t n_cells, number, start = 0;
    _Atomic uint64_t *cell;

    if (!atomic_load_explicit(&state.on, memory_order_acquire)) {
        return;
    }
    len = texts_join(rec, text);
    head = len < REC_HEAD_TEXT ? len : REC_HEAD_TEXT;
    n_cells = 1 + (len - head + REC_MORE_TEXT - 1) / REC_MORE_TEXT;
    number = atomic_fetch_add_explicit(&ring->next, n_cells, memory_order_relaxed);
    cell = ring_cell(ring, number);
    if (!cell_claim(cell, number)) {
        return;
    }
    memcpy(&start, text, head);
    cell_set(cell, 1, (uint64_t)hdt_clock_now_ns());
    cell_set(cell, 2,
             (uint64_t)rec->kind | n_cells << 8 | (uint64_t)len << 16 |
                 (uint64_t)thread_number() << 32);
    for (int i = 0; i < HDT_REC_NUMBERS; i++) {
        cell_set(cell, 3 + i, (uint64_t)rec->n[i]);
    }
    cell_set(cell, 7, start);
    cells_add_text(ring, number + 1, text + head, len - head);
    cell_release(cell, number);
}

/* ---- reading ---- */

/* Copy a cell that is whole. */
static bool cell_get(const struct rec_ring *ring, uint64_t number, uint64_t words[REC_CELL_WORDS])
{
    _Atomic uint64_t *cell = ring_cell(ring, number);

    if (atomic_load_explicit(&cell[0], memory_order_acquire) != number + 1) {
        return false;
    }
    for (int i = 1; i < REC_CELL_WORDS; i++) {
        words[i] = atomic_load_explicit(&cell[i], memory_order_relaxed);
    }
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&cell[0], memory_order_relaxed) == number + 1;
}

bool hdt_rec_read(const struct rec_ring *ring, uint64_t number, struct rec_event *event)
{
    uint64_t words[REC_CELL_WORDS];
    size_t len, at;

    if (!cell_get(ring, number, words)) {
        return false;
    }
    event->time_ns = (int64_t)words[1];
    event->kind = (enum hdt_rec_kind)(words[2] & 0xff);
    event->n_cells = (unsigned)(words[2] >> 8 & 0xff);
    len = (size_t)(words[2] >> 16 & 0xffff);
    event->thread = (unsigned)(words[2] >> 32);
    if ((unsigned)event->kind >= HDT_REC_KIND_COUNT || len > HDT_REC_TEXT_CAP) {
        return false; /* text of an event whose head is gone */
    }
    memcpy(event->n, &words[3], sizeof(event->n));
    at = len < REC_HEAD_TEXT ? len : REC_HEAD_TEXT;
    memcpy(event->text, &words[7], at);
    for (uint64_t more = number + 1; at < len; more++) {
        size_t n = len - at < REC_MORE_TEXT ? len - at : REC_MORE_TEXT;

        if (!cell_get(ring, more, words)) {
            return false;
        }
        memcpy(event->text + at, &words[1], n);
        at += n;
    }
    event->text[len] = '\0';
    event->text_len = len;
    return event->n_cells == 1 + (len > REC_HEAD_TEXT
                                      ? (len - REC_HEAD_TEXT + REC_MORE_TEXT - 1) / REC_MORE_TEXT
                                      : 0);
}

/* ---- dumps ---- */

static bool reason_is_asked(const char *reason)
{
    return strcmp(reason, "bundle") == 0 || strcmp(reason, "sigusr1") == 0;
}

void hdt_recorder_dump(const char *reason)
{
    bool wake;

    pthread_mutex_lock(&state.lock);
    wake = atomic_load(&state.on) && !state.asked[0];
    if (wake) {
        snprintf(state.asked, sizeof(state.asked), "%s", reason);
    }
    pthread_mutex_unlock(&state.lock);
    if (wake) {
        pthread_kill(state.thread, SIGUSR1);
    }
}

/* On the recorder's thread. */
static void dump_write(const char *reason)
{
    int64_t now_us = hdt_clock_now_us();
    char path[REC_PATH_CAP] = "";
    int errnum;

    if (state.last_us != 0 &&
        now_us - state.last_us < (reason_is_asked(reason) ? ASKED_APART_US : DUMP_APART_US)) {
        hdt_log_debug("flight recorder: not written (%s), it was seconds ago", reason);
        return;
    }
    hdt_rec_prune(state.dir, state.name, HDT_REC_DUMPS - 1);
    errnum = hdt_rec_write(&(struct rec_dump){state.rings, state.dir, state.name, reason}, path);
    if (errnum != 0) {
        hdt_log_warn("cannot write the flight recorder to '%s': %s", path, strerror(errnum));
    } else {
        hdt_log_info("flight recorder written (%s): %s", reason, path);
    }
    pthread_mutex_lock(&state.lock);
    state.last_us = now_us;
    if (errnum == 0) {
        snprintf(state.last, sizeof(state.last), "%s", path);
    }
    pthread_mutex_unlock(&state.lock);
}

/* Woken: by hdt_recorder_dump, or, when nothing was asked for, by somebody outside. */
static void dump_asked(void)
{
    char reason[sizeof(state.asked)];

    pthread_mutex_lock(&state.lock);
    snprintf(reason, sizeof(reason), "%s", state.asked[0] ? state.asked : "sigusr1");
    pthread_mutex_unlock(&state.lock);
    dump_write(reason);
    pthread_mutex_lock(&state.lock);
    state.asked[0] = '\0';
    pthread_mutex_unlock(&state.lock);
    atomic_fetch_add(&state.n_dumps, 1);
}

static void *recorder_main(void *user)
{
    const struct timespec tick = {.tv_sec = 1};
    sigset_t set;

    (void)user;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    while (!atomic_load(&state.stopping)) {
        if (sigtimedwait(&set, NULL, &tick) == SIGUSR1 && !atomic_load(&state.stopping)) {
            dump_asked();
        }
        hdt_log_tick();
    }
    return NULL;
}

uint64_t hdt_recorder_n_dumps(void)
{
    return atomic_load(&state.n_dumps);
}

void hdt_recorder_last_dump(char *out, size_t cap)
{
    pthread_mutex_lock(&state.lock);
    snprintf(out, cap, "%s", state.last);
    pthread_mutex_unlock(&state.lock);
}

int hdt_recorder_is_dump(const char *file_name)
{
    return hdt_rec_is_dump_of(file_name, state.name);
}

/* ---- the end of the process ---- */

static void on_fatal(int number)
{
    const char *reason = number == SIGSEGV ? "sigsegv" : number == SIGBUS ? "sigbus" : "sigabrt";
    char path[REC_PATH_CAP];

    if (atomic_exchange(&state.crashing, true)) {
        nanosleep(&(struct timespec){.tv_sec = 5}, NULL); /* another thread is at it */
    } else if (atomic_load(&state.on)) {
        hdt_rec_write(&(struct rec_dump){state.rings, state.dir, state.name, reason}, path);
    }
    /* SA_RESETHAND has put the default back: it acts when this handler returns. */
    raise(number);
}

static void on_assert(const char *cond, const char *file, int line)
{
    HDT_RECORD(HDT_REC_ASSERT, .n = {line}, .text = {cond, file});
}

/* Where nobody has a handler, as a sanitizer would. A stack of its own for the calling thread: the
 * cause may be that the usual one is full. */
static void fatal_catch(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT};
    static char stack[64 << 10];
    struct sigaction action = {.sa_handler = on_fatal,
                               .sa_flags = (int)(SA_ONSTACK | SA_RESETHAND)},
                     old;
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof(stack)};

    sigemptyset(&action.sa_mask);
    sigaltstack(&alternate, NULL);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL) {
            sigaction(numbers[i], &action, NULL);
        }
    }
}

/* ---- life ---- */

static enum hdt_status thread_start(struct hdt_error *err)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&state.thread, NULL, recorder_main, NULL);
    sigaddset(&old, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc == 0 ? HDT_OK
                   : hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start the recorder's thread");
}

enum hdt_status hdt_recorder_open(const char *dir, const char *name, struct hdt_error *err)
{
    HDT_ASSERT(!atomic_load(&state.on));
    if (!state.memory) {
        /* All of it now: a process that grows until its rings have been round looks like a leak. */
        void *memory = mmap(NULL, RINGS_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

        if (memory == MAP_FAILED) {
            return hdt_error_set_errno(err, HDT_ENOMEM, errno, "cannot get the recorder's memory");
        }
        state.memory = memory;
    }
    snprintf(state.dir, sizeof(state.dir), "%s", dir);
    snprintf(state.name, sizeof(state.name), "%s", name);
    state.rings[0].words = state.memory;
    state.rings[0].n_cells = SELDOM_CELLS;
    state.rings[1].words = state.rings[0].words + (uint64_t)SELDOM_CELLS * REC_CELL_WORDS;
    state.rings[1].n_cells = OFTEN_CELLS;
    atomic_store(&state.stopping, false);
    hdt_rec_prune(dir, name, HDT_REC_DUMPS); /* a crash leaves one more */
    atomic_store_explicit(&state.on, true, memory_order_release);
    if (thread_start(err) != HDT_OK) {
        atomic_store(&state.on, false);
        return HDT_ENOMEM;
    }
    fatal_catch();
    hdt_assert_watch(on_assert);
    return HDT_OK;
}

void hdt_recorder_close(void)
{
    if (!atomic_load(&state.on)) {
        return;
    }
    pthread_mutex_lock(&state.lock);
    while (state.asked[0]) {
        /* The dump that was asked for last is often the one that explains the end. */
        pthread_mutex_unlock(&state.lock);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&state.lock);
    }
    pthread_mutex_unlock(&state.lock);
    atomic_store(&state.stopping, true);
    pthread_kill(state.thread, SIGUSR1);
    pthread_join(state.thread, NULL);
    atomic_store(&state.on, false); /* the rings stay: a late thread may be writing */
}
