/* SPDX-License-Identifier: Apache-2.0 */
/* What a gateway writes down of who came and what was ordered, and revocation lists between
 * gateways, over a data plane without sockets. */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/ca.h"
#include "src/net/tls.h"
#include "tests/support/fake_dataplane.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

enum { WORKER = 1, OPERATOR = 2 };

static struct hdt_gateway gw;
static char dir[] = "/tmp/hdt-audit-XXXXXX";

static struct hdt_gwclient *client_add(uint64_t id, enum hdt_client_role role, const char *address)
{
    struct hdt_gwclient *client = hdt_calloc(1, sizeof(*client));

    client->id = id;
    client->role = role;
    snprintf(client->name, sizeof(client->name), "%s", role == HDT_CLIENT_WORKER ? "w0" : "hdt");
    snprintf(client->address, sizeof(client->address), "%s", address);
    snprintf(client->identity, sizeof(client->identity),
             role == HDT_CLIENT_WORKER ? "uid 17" : "hdt://test/operator/ann");
    snprintf(client->from, sizeof(client->from), "10.0.0.9:1234");
    LL_PREPEND(gw.clients, client);
    return client;
}

static char *in_dir(const char *name)
{
    return hdt_asprintf("%s/%s", dir, name);
}

static void setup(void)
{
    struct hdt_error err = {0};

    cr_assert_not_null(mkdtemp(dir));
    hdt_log_init("test", HDT_LOG_ERROR);
    hdt_fake_dataplane_reset();
    gw.conf.site = hdt_strdup("a");
    gw.conf.federation = hdt_strdup("test");
    gw.conf.state_dir = hdt_strdup(dir);
    gw.conf.wan.advertise = hdt_strdup("");
    cr_assert_eq(hdt_audit_open(dir, &gw.audit, &err), HDT_OK, "%s", err.msg);
}

static void teardown(void)
{
    char *command = hdt_asprintf("rm -rf '%s'", dir);

    hdt_route_free(&gw);
    hdt_federation_free(&gw);
    hdt_audit_close(gw.audit);
    hdt_tls_ctx_free(gw.tls);
    hdt_conf_release(&hdt_gateway_conf_schema, &gw.conf);
    hdt_fake_dataplane_reset();
    cr_expect_eq(system(command), 0);
    free(command);
}

TestSuite(audit, .init = setup, .fini = teardown);

/* The n-th line of a file; NULL when there are fewer. Every line is one JSON object. */
static json_t *line_of(const char *name, int n)
{
    char *path = in_dir(name), *line = NULL;
    FILE *file = fopen(path, "r");
    json_t *json = NULL;
    size_t cap = 0;

    cr_assert_not_null(file, "%s", path);
    for (int i = 0; i <= n && getline(&line, &cap, file) > 0; i++) {
        json_decref(json);
        json = json_loads(line, 0, NULL);
        cr_assert_not_null(json, "%s", line);
        if (i < n) {
            json_decref(json);
            json = NULL;
        }
    }
    free(line);
    fclose(file);
    free(path);
    return json;
}

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

static void expect_line(int n, const char *what, const char *who, const char *from)
{
    json_t *json = line_of("audit.jsonl", n);
    const char *when = text_of(json, "when");

    cr_assert_not_null(json, "line %d of what is not there", n);
    cr_expect_str_eq(text_of(json, "what"), what);
    cr_expect_str_eq(text_of(json, "who"), who);
    cr_expect_str_eq(text_of(json, "from"), from);
    cr_expect(strlen(when) == 24 && when[10] == 'T' && when[23] == 'Z', "%s", when);
    json_decref(json);
}

static void expect_lines(int n)
{
    json_t *json = line_of("audit.jsonl", n);

    cr_expect_null(json, "more than %d lines: %s", n, text_of(json, "what"));
    json_decref(json);
}

static void peer_up(const char *site)
{
    json_t *hello = json_pack("{s:s}", "version", "1");

    hdt_federation_peer_up(&gw, site, hello);
    json_decref(hello);
}

static void peer_says(const char *site, const char *from, json_t *msg)
{
    json_object_set_new(msg, "from", json_string(from));
    hdt_route_from_peer(&gw, site, msg);
    json_decref(msg);
}

Test(audit, who_comes_and_goes_is_written_down)
{
    struct hdt_gwclient *worker = client_add(WORKER, HDT_CLIENT_WORKER, "a/w0");
    json_t *hello = json_pack("{s:s, s:{s:s}}", "instance", "1", "device", "name", "test");
    struct hdt_error gone = {.msg = "it closed"};
    json_t *line;

    peer_up("b");
    hdt_federation_worker_up(&gw, worker, hello);
    hdt_federation_worker_down(&gw, worker, &gone);
    hdt_federation_peer_down(&gw, "b", &gone);
    expect_line(0, "peer.joined", "hdt://test/site/b", "");
    expect_line(1, "worker.joined", "uid 17", "10.0.0.9:1234");
    expect_line(2, "worker.left", "uid 17", "10.0.0.9:1234");
    expect_line(3, "peer.left", "hdt://test/site/b", "");
    expect_lines(4);
    line = line_of("audit.jsonl", 3);
    cr_expect_str_eq(text_of(json_object_get(line, "detail"), "why"), "it closed");
    json_decref(line);
    json_decref(hello);
}

Test(audit, orders_are_written_down_and_questions_are_not)
{
    static const char *const asked[] = {"logs", "follow"};
    json_t *msg, *line;

    client_add(OPERATOR, HDT_CLIENT_OPERATOR, "a/@2");
    client_add(WORKER, HDT_CLIENT_WORKER, "a/w0");
    peer_up("b");
    for (size_t i = 0; i < 2; i++) {
        msg = hdt_msg_new(asked[i], "b", NULL);
        hdt_route_from_client(&gw, OPERATOR, msg);
        json_decref(msg);
    }
    msg = hdt_msg_new("submit", "b", json_pack("{s:{s:s}}", "job", "name", "bible"));
    hdt_route_from_client(&gw, OPERATOR, msg);
    hdt_route_from_client(&gw, WORKER, msg); /* may not: no order */
    json_decref(msg);
    peer_says("b", "b/@9", hdt_msg_new("stop", "a", json_pack("{s:i}", "job", 7)));
    peer_says("b", "c/@9", hdt_msg_new("stop", "a", json_pack("{s:i}", "job", 7))); /* not b's */
    expect_line(0, "peer.joined", "hdt://test/site/b", "");
    expect_line(1, "job.submit", "hdt://test/operator/ann", "10.0.0.9:1234");
    expect_line(2, "job.stop", "hdt://test/site/b", "");
    expect_lines(3);
    line = line_of("audit.jsonl", 1);
    cr_expect_str_eq(text_of(json_object_get(line, "detail"), "name"), "bible");
    cr_expect_str_eq(text_of(json_object_get(line, "detail"), "to"), "b");
    json_decref(line);
    line = line_of("audit.jsonl", 2);
    cr_expect_str_eq(text_of(json_object_get(line, "detail"), "sender"), "b/@9");
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(line, "detail"), "job")), 7);
    json_decref(line);
}

Test(audit, the_file_may_be_rotated_and_is_appended_to)
{
    char *path = in_dir("audit.jsonl"), *old = in_dir("audit.jsonl.1");
    struct hdt_error err = {0};
    struct stat st;
    json_t *line;

    hdt_audit_self(&gw, "one", NULL);
    cr_assert_eq(rename(path, old), 0);
    hdt_audit_self(&gw, "two", NULL); /* still the renamed file */
    cr_assert_eq(hdt_audit_reopen(gw.audit, &err), HDT_OK, "%s", err.msg);
    hdt_audit_self(&gw, "three", json_pack("{s:s}", "text", "a \"quote\"\nand a line"));
    hdt_audit_close(gw.audit);
    cr_assert_eq(hdt_audit_open(dir, &gw.audit, &err), HDT_OK, "%s", err.msg);
    hdt_audit_self(&gw, "four", NULL);
    line = line_of("audit.jsonl.1", 1);
    cr_expect_str_eq(text_of(line, "what"), "two");
    json_decref(line);
    line = line_of("audit.jsonl", 1);
    cr_expect_str_eq(text_of(line, "what"), "four");
    json_decref(line);
    expect_lines(2);
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 0007, 0, "everybody may read it");
    free(path);
    free(old);
}

/* ---- revocation lists ---- */

/* A federation whose site c was revoked: newest list. This gateway, a, has the one before. */
static void federation_make(struct hdt_buf *newest)
{
    struct hdt_ca_output output = {.dir = in_dir("ca")};
    struct hdt_ca_dates dates = hdt_ca_dates_days(HDT_CA_ROOT_DAYS);
    struct hdt_ca_entry entry = {.dates = hdt_ca_dates_days(HDT_CA_DAYS)};
    struct hdt_tls_conf tls = {.learned_crl_path = in_dir("crl.pem")};
    struct hdt_error err = {0};
    struct hdt_ca *ca;
    char *path;

    cr_assert_eq(hdt_ca_init(&output, "test", &dates, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_ca_open(output.dir, &ca, &err), HDT_OK, "%s", err.msg);
    free((char *)output.dir);
    output.dir = in_dir("c");
    hdt_identity_make("test", "site", "c", &entry.identity, NULL);
    cr_assert_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_OK, "%s", err.msg);
    free((char *)output.dir);
    output.dir = in_dir("a");
    hdt_identity_make("test", "site", "a", &entry.identity, NULL);
    cr_assert_eq(hdt_ca_issue(ca, &output, &entry, &err), HDT_OK, "%s", err.msg);
    tls.ca_path = in_dir("a/ca.pem");
    tls.cert_path = in_dir("a/cert.pem");
    tls.key_path = in_dir("a/key.pem");
    tls.crl_path = in_dir("a/crl.pem");
    cr_assert_eq(hdt_tls_ctx_new(&tls, &gw.tls, &err), HDT_OK, "%s", err.msg);
    path = in_dir("c/cert.pem");
    cr_assert_eq(hdt_ca_revoke(ca, path, &entry, &err), HDT_OK, "%s", err.msg);
    free(path);
    path = hdt_ca_path(ca, "crl.pem");
    cr_assert_eq(hdt_file_read(path, 1 << 20, newest, &err), HDT_OK, "%s", err.msg);
    free(path);
    hdt_ca_close(ca);
    free((char *)output.dir);
    free((char *)tls.ca_path);
    free((char *)tls.cert_path);
    free((char *)tls.key_path);
    free((char *)tls.crl_path);
    free((char *)tls.learned_crl_path);
}

/* Was a list sent to the site? */
static bool list_sent(const char *site)
{
    json_t *msg = hdt_fake_dataplane_take(site, "crl");
    bool is_pem = strstr(text_of(hdt_msg_body(msg), "pem"), "BEGIN X509 CRL") != NULL;

    json_decref(msg);
    return is_pem;
}

static void list_comes(const char *site, const char *pem, size_t len)
{
    peer_says(site, site, hdt_msg_new("crl", "", json_pack("{s:s%}", "pem", pem, len)));
}

Test(audit, a_newer_list_is_taken_and_passed_on_once)
{
    struct hdt_buf newest = {0};

    federation_make(&newest);
    peer_up("b");
    peer_up("d");
    cr_expect(list_sent("b") && list_sent("d"), "who comes up is told of the list in force");
    list_comes("b", newest.data, newest.len);
    cr_expect_eq(hdt_fake_dataplane_n_rechecks(), 1);
    cr_expect(list_sent("d"));
    cr_expect_not(list_sent("b"));
    expect_line(2, "revocation.adopted", "hdt://test/site/b", "");
    list_comes("d", newest.data, newest.len);
    cr_expect_eq(hdt_fake_dataplane_n_rechecks(), 1);
    cr_expect_not(list_sent("b"));
    cr_expect_not(list_sent("d"));
    cr_expect_eq(gw.n_refused_lists, 0);
    expect_lines(3);
    peer_up("e");
    cr_expect(list_sent("e"));
    hdt_buf_release(&newest);
}

Test(audit, bad_lists_are_counted_and_change_nothing)
{
    struct hdt_buf newest = {0}, old = {0};

    federation_make(&newest);
    hdt_tls_crl_pem(gw.tls, &old);
    peer_up("b");
    list_comes("b", newest.data, newest.len);
    list_comes("b", old.data, old.len);
    list_comes("b", "rubbish", 7);
    list_comes("b", newest.data, newest.len / 2);
    peer_says("b", "b", hdt_msg_new("crl", "", NULL));
    cr_expect_eq(gw.n_refused_lists, 4);
    cr_expect_eq(hdt_fake_dataplane_n_rechecks(), 1);
    /* Only gateways speak of lists. */
    peer_says("b", "b/w0", hdt_msg_new("crl", "a", json_pack("{s:s}", "pem", "x")));
    peer_says("b", "b/@1", hdt_msg_new("crl", "a", json_pack("{s:s}", "pem", "x")));
    cr_expect_eq(gw.n_refused_messages, 2);
    cr_expect_eq(gw.n_refused_lists, 4);
    hdt_buf_release(&newest);
    hdt_buf_release(&old);
}
