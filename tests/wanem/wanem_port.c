/* SPDX-License-Identifier: Apache-2.0 */
/* TUN devices in network namespaces, and the table that says which address is behind which. */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Enter the namespace that `ip netns add` made under this name. */
static enum hdt_status netns_enter(const char *netns, struct hdt_error *err)
{
    char path[PATH_MAX];
    enum hdt_status status = HDT_OK;
    int fd;

    snprintf(path, sizeof(path), "/run/netns/%s", netns);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        status =
            hdt_error_set_errno(err, HDT_ENOENT, errno, "cannot open network namespace %s", netns);
        hdt_error_hint(err, "make it with: ip netns add %s", netns);
        return status;
    }
    if (setns(fd, CLONE_NEWNET) != 0) {
        status = hdt_error_set_errno(err, errno == EPERM ? HDT_EACCES : HDT_EIO, errno,
                                     "cannot enter network namespace %s", netns);
        hdt_error_hint(err, "run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN");
    }
    close(fd);
    return status;
}

/* A TUN device in the namespace of this thread, non-blocking, with headers for big packets. */
static enum hdt_status tun_open(const char *dev, int *tun_fd, struct hdt_error *err)
{
    struct ifreq ifr = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    unsigned offload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    enum hdt_status status;
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0) {
        status = hdt_error_set_errno(err, HDT_ENOTSUP, errno, "cannot open /dev/net/tun");
        hdt_error_hint(err, "modprobe tun; in a container: --device /dev/net/tun --cap-add "
                            "NET_ADMIN");
        return status;
    }
    snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", dev);
    if (ioctl(fd, TUNSETIFF, &ifr) != 0) {
        status = hdt_error_set_errno(err, errno == EPERM ? HDT_EACCES : HDT_EIO, errno,
                                     "cannot make TUN device %s", dev);
        close(fd);
        return status;
    }
    if (ioctl(fd, TUNSETOFFLOAD, (unsigned long)offload) != 0) {
        status = hdt_error_set_errno(err, HDT_ENOTSUP, errno,
                                     "cannot turn on segmentation offload of %s", dev);
        close(fd);
        return status;
    }
    *tun_fd = fd;
    return HDT_OK;
}

/* Write one "net/ipv4/name=value" of the namespace that this thread is in. */
static enum hdt_status sysctl_write(const char *setting, struct hdt_error *err)
{
    const char *value = strchr(setting, '=');
    char path[PATH_MAX];
    ssize_t n;
    int fd;

    HDT_ASSERT(value != NULL);
    snprintf(path, sizeof(path), "/proc/sys/%.*s", (int)(value - setting), setting);
    value++;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : write(fd, value, strlen(value));
    if (n < 0) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s' to %s", value, path);
    }
    if (fd >= 0) {
        close(fd);
    }
    return n < 0 ? HDT_EIO : HDT_OK;
}

static enum hdt_status port_open(struct hdt_wanem *em, int idx, struct hdt_error *err)
{
    struct hdt_wanem_port *port = &em->ports[idx];
    char netns[2 * HDT_WANEM_NAME_CAP];

    snprintf(netns, sizeof(netns), "%s%s", em->netns_prefix, port->site);
    HDT_TRY(netns_enter(netns, err));
    for (int i = 0; i < em->n_sysctls; i++) {
        HDT_TRY(sysctl_write(em->sysctls[i], err));
    }
    HDT_TRY(tun_open(port->dev, &port->fd, err));
    HDT_TRY(hdt_wanem_netlink_up("lo", 65536, err));
    HDT_TRY(hdt_wanem_netlink_up(port->dev, port->mtu, err));
    for (int i = 0; i < em->n_routes; i++) {
        const struct hdt_wanem_route *route = &em->routes[i];

        if (route->port_idx == idx && route->is_address) {
            HDT_TRY(hdt_wanem_netlink_addr(port->dev, &route->dst, err));
        }
    }
    return HDT_OK;
}

/* The networks behind other ports are reached through a port that has a link to theirs. */
static enum hdt_status port_routes(struct hdt_wanem *em, int idx, struct hdt_error *err)
{
    struct hdt_wanem_port *port = &em->ports[idx];
    char netns[2 * HDT_WANEM_NAME_CAP];

    snprintf(netns, sizeof(netns), "%s%s", em->netns_prefix, port->site);
    HDT_TRY(netns_enter(netns, err));
    for (int i = 0; i < em->n_routes; i++) {
        const struct hdt_wanem_route *route = &em->routes[i];

        if (route->port_idx != idx && !route->is_address && em->links[idx][route->port_idx]) {
            HDT_TRY(hdt_wanem_netlink_route(port->dev, &route->dst, err));
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_wanem_ports_open(struct hdt_wanem *em, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    int home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    if (home_fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot open /proc/self/ns/net");
    }
    for (int i = 0; status == HDT_OK && i < em->n_ports; i++) {
        status = port_open(em, i, err);
    }
    for (int i = 0; status == HDT_OK && i < em->n_ports; i++) {
        status = port_routes(em, i, err);
    }
    if (setns(home_fd, CLONE_NEWNET) != 0 && status == HDT_OK) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot return to the own namespace");
    }
    close(home_fd);
    if (status != HDT_OK) {
        hdt_wanem_ports_close(em);
    }
    em->is_running = status == HDT_OK;
    return status;
}

void hdt_wanem_ports_close(struct hdt_wanem *em)
{
    for (int i = 0; i < em->n_ports; i++) {
        if (em->ports[i].fd >= 0) {
            close(em->ports[i].fd);
            em->ports[i].fd = -1;
        }
    }
    em->is_running = false;
}

static bool prefix_match(const uint8_t *a, const uint8_t *b, unsigned n_bits)
{
    unsigned n_bytes = n_bits / 8;
    uint8_t mask = (uint8_t)(0xff00u >> (n_bits % 8));

    return memcmp(a, b, n_bytes) == 0 &&
           (n_bits % 8 == 0 || ((a[n_bytes] ^ b[n_bytes]) & mask) == 0);
}

int hdt_wanem_route(const struct hdt_wanem *em, const struct hdt_wanem_packet *packet)
{
    bool is_v4 = packet->data[0] >> 4 == 4;
    const uint8_t *dst =
        packet->data + (is_v4 ? offsetof(struct iphdr, daddr) : offsetof(struct ip6_hdr, ip6_dst));
    int family = is_v4 ? AF_INET : AF_INET6;
    int best = -1, best_len = -1;

    for (int i = 0; i < em->n_routes; i++) {
        const struct hdt_wanem_route *route = &em->routes[i];
        int len = route->is_address ? (is_v4 ? 32 : 128) : route->dst.prefix_len;

        if (route->dst.family == family && len > best_len &&
            prefix_match(dst, route->dst.bytes, (unsigned)len)) {
            best = route->port_idx;
            best_len = len;
        }
    }
    return best;
}
