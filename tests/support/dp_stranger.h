/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_DP_STRANGER_H
#define HDT_TESTS_DP_STRANGER_H

/* A peer gateway written by hand from doc/protocol.md: blocking, and as rude as a test wants. */
#include "src/core/frame.h"

#include <jansson.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdbool.h>

struct stranger {
    int fd;
    SSL *ssl;
    SSL_CTX *ctx;
};

/* TCP to sa, and TLS when ctx is not NULL (borrowed). false: one of them failed; close it all the
 * same. */
bool hdt_stranger_connect(struct stranger *stranger, const struct sockaddr_in *sa, SSL_CTX *ctx);
/* Of the bundle in a folder; the other end is not looked at. */
SSL_CTX *hdt_stranger_ctx(const char *dir);
/* TCP to a port of loopback; dir: bundle for TLS, NULL: no TLS. false: TLS failed. */
bool hdt_stranger_open(struct stranger *stranger, int port, const char *dir);
void hdt_stranger_close(struct stranger *stranger);
/* A listening socket of loopback; its port in *port. The caller closes it. */
int hdt_stranger_listen(int *port);
/* Who dials it next: TCP only. false: nobody within five seconds; close it all the same. */
bool hdt_stranger_accept(struct stranger *stranger, int listen_fd);
/* TLS on an accepted connection, with the bundle in a folder. */
bool hdt_stranger_greet(struct stranger *stranger, const char *dir);
bool hdt_stranger_write(struct stranger *stranger, const void *bytes, size_t len);
bool hdt_stranger_read(struct stranger *stranger, void *bytes, size_t len);
bool hdt_stranger_send(struct stranger *stranger, struct hdt_frame *frame, const void *payload);
bool hdt_stranger_send_msg(struct stranger *stranger, const char *type, json_t *body);
/* Hello of a site for stream `index` of session 77. */
json_t *hdt_stranger_hello(const char *site, int proto, unsigned index);
/* Open stream `index` of that session with the certificate in `dir`, as the hello says; hello is
 * stolen. The answer's type: "welcome", "refuse", or "" when there is none; its body in *answer
 * (new reference) when not NULL. */
const char *hdt_stranger_join(struct stranger *stranger, int port, const char *dir, json_t *hello,
                              json_t **answer);
/* Next message, PINGs and other records left out; NULL: the connection ended. */
json_t *hdt_stranger_recv_msg(struct stranger *stranger);
/* true when the other end closes within five seconds. */
bool hdt_stranger_is_dropped(struct stranger *stranger);

#endif /* HDT_TESTS_DP_STRANGER_H */
