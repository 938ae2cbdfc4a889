/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_IDENTITY_H
#define HDT_NET_IDENTITY_H

/*
 * Who somebody is: what a certificate says in its subject alternative name, as one URI:
 *
 *   hdt://FEDERATION/site/NAME            a gateway
 *   hdt://FEDERATION/worker/SITE/NAME     a worker of that site
 *   hdt://FEDERATION/operator/NAME        a person or script that gives orders
 *   hdt://FEDERATION/ca                   the authority itself
 *
 * Names have 1 to 63 letters, digits, '-', '_' or '.', and begin with a letter or digit.
 */
#include "src/base/error.h"

#include <openssl/x509v3.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_IDENTITY_NAME_CAP 64
#define HDT_IDENTITY_URI_CAP  224

/* Roles are bits, so that a listener can say which ones it takes. */
enum hdt_role {
    HDT_ROLE_SITE = 1,
    HDT_ROLE_WORKER = 2,
    HDT_ROLE_OPERATOR = 4,
    HDT_ROLE_CA = 8,
};

struct hdt_identity {
    enum hdt_role role;
    char federation[HDT_IDENTITY_NAME_CAP];
    char site[HDT_IDENTITY_NAME_CAP]; /* site: its name; worker: its site; operator: "" */
    char name[HDT_IDENTITY_NAME_CAP];
};

/* "site", "worker", "operator", "ca". */
const char *hdt_role_name(enum hdt_role role);

/* Names of the roles in a mask: "site or operator". Returns buf. */
char *hdt_role_mask_format(unsigned roles, char buf[HDT_IDENTITY_NAME_CAP]);

bool hdt_identity_name_is_valid(const char *name);

/* Make an identity from a role's name and a name as users write them ("worker", "site-a/w0").
 * HDT_EINVAL with the allowed form. */
enum hdt_status hdt_identity_make(const char *federation, const char *role, const char *name,
                                  struct hdt_identity *identity, struct hdt_error *err);

/* HDT_EINVAL when the URI is not of the forms above. */
enum hdt_status hdt_identity_parse(const char *uri, struct hdt_identity *identity,
                                   struct hdt_error *err);
char *hdt_identity_format(const struct hdt_identity *identity, char uri[HDT_IDENTITY_URI_CAP]);

/* "site site-b", "worker site-a/w0", "operator ann": for messages. Returns buf. */
char *hdt_identity_describe(const struct hdt_identity *identity, char buf[HDT_IDENTITY_URI_CAP]);

/* The identity in a certificate. HDT_EACCES when it has none, more than one or a malformed one. */
enum hdt_status hdt_identity_of_certificate(const X509 *cert, struct hdt_identity *identity,
                                            struct hdt_error *err);

/* The same from a list of subject alternative names (a request's). */
enum hdt_status hdt_identity_of_names(const GENERAL_NAMES *names, struct hdt_identity *identity,
                                      struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_IDENTITY_H */
