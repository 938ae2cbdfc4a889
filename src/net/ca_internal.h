/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_CA_INTERNAL_H
#define HDT_NET_CA_INTERNAL_H

/* X.509 objects of the authority and their PEM text; no files but reading. ca.c and
 * bundle.c use it. */
#include "src/net/ca.h"

#include <openssl/evp.h>
#include <openssl/x509.h>

struct hdt_buf;

/* What goes into a certificate. */
struct hdt_ca_spec {
    const struct hdt_identity *identity;
    struct hdt_ca_dates dates;
    EVP_PKEY *key;      /* its owner's; only the public half is needed */
    const X509 *issuer; /* NULL: signed by itself, an authority */
    EVP_PKEY *issuer_key;
};

/* A new EC P-256 key. HDT_EIO when OpenSSL cannot. */
enum hdt_status hdt_ca_key_make(EVP_PKEY **key, struct hdt_error *err);

/* A signed certificate with a random serial. */
enum hdt_status hdt_ca_cert_make(const struct hdt_ca_spec *spec, X509 **cert,
                                 struct hdt_error *err);

/* A request for `identity`, signed with its key. */
enum hdt_status hdt_ca_csr_make(const struct hdt_identity *identity, EVP_PKEY *key, X509_REQ **csr,
                                struct hdt_error *err);

/* Read and verify a request; who it is from. The caller frees *csr. */
enum hdt_status hdt_ca_csr_read(const char *path, X509_REQ **csr, struct hdt_identity *identity,
                                struct hdt_error *err);

/* The revocation list over all entries that are revoked, signed by the authority. */
struct hdt_ca_list {
    const X509 *issuer;
    EVP_PKEY *key;
    const struct hdt_ca_entry *entries;
    size_t n;
    int64_t number; /* larger than that of every list before */
};
enum hdt_status hdt_ca_crl_make(const struct hdt_ca_list *list, X509_CRL **crl,
                                struct hdt_error *err);

enum hdt_status hdt_ca_cert_read(const char *path, X509 **cert, struct hdt_error *err);
enum hdt_status hdt_ca_key_read(const char *path, EVP_PKEY **key, struct hdt_error *err);

void hdt_ca_cert_pem(const X509 *cert, struct hdt_buf *pem);
void hdt_ca_key_pem(const EVP_PKEY *key, struct hdt_buf *pem);
void hdt_ca_csr_pem(const X509_REQ *csr, struct hdt_buf *pem);

void hdt_ca_serial_format(const ASN1_INTEGER *serial, char buf[HDT_CA_SERIAL_CAP]);
int64_t hdt_ca_time_seconds(const ASN1_TIME *time);

#endif /* HDT_NET_CA_INTERNAL_H */
