/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_CA_H
#define HDT_NET_CA_H

/*
 * A federation's certificate authority: a folder.
 *
 *   ca.key      private key (EC P-256), mode 0600; the folder has mode 0700
 *   ca.pem      its certificate, the trust anchor of every site
 *   crl.pem     signed list of revoked certificates
 *   index.txt   one line a certificate: SERIAL FROM UNTIL REVOKED-OR-"-" URI
 *   issued/     a copy of each certificate, SERIAL.pem
 *   lock        held while a command changes the folder
 *
 * Keys never travel where it matters: a site makes key and request (hdt_ca_request) and gets its
 * certificate back (hdt_ca_sign). hdt_ca_issue makes both in one place, for trials. A certificate
 * is in the index before it is written for its owner, so that each one can be revoked.
 *
 * All calls block on files; a second process waits for the lock up to five seconds.
 */
#include "src/base/error.h"
#include "src/net/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_CA_DAYS       365  /* life of a certificate */
#define HDT_CA_ROOT_DAYS  3650 /* of the authority */
#define HDT_CA_BACKDATE_S 300  /* clocks of sites may be behind by so much */
#define HDT_CA_SERIAL_CAP 44

#define HDT_CA_KEY_FILE  "key.pem"
#define HDT_CA_CERT_FILE "cert.pem"

/* From when until when a certificate is valid, seconds since 1970. */
struct hdt_ca_dates {
    int64_t from_s, until_s;
};
/* Now, a little backdated, for so many days. */
struct hdt_ca_dates hdt_ca_dates_days(int64_t days);

/* Where files go. Without `force` a file that is there already is HDT_EEXIST and nothing changes.
 */
struct hdt_ca_output {
    const char *dir; /* made if missing */
    bool force;
};

struct hdt_ca_entry {
    char serial[HDT_CA_SERIAL_CAP]; /* hexadecimal, capitals */
    struct hdt_ca_dates dates;
    int64_t revoked_s; /* 0: not revoked */
    struct hdt_identity identity;
};

struct hdt_ca;
struct hdt_bundle;

/* Make the folder with key, certificate and empty lists. HDT_EEXIST when an authority is there and
 * not output->force. */
enum hdt_status hdt_ca_init(const struct hdt_ca_output *output, const char *federation,
                            const struct hdt_ca_dates *dates, struct hdt_error *err);

/* Open and lock the folder. HDT_ENOENT: no authority there. HDT_ETIMEDOUT: locked by another. */
enum hdt_status hdt_ca_open(const char *dir, struct hdt_ca **ca, struct hdt_error *err);
void hdt_ca_close(struct hdt_ca *ca);

const char *hdt_ca_federation(const struct hdt_ca *ca);

/* Make key and certificate for entry->identity, valid for entry->dates (never longer than the
 * authority): key.pem, cert.pem, ca.pem and crl.pem in output->dir. The rest of *entry is filled.
 */
enum hdt_status hdt_ca_issue(struct hdt_ca *ca, const struct hdt_ca_output *output,
                             struct hdt_ca_entry *entry, struct hdt_error *err);

/* The same in memory, to be written as one file (bundle.h). *bundle is to be released. */
enum hdt_status hdt_ca_bundle(struct hdt_ca *ca, struct hdt_ca_entry *entry,
                              struct hdt_bundle *bundle, struct hdt_error *err);

/* Key and request of `identity`: key.pem and NAME.csr in output->dir. Needs no authority. */
enum hdt_status hdt_ca_request(const struct hdt_identity *identity,
                               const struct hdt_ca_output *output, struct hdt_error *err);

/* Who a request is from; checks its signature. HDT_EINVAL when it is no request. */
enum hdt_status hdt_ca_request_read(const char *csr_path, struct hdt_identity *identity,
                                    struct hdt_error *err);

/* Answer a request: cert.pem, ca.pem and crl.pem in output->dir. entry->identity must be the one
 * that the request names: the caller has decided that it may have it. Else as hdt_ca_issue. */
enum hdt_status hdt_ca_sign(struct hdt_ca *ca, const char *csr_path,
                            const struct hdt_ca_output *output, struct hdt_ca_entry *entry,
                            struct hdt_error *err);

/* Revoke by certificate file or serial: marks the index and signs a new crl.pem. HDT_ENOENT: not
 * from this authority; HDT_EEXIST: revoked already. */
enum hdt_status hdt_ca_revoke(struct hdt_ca *ca, const char *what, struct hdt_ca_entry *entry,
                              struct hdt_error *err);

/* Everything issued, oldest first; borrowed until the next call. */
const struct hdt_ca_entry *hdt_ca_entries(const struct hdt_ca *ca, size_t *n);

/* What an owner's folder and request are called: "site-b", "site-a-w0". Returns stem. */
char *hdt_ca_stem(const struct hdt_identity *identity, char stem[HDT_IDENTITY_URI_CAP]);

/* Path of a file of the authority ("crl.pem"), to be freed. */
char *hdt_ca_path(const struct hdt_ca *ca, const char *name);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_CA_H */
