/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket: one message a command, one message the answer. Sequenced packets keep the
 * two apart without a length or an end mark. The first byte of an answer says how it went. */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER_CAP     (128u << 10) /* all links of a full topology */
#define CALL_TIMEOUT_S 10

static enum hdt_status socket_make(const char *path, struct sockaddr_un *addr, int *fd,
                                   struct hdt_error *err)
{
    size_t len = strlen(path);

    memset(addr, 0, sizeof(*addr));
    addr->sun_family = AF_UNIX;
    if (len >= sizeof(addr->sun_path)) {
        return hdt_error_set(err, HDT_EINVAL, "socket path '%s' is longer than %zu bytes", path,
                             sizeof(addr->sun_path) - 1);
    }
    memcpy(addr->sun_path, path, len + 1);
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot make a socket");
    }
    return HDT_OK;
}

enum hdt_status hdt_wanem_ctl_listen(const char *path, int *fd, struct hdt_error *err)
{
    struct sockaddr_un addr;
    int sock;

    HDT_TRY(socket_make(path, &addr, &sock, err));
    if (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) == 0) {
        close(sock);
        return hdt_error_set(err, HDT_EEXIST, "an emulator serves '%s' already", path);
    }
    close(sock);
    HDT_TRY(socket_make(path, &addr, &sock, err));
    unlink(path);
    mode_t old_mask = umask(0077);
    bool bound = bind(sock, (struct sockaddr *)&addr, sizeof(addr)) == 0;

    umask(old_mask);
    if (!bound || listen(sock, 8) != 0) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot listen on '%s'", path);
        close(sock);
        return HDT_EIO;
    }
    *fd = sock;
    return HDT_OK;
}

bool hdt_wanem_ctl_serve(struct hdt_wanem *em, int fd)
{
    char line[HDT_WANEM_LINE_CAP];
    struct hdt_error error = {0};
    struct hdt_buf out = {0};
    ssize_t n = recv(fd, line, sizeof(line) - 1, 0);
    bool sent;

    if (n <= 0) {
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
    line[n] = '\0';
    hdt_buf_append_str(&out, "+");
    if (hdt_wanem_command(em, line, &out, &error) != HDT_OK) {
        hdt_buf_clear(&out);
        hdt_buf_appendf(&out, "-%s", error.msg);
    }
    sent = send(fd, out.data, out.len, MSG_NOSIGNAL) == (ssize_t)out.len;
    hdt_buf_release(&out);
    return sent;
}

/* Send and wait for the answer, for a bounded time. */
static enum hdt_status call_exchange(const char *path, const char *command, char *answer,
                                     size_t *answer_len, struct hdt_error *err)
{
    struct timeval patience = {.tv_sec = CALL_TIMEOUT_S};
    struct sockaddr_un addr;
    ssize_t n = -1;
    int sock;

    HDT_TRY(socket_make(path, &addr, &sock, err));
    if (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
        hdt_error_set_errno(err, HDT_ENOENT, errno, "cannot reach an emulator at '%s'", path);
        close(sock);
        return HDT_ENOENT;
    }
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (send(sock, command, strlen(command), MSG_NOSIGNAL) >= 0) {
        n = recv(sock, answer, *answer_len, 0);
    }
    if (n <= 0) {
        hdt_error_set_errno(err, HDT_ETIMEDOUT, errno, "no answer from the emulator at '%s'", path);
    }
    close(sock);
    *answer_len = n > 0 ? (size_t)n : 0;
    return n > 0 ? HDT_OK : HDT_ETIMEDOUT;
}

int hdt_wanem_ctl_call(const char *path, const char *command)
{
    static char answer[ANSWER_CAP];
    size_t len = sizeof(answer);
    struct hdt_error error = {0};

    if (call_exchange(path, command, answer, &len, &error) != HDT_OK) {
        hdt_error_print(&error, "hdt-wanem");
        return 1;
    }
    if (answer[0] == '-') {
        fprintf(stderr, "hdt-wanem: %.*s\n", (int)(len - 1), answer + 1);
        return 1;
    }
    return fwrite(answer + 1, 1, len - 1, stdout) == len - 1 ? 0 : 1;
}
