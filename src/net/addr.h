/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_ADDR_H
#define HDT_NET_ADDR_H

/* Socket addresses as users write them: "host:port", "[v6]:port", "unix:PATH", "tls:host:port". */
#include "src/base/error.h"

#include <stdbool.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_addr {
    char text[160];
    bool is_unix;
    struct sockaddr_storage sa;
    socklen_t sa_len;
};

/* Parse and resolve (may block on DNS). HDT_EINVAL with the allowed forms; HDT_ENOENT: no such
 * host. */
enum hdt_status hdt_addr_parse(const char *text, struct hdt_addr *addr, struct hdt_error *err);

/* As hdt_addr_parse without asking for the host: is it written right? HDT_EINVAL. */
enum hdt_status hdt_addr_check(const char *text, struct hdt_error *err);

/* Listening socket, non-blocking, close-on-exec, SO_REUSEADDR. A stale Unix socket file (nobody
 * accepts on it) is replaced; one in use is HDT_EEXIST, as is a port in use, with the remedy.
 * mode: file mode of a Unix socket. */
enum hdt_status hdt_addr_listen(const struct hdt_addr *addr, unsigned mode, int *fd,
                                struct hdt_error *err);

/* Non-blocking socket of the right family, TCP_NODELAY, keep-alive off (HDT has its own signs of
 * life); not yet connected: submit HDT_IO_CONNECT. */
enum hdt_status hdt_addr_socket(const struct hdt_addr *addr, int *fd, struct hdt_error *err);

/* The same in two parts, for who waits in a poll of its own: begin gives a non-blocking socket, on
 * which POLLOUT says that it is through, and end whether it is connected (HDT_OK). late_us > 0: it
 * is not, after so long; the socket is closed on failure. */
enum hdt_status hdt_addr_connect_begin(const struct hdt_addr *addr, int *fd, struct hdt_error *err);
enum hdt_status hdt_addr_connect_end(const struct hdt_addr *addr, int *fd, int64_t late_us,
                                     struct hdt_error *err);

/* Blocking connect with a deadline. */
enum hdt_status hdt_addr_connect(const struct hdt_addr *addr, int timeout_ms, int *fd,
                                 struct hdt_error *err);

/* A host that vanishes ends the connection within `within_us`, whether bytes wait for it (TCP user
 * timeout) or none do (keep-alive probes). For connections without signs of life of their own;
 * logs what the system refuses. */
void hdt_addr_keep_alive(int fd, int64_t within_us);

/* Monotonic time, to the millisecond, at which the last segment came from the other end's kernel:
 * data or an acknowledgement. 0: not known, as of a socket that is not TCP. */
int64_t hdt_addr_last_segment_us(int fd);

/* "host:port" of a connected or bound socket (local or remote end). */
void hdt_addr_of_socket(int fd, bool remote, char *text, unsigned text_cap);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_ADDR_H */
