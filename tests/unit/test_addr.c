/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/addr.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

Test(addr, forms_that_users_write)
{
    struct hdt_addr addr;
    struct hdt_error err = {0};
    const struct sockaddr_in *sin = (const struct sockaddr_in *)&addr.sa;
    const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)&addr.sa;

    cr_assert_eq(hdt_addr_parse("127.0.0.1:7070", &addr, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(ntohs(sin->sin_port), 7070);
    cr_expect_eq(ntohl(sin->sin_addr.s_addr), INADDR_LOOPBACK);
    cr_expect(!addr.is_unix);
    cr_assert_eq(hdt_addr_parse("tls:10.1.2.3:1", &addr, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(ntohl(sin->sin_addr.s_addr), 0x0a010203u);
    cr_expect_str_eq(addr.text, "tls:10.1.2.3:1");
    cr_assert_eq(hdt_addr_parse("[::1]:65535", &addr, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(addr.sa.ss_family, AF_INET6);
    cr_expect_eq(ntohs(sin6->sin6_port), 65535);
    cr_assert_eq(hdt_addr_parse("localhost:7070", &addr, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_addr_parse("unix:/run/hdt.sock", &addr, &err), HDT_OK, "%s", err.msg);
    cr_expect(addr.is_unix);
    cr_expect_str_eq(((struct sockaddr_un *)&addr.sa)->sun_path, "/run/hdt.sock");
}

Test(addr, wrong_forms_get_one_clear_error)
{
    static const char *const texts[] = {"",
                                        "host",
                                        "host:",
                                        ":7070",
                                        "host:x",
                                        "host:65536",
                                        "host:-1",
                                        "::1:7070",
                                        "[::1]",
                                        "[::1:7070",
                                        "[]:1",
                                        "host:7070 ",
                                        "unix:",
                                        "tls:host",
                                        "host: 7070",
                                        "host:0x10",
                                        "host:99999999999999999999"};
    char text[400];
    struct hdt_addr addr = {.is_unix = true};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct hdt_error err = {0};

        cr_expect_eq(hdt_addr_parse(texts[i], &addr, &err), HDT_EINVAL, "'%s'", texts[i]);
        cr_expect(strstr(err.hint, "host:port") != NULL, "'%s': %s", texts[i], err.hint);
    }
    cr_expect(addr.is_unix, "set on failure");
    snprintf(text, sizeof(text), "unix:/%0120d", 1);
    cr_expect_eq(hdt_addr_parse(text, &addr, NULL), HDT_EINVAL);
    snprintf(text, sizeof(text), "%0300d:1", 1);
    cr_expect_eq(hdt_addr_parse(text, &addr, NULL), HDT_EINVAL);
}

Test(addr, unknown_hosts_are_told_from_wrong_forms)
{
    struct hdt_addr addr;
    struct hdt_error err = {0};
    enum hdt_status status = hdt_addr_parse("no-such-host.invalid:1", &addr, &err);

    /* Without any name server the resolver cannot know: EIO. */
    cr_expect(status == HDT_ENOENT || status == HDT_EIO, "%s", hdt_status_name(status));
    cr_expect(strstr(err.msg, "no-such-host.invalid") != NULL);
    cr_expect_neq(err.hint[0], '\0');
}

Test(addr, listen_connect_and_names_over_tcp)
{
    struct hdt_addr addr, there, again;
    struct hdt_error err = {0};
    char text[64], peer[64];
    int listener, fd, taken, nodelay = 0;
    socklen_t len = sizeof(nodelay);

    cr_assert_eq(hdt_addr_parse("127.0.0.1:0", &addr, &err), HDT_OK);
    cr_assert_eq(hdt_addr_listen(&addr, 0, &listener, &err), HDT_OK, "%s", err.msg);
    cr_expect(fcntl(listener, F_GETFL) & O_NONBLOCK);
    cr_expect(fcntl(listener, F_GETFD) & FD_CLOEXEC);
    hdt_addr_of_socket(listener, false, text, sizeof(text));
    cr_assert_eq(hdt_addr_parse(text, &there, &err), HDT_OK, "%s", text);
    cr_assert_eq(hdt_addr_connect(&there, 5000, &fd, &err), HDT_OK, "%s", err.msg);
    getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, &len);
    cr_expect_neq(nodelay, 0);
    hdt_addr_of_socket(fd, true, peer, sizeof(peer));
    cr_expect_str_eq(peer, text);
    taken = accept(listener, NULL, NULL);
    hdt_addr_of_socket(taken, true, peer, sizeof(peer));
    hdt_addr_of_socket(fd, false, text, sizeof(text));
    cr_expect_str_eq(peer, text);

    cr_expect_eq(hdt_addr_listen(&there, 0, &(int){0}, &err), HDT_EEXIST);
    cr_expect(strstr(err.hint, "ss -") != NULL, "%s", err.hint);
    close(listener);
    close(taken);
    close(fd);
    cr_assert_eq(hdt_addr_parse(there.text, &again, NULL), HDT_OK);
    cr_expect_eq(hdt_addr_connect(&again, 5000, &fd, &err), HDT_EPEER);
    cr_expect(strstr(err.msg, "refused") != NULL, "%s", err.msg);
}

Test(addr, connect_has_a_deadline)
{
    struct hdt_addr addr;
    struct hdt_error err = {0};
    int listener = socket(AF_INET, SOCK_STREAM, 0), fds[8];
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[64];
    enum hdt_status status = HDT_OK;

    /* A listener whose queue is full lets SYNs fall. */
    cr_assert_eq(bind(listener, (struct sockaddr *)&sin, sizeof(sin)), 0);
    cr_assert_eq(listen(listener, 0), 0);
    hdt_addr_of_socket(listener, false, text, sizeof(text));
    cr_assert_eq(hdt_addr_parse(text, &addr, NULL), HDT_OK);
    for (int i = 0; i < 8 && status == HDT_OK; i++) {
        status = hdt_addr_connect(&addr, 100, &fds[i], &err);
    }
    cr_expect_eq(status, HDT_EPEER);
    cr_expect(strstr(err.msg, "no answer for 0.1 s") != NULL, "%s", err.msg);
}

enum { ADDR_DIR_CAP = 64 };

static void unix_addr(struct hdt_addr *addr, char *dir)
{
    char text[160];

    snprintf(dir, ADDR_DIR_CAP, "/tmp/hdt-addr-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(text, sizeof(text), "unix:%s/s", dir);
    cr_assert_eq(hdt_addr_parse(text, addr, NULL), HDT_OK);
}

Test(addr, stale_unix_sockets_are_replaced_and_live_ones_not)
{
    struct hdt_addr addr;
    struct hdt_error err = {0};
    struct stat st;
    char dir[ADDR_DIR_CAP], path[80], text[160];
    int first, second, fd;

    unix_addr(&addr, dir);
    snprintf(path, sizeof(path), "%s/s", dir);
    cr_assert_eq(hdt_addr_listen(&addr, 0660, &first, &err), HDT_OK, "%s", err.msg);
    stat(path, &st);
    cr_expect_eq(st.st_mode & 07777, 0660);
    cr_expect_eq(hdt_addr_listen(&addr, 0660, &second, &err), HDT_EEXIST);
    close(first);
    cr_assert_eq(hdt_addr_listen(&addr, 0600, &second, &err), HDT_OK, "%s", err.msg);
    stat(path, &st);
    cr_expect_eq(st.st_mode & 07777, 0600);
    cr_assert_eq(hdt_addr_connect(&addr, 1000, &fd, &err), HDT_OK, "%s", err.msg);
    hdt_addr_of_socket(fd, true, text, sizeof(text));
    cr_expect_str_eq(text, addr.text);
    close(fd);
    close(second);
    unlink(path);

    /* A plain file is no stale socket. */
    close(open(path, O_CREAT | O_WRONLY, 0600));
    cr_expect_eq(hdt_addr_listen(&addr, 0600, &second, &err), HDT_EEXIST);
    cr_expect_eq(stat(path, &st), 0);
    unlink(path);
    cr_expect_eq(hdt_addr_connect(&addr, 1000, &fd, &err), HDT_EPEER);
    rmdir(dir);
    cr_expect_eq(hdt_addr_listen(&addr, 0600, &second, &err), HDT_ENOENT);
}
