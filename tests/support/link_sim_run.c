/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many seeds of the simulation: link_sim_run [--seeds N] [--from SEED] [--jobs N] [--faults MASK]
 *
 * Each run is in a process of its own, so that one that fails does not end the others; it has said
 * its seed. With HDT_TEST_SEED, and HDT_TEST_FAULTS as it was said, that one alone.
 */
#include "config.h"

#include "tests/support/link_sim.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOBS_MAX 64

struct options {
    uint64_t n_seeds, from;
    unsigned faults, n_jobs;
    bool is_one;
};

/* What the processes have found, through a pipe. */
struct found {
    uint64_t seed;
    struct hdt_sim_outcome outcome;
};

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int usage(void)
{
    unsigned i;

    fputs("usage: link_sim_run [--seeds N] [--from SEED] [--jobs N] [--faults MASK]\nfaults:",
          stderr);
    for (i = 0; hdt_sim_fault_name(i) != NULL; i++) {
        fprintf(stderr, " %#x %s", 1u << i, hdt_sim_fault_name(i));
    }
    fputs("; drawn from the seed where not given\n", stderr);
    return 2;
}

static bool options_read(struct options *options, int argc, char **argv)
{
    int i;

    *options = (struct options){.n_seeds = 1000, .from = 1, .faults = HDT_SIM_DRAWN, .n_jobs = 2};
    for (i = 1; i + 1 < argc; i += 2) {
        const uint64_t value = strtoull(argv[i + 1], NULL, 0);

        if (strcmp(argv[i], "--seeds") == 0) {
            options->n_seeds = value;
        } else if (strcmp(argv[i], "--from") == 0) {
            options->from = value;
        } else if (strcmp(argv[i], "--jobs") == 0 && value > 0 && value <= JOBS_MAX) {
            options->n_jobs = (unsigned)value;
        } else if (strcmp(argv[i], "--faults") == 0) {
            options->faults = (unsigned)value;
        } else {
            return false;
        }
    }
    options->from = hdt_sim_seed(options->from, &options->is_one);
    options->faults = hdt_sim_faults(options->faults);
    return i == argc;
}

/* Every n_jobs-th seed from `seed` on. */
static void play(const struct options *options, uint64_t seed, int out)
{
    for (; seed < options->from + options->n_seeds; seed += options->n_jobs) {
        struct found found = {.seed = seed};

        hdt_sim_run(seed, options->faults, &found.outcome);
        if (write(out, &found, sizeof(found)) != (ssize_t)sizeof(found)) {
            _exit(1);
        }
    }
    _exit(0);
}

static pid_t start(const struct options *options, uint64_t seed, int out)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        play(options, seed, out);
    }
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    return pid;
}

static void add(struct hdt_sim_outcome *sum, const struct hdt_sim_outcome *more)
{
    sum->digest ^= more->digest;
    sum->n_events += more->n_events;
    sum->took_us += more->took_us;
    sum->n_frames += more->n_frames;
    sum->n_bytes += more->n_bytes;
    sum->n_faults += more->n_faults;
    sum->sent_chunks += more->sent_chunks;
    sum->resent_chunks += more->resent_chunks;
    sum->dup_chunks += more->dup_chunks;
    sum->bad_chunks += more->bad_chunks;
    sum->n_sessions += more->n_sessions;
    sum->n_stream_losses += more->n_stream_losses;
}

static void say(const struct hdt_sim_outcome *sum, uint64_t n_good, unsigned n_failed,
                double took_s)
{
    printf("%llu seeds in %.1f s, %u failed: %llu frames, %.1f MB, %.0f s of virtual time, %llu "
           "events\n%u faults, %llu sessions, %llu streams lost; of %llu chunks %llu again, %llu "
           "dropped as duplicates, %llu as damaged\ndigest of all: %016llx\n",
           (unsigned long long)n_good, took_s, n_failed, (unsigned long long)sum->n_frames,
           (double)sum->n_bytes / 1e6, (double)sum->took_us / 1e6,
           (unsigned long long)sum->n_events, sum->n_faults, (unsigned long long)sum->n_sessions,
           (unsigned long long)sum->n_stream_losses, (unsigned long long)sum->sent_chunks,
           (unsigned long long)sum->resent_chunks, (unsigned long long)sum->dup_chunks,
           (unsigned long long)sum->bad_chunks, (unsigned long long)sum->digest);
}

struct jobs {
    const struct options *options;
    int fds[2]; /* of a pipe, on which they say what they found */
    pid_t pids[JOBS_MAX];
    uint64_t next[JOBS_MAX]; /* the seed that it is at */
    unsigned n_running, n_failed;
    uint64_t n_good;
    struct hdt_sim_outcome sum;
};

/* What was found within timeout_ms. */
static bool collect(struct jobs *jobs, int timeout_ms)
{
    struct pollfd pfd = {.fd = jobs->fds[0], .events = POLLIN};
    struct found found;

    if (poll(&pfd, 1, timeout_ms) <= 0 ||
        read(jobs->fds[0], &found, sizeof(found)) != (ssize_t)sizeof(found)) {
        return false;
    }
    add(&jobs->sum, &found.outcome);
    jobs->next[(found.seed - jobs->options->from) % jobs->options->n_jobs] =
        found.seed + jobs->options->n_jobs;
    jobs->n_good++;
    return true;
}

static void begin(struct jobs *jobs, unsigned i)
{
    if (jobs->next[i] < jobs->options->from + jobs->options->n_seeds) {
        jobs->pids[i] = start(jobs->options, jobs->next[i], jobs->fds[1]);
        jobs->n_running++;
    }
}

/* A process ended: if by a failure, the seeds behind that one are still to do. */
static void reap(struct jobs *jobs)
{
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    unsigned i;

    for (i = 0; i < jobs->options->n_jobs && jobs->pids[i] != pid; i++) {
    }
    if (pid <= 0 || i == jobs->options->n_jobs) {
        return;
    }
    while (collect(jobs, 0)) {
    }
    jobs->n_running--;
    jobs->pids[i] = 0;
    if (status != 0) {
        jobs->n_failed++;
        printf("seed %llu failed\n", (unsigned long long)jobs->next[i]);
        fflush(stdout);
        jobs->next[i] += jobs->options->n_jobs;
        begin(jobs, i);
    }
}

static int run_all(const struct options *options)
{
    struct jobs jobs = {.options = options};
    const double began_s = now_s();
    unsigned i;

    if (pipe(jobs.fds) != 0) {
        perror("pipe");
        return 1;
    }
    for (i = 0; i < options->n_jobs; i++) {
        jobs.next[i] = options->from + i;
        begin(&jobs, i);
    }
    while (jobs.n_running > 0) {
        if (!collect(&jobs, 50)) {
            reap(&jobs);
        }
    }
    say(&jobs.sum, jobs.n_good, jobs.n_failed, now_s() - began_s);
    return jobs.n_failed == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct hdt_sim_outcome outcome;
    struct options options;
    double began_s;

    if (!options_read(&options, argc, argv)) {
        return usage();
    }
    if (!options.is_one) {
        return run_all(&options);
    }
    began_s = now_s();
    hdt_sim_run(options.from, options.faults, &outcome);
    say(&outcome, 1, 0, now_s() - began_s);
    return 0;
}
