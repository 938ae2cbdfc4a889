/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request "link.bench" of an operator, before `hdt link bench` puts load on a link. The gateway of
 * the operator says whether there is one, and that no job needs it; the one at the other end starts
 * the program that the measurement talks to (src/cli/link_echo.c).
 *
 * A program of its own, and not a thread here: what it allocates and how it fails is then no matter
 * of the gateway. One at a time. It ends with its channel, and with the gateway.
 */
#include "config.h"

#include "gateway/control.h"
#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utlist.h>

#define MAX_PEERS  256
#define WINDOW_MAX (64ll << 20)

extern char **environ;

/* The command `hdt` beside this program; to be freed. */
static char *hdt_find(void)
{
    char self[PATH_MAX];
    const ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (len <= 0) {
        return hdt_strdup("hdt");
    }
    self[len] = '\0';
    slash = strrchr(self, '/');
    return hdt_asprintf("%.*s/hdt", slash ? (int)(slash - self) : 0, self);
}

static enum hdt_status echo_spawn(struct hdt_gateway *gw, const char *from, const char *channel,
                                  json_int_t window, struct hdt_error *err)
{
    char *program = hdt_find(), *at = hdt_asprintf("unix:%s", gw->conf.lan.socket);
    char *bytes = hdt_asprintf("%lld", (long long)window);
    char *ms = hdt_asprintf("%lld", (long long)(gw->deadlines.progress_us / 1000));
    char *argv[] = {program,      "link",        "echo",      "--gateway",     at,
                    "--site",     gw->conf.site, "--channel", (char *)channel, "--from",
                    (char *)from, "--window",    bytes,       "--progress",    ms,
                    NULL};
    posix_spawnattr_t attributes;
    sigset_t none, all;
    int rc;

    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    rc = posix_spawn(&gw->echo_pid, program, NULL, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    if (rc != 0) {
        gw->echo_pid = 0;
        hdt_error_set_errno(err, rc == ENOENT ? HDT_ENOENT : HDT_EIO, rc,
                            "site %s cannot run '%s', the other end of a measurement",
                            gw->conf.site, program);
        hdt_error_hint(err, "install the command hdt beside hdt-gateway there");
    } else {
        hdt_log_info("site %s measures the link: process %d answers it over channel '%s'", from,
                     (int)gw->echo_pid, channel);
    }
    free(program);
    free(at);
    free(bytes);
    free(ms);
    return rc == 0 ? HDT_OK : err->status;
}

/* A job that runs here, or that has workers here; HDT_EEXIST names it. */
static enum hdt_status no_job_runs(struct hdt_gateway *gw, struct hdt_error *err)
{
    json_t *elsewhere = hdt_member_status(gw);
    const struct hdt_gwjob *job;
    json_int_t number = json_integer_value(json_object_get(json_array_get(elsewhere, 0), "number"));

    json_decref(elsewhere);
    LL_FOREACH(gw->jobs, job)
    {
        number = hdt_gwjob_is_over(job) ? number : (json_int_t)job->number;
    }
    if (number == 0) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EEXIST,
                  "job %lld runs at site %s: a measurement would slow it down, and be wrong itself",
                  (long long)number, gw->conf.site);
    hdt_error_hint(err, "wait for its end ('hdt status'), or measure beside it with --force");
    return HDT_EEXIST;
}

static enum hdt_status bench_begin(struct hdt_gateway *gw, const json_t *msg, json_t **answer,
                                   struct hdt_error *err)
{
    const json_t *body = hdt_msg_body(msg);
    const char *site = json_string_value(json_object_get(body, "site"));
    const char *channel = json_string_value(json_object_get(body, "channel"));
    const json_int_t window = json_integer_value(json_object_get(body, "window"));
    char from[HDT_NAME_CAP], rest[HDT_NAME_CAP];
    struct hdt_peer_stats *peers;
    size_t n;

    HDT_TRY(hdt_link_find(gw, site ? site : "", err));
    if (!json_is_true(json_object_get(body, "force"))) {
        HDT_TRY(no_job_runs(gw, err));
    }
    if (json_is_true(json_object_get(body, "echo"))) {
        if (!hdt_address_split(hdt_msg_from(msg), from, rest) || strcmp(from, site) != 0) {
            return hdt_error_set(err, HDT_EACCES,
                                 "only an operator at site %s measures the link from there", site);
        }
        if (!channel || window < 4096 || window > WINDOW_MAX) {
            return hdt_error_set(err, HDT_EINVAL, "cannot read the request for a measurement");
        }
        if (gw->echo_pid != 0) {
            hdt_error_set(err, HDT_EEXIST, "another measurement of a link of site %s is under way",
                          gw->conf.site);
            hdt_error_hint(err, "try again in a minute");
            return HDT_EEXIST;
        }
        HDT_TRY(echo_spawn(gw, site, channel, window, err));
    }
    peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
    n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS);
    *answer = json_pack("{s:I}", "chunk", (json_int_t)gw->conf.wan.chunk);
    for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
        if (strcmp(peers[i].site, site) == 0) {
            json_object_set_new(*answer, "rtt_s", json_real((double)peers[i].rtt_us / 1e6));
            json_object_set_new(*answer, "streams", json_integer(peers[i].n_streams));
        }
    }
    free(peers);
    return HDT_OK;
}

void hdt_link_bench_request(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0}, ignored = {0};
    json_t *answer = NULL;

    if (bench_begin(gw, msg, &answer, &err) == HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply(msg, "link.benched", answer), &ignored);
    } else {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
    }
}

void hdt_link_bench_tick(struct hdt_gateway *gw)
{
    int status;

    if (gw->echo_pid != 0 && waitpid(gw->echo_pid, &status, WNOHANG) != 0) {
        gw->echo_pid = 0;
    }
}

void hdt_link_bench_free(struct hdt_gateway *gw)
{
    if (gw->echo_pid != 0) {
        kill(gw->echo_pid, SIGKILL);
        waitpid(gw->echo_pid, NULL, 0);
        gw->echo_pid = 0;
    }
}
