/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/addr.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FORMS "write host:port, [IPv6]:port, tls:host:port or unix:/path"

/* Parsing. */

static enum hdt_status addr_invalid(const char *text, const char *why, struct hdt_error *err)
{
    hdt_error_set(err, HDT_EINVAL, "cannot use address '%.150s': %s", text, why);
    hdt_error_hint(err, FORMS);
    return HDT_EINVAL;
}

static enum hdt_status unix_parse(const char *text, const char *path, struct hdt_addr *addr,
                                  struct hdt_error *err)
{
    struct sockaddr_un *sun = (struct sockaddr_un *)&addr->sa;
    size_t len = strlen(path);

    if (len == 0) {
        return addr_invalid(text, "the path is missing", err);
    }
    if (len >= sizeof(sun->sun_path)) {
        hdt_error_set(err, HDT_EINVAL,
                      "cannot use address '%.150s': paths of sockets have %zu bytes at most", text,
                      sizeof(sun->sun_path) - 1);
        hdt_error_hint(err, "choose a shorter path, as unix:/run/hdt/gateway.sock");
        return HDT_EINVAL;
    }
    sun->sun_family = AF_UNIX;
    memcpy(sun->sun_path, path, len + 1);
    addr->sa_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    addr->is_unix = true;
    return HDT_OK;
}

/* "host:port" or "[v6]:port" into its two parts. */
static enum hdt_status host_split(const char *text, char *host, size_t host_cap, const char **port,
                                  struct hdt_error *err)
{
    const char *from = strncmp(text, "tls:", 4) == 0 ? text + 4 : text;
    const char *colon = strrchr(from, ':');
    size_t len;

    if (!colon) {
        return addr_invalid(text, "the port is missing", err);
    }
    len = (size_t)(colon - from);
    if (from[0] == '[') {
        if (len < 3 || from[len - 1] != ']') {
            return addr_invalid(text, "']' and a port are missing", err);
        }
        from++;
        len -= 2;
    } else if (memchr(from, ':', len)) {
        return addr_invalid(text, "an IPv6 address stands in brackets", err);
    }
    if (len == 0) {
        return addr_invalid(text, "the host is missing", err);
    }
    if (len >= host_cap) {
        return addr_invalid(text, "the host's name is too long", err);
    }
    memcpy(host, from, len);
    host[len] = '\0';
    *port = colon + 1;
    return HDT_OK;
}

static enum hdt_status port_check(const char *text, const char *port, struct hdt_error *err)
{
    size_t len = strlen(port);

    if (len == 0 || len > 5 || strspn(port, "0123456789") != len ||
        strtoul(port, NULL, 10) > 65535) {
        return addr_invalid(text, "the port is no number from 0 to 65535", err);
    }
    return HDT_OK;
}

static enum hdt_status resolve_error(const char *host, int code, struct hdt_error *err)
{
    bool is_unknown = code == EAI_NONAME || code == EAI_NODATA;

    if (code == EAI_SYSTEM) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot resolve host '%.128s'", host);
    }
    hdt_error_set(err, is_unknown ? HDT_ENOENT : HDT_EIO, "cannot resolve host '%.128s': %s", host,
                  gai_strerror(code));
    hdt_error_hint(err, "check the name with `getent hosts %.128s`, or write the IP address", host);
    return is_unknown ? HDT_ENOENT : HDT_EIO;
}

/* IPv4 goes first where a name has both: "localhost" and most sites' listeners are IPv4. */
static enum hdt_status host_resolve(const char *host, const char *port, struct hdt_addr *addr,
                                    struct hdt_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL, *found;
    int code = getaddrinfo(host, port, &hints, &list);

    if (code != 0) {
        return resolve_error(host, code, err);
    }
    found = list;
    for (struct addrinfo *ai = list; ai; ai = ai->ai_next) {
        if (ai->ai_family == AF_INET) {
            found = ai;
            break;
        }
    }
    memcpy(&addr->sa, found->ai_addr, found->ai_addrlen);
    addr->sa_len = found->ai_addrlen;
    freeaddrinfo(list);
    return HDT_OK;
}

enum hdt_status hdt_addr_check(const char *text, struct hdt_error *err)
{
    struct hdt_addr a = {.is_unix = false};
    char host[sizeof(a.text)];
    const char *port;

    if (strlen(text) >= sizeof(a.text)) {
        return addr_invalid(text, "it is too long", err);
    }
    if (strncmp(text, "unix:", 5) == 0) {
        return unix_parse(text, text + 5, &a, err);
    }
    HDT_TRY(host_split(text, host, sizeof(host), &port, err));
    return port_check(text, port, err);
}

enum hdt_status hdt_addr_parse(const char *text, struct hdt_addr *addr, struct hdt_error *err)
{
    struct hdt_addr a = {.is_unix = false};
    char host[sizeof(a.text)];
    const char *port;

    if (strlen(text) >= sizeof(a.text)) {
        return addr_invalid(text, "it is too long", err);
    }
    memcpy(a.text, text, strlen(text) + 1);
    if (strncmp(text, "unix:", 5) == 0) {
        HDT_TRY(unix_parse(text, text + 5, &a, err));
    } else {
        HDT_TRY(host_split(text, host, sizeof(host), &port, err));
        HDT_TRY(port_check(text, port, err));
        HDT_TRY(host_resolve(host, port, &a, err));
    }
    *addr = a;
    return HDT_OK;
}

/* Sockets. */

enum hdt_status hdt_addr_socket(const struct hdt_addr *addr, int *fd, struct hdt_error *err)
{
    int one = 1;
    int s = socket(addr->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (s < 0) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot make a socket for '%s'", addr->text);
        if (errno == EMFILE || errno == ENFILE) {
            hdt_error_hint(err, "raise the limit of open files (ulimit -n, LimitNOFILE=)");
        }
        return HDT_EIO;
    }
    if (!addr->is_unix) {
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    *fd = s;
    return HDT_OK;
}

static enum hdt_status bind_error(const struct hdt_addr *addr, int error, struct hdt_error *err)
{
    switch (error) {
    case EADDRINUSE:
        hdt_error_set(err, HDT_EEXIST, "cannot listen on '%s': another program listens there",
                      addr->text);
        hdt_error_hint(err, "`ss -%s` shows which; stop it or choose another %s",
                       addr->is_unix ? "lxp" : "ltnp", addr->is_unix ? "path" : "port");
        return HDT_EEXIST;
    case EACCES:
    case EPERM:
        hdt_error_set_errno(err, HDT_EACCES, error, "cannot listen on '%s'", addr->text);
        hdt_error_hint(err, addr->is_unix ? "the directory must be writable for this user"
                                          : "choose a port above 1023");
        return HDT_EACCES;
    case EADDRNOTAVAIL:
        hdt_error_set_errno(err, HDT_EINVAL, error, "cannot listen on '%s'", addr->text);
        hdt_error_hint(err, "the address is none of this machine; 0.0.0.0 means all of them");
        return HDT_EINVAL;
    case ENOENT:
    case ENOTDIR:
        hdt_error_set_errno(err, HDT_ENOENT, error, "cannot listen on '%s'", addr->text);
        hdt_error_hint(err, "make its directory first");
        return HDT_ENOENT;
    default:
        return hdt_error_set_errno(err, HDT_EIO, error, "cannot listen on '%s'", addr->text);
    }
}

/* A socket file on which nobody accepts. A full queue means that somebody does, slowly. */
static bool unix_is_stale(const struct hdt_addr *addr)
{
    const struct sockaddr_un *sun = (const struct sockaddr_un *)&addr->sa;
    struct stat st;
    bool is_stale;
    int s;

    if (lstat(sun->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        return false;
    }
    s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s < 0) {
        return false;
    }
    is_stale =
        connect(s, (const struct sockaddr *)&addr->sa, addr->sa_len) != 0 && errno == ECONNREFUSED;
    close(s);
    return is_stale;
}

/* Returns 0 or an errno value. */
static int addr_bind(int s, const struct hdt_addr *addr, unsigned mode)
{
    const struct sockaddr_un *sun = (const struct sockaddr_un *)&addr->sa;

    /* The file takes its mode from the socket, less the umask: never wider than asked for. */
    if (addr->is_unix && fchmod(s, mode) != 0) {
        return errno;
    }
    if (bind(s, (const struct sockaddr *)&addr->sa, addr->sa_len) != 0) {
        if (errno != EADDRINUSE || !addr->is_unix || !unix_is_stale(addr)) {
            return errno;
        }
        if (unlink(sun->sun_path) != 0 ||
            bind(s, (const struct sockaddr *)&addr->sa, addr->sa_len) != 0) {
            return errno;
        }
    }
    if (addr->is_unix && chmod(sun->sun_path, mode) != 0) {
        return errno;
    }
    return listen(s, SOMAXCONN) == 0 ? 0 : errno;
}

enum hdt_status hdt_addr_listen(const struct hdt_addr *addr, unsigned mode, int *fd,
                                struct hdt_error *err)
{
    int one = 1, error, s;

    HDT_TRY(hdt_addr_socket(addr, &s, err));
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    error = addr_bind(s, addr, mode);
    if (error != 0) {
        close(s);
        return bind_error(addr, error, err);
    }
    *fd = s;
    return HDT_OK;
}

static enum hdt_status connect_error(const struct hdt_addr *addr, int error, struct hdt_error *err)
{
    hdt_error_set_errno(err, HDT_EPEER, error, "cannot connect to '%s'", addr->text);
    switch (error) {
    case EAGAIN:
        hdt_error_set(err, HDT_EPEER,
                      "cannot connect to '%s': a gateway has that socket, and its queue of "
                      "connections is full",
                      addr->text);
        hdt_error_hint(err, "its process is stopped or hangs: look at it, or restart hdt-gateway");
        break;
    case ENOENT:
        hdt_error_hint(err, "is the gateway running, and is this the path in its settings?");
        break;
    case ECONNREFUSED:
        hdt_error_hint(err, addr->is_unix
                                ? "the socket is left over, and nobody is behind it: start "
                                  "hdt-gateway"
                                : "the machine answers but nobody listens there: is the gateway "
                                  "running?");
        break;
    case EACCES:
        hdt_error_hint(err, "this user may not open the gateway's socket; see its group and mode");
        break;
    default:
        hdt_error_hint(err, "check address, route and firewall");
    }
    return HDT_EPEER;
}

/* ETIMEDOUT: not through. */
static int connect_wait(int s, int timeout_ms)
{
    int64_t end_us = hdt_clock_now_us() + timeout_ms * HDT_US_PER_MS;
    struct pollfd p = {.fd = s, .events = POLLOUT};
    int n;

    do {
        int64_t left_ms = (end_us - hdt_clock_now_us() + 999) / HDT_US_PER_MS;

        n = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
    } while (n < 0 && errno == EINTR);
    return n == 0 ? ETIMEDOUT : 0;
}

enum hdt_status hdt_addr_connect_begin(const struct hdt_addr *addr, int *fd, struct hdt_error *err)
{
    int s, error;

    HDT_TRY(hdt_addr_socket(addr, &s, err));
    if (connect(s, (const struct sockaddr *)&addr->sa, addr->sa_len) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        error = errno;
        close(s);
        return connect_error(addr, error, err);
    }
    *fd = s;
    return HDT_OK;
}

enum hdt_status hdt_addr_connect_end(const struct hdt_addr *addr, int *fd, int64_t late_us,
                                     struct hdt_error *err)
{
    int error = 0;
    socklen_t len = sizeof(error);

    if (late_us == 0 && getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) {
        error = errno;
    }
    if (late_us == 0 && error == 0) {
        return HDT_OK;
    }
    close(*fd);
    *fd = -1;
    if (late_us == 0) {
        return connect_error(addr, error, err);
    }
    hdt_error_set(err, HDT_EPEER, "cannot connect to '%s': no answer for %.1f s", addr->text,
                  (double)late_us / 1e6);
    hdt_error_hint(err, "is that machine up, and does a firewall drop packets to this port?");
    return HDT_EPEER;
}

enum hdt_status hdt_addr_connect(const struct hdt_addr *addr, int timeout_ms, int *fd,
                                 struct hdt_error *err)
{
    int s, error;

    HDT_TRY(hdt_addr_connect_begin(addr, &s, err));
    error = connect_wait(s, timeout_ms);
    HDT_TRY(
        hdt_addr_connect_end(addr, &s, error == ETIMEDOUT ? timeout_ms * HDT_US_PER_MS : 0, err));
    fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK);
    *fd = s;
    return HDT_OK;
}

void hdt_addr_keep_alive(int fd, int64_t within_us)
{
    /* Idle for a third, then four probes a sixth apart: the last is due at five sixths. */
    const int third_s = (int)(within_us / 3 / HDT_US_PER_S);
    const int idle_s = third_s > 1 ? third_s : 1;
    const int interval_s = third_s > 3 ? third_s / 2 : 1;
    const int on = 1, n_probes = 4;
    const unsigned user_ms = (unsigned)(within_us / HDT_US_PER_MS);

    if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n_probes, sizeof(n_probes)) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms)) != 0) {
        hdt_log_warn_limited(60, "cannot set keep-alive on a socket: %s", strerror(errno));
    }
}

int64_t hdt_addr_last_segment_us(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    uint32_t ago_ms;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) {
        return 0;
    }
    ago_ms = info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv
                                                                : info.tcpi_last_data_recv;
    return hdt_clock_now_us() - ago_ms * HDT_US_PER_MS;
}

static void unix_text(const struct sockaddr_un *sun, socklen_t len, char *text, unsigned text_cap)
{
    size_t path_len = len > offsetof(struct sockaddr_un, sun_path)
                          ? len - offsetof(struct sockaddr_un, sun_path)
                          : 0;

    snprintf(text, text_cap, "unix:%.*s", (int)strnlen(sun->sun_path, path_len), sun->sun_path);
}

void hdt_addr_of_socket(int fd, bool remote, char *text, unsigned text_cap)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);
    char host[64], port[8];
    int ret = remote ? getpeername(fd, (struct sockaddr *)&sa, &len)
                     : getsockname(fd, (struct sockaddr *)&sa, &len);

    if (ret == 0 && sa.ss_family == AF_UNIX) {
        unix_text((const struct sockaddr_un *)&sa, len, text, text_cap);
        return;
    }
    if (ret != 0 || getnameinfo((struct sockaddr *)&sa, len, host, sizeof(host), port, sizeof(port),
                                NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(text, text_cap, "?");
        return;
    }
    snprintf(text, text_cap, sa.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}
