/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/notify.h"
#include "src/base/clock.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A lost datagram is not an error: the manager may be gone, and nobody here could mend it. */
static void notify_send(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t len;
    int fd;

    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(addr.sun_path)) {
        return;
    }
    memcpy(addr.sun_path, path, strlen(path));
    len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (path[0] == '@') {
        addr.sun_path[0] = '\0'; /* of the abstract namespace */
    }
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        (void)sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&addr, len);
        close(fd);
    }
}

void hdt_notify_ready(void)
{
    notify_send("READY=1");
}

void hdt_notify_reloading(void)
{
    char text[64];

    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)hdt_clock_now_us());
    notify_send(text);
}

void hdt_notify_stopping(void)
{
    notify_send("STOPPING=1");
}

void hdt_notify_status(struct hdt_notify *notify, const char *fmt, ...)
{
    char status[sizeof(notify->status)], text[sizeof(status) + 8];
    va_list args;

    va_start(args, fmt);
    vsnprintf(status, sizeof(status), fmt, args);
    va_end(args);
    if (strcmp(status, notify->status) != 0) {
        memcpy(notify->status, status, sizeof(status));
        snprintf(text, sizeof(text), "STATUS=%s", status);
        notify_send(text);
    }
}

/* The manager's limit; 0: none, or it is meant for another process. */
static int64_t watchdog_us(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

    if (!usec || (pid && strtoll(pid, NULL, 10) != (long long)getpid())) {
        return 0;
    }
    return strtoll(usec, NULL, 10);
}

void hdt_notify_alive(struct hdt_notify *notify)
{
    const int64_t limit_us = watchdog_us(), now_us = hdt_clock_now_us();

    if (limit_us > 0 && now_us - notify->alive_us >= limit_us / 2) {
        notify->alive_us = now_us;
        notify_send("WATCHDOG=1");
    }
}
