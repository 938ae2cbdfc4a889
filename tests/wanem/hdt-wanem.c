/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of the emulator; wanem.h says what it is. */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static const char usage[] =
    "usage: hdt-wanem run [--daemon] [--socket PATH] [--netns-prefix TEXT] [--no-realtime] FILE\n"
    "       hdt-wanem ctl SOCKET COMMAND...\n"
    "       hdt-wanem sites FILE          the sites that FILE names, one a line\n"
    "\n"
    "run --daemon returns when the links work and prints the process id.\n"
    "Joins network namespaces by emulated wide-area links. FILE is a topology; the same\n"
    "commands work through the control socket while it runs (port and sysctl only in FILE):\n"
    "  port NAME [site SITE] [dev DEVICE] [mtu N] addr A/LEN... [route NET/LEN...]\n"
    "      a TUN device (wan0) in the namespace <prefix>SITE; SITE is NAME when not given\n"
    "      (every further address or network has its own word addr or route in front)\n"
    "  link A B SETTING...    both directions        link A>B SETTING...    one direction\n"
    "      rate 200mbit|max   IP bytes on the wire, plus overhead a packet\n"
    "      delay 20ms         one way; rtt 40ms sets half of it\n"
    "      jitter 2ms         uniform, more or less; packets keep their order\n"
    "      loss 0.1%          of wire packets; burst 5: mean number lost in a row\n"
    "      queue 100ms|4mb    what fits before the transmitter; the rest is dropped\n"
    "      overhead 38        bytes a packet (38: Ethernet)\n"
    "      mtu 1300           longer IP packets vanish, and nobody is told; 0: none do\n"
    "      up | down          what is on the wire when it goes down is lost\n"
    "  sysctl net.NAME VALUE...    in every namespace\n"
    "  seed N                 restart the random losses\n"
    "  show [json] | reset | quit\n";

struct options {
    const char *socket_path;
    const char *netns_prefix;
    const char *file;
    bool daemon;
    bool realtime;
};

/* Leave the terminal and the parent, who waits at `ready_fd` for the first byte. */
static enum hdt_status daemon_fork(int *ready_fd, struct hdt_error *err)
{
    int fds[2];
    pid_t pid;
    char byte = 1;

    if (pipe2(fds, O_CLOEXEC) != 0 || (pid = fork()) < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot start in the background");
    }
    if (pid > 0) {
        close(fds[1]);
        /* The child prints its own error; no byte means that it failed. */
        if (read(fds[0], &byte, 1) != 1) {
            _exit(1);
        }
        dprintf(STDOUT_FILENO, "%ld\n", (long)pid);
        _exit(0);
    }
    close(fds[0]);
    setsid();
    *ready_fd = fds[1];
    return HDT_OK;
}

static void daemon_ready(int ready_fd)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    char byte = 0;

    if (null_fd >= 0) {
        dup2(null_fd, STDIN_FILENO);
        dup2(null_fd, STDOUT_FILENO);
        dup2(null_fd, STDERR_FILENO);
        close(null_fd);
    }
    if (write(ready_fd, &byte, 1) != 1) {
        exit(1); /* the parent is gone */
    }
    close(ready_fd);
}

/* A delay is only as exact as the moment at which this process runs, and it shares the processors
 * with what it carries. It uses little of them, so it may go first; without the right to it, the
 * next best is asked for, and neither is an error. */
static void priority_raise(void)
{
    struct sched_param param = {.sched_priority = 1};

    prctl(PR_SET_TIMERSLACK, 1UL);
    if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param) != 0) {
        setpriority(PRIO_PROCESS, 0, -10);
    }
}

static enum hdt_status emulator_run(struct hdt_wanem *em, const struct options *opt,
                                    struct hdt_error *err)
{
    int ready_fd = -1, listen_fd = -1;

    HDT_TRY(hdt_wanem_load(em, opt->file, err));
    if (opt->daemon) {
        HDT_TRY(daemon_fork(&ready_fd, err));
    }
    if (opt->socket_path) {
        HDT_TRY(hdt_wanem_ctl_listen(opt->socket_path, &listen_fd, err));
    }
    HDT_TRY(hdt_wanem_ports_open(em, err));
    if (opt->realtime) {
        priority_raise();
    }
    if (opt->daemon) {
        daemon_ready(ready_fd);
    }
    enum hdt_status status = hdt_wanem_loop(em, listen_fd, err);

    if (opt->socket_path) {
        unlink(opt->socket_path);
    }
    return status;
}

static void emulator_release(struct hdt_wanem *em)
{
    hdt_wanem_ports_close(em);
    for (int i = 0; i < HDT_WANEM_PORTS_MAX * HDT_WANEM_PORTS_MAX; i++) {
        hdt_wanem_link_free(em->links[i / HDT_WANEM_PORTS_MAX][i % HDT_WANEM_PORTS_MAX], &em->pool);
    }
    for (int i = 0; i < em->n_sysctls; i++) {
        free(em->sysctls[i]);
    }
    hdt_wanem_pool_release(&em->pool);
}

static int main_run(int argc, char **argv)
{
    static const struct option long_options[] = {{"daemon", no_argument, NULL, 'd'},
                                                 {"socket", required_argument, NULL, 's'},
                                                 {"netns-prefix", required_argument, NULL, 'p'},
                                                 {"no-realtime", no_argument, NULL, 'n'},
                                                 {NULL, 0, NULL, 0}};
    struct options opt = {.netns_prefix = "", .realtime = true};
    static struct hdt_wanem em;
    struct hdt_error error = {0};
    enum hdt_status status;
    int c;

    while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (c == 'd') {
            opt.daemon = true;
        } else if (c == 's') {
            opt.socket_path = optarg;
        } else if (c == 'p') {
            opt.netns_prefix = optarg;
        } else if (c == 'n') {
            opt.realtime = false;
        } else {
            return 2;
        }
    }
    if (optind + 1 != argc || strlen(opt.netns_prefix) >= sizeof(em.netns_prefix)) {
        fputs(usage, stderr);
        return 2;
    }
    opt.file = argv[optind];
    snprintf(em.netns_prefix, sizeof(em.netns_prefix), "%s", opt.netns_prefix);
    status = emulator_run(&em, &opt, &error);
    if (status != HDT_OK) {
        hdt_error_print(&error, "hdt-wanem");
    }
    emulator_release(&em);
    return status == HDT_OK ? 0 : 1;
}

static int main_ctl(int argc, char **argv)
{
    struct hdt_buf command = {0};
    int rc;

    if (argc < 3) {
        fputs(usage, stderr);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        hdt_buf_appendf(&command, "%s ", argv[i]);
    }
    rc = hdt_wanem_ctl_call(argv[1], hdt_buf_str(&command));
    hdt_buf_release(&command);
    return rc;
}

/* Names of sites without doubles: what a script has to make namespaces for. */
static int main_sites(int argc, char **argv)
{
    static struct hdt_wanem em;
    struct hdt_error error = {0};
    int rc = 0;

    if (argc != 2) {
        fputs(usage, stderr);
        return 2;
    }
    if (hdt_wanem_load(&em, argv[1], &error) != HDT_OK) {
        hdt_error_print(&error, "hdt-wanem");
        rc = 1;
    }
    for (int i = 0; rc == 0 && i < em.n_ports; i++) {
        bool seen = false;

        for (int j = 0; j < i; j++) {
            seen = seen || strcmp(em.ports[i].site, em.ports[j].site) == 0;
        }
        if (!seen) {
            puts(em.ports[i].site);
        }
    }
    emulator_release(&em);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "run") == 0) {
        return main_run(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "ctl") == 0) {
        return main_ctl(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "sites") == 0) {
        return main_sites(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    fputs(usage, stderr);
    return 2;
}
