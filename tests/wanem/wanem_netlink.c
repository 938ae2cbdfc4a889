/* SPDX-License-Identifier: Apache-2.0 */
/* Just enough rtnetlink to give a device its addresses and routes: asking the kernel takes fewer
 * lines than starting `ip` in another namespace and understanding its failures. */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TX_QUEUE_PACKETS 4000 /* what waits in the kernel while the emulator does not run */

/* A request under construction: header, one fixed part, attributes. */
struct netlink_request {
    struct nlmsghdr head;
    uint8_t body[256];
};

static void request_begin(struct netlink_request *req, int type, int flags, const void *fixed,
                          size_t fixed_len)
{
    memset(req, 0, sizeof(*req));
    req->head.nlmsg_len = NLMSG_LENGTH(fixed_len);
    req->head.nlmsg_type = (uint16_t)type;
    req->head.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
    memcpy(NLMSG_DATA(&req->head), fixed, fixed_len);
}

static void request_attr(struct netlink_request *req, int type, const void *value, size_t len)
{
    struct rtattr attr = {.rta_len = (uint16_t)RTA_LENGTH(len), .rta_type = (uint16_t)type};
    uint8_t *at = (uint8_t *)req + NLMSG_ALIGN(req->head.nlmsg_len);

    HDT_ASSERT((size_t)(at - (uint8_t *)req) + RTA_SPACE(len) <= sizeof(*req));
    memcpy(at, &attr, sizeof(attr));
    memcpy(at + RTA_LENGTH(0), value, len);
    req->head.nlmsg_len = (uint32_t)(NLMSG_ALIGN(req->head.nlmsg_len) + RTA_SPACE(len));
}

/* Send the request and wait for the kernel's verdict, which comes at once. Returns 0 or errno. */
static int request_send(struct netlink_request *req)
{
    struct {
        struct nlmsghdr head;
        struct nlmsgerr verdict;
        uint8_t rest[512];
    } reply;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    int result = 0;

    if (fd < 0) {
        return errno;
    }
    if (send(fd, req, req->head.nlmsg_len, 0) < 0 || recv(fd, &reply, sizeof(reply), 0) < 0) {
        result = errno;
    } else if (reply.head.nlmsg_type == NLMSG_ERROR) {
        result = -reply.verdict.error;
    }
    close(fd);
    return result;
}

static enum hdt_status request_run(struct netlink_request *req, const char *what, const char *dev,
                                   struct hdt_error *err)
{
    int errno_value = request_send(req);

    if (errno_value == 0) {
        return HDT_OK;
    }
    return hdt_error_set_errno(err, errno_value == EPERM ? HDT_EACCES : HDT_EIO, errno_value,
                               "cannot %s device %s", what, dev);
}

static unsigned addr_len(const struct hdt_wanem_addr *addr)
{
    return addr->family == AF_INET ? 4 : 16;
}

enum hdt_status hdt_wanem_netlink_up(const char *dev, unsigned mtu, struct hdt_error *err)
{
    struct ifinfomsg info = {
        .ifi_index = (int)if_nametoindex(dev), .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    uint32_t tx_queue = TX_QUEUE_PACKETS, mtu_bytes = mtu;
    struct netlink_request req;

    request_begin(&req, RTM_NEWLINK, 0, &info, sizeof(info));
    request_attr(&req, IFLA_MTU, &mtu_bytes, sizeof(mtu_bytes));
    request_attr(&req, IFLA_TXQLEN, &tx_queue, sizeof(tx_queue));
    return request_run(&req, "bring up", dev, err);
}

enum hdt_status hdt_wanem_netlink_addr(const char *dev, const struct hdt_wanem_addr *addr,
                                       struct hdt_error *err)
{
    struct ifaddrmsg info = {.ifa_family = addr->family,
                             .ifa_prefixlen = addr->prefix_len,
                             .ifa_flags = IFA_F_NODAD, /* nobody else can have the address */
                             .ifa_index = if_nametoindex(dev)};
    struct netlink_request req;

    request_begin(&req, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &info, sizeof(info));
    request_attr(&req, IFA_LOCAL, addr->bytes, addr_len(addr));
    request_attr(&req, IFA_ADDRESS, addr->bytes, addr_len(addr));
    return request_run(&req, "set an address on", dev, err);
}

enum hdt_status hdt_wanem_netlink_route(const char *dev, const struct hdt_wanem_addr *dst,
                                        struct hdt_error *err)
{
    struct rtmsg info = {.rtm_family = dst->family,
                         .rtm_dst_len = dst->prefix_len,
                         .rtm_table = RT_TABLE_MAIN,
                         .rtm_protocol = RTPROT_STATIC,
                         .rtm_scope = RT_SCOPE_LINK,
                         .rtm_type = RTN_UNICAST};
    uint32_t index = if_nametoindex(dev);
    struct netlink_request req;

    request_begin(&req, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &info, sizeof(info));
    request_attr(&req, RTA_DST, dst->bytes, addr_len(dst));
    request_attr(&req, RTA_OIF, &index, sizeof(index));
    return request_run(&req, "set a route on", dev, err);
}
