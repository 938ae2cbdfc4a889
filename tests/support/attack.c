/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attacks a gateway of ours at full speed, to see that its job does not feel it: scripts/bench
 * attack and tests/e2e/strangers.sh. Only addresses of loopback, or private ones in a network
 * namespace of their own, are taken.
 */
#include "config.h"

#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "tests/support/dp_stranger.h"

#include <arpa/inet.h>
#include <argp.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#define SILENT_MAX  2000
#define THREADS_MAX 16

struct attack {
    struct sockaddr_in to;
    const char *mode, *cert, *site, *federation;
    int seconds, n_threads;
    SSL_CTX *ctx;
    int64_t until_us;
    atomic_ullong n_connections, n_refused, n_records, n_bytes;
};

/* Set by SIGTERM: what was done is said all the same. */
static volatile sig_atomic_t is_told_to_end;

static void told_to_end(int number)
{
    (void)number;
    is_told_to_end = 1;
}

static bool is_over(const struct attack *a)
{
    return is_told_to_end || hdt_clock_now_us() >= a->until_us;
}

/* Connect, say it, wait until the other end closes. */
static void say(struct attack *a, const void *bytes, size_t len)
{
    struct stranger s;
    char answer[512];

    if (hdt_stranger_connect(&s, &a->to, NULL)) {
        atomic_fetch_add(&a->n_connections, 1);
        if (hdt_stranger_write(&s, bytes, len)) {
            atomic_fetch_add(&a->n_bytes, len);
        }
        while (recv(s.fd, answer, sizeof(answer), 0) > 0) {
        }
    }
    hdt_stranger_close(&s);
}

static void attack_random(struct attack *a)
{
    uint8_t bytes[4096];

    while (!is_over(a)) {
        if (getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes)) {
            say(a, bytes, sizeof(bytes));
        }
    }
}

static void attack_http(struct attack *a)
{
    static const char request[] = "GET /status HTTP/1.1\r\nHost: gateway\r\n\r\n";

    while (!is_over(a)) {
        say(a, request, sizeof(request) - 1);
    }
}

/* Connections that say nothing, or (drip) a byte of a ClientHello now and then; those that were
 * closed are opened again. */
static void attack_hold(struct attack *a, bool drip)
{
    static const uint8_t hello[] = {22, 3, 1, 2, 0, 1};
    struct pollfd *fds = hdt_calloc(SILENT_MAX, sizeof(*fds));
    unsigned *n_said = hdt_calloc(SILENT_MAX, sizeof(*n_said));
    struct stranger s;
    int i;

    for (i = 0; i < SILENT_MAX; i++) {
        fds[i] = (struct pollfd){.fd = -1, .events = POLLIN | POLLRDHUP};
    }
    while (!is_over(a)) {
        for (i = 0; i < SILENT_MAX && !is_over(a); i++) {
            if (fds[i].fd < 0 && hdt_stranger_connect(&s, &a->to, NULL)) {
                atomic_fetch_add(&a->n_connections, 1);
                fds[i].fd = s.fd;
                n_said[i] = 0;
            }
            if (drip && fds[i].fd >= 0 &&
                send(fds[i].fd, hello + (n_said[i] < 6 ? n_said[i] : 0), 1,
                     MSG_NOSIGNAL | MSG_DONTWAIT) == 1) {
                n_said[i]++;
                atomic_fetch_add(&a->n_bytes, 1);
            }
        }
        if (poll(fds, SILENT_MAX, 20) <= 0) {
            continue;
        }
        for (i = 0; i < SILENT_MAX; i++) {
            if (fds[i].fd >= 0 && fds[i].revents != 0) {
                close(fds[i].fd);
                fds[i].fd = -1;
                atomic_fetch_add(&a->n_refused, 1);
            }
        }
    }
    for (i = 0; i < SILENT_MAX; i++) {
        if (fds[i].fd >= 0) {
            close(fds[i].fd);
        }
    }
    free(fds);
    free(n_said);
}

/* Whole handshakes with a certificate of another authority. */
static void attack_tls(struct attack *a)
{
    while (!is_over(a)) {
        struct stranger s;

        atomic_fetch_add(&a->n_connections, 1);
        if (!hdt_stranger_connect(&s, &a->to, a->ctx) || hdt_stranger_is_dropped(&s)) {
            atomic_fetch_add(&a->n_refused, 1);
        }
        hdt_stranger_close(&s);
    }
}

/* ---- with a right certificate ---- */

static bool join(struct attack *a, struct stranger *s, unsigned index)
{
    json_t *hello = hdt_stranger_hello(a->site, HDT_PROTOCOL_VERSION, index);
    json_t *msg = NULL;
    bool ok;

    json_object_set_new(hello, "federation", json_string(a->federation));
    atomic_fetch_add(&a->n_connections, 1);
    ok = hdt_stranger_connect(s, &a->to, a->ctx);
    if (!ok) {
        json_decref(hello);
        return false;
    }
    ok = hdt_stranger_send_msg(s, "hello", hello) && (msg = hdt_stranger_recv_msg(s)) != NULL &&
         strcmp(hdt_msg_type(msg), "welcome") == 0;
    json_decref(msg);
    return ok;
}

/* Records of every kind, few of them right, for flows that are another's. */
static void wrong_record(struct hdt_frame *f, uint32_t i, bool is_bulk)
{
    static const uint8_t control[] = {HDT_FRAME_ACK, HDT_FRAME_HAVE, HDT_FRAME_QUERY,
                                      HDT_FRAME_PING, HDT_FRAME_PONG};

    *f = (struct hdt_frame){.kind = HDT_FRAME_CHUNK,
                            .job = i % 3 == 0 ? 1 : i,
                            .epoch = i % 2,
                            .flow = i % 11,
                            .seq = i % 7,
                            .dtype = (uint8_t)(i % 5)};
    if (is_bulk && i % 8 != 0) {
        f->len = f->coded_len = 4096;
        f->frame_len = 8192;
        f->offset = i % 2 * 4096;
        f->codec = i % 4 == 0 ? 77 : 0;
    } else {
        f->kind = is_bulk ? HDT_FRAME_PING : control[i % sizeof(control)];
        f->flags = (uint8_t)(i & 1);
        f->offset = i;
        f->xxh3 = i;
    }
}

/* Until the stream is closed or all is over. What the other end says is thrown away. */
static void wrong_stream(struct attack *a, struct stranger *s, bool is_bulk)
{
    static const uint8_t payload[4096];
    uint8_t sink[16384];
    struct hdt_frame f;
    uint32_t i;

    for (i = 0; !is_over(a); i++) {
        wrong_record(&f, i, is_bulk);
        if (!hdt_stranger_send(s, &f, payload)) {
            return;
        }
        atomic_fetch_add(&a->n_records, 1);
        atomic_fetch_add(&a->n_bytes, HDT_FRAME_HEADER_LEN + f.coded_len);
        while (i % 256 == 0 && recv(s->fd, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
        }
    }
}

static void *wrong_control_main(void *arg)
{
    struct attack *a = ((void **)arg)[0];

    wrong_stream(a, ((void **)arg)[1], false);
    return NULL;
}

static void attack_wrong(struct attack *a)
{
    const struct timespec pause = {.tv_nsec = 100000000};

    while (!is_over(a)) {
        struct stranger control = {.fd = -1}, bulk = {.fd = -1};
        void *args[2] = {a, &control};
        pthread_t thread;

        if (join(a, &control, 0) && join(a, &bulk, 1) &&
            pthread_create(&thread, NULL, wrong_control_main, args) == 0) {
            wrong_stream(a, &bulk, true);
            shutdown(control.fd, SHUT_RDWR);
            pthread_join(thread, NULL);
        } else {
            atomic_fetch_add(&a->n_refused, 1);
            nanosleep(&pause, NULL);
        }
        hdt_stranger_close(&control);
        if (bulk.fd >= 0) {
            hdt_stranger_close(&bulk);
        }
    }
}

static void *attack_main(void *arg)
{
    struct attack *a = arg;

    if (strcmp(a->mode, "random") == 0) {
        attack_random(a);
    } else if (strcmp(a->mode, "http") == 0) {
        attack_http(a);
    } else if (strcmp(a->mode, "silent") == 0) {
        attack_hold(a, false);
    } else if (strcmp(a->mode, "loris") == 0) {
        attack_hold(a, true);
    } else if (strcmp(a->mode, "tls") == 0) {
        attack_tls(a);
    } else {
        attack_wrong(a);
    }
    return NULL;
}

/* ---- command line ---- */

static bool in_own_namespace(void)
{
    char ours[64] = "", theirs[64] = "";

    return readlink("/proc/self/ns/net", ours, sizeof(ours) - 1) > 0 &&
           readlink("/proc/1/ns/net", theirs, sizeof(theirs) - 1) > 0 && strcmp(ours, theirs) != 0;
}

static bool address_is_ours(const struct sockaddr_in *to)
{
    const uint32_t host = ntohl(to->sin_addr.s_addr);

    return host >> 24 == 127 ||
           ((host >> 24 == 10 || host >> 20 == 0xac1 || host >> 16 == 0xc0a8) &&
            in_own_namespace());
}

static const struct argp_option options[] = {
    {"cert", 'c', "DIR", 0, "Bundle with cert.pem and key.pem (tls, wrong)", 0},
    {"site", 's', "NAME", 0, "Site of that certificate (wrong)", 0},
    {"federation", 'f', "NAME", 0, "Its federation (wrong)", 0},
    {"seconds", 't', "N", 0, "How long [10]", 0},
    {"threads", 'n', "N", 0, "Attackers at a time [1]", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    static const char *const modes[] = {"random", "http", "silent", "loris", "tls", "wrong"};
    struct attack *a = state->input;
    char *colon;

    switch (key) {
    case 'c':
        a->cert = arg;
        return 0;
    case 's':
        a->site = arg;
        return 0;
    case 'f':
        a->federation = arg;
        return 0;
    case 't':
        a->seconds = (int)strtol(arg, NULL, 10);
        return 0;
    case 'n':
        a->n_threads = (int)strtol(arg, NULL, 10);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0) {
            for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
                a->mode = strcmp(arg, modes[i]) == 0 ? arg : a->mode;
            }
            return 0;
        }
        colon = strrchr(arg, ':');
        if (state->arg_num > 1 || colon == NULL) {
            return ARGP_ERR_UNKNOWN;
        }
        *colon = '\0';
        a->to.sin_family = AF_INET;
        a->to.sin_port = htons((uint16_t)strtol(colon + 1, NULL, 10));
        return inet_pton(AF_INET, arg, &a->to.sin_addr) == 1 ? 0 : EINVAL;
    case ARGP_KEY_END:
        if (a->mode == NULL || a->to.sin_port == 0 || a->seconds < 1 || a->n_threads < 1 ||
            a->n_threads > THREADS_MAX) {
            argp_usage(state);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "random|http|silent|loris|tls|wrong ADDRESS:PORT",
    .doc = "Attacks a gateway: random bytes, HTTP, silent connections, one byte at a time, "
           "handshakes with a foreign certificate, wrong records with a right one.\v"
           "Prints one JSON line. ADDRESS is of loopback, or private in a network namespace.",
};

int main(int argc, char **argv)
{
    struct attack a = {.seconds = 10, .n_threads = 1};
    const struct rlimit files = {.rlim_cur = 32768, .rlim_max = 32768};
    pthread_t threads[THREADS_MAX];
    int i;

    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (!address_is_ours(&a.to)) {
        fprintf(stderr, "attack: only loopback, or a private address in a network namespace\n");
        return 2;
    }
    if ((strcmp(a.mode, "tls") == 0 || strcmp(a.mode, "wrong") == 0) && a.cert == NULL) {
        fprintf(stderr, "attack: %s needs --cert\n", a.mode);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, told_to_end);
    (void)setrlimit(RLIMIT_NOFILE, &files);
    a.site = a.site != NULL ? a.site : "site-x";
    a.federation = a.federation != NULL ? a.federation : "lab";
    a.ctx = a.cert != NULL ? hdt_stranger_ctx(a.cert) : NULL;
    a.until_us = hdt_clock_now_us() + a.seconds * HDT_US_PER_S;
    for (i = 0; i < a.n_threads; i++) {
        if (pthread_create(&threads[i], NULL, attack_main, &a) != 0) {
            return 1;
        }
    }
    for (i = 0; i < a.n_threads; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("{\"attack\":\"%s\",\"connections\":%llu,\"refused\":%llu,\"records\":%llu,"
           "\"bytes\":%llu}\n",
           a.mode, (unsigned long long)a.n_connections, (unsigned long long)a.n_refused,
           (unsigned long long)a.n_records, (unsigned long long)a.n_bytes);
    SSL_CTX_free(a.ctx);
    return 0;
}
