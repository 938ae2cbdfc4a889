/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which engine is the cheaper one here?
 *
 * Kernels, containers and mitigations decide that, and no list of versions knows them all: so each
 * engine moves the same bytes over a few connections of loopback, as bulk streams do, and the
 * thread's CPU time is compared. CPU time, not the clock: it hardly depends on what else runs. The
 * shortest of a few rounds in turn, because whatever disturbs makes a round longer. What is no
 * better by a clear margin does not replace epoll: a choice that changes from start to start helps
 * nobody.
 */
#include "config.h"

#include "src/net/addr.h"
#include "src/net/engine.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/median.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    N_PAIRS = 4,
    BUF_LEN = 128 << 10, /* as streams submit */
    TRIAL_BYTES = 8 << 20,
    N_ROUNDS = 5,
    CONNECT_MS = 200
};

#define TRIAL_US_MAX (200 * HDT_US_PER_MS) /* of a round; something is wrong then */
#define MARGIN       0.97

struct trial_end {
    struct trial *trial;
    struct hdt_io io;
    size_t left; /* bytes to move in this round */
};

struct trial {
    int fds[N_PAIRS][2]; /* sender, receiver; -1: none */
    struct trial_end ends[N_PAIRS][2];
    uint8_t *buf;
    unsigned n_flying;
    bool has_failed;
};

static void trial_done(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct trial_end *end = io->user;
    struct trial *trial = end->trial;

    trial->n_flying--;
    if (result <= 0 || trial->has_failed) {
        trial->has_failed = true;
        return;
    }
    end->left -= (size_t)result;
    if (end->left > 0) {
        io->len = end->left < BUF_LEN ? end->left : BUF_LEN;
        trial->n_flying++;
        hdt_engine_submit(engine, io);
    }
}

static bool pair_open(int fds[2])
{
    struct hdt_addr addr;
    char text[64];
    int listener, sender, receiver;

    if (hdt_addr_parse("127.0.0.1:0", &addr, NULL) != HDT_OK ||
        hdt_addr_listen(&addr, 0, &listener, NULL) != HDT_OK) {
        return false;
    }
    hdt_addr_of_socket(listener, false, text, sizeof(text));
    if (hdt_addr_parse(text, &addr, NULL) != HDT_OK ||
        hdt_addr_connect(&addr, CONNECT_MS, &sender, NULL) != HDT_OK) {
        close(listener);
        return false;
    }
    receiver = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    close(listener);
    if (receiver < 0) {
        close(sender);
        return false;
    }
    fds[0] = sender;
    fds[1] = receiver;
    return true;
}

static void trial_submit(struct hdt_engine *engine, struct trial *trial)
{
    for (unsigned i = 0; i < N_PAIRS; i++) {
        for (unsigned k = 0; k < 2; k++) {
            struct trial_end *end = &trial->ends[i][k];

            end->trial = trial;
            end->left = TRIAL_BYTES / N_PAIRS;
            end->io = (struct hdt_io){
                .kind = k == 0 ? HDT_IO_SEND : HDT_IO_RECV,
                .fd = trial->fds[i][k],
                .buf = trial->buf + (2 * i + k) * (size_t)BUF_LEN,
                .len = BUF_LEN,
                .passed_fd = -1,
                .done = trial_done,
                .user = end,
            };
            trial->n_flying++;
            hdt_engine_submit(engine, &end->io);
        }
    }
}

/* CPU-seconds a GB of one round; 0: it did not come to its end. */
static double trial_round(struct hdt_engine *engine, struct trial *trial)
{
    const int64_t until_us = hdt_clock_now_us() + TRIAL_US_MAX;
    int64_t cpu_ns = hdt_clock_thread_cpu_ns();

    trial_submit(engine, trial);
    while (trial->n_flying > 0 && !trial->has_failed && hdt_clock_now_us() < until_us) {
        hdt_engine_run_once(engine, HDT_US_PER_MS);
    }
    cpu_ns = hdt_clock_thread_cpu_ns() - cpu_ns;
    trial->has_failed = trial->has_failed || trial->n_flying > 0;
    for (unsigned i = 0; i < N_PAIRS; i++) {
        hdt_engine_cancel(engine, &trial->ends[i][0].io);
        hdt_engine_cancel(engine, &trial->ends[i][1].io);
    }
    while (trial->n_flying > 0) {
        hdt_engine_run_once(engine, HDT_US_PER_MS);
    }
    for (unsigned i = 0; i < N_PAIRS; i++) {
        hdt_engine_forget(engine, trial->fds[i][0]);
        hdt_engine_forget(engine, trial->fds[i][1]);
    }
    return trial->has_failed ? 0 : (double)cpu_ns / TRIAL_BYTES;
}

static bool trial_open(struct trial *trial)
{
    bool is_open = true;

    memset(trial, 0, sizeof(*trial));
    memset(trial->fds, 0xff, sizeof(trial->fds));
    for (unsigned i = 0; i < N_PAIRS && is_open; i++) {
        is_open = pair_open(trial->fds[i]);
    }
    trial->buf = hdt_calloc(2 * N_PAIRS, BUF_LEN);
    return is_open;
}

static void trial_close(struct trial *trial)
{
    for (unsigned i = 0; i < N_PAIRS; i++) {
        for (unsigned k = 0; k < 2; k++) {
            if (trial->fds[i][k] >= 0) {
                close(trial->fds[i][k]);
            }
        }
    }
    free(trial->buf);
}

static double median(const double values[N_ROUNDS])
{
    double sorted[N_ROUNDS];

    memcpy(sorted, values, sizeof(sorted));
    return hdt_median(sorted, N_ROUNDS);
}

/* Rounds in turn; false: one did not end. */
static bool engines_measure(struct hdt_engine *const engines[2], double cost[2][N_ROUNDS])
{
    struct trial trial;
    bool is_ok = trial_open(&trial);

    for (unsigned n = 0; is_ok && n < 2 * N_ROUNDS; n++) {
        cost[n % 2][n / 2] = trial_round(engines[n % 2], &trial);
        is_ok = cost[n % 2][n / 2] > 0;
    }
    trial_close(&trial);
    return is_ok;
}

/* Both open here. */
static void choose_by_trial(struct hdt_engine *const engines[2], struct hdt_engine_choice *choice)
{
    double cost[2][N_ROUNDS], share[N_ROUNDS];
    unsigned best;

    if (!engines_measure(engines, cost)) {
        snprintf(choice->why, sizeof(choice->why),
                 "nothing could be measured over loopback, which is down or busy");
        return;
    }
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        share[i] = cost[1][i] / cost[0][i];
    }
    best = median(share) < MARGIN;
    choice->name = hdt_engine_name(engines[best]);
    snprintf(choice->why, sizeof(choice->why),
             "%s needs %.2f of the CPU time of %s over loopback, which needs %.3f CPU-s a GB",
             hdt_engine_name(engines[1]), median(share), hdt_engine_name(engines[0]),
             median(cost[0]));
}

void hdt_engine_choose(const char *setting, struct hdt_engine_choice *choice)
{
    struct hdt_engine *engines[2] = {NULL, NULL};
    bool is_auto = strcmp(setting, "auto") == 0;

    *choice = (struct hdt_engine_choice){.name = hdt_engine_built_in(0), .why = "as set"};
    if (strcmp(setting, choice->name) == 0) {
        return;
    }
    if (is_auto && !hdt_engine_built_in(1)) {
        snprintf(choice->why, sizeof(choice->why), "this build has no other");
        return;
    }
    if (hdt_engine_open(is_auto ? hdt_engine_built_in(1) : setting, &engines[1],
                        &choice->refused) != HDT_OK) {
        snprintf(choice->why, sizeof(choice->why), "the other was refused");
        return;
    }
    if (!is_auto) {
        choice->name = hdt_engine_name(engines[1]);
    } else if (hdt_engine_open(NULL, &engines[0], NULL) == HDT_OK) {
        choose_by_trial(engines, choice);
        hdt_engine_close(engines[0]);
    }
    hdt_engine_close(engines[1]);
}
