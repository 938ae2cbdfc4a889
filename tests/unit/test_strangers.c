/* SPDX-License-Identifier: Apache-2.0 */
/* Who connects and is not let in: by cause, without harm to those who are. */
#include "config.h"

#include "compress/codec.h"
#include "src/base/clock.h"
#include "tests/support/dp_rig.h"
#include "tests/support/dp_stranger.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static uint64_t refused(struct rig *rig, enum hdt_listener door, enum hdt_refused cause)
{
    struct hdt_dataplane_stats stats;

    hdt_dataplane_stats(rig->sites[0].dp, &stats);
    return stats.refused[door][cause];
}

static void wait_refused(struct rig *rig, enum hdt_listener door, enum hdt_refused cause,
                         uint64_t n)
{
    const int64_t until_us = hdt_clock_now_us() + 20 * HDT_US_PER_S;

    while (refused(rig, door, cause) < n) {
        cr_assert(hdt_clock_now_us() < until_us, "%s: %llu of %llu", hdt_refused_name(cause),
                  (unsigned long long)refused(rig, door, cause), (unsigned long long)n);
        hdt_rig_sleep_ms(2);
    }
}

static void say(struct rig *rig, const void *bytes, size_t len)
{
    struct stranger stranger;

    cr_assert(hdt_stranger_open(&stranger, rig->sites[0].wan_port, NULL));
    if (len > 0) {
        cr_assert(hdt_stranger_write(&stranger, bytes, len));
        cr_expect(hdt_stranger_is_dropped(&stranger));
    }
    hdt_stranger_close(&stranger);
}

Test(strangers, first_bytes_are_counted_by_what_they_are, .timeout = 60)
{
    struct rig rig;

    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    say(&rig, "GET / HTTP/1.1\r\n\r\n", 18);
    say(&rig, "SSH-2.0-OpenSSH_9\r\n", 19);
    say(&rig, "HDT1\x01\x01", 6);
    say(&rig, "\x01\x02\x03\x04\x05\x06\x07\x08", 8);
    say(&rig, "", 0);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_HTTP, 1);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_SSH, 1);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_PLAIN, 1);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_BYTES, 1);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_GONE, 1);
    /* Each cause is news once; again from the same host it is a number. */
    hdt_rig_wait_count(&rig.sites[0].n_refused, 5);
    say(&rig, "GET / HTTP/1.1\r\n\r\n", 18);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_HTTP, 2);
    say(&rig, "\x16\x03\x01\xff\xff\x01", 6);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_BYTES, 2);
    cr_expect_eq(rig.sites[0].n_refused, 5);
    hdt_rig_close(&rig);
}

Test(strangers, an_old_tls_client_gets_the_alert_that_says_so, .timeout = 60)
{
    struct stranger stranger;
    struct rig rig;

    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    cr_assert(hdt_stranger_open(&stranger, rig.sites[0].wan_port, NULL));
    stranger.ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(stranger.ctx, TLS1_2_VERSION);
    stranger.ssl = SSL_new(stranger.ctx);
    SSL_set_fd(stranger.ssl, stranger.fd);
    cr_expect_neq(SSL_connect(stranger.ssl), 1);
    cr_expect_eq(ERR_GET_REASON(ERR_peek_error()), SSL_R_TLSV1_ALERT_PROTOCOL_VERSION);
    hdt_stranger_close(&stranger);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_OLD_TLS, 1);
    hdt_rig_close(&rig);
}

Test(strangers, who_speaks_byte_by_byte_has_one_deadline, .timeout = 60)
{
    static const uint8_t hello[] = {22, 3, 1, 2, 0, 1};
    const int64_t began_us = hdt_clock_now_us();
    struct stranger stranger;
    struct rig rig;
    size_t n = 0;

    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    cr_assert(hdt_stranger_open(&stranger, rig.sites[0].wan_port, NULL));
    while (hdt_stranger_write(&stranger, n < sizeof(hello) ? hello + n : hello, 1)) {
        n++;
        cr_assert(n < 500);
        hdt_rig_sleep_ms(100); /* the pace of the attack */
    }
    cr_expect_geq(hdt_clock_now_us() - began_us, HDT_ADMIT_CALLER_US / 2);
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_SLOW, 1);
    hdt_stranger_close(&stranger);
    hdt_rig_close(&rig);
}

/* What a TLS client wrote, in pieces, until the other end has enough of it. */
static void send_pieces(struct stranger *stranger, BIO *from, size_t piece)
{
    uint8_t bytes[4096];
    const int n = BIO_read(from, bytes, sizeof(bytes));

    for (size_t at = 0; n > 0 && at < (size_t)n; at += piece) {
        const size_t len = (size_t)n - at < piece ? (size_t)n - at : piece;

        if (send(stranger->fd, bytes + at, len, MSG_NOSIGNAL) < 0) {
            break;
        }
        hdt_rig_sleep_ms(1); /* a packet each */
    }
}

/* It is greeted, and what it says later, however little at a time, is read: the handshake comes to
 * its end, which is that it showed no certificate. */
Test(strangers, a_hello_in_pieces_is_greeted, .timeout = 60)
{
    struct stranger stranger;
    struct rig rig;
    BIO *said;

    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    for (size_t piece = 1; piece <= 64; piece *= 8) {
        cr_assert(hdt_stranger_open(&stranger, rig.sites[0].wan_port, NULL));
        stranger.ctx = SSL_CTX_new(TLS_client_method());
        stranger.ssl = SSL_new(stranger.ctx);
        said = BIO_new(BIO_s_mem());
        SSL_set_bio(stranger.ssl, BIO_new(BIO_s_mem()), said);
        cr_expect_neq(SSL_connect(stranger.ssl), 1);
        send_pieces(&stranger, said, piece);
        SSL_set0_rbio(stranger.ssl, BIO_new_socket(stranger.fd, BIO_NOCLOSE));
        cr_expect_eq(SSL_connect(stranger.ssl), 1);
        send_pieces(&stranger, said, piece);
        cr_expect(hdt_stranger_is_dropped(&stranger));
        hdt_stranger_close(&stranger);
    }
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_CERTIFICATE, 3);
    cr_expect_eq(refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_SLOW), 0);
    hdt_rig_close(&rig);
}

static void add_flows(struct rig *rig, uint64_t n_frames)
{
    for (unsigned i = 0; i < 4; i++) {
        rig->flows[rig->n_flows++] = (struct rig_flow){.src_site = i % 2,
                                                       .dst_site = 1 - i % 2,
                                                       .depth = 1 + i,
                                                       .frame_cap = 100000,
                                                       .n_frames = n_frames,
                                                       .prio = HDT_PRIO_ACTIVATION,
                                                       .codec = HDT_CODEC_LOSSLESS};
    }
}

/* More than there are places, silent, and kept: the site that comes after them gets in. */
Test(strangers, silent_connections_give_way, .timeout = 60)
{
    enum { N = 400 };
    static struct stranger strangers[N];
    struct rig rig;

    hdt_rig_open(&rig, 2);
    add_flows(&rig, 50);
    hdt_rig_start(&rig);
    for (unsigned i = 0; i < N; i++) {
        cr_assert(hdt_stranger_open(&strangers[i], rig.sites[0].wan_port, NULL));
    }
    hdt_rig_dial(&rig, 1, 0, NULL);
    hdt_rig_wait_done(&rig, 20);
    /* All are of one host, so they had its share of the places. */
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_CROWDED, N - HDT_ADMIT_CALLERS_PER_SOURCE);
    cr_expect_leq(rig.sites[0].n_refused, 3);
    for (unsigned i = 0; i < N; i++) {
        hdt_stranger_close(&strangers[i]);
    }
    hdt_rig_close(&rig);
}

/* ---- handshakes of strangers ---- */

struct knocker {
    int port;
    char *dir;
    atomic_bool stop;
    atomic_int n;
};

static void *knock(void *arg)
{
    struct knocker *knocker = arg;

    while (!atomic_load(&knocker->stop)) {
        struct stranger stranger;

        /* Its own end is content; that ours is not it learns from its first read. */
        if (hdt_stranger_open(&stranger, knocker->port, knocker->dir)) {
            (void)hdt_stranger_is_dropped(&stranger);
        }
        hdt_stranger_close(&stranger);
        atomic_fetch_add(&knocker->n, 1);
    }
    return NULL;
}

Test(strangers, a_site_behind_the_address_of_knockers_gets_in, .timeout = 120)
{
    enum { N = 4 };
    struct knocker knocker = {0};
    struct rig foreign, rig;
    pthread_t threads[N];

    hdt_rig_open(&foreign, 1); /* another authority */
    hdt_rig_start(&foreign);
    knocker.dir = hdt_rig_issue(&foreign, "site", "site-b");
    hdt_rig_open(&rig, 2);
    add_flows(&rig, 100);
    hdt_rig_start(&rig);
    knocker.port = rig.sites[0].wan_port;
    for (unsigned i = 0; i < N; i++) {
        pthread_create(&threads[i], NULL, knock, &knocker);
    }
    wait_refused(&rig, HDT_LISTENER_WAN, HDT_REFUSED_CERTIFICATE, 200);
    hdt_rig_dial(&rig, 1, 0, NULL);
    hdt_rig_wait_done(&rig, 40);
    atomic_store(&knocker.stop, true);
    for (unsigned i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
    }
    cr_expect_leq(rig.sites[0].n_refused, 8);
    free(knocker.dir);
    hdt_rig_close(&rig);
    hdt_rig_close(&foreign);
}

/* ---- descriptors ---- */

static rlim_t n_open(void)
{
    DIR *dir = opendir("/proc/self/fd");
    rlim_t n = 0;

    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

Test(strangers, out_of_descriptors_is_waited_for, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct stranger strangers[3];
    struct rlimit old, low;
    struct rig rig;
    int used[64], n_used = 0;

    hdt_rig_open(&rig, 2);
    hdt_rig_start(&rig);
    hdt_rig_wait_count(&rig.sites[0].n_client_up, 1);
    hdt_rig_wait_count(&rig.sites[1].n_client_up, 1);
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = n_open() + 8;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    /* Our own ends first, then all that is left. */
    for (int i = 0; i < 3; i++) {
        strangers[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        cr_assert_geq(strangers[i].fd, 0);
        close(strangers[i].fd);
    }
    while (n_used < 64 && (used[n_used] = dup(0)) >= 0) {
        n_used++;
    }
    close(used[--n_used]);
    cr_assert(
        hdt_stranger_open(&strangers[0], rig.sites[0].wan_port, NULL)); /* waits in the kernel */
    hdt_rig_sleep_ms(300); /* longer than a pause: it must not end accepting for good */
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    while (n_used > 0) {
        close(used[--n_used]);
    }
    hdt_rig_dial(&rig, 1, 0, NULL);
    hdt_rig_wait_peer(&rig, 0, 1, &stats);
    hdt_stranger_close(&strangers[0]);
    hdt_rig_close(&rig);
}

/* ---- the Unix socket ---- */

Test(strangers, other_protocols_on_the_unix_socket_are_counted, .timeout = 60)
{
    static const char *const bytes[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x01\x01\x01\x01"};
    struct rig rig;

    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    for (unsigned i = 0; i < 2; i++) {
        struct sockaddr_un sun = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        char c;

        snprintf(sun.sun_path, sizeof(sun.sun_path), "%.100s", rig.sites[0].sock + strlen("unix:"));
        cr_assert_eq(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
        cr_assert_gt(write(fd, bytes[i], strlen(bytes[i])), 0);
        cr_expect_leq(read(fd, &c, 1), 0);
        close(fd);
    }
    wait_refused(&rig, HDT_LISTENER_LAN_UNIX, HDT_REFUSED_HTTP, 1);
    wait_refused(&rig, HDT_LISTENER_LAN_UNIX, HDT_REFUSED_TLS, 1);
    hdt_rig_wait_count(&rig.sites[0].n_client_up, 1);
    hdt_rig_close(&rig);
}
