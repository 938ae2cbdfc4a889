/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_TLS_PAIR_H
#define HDT_TESTS_SUPPORT_TLS_PAIR_H

/* Two TLS 1.3 contexts that verify each other, with certificates made by plain OpenSSL calls. */
#include <openssl/ssl.h>

struct tls_pair {
    SSL_CTX *server, *client;
};

/* A CA in memory and one certificate for each side, P-256. Ends the process when OpenSSL fails. */
void hdt_tls_pair_init(struct tls_pair *pair);
void hdt_tls_pair_release(struct tls_pair *pair);

/* A client context whose certificate is from another CA (and which trusts nobody else). */
SSL_CTX *hdt_tls_stranger_new(void);

#endif /* HDT_TESTS_SUPPORT_TLS_PAIR_H */
