/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_TLS_INTERNAL_H
#define HDT_NET_TLS_INTERNAL_H

/* What the files of tls share; nobody else includes this but bundle.c, which checks certificates as
 * TLS does. */
#include "src/net/tls.h"

#include <stdbool.h>

#define HDT_TLS_LABEL_CAP 320

/* Who is let in: hangs on an SSL_CTX and is freed with it. */
struct hdt_tls_policy {
    unsigned peer_roles;
    struct hdt_identity own;
};

/* What is expected and what was found on one connection: hangs on an SSL and is freed with it. */
struct hdt_tls_state {
    enum hdt_role role; /* 0: whoever the policy lets in */
    char name[HDT_IDENTITY_NAME_CAP];
    bool refused; /* `refusal` says why */
    struct hdt_error refusal;
};

/* tls_load.c: files to a new SSL_CTX with its policy attached. */
enum hdt_status hdt_tls_load(const struct hdt_tls_conf *conf, SSL_CTX **ssl_ctx,
                             struct hdt_error *err);

/* tls_verify.c */
int hdt_tls_verify_cb(int ok, X509_STORE_CTX *store);
struct hdt_tls_state *hdt_tls_state_of(SSL *ssl);
void hdt_tls_policy_attach(SSL_CTX *ssl_ctx, struct hdt_tls_policy *policy); /* takes it */
const struct hdt_tls_policy *hdt_tls_policy_of(const SSL_CTX *ssl_ctx);

/* Say why the chain in `store` was refused; `whose`: "the peer's" or "our own". */
enum hdt_status hdt_tls_refusal(X509_STORE_CTX *store, const char *whose, struct hdt_error *err);

/* Is this certificate's identity one that the policy lets in? state may be NULL. */
enum hdt_status hdt_tls_identity_check(const struct hdt_tls_policy *policy,
                                       const struct hdt_tls_state *state, const X509 *cert,
                                       struct hdt_error *err);

/* "certificate of site b (serial 3F)". Returns buf. */
char *hdt_tls_label(const X509 *cert, char buf[HDT_TLS_LABEL_CAP]);

/* The oldest entry of OpenSSL's error queue in words; empties the queue. */
const char *hdt_tls_openssl_error(void);

#endif /* HDT_NET_TLS_INTERNAL_H */
