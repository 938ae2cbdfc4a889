/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/tls.h"
#include "src/net/tls_internal.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/net/crl.h"

#include <openssl/err.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_RETIRED 8

struct hdt_tls_ctx {
    struct hdt_tls_conf conf; /* its strings are ours; const after new */
    pthread_mutex_t lock;     /* guards what follows */
    SSL_CTX *current;
    SSL_CTX *retired[N_RETIRED]; /* a ring: another thread may be about to use one */
    unsigned n_reloads;
};

static const char *text_copy(const char *text)
{
    return text ? hdt_strdup(text) : NULL;
}

enum hdt_status hdt_tls_ctx_new(const struct hdt_tls_conf *conf, struct hdt_tls_ctx **ctx,
                                struct hdt_error *err)
{
    struct hdt_tls_ctx *made;
    SSL_CTX *ssl_ctx;

    HDT_TRY(hdt_tls_load(conf, &ssl_ctx, err));
    made = hdt_calloc(1, sizeof(*made));
    made->conf = *conf;
    made->conf.ca_path = text_copy(conf->ca_path);
    made->conf.cert_path = text_copy(conf->cert_path);
    made->conf.key_path = text_copy(conf->key_path);
    made->conf.crl_path = text_copy(conf->crl_path);
    made->conf.learned_crl_path = text_copy(conf->learned_crl_path);
    made->conf.federation = text_copy(conf->federation);
    made->conf.site = text_copy(conf->site);
    made->current = ssl_ctx;
    pthread_mutex_init(&made->lock, NULL);
    *ctx = made;
    return HDT_OK;
}

void hdt_tls_ctx_free(struct hdt_tls_ctx *ctx)
{
    if (!ctx) {
        return;
    }
    SSL_CTX_free(ctx->current);
    for (int i = 0; i < N_RETIRED; i++) {
        SSL_CTX_free(ctx->retired[i]);
    }
    pthread_mutex_destroy(&ctx->lock);
    free((char *)ctx->conf.ca_path);
    free((char *)ctx->conf.cert_path);
    free((char *)ctx->conf.key_path);
    free((char *)ctx->conf.crl_path);
    free((char *)ctx->conf.learned_crl_path);
    free((char *)ctx->conf.federation);
    free((char *)ctx->conf.site);
    free(ctx);
}

enum hdt_status hdt_tls_ctx_reload(struct hdt_tls_ctx *ctx, struct hdt_error *err)
{
    SSL_CTX *ssl_ctx;
    unsigned slot;

    HDT_TRY(hdt_tls_load(&ctx->conf, &ssl_ctx, err));
    pthread_mutex_lock(&ctx->lock);
    slot = ctx->n_reloads++ % N_RETIRED;
    SSL_CTX_free(ctx->retired[slot]);
    ctx->retired[slot] = ctx->current;
    ctx->current = ssl_ctx;
    pthread_mutex_unlock(&ctx->lock);
    return HDT_OK;
}

/* ---- revocation ---- */

/* The list that a context was loaded with, borrowed; NULL: none. */
static X509_CRL *crl_in_force(SSL_CTX *ssl_ctx)
{
    X509_STORE *store = SSL_CTX_get_cert_store(ssl_ctx);
    const STACK_OF(X509_OBJECT) * objects;
    X509_CRL *crl = NULL;

    /* A handshake on another thread may be sorting the objects to look one up. */
    X509_STORE_lock(store);
    objects = X509_STORE_get0_objects(store);
    for (int i = 0; i < sk_X509_OBJECT_num(objects) && !crl; i++) {
        crl = X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(objects, i));
    }
    X509_STORE_unlock(store);
    return crl;
}

void hdt_tls_crl_pem(struct hdt_tls_ctx *ctx, struct hdt_buf *pem)
{
    X509_CRL *crl = crl_in_force(hdt_tls_ctx_ssl_ctx(ctx));

    if (crl) {
        hdt_crl_to_pem(crl, pem);
    }
}

int64_t hdt_tls_crl_number(struct hdt_tls_ctx *ctx)
{
    const X509_CRL *crl = crl_in_force(hdt_tls_ctx_ssl_ctx(ctx));

    return crl ? hdt_crl_number(crl) : 0;
}

static enum hdt_status crl_check(SSL_CTX *ssl_ctx, X509_CRL *crl, struct hdt_error *err)
{
    const ASN1_TIME *until = X509_CRL_get0_nextUpdate(crl);
    int order = hdt_crl_compare(crl, crl_in_force(ssl_ctx));

    if (!hdt_crl_is_signed(crl, SSL_CTX_get_cert_store(ssl_ctx))) {
        return hdt_error_set(err, HDT_EACCES, "it is not signed by this federation's authority");
    }
    if (order == 0) {
        return hdt_error_set(err, HDT_EEXIST, "it is the one in force here");
    }
    if (order < 0) {
        return hdt_error_set(err, HDT_EINVAL, "it is older than the one in force here");
    }
    /* In force it would have every certificate refused. */
    if (X509_cmp_current_time(X509_CRL_get0_lastUpdate(crl)) >= 0 ||
        (until && X509_cmp_current_time(until) <= 0)) {
        hdt_error_set(err, HDT_EINVAL, "it is not valid by the clock here");
        hdt_error_hint(err, "compare the clocks of this machine and of the authority");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

enum hdt_status hdt_tls_crl_adopt(struct hdt_tls_ctx *ctx, const char *pem, size_t len,
                                  struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    X509_CRL *crl = NULL;
    enum hdt_status status;

    HDT_ASSERT(ctx->conf.learned_crl_path);
    HDT_TRY(hdt_crl_parse(pem, len, &crl, err));
    status = crl_check(hdt_tls_ctx_ssl_ctx(ctx), crl, err);
    if (status == HDT_OK) {
        hdt_crl_to_pem(crl, &bytes);
        status = hdt_file_write(ctx->conf.learned_crl_path, &bytes, 0644, HDT_FILE_REPLACE, err);
    }
    if (status == HDT_OK) {
        status = hdt_tls_ctx_reload(ctx, err);
    }
    hdt_buf_release(&bytes);
    X509_CRL_free(crl);
    return status;
}

SSL_CTX *hdt_tls_ctx_ssl_ctx(struct hdt_tls_ctx *ctx)
{
    SSL_CTX *ssl_ctx;

    pthread_mutex_lock(&ctx->lock);
    ssl_ctx = ctx->current;
    pthread_mutex_unlock(&ctx->lock);
    return ssl_ctx;
}

void hdt_tls_ctx_identity(struct hdt_tls_ctx *ctx, struct hdt_identity *identity)
{
    *identity = hdt_tls_policy_of(hdt_tls_ctx_ssl_ctx(ctx))->own;
}

static int64_t expiry_of(const X509 *cert)
{
    struct tm tm = {0};

    return ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) ? (int64_t)timegm(&tm) : 0;
}

void hdt_tls_ctx_expiry(struct hdt_tls_ctx *ctx, struct hdt_tls_expiry *expiry)
{
    SSL_CTX *ssl_ctx = hdt_tls_ctx_ssl_ctx(ctx);
    X509_STORE *store = SSL_CTX_get_cert_store(ssl_ctx);
    const STACK_OF(X509_OBJECT) * objects;

    expiry->own_s = expiry_of(SSL_CTX_get0_certificate(ssl_ctx));
    expiry->authority_s = INT64_MAX;
    X509_STORE_lock(store);
    objects = X509_STORE_get0_objects(store);
    for (int i = 0; i < sk_X509_OBJECT_num(objects); i++) {
        const X509 *cert = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(objects, i));

        if (cert && expiry_of(cert) < expiry->authority_s) {
            expiry->authority_s = expiry_of(cert);
        }
    }
    X509_STORE_unlock(store);
}

enum hdt_status hdt_tls_expect(SSL *ssl, enum hdt_role role, const char *name,
                               struct hdt_error *err)
{
    struct hdt_tls_state *state = hdt_tls_state_of(ssl);

    if (name && !hdt_identity_name_is_valid(name)) {
        return hdt_error_set(err, HDT_EINVAL, "'%.80s' is not a name of a %s", name,
                             hdt_role_name(role));
    }
    state->role = role;
    snprintf(state->name, sizeof(state->name), "%s", name ? name : "");
    return HDT_OK;
}

enum hdt_status hdt_tls_peer_identity(const SSL *ssl, struct hdt_identity *identity,
                                      struct hdt_error *err)
{
    const X509 *cert = SSL_get0_peer_certificate(ssl);

    if (!cert) {
        return hdt_error_set(err, HDT_EACCES, "the peer shows no certificate");
    }
    return hdt_identity_of_certificate(cert, identity, err);
}

enum hdt_status hdt_tls_recheck(struct hdt_tls_ctx *ctx, const SSL *ssl, struct hdt_error *err)
{
    SSL_CTX *ssl_ctx = hdt_tls_ctx_ssl_ctx(ctx);
    X509 *cert = SSL_get0_peer_certificate(ssl);
    X509_STORE_CTX *check;
    enum hdt_status status = HDT_OK;

    if (!cert) {
        return hdt_error_set(err, HDT_EACCES, "the peer shows no certificate");
    }
    check = X509_STORE_CTX_new();
    HDT_ASSERT(check);
    if (!X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(ssl_ctx), cert,
                             SSL_get_peer_cert_chain(ssl))) {
        status = hdt_error_set(err, HDT_EACCES, "cannot check the peer's certificate: %s",
                               hdt_tls_openssl_error());
    } else if (X509_verify_cert(check) != 1) {
        status = hdt_tls_refusal(check, "the peer's", err);
    } else {
        status = hdt_tls_identity_check(hdt_tls_policy_of(ssl_ctx), NULL, cert, err);
    }
    X509_STORE_CTX_free(check);
    ERR_clear_error();
    return status;
}

enum hdt_tls_sniff hdt_tls_sniff(const void *bytes, size_t len)
{
    static const char *const methods[] = {"GET ", "HEAD ",  "POST ",  "PUT ",
                                          "PRI ", "OPTION", "DELETE", "CONNEC"};
    const unsigned char *b = bytes;

    if (len < 6) {
        return HDT_TLS_SNIFF_MORE;
    }
    /* A handshake record of any TLS 1.x version that holds a ClientHello. */
    if (b[0] == 22 && b[1] == 3 && b[5] == 1) {
        return HDT_TLS_SNIFF_TLS;
    }
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        if (memcmp(b, methods[i], strlen(methods[i])) == 0) {
            return HDT_TLS_SNIFF_HTTP;
        }
    }
    return memcmp(b, "SSH-", 4) == 0 ? HDT_TLS_SNIFF_SSH : HDT_TLS_SNIFF_OTHER;
}

enum hdt_status hdt_tls_sniff_error(enum hdt_tls_sniff sniff, struct hdt_error *err)
{
    static const char *const what[] = {
        [HDT_TLS_SNIFF_HTTP] = "plain HTTP",
        [HDT_TLS_SNIFF_SSH] = "SSH",
        [HDT_TLS_SNIFF_OTHER] = "something that is not TLS",
    };

    HDT_ASSERT(sniff >= HDT_TLS_SNIFF_HTTP && sniff <= HDT_TLS_SNIFF_OTHER);
    hdt_error_set(err, HDT_EPROTO, "%s on the TLS port", what[sniff]);
    if (sniff == HDT_TLS_SNIFF_HTTP) {
        hdt_error_hint(err, "/status and /metrics are on http.listen");
    }
    return HDT_EPROTO;
}
