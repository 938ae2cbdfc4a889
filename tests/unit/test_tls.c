/* SPDX-License-Identifier: Apache-2.0 */
/* Handshakes over memory, with certificates that the authority makes with given dates. */
#include "config.h"

#include "src/net/ca.h"
#include "src/net/tls.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <criterion/criterion.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DAY 86400

static char root[] = "/tmp/hdt-tls-XXXXXX";

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

TestSuite(tls, .init = setup, .fini = teardown);

static char *in_root(const char *name)
{
    return hdt_asprintf("%s/%s", root, name);
}

static void make_ca(const char *name, const char *federation)
{
    struct hdt_ca_output output = {.dir = in_root(name)};
    struct hdt_ca_dates dates = {time(NULL) - 400 * DAY, time(NULL) + 400 * DAY};
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ca_init(&output, federation, &dates, &err), HDT_OK, "%s", err.msg);
    free((char *)output.dir);
}

/* A bundle "root/DIR" valid from now + from_s until now + until_s. */
static void make_cert(const char *ca_name, const char *role, const char *name, const char *dir,
                      const int64_t life[2])
{
    struct hdt_ca_output output = {.dir = in_root(dir)};
    struct hdt_ca_entry entry = {0};
    struct hdt_error err = {0};
    char *ca_dir = in_root(ca_name);
    struct hdt_ca *ca;

    cr_assert_eq(hdt_ca_open(ca_dir, &ca, &err), HDT_OK, "%s", err.msg);
    hdt_identity_make(hdt_ca_federation(ca), role, name, &entry.identity, NULL);
    entry.dates.from_s = time(NULL) + life[0];
    entry.dates.until_s = time(NULL) + life[1];
    cr_assert_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_OK, "%s", err.msg);
    hdt_ca_close(ca);
    free((char *)output.dir);
    free(ca_dir);
}

static const int64_t good[2] = {-300, DAY};

static struct hdt_tls_conf conf_of(const char *dir)
{
    struct hdt_tls_conf conf = {0};

    conf.ca_path = hdt_asprintf("%s/%s/ca.pem", root, dir);
    conf.crl_path = hdt_asprintf("%s/%s/crl.pem", root, dir);
    conf.cert_path = hdt_asprintf("%s/%s/cert.pem", root, dir);
    conf.key_path = hdt_asprintf("%s/%s/key.pem", root, dir);
    return conf;
}

static void conf_free(struct hdt_tls_conf *conf)
{
    free((char *)conf->ca_path);
    free((char *)conf->crl_path);
    free((char *)conf->cert_path);
    free((char *)conf->key_path);
}

static struct hdt_tls_ctx *make_ctx(const char *dir, unsigned peer_roles)
{
    struct hdt_tls_conf conf = conf_of(dir);
    struct hdt_tls_ctx *ctx = NULL;
    struct hdt_error err = {0};

    conf.peer_roles = peer_roles;
    cr_assert_eq(hdt_tls_ctx_new(&conf, &ctx, &err), HDT_OK, "%s", err.msg);
    conf_free(&conf);
    return ctx;
}

/* A context that is not checked at load: for an end whose own certificate is bad. */
static SSL_CTX *raw_ctx(const char *dir)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    struct hdt_tls_conf conf = conf_of(dir);

    cr_assert_eq(SSL_CTX_use_certificate_file(ctx, conf.cert_path, SSL_FILETYPE_PEM), 1);
    cr_assert_eq(SSL_CTX_use_PrivateKey_file(ctx, conf.key_path, SSL_FILETYPE_PEM), 1);
    conf_free(&conf);
    return ctx;
}

struct pair {
    SSL *client, *server;
    int client_rc, server_rc; /* 1: that side's handshake is done */
    struct hdt_error client_err, server_err;
};

static void pair_make(struct pair *pair, SSL_CTX *client, SSL_CTX *server)
{
    BIO *a, *b;

    memset(pair, 0, sizeof(*pair));
    pair->client = SSL_new(client);
    pair->server = SSL_new(server);
    cr_assert_eq(BIO_new_bio_pair(&a, 65536, &b, 65536), 1);
    SSL_set_bio(pair->client, a, a);
    SSL_set_bio(pair->server, b, b);
    SSL_set_connect_state(pair->client);
    SSL_set_accept_state(pair->server);
}

static int step(SSL *ssl, int done, struct hdt_error *err)
{
    char byte;
    int rc;

    if (done < 0) {
        return done;
    }
    ERR_clear_error();
    /* Once its handshake is done an end reads on: a late alert comes this way. */
    rc = done == 1 ? SSL_read(ssl, &byte, 1) : SSL_do_handshake(ssl);
    if (rc == 1 || SSL_get_error(ssl, rc) == SSL_ERROR_WANT_READ) {
        return done == 1 || rc == 1 ? 1 : 0;
    }
    hdt_tls_failure(ssl, err);
    return -1;
}

static void pair_run(struct pair *pair)
{
    for (int i = 0; i < 10; i++) {
        pair->client_rc = step(pair->client, pair->client_rc, &pair->client_err);
        pair->server_rc = step(pair->server, pair->server_rc, &pair->server_err);
    }
}

static void pair_free(struct pair *pair)
{
    SSL_free(pair->client);
    SSL_free(pair->server);
}

Test(tls, two_sites_meet_and_know_each_other)
{
    struct hdt_identity identity;
    struct hdt_error err = {0};
    struct hdt_tls_ctx *a, *b;
    struct pair pair;

    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "a", good);
    make_cert("ca", "site", "site-b", "b", good);
    a = make_ctx("a", HDT_ROLE_SITE);
    b = make_ctx("b", HDT_ROLE_SITE);
    hdt_tls_ctx_identity(a, &identity);
    cr_expect_str_eq(identity.site, "site-a");
    pair_make(&pair, hdt_tls_ctx_ssl_ctx(a), hdt_tls_ctx_ssl_ctx(b));
    cr_expect_eq(hdt_tls_expect(pair.client, HDT_ROLE_SITE, "site-b", &err), HDT_OK);
    pair_run(&pair);
    cr_assert_eq(pair.client_rc, 1, "%s", pair.client_err.msg);
    cr_assert_eq(pair.server_rc, 1, "%s", pair.server_err.msg);
    cr_expect_str_eq(SSL_get_version(pair.client), "TLSv1.3");
    cr_expect_eq(hdt_tls_peer_identity(pair.server, &identity, &err), HDT_OK);
    cr_expect_eq(identity.role, HDT_ROLE_SITE);
    cr_expect_str_eq(identity.federation, "fed");
    cr_expect_str_eq(identity.name, "site-a");
    cr_expect_eq(hdt_tls_recheck(b, pair.server, &err), HDT_OK, "%s", err.msg);
    pair_free(&pair);
    hdt_tls_ctx_free(a);
    hdt_tls_ctx_free(b);
}

/* Does an unchecked end with the files of `dir` get this answer from a good site? */
static void expect_refusal(const char *dir, unsigned peer_roles, const char *why_here,
                           const char *why_there)
{
    struct hdt_tls_ctx *site = make_ctx("good", peer_roles);
    SSL_CTX *bad = raw_ctx(dir);
    struct pair pair;

    for (int bad_is_client = 0; bad_is_client < 2; bad_is_client++) {
        SSL_CTX *ctx = hdt_tls_ctx_ssl_ctx(site);
        struct hdt_error *here, *there;

        pair_make(&pair, bad_is_client ? bad : ctx, bad_is_client ? ctx : bad);
        pair_run(&pair);
        here = bad_is_client ? &pair.server_err : &pair.client_err;
        there = bad_is_client ? &pair.client_err : &pair.server_err;
        cr_expect_eq(here->status, HDT_EACCES);
        cr_expect(strstr(here->msg, why_here), "here: '%s'", here->msg);
        cr_expect(here->hint[0]);
        cr_expect_eq(there->status, HDT_EACCES);
        cr_expect(strstr(there->msg, why_there), "there: '%s'", there->msg);
        cr_expect(there->hint[0]);
        pair_free(&pair);
    }
    SSL_CTX_free(bad);
    hdt_tls_ctx_free(site);
}

static void expect_load_refusal(const char *dir, const char *why)
{
    struct hdt_tls_conf conf = conf_of(dir);
    struct hdt_error err = {0};
    struct hdt_tls_ctx *ctx;

    cr_expect_neq(hdt_tls_ctx_new(&conf, &ctx, &err), HDT_OK);
    cr_expect(strstr(err.msg, why), "'%s'", err.msg);
    conf_free(&conf);
}

Test(tls, expired)
{
    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "good", good);
    make_cert("ca", "site", "site-b", "bad", (int64_t[]){-100 * DAY, -3 * DAY});
    expect_refusal("bad", 0, "the peer's certificate of site site-b (serial ",
                   "the other end refuses our certificate of site site-b");
    expect_refusal("bad", 0, "it expired on ", "it has expired");
    expect_load_refusal("bad", "cannot trust our own certificate of site site-b");
}

Test(tls, not_yet_valid)
{
    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "good", good);
    make_cert("ca", "site", "site-b", "bad", (int64_t[]){3 * DAY, 5 * DAY});
    expect_refusal("bad", 0, "it is valid only from ", "or not yet");
    expect_load_refusal("bad", "it is valid only from ");
}

Test(tls, foreign_authority)
{
    make_ca("ca", "fed");
    make_ca("other", "fed"); /* the same name does not help */
    make_cert("ca", "site", "site-a", "good", good);
    make_cert("other", "site", "site-b", "bad", good);
    expect_refusal("bad", 0, "it is signed by another authority", "another authority signed it");
}

Test(tls, foreign_federation_of_another_name)
{
    make_ca("ca", "fed");
    make_ca("other", "acme");
    make_cert("ca", "site", "site-a", "good", good);
    make_cert("other", "site", "site-b", "bad", good);
    expect_refusal("bad", 0, "which calls itself '/O=acme/CN=authority of acme'",
                   "another authority signed it");
}

Test(tls, wrong_role)
{
    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "good", good);
    make_cert("ca", "worker", "site-a/w0", "bad", good);
    expect_refusal("bad", HDT_ROLE_SITE, "certificate of worker site-a/w0",
                   "its role, name or federation");
    expect_refusal("bad", HDT_ROLE_SITE | HDT_ROLE_OPERATOR,
                   "its role is worker, needed is site or operator",
                   "its role, name or federation");
}

Test(tls, wrong_name)
{
    struct hdt_error err = {0};
    struct hdt_tls_ctx *a, *b;
    struct pair pair;

    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "a", good);
    make_cert("ca", "site", "site-b", "b", good);
    a = make_ctx("a", 0);
    b = make_ctx("b", 0);
    pair_make(&pair, hdt_tls_ctx_ssl_ctx(a), hdt_tls_ctx_ssl_ctx(b));
    cr_expect_eq(hdt_tls_expect(pair.client, HDT_ROLE_SITE, "site c", &err), HDT_EINVAL);
    cr_expect_eq(hdt_tls_expect(pair.client, HDT_ROLE_SITE, "site-c", &err), HDT_OK);
    pair_run(&pair);
    cr_expect(strstr(pair.client_err.msg, "expected was site site-c"), "%s", pair.client_err.msg);
    pair_free(&pair);
    hdt_tls_ctx_free(a);
    hdt_tls_ctx_free(b);
}

static void make_revoked(const char *ca_name, const char *what)
{
    struct hdt_error err = {0};
    char *dir = in_root(ca_name);
    struct hdt_ca *ca;

    cr_assert_eq(hdt_ca_open(dir, &ca, &err), HDT_OK);
    cr_assert_eq(hdt_ca_revoke(ca, what, NULL, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_ca_revoke(ca, what, NULL, &err), HDT_EEXIST);
    hdt_ca_close(ca);
    free(dir);
}

static void copy(const char *from, const char *to)
{
    char *from_path = in_root(from), *to_path = in_root(to);
    struct hdt_buf bytes = {0};

    cr_assert_eq(hdt_file_read(from_path, 1 << 20, &bytes, NULL), HDT_OK);
    cr_assert_eq(hdt_file_write(to_path, &bytes, 0644, HDT_FILE_REPLACE, NULL), HDT_OK);
    hdt_buf_release(&bytes);
    free(from_path);
    free(to_path);
}

/* A live connection outlives the reload; recheck finds it, new ones are refused. */
Test(tls, revoked_after_reload)
{
    struct hdt_error err = {0};
    struct hdt_tls_ctx *a, *b;
    char *cert = in_root("b/cert.pem");
    struct pair pair;

    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "good", good);
    make_cert("ca", "site", "site-b", "b", good);
    a = make_ctx("good", 0);
    b = make_ctx("b", 0);
    pair_make(&pair, hdt_tls_ctx_ssl_ctx(b), hdt_tls_ctx_ssl_ctx(a));
    pair_run(&pair);
    cr_assert_eq(pair.server_rc, 1);
    make_revoked("ca", cert);
    cr_expect_eq(hdt_tls_recheck(a, pair.server, &err), HDT_OK);
    copy("ca/crl.pem", "good/crl.pem");
    cr_assert_eq(hdt_tls_ctx_reload(a, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_tls_recheck(a, pair.server, &err), HDT_EACCES);
    cr_expect(strstr(err.msg, "certificate of site site-b") && strstr(err.msg, "it was revoked"),
              "%s", err.msg);
    pair_free(&pair);
    expect_refusal("b", 0, "it was revoked", "it was revoked");
    hdt_tls_ctx_free(a);
    hdt_tls_ctx_free(b);
    free(cert);
}

Test(tls, no_certificate)
{
    struct hdt_tls_ctx *a;
    SSL_CTX *nobody = SSL_CTX_new(TLS_method());
    struct pair pair;

    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "good", good);
    a = make_ctx("good", 0);
    pair_make(&pair, nobody, hdt_tls_ctx_ssl_ctx(a));
    pair_run(&pair);
    cr_expect_str_eq(pair.server_err.msg, "the peer shows no certificate");
    cr_expect(strstr(pair.client_err.msg, "none was shown"), "%s", pair.client_err.msg);
    pair_free(&pair);

    SSL_CTX_set_max_proto_version(nobody, TLS1_2_VERSION);
    pair_make(&pair, nobody, hdt_tls_ctx_ssl_ctx(a));
    pair_run(&pair);
    cr_expect(strstr(pair.server_err.msg, "TLS 1.3 is needed"), "%s", pair.server_err.msg);
    cr_expect(strstr(pair.client_err.msg, "TLS 1.3 is needed"), "%s", pair.client_err.msg);
    pair_free(&pair);
    SSL_CTX_free(nobody);
    hdt_tls_ctx_free(a);
}

static void spoil(const char *name, const char *text, unsigned mode)
{
    char *path = in_root(name);
    struct hdt_buf bytes = {0};

    hdt_buf_append_str(&bytes, text);
    cr_assert_eq(hdt_file_write(path, &bytes, mode, HDT_FILE_REPLACE, NULL), HDT_OK);
    hdt_buf_release(&bytes);
    free(path);
}

Test(tls, files_are_checked_at_load)
{
    struct hdt_error err = {0};
    struct hdt_tls_conf conf;
    struct hdt_tls_ctx *ctx;
    char *path, *kept;

    make_ca("ca", "fed");
    make_ca("other", "fed");
    make_cert("ca", "site", "site-a", "a", good);
    make_cert("ca", "site", "site-b", "b", good);
    ctx = make_ctx("a", 0);

    path = in_root("a/key.pem");
    chmod(path, 0644);
    expect_load_refusal("a", "everybody may read it (mode 0644)");
    chmod(path, 0600);
    kept = in_root("kept.pem");
    rename(path, kept);
    expect_load_refusal("a", "No such file");
    cr_expect_eq(hdt_tls_ctx_reload(ctx, &err), HDT_ENOENT);
    cr_expect(hdt_tls_ctx_ssl_ctx(ctx)); /* goes on with what it has */
    hdt_tls_ctx_free(ctx);
    spoil("a/key.pem", "-----BEGIN nothing\n", 0600);
    expect_load_refusal("a", "there is no private key in it");
    rename(kept, path);

    copy("b/cert.pem", "a/cert.pem");
    expect_load_refusal("a", "does not belong to certificate");
    spoil("a/cert.pem", "", 0644);
    expect_load_refusal("a", "there is no certificate in it");
    spoil("a/cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0644);
    expect_load_refusal("a", "damaged certificate");

    copy("other/crl.pem", "b/crl.pem");
    expect_load_refusal("b", "it is not signed by");
    spoil("b/crl.pem", "x", 0644);
    expect_load_refusal("b", "there is no revocation list in it");
    copy("ca/crl.pem", "b/crl.pem");
    copy("other/ca.pem", "b/ca.pem");
    expect_load_refusal("b", "it is not signed by");
    copy("ca/ca.pem", "b/ca.pem");

    conf = conf_of("b");
    conf.own_roles = HDT_ROLE_WORKER;
    cr_expect_eq(hdt_tls_ctx_new(&conf, &ctx, &err), HDT_EACCES);
    cr_expect(strstr(err.msg, "has role site, needed is worker"), "%s", err.msg);
    conf.own_roles = HDT_ROLE_SITE;
    conf.site = "site-a";
    cr_expect_eq(hdt_tls_ctx_new(&conf, &ctx, &err), HDT_EACCES);
    cr_expect(strstr(err.msg, "is of site 'site-b', the settings say 'site-a'"), "%s", err.msg);
    conf.site = "site-b";
    conf.federation = "acme";
    cr_expect_eq(hdt_tls_ctx_new(&conf, &ctx, &err), HDT_EACCES);
    cr_expect(strstr(err.msg, "is of federation 'fed', the settings say 'acme'"), "%s", err.msg);
    conf_free(&conf);
    free(path);
    free(kept);
}

Test(tls, sniff_tells_tls_from_others)
{
    static const unsigned char hello[] = {22, 3, 1, 2, 0, 1, 0, 1, 252};
    struct hdt_error err = {0};

    cr_expect_eq(hdt_tls_sniff(hello, 5), HDT_TLS_SNIFF_MORE);
    cr_expect_eq(hdt_tls_sniff(hello, sizeof(hello)), HDT_TLS_SNIFF_TLS);
    cr_expect_eq(hdt_tls_sniff("GET / HTTP/1.1\r\n", 16), HDT_TLS_SNIFF_HTTP);
    cr_expect_eq(hdt_tls_sniff("DELETE /x", 9), HDT_TLS_SNIFF_HTTP);
    cr_expect_eq(hdt_tls_sniff("SSH-2.0-x", 9), HDT_TLS_SNIFF_SSH);
    cr_expect_eq(hdt_tls_sniff("\0\0\0\0\0\0", 6), HDT_TLS_SNIFF_OTHER);
    cr_expect_eq(hdt_tls_sniff_error(HDT_TLS_SNIFF_HTTP, &err), HDT_EPROTO);
    cr_expect_str_eq(err.msg, "plain HTTP on the TLS port");
}

/* The other end is no TLS server at all: what a client that dialled the wrong port sees. */
Test(tls, client_meets_http)
{
    struct hdt_error err = {0};
    struct hdt_tls_ctx *a;
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    SSL *ssl;

    make_ca("ca", "fed");
    make_cert("ca", "site", "site-a", "a", good);
    a = make_ctx("a", 0);
    ssl = SSL_new(hdt_tls_ctx_ssl_ctx(a));
    SSL_set_bio(ssl, in, out);
    SSL_set_connect_state(ssl);
    BIO_puts(in, "HTTP/1.1 400 Bad Request\r\n\r\n");
    cr_assert_neq(SSL_do_handshake(ssl), 1);
    hdt_tls_failure(ssl, &err);
    cr_expect_str_eq(err.msg, "the other end does not speak TLS");
    SSL_free(ssl);
    hdt_tls_ctx_free(a);
}
