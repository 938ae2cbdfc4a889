/* SPDX-License-Identifier: Apache-2.0 */
/* Certificate files to an SSL_CTX. Everything that can be found out before the first connection is
 * found out here, with the file's name: a daemon with a wrong key should not start. */
#include "config.h"

#include "src/net/tls_internal.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/net/crl.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <string.h>
#include <sys/stat.h>

#define PEM_MAX (1u << 20)

static enum hdt_status pem_open(const char *path, struct hdt_buf *bytes, BIO **bio,
                                struct hdt_error *err)
{
    HDT_TRY(hdt_file_read(path, PEM_MAX, bytes, err));
    *bio = BIO_new_mem_buf(hdt_buf_str(bytes), (int)bytes->len);
    HDT_ASSERT(*bio);
    return HDT_OK;
}

/* At the end of a file PEM readers say "no start line"; any other word is a damaged block. */
static enum hdt_status pem_end_check(const char *path, const char *what, int n,
                                     struct hdt_error *err)
{
    bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;

    if (n > 0 && is_end) {
        ERR_clear_error();
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL, "cannot use '%s': %s %s in it", path,
                  is_end ? "there is no" : "there is a damaged", what);
    hdt_error_hint(err, "it must be PEM text, as 'hdt ca' writes it");
    ERR_clear_error();
    return HDT_EINVAL;
}

static enum hdt_status anchors_load(SSL_CTX *ssl_ctx, const char *path, struct hdt_error *err)
{
    X509_STORE *store = SSL_CTX_get_cert_store(ssl_ctx);
    struct hdt_buf bytes = {0};
    enum hdt_status status;
    BIO *bio = NULL;
    X509 *cert;
    int n = 0;

    status = pem_open(path, &bytes, &bio, err);
    if (status == HDT_OK) {
        for (; (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)); n++) {
            X509_STORE_add_cert(store, cert);
            X509_free(cert);
        }
        status = pem_end_check(path, "certificate", n, err);
    }
    BIO_free(bio);
    hdt_buf_release(&bytes);
    return status;
}

static enum hdt_status chain_load(SSL_CTX *ssl_ctx, const char *path, struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    enum hdt_status status;
    BIO *bio = NULL;
    X509 *cert;
    int n = 0;

    status = pem_open(path, &bytes, &bio, err);
    if (status == HDT_OK) {
        for (; (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)); n++) {
            if (n == 0 ? SSL_CTX_use_certificate(ssl_ctx, cert) <= 0
                       : SSL_CTX_add1_chain_cert(ssl_ctx, cert) <= 0) {
                status = hdt_error_set(err, HDT_EINVAL, "cannot use '%s': %s", path,
                                       hdt_tls_openssl_error());
            }
            X509_free(cert);
        }
    }
    if (status == HDT_OK) {
        status = pem_end_check(path, "certificate", n, err);
    }
    BIO_free(bio);
    hdt_buf_release(&bytes);
    return status;
}

/* A daemon cannot ask for a password: an encrypted key fails to load. */
static int password_none(char *buf, int size, int rwflag, void *user)
{
    (void)buf;
    (void)size;
    (void)rwflag;
    *(bool *)user = true;
    return -1;
}

static enum hdt_status key_mode_check(const char *path, struct hdt_error *err)
{
    struct stat st;

    if (stat(path, &st) == 0 && (st.st_mode & 0007)) {
        hdt_error_set(err, HDT_EACCES, "cannot use key '%s': everybody may read it (mode %04o)",
                      path, (unsigned)st.st_mode & 07777);
        hdt_error_hint(err, "chmod 600 %s; if others could read it, make a new one", path);
        return HDT_EACCES;
    }
    return HDT_OK;
}

static enum hdt_status key_use(SSL_CTX *ssl_ctx, const struct hdt_tls_conf *conf, EVP_PKEY *key,
                               struct hdt_error *err)
{
    if (X509_check_private_key(SSL_CTX_get0_certificate(ssl_ctx), key) != 1) {
        hdt_error_set(err, HDT_EINVAL, "key '%s' does not belong to certificate '%s'",
                      conf->key_path, conf->cert_path);
        hdt_error_hint(err, "both must come from one 'hdt ca request' or 'hdt ca issue'");
        ERR_clear_error();
        return HDT_EINVAL;
    }
    if (SSL_CTX_use_PrivateKey(ssl_ctx, key) <= 0) {
        return hdt_error_set(err, HDT_EINVAL, "cannot use key '%s': %s", conf->key_path,
                             hdt_tls_openssl_error());
    }
    return HDT_OK;
}

static enum hdt_status key_load(SSL_CTX *ssl_ctx, const struct hdt_tls_conf *conf,
                                struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    enum hdt_status status;
    EVP_PKEY *key = NULL;
    BIO *bio = NULL;
    bool is_encrypted = false;

    HDT_TRY(key_mode_check(conf->key_path, err));
    status = pem_open(conf->key_path, &bytes, &bio, err);
    if (status == HDT_OK) {
        key = PEM_read_bio_PrivateKey(bio, NULL, password_none, &is_encrypted);
        if (key) {
            status = key_use(ssl_ctx, conf, key, err);
        } else {
            status = hdt_error_set(err, HDT_EINVAL, "cannot use key '%s': %s", conf->key_path,
                                   is_encrypted ? "it is encrypted with a password"
                                                : "there is no private key in it");
            hdt_error_hint(err, "it must be PEM text without a password, as 'hdt ca' writes it");
            ERR_clear_error();
        }
    }
    EVP_PKEY_free(key);
    BIO_free(bio);
    OPENSSL_cleanse(bytes.data, bytes.len);
    hdt_buf_release(&bytes);
    return status;
}

/* One file's list; *crl stays NULL when the file may be missing and is. */
static enum hdt_status crl_read(SSL_CTX *ssl_ctx, const struct hdt_tls_conf *conf, const char *path,
                                X509_CRL **crl, struct hdt_error *err)
{
    bool is_learned = path == conf->learned_crl_path;

    if (!path || !path[0] || (is_learned && !hdt_file_exists(path))) {
        return HDT_OK;
    }
    HDT_TRY(hdt_crl_read(path, crl, err));
    if (hdt_crl_is_signed(*crl, SSL_CTX_get_cert_store(ssl_ctx))) {
        return HDT_OK;
    }
    X509_CRL_free(*crl);
    *crl = NULL;
    hdt_error_set(err, HDT_EACCES, "cannot use revocation list '%s': it is not signed by '%s'",
                  path, conf->ca_path);
    hdt_error_hint(err, is_learned ? "remove it if the authority was made anew"
                                   : "copy crl.pem and ca.pem from the same authority");
    return HDT_EACCES;
}

/* The newer of the list that was put here and the one that was learned. */
static enum hdt_status crl_load(SSL_CTX *ssl_ctx, const struct hdt_tls_conf *conf,
                                struct hdt_error *err)
{
    X509_STORE *store = SSL_CTX_get_cert_store(ssl_ctx);
    X509_CRL *given = NULL, *learned = NULL, *newest;
    enum hdt_status status = crl_read(ssl_ctx, conf, conf->crl_path, &given, err);

    if (status == HDT_OK) {
        status = crl_read(ssl_ctx, conf, conf->learned_crl_path, &learned, err);
    }
    if (status == HDT_OK && (given || learned)) {
        newest = hdt_crl_compare(learned, given) > 0 ? learned : given;
        X509_STORE_add_crl(store, newest);
        X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    }
    X509_CRL_free(given);
    X509_CRL_free(learned);
    return status;
}

/* Would a peer with the same files trust us? */
static enum hdt_status own_chain_check(SSL_CTX *ssl_ctx, struct hdt_error *err)
{
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    STACK_OF(X509) *chain = NULL;
    enum hdt_status status = HDT_OK;

    HDT_ASSERT(check);
    SSL_CTX_get0_chain_certs(ssl_ctx, &chain);
    if (!X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(ssl_ctx),
                             SSL_CTX_get0_certificate(ssl_ctx), chain)) {
        status = hdt_error_set(err, HDT_EINVAL, "cannot check our own certificate: %s",
                               hdt_tls_openssl_error());
    } else if (X509_verify_cert(check) != 1) {
        status = hdt_tls_refusal(check, "our own", err);
    }
    X509_STORE_CTX_free(check);
    ERR_clear_error();
    return status;
}

static enum hdt_status own_identity_check(const struct hdt_tls_conf *conf,
                                          const struct hdt_identity *own, struct hdt_error *err)
{
    char roles[HDT_IDENTITY_NAME_CAP];

    if (conf->own_roles && !(own->role & conf->own_roles)) {
        hdt_error_set(err, HDT_EACCES, "certificate '%s' has role %s, needed is %s",
                      conf->cert_path, hdt_role_name(own->role),
                      hdt_role_mask_format(conf->own_roles, roles));
        hdt_error_hint(err, "'hdt ca issue %s NAME' makes a fitting one",
                       hdt_role_name(conf->own_roles & -conf->own_roles));
        return HDT_EACCES;
    }
    if (conf->federation && strcmp(conf->federation, own->federation) != 0) {
        hdt_error_set(err, HDT_EACCES,
                      "certificate '%s' is of federation '%s', the settings say "
                      "'%s'",
                      conf->cert_path, own->federation, conf->federation);
        return HDT_EACCES;
    }
    if (conf->site && strcmp(conf->site, own->site) != 0) {
        hdt_error_set(err, HDT_EACCES, "certificate '%s' is of site '%s', the settings say '%s'",
                      conf->cert_path, own->site, conf->site);
        return HDT_EACCES;
    }
    return HDT_OK;
}

static enum hdt_status policy_make(SSL_CTX *ssl_ctx, const struct hdt_tls_conf *conf,
                                   struct hdt_error *err)
{
    struct hdt_identity own = {0};
    struct hdt_tls_policy *policy;

    if (hdt_identity_of_certificate(SSL_CTX_get0_certificate(ssl_ctx), &own, err) != HDT_OK) {
        hdt_error_prefix(err, "cannot use certificate '%s'", conf->cert_path);
        return HDT_EACCES;
    }
    HDT_TRY(own_chain_check(ssl_ctx, err));
    HDT_TRY(own_identity_check(conf, &own, err));
    policy = hdt_calloc(1, sizeof(*policy));
    policy->own = own;
    policy->peer_roles = conf->peer_roles;
    if (!policy->peer_roles) {
        policy->peer_roles = HDT_ROLE_SITE | HDT_ROLE_WORKER | HDT_ROLE_OPERATOR;
    }
    hdt_tls_policy_attach(ssl_ctx, policy);
    return HDT_OK;
}

/* TLS 1.3 alone, its fastest cipher first, no resumption: a ticket would let a revoked peer back in
 * without showing its certificate. */
static SSL_CTX *ssl_ctx_make(void)
{
    SSL_CTX *ssl_ctx = SSL_CTX_new(TLS_method());
    int mode = SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT;

    HDT_ASSERT(ssl_ctx);
    SSL_CTX_set_min_proto_version(ssl_ctx, TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(ssl_ctx, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(ssl_ctx, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                      "TLS_CHACHA20_POLY1305_SHA256");
    SSL_CTX_set_num_tickets(ssl_ctx, 0);
    SSL_CTX_set_session_cache_mode(ssl_ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(ssl_ctx, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_verify(ssl_ctx, mode, hdt_tls_verify_cb);
    return ssl_ctx;
}

enum hdt_status hdt_tls_load(const struct hdt_tls_conf *conf, SSL_CTX **ssl_ctx,
                             struct hdt_error *err)
{
    SSL_CTX *made = ssl_ctx_make();
    enum hdt_status status;

    ERR_clear_error();
    status = anchors_load(made, conf->ca_path, err);
    if (status == HDT_OK) {
        status = chain_load(made, conf->cert_path, err);
    }
    if (status == HDT_OK) {
        status = key_load(made, conf, err);
    }
    if (status == HDT_OK) {
        status = crl_load(made, conf, err);
    }
    if (status == HDT_OK) {
        status = policy_make(made, conf, err);
    }
    if (status != HDT_OK) {
        SSL_CTX_free(made);
        return status;
    }
    *ssl_ctx = made;
    return HDT_OK;
}
