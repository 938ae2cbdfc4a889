/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/gwoptions.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- Ctrl-C ---- */

/* The only state that a signal handler can reach. */
static volatile sig_atomic_t n_interrupts;
static int interrupt_pipe[2] = {-1, -1};

static void interrupt_count(int signo)
{
    int saved = errno;
    ssize_t n;

    (void)signo;
    n_interrupts++;
    n = write(interrupt_pipe[1], "", 1);
    (void)n; /* a full pipe wakes the reader just as well */
    errno = saved;
}

void hdt_interrupts_catch(void)
{
    struct sigaction action = {.sa_handler = interrupt_count};

    if (interrupt_pipe[0] < 0 && pipe2(interrupt_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        return; /* without descriptors Ctrl-C just ends the program */
    }
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int hdt_interrupts_count(void)
{
    return n_interrupts;
}

const int *hdt_interrupts_fd(void)
{
    return &interrupt_pipe[0];
}

/* ---- options ---- */

enum gateway_option { OPT_GATEWAY = 0x1000, OPT_CA, OPT_CERT, OPT_KEY, OPT_TIMEOUT };

static const struct argp_option gateway_options[] = {
    {"gateway", OPT_GATEWAY, "ADDRESS", 0,
     "Gateway to talk to: unix:PATH or tls:HOST:PORT (default: $HDT_GATEWAY, else " HDT_GWCLIENT_DEFAULT
     ")",
     1},
    {"ca", OPT_CA, "FILE", 0, "tls: certificate of the federation's authority", 1},
    {"cert", OPT_CERT, "FILE", 0, "tls: an operator's certificate", 1},
    {"key", OPT_KEY, "FILE", 0, "tls: its private key", 1},
    {"timeout", OPT_TIMEOUT, "SECONDS", 0,
     "Give up after so long without progress: a connection, an answer, an event of a job "
     "(default: shares of the gateway's progress_timeout)",
     1},
    {0},
};

static error_t timeout_parse(struct hdt_gwclient_conf *conf, const char *arg,
                             struct argp_state *state)
{
    char *end;
    double seconds = strtod(arg, &end);

    if (end == arg || *end != '\0' || !(seconds >= 0.1 && seconds <= 86400)) {
        argp_error(state, "--timeout '%s' is not 0.1 to 86400 seconds", arg);
        return EINVAL;
    }
    conf->timeout_ms = (int)(seconds * 1000);
    return 0;
}

static error_t gateway_option_parse(int key, char *arg, struct argp_state *state)
{
    struct hdt_gwclient_conf *conf = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        conf->wake_fd = hdt_interrupts_fd();
        return 0;
    case OPT_GATEWAY:
        conf->gateway = arg;
        return 0;
    case OPT_CA:
        conf->ca = arg;
        return 0;
    case OPT_CERT:
        conf->cert = arg;
        return 0;
    case OPT_KEY:
        conf->key = arg;
        return 0;
    case OPT_TIMEOUT:
        return timeout_parse(conf, arg, state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp hdt_gwoptions_argp = {.options = gateway_options, .parser = gateway_option_parse};
