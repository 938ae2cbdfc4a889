/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/bundle.h"
#include "src/net/ca_internal.h"
#include "src/net/crl.h"
#include "src/net/tls_internal.h"
#include "src/base/file.h"

#include <errno.h>
#include <grp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETTINGS_LABEL "HDT SETTINGS"

/* The objects of a bundle while it is checked. */
struct parts {
    EVP_PKEY *key;
    X509 *cert, *ca;
    X509_CRL *crl;
};

static void parts_release(struct parts *parts)
{
    EVP_PKEY_free(parts->key);
    X509_free(parts->cert);
    X509_free(parts->ca);
    X509_CRL_free(parts->crl);
}

void hdt_bundle_release(struct hdt_bundle *bundle)
{
    if (bundle->key.data) {
        OPENSSL_cleanse(bundle->key.data, bundle->key.len);
    }
    hdt_buf_release(&bundle->key);
    hdt_buf_release(&bundle->cert);
    hdt_buf_release(&bundle->ca);
    hdt_buf_release(&bundle->crl);
    hdt_buf_release(&bundle->settings);
}

/* ---- write ---- */

static void block_append(struct hdt_buf *out, const char *label, const void *bytes, size_t len)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *text;
    long n;

    HDT_ASSERT(bio && PEM_write_bio(bio, label, "", bytes, (long)len) > 0);
    n = BIO_get_mem_data(bio, &text);
    hdt_buf_append(out, text, (size_t)n);
    BIO_free(bio);
}

enum hdt_status hdt_bundle_write(const struct hdt_bundle *bundle, const char *path, bool force,
                                 struct hdt_error *err)
{
    char who[HDT_IDENTITY_URI_CAP];
    struct hdt_buf text = {0};
    enum hdt_status status;

    hdt_buf_appendf(
        &text,
        "HDT bundle: %s of federation %s.\n"
        "There is a private key in it: keep it secret, remove it when it is installed.\n"
        "On its machine: hdt ca install FILE\n\n",
        hdt_identity_describe(&bundle->identity, who), bundle->identity.federation);
    hdt_buf_append(&text, bundle->key.data, bundle->key.len);
    hdt_buf_append(&text, bundle->cert.data, bundle->cert.len);
    hdt_buf_append(&text, bundle->ca.data, bundle->ca.len);
    hdt_buf_append(&text, bundle->crl.data, bundle->crl.len);
    if (bundle->settings.len > 0) {
        block_append(&text, SETTINGS_LABEL, bundle->settings.data, bundle->settings.len);
    }
    status = hdt_file_write(path, &text, 0600, force ? HDT_FILE_REPLACE : HDT_FILE_NEW, err);
    OPENSSL_cleanse(text.data, text.len);
    hdt_buf_release(&text);
    return status;
}

/* ---- read ---- */

/* One block of a file. */
struct block {
    char *label, *header;
    unsigned char *bytes;
    long len;
};

static enum hdt_status block_refuse(const char *path, const char *what, struct hdt_error *err)
{
    hdt_error_set(err, HDT_EINVAL, "cannot use bundle '%s': %s", path, what);
    hdt_error_hint(err, "copy the file again; 'hdt ca bundle' at the authority makes another");
    return HDT_EINVAL;
}

static enum hdt_status settings_take(const struct block *block, struct hdt_bundle *bundle,
                                     const char *path, struct hdt_error *err)
{
    if (bundle->settings.len > 0) {
        return block_refuse(path, "it has settings twice", err);
    }
    if (block->len == 0 || memchr(block->bytes, '\0', (size_t)block->len)) {
        return block_refuse(path, "its settings are no text", err);
    }
    hdt_buf_append(&bundle->settings, block->bytes, (size_t)block->len);
    return HDT_OK;
}

/* The first certificate is the owner's, the second the authority's. */
static enum hdt_status block_take(const struct block *block, struct hdt_bundle *bundle,
                                  struct parts *parts, const char *path, struct hdt_error *err)
{
    const unsigned char *at = block->bytes;
    struct hdt_buf *pem = NULL;
    bool is_read = false;

    if (strcmp(block->label, SETTINGS_LABEL) == 0) {
        return settings_take(block, bundle, path, err);
    }
    if (strcmp(block->label, PEM_STRING_PKCS8INF) == 0 && !parts->key) {
        pem = &bundle->key;
        is_read = (parts->key = d2i_AutoPrivateKey(NULL, &at, block->len)) != NULL;
    } else if (strcmp(block->label, PEM_STRING_X509) == 0 && !parts->cert) {
        pem = &bundle->cert;
        is_read = (parts->cert = d2i_X509(NULL, &at, block->len)) != NULL;
    } else if (strcmp(block->label, PEM_STRING_X509) == 0 && !parts->ca) {
        pem = &bundle->ca;
        is_read = (parts->ca = d2i_X509(NULL, &at, block->len)) != NULL;
    } else if (strcmp(block->label, PEM_STRING_X509_CRL) == 0 && !parts->crl) {
        pem = &bundle->crl;
        is_read = (parts->crl = d2i_X509_CRL(NULL, &at, block->len)) != NULL;
    } else {
        return block_refuse(path, "it has a part that does not belong there", err);
    }
    ERR_clear_error();
    if (!is_read || at != block->bytes + block->len || block->header[0] != '\0') {
        return block_refuse(path, "a part of it is damaged", err);
    }
    block_append(pem, block->label, block->bytes, (size_t)block->len);
    return HDT_OK;
}

static enum hdt_status blocks_read(BIO *bio, const char *path, struct hdt_bundle *bundle,
                                   struct parts *parts, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    struct block block;

    while (status == HDT_OK &&
           PEM_read_bio(bio, &block.label, &block.header, &block.bytes, &block.len)) {
        status = block_take(&block, bundle, parts, path, err);
        OPENSSL_clear_free(block.bytes, (size_t)block.len);
        OPENSSL_free(block.label);
        OPENSSL_free(block.header);
    }
    if (status == HDT_OK && ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
        status = block_refuse(path, "a part of it is damaged", err);
    }
    ERR_clear_error();
    if (status == HDT_OK && (!parts->key || !parts->cert || !parts->ca)) {
        status = block_refuse(path,
                              !parts->key    ? "there is no private key in it"
                              : !parts->cert ? "there is no certificate in it"
                                             : "the certificate of the authority is not in it",
                              err);
    }
    return status;
}

/* As the other end of a connection would look at it. */
static enum hdt_status chain_check(const struct parts *parts, struct hdt_error *err)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    enum hdt_status status = HDT_OK;

    HDT_ASSERT(store && check && X509_STORE_add_cert(store, parts->ca));
    if (parts->crl) {
        X509_STORE_add_crl(store, parts->crl);
        X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    }
    HDT_ASSERT(X509_STORE_CTX_init(check, store, parts->cert, NULL));
    if (X509_verify_cert(check) != 1) {
        status = hdt_tls_refusal(check, "its", err);
    }
    X509_STORE_CTX_free(check);
    X509_STORE_free(store);
    ERR_clear_error();
    return status;
}

static enum hdt_status parts_check(const struct parts *parts, struct hdt_identity *identity,
                                   const char *path, struct hdt_error *err)
{
    struct hdt_identity ca;

    if (hdt_identity_of_certificate(parts->cert, identity, err) != HDT_OK ||
        hdt_identity_of_certificate(parts->ca, &ca, err) != HDT_OK) {
        hdt_error_prefix(err, "cannot use bundle '%s'", path);
        return err->status;
    }
    if (X509_check_private_key(parts->cert, parts->key) != 1) {
        ERR_clear_error();
        return block_refuse(path, "its key does not belong to its certificate", err);
    }
    if (ca.role != HDT_ROLE_CA || strcmp(ca.federation, identity->federation) != 0) {
        return block_refuse(path, "its authority is not that of its certificate's federation", err);
    }
    if (parts->crl && X509_CRL_verify(parts->crl, X509_get0_pubkey(parts->ca)) != 1) {
        ERR_clear_error();
        return block_refuse(path, "its revocation list is not signed by its authority", err);
    }
    if (chain_check(parts, err) != HDT_OK) {
        hdt_error_prefix(err, "cannot use bundle '%s'", path);
        return err->status;
    }
    return HDT_OK;
}

enum hdt_status hdt_bundle_read(const char *path, struct hdt_bundle *out, struct hdt_error *err)
{
    struct hdt_bundle bundle = {0};
    struct hdt_buf bytes = {0};
    struct parts parts = {0};
    enum hdt_status status = hdt_file_read(path, HDT_BUNDLE_MAX, &bytes, err);
    BIO *bio = NULL;

    if (status == HDT_OK) {
        bio = BIO_new_mem_buf(hdt_buf_str(&bytes), (int)bytes.len);
        HDT_ASSERT(bio);
        status = blocks_read(bio, path, &bundle, &parts, err);
    }
    if (status == HDT_OK) {
        status = parts_check(&parts, &bundle.identity, path, err);
    }
    if (status == HDT_OK) {
        bundle.dates.from_s = hdt_ca_time_seconds(X509_get0_notBefore(parts.cert));
        bundle.dates.until_s = hdt_ca_time_seconds(X509_get0_notAfter(parts.cert));
        *out = bundle;
    } else {
        hdt_bundle_release(&bundle);
    }
    BIO_free(bio);
    parts_release(&parts);
    if (bytes.data) {
        OPENSSL_cleanse(bytes.data, bytes.len);
    }
    hdt_buf_release(&bytes);
    return status;
}

/* ---- unpack ---- */

static enum hdt_status owner_check(const struct hdt_bundle *bundle, const char *path,
                                   struct hdt_error *err)
{
    char ours[HDT_IDENTITY_URI_CAP], theirs[HDT_IDENTITY_URI_CAP];
    struct hdt_identity there;
    enum hdt_status status;
    X509 *cert;

    HDT_TRY(hdt_ca_cert_read(path, &cert, err));
    status = hdt_identity_of_certificate(cert, &there, err);
    X509_free(cert);
    if (status != HDT_OK) {
        hdt_error_prefix(err, "'%s' is there and is not one of ours", path);
        return status;
    }
    if (strcmp(hdt_identity_format(&there, theirs), hdt_identity_format(&bundle->identity, ours)) !=
        0) {
        return hdt_error_set(err, HDT_EEXIST, "'%s' is that of %s, the bundle is for %s", path,
                             theirs, ours);
    }
    return HDT_OK;
}

static enum hdt_status authority_check(const struct hdt_bundle *bundle, const char *path,
                                       struct hdt_error *err)
{
    struct hdt_buf pem = {0};
    enum hdt_status status;
    X509 *cert;

    HDT_TRY(hdt_ca_cert_read(path, &cert, err));
    hdt_ca_cert_pem(cert, &pem);
    X509_free(cert);
    status = strcmp(hdt_buf_str(&pem), hdt_buf_str(&bundle->ca)) == 0
                 ? HDT_OK
                 : hdt_error_set(err, HDT_EEXIST, "'%s' is of another authority", path);
    hdt_buf_release(&pem);
    return status;
}

enum hdt_status hdt_bundle_check_folder(const struct hdt_bundle *bundle, const char *dir,
                                        struct hdt_error *err)
{
    char *cert_path = hdt_asprintf("%s/" HDT_CA_CERT_FILE, dir);
    char *ca_path = hdt_asprintf("%s/ca.pem", dir);
    enum hdt_status status = HDT_OK;

    if (hdt_file_exists(ca_path)) {
        status = authority_check(bundle, ca_path, err);
    }
    if (status == HDT_OK && hdt_file_exists(cert_path)) {
        status = owner_check(bundle, cert_path, err);
    }
    if (status != HDT_OK) {
        hdt_error_hint(err, "install to another folder (--to DIR), or replace it with --force");
    }
    free(cert_path);
    free(ca_path);
    return status;
}

/* The group that reads keys, for root; -1: nobody but the owner. */
static gid_t service_group(void)
{
    const struct group *group = geteuid() == 0 ? getgrnam(HDT_SERVICE_GROUP) : NULL;

    return group ? group->gr_gid : (gid_t)-1;
}

bool hdt_bundle_has_group(void)
{
    return getgrnam(HDT_SERVICE_GROUP) != NULL;
}

static enum hdt_status file_unpack(const char *dir, const char *name, const struct hdt_buf *bytes,
                                   unsigned mode, struct hdt_error *err)
{
    char *path = hdt_asprintf("%s/%s", dir, name);
    gid_t group = service_group();
    enum hdt_status status = hdt_file_write(path, bytes, mode, HDT_FILE_REPLACE, err);

    if (status == HDT_OK && group != (gid_t)-1 &&
        (chown(path, 0, group) != 0 || chmod(path, mode | 0040) != 0)) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot give '%s' to group %s", path,
                                     HDT_SERVICE_GROUP);
    }
    free(path);
    return status;
}

static enum hdt_status folder_make(const char *dir, struct hdt_error *err)
{
    gid_t group = service_group();

    if (hdt_file_exists(dir)) {
        return HDT_OK;
    }
    HDT_TRY(hdt_dir_make(dir, 0700, err));
    if (group != (gid_t)-1 && (chown(dir, 0, group) != 0 || chmod(dir, 0750) != 0)) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot give '%s' to group %s", dir,
                                   HDT_SERVICE_GROUP);
    }
    return HDT_OK;
}

/* Is the list that is there newer? One that cannot be read is not. */
static bool crl_is_newer(const struct hdt_bundle *bundle, const char *path)
{
    X509_CRL *there = NULL, *ours = NULL;
    struct hdt_error ignored = {0};
    bool is_newer;

    is_newer = hdt_file_exists(path) && hdt_crl_read(path, &there, &ignored) == HDT_OK &&
               hdt_crl_parse(bundle->crl.data, bundle->crl.len, &ours, &ignored) == HDT_OK &&
               hdt_crl_compare(there, ours) > 0;
    X509_CRL_free(there);
    X509_CRL_free(ours);
    return is_newer;
}

enum hdt_status hdt_bundle_unpack(const struct hdt_bundle *bundle, const char *dir,
                                  struct hdt_error *err)
{
    char *crl_path = hdt_asprintf("%s/crl.pem", dir);
    bool has_crl = bundle->crl.len > 0 && !crl_is_newer(bundle, crl_path);

    free(crl_path);
    HDT_TRY(folder_make(dir, err));
    HDT_TRY(file_unpack(dir, HDT_CA_KEY_FILE, &bundle->key, 0600, err));
    HDT_TRY(file_unpack(dir, HDT_CA_CERT_FILE, &bundle->cert, 0644, err));
    HDT_TRY(file_unpack(dir, "ca.pem", &bundle->ca, 0644, err));
    return has_crl ? file_unpack(dir, "crl.pem", &bundle->crl, 0644, err) : HDT_OK;
}
