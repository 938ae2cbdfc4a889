/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The authority's folder. Order of writing decides what a crash leaves: the index comes before the
 * certificate that it lists, the index before the revocation list that is made from it (made anew
 * on the next revocation), and files for an owner last.
 *
 * OpenSSL's own "ca" command with its configuration file and serial counter was not used: it would
 * be a second place where roles and names are decided.
 */
#include "config.h"

#include "src/net/ca.h"
#include "src/net/ca_internal.h"
#include "src/net/bundle.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/net/crl.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define INDEX_MAX    (64u << 20)
#define LOCK_TRIES   50
#define LOCK_WAIT_NS 100000000l
#define DAY_S        86400

struct hdt_ca {
    char *dir;
    int lock_fd;
    X509 *cert;
    EVP_PKEY *key;
    struct hdt_identity identity;
    struct hdt_ca_entry *entries;
    size_t n, cap;
};

struct hdt_ca_dates hdt_ca_dates_days(int64_t days)
{
    int64_t now = (int64_t)time(NULL);

    return (struct hdt_ca_dates){.from_s = now - HDT_CA_BACKDATE_S, .until_s = now + days * DAY_S};
}

static char *path_join(const char *dir, const char *name)
{
    return hdt_asprintf("%s/%s", dir, name);
}

char *hdt_ca_path(const struct hdt_ca *ca, const char *name)
{
    return path_join(ca->dir, name);
}

const char *hdt_ca_federation(const struct hdt_ca *ca)
{
    return ca->identity.federation;
}

const struct hdt_ca_entry *hdt_ca_entries(const struct hdt_ca *ca, size_t *n)
{
    *n = ca->n;
    return ca->entries;
}

char *hdt_ca_stem(const struct hdt_identity *identity, char stem[HDT_IDENTITY_URI_CAP])
{
    bool is_worker = identity->role == HDT_ROLE_WORKER;

    snprintf(stem, HDT_IDENTITY_URI_CAP, "%s%s%s", is_worker ? identity->site : "",
             is_worker ? "-" : "", identity->name);
    return stem;
}

/* Write DIR/NAME; frees nothing of `bytes`. */
static enum hdt_status file_put(const char *dir, const char *name, const struct hdt_buf *bytes,
                                unsigned mode, struct hdt_error *err)
{
    char *path = path_join(dir, name);
    enum hdt_status status = hdt_file_write(path, bytes, mode, HDT_FILE_REPLACE, err);

    free(path);
    return status;
}

/* HDT_EEXIST when DIR/NAME is there and may not be replaced. */
static enum hdt_status output_check(const struct hdt_ca_output *output, const char *name,
                                    struct hdt_error *err)
{
    char *path = path_join(output->dir, name);
    enum hdt_status status = HDT_OK;

    if (!output->force && hdt_file_exists(path)) {
        status = hdt_error_set(err, HDT_EEXIST, "'%s' exists already; nothing was changed", path);
        hdt_error_hint(err, "write to another folder (--out DIR), or replace it with --force");
    }
    free(path);
    return status;
}

static void time_format(int64_t seconds, char buf[24])
{
    time_t t = (time_t)seconds;
    struct tm tm;

    if (seconds == 0) {
        snprintf(buf, 24, "-");
        return;
    }
    strftime(buf, 24, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
}

static bool time_parse(const char *text, int64_t *seconds)
{
    struct tm tm = {0};
    const char *end;

    *seconds = 0;
    if (strcmp(text, "-") == 0) {
        return true;
    }
    end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    *seconds = (int64_t)timegm(&tm);
    return end && !*end;
}

static enum hdt_status index_save(const struct hdt_ca *ca, struct hdt_error *err)
{
    struct hdt_buf text = {0};
    char from[24], until[24], revoked[24], uri[HDT_IDENTITY_URI_CAP];
    enum hdt_status status;

    for (size_t i = 0; i < ca->n; i++) {
        const struct hdt_ca_entry *entry = &ca->entries[i];

        time_format(entry->dates.from_s, from);
        time_format(entry->dates.until_s, until);
        time_format(entry->revoked_s, revoked);
        hdt_buf_appendf(&text, "%s %s %s %s %s\n", entry->serial, from, until, revoked,
                        hdt_identity_format(&entry->identity, uri));
    }
    status = file_put(ca->dir, "index.txt", &text, 0600, err);
    hdt_buf_release(&text);
    return status;
}

static struct hdt_ca_entry *entry_append(struct hdt_ca *ca)
{
    if (ca->n == ca->cap) {
        ca->cap = ca->cap ? 2 * ca->cap : 16;
        ca->entries = hdt_realloc(ca->entries, ca->cap * sizeof(*ca->entries));
    }
    memset(&ca->entries[ca->n], 0, sizeof(*ca->entries));
    return &ca->entries[ca->n++];
}

static bool index_line_parse(char *line, struct hdt_ca_entry *entry)
{
    char *words[5], *save = NULL;
    int n = 0;

    for (char *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        if (n == 5) {
            return false;
        }
        words[n++] = word;
    }
    if (n != 5 || strlen(words[0]) >= HDT_CA_SERIAL_CAP) {
        return false;
    }
    snprintf(entry->serial, sizeof(entry->serial), "%s", words[0]);
    return time_parse(words[1], &entry->dates.from_s) &&
           time_parse(words[2], &entry->dates.until_s) && time_parse(words[3], &entry->revoked_s) &&
           hdt_identity_parse(words[4], &entry->identity, NULL) == HDT_OK;
}

static enum hdt_status index_load(struct hdt_ca *ca, struct hdt_error *err)
{
    char *path = hdt_ca_path(ca, "index.txt");
    struct hdt_buf text = {0};
    enum hdt_status status = hdt_file_read(path, INDEX_MAX, &text, err);
    char *save = NULL, *line;
    int line_no = 0;

    line = status == HDT_OK && text.len ? strtok_r(text.data, "\n", &save) : NULL;
    for (; line && status == HDT_OK; line = strtok_r(NULL, "\n", &save)) {
        line_no++;
        if (!index_line_parse(line, entry_append(ca))) {
            status = hdt_error_set(err, HDT_EINVAL, "cannot read the list of certificates");
            hdt_error_where(err, "%s:%d", path, line_no);
            hdt_error_hint(err, "restore it from a copy: revocation depends on it");
        }
    }
    hdt_buf_release(&text);
    free(path);
    return status;
}

/* Gateways take the list with the larger number: seconds since 1970, but more than the last one's
 * also when two are made in a second or the clock was set back. */
static int64_t crl_next_number(const struct hdt_ca *ca)
{
    char *path = hdt_ca_path(ca, "crl.pem");
    int64_t number = (int64_t)time(NULL);
    X509_CRL *last = NULL;

    if (hdt_crl_read(path, &last, NULL) == HDT_OK && hdt_crl_number(last) >= number) {
        number = hdt_crl_number(last) + 1;
    }
    X509_CRL_free(last);
    free(path);
    return number;
}

static enum hdt_status crl_save(const struct hdt_ca *ca, struct hdt_error *err)
{
    struct hdt_ca_list list = {.issuer = ca->cert,
                               .key = ca->key,
                               .entries = ca->entries,
                               .n = ca->n,
                               .number = crl_next_number(ca)};
    struct hdt_buf pem = {0};
    X509_CRL *crl = NULL;
    enum hdt_status status;

    HDT_TRY(hdt_ca_crl_make(&list, &crl, err));
    hdt_crl_to_pem(crl, &pem);
    status = file_put(ca->dir, "crl.pem", &pem, 0644, err);
    hdt_buf_release(&pem);
    X509_CRL_free(crl);
    return status;
}

static enum hdt_status folder_lock(const char *dir, int *fd, struct hdt_error *err)
{
    char *path = path_join(dir, "lock");
    struct timespec wait = {.tv_nsec = LOCK_WAIT_NS};
    int tries = 0;

    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    free(path);
    if (*fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot lock folder '%s'", dir);
    }
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (++tries == LOCK_TRIES) {
            close(*fd);
            *fd = -1;
            hdt_error_set(err, HDT_ETIMEDOUT, "cannot lock folder '%s': in use for 5 s", dir);
            hdt_error_hint(err, "another 'hdt ca' command is at work there");
            return HDT_ETIMEDOUT;
        }
        nanosleep(&wait, NULL);
    }
    return HDT_OK;
}

static enum hdt_status authority_make(struct hdt_ca *ca, const struct hdt_ca_dates *dates,
                                      struct hdt_error *err)
{
    struct hdt_ca_spec spec = {.identity = &ca->identity, .dates = *dates};

    HDT_TRY(hdt_ca_key_make(&ca->key, err));
    spec.key = spec.issuer_key = ca->key;
    return hdt_ca_cert_make(&spec, &ca->cert, err);
}

/* ca.pem last: it is what says that an authority is there. */
static enum hdt_status authority_save(const struct hdt_ca *ca, struct hdt_error *err)
{
    struct hdt_buf key = {0}, cert = {0};
    enum hdt_status status;

    hdt_ca_key_pem(ca->key, &key);
    hdt_ca_cert_pem(ca->cert, &cert);
    status = file_put(ca->dir, "ca.key", &key, 0600, err);
    status = status == HDT_OK ? index_save(ca, err) : status;
    status = status == HDT_OK ? crl_save(ca, err) : status;
    status = status == HDT_OK ? file_put(ca->dir, "ca.pem", &cert, 0644, err) : status;
    OPENSSL_cleanse(key.data, key.len);
    hdt_buf_release(&key);
    hdt_buf_release(&cert);
    return status;
}

static enum hdt_status init_refuse(const char *dir, struct hdt_error *err)
{
    hdt_error_set(err, HDT_EEXIST, "an authority exists in '%s' already; nothing was changed", dir);
    hdt_error_hint(err, "use it, or make another elsewhere (--dir DIR); --force replaces it, and "
                        "no certificate that it signed is worth anything then");
    return HDT_EEXIST;
}

static enum hdt_status init_locked(struct hdt_ca *ca, const struct hdt_ca_output *output,
                                   const struct hdt_ca_dates *dates, struct hdt_error *err)
{
    char *path = hdt_ca_path(ca, "ca.pem");
    bool exists = hdt_file_exists(path);

    free(path);
    if (exists && !output->force) {
        return init_refuse(ca->dir, err);
    }
    HDT_TRY(authority_make(ca, dates, err));
    return authority_save(ca, err);
}

enum hdt_status hdt_ca_init(const struct hdt_ca_output *output, const char *federation,
                            const struct hdt_ca_dates *dates, struct hdt_error *err)
{
    struct hdt_ca *ca;
    struct hdt_identity identity;
    enum hdt_status status;
    char *issued;

    HDT_TRY(hdt_identity_make(federation, "ca", "", &identity, err));
    HDT_TRY(hdt_dir_make(output->dir, 0700, err));
    ca = hdt_calloc(1, sizeof(*ca));
    ca->dir = hdt_strdup(output->dir);
    ca->identity = identity;
    issued = hdt_ca_path(ca, "issued");
    ca->lock_fd = -1;
    status = folder_lock(ca->dir, &ca->lock_fd, err);
    if (status == HDT_OK) {
        status = hdt_dir_make(issued, 0700, err);
    }
    if (status == HDT_OK) {
        status = init_locked(ca, output, dates, err);
    }
    free(issued);
    hdt_ca_close(ca);
    return status;
}

static enum hdt_status authority_load(struct hdt_ca *ca, struct hdt_error *err)
{
    char *cert_path = hdt_ca_path(ca, "ca.pem"), *key_path = hdt_ca_path(ca, "ca.key");
    enum hdt_status status = hdt_ca_cert_read(cert_path, &ca->cert, err);

    status = status == HDT_OK ? hdt_ca_key_read(key_path, &ca->key, err) : status;
    if (status == HDT_OK && X509_check_private_key(ca->cert, ca->key) != 1) {
        status =
            hdt_error_set(err, HDT_EINVAL, "key '%s' does not belong to '%s'", key_path, cert_path);
        ERR_clear_error();
    }
    if (status == HDT_OK) {
        status = hdt_identity_of_certificate(ca->cert, &ca->identity, err);
    }
    free(cert_path);
    free(key_path);
    return status;
}

enum hdt_status hdt_ca_open(const char *dir, struct hdt_ca **ca, struct hdt_error *err)
{
    struct hdt_ca *made = hdt_calloc(1, sizeof(*made));
    char *path;
    enum hdt_status status = HDT_OK;

    made->dir = hdt_strdup(dir);
    made->lock_fd = -1;
    path = hdt_ca_path(made, "ca.pem");
    if (!hdt_file_exists(path)) {
        status = hdt_error_set(err, HDT_ENOENT, "there is no authority in '%s'", dir);
        hdt_error_hint(err,
                       "'hdt ca init --dir %s --federation NAME' makes one; --dir or "
                       "HDT_CA_DIR names another folder",
                       dir);
    }
    status = status == HDT_OK ? folder_lock(dir, &made->lock_fd, err) : status;
    status = status == HDT_OK ? authority_load(made, err) : status;
    status = status == HDT_OK ? index_load(made, err) : status;
    free(path);
    if (status != HDT_OK) {
        hdt_ca_close(made);
        return status;
    }
    *ca = made;
    return HDT_OK;
}

void hdt_ca_close(struct hdt_ca *ca)
{
    if (!ca) {
        return;
    }
    X509_free(ca->cert);
    EVP_PKEY_free(ca->key);
    if (ca->lock_fd >= 0) {
        close(ca->lock_fd);
    }
    free(ca->entries);
    free(ca->dir);
    free(ca);
}

/* Copy ca.pem and crl.pem beside a certificate. Another authority's ca.pem is not replaced. */
static enum hdt_status anchors_check(const struct hdt_ca *ca, const struct hdt_ca_output *output,
                                     struct hdt_error *err)
{
    char *path = path_join(output->dir, "ca.pem");
    enum hdt_status status = HDT_OK;
    X509 *there = NULL;

    if (hdt_file_exists(path) && !output->force) {
        status = hdt_ca_cert_read(path, &there, err);
        if (status == HDT_OK && X509_cmp(there, ca->cert) != 0) {
            status = hdt_error_set(err, HDT_EEXIST,
                                   "'%s' is of another authority; nothing was changed", path);
            hdt_error_hint(err, "write to another folder (--out DIR), or replace it with --force");
        }
    }
    X509_free(there);
    free(path);
    return status;
}

/* Copies of the authority's own files. */
static enum hdt_status anchors_pem(const struct hdt_ca *ca, struct hdt_buf *cert,
                                   struct hdt_buf *crl, struct hdt_error *err)
{
    char *crl_path = hdt_ca_path(ca, "crl.pem");
    enum hdt_status status = hdt_file_read(crl_path, INDEX_MAX, crl, err);

    hdt_ca_cert_pem(ca->cert, cert);
    free(crl_path);
    return status;
}

static enum hdt_status anchors_copy(const struct hdt_ca *ca, const struct hdt_ca_output *output,
                                    struct hdt_error *err)
{
    struct hdt_buf cert = {0}, crl = {0};
    enum hdt_status status = anchors_pem(ca, &cert, &crl, err);

    status = status == HDT_OK ? file_put(output->dir, "ca.pem", &cert, 0644, err) : status;
    status = status == HDT_OK ? file_put(output->dir, "crl.pem", &crl, 0644, err) : status;
    hdt_buf_release(&cert);
    hdt_buf_release(&crl);
    return status;
}

/* Make the certificate of `entry` over the public half of `key`, and put it on record. */
static enum hdt_status cert_record(struct hdt_ca *ca, EVP_PKEY *key, struct hdt_ca_entry *entry,
                                   struct hdt_buf *pem, struct hdt_error *err)
{
    int64_t end_s = hdt_ca_time_seconds(X509_get0_notAfter(ca->cert));
    struct hdt_ca_spec spec = {.key = key, .issuer = ca->cert, .issuer_key = ca->key};
    char *copy_path;
    X509 *cert;
    enum hdt_status status;

    entry->dates.until_s = entry->dates.until_s < end_s ? entry->dates.until_s : end_s;
    spec.identity = &entry->identity;
    spec.dates = entry->dates;
    HDT_TRY(hdt_ca_cert_make(&spec, &cert, err));
    hdt_ca_serial_format(X509_get0_serialNumber(cert), entry->serial);
    entry->revoked_s = 0;
    hdt_ca_cert_pem(cert, pem);
    X509_free(cert);
    *entry_append(ca) = *entry;
    status = index_save(ca, err);
    copy_path = hdt_asprintf("%s/issued/%s.pem", ca->dir, entry->serial);
    status = status == HDT_OK ? hdt_file_write(copy_path, pem, 0644, HDT_FILE_NEW, err) : status;
    free(copy_path);
    return status;
}

static enum hdt_status federation_check(const struct hdt_ca *ca,
                                        const struct hdt_identity *identity, struct hdt_error *err)
{
    if (identity->role == HDT_ROLE_CA) {
        return hdt_error_set(err, HDT_EINVAL, "an authority is not signed by another one");
    }
    if (strcmp(identity->federation, ca->identity.federation) != 0) {
        hdt_error_set(err, HDT_EINVAL, "federation '%s' is not the one of this authority, '%s'",
                      identity->federation, ca->identity.federation);
        hdt_error_hint(err, "make the request with --federation %s", ca->identity.federation);
        return HDT_EINVAL;
    }
    return HDT_OK;
}

enum hdt_status hdt_ca_bundle(struct hdt_ca *ca, struct hdt_ca_entry *entry,
                              struct hdt_bundle *bundle, struct hdt_error *err)
{
    enum hdt_status status;
    EVP_PKEY *key;

    memset(bundle, 0, sizeof(*bundle));
    HDT_TRY(federation_check(ca, &entry->identity, err));
    HDT_TRY(hdt_ca_key_make(&key, err));
    hdt_ca_key_pem(key, &bundle->key);
    status = cert_record(ca, key, entry, &bundle->cert, err);
    EVP_PKEY_free(key);
    if (status == HDT_OK) {
        status = anchors_pem(ca, &bundle->ca, &bundle->crl, err);
    }
    if (status != HDT_OK) {
        hdt_bundle_release(bundle);
        return status;
    }
    bundle->identity = entry->identity;
    bundle->dates = entry->dates;
    return HDT_OK;
}

enum hdt_status hdt_ca_issue(struct hdt_ca *ca, const struct hdt_ca_output *output,
                             struct hdt_ca_entry *entry, struct hdt_error *err)
{
    struct hdt_bundle made;
    enum hdt_status status;

    HDT_TRY(federation_check(ca, &entry->identity, err));
    HDT_TRY(output_check(output, HDT_CA_KEY_FILE, err));
    HDT_TRY(output_check(output, HDT_CA_CERT_FILE, err));
    HDT_TRY(anchors_check(ca, output, err));
    HDT_TRY(hdt_dir_make(output->dir, 0700, err));
    HDT_TRY(hdt_ca_bundle(ca, entry, &made, err));
    status = file_put(output->dir, HDT_CA_KEY_FILE, &made.key, 0600, err);
    status =
        status == HDT_OK ? file_put(output->dir, HDT_CA_CERT_FILE, &made.cert, 0644, err) : status;
    status = status == HDT_OK ? anchors_copy(ca, output, err) : status;
    hdt_bundle_release(&made);
    return status;
}

enum hdt_status hdt_ca_request(const struct hdt_identity *identity,
                               const struct hdt_ca_output *output, struct hdt_error *err)
{
    struct hdt_buf key_pem = {0}, csr_pem = {0};
    char csr_name[HDT_IDENTITY_URI_CAP + 8], stem[HDT_IDENTITY_URI_CAP];
    EVP_PKEY *key;
    X509_REQ *csr;
    enum hdt_status status;

    snprintf(csr_name, sizeof(csr_name), "%s.csr", hdt_ca_stem(identity, stem));
    HDT_TRY(output_check(output, HDT_CA_KEY_FILE, err));
    HDT_TRY(output_check(output, csr_name, err));
    HDT_TRY(hdt_dir_make(output->dir, 0700, err));
    HDT_TRY(hdt_ca_key_make(&key, err));
    status = hdt_ca_csr_make(identity, key, &csr, err);
    if (status == HDT_OK) {
        hdt_ca_key_pem(key, &key_pem);
        hdt_ca_csr_pem(csr, &csr_pem);
        status = file_put(output->dir, HDT_CA_KEY_FILE, &key_pem, 0600, err);
        X509_REQ_free(csr);
    }
    status = status == HDT_OK ? file_put(output->dir, csr_name, &csr_pem, 0644, err) : status;
    OPENSSL_cleanse(key_pem.data, key_pem.len);
    hdt_buf_release(&key_pem);
    hdt_buf_release(&csr_pem);
    EVP_PKEY_free(key);
    return status;
}

enum hdt_status hdt_ca_request_read(const char *csr_path, struct hdt_identity *identity,
                                    struct hdt_error *err)
{
    X509_REQ *csr;

    HDT_TRY(hdt_ca_csr_read(csr_path, &csr, identity, err));
    X509_REQ_free(csr);
    return HDT_OK;
}

enum hdt_status hdt_ca_sign(struct hdt_ca *ca, const char *csr_path,
                            const struct hdt_ca_output *output, struct hdt_ca_entry *entry,
                            struct hdt_error *err)
{
    char asked[HDT_IDENTITY_URI_CAP], granted[HDT_IDENTITY_URI_CAP];
    struct hdt_identity identity;
    struct hdt_buf pem = {0};
    X509_REQ *csr;
    enum hdt_status status;

    HDT_TRY(hdt_ca_csr_read(csr_path, &csr, &identity, err));
    status = federation_check(ca, &identity, err);
    if (status == HDT_OK && strcmp(hdt_identity_format(&identity, asked),
                                   hdt_identity_format(&entry->identity, granted)) != 0) {
        status = hdt_error_set(err, HDT_EACCES, "cannot sign '%s': it asks to be '%s', not '%s'",
                               csr_path, asked, granted);
    }
    status = status == HDT_OK ? output_check(output, HDT_CA_CERT_FILE, err) : status;
    status = status == HDT_OK ? anchors_check(ca, output, err) : status;
    status = status == HDT_OK ? hdt_dir_make(output->dir, 0700, err) : status;
    if (status == HDT_OK) {
        status = cert_record(ca, X509_REQ_get0_pubkey(csr), entry, &pem, err);
    }
    status = status == HDT_OK ? file_put(output->dir, HDT_CA_CERT_FILE, &pem, 0644, err) : status;
    status = status == HDT_OK ? anchors_copy(ca, output, err) : status;
    hdt_buf_release(&pem);
    X509_REQ_free(csr);
    return status;
}

/* The serial that `what` names: a certificate file's, or itself ("3f:0a", "3F0A"). */
static enum hdt_status serial_find(const char *what, char serial[HDT_CA_SERIAL_CAP],
                                   struct hdt_error *err)
{
    size_t len = 0;
    X509 *cert;

    if (hdt_file_exists(what)) {
        HDT_TRY(hdt_ca_cert_read(what, &cert, err));
        hdt_ca_serial_format(X509_get0_serialNumber(cert), serial);
        X509_free(cert);
        return HDT_OK;
    }
    for (const char *c = what; *c && len + 1 < HDT_CA_SERIAL_CAP; c++) {
        if (*c != ':') {
            serial[len++] = (char)toupper((unsigned char)*c);
        }
    }
    serial[len] = '\0';
    if (len == 0 || strspn(serial, "0123456789ABCDEF") != len) {
        hdt_error_set(err, HDT_ENOENT, "'%.80s' is neither a certificate file nor a serial number",
                      what);
        hdt_error_hint(err, "'hdt ca list' shows the serial numbers");
        return HDT_ENOENT;
    }
    return HDT_OK;
}

enum hdt_status hdt_ca_revoke(struct hdt_ca *ca, const char *what, struct hdt_ca_entry *entry,
                              struct hdt_error *err)
{
    char serial[HDT_CA_SERIAL_CAP], when[24];
    struct hdt_ca_entry *found = NULL;

    HDT_TRY(serial_find(what, serial, err));
    for (size_t i = 0; i < ca->n && !found; i++) {
        found = strcmp(ca->entries[i].serial, serial) == 0 ? &ca->entries[i] : NULL;
    }
    if (!found) {
        hdt_error_set(err, HDT_ENOENT, "certificate %s is not from the authority in '%s'", serial,
                      ca->dir);
        hdt_error_hint(err, "'hdt ca list' shows what is");
        return HDT_ENOENT;
    }
    if (found->revoked_s) {
        time_format(found->revoked_s, when);
        HDT_TRY(crl_save(ca, err)); /* the last run may have ended before it wrote the list */
        return hdt_error_set(err, HDT_EEXIST, "certificate %s was revoked already, on %s", serial,
                             when);
    }
    found->revoked_s = (int64_t)time(NULL);
    if (entry) {
        *entry = *found;
    }
    HDT_TRY(index_save(ca, err));
    return crl_save(ca, err);
}
