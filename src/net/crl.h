/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_CRL_H
#define HDT_NET_CRL_H

/* Revocation lists: which of two is newer, and whether one is the authority's. Lists come from
 * files and from other sites; what is foreign is checked here, once. Any thread. */
#include "src/base/error.h"

#include <openssl/x509.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hdt_buf;

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_CRL_PEM_MAX (1u << 20) /* about 20000 certificates */

/* Read one list in PEM text; the caller frees it. HDT_EINVAL: not a list, or too long. */
enum hdt_status hdt_crl_parse(const char *pem, size_t len, X509_CRL **crl, struct hdt_error *err);
/* The same from a file, whose name is in the message. HDT_ENOENT, HDT_EIO, HDT_EINVAL. */
enum hdt_status hdt_crl_read(const char *path, X509_CRL **crl, struct hdt_error *err);

/* Is it signed by one of the store's authorities? */
bool hdt_crl_is_signed(X509_CRL *crl, X509_STORE *store);

/* Below 0, 0, above 0: `a` is older than, as old as, newer than `b`. By CRL number, then by date,
 * then by length: an authority never takes a revocation back. NULL is the oldest. */
int hdt_crl_compare(const X509_CRL *a, const X509_CRL *b);

/* Its number, 0 when it has none; how many certificates it revokes. */
int64_t hdt_crl_number(const X509_CRL *crl);
size_t hdt_crl_n_revoked(const X509_CRL *crl);

/* Append it as PEM text. */
void hdt_crl_to_pem(const X509_CRL *crl, struct hdt_buf *pem);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_CRL_H */
