/* SPDX-License-Identifier: Apache-2.0 */
/* Revocation lists that come from elsewhere: which are taken, which are refused, what is kept. */
#include "config.h"

#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/net/ca.h"
#include "src/net/crl.h"
#include "src/net/tls.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[] = "/tmp/hdt-crl-XXXXXX";

/* A federation "ca" with sites a, b, c; the lists before and after b, then c were revoked. */
static struct hdt_buf first, second, third;

static void run(const char *format, const char *a, const char *b)
{
    char *command = hdt_asprintf(format, root, a, b);

    cr_assert_eq(system(command), 0, "%s", command);
    free(command);
}

static void read_file(const char *name, struct hdt_buf *bytes)
{
    char *path = hdt_asprintf("%s/%s", root, name);
    struct hdt_error err = {0};

    cr_assert_eq(hdt_file_read(path, 1 << 20, bytes, &err), HDT_OK, "%s", err.msg);
    free(path);
}

static void ca_make(const char *name, const char *federation)
{
    struct hdt_ca_output output = {.dir = hdt_asprintf("%s/%s", root, name)};
    struct hdt_ca_dates dates = hdt_ca_dates_days(HDT_CA_ROOT_DAYS);
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ca_init(&output, federation, &dates, &err), HDT_OK, "%s", err.msg);
    free((char *)output.dir);
}

static void ca_issue(struct hdt_ca *ca, const char *site)
{
    struct hdt_ca_output output = {.dir = hdt_asprintf("%s/%s", root, site)};
    struct hdt_ca_entry entry = {.dates = hdt_ca_dates_days(HDT_CA_DAYS)};
    struct hdt_error err = {0};

    hdt_identity_make("fed", "site", site, &entry.identity, NULL);
    cr_assert_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_OK, "%s", err.msg);
    free((char *)output.dir);
}

static void ca_revoke(struct hdt_ca *ca, const char *site)
{
    char *cert = hdt_asprintf("%s/%s/cert.pem", root, site);
    struct hdt_ca_entry entry;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ca_revoke(ca, cert, &entry, &err), HDT_OK, "%s", err.msg);
    free(cert);
}

static void setup(void)
{
    char *dir;
    struct hdt_ca *ca;

    cr_assert(mkdtemp(root));
    dir = hdt_asprintf("%s/ca", root);
    ca_make("ca", "fed");
    cr_assert_eq(hdt_ca_open(dir, &ca, NULL), HDT_OK);
    ca_issue(ca, "a");
    ca_issue(ca, "b");
    ca_issue(ca, "c");
    read_file("ca/crl.pem", &first);
    ca_revoke(ca, "b");
    read_file("ca/crl.pem", &second);
    ca_revoke(ca, "c");
    read_file("ca/crl.pem", &third);
    hdt_ca_close(ca);
    free(dir);
}

static void teardown(void)
{
    run("rm -rf '%s'", "", "");
    hdt_buf_release(&first);
    hdt_buf_release(&second);
    hdt_buf_release(&third);
}

TestSuite(crl, .init = setup, .fini = teardown);

/* Site a; `with_given`: with the first list as the one that was put there. */
static struct hdt_tls_ctx *ctx_open(bool with_given)
{
    struct hdt_tls_conf conf = {
        .ca_path = hdt_asprintf("%s/a/ca.pem", root),
        .cert_path = hdt_asprintf("%s/a/cert.pem", root),
        .key_path = hdt_asprintf("%s/a/key.pem", root),
        .crl_path = hdt_asprintf(with_given ? "%s/a/crl.pem" : "", root),
        .learned_crl_path = hdt_asprintf("%s/learned.pem", root),
    };
    struct hdt_tls_ctx *ctx = NULL;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_tls_ctx_new(&conf, &ctx, &err), HDT_OK, "%s", err.msg);
    free((char *)conf.ca_path);
    free((char *)conf.cert_path);
    free((char *)conf.key_path);
    free((char *)conf.crl_path);
    free((char *)conf.learned_crl_path);
    return ctx;
}

static enum hdt_status adopt(struct hdt_tls_ctx *ctx, const struct hdt_buf *pem,
                             struct hdt_error *err)
{
    return hdt_tls_crl_adopt(ctx, hdt_buf_str(pem), pem->len, err);
}

/* How many certificates the list in force revokes; -1: there is none. */
static int n_in_force(struct hdt_tls_ctx *ctx)
{
    struct hdt_buf pem = {0};
    X509_CRL *crl;
    int n = -1;

    hdt_tls_crl_pem(ctx, &pem);
    if (pem.len > 0) {
        cr_assert_eq(hdt_crl_parse(pem.data, pem.len, &crl, NULL), HDT_OK);
        n = (int)hdt_crl_n_revoked(crl);
        X509_CRL_free(crl);
    }
    hdt_buf_release(&pem);
    return n;
}

Test(crl, lists_made_within_a_second_are_ordered)
{
    const struct hdt_buf *lists[] = {&first, &second, &third};
    X509_CRL *crls[3];

    for (int i = 0; i < 3; i++) {
        cr_assert_eq(hdt_crl_parse(lists[i]->data, lists[i]->len, &crls[i], NULL), HDT_OK);
        cr_expect_eq(hdt_crl_n_revoked(crls[i]), (size_t)i);
    }
    cr_expect_lt(hdt_crl_number(crls[0]), hdt_crl_number(crls[1]));
    cr_expect_lt(hdt_crl_number(crls[1]), hdt_crl_number(crls[2]));
    cr_expect_lt(hdt_crl_compare(crls[0], crls[1]), 0);
    cr_expect_gt(hdt_crl_compare(crls[2], crls[1]), 0);
    cr_expect_eq(hdt_crl_compare(crls[1], crls[1]), 0);
    cr_expect_lt(hdt_crl_compare(NULL, crls[0]), 0);
    for (int i = 0; i < 3; i++) {
        X509_CRL_free(crls[i]);
    }
}

Test(crl, a_newer_list_is_taken_and_kept)
{
    struct hdt_error err = {0};
    struct hdt_tls_ctx *ctx = ctx_open(false);

    cr_expect_eq(n_in_force(ctx), -1);
    cr_assert_eq(adopt(ctx, &second, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(n_in_force(ctx), 1);
    cr_expect_eq(adopt(ctx, &second, &err), HDT_EEXIST, "%s", err.msg);
    cr_assert_eq(adopt(ctx, &third, &err), HDT_OK, "%s", err.msg);
    hdt_tls_ctx_free(ctx);
    ctx = ctx_open(false); /* the next process */
    cr_expect_eq(n_in_force(ctx), 2);
    hdt_tls_ctx_free(ctx);
}

/* An old file that is copied over the given one lets nobody back in. */
Test(crl, the_newer_of_the_given_and_the_learned_list_counts)
{
    struct hdt_error err = {0};
    struct hdt_tls_ctx *ctx = ctx_open(true);

    cr_expect_eq(n_in_force(ctx), 0);
    cr_assert_eq(adopt(ctx, &second, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_tls_ctx_reload(ctx, &err), HDT_OK);
    cr_expect_eq(n_in_force(ctx), 1);
    run("cp '%1$s/ca/crl.pem' '%1$s/a/crl.pem'", "", "");
    cr_assert_eq(hdt_tls_ctx_reload(ctx, &err), HDT_OK);
    cr_expect_eq(n_in_force(ctx), 2);
    hdt_tls_ctx_free(ctx);
}

static void expect_refused(struct hdt_tls_ctx *ctx, const struct hdt_buf *pem,
                           enum hdt_status expected, const char *text)
{
    struct hdt_error err = {0};

    cr_expect_eq(adopt(ctx, pem, &err), expected, "%s", err.msg);
    cr_expect(strstr(err.msg, text), "'%s' does not say '%s'", err.msg, text);
    cr_expect_eq(n_in_force(ctx), 1);
}

Test(crl, old_foreign_and_broken_lists_are_refused)
{
    struct hdt_tls_ctx *ctx = ctx_open(false);
    struct hdt_buf bytes = {0}, before = {0}, after = {0};
    struct hdt_error err = {0};

    cr_assert_eq(adopt(ctx, &second, &err), HDT_OK, "%s", err.msg);
    read_file("learned.pem", &before);
    expect_refused(ctx, &first, HDT_EINVAL, "older");
    ca_make("other", "fed"); /* of the same name even */
    read_file("other/crl.pem", &bytes);
    expect_refused(ctx, &bytes, HDT_EACCES, "not signed by this federation's authority");
    hdt_buf_clear(&bytes);
    expect_refused(ctx, &bytes, HDT_EINVAL, "no revocation list");
    hdt_buf_append_str(&bytes, "rubbish");
    expect_refused(ctx, &bytes, HDT_EINVAL, "no revocation list");
    read_file("a/cert.pem", &bytes);
    expect_refused(ctx, &bytes, HDT_EINVAL, "no revocation list");
    hdt_buf_clear(&bytes);
    hdt_buf_append(&bytes, third.data, third.len / 2);
    expect_refused(ctx, &bytes, HDT_EINVAL, "damaged");
    hdt_buf_clear(&bytes);
    hdt_buf_append(&bytes, third.data, third.len);
    bytes.data[third.len / 2] ^= 1;
    cr_expect_neq(adopt(ctx, &bytes, &err), HDT_OK);
    cr_expect_eq(n_in_force(ctx), 1);
    hdt_buf_reserve(&bytes, HDT_CRL_PEM_MAX);
    memset(bytes.data, 'A', HDT_CRL_PEM_MAX + 1);
    bytes.len = HDT_CRL_PEM_MAX + 1;
    expect_refused(ctx, &bytes, HDT_EINVAL, "at most");
    read_file("learned.pem", &after);
    cr_expect(before.len == after.len && memcmp(before.data, after.data, after.len) == 0);
    hdt_tls_ctx_free(ctx);
    hdt_buf_release(&bytes);
    hdt_buf_release(&before);
    hdt_buf_release(&after);
}

/* A list that cannot be kept is not in force either: the next start would forget it. */
Test(crl, a_list_that_cannot_be_stored_is_refused)
{
    struct hdt_tls_ctx *ctx = ctx_open(false);
    struct hdt_error err = {0};

    cr_assert_eq(adopt(ctx, &second, &err), HDT_OK, "%s", err.msg);
    run("rm '%1$s/learned.pem' && mkdir -p '%1$s/learned.pem/x'", "", "");
    expect_refused(ctx, &third, HDT_EIO, "learned.pem");
    hdt_tls_ctx_free(ctx);
}
