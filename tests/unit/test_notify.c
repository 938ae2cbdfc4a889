/* SPDX-License-Identifier: Apache-2.0 */
/* What a service manager hears: the datagrams of sd_notify(3), on a socket as systemd makes one. */
#include "config.h"

#include "src/base/notify.h"

#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char heard[512];

static int manager_open(const char *name)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    memcpy(addr.sun_path, name, strlen(name));
    if (name[0] == '@') {
        addr.sun_path[0] = '\0';
    }
    cr_assert_eq(bind(fd, (struct sockaddr *)&addr,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

/* The next datagram, "" when there is none. */
static const char *hear(int fd)
{
    ssize_t n = recv(fd, heard, sizeof(heard) - 1, MSG_DONTWAIT);

    heard[n > 0 ? n : 0] = '\0';
    return heard;
}

Test(notify, words_of_the_protocol)
{
    char dir[] = "/tmp/hdt-notify-XXXXXX", path[64];
    long long at_us;
    int fd;

    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/notify", dir);
    fd = manager_open(path);
    hdt_notify_ready();
    cr_expect_str_eq(hear(fd), "READY=1");
    hdt_notify_reloading();
    cr_expect_eq(sscanf(hear(fd), "RELOADING=1\nMONOTONIC_USEC=%lld", &at_us), 1, "%s", heard);
    hdt_notify_stopping();
    cr_expect_str_eq(hear(fd), "STOPPING=1");
    close(fd);
    unlink(path);
    rmdir(dir);
}

Test(notify, a_name_of_the_abstract_namespace)
{
    char name[64];
    int fd;

    snprintf(name, sizeof(name), "@hdt-notify-%ld", (long)getpid());
    fd = manager_open(name);
    hdt_notify_ready();
    cr_expect_str_eq(hear(fd), "READY=1");
    close(fd);
}

Test(notify, the_same_status_is_told_once)
{
    struct hdt_notify notify = {0};
    char name[64];
    int fd;

    snprintf(name, sizeof(name), "@hdt-notify-%ld", (long)getpid());
    fd = manager_open(name);
    hdt_notify_status(&notify, "%d of %d peers", 1, 2);
    cr_expect_str_eq(hear(fd), "STATUS=1 of 2 peers");
    hdt_notify_status(&notify, "%d of %d peers", 1, 2);
    cr_expect_str_eq(hear(fd), "");
    hdt_notify_status(&notify, "%d of %d peers", 2, 2);
    cr_expect_str_eq(hear(fd), "STATUS=2 of 2 peers");
    close(fd);
}

Test(notify, a_watchdog_hears_only_when_it_asked_this_process)
{
    struct hdt_notify notify = {0};
    char name[64];
    int fd;

    snprintf(name, sizeof(name), "@hdt-notify-%ld", (long)getpid());
    fd = manager_open(name);
    hdt_notify_alive(&notify);
    cr_expect_str_eq(hear(fd), "", "not asked for");
    setenv("WATCHDOG_USEC", "3600000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    hdt_notify_alive(&notify);
    cr_expect_str_eq(hear(fd), "", "meant for another process");
    snprintf(name, sizeof(name), "%ld", (long)getpid());
    setenv("WATCHDOG_PID", name, 1);
    notify.alive_us = -(int64_t)3600000000; /* long ago, also on a machine that just started */
    hdt_notify_alive(&notify);
    cr_expect_str_eq(hear(fd), "WATCHDOG=1");
    hdt_notify_alive(&notify);
    cr_expect_str_eq(hear(fd), "", "a moment later there is no need");
    close(fd);
}

Test(notify, nobody_listens)
{
    unsetenv("NOTIFY_SOCKET");
    hdt_notify_ready();
    setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
    hdt_notify_ready();
    setenv("NOTIFY_SOCKET", "", 1);
    hdt_notify_ready();
}
