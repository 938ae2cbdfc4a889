/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_PEERS 256

struct hdt_audit {
    int fd;
    char *path;
    bool torn; /* the file ends within a line: the next one begins on its own */
    uint64_t n_lost;
};

/* Does the file end within a line, as a process leaves it that dies while it writes? */
static bool file_is_torn(int fd, const char *path)
{
    int in = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = lseek(fd, 0, SEEK_END);
    char last = '\n';
    bool torn = in >= 0 && end > 0 && pread(in, &last, 1, end - 1) == 1 && last != '\n';

    if (in >= 0) {
        close(in);
    }
    return torn;
}

static enum hdt_status audit_file_open(const char *path, int *fd, struct hdt_error *err)
{
    *fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (*fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot open audit log '%s'", path);
    }
    return HDT_OK;
}

enum hdt_status hdt_audit_open(const char *dir, struct hdt_audit **audit, struct hdt_error *err)
{
    char *path = hdt_asprintf("%s/audit.jsonl", dir);
    struct hdt_audit *made;
    int fd;

    if (audit_file_open(path, &fd, err) != HDT_OK) {
        free(path);
        return HDT_EIO;
    }
    made = hdt_calloc(1, sizeof(*made));
    made->fd = fd;
    made->path = path;
    made->torn = file_is_torn(fd, path);
    *audit = made;
    return HDT_OK;
}

void hdt_audit_close(struct hdt_audit *audit)
{
    if (audit) {
        close(audit->fd);
        free(audit->path);
        free(audit);
    }
}

enum hdt_status hdt_audit_reopen(struct hdt_audit *audit, struct hdt_error *err)
{
    int fd;

    HDT_TRY(audit_file_open(audit->path, &fd, err));
    close(audit->fd);
    audit->fd = fd;
    audit->torn = file_is_torn(fd, audit->path);
    return HDT_OK;
}

static void now_format(char *text, size_t cap)
{
    int64_t now_us = hdt_clock_wall_us();
    time_t seconds = (time_t)(now_us / 1000000);
    struct tm utc;
    size_t len;

    gmtime_r(&seconds, &utc);
    len = strftime(text, cap, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + len, cap - len, ".%03dZ", (int)(now_us / 1000 % 1000));
}

/* In one write, so that the lines of two processes on one file would not mix. What a full disk lets
 * through of a line is taken out again, unless another process has written behind it. */
static bool line_write(struct hdt_audit *audit, const char *line, size_t len)
{
    off_t begin = lseek(audit->fd, 0, SEEK_END), end;
    ssize_t n = write(audit->fd, line, len), more;
    int failed;

    while (n >= 0 && (size_t)n < len) {
        more = write(audit->fd, line + n, len - (size_t)n);
        if (more <= 0) {
            break;
        }
        n += more;
    }
    if (n == (ssize_t)len) {
        audit->torn = false;
        return fdatasync(audit->fd) == 0;
    }
    failed = errno;
    end = lseek(audit->fd, 0, SEEK_END);
    if (n > 0 && (end != begin + n || ftruncate(audit->fd, begin) != 0)) {
        audit->torn = true;
    }
    errno = failed;
    return false;
}

void hdt_audit_write(struct hdt_audit *audit, const struct hdt_audit_event *event)
{
    json_t *detail = event->detail ? event->detail : json_object();
    struct hdt_buf line = {0};
    char when[40];
    json_t *json;
    char *text;

    if (!audit) {
        json_decref(detail);
        return;
    }
    now_format(when, sizeof(when));
    json = json_pack("{s:s, s:s, s:s, s:s, s:o}", "when", when, "what", event->what, "who",
                     event->who, "from", event->from, "detail", detail);
    text = json_dumps(json, JSON_COMPACT);
    HDT_ASSERT(text);
    hdt_buf_appendf(&line, "%s%s\n", audit->torn ? "\n" : "", text);
    if (!line_write(audit, line.data, line.len)) {
        audit->n_lost++;
        hdt_log_warn_limited(60, "cannot write %s: %s: '%s' by %s is not in it", audit->path,
                             strerror(errno), event->what, event->who);
    }
    hdt_buf_release(&line);
    free(text);
    json_decref(json);
}

uint64_t hdt_audit_n_lost(const struct hdt_audit *audit)
{
    return audit ? audit->n_lost : 0;
}

/* ---- who ---- */

static void site_identity(const struct hdt_gateway *gw, const char *site,
                          char uri[HDT_IDENTITY_URI_CAP])
{
    struct hdt_identity identity = {.role = HDT_ROLE_SITE};

    snprintf(identity.federation, sizeof(identity.federation), "%s", gw->conf.federation);
    snprintf(identity.site, sizeof(identity.site), "%s", site);
    snprintf(identity.name, sizeof(identity.name), "%s", site);
    hdt_identity_format(&identity, uri);
}

static void site_address(const struct hdt_gateway *gw, const char *site, char *address, size_t cap)
{
    struct hdt_peer_stats *stats = hdt_calloc(MAX_PEERS, sizeof(*stats));
    size_t n = hdt_dataplane_peer_stats(gw->dp, stats, MAX_PEERS);

    address[0] = '\0';
    for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
        if (strcmp(stats[i].site, site) == 0) {
            snprintf(address, cap, "%s", stats[i].address);
        }
    }
    free(stats);
}

void hdt_audit_site(struct hdt_gateway *gw, const char *what, const char *site, json_t *detail)
{
    char uri[HDT_IDENTITY_URI_CAP], address[160];
    struct hdt_audit_event event = {.what = what, .who = uri, .from = address, .detail = detail};

    site_identity(gw, site, uri);
    site_address(gw, site, address, sizeof(address));
    hdt_audit_write(gw->audit, &event);
}

void hdt_audit_client(struct hdt_gateway *gw, const char *what, const struct hdt_gwclient *client,
                      json_t *detail)
{
    struct hdt_audit_event event = {
        .what = what, .who = client->identity, .from = client->from, .detail = detail};

    hdt_audit_write(gw->audit, &event);
}

void hdt_audit_self(struct hdt_gateway *gw, const char *what, json_t *detail)
{
    char who[32];
    struct hdt_audit_event event = {.what = what, .who = who, .from = "", .detail = detail};

    snprintf(who, sizeof(who), "uid %u", (unsigned)geteuid());
    hdt_audit_write(gw->audit, &event);
}

/* ---- orders ---- */

static json_t *order_detail(const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    json_t *job = json_object_get(body, "job");
    const char *name = json_string_value(json_object_get(job, "name"));
    json_t *detail = json_pack("{s:s, s:s}", "sender", hdt_msg_from(msg), "to", hdt_msg_to(msg));

    if (json_is_integer(job)) {
        json_object_set(detail, "job", job);
    }
    if (name && strlen(name) < 256) {
        json_object_set_new(detail, "name", json_string(name));
    }
    return detail;
}

void hdt_audit_order(struct hdt_gateway *gw, const struct hdt_gwclient *client, const char *site,
                     const json_t *msg)
{
    static const struct {
        const char *type, *what;
    } orders[] = {{"submit", "job.submit"}, {"stop", "job.stop"}};

    if (client ? client->role != HDT_CLIENT_OPERATOR : !strstr(hdt_msg_from(msg), "/@")) {
        return;
    }
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        if (strcmp(hdt_msg_type(msg), orders[i].type) != 0) {
            continue;
        }
        if (client) {
            hdt_audit_client(gw, orders[i].what, client, order_detail(msg));
        } else {
            hdt_audit_site(gw, orders[i].what, site, order_detail(msg));
        }
    }
}
