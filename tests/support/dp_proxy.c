/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP proxy on one thread that holds bytes back, for the tests of the data plane: a held link is
 * a cut cable, since neither side is told anything. */
#include "config.h"

#include "tests/support/dp_rig.h"
#include "src/base/buf.h"

#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROXY_PAIRS_MAX 256
#define PROXY_BUF       16384

struct proxy_pair {
    int fds[2]; /* accepted, connected; -1 when over */
    bool held;
};

struct rig_proxy {
    int listen_fd, target_port;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    bool stop, hold;
    struct proxy_pair pairs[PROXY_PAIRS_MAX];
    unsigned n_pairs;
};

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return sa;
}

static void pair_close(struct proxy_pair *pair, bool reset)
{
    const struct linger abrupt = {.l_onoff = 1, .l_linger = 0};
    int i;

    for (i = 0; i < 2; i++) {
        if (pair->fds[i] >= 0) {
            if (reset) {
                setsockopt(pair->fds[i], SOL_SOCKET, SO_LINGER, &abrupt, sizeof(abrupt));
            }
            close(pair->fds[i]);
            pair->fds[i] = -1;
        }
    }
}

static void proxy_accept(struct rig_proxy *proxy)
{
    const struct sockaddr_in sa = loopback(proxy->target_port);
    struct proxy_pair *pair = &proxy->pairs[proxy->n_pairs];

    RIG_CHECK(proxy->n_pairs < PROXY_PAIRS_MAX, "too many connections");
    pair->fds[0] = accept(proxy->listen_fd, NULL, NULL);
    if (pair->fds[0] < 0) {
        return;
    }
    pair->fds[1] = socket(AF_INET, SOCK_STREAM, 0);
    pair->held = false;
    if (connect(pair->fds[1], (const struct sockaddr *)&sa, sizeof(sa)) != 0) {
        pair_close(pair, true);
    }
    proxy->n_pairs++;
}

static void proxy_pass(struct proxy_pair *pair, int from)
{
    uint8_t buf[PROXY_BUF];
    const ssize_t n = recv(pair->fds[from], buf, sizeof(buf), MSG_DONTWAIT);
    ssize_t at = 0;

    while (at < n) {
        const ssize_t k =
            send(pair->fds[1 - from], buf + at, (size_t)(n - at), MSG_NOSIGNAL | MSG_DONTWAIT);

        if (k > 0) {
            at += k;
        } else {
            struct pollfd pfd = {.fd = pair->fds[1 - from], .events = POLLOUT};

            if (poll(&pfd, 1, 1000) <= 0 || (pfd.revents & (POLLERR | POLLHUP)) != 0) {
                pair_close(pair, true);
                return;
            }
        }
    }
    if (n == 0) {
        pair_close(pair, false);
    }
}

/* With the lock. Fills fds; returns how many. */
static unsigned proxy_watch(struct rig_proxy *proxy, struct pollfd *fds, unsigned *pairs)
{
    unsigned i, n = 1;

    fds[0] = (struct pollfd){.fd = proxy->listen_fd, .events = POLLIN};
    for (i = 0; i < proxy->n_pairs; i++) {
        int side;

        for (side = 0; side < 2 && !proxy->hold && !proxy->pairs[i].held; side++) {
            if (proxy->pairs[i].fds[side] >= 0) {
                pairs[n] = i * 2 + (unsigned)side;
                fds[n++] = (struct pollfd){.fd = proxy->pairs[i].fds[side], .events = POLLIN};
            }
        }
    }
    return n;
}

static void *proxy_main(void *arg)
{
    struct rig_proxy *proxy = arg;
    struct pollfd fds[2 * PROXY_PAIRS_MAX + 1];
    unsigned pairs[2 * PROXY_PAIRS_MAX + 1];
    unsigned i, n;

    pthread_mutex_lock(&proxy->lock);
    while (!proxy->stop) {
        n = proxy_watch(proxy, fds, pairs);
        pthread_mutex_unlock(&proxy->lock);
        (void)poll(fds, n, 5);
        pthread_mutex_lock(&proxy->lock);
        if ((fds[0].revents & POLLIN) != 0 && !proxy->hold) {
            proxy_accept(proxy);
        }
        for (i = 1; i < n && !proxy->hold; i++) {
            struct proxy_pair *pair = &proxy->pairs[pairs[i] / 2];

            if (fds[i].revents != 0 && pair->fds[pairs[i] % 2] == fds[i].fd) {
                proxy_pass(pair, (int)(pairs[i] % 2));
            }
        }
    }
    pthread_mutex_unlock(&proxy->lock);
    return NULL;
}

struct rig_proxy *hdt_rig_proxy_open(int target_port, int *port)
{
    struct rig_proxy *proxy = hdt_calloc(1, sizeof(*proxy));
    struct sockaddr_in sa = loopback(0);
    socklen_t len = sizeof(sa);

    proxy->target_port = target_port;
    proxy->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    RIG_CHECK(bind(proxy->listen_fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 &&
                  listen(proxy->listen_fd, 64) == 0 &&
                  getsockname(proxy->listen_fd, (struct sockaddr *)&sa, &len) == 0,
              "cannot listen");
    *port = ntohs(sa.sin_port);
    pthread_mutex_init(&proxy->lock, NULL);
    RIG_CHECK(pthread_create(&proxy->thread, NULL, proxy_main, proxy) == 0, "no thread");
    return proxy;
}

void hdt_rig_proxy_close(struct rig_proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->stop = true;
    pthread_mutex_unlock(&proxy->lock);
    pthread_join(proxy->thread, NULL);
    hdt_rig_proxy_reset(proxy);
    close(proxy->listen_fd);
    pthread_mutex_destroy(&proxy->lock);
    free(proxy);
}

void hdt_rig_proxy_hold(struct rig_proxy *proxy, bool hold)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->hold = hold;
    pthread_mutex_unlock(&proxy->lock);
}

void hdt_rig_proxy_hold_old(struct rig_proxy *proxy)
{
    unsigned i;

    pthread_mutex_lock(&proxy->lock);
    for (i = 0; i < proxy->n_pairs; i++) {
        proxy->pairs[i].held = true;
    }
    pthread_mutex_unlock(&proxy->lock);
}

void hdt_rig_proxy_hold_one(struct rig_proxy *proxy, unsigned n)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->pairs[n].held = true;
    pthread_mutex_unlock(&proxy->lock);
}

void hdt_rig_proxy_reset(struct rig_proxy *proxy)
{
    unsigned i;

    pthread_mutex_lock(&proxy->lock);
    for (i = 0; i < proxy->n_pairs; i++) {
        pair_close(&proxy->pairs[i], true);
    }
    pthread_mutex_unlock(&proxy->lock);
}
