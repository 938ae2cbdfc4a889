/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE

#include "tests/support/chan_rig.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE_CAP 1024

int hdt_chan_rig_n_failed;

static char dir[] = "/tmp/hdt-chan-XXXXXX";
static const char *knob_text;
static int n_sites;
static struct {
    pid_t pid;
    char wan[64], lan[64];
} sites[CHAN_RIG_SITES];

void hdt_chan_rig_failed(const char *file, int line, const char *what)
{
    printf("%s:%d: [%d] %s\n", file, line, (int)getpid(), what);
    fflush(stdout);
    hdt_chan_rig_n_failed++;
}

double hdt_chan_rig_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void hdt_chan_rig_sleep_ms(int ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&pause, NULL);
}

static char site_name(int site)
{
    return (char)('a' + site);
}

__attribute__((format(printf, 1, 2))) static void run(const char *format, ...)
{
    char command[LINE_CAP];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    if (system(command) != 0) {
        printf("cannot run: %s\n", command);
        exit(99);
    }
}

void hdt_chan_rig_open(void)
{
    if (!mkdtemp(dir)) {
        exit(99);
    }
    signal(SIGPIPE, SIG_DFL);
    run("./hdt ca init --dir %s/ca --federation lab >/dev/null", dir);
}

void hdt_chan_rig_close(void)
{
    for (int i = 0; i < n_sites; i++) {
        if (sites[i].pid > 0) {
            int status = -1;

            kill(sites[i].pid, SIGTERM);
            waitpid(sites[i].pid, &status, 0);
            CHAN_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
    }
    if (hdt_chan_rig_n_failed == 0) {
        run("rm -rf '%s'", dir);
    } else {
        printf("kept for a look: %s\n", dir);
    }
}

const char *hdt_chan_rig_pem(const char *role, const char *name, const char *file)
{
    static char path[256];
    char folder[160];
    struct stat st;

    snprintf(folder, sizeof(folder), "%s/%s-%s", dir, role, name);
    for (char *c = folder + strlen(dir) + 1; *c; c++) {
        *c = *c == '/' ? '-' : *c;
    }
    if (stat(folder, &st) != 0) {
        run("./hdt ca issue --dir %s/ca --out %s %s %s >/dev/null", dir, folder, role, name);
    }
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    return path;
}

/* ---- gateways ---- */

const char *hdt_chan_rig_address(int site, bool tls)
{
    static char address[CHAN_RIG_SITES][2][128];

    if (tls) {
        snprintf(address[site][1], 128, "tls:%s", sites[site].lan);
    } else {
        snprintf(address[site][0], 128, "unix:%s/%c.sock", dir, site_name(site));
    }
    return address[site][tls];
}

static void gateway_conf(int site)
{
    const char c = site_name(site);
    char path[160];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%c.yaml", dir, c);
    file = fopen(path, "w");
    if (!file) {
        exit(99);
    }
    fprintf(file,
            "site: %c\nfederation: lab\nstate_dir: state-%c\nprogress_timeout: %s\n"
            "tls: {ca: tls-%c/ca.pem, cert: tls-%c/cert.pem, key: tls-%c/key.pem}\n"
            "wan: {listen: \"%s\"}\nlan: {socket: %c.sock, listen: \"%s\"}\n"
            "http: {listen: \"\"}\ndata: {memory: 512MiB}\n",
            c, c, knob_text, c, c, c, sites[site].wan[0] ? sites[site].wan : "127.0.0.1:0", c,
            sites[site].lan[0] ? sites[site].lan : "127.0.0.1:0");
    if (site > 0) {
        fprintf(file, "peers:\n");
    }
    for (int i = 0; i < site; i++) {
        fprintf(file, "  - {site: %c, address: \"%s\"}\n", site_name(i), sites[i].wan);
    }
    fclose(file);
}

static void gateway_exec(int site)
{
    char path[160], log[160];

    snprintf(path, sizeof(path), "%s/%c.yaml", dir, site_name(site));
    snprintf(log, sizeof(log), "%s/%c.log", dir, site_name(site));
    sites[site].pid = fork();
    if (sites[site].pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!freopen(log, "a", stderr)) {
            _exit(99);
        }
        execl("./hdt-gateway", "hdt-gateway", "-l", "info", "-c", path, (char *)NULL);
        _exit(127);
    }
}

static struct hdt_ctx *ctx_soon(int site, struct hdt_error_info *error)
{
    const double end = hdt_chan_rig_now_s() + 60;
    struct hdt_ctx *ctx = NULL;

    while (hdt_open(hdt_chan_rig_address(site, false), NULL, &ctx, error) != HDT_ERR_NONE &&
           hdt_chan_rig_now_s() < end) {
        hdt_chan_rig_sleep_ms(20);
    }
    return ctx;
}

struct hdt_ctx *hdt_chan_rig_ctx(int site)
{
    struct hdt_error_info error;
    struct hdt_ctx *ctx = ctx_soon(site, &error);

    if (!ctx) {
        printf("site %c: %s\n", site_name(site), error.message);
        CHAN_CHECK(ctx != NULL);
    }
    return ctx;
}

/* The log says where it listens: "listening on 127.0.0.1:33445 (gateways, ...". */
static void listen_read(int site, const char *what, char *address, size_t cap)
{
    char path[160], line[LINE_CAP];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%c.log", dir, site_name(site));
    file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        char *at = strstr(line, "listening on "), *end = at ? strstr(at, what) : NULL;

        if (end) {
            *end = '\0';
            snprintf(address, cap, "%s", at + strlen("listening on "));
        }
    }
    if (file) {
        fclose(file);
    }
}

static int count_of(const char *text, const char *what)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) {
        n++;
    }
    return n;
}

/* Wait until the gateway of a site is connected to all others. */
static void gateway_wait_peers(int site)
{
    const double end = hdt_chan_rig_now_s() + 60;
    struct hdt_ctx *ctx = hdt_chan_rig_ctx(site);
    int n_up = 0;
    char *json;

    while (ctx && n_up < n_sites - 1 && hdt_chan_rig_now_s() < end) {
        if (hdt_status(ctx, &json, NULL) == HDT_ERR_NONE) {
            n_up = count_of(json, "\"up\":true");
            hdt_free(json);
        }
        hdt_chan_rig_sleep_ms(20);
    }
    CHAN_CHECK(n_up == n_sites - 1);
    hdt_close(ctx);
}

void hdt_chan_rig_start(int n, const char *knob)
{
    knob_text = knob;
    for (int i = 0; i < n; i++) {
        struct hdt_ctx *ctx;

        run("./hdt ca issue --dir %s/ca --out %s/tls-%c site %c >/dev/null", dir, dir, site_name(i),
            site_name(i));
        gateway_conf(i);
        gateway_exec(i);
        n_sites = i + 1;
        ctx = hdt_chan_rig_ctx(i);
        hdt_close(ctx);
        listen_read(i, " (gateways,", sites[i].wan, sizeof(sites[i].wan));
        listen_read(i, " (workers and operators, mutual", sites[i].lan, sizeof(sites[i].lan));
    }
    for (int i = 0; i < n; i++) {
        gateway_wait_peers(i);
    }
}

void hdt_chan_rig_kill(int site)
{
    kill(sites[site].pid, SIGKILL);
    waitpid(sites[site].pid, NULL, 0);
    sites[site].pid = 0;
}

void hdt_chan_rig_restart(int site)
{
    gateway_conf(site);
    gateway_exec(site);
}

/* ---- programs ---- */

struct hdt_channel *hdt_chan_rig_channel(const char *name, int n, int rank,
                                         struct hdt_error_info *error)
{
    static const char *const members[] = {"a", "b", "c", "d"};
    struct hdt_channel_conf conf = HDT_CHANNEL_CONF_INIT;
    struct hdt_channel *channel = NULL;
    struct hdt_ctx *ctx = hdt_chan_rig_ctx(rank);

    conf.name = name;
    conf.members = members;
    conf.n_members = n;
    conf.rank = rank;
    conf.window_bytes = (size_t)4 << 20;
    if (ctx) {
        hdt_channel_open(ctx, &conf, &channel, error);
    }
    hdt_close(ctx);
    return channel;
}

pid_t hdt_chan_rig_fork(void (*go)(int site), int site)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hdt_chan_rig_n_failed = 0;
        go(site);
        exit(hdt_chan_rig_n_failed > 0); /* leaks are looked for on the way */
    }
    return pid;
}

bool hdt_chan_rig_join(pid_t pid, int seconds)
{
    const double end = hdt_chan_rig_now_s() + seconds;
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (hdt_chan_rig_now_s() > end) {
            printf("process %d hangs: ended after %d s\n", (int)pid, seconds);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return false;
        }
        hdt_chan_rig_sleep_ms(5);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static struct {
    const char *name;
    int n;
    hdt_chan_rig_rank *rank;
} job;

static void rank_run(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel(job.name, job.n, rank, &error);

    if (!channel) {
        printf("rank %d of %s: %s\n", rank, job.name, error.message);
        CHAN_CHECK(channel != NULL);
        return;
    }
    job.rank(channel, rank, job.n);
    if (hdt_channel_close(channel, &error) != HDT_ERR_NONE && hdt_chan_rig_n_failed == 0) {
        printf("rank %d of %s: close: %s\n", rank, job.name, error.message);
        hdt_chan_rig_n_failed++;
    }
}

void hdt_chan_rig_run(const char *name, int n, int seconds, hdt_chan_rig_rank *rank)
{
    pid_t pids[CHAN_RIG_SITES];

    job.name = name;
    job.n = n;
    job.rank = rank;
    for (int i = 0; i < n; i++) {
        pids[i] = hdt_chan_rig_fork(rank_run, i);
    }
    for (int i = 0; i < n; i++) {
        CHAN_CHECK(hdt_chan_rig_join(pids[i], seconds));
    }
}

/* ---- small things ---- */

bool hdt_chan_rig_wait_file(const char *name, int seconds)
{
    const double end = hdt_chan_rig_now_s() + seconds;
    char path[160];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    while (access(path, F_OK) != 0) {
        if (hdt_chan_rig_now_s() > end) {
            return false;
        }
        hdt_chan_rig_sleep_ms(2);
    }
    return true;
}

void hdt_chan_rig_touch(const char *name)
{
    char path[160];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "w");
    CHAN_CHECK(file != NULL);
    if (file) {
        fclose(file);
    }
}

unsigned hdt_chan_rig_seed(void)
{
    const char *text = getenv("HDT_TEST_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)time(NULL);

    printf("HDT_TEST_SEED=%u\n", seed);
    fflush(stdout);
    return seed;
}

unsigned hdt_chan_rig_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}
