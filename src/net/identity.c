/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/identity.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SCHEME "hdt://"

static const struct {
    const char *name;
    enum hdt_role role;
} roles[] = {
    {"site", HDT_ROLE_SITE},
    {"worker", HDT_ROLE_WORKER},
    {"operator", HDT_ROLE_OPERATOR},
    {"ca", HDT_ROLE_CA},
};
#define N_ROLES (sizeof(roles) / sizeof(roles[0]))

const char *hdt_role_name(enum hdt_role role)
{
    for (size_t i = 0; i < N_ROLES; i++) {
        if (roles[i].role == role) {
            return roles[i].name;
        }
    }
    return "nobody";
}

char *hdt_role_mask_format(unsigned mask, char buf[HDT_IDENTITY_NAME_CAP])
{
    size_t used = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < N_ROLES; i++) {
        if (mask & roles[i].role) {
            used += (size_t)snprintf(buf + used, HDT_IDENTITY_NAME_CAP - used, "%s%s",
                                     used ? " or " : "", roles[i].name);
        }
    }
    return buf;
}

bool hdt_identity_name_is_valid(const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)name[i]) && (i == 0 || !strchr("-_.", name[i]))) {
            return false;
        }
    }
    return len > 0 && len < HDT_IDENTITY_NAME_CAP;
}

static enum hdt_status name_copy(const char *what, const char *name, size_t len, char *dst,
                                 struct hdt_error *err)
{
    snprintf(dst, HDT_IDENTITY_NAME_CAP, "%.*s", (int)(len < 255 ? len : 255), name);
    if (len >= HDT_IDENTITY_NAME_CAP || !hdt_identity_name_is_valid(dst)) {
        for (char *c = dst; *c; c++) {
            *c = isprint((unsigned char)*c) ? *c : '?';
        }
        hdt_error_set(err, HDT_EINVAL, "'%s' is not a name of a %s", dst, what);
        hdt_error_hint(err, "names have 1 to 63 letters, digits, '-', '_' or '.', and begin with a "
                            "letter or digit");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

enum hdt_status hdt_identity_make(const char *federation, const char *role, const char *name,
                                  struct hdt_identity *identity, struct hdt_error *err)
{
    const char *slash = strchr(name, '/');
    size_t i = 0;

    memset(identity, 0, sizeof(*identity));
    HDT_TRY(name_copy("federation", federation, strlen(federation), identity->federation, err));
    while (i < N_ROLES && strcmp(roles[i].name, role) != 0) {
        i++;
    }
    if (i == N_ROLES) {
        hdt_error_set(err, HDT_EINVAL, "unknown role '%.32s'", role);
        hdt_error_hint(err, "write site NAME, worker SITE/NAME or operator NAME");
        return HDT_EINVAL;
    }
    identity->role = roles[i].role;
    if (identity->role == HDT_ROLE_CA) {
        return HDT_OK;
    }
    if (identity->role == HDT_ROLE_WORKER) {
        if (!slash) {
            hdt_error_set(err, HDT_EINVAL, "'%.80s' does not name a worker", name);
            hdt_error_hint(err, "write its site too: worker SITE/NAME");
            return HDT_EINVAL;
        }
        HDT_TRY(name_copy("site", name, (size_t)(slash - name), identity->site, err));
        name = slash + 1;
    }
    HDT_TRY(name_copy(role, name, strlen(name), identity->name, err));
    if (identity->role == HDT_ROLE_SITE) {
        memcpy(identity->site, identity->name, sizeof(identity->site));
    }
    return HDT_OK;
}

enum hdt_status hdt_identity_parse(const char *uri, struct hdt_identity *identity,
                                   struct hdt_error *err)
{
    char text[HDT_IDENTITY_URI_CAP];
    char *role, *name, *end;

    if (strncmp(uri, SCHEME, strlen(SCHEME)) != 0 || strlen(uri) >= sizeof(text)) {
        return hdt_error_set(err, HDT_EINVAL, "'%.80s' does not name an identity", uri);
    }
    snprintf(text, sizeof(text), "%s", uri + strlen(SCHEME));
    end = text + strlen(text);
    role = strchr(text, '/');
    role = role ? role : end;
    *role = '\0';
    role += role != end;
    name = strchr(role, '/');
    name = name ? name : end;
    *name = '\0';
    name += name != end;
    if (hdt_identity_make(text, role, name, identity, err) != HDT_OK ||
        (identity->role == HDT_ROLE_CA && *name)) {
        return hdt_error_set(err, HDT_EINVAL, "'%.160s' does not name an identity", uri);
    }
    return HDT_OK;
}

char *hdt_identity_format(const struct hdt_identity *identity, char uri[HDT_IDENTITY_URI_CAP])
{
    bool is_worker = identity->role == HDT_ROLE_WORKER;

    snprintf(uri, HDT_IDENTITY_URI_CAP, SCHEME "%s/%s%s%s%s%s", identity->federation,
             hdt_role_name(identity->role), is_worker ? "/" : "", is_worker ? identity->site : "",
             identity->name[0] ? "/" : "", identity->name);
    return uri;
}

char *hdt_identity_describe(const struct hdt_identity *identity, char buf[HDT_IDENTITY_URI_CAP])
{
    bool is_worker = identity->role == HDT_ROLE_WORKER;

    if (identity->role == HDT_ROLE_CA) { /* it has no name of its own */
        snprintf(buf, HDT_IDENTITY_URI_CAP, "authority %s", identity->federation);
        return buf;
    }
    snprintf(buf, HDT_IDENTITY_URI_CAP, "%s %s%s%s", hdt_role_name(identity->role),
             is_worker ? identity->site : "", is_worker ? "/" : "", identity->name);
    return buf;
}

/* A name's text if it is one of our URIs; false: another kind of name. */
static bool name_is_ours(const GENERAL_NAME *name, char uri[HDT_IDENTITY_URI_CAP])
{
    const ASN1_IA5STRING *text;
    size_t len;

    if (name->type != GEN_URI) {
        return false;
    }
    text = name->d.uniformResourceIdentifier;
    len = (size_t)ASN1_STRING_length(text);
    if (len >= HDT_IDENTITY_URI_CAP || memchr(ASN1_STRING_get0_data(text), '\0', len) ||
        len < strlen(SCHEME) || memcmp(ASN1_STRING_get0_data(text), SCHEME, strlen(SCHEME)) != 0) {
        return false;
    }
    memcpy(uri, ASN1_STRING_get0_data(text), len);
    uri[len] = '\0';
    return true;
}

enum hdt_status hdt_identity_of_names(const GENERAL_NAMES *names, struct hdt_identity *identity,
                                      struct hdt_error *err)
{
    char uri[HDT_IDENTITY_URI_CAP];
    bool found = false;

    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        if (!name_is_ours(sk_GENERAL_NAME_value(names, i), uri)) {
            continue;
        }
        if (found) {
            return hdt_error_set(err, HDT_EACCES, "it names more than one identity");
        }
        if (hdt_identity_parse(uri, identity, err) != HDT_OK) {
            return hdt_error_set(err, HDT_EACCES, "its name '%s' is malformed", uri);
        }
        found = true;
    }
    if (!found) {
        hdt_error_set(err, HDT_EACCES, "it names no site, worker or operator");
        hdt_error_hint(err, "certificates come from 'hdt ca sign' or 'hdt ca issue'");
        return HDT_EACCES;
    }
    return HDT_OK;
}

enum hdt_status hdt_identity_of_certificate(const X509 *cert, struct hdt_identity *identity,
                                            struct hdt_error *err)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    enum hdt_status status = hdt_identity_of_names(names, identity, err);

    GENERAL_NAMES_free(names);
    return status;
}
