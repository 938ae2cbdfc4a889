/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/ca_internal.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <time.h>

#define PEM_MAX (1u << 20)

/* OpenSSL refused something that only a lack of memory or a broken build can explain. */
static enum hdt_status openssl_refuse(const char *what, struct hdt_error *err)
{
    const char *reason = ERR_reason_error_string(ERR_peek_error());

    hdt_error_set(err, HDT_EIO, "cannot %s: OpenSSL says '%s'", what,
                  reason ? reason : "unknown reason");
    ERR_clear_error();
    return HDT_EIO;
}

enum hdt_status hdt_ca_key_make(EVP_PKEY **key, struct hdt_error *err)
{
    *key = EVP_EC_gen("P-256");
    return *key ? HDT_OK : openssl_refuse("make a key", err);
}

static bool extension_add(X509 *cert, X509V3_CTX *context, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, context, nid, value);
    bool added = extension && X509_add_ext(cert, extension, -1) == 1;

    X509_EXTENSION_free(extension);
    return added;
}

static bool extensions_add(X509 *cert, const struct hdt_ca_spec *spec)
{
    bool is_ca = spec->issuer == NULL;
    char uri[HDT_IDENTITY_URI_CAP], names[HDT_IDENTITY_URI_CAP + 8];
    X509V3_CTX context;

    X509V3_set_ctx(&context, is_ca ? cert : (X509 *)spec->issuer, cert, NULL, NULL, 0);
    X509V3_set_ctx_nodb(&context);
    /* An identity has letters, digits and "-_./:" only: none of them means something here. */
    snprintf(names, sizeof(names), "URI:%s", hdt_identity_format(spec->identity, uri));
    return extension_add(cert, &context, NID_basic_constraints,
                         is_ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
           extension_add(cert, &context, NID_key_usage,
                         is_ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
           (is_ca || extension_add(cert, &context, NID_ext_key_usage, "serverAuth,clientAuth")) &&
           extension_add(cert, &context, NID_subject_key_identifier, "hash") &&
           (is_ca || extension_add(cert, &context, NID_authority_key_identifier, "keyid:always")) &&
           extension_add(cert, &context, NID_subject_alt_name, names);
}

static bool subject_set(X509_NAME *name, const struct hdt_identity *identity)
{
    char text[HDT_IDENTITY_URI_CAP];

    if (identity->role == HDT_ROLE_CA) {
        snprintf(text, sizeof(text), "authority of %s", identity->federation);
    } else {
        hdt_identity_describe(identity, text);
    }
    return X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8,
                                      (const unsigned char *)identity->federation, -1, -1,
                                      0) == 1 &&
           /* A common name has 64 characters at most; who it is stands in the URI. */
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)text,
                                      strlen(text) < 64 ? (int)strlen(text) : 63, -1, 0) == 1;
}

/* 63 random bits: a counter would have to survive crashes and copies of the folder. */
static bool serial_set(X509 *cert)
{
    BIGNUM *bn = BN_new();
    bool ok = bn && BN_rand(bn, 63, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
              BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(cert)) != NULL;

    BN_free(bn);
    return ok;
}

enum hdt_status hdt_ca_cert_make(const struct hdt_ca_spec *spec, X509 **cert, struct hdt_error *err)
{
    X509 *made = X509_new();
    bool ok;

    HDT_ASSERT(made);
    ok = X509_set_version(made, X509_VERSION_3) == 1 && serial_set(made) &&
         ASN1_TIME_set(X509_getm_notBefore(made), (time_t)spec->dates.from_s) &&
         ASN1_TIME_set(X509_getm_notAfter(made), (time_t)spec->dates.until_s) &&
         subject_set(X509_get_subject_name(made), spec->identity) &&
         X509_set_issuer_name(made, spec->issuer ? X509_get_subject_name(spec->issuer)
                                                 : X509_get_subject_name(made)) == 1 &&
         X509_set_pubkey(made, spec->key) == 1 && extensions_add(made, spec) &&
         X509_sign(made, spec->issuer_key, EVP_sha256()) > 0;
    if (!ok) {
        X509_free(made);
        return openssl_refuse("make a certificate", err);
    }
    *cert = made;
    return HDT_OK;
}

static bool csr_names_add(X509_REQ *csr, const struct hdt_identity *identity)
{
    char uri[HDT_IDENTITY_URI_CAP], names[HDT_IDENTITY_URI_CAP + 8];
    STACK_OF(X509_EXTENSION) *extensions = sk_X509_EXTENSION_new_null();
    X509_EXTENSION *extension;
    bool ok;

    snprintf(names, sizeof(names), "URI:%s", hdt_identity_format(identity, uri));
    extension = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, names);
    ok = extensions && extension && sk_X509_EXTENSION_push(extensions, extension) > 0 &&
         X509_REQ_add_extensions(csr, extensions) == 1;
    sk_X509_EXTENSION_free(extensions);
    X509_EXTENSION_free(extension);
    return ok;
}

enum hdt_status hdt_ca_csr_make(const struct hdt_identity *identity, EVP_PKEY *key, X509_REQ **csr,
                                struct hdt_error *err)
{
    X509_REQ *made = X509_REQ_new();

    HDT_ASSERT(made);
    if (X509_REQ_set_version(made, X509_REQ_VERSION_1) != 1 ||
        !subject_set(X509_REQ_get_subject_name(made), identity) ||
        X509_REQ_set_pubkey(made, key) != 1 || !csr_names_add(made, identity) ||
        X509_REQ_sign(made, key, EVP_sha256()) <= 0) {
        X509_REQ_free(made);
        return openssl_refuse("make a request", err);
    }
    *csr = made;
    return HDT_OK;
}

/* A request must be signed by the key that it is for, and that key be no weak one. */
static enum hdt_status csr_check(X509_REQ *csr, const char *path, struct hdt_identity *identity,
                                 struct hdt_error *err)
{
    EVP_PKEY *key = X509_REQ_get0_pubkey(csr);
    STACK_OF(X509_EXTENSION) * extensions;
    GENERAL_NAMES *names;
    enum hdt_status status;

    if (!key || X509_REQ_verify(csr, key) != 1) {
        ERR_clear_error();
        return hdt_error_set(err, HDT_EACCES, "cannot sign '%s': its signature is wrong", path);
    }
    if (EVP_PKEY_get_security_bits(key) < 112) {
        return hdt_error_set(err, HDT_EACCES, "cannot sign '%s': its key is too weak", path);
    }
    extensions = X509_REQ_get_extensions(csr);
    names = X509V3_get_d2i(extensions, NID_subject_alt_name, NULL, NULL);
    status = hdt_identity_of_names(names, identity, err);
    if (status != HDT_OK) {
        hdt_error_prefix(err, "cannot sign '%s'", path);
        hdt_error_hint(err, "requests come from 'hdt ca request'");
    }
    GENERAL_NAMES_free(names);
    sk_X509_EXTENSION_pop_free(extensions, X509_EXTENSION_free);
    return status;
}

static enum hdt_status pem_refuse(const char *path, const char *what, struct hdt_error *err)
{
    ERR_clear_error();
    return hdt_error_set(err, HDT_EINVAL, "cannot use '%s': there is no %s in it", path, what);
}

enum hdt_status hdt_ca_csr_read(const char *path, X509_REQ **csr, struct hdt_identity *identity,
                                struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    enum hdt_status status = hdt_file_read(path, PEM_MAX, &bytes, err);
    X509_REQ *read = NULL;
    BIO *bio;

    if (status == HDT_OK) {
        bio = BIO_new_mem_buf(hdt_buf_str(&bytes), (int)bytes.len);
        read = PEM_read_bio_X509_REQ(bio, NULL, NULL, NULL);
        BIO_free(bio);
        status = read ? csr_check(read, path, identity, err) : pem_refuse(path, "request", err);
    }
    hdt_buf_release(&bytes);
    if (status != HDT_OK) {
        X509_REQ_free(read);
        return status;
    }
    *csr = read;
    return HDT_OK;
}

static bool crl_entry_add(X509_CRL *crl, const struct hdt_ca_entry *entry)
{
    X509_REVOKED *revoked = X509_REVOKED_new();
    ASN1_TIME *when = ASN1_TIME_set(NULL, (time_t)entry->revoked_s);
    BIGNUM *bn = NULL;
    ASN1_INTEGER *serial = BN_hex2bn(&bn, entry->serial) ? BN_to_ASN1_INTEGER(bn, NULL) : NULL;
    bool ok = revoked && when && serial && X509_REVOKED_set_serialNumber(revoked, serial) == 1 &&
              X509_REVOKED_set_revocationDate(revoked, when) == 1 &&
              X509_CRL_add0_revoked(crl, revoked) == 1;

    if (!ok) {
        X509_REVOKED_free(revoked);
    }
    ASN1_TIME_free(when);
    ASN1_INTEGER_free(serial);
    BN_free(bn);
    return ok;
}

/* The list has no earlier end than the authority: an authority that is kept offline must not stop
 * the federation by not signing for a while. What is revoked is spread by copying the new list. */
static bool crl_head_set(X509_CRL *crl, const X509 *issuer, int64_t crl_number)
{
    ASN1_TIME *last = ASN1_TIME_set(NULL, time(NULL) - HDT_CA_BACKDATE_S);
    ASN1_INTEGER *number = ASN1_INTEGER_new();
    X509V3_CTX context;
    X509_EXTENSION *key_id;
    bool ok;

    X509V3_set_ctx(&context, (X509 *)issuer, NULL, NULL, crl, 0);
    X509V3_set_ctx_nodb(&context);
    key_id = X509V3_EXT_conf_nid(NULL, &context, NID_authority_key_identifier, "keyid:always");
    ok = last && number && key_id && X509_CRL_set_version(crl, X509_CRL_VERSION_2) == 1 &&
         X509_CRL_set_issuer_name(crl, X509_get_subject_name(issuer)) == 1 &&
         X509_CRL_set1_lastUpdate(crl, last) == 1 &&
         X509_CRL_set1_nextUpdate(crl, X509_get0_notAfter(issuer)) == 1 &&
         ASN1_INTEGER_set_int64(number, crl_number) == 1 &&
         X509_CRL_add_ext(crl, key_id, -1) == 1 &&
         X509_CRL_add1_ext_i2d(crl, NID_crl_number, number, 0, 0) == 1;
    X509_EXTENSION_free(key_id);
    ASN1_INTEGER_free(number);
    ASN1_TIME_free(last);
    return ok;
}

enum hdt_status hdt_ca_crl_make(const struct hdt_ca_list *list, X509_CRL **crl,
                                struct hdt_error *err)
{
    X509_CRL *made = X509_CRL_new();
    bool ok;

    HDT_ASSERT(made);
    ok = crl_head_set(made, list->issuer, list->number);
    for (size_t i = 0; i < list->n && ok; i++) {
        ok = !list->entries[i].revoked_s || crl_entry_add(made, &list->entries[i]);
    }
    if (!ok || X509_CRL_sort(made) != 1 || X509_CRL_sign(made, list->key, EVP_sha256()) <= 0) {
        X509_CRL_free(made);
        return openssl_refuse("make the revocation list", err);
    }
    *crl = made;
    return HDT_OK;
}

enum hdt_status hdt_ca_cert_read(const char *path, X509 **cert, struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    enum hdt_status status = hdt_file_read(path, PEM_MAX, &bytes, err);
    BIO *bio;

    if (status == HDT_OK) {
        bio = BIO_new_mem_buf(hdt_buf_str(&bytes), (int)bytes.len);
        *cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);
        BIO_free(bio);
        status = *cert ? HDT_OK : pem_refuse(path, "certificate", err);
    }
    hdt_buf_release(&bytes);
    return status;
}

enum hdt_status hdt_ca_key_read(const char *path, EVP_PKEY **key, struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    enum hdt_status status = hdt_file_read(path, PEM_MAX, &bytes, err);
    BIO *bio;

    if (status == HDT_OK) {
        bio = BIO_new_mem_buf(hdt_buf_str(&bytes), (int)bytes.len);
        *key = PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL);
        BIO_free(bio);
        status = *key ? HDT_OK : pem_refuse(path, "private key", err);
        OPENSSL_cleanse(bytes.data, bytes.len);
    }
    hdt_buf_release(&bytes);
    return status;
}

/* Move what a PEM writer left in `bio` to `pem`. */
static void pem_take(BIO *bio, int ok, struct hdt_buf *pem)
{
    char *data;
    long len = BIO_get_mem_data(bio, &data);

    HDT_ASSERT(ok == 1 && len > 0);
    hdt_buf_append(pem, data, (size_t)len);
    OPENSSL_cleanse(data, (size_t)len);
    BIO_free(bio);
}

void hdt_ca_cert_pem(const X509 *cert, struct hdt_buf *pem)
{
    BIO *bio = BIO_new(BIO_s_mem());

    pem_take(bio, PEM_write_bio_X509(bio, cert), pem);
}

void hdt_ca_key_pem(const EVP_PKEY *key, struct hdt_buf *pem)
{
    BIO *bio = BIO_new(BIO_s_mem());

    pem_take(bio, PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL), pem);
}

void hdt_ca_csr_pem(const X509_REQ *csr, struct hdt_buf *pem)
{
    BIO *bio = BIO_new(BIO_s_mem());

    pem_take(bio, PEM_write_bio_X509_REQ(bio, csr), pem);
}

void hdt_ca_serial_format(const ASN1_INTEGER *serial, char buf[HDT_CA_SERIAL_CAP])
{
    BIGNUM *bn = ASN1_INTEGER_to_BN(serial, NULL);
    char *hex = bn ? BN_bn2hex(bn) : NULL;

    snprintf(buf, HDT_CA_SERIAL_CAP, "%s", hex ? hex : "?");
    OPENSSL_free(hex);
    BN_free(bn);
}

int64_t hdt_ca_time_seconds(const ASN1_TIME *time_)
{
    struct tm tm = {0};

    return ASN1_TIME_to_tm(time_, &tm) ? (int64_t)timegm(&tm) : 0;
}
