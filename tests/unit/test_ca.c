/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/ca.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char root[] = "/tmp/hdt-ca-XXXXXX";

static void setup(void)
{
    cr_assert(mkdtemp(root));
}

static void teardown(void)
{
    char *command = hdt_asprintf("rm -rf '%s'", root);

    cr_expect_eq(system(command), 0);
    free(command);
}

TestSuite(ca, .init = setup, .fini = teardown);

static int run(const char *format, const char *a, const char *b)
{
    char *command = hdt_asprintf(format, root, a, b);
    int rc = system(command);

    free(command);
    return rc;
}

static unsigned mode_of(const char *name)
{
    char *path = hdt_asprintf("%s/%s", root, name);
    struct stat st = {0};

    cr_expect_eq(stat(path, &st), 0, "%s is missing", path);
    free(path);
    return st.st_mode & 07777;
}

static struct hdt_ca *make_ca(void)
{
    struct hdt_ca_output output = {.dir = root};
    struct hdt_ca_dates dates = hdt_ca_dates_days(HDT_CA_ROOT_DAYS);
    struct hdt_error err = {0};
    struct hdt_ca *ca;

    cr_assert_eq(hdt_ca_init(&output, "fed", &dates, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_ca_open(root, &ca, &err), HDT_OK, "%s", err.msg);
    return ca;
}

static struct hdt_ca_entry entry_for(const char *role, const char *name)
{
    struct hdt_ca_entry entry = {.dates = hdt_ca_dates_days(HDT_CA_DAYS)};

    cr_assert_eq(hdt_identity_make("fed", role, name, &entry.identity, NULL), HDT_OK);
    return entry;
}

/* The openssl command is the judge of what the authority makes. */
Test(ca, openssl_accepts_issued_and_refuses_revoked)
{
    struct hdt_ca *ca = make_ca();
    struct hdt_ca_entry entry = entry_for("site", "site-a");
    char *out = hdt_asprintf("%s/out", root);
    struct hdt_ca_output output = {.dir = out};
    struct hdt_error err = {0};
    char *lower;

    cr_assert_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(mode_of(""), 0700);
    cr_expect_eq(mode_of("ca.key"), 0600);
    cr_expect_eq(mode_of("out/key.pem"), 0600);
    cr_expect_eq(run("cd %1$s/out && openssl verify -CAfile ca.pem -CRLfile crl.pem -crl_check "
                     "-purpose sslserver -x509_strict cert.pem >/dev/null",
                     "", ""),
                 0);
    cr_expect_eq(run("cd %1$s/out && openssl verify -CAfile ca.pem -purpose sslclient cert.pem "
                     ">/dev/null",
                     "", ""),
                 0);
    cr_expect_eq(run("openssl x509 -in %1$s/out/cert.pem -noout -ext subjectAltName | grep -q "
                     "'URI:hdt://fed/site/site-a'",
                     "", ""),
                 0);
    lower = hdt_asprintf("%c%c:%s", entry.serial[0] | 32, entry.serial[1] | 32, entry.serial + 2);
    cr_assert_eq(hdt_ca_revoke(ca, lower, &entry, &err), HDT_OK, "%s", err.msg);
    cr_expect(entry.revoked_s >= time(NULL) - 5);
    cr_expect_neq(run("cd %1$s/out && openssl verify -CAfile ca.pem -CRLfile ../crl.pem "
                      "-crl_check cert.pem >/dev/null 2>&1",
                      "", ""),
                  0);
    cr_expect_eq(run("openssl crl -in %1$s/crl.pem -CAfile %1$s/ca.pem -noout 2>/dev/null", "", ""),
                 0);
    hdt_ca_close(ca);
    free(lower);
    free(out);
}

Test(ca, request_is_signed_without_the_key)
{
    struct hdt_ca *ca = make_ca();
    struct hdt_ca_entry entry = entry_for("worker", "site-a/w0"), other = entry_for("site", "x");
    char *dir = hdt_asprintf("%s/w", root), *csr = hdt_asprintf("%s/w/site-a-w0.csr", root);
    struct hdt_ca_output output = {.dir = dir};
    struct hdt_identity asked;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ca_request(&entry.identity, &output, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(run("openssl req -in %1$s/w/site-a-w0.csr -verify -noout >/dev/null 2>&1", "", ""),
                 0);
    cr_expect_eq(hdt_ca_request_read(csr, &asked, &err), HDT_OK);
    cr_expect_str_eq(asked.name, "w0");
    cr_expect_eq(hdt_ca_sign(ca, csr, &output, &other, &err), HDT_EACCES);
    cr_expect(strstr(err.msg, "it asks to be 'hdt://fed/worker/site-a/w0'"), "%s", err.msg);
    cr_assert_eq(hdt_ca_sign(ca, csr, &output, &entry, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(run("cd %1$s/w && openssl verify -CAfile ca.pem cert.pem >/dev/null && openssl "
                     "x509 -in cert.pem -pubkey -noout > a && openssl pkey -in key.pem "
                     "-pubout > b && cmp a b",
                     "", ""),
                 0);
    cr_expect_eq(hdt_ca_sign(ca, csr, &output, &entry, &err), HDT_EEXIST);

    /* One changed letter of the key's bits and the signature is wrong. */
    cr_expect_eq(run("cd %1$s/w && openssl req -in site-a-w0.csr -outform DER -out d && python3 -c "
                     "\"d=bytearray(open('d','rb').read());d[-3]^=1;open('d','wb').write(d)\" && "
                     "openssl req -inform DER -in d -out site-a-w0.csr 2>/dev/null",
                     "", ""),
                 0);
    cr_expect_eq(hdt_ca_request_read(csr, &asked, &err), HDT_EACCES);
    cr_expect(strstr(err.msg, "its signature is wrong"), "%s", err.msg);
    hdt_ca_close(ca);
    free(dir);
    free(csr);
}

Test(ca, nothing_is_overwritten_without_force)
{
    struct hdt_ca *ca = make_ca();
    struct hdt_ca_entry entry = entry_for("site", "site-a");
    struct hdt_ca_dates dates = hdt_ca_dates_days(10);
    char *dir = hdt_asprintf("%s/out", root);
    struct hdt_ca_output output = {.dir = dir}, again = {.dir = root};
    struct hdt_error err = {0};
    size_t n;

    cr_assert_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_OK);
    cr_expect_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_EEXIST);
    cr_expect(strstr(err.msg, "/out/key.pem' exists already; nothing was changed"), "%s", err.msg);
    hdt_ca_entries(ca, &n);
    cr_expect_eq(n, 1);
    output.force = true;
    cr_expect_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_OK);
    hdt_ca_close(ca);

    cr_assert_eq(hdt_ca_open(root, &ca, &err), HDT_OK);
    cr_expect_str_eq(hdt_ca_entries(ca, &n)[1].serial, entry.serial);
    cr_expect_eq(n, 2);
    hdt_ca_close(ca);

    cr_expect_eq(hdt_ca_init(&again, "fed", &dates, &err), HDT_EEXIST);
    cr_expect(strstr(err.hint, "--force"), "%s", err.hint);
    free(dir);
}

Test(ca, refuses_wrong_names_and_damaged_folders)
{
    static const char *const names[] = {"",
                                        "a b",
                                        "a/b",
                                        "-a",
                                        ".",
                                        "a\n",
                                        "\xc3\xa9",
                                        "0123456789012345678901234567890123456789012345678901234567"
                                        "890123"};
    struct hdt_identity identity;
    struct hdt_error err = {0};
    struct hdt_ca *ca = make_ca();

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        cr_expect_eq(hdt_identity_make("fed", "site", names[i], &identity, &err), HDT_EINVAL,
                     "'%s' was taken", names[i]);
        cr_expect(err.hint[0]);
    }
    cr_expect_eq(hdt_identity_make("fed", "worker", "w0", &identity, &err), HDT_EINVAL);
    cr_expect_str_eq(err.hint, "write its site too: worker SITE/NAME");
    cr_expect_eq(hdt_identity_make("fed", "boss", "w0", &identity, &err), HDT_EINVAL);
    cr_expect_eq(hdt_identity_parse("hdt://fed/worker/a/b", &identity, &err), HDT_OK);
    cr_expect_str_eq(identity.site, "a");
    cr_expect_eq(hdt_identity_parse("hdt://fed/worker/a/b/c", &identity, &err), HDT_EINVAL);
    cr_expect_eq(hdt_identity_parse("hdt://fed/site", &identity, &err), HDT_EINVAL);
    cr_expect_eq(hdt_identity_parse("hdt://fed", &identity, &err), HDT_EINVAL);
    cr_expect_eq(hdt_identity_parse("hdt://", &identity, &err), HDT_EINVAL);
    cr_expect_eq(hdt_identity_parse("http://fed/site/a", &identity, &err), HDT_EINVAL);

    cr_expect_eq(hdt_ca_revoke(ca, "12AB", NULL, &err), HDT_ENOENT);
    cr_expect_eq(hdt_ca_revoke(ca, "no-such-file", NULL, &err), HDT_ENOENT);
    cr_expect(strstr(err.msg, "neither a certificate file nor a serial"), "%s", err.msg);
    hdt_ca_close(ca);
    cr_expect_eq(run("echo rubbish >> %1$s/index.txt", "", ""), 0);
    cr_expect_eq(hdt_ca_open(root, &ca, &err), HDT_EINVAL);
    cr_expect(strstr(err.where, "index.txt:1"), "%s", err.where);
    cr_expect_eq(hdt_ca_open("/nowhere", &ca, &err), HDT_ENOENT);
    cr_expect(strstr(err.hint, "hdt ca init"), "%s", err.hint);
}
