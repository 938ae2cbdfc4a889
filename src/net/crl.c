/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/crl.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>

enum hdt_status hdt_crl_parse(const char *pem, size_t len, X509_CRL **crl, struct hdt_error *err)
{
    X509_CRL *made;
    bool is_absent;
    BIO *bio;

    if (len > HDT_CRL_PEM_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "a revocation list of %zu bytes; at most %u", len,
                             HDT_CRL_PEM_MAX);
    }
    ERR_clear_error();
    bio = BIO_new_mem_buf(pem, (int)len);
    HDT_ASSERT(bio);
    made = PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL);
    is_absent = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    BIO_free(bio);
    ERR_clear_error();
    if (!made) {
        hdt_error_set(err, HDT_EINVAL, "there is %s revocation list in it",
                      is_absent ? "no" : "a damaged");
        hdt_error_hint(err, "it must be PEM text, as 'hdt ca' writes it");
        return HDT_EINVAL;
    }
    *crl = made;
    return HDT_OK;
}

enum hdt_status hdt_crl_read(const char *path, X509_CRL **crl, struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    enum hdt_status status = hdt_file_read(path, HDT_CRL_PEM_MAX, &bytes, err);

    if (status == HDT_OK) {
        status = hdt_crl_parse(hdt_buf_str(&bytes), bytes.len, crl, err);
        if (status != HDT_OK) {
            hdt_error_prefix(err, "cannot use '%s'", path);
        }
    }
    hdt_buf_release(&bytes);
    return status;
}

bool hdt_crl_is_signed(X509_CRL *crl, X509_STORE *store)
{
    X509_STORE_CTX *look = X509_STORE_CTX_new();
    X509_OBJECT *object = NULL;
    bool is_signed = false;

    HDT_ASSERT(look);
    if (X509_STORE_CTX_init(look, store, NULL, NULL)) {
        object = X509_STORE_CTX_get_obj_by_subject(look, X509_LU_X509, X509_CRL_get_issuer(crl));
    }
    if (object) {
        is_signed = X509_CRL_verify(crl, X509_get0_pubkey(X509_OBJECT_get0_X509(object))) == 1;
    }
    X509_OBJECT_free(object);
    X509_STORE_CTX_free(look);
    ERR_clear_error();
    return is_signed;
}

/* A number beyond 63 bits is no list of ours; it counts as none. */
int64_t hdt_crl_number(const X509_CRL *crl)
{
    ASN1_INTEGER *number = X509_CRL_get_ext_d2i(crl, NID_crl_number, NULL, NULL);
    int64_t value = 0;

    if (!number || ASN1_INTEGER_get_int64(&value, number) != 1 || value < 0) {
        value = 0;
    }
    ASN1_INTEGER_free(number);
    ERR_clear_error();
    return value;
}

size_t hdt_crl_n_revoked(const X509_CRL *crl)
{
    int n = sk_X509_REVOKED_num(X509_CRL_get_REVOKED((X509_CRL *)crl));

    return n > 0 ? (size_t)n : 0;
}

int hdt_crl_compare(const X509_CRL *a, const X509_CRL *b)
{
    int64_t a_number, b_number;
    size_t a_len, b_len;
    int by_date;

    if (!a || !b) {
        return (a != NULL) - (b != NULL);
    }
    a_number = hdt_crl_number(a);
    b_number = hdt_crl_number(b);
    if (a_number != b_number) {
        return a_number < b_number ? -1 : 1;
    }
    by_date = ASN1_TIME_compare(X509_CRL_get0_lastUpdate(a), X509_CRL_get0_lastUpdate(b));
    if (by_date == -1 || by_date == 1) {
        return by_date;
    }
    a_len = hdt_crl_n_revoked(a);
    b_len = hdt_crl_n_revoked(b);
    return (a_len > b_len) - (a_len < b_len);
}

void hdt_crl_to_pem(const X509_CRL *crl, struct hdt_buf *pem)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *data;
    long len;

    HDT_ASSERT(bio && PEM_write_bio_X509_CRL(bio, crl) == 1);
    len = BIO_get_mem_data(bio, &data);
    HDT_ASSERT(len > 0);
    hdt_buf_append(pem, data, (size_t)len);
    BIO_free(bio);
}
