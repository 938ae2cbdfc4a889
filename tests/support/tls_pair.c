/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/tls_pair.h"
#include "src/base/error.h"

#include <openssl/evp.h>
#include <openssl/x509v3.h>

struct authority {
    EVP_PKEY *key;
    X509 *cert;
};

static X509 *cert_new(const char *name, EVP_PKEY *key, long serial)
{
    X509 *cert = X509_new();

    HDT_ASSERT(cert && key);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    HDT_ASSERT(X509_set_pubkey(cert, key) == 1);
    return cert;
}

static void cert_extend(X509 *cert, int nid, const char *value)
{
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, nid, value);

    HDT_ASSERT(ext && X509_add_ext(cert, ext, -1) == 1);
    X509_EXTENSION_free(ext);
}

static struct authority authority_new(const char *name)
{
    struct authority ca = {.key = EVP_EC_gen("P-256")};

    ca.cert = cert_new(name, ca.key, 1);
    X509_set_issuer_name(ca.cert, X509_get_subject_name(ca.cert));
    cert_extend(ca.cert, NID_basic_constraints, "critical,CA:TRUE");
    HDT_ASSERT(X509_sign(ca.cert, ca.key, EVP_sha256()) > 0);
    return ca;
}

static void authority_free(struct authority *ca)
{
    X509_free(ca->cert);
    EVP_PKEY_free(ca->key);
}

static SSL_CTX *ctx_new(const struct authority *ca, const char *name, long serial)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = cert_new(name, key, serial);

    HDT_ASSERT(ctx);
    X509_set_issuer_name(cert, X509_get_subject_name(ca->cert));
    HDT_ASSERT(X509_sign(cert, ca->key, EVP_sha256()) > 0);
    HDT_ASSERT(SSL_CTX_use_certificate(ctx, cert) == 1);
    HDT_ASSERT(SSL_CTX_use_PrivateKey(ctx, key) == 1);
    HDT_ASSERT(X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), ca->cert) == 1);
    SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ctx;
}

void hdt_tls_pair_init(struct tls_pair *pair)
{
    struct authority ca = authority_new("test CA");

    pair->server = ctx_new(&ca, "server", 2);
    pair->client = ctx_new(&ca, "client", 3);
    authority_free(&ca);
}

void hdt_tls_pair_release(struct tls_pair *pair)
{
    SSL_CTX_free(pair->server);
    SSL_CTX_free(pair->client);
}

SSL_CTX *hdt_tls_stranger_new(void)
{
    struct authority ca = authority_new("another CA");
    SSL_CTX *ctx = ctx_new(&ca, "stranger", 4);

    authority_free(&ca);
    return ctx;
}
