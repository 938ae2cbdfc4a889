/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/conf.h"
#include "src/base/buf.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fruit_wan {
    char *listen;
    uint64_t rate;
    uint64_t chunk;
};
struct fruit_peer {
    char *name;
    char *address;
    int64_t weight;
    struct hdt_conf_strings tags;
};
struct fruit {
    char *site;
    char *state;
    bool fast;
    int64_t steps;
    int64_t timeout;
    double ratio;
    int codec;
    struct hdt_conf_strings words;
    struct fruit_wan wan;
    struct hdt_conf_list peers;
};

static const char *const codec_names[] = {"none", "bf16", "int8", "lossless", NULL};

static const struct hdt_conf_row wan_rows[] = {
    HDT_CONF_STRING(struct fruit_wan, listen, "0.0.0.0:7600", "Address and port. IPv6 too."),
    HDT_CONF_RATE(struct fruit_wan, rate, "max", "Cap."),
    HDT_CONF_BYTES(struct fruit_wan, chunk, "2MiB", 65536, 67108864, "Unit of sending."),
    HDT_CONF_END,
};
static const struct hdt_conf_row peer_rows[] = {
    HDT_CONF_STRING(struct fruit_peer, name, NULL, "Site. Example: site-b."),
    HDT_CONF_STRING(struct fruit_peer, address, NULL, "Host and port."),
    HDT_CONF_INT(struct fruit_peer, weight, "1", 1, 10, "Share."),
    HDT_CONF_STRINGS(struct fruit_peer, tags, "a, b c", "Tags."),
    HDT_CONF_END,
};
static const struct hdt_conf_row fruit_rows[] = {
    HDT_CONF_STRING(struct fruit, site, NULL, "Name of this site. Example: site-a."),
    HDT_CONF_PATH(struct fruit, state, "state", "Where state is kept."),
    HDT_CONF_BOOL(struct fruit, fast, "true", "Go fast."),
    HDT_CONF_INT(struct fruit, steps, "100", 1, 1000, "Steps."),
    HDT_CONF_DURATION(struct fruit, timeout, "10s", 100, 3600000, "Deadline."),
    HDT_CONF_FLOAT(struct fruit, ratio, "0.5", 0, 1, "Ratio."),
    HDT_CONF_ENUM(struct fruit, codec, "lossless", codec_names, "Codec."),
    HDT_CONF_STRINGS(struct fruit, words, "", "Words."),
    HDT_CONF_SECTION(struct fruit, wan, wan_rows, "The outside."),
    HDT_CONF_LIST(struct fruit, peers, peer_rows, struct fruit_peer, "Other sites."),
    HDT_CONF_END,
};
static const struct hdt_conf_schema fruit_schema = {.name = "fruit",
                                                    .help = "Settings of a test.",
                                                    .rows = fruit_rows,
                                                    .size = sizeof(struct fruit)};

static enum hdt_status parse(const char *text, struct fruit *out, struct hdt_error *err)
{
    return hdt_conf_parse(&fruit_schema, text, strlen(text), "f.yaml", out, NULL, err);
}

Test(conf, reads_every_type)
{
    static const char text[] = "site: 'a b'\n"
                               "state: /var/x\n"
                               "fast: no\n"
                               "steps: 7\n"
                               "timeout: 1.5m\n"
                               "ratio: 2.5e-1\n"
                               "codec: int8\n"
                               "words: [null, \"~\", x]\n"
                               "wan: {listen: '[::1]:1', rate: 2.5gbit, chunk: 1.5MiB}\n"
                               "peers:\n"
                               "  - name: b\n"
                               "    address: h:1\n"
                               "  - {name: c, address: 'h:2', weight: 10, tags: []}\n";
    struct hdt_error err = {0};
    struct fruit f;
    struct fruit_peer *peers;

    cr_assert_eq(parse(text, &f, &err), HDT_EINVAL); /* null is no word */
    cr_expect_str_eq(err.where, "f.yaml:8:9");
    cr_expect_str_eq(err.msg, "cannot set 'words[0]': it has no value");

    char *good = strdup(text);
    memcpy(strstr(good, "null"), "none", 4);
    cr_assert_eq(parse(good, &f, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_expect_str_eq(f.site, "a b");
    cr_expect_str_eq(f.state, "/var/x");
    cr_expect_eq(f.fast, false);
    cr_expect_eq(f.steps, 7);
    cr_expect_eq(f.timeout, 90000);
    cr_expect_eq(f.ratio, 0.25);
    cr_expect_eq(f.codec, 2);
    cr_expect_eq(f.words.n, 3);
    cr_expect_str_eq(f.words.items[1], "~");
    cr_expect_str_eq(f.wan.listen, "[::1]:1");
    cr_expect_eq(f.wan.rate, 2500000000ull);
    cr_expect_eq(f.wan.chunk, 3 * 512 * 1024);
    cr_assert_eq(f.peers.n, 2);
    peers = f.peers.items;
    cr_expect_str_eq(peers[0].name, "b");
    cr_expect_eq(peers[0].weight, 1);
    cr_expect_eq(peers[0].tags.n, 2);
    cr_expect_str_eq(peers[0].tags.items[1], "b c");
    cr_expect_str_eq(peers[1].address, "h:2");
    cr_expect_eq(peers[1].weight, 10);
    cr_expect_eq(peers[1].tags.n, 0);
    hdt_conf_release(&fruit_schema, &f);
    cr_expect_null(f.site);
    free(good);
}

struct bad {
    const char *text;  /* the file */
    const char *where; /* line and column expected */
    const char *msg;   /* the whole message */
    const char *hint;  /* a part of the hint */
};

static const struct bad bad_files[] = {
    {"site: a\nwan:\n  lisen: x\n", "f.yaml:3:3", "unknown key 'wan.lisen'",
     "did you mean 'listen'?"},
    {"site: a\nlisten: x\n", "f.yaml:2:1", "unknown key 'listen'", "did you mean 'wan.listen'?"},
    {"site: a\n\nbanana: 1\n", "f.yaml:3:1", "unknown key 'banana'", "known here: site, state"},
    {"site: a\nsteps: 1\nsite: b\n", "f.yaml:3:1", "key 'site' is given twice, first on line 1",
     "remove one"},
    {"site: a\nsteps: many\n", "f.yaml:2:8", "cannot set 'steps': 'many' is not a whole number",
     "digits only"},
    {"site: a\nsteps: '3'\n", "f.yaml:2:8",
     "cannot set 'steps': '3' is not a number: it is quoted text", "remove the quotes"},
    {"site: a\nsteps: 99999999999999999999\n", "f.yaml:2:8",
     "cannot set 'steps': '99999999999999999999' is not a whole number", ""},
    {"site: a\nsteps: 0\n", "f.yaml:2:8", "cannot set 'steps': 0 is too small",
     "allowed: 1 to 1000"},
    {"site: a\nsteps: 1001\n", "f.yaml:2:8", "cannot set 'steps': 1001 is too large",
     "allowed: 1 to 1000"},
    {"site: a\nsteps: [1]\n", "f.yaml:2:8",
     "cannot set 'steps': a single value is needed here, not a list", "key: value"},
    {"site: a\nsteps:\n", "f.yaml:2:7", "cannot set 'steps': it has no value", "remove the key"},
    {"site: a\nfast: maybe\n", "f.yaml:2:7", "cannot set 'fast': 'maybe' is not a truth value",
     "true or false"},
    {"site: a\ntimeout: 10\n", "f.yaml:2:10", "cannot set 'timeout': '10' is not a duration",
     "250ms, 10s"},
    {"site: a\ntimeout: 1ms\n", "f.yaml:2:10", "cannot set 'timeout': 1ms is too small",
     "allowed: 100ms to 1h"},
    {"site: a\nratio: nan\n", "f.yaml:2:8", "cannot set 'ratio': 'nan' is not a number", "0.1"},
    {"site: a\nratio: 1.01\n", "f.yaml:2:8", "cannot set 'ratio': 1.01 is too large",
     "allowed: 0 to 1"},
    {"site: a\ncodec: losless\n", "f.yaml:2:8", "cannot set 'codec': 'losless' is not known",
     "did you mean 'lossless'? known: none, bf16, int8, lossless"},
    {"site: a\nwords: one\n", "f.yaml:2:8",
     "cannot set 'words': a list is needed here, not a single value", "[one, two]"},
    {"site: a\nwan: 3\n", "f.yaml:2:6",
     "cannot set 'wan': a section is needed here, not a single value", "indented"},
    {"site: a\nwan:\n  chunk: 2Mi\n", "f.yaml:3:10", "cannot set 'wan.chunk': '2Mi' is not a size",
     "64KiB"},
    {"site: a\nwan:\n  chunk: 1KiB\n", "f.yaml:3:10", "cannot set 'wan.chunk': 1KiB is too small",
     "allowed: 64KiB to 64MiB"},
    {"site: a\nwan:\n  rate: 100\n", "f.yaml:3:9", "cannot set 'wan.rate': '100' is not a rate",
     "200mbit"},
    {"site: a\npeers:\n  name: b\n", "f.yaml:3:3",
     "cannot set 'peers': a list is needed here, not a section", "'- '"},
    {"site: a\npeers:\n  - b\n", "f.yaml:3:5",
     "cannot set 'peers[0]': a section is needed here, not a single value", "key: value"},
    {"site: a\npeers:\n  - name: b\n    address: x\n  - name: c\n", "f.yaml:5:5",
     "missing key 'peers[1].address'", "add it (text): Host and port."},
    {"site: a\npeers:\n  - name: b\n    adress: x\n", "f.yaml:4:5", "unknown key 'peers[0].adress'",
     "did you mean 'address'?"},
    {"steps: 3\n", "f.yaml:1:1", "missing key 'site'", "add it (text): Name of this site."},
    {"", "f.yaml:1:1", "missing key 'site'", ""},
    {"# nothing\n", "f.yaml:1:1", "missing key 'site'", ""},
    {"- site\n", "f.yaml:1:1", "the settings must be 'key: value' lines", "config example fruit"},
    {"site: a\n---\nsite: b\n", "f.yaml:2:1", "cannot read YAML: a second document begins here",
     "remove the '---'"},
    {"site: &x a\n", "f.yaml:1:7", "cannot read YAML: anchors and tags are not used in settings",
     "quotes"},
    {"site: a\nstate: *x\n", "f.yaml:2:8", "cannot read YAML: aliases are not used in settings",
     "quotes"},
    {"site: !!str a\n", "f.yaml:1:7", "cannot read YAML: anchors and tags are not used in settings",
     ""},
    {"[a]: b\n", "f.yaml:1:1", "cannot read YAML: a key must be text, not a list or section", ""},
    {"site: \"a\\0b\"\n", "f.yaml:1:7", "cannot read YAML: the text contains a zero byte", ""},
    {"site: a\n\tsteps: 1\n", "f.yaml:2:1", NULL, "replace the tab"},
    {"site: a\nwan: {rate: max\n", "f.yaml:3:1", NULL, "check indentation"},
    {"site: a\n state: b\n", "f.yaml:2:7", NULL, "check indentation"},
    {"site: \x01\n", "f.yaml:1:7", NULL, "UTF-8"},
    {"site: a\nstate: \xff\xfe\n", "f.yaml:2:8", NULL, "UTF-8"},
    {"wan: [1, 2]\nsteps: 0\nbanana: 1\n", "f.yaml:1:6",
     "cannot set 'wan': a section is needed here, not a list", ""},
};

Test(conf, refuses_with_place_cause_and_remedy)
{
    for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
        const struct bad *bad = &bad_files[i];
        struct hdt_error err = {0};
        struct fruit f;

        cr_expect_eq(parse(bad->text, &f, &err), HDT_EINVAL, "'%s' was taken", bad->text);
        cr_expect_str_eq(err.where, bad->where, "for '%s': %s at %s", bad->text, err.msg,
                         err.where);
        if (bad->msg) {
            cr_expect_str_eq(err.msg, bad->msg);
        } else {
            cr_expect(strncmp(err.msg, "cannot read YAML: ", 18) == 0, "%s", err.msg);
        }
        cr_expect(strstr(err.hint, bad->hint), "for '%s': hint '%s'", bad->text, err.hint);
    }
}

Test(conf, refuses_without_an_error_to_fill)
{
    struct fruit f;

    for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
        cr_expect_eq(parse(bad_files[i].text, &f, NULL), HDT_EINVAL);
    }
}

Test(conf, limits_size_depth_and_number)
{
    struct hdt_error err = {0};
    struct hdt_buf text = {0};
    struct fruit f;

    hdt_buf_append_str(&text, "site: a\nwords: ");
    for (int i = 0; i < 40; i++) {
        hdt_buf_append_str(&text, "[");
    }
    cr_expect_eq(parse(hdt_buf_str(&text), &f, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "32 levels"), "%s", err.msg);
    cr_expect_str_eq(err.where, "f.yaml:2:39");

    hdt_buf_clear(&text);
    hdt_buf_append_str(&text, "site: a\nwords:\n");
    for (int i = 0; i < 70000; i++) {
        hdt_buf_append_str(&text, "- x\n");
    }
    cr_expect_eq(parse(hdt_buf_str(&text), &f, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "65536 values"), "%s", err.msg);

    while (text.len <= 1 << 20) {
        hdt_buf_append_str(&text, "# comment\n");
    }
    cr_expect_eq(parse(hdt_buf_str(&text), &f, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "1 MiB"), "%s", err.msg);
    hdt_buf_release(&text);
}

Test(conf, load_anchors_paths_at_the_file)
{
    char dir[] = "/tmp/hdt-conf-XXXXXX";
    struct hdt_error err = {0};
    struct hdt_conf_doc *doc;
    struct fruit f;
    char *path, *want;
    FILE *file;

    cr_assert(mkdtemp(dir));
    path = hdt_asprintf("%s/f.yaml", dir);
    cr_expect_eq(hdt_conf_load(&fruit_schema, path, &f, &doc, &err), HDT_ENOENT);
    cr_expect(strstr(err.msg, path), "%s", err.msg);
    cr_expect_str_eq(err.hint, "'hdt config example fruit' prints a file to start from");
    cr_expect_eq(hdt_conf_load(&fruit_schema, dir, &f, &doc, &err), HDT_EIO);

    file = fopen(path, "w");
    fputs("site: a\n", file);
    fclose(file);
    cr_assert_eq(hdt_conf_load(&fruit_schema, path, &f, &doc, &err), HDT_OK, "%s", err.msg);
    want = hdt_asprintf("%s/state", dir);
    cr_expect_str_eq(f.state, want);
    hdt_conf_release(&fruit_schema, &f);
    hdt_conf_doc_free(doc);
    unlink(path);
    rmdir(dir);
    free(path);
    free(want);
}

Test(conf, later_errors_find_their_line)
{
    static const char text[] = "site: a\nwan:\n  rate: max\npeers:\n"
                               "  - name: b\n    address: x\n  - name: c\n    address: y\n";
    static const struct {
        const char *key, *where;
    } cases[] = {
        {"site", "f.yaml:1:7"},
        {"wan.rate", "f.yaml:3:9"},
        {"wan.listen", "f.yaml:3:3"},
        {"peers[1].address", "f.yaml:8:14"},
        {"peers[1].weight", "f.yaml:7:5"},
        {"peers[7].name", "f.yaml:5:3"},
        {"steps", "f.yaml:1:1"},
    };
    struct hdt_conf_doc *doc;
    struct hdt_error err = {0};
    struct fruit f;

    cr_assert_eq(hdt_conf_parse(&fruit_schema, text, strlen(text), "f.yaml", &f, &doc, &err),
                 HDT_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_expect_eq(hdt_conf_error(doc, cases[i].key, &err, HDT_EINVAL, "no %d", 3), HDT_EINVAL);
        cr_expect_str_eq(err.where, cases[i].where, "%s: %s", cases[i].key, err.where);
        cr_expect_str_eq(err.msg, "no 3");
    }
    hdt_conf_error(NULL, "site", &err, HDT_EINVAL, "x");
    cr_expect_str_eq(err.where, "");
    hdt_conf_doc_free(doc);
    hdt_conf_release(&fruit_schema, &f);
}

static char *json_text(const struct fruit *f)
{
    json_t *json = hdt_conf_to_json(&fruit_schema, f);
    char *text = json_dumps(json, JSON_SORT_KEYS);

    json_decref(json);
    return text;
}

/* What the example says must be what an empty file means, both as it is and with every default's
 * comment sign removed. */
Test(conf, example_parses_back_to_the_defaults)
{
    struct hdt_error err = {0};
    struct fruit f, defaults, peers = {0};
    char *text, *want, *got;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    hdt_conf_write_example(&fruit_schema, out);
    fclose(out);
    cr_assert_eq(parse(text, &f, &err), HDT_OK, "%s: %s\n%s", err.where, err.msg, text);
    hdt_conf_defaults(&fruit_schema, &defaults);
    cr_expect_null(defaults.site);
    defaults.site = hdt_strdup("site-a"); /* the help's example */
    want = json_text(&defaults);
    got = json_text(&f);
    cr_expect_str_eq(got, want);
    free(got);
    hdt_conf_release(&fruit_schema, &f);

    for (char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        char *sign = at + strspn(at, " ");

        if (*sign == '#' && sign[1] != ' ') {
            memmove(sign, sign + 1, strlen(sign));
        }
    }
    cr_assert_eq(parse(text, &f, &err), HDT_OK, "%s: %s\n%s", err.where, err.msg, text);
    cr_expect_eq(f.peers.n, 1);
    cr_expect_str_eq(((struct fruit_peer *)f.peers.items)[0].name, "site-b");
    cr_expect_str_eq(((struct fruit_peer *)f.peers.items)[0].address, "CHANGE-ME");
    peers.peers = f.peers;
    hdt_conf_release(&fruit_schema, &peers);
    memset(&f.peers, 0, sizeof(f.peers));
    got = json_text(&f);
    cr_expect_str_eq(got, want);
    hdt_conf_release(&fruit_schema, &f);
    hdt_conf_release(&fruit_schema, &defaults);
    free(got);
    free(want);
    free(text);
}

Test(conf, json_round_trip_keeps_all)
{
    static const char text[] = "site: a\nratio: 0.1\nwords: [x, 'y z']\nwan: {chunk: 1MiB}\n"
                               "peers: [{name: b, address: c, weight: 3}, {name: d, address: e}]\n";
    struct hdt_error err = {0};
    struct fruit f, g;
    char *want, *got;
    json_t *json;

    cr_assert_eq(parse(text, &f, &err), HDT_OK);
    want = json_text(&f);
    json = json_loads(want, 0, NULL);
    cr_assert_eq(hdt_conf_from_json(&fruit_schema, json, "job 7", &g, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(json_integer_value(json_object_get(json, "timeout")), 10000);
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(json, "wan"), "chunk")),
                 1 << 20);
    got = json_text(&g);
    cr_expect_str_eq(got, want);
    json_decref(json);
    free(want);
    free(got);
    hdt_conf_release(&fruit_schema, &f);
    hdt_conf_release(&fruit_schema, &g);
}

Test(conf, json_is_checked_as_strictly)
{
    static const struct bad cases[] = {
        {"{\"site\": 3}", "job 7", "cannot set 'site': '3' is not a text", "quotes"},
        {"{\"site\": \"a\", \"sites\": 3}", "job 7", "unknown key 'sites'", "'site'"},
        {"{\"steps\": 3}", "job 7", "missing key 'site'", ""},
        {"{\"site\": \"a\", \"steps\": \"3\"}", "job 7",
         "cannot set 'steps': '3' is not a number: it is quoted text", ""},
        {"{\"site\": \"a\", \"timeout\": -1}", "job 7",
         "cannot set 'timeout': '-1' is not a quantity", "negative"},
        {"{\"site\": \"a\", \"timeout\": 1.5}", "job 7",
         "cannot set 'timeout': '1.5' is not a whole number", ""},
        {"{\"site\": \"a\", \"wan\": []}", "job 7",
         "cannot set 'wan': a section is needed here, not a list", ""},
        {"{\"site\": \"a\\u0000b\"}", "job 7", NULL, ""},
        {"[]", "job 7", "the settings must be 'key: value' lines", ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_error err = {0};
        struct fruit f;
        json_t *json = json_loads(cases[i].text, JSON_ALLOW_NUL, NULL);

        cr_assert(json, "%s", cases[i].text);
        cr_expect_eq(hdt_conf_from_json(&fruit_schema, json, "job 7", &f, &err), HDT_EINVAL);
        cr_expect_str_eq(err.where, "job 7");
        if (cases[i].msg) {
            cr_expect_str_eq(err.msg, cases[i].msg);
        }
        cr_expect(strstr(err.hint, cases[i].hint), "%s", err.hint);
        json_decref(json);
    }
}

Test(conf, quantities)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* UINT64_MAX: refused */
    } cases[] = {
        {"0", 0},
        {"123", 123},
        {"64KiB", 65536},
        {"64 kib", 65536},
        {"1.5GiB", 1610612736},
        {"1GB", 1000000000},
        {"0.5KB", 500},
        {"9223372036854775807", INT64_MAX},
        {"9223372036854775808", UINT64_MAX},
        {"8388608TiB", UINT64_MAX},
        {"0.0005KB", UINT64_MAX},
        {"", UINT64_MAX},
        {"KiB", UINT64_MAX},
        {"-1", UINT64_MAX},
        {"1.", UINT64_MAX},
        {".", UINT64_MAX},
        {"1..2KB", UINT64_MAX},
        {"1K", UINT64_MAX},
        {"1KiB ", UINT64_MAX},
        {"0x10", UINT64_MAX},
    };
    struct hdt_error err = {0};
    uint64_t value, rate;
    int64_t ms;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum hdt_status status = hdt_conf_parse_bytes(cases[i].text, &value, &err);

        if (cases[i].bytes == UINT64_MAX) {
            cr_expect_eq(status, HDT_EINVAL, "'%s' was taken as %llu", cases[i].text,
                         (unsigned long long)value);
        } else {
            cr_expect_eq(status, HDT_OK, "'%s'", cases[i].text);
            cr_expect_eq(value, cases[i].bytes, "'%s'", cases[i].text);
        }
    }
    cr_expect_eq(hdt_conf_parse_duration("2h", &ms, &err), HDT_OK);
    cr_expect_eq(ms, 7200000);
    cr_expect_eq(hdt_conf_parse_duration("0.5ms", &ms, &err), HDT_EINVAL);
    cr_expect_eq(hdt_conf_parse_duration("0", &ms, &err), HDT_OK);
    cr_expect_eq(hdt_conf_parse_rate("max", &rate, &err), HDT_OK);
    cr_expect_eq(rate, 0);
    cr_expect_eq(hdt_conf_parse_rate("0mbit", &rate, &err), HDT_EINVAL);
    cr_expect_eq(hdt_conf_parse_rate("200mbit", &rate, &err), HDT_OK);
    cr_expect_eq(rate, 200000000);
}

static char *explain(const char *key, enum hdt_status *status, struct hdt_error *err)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    *status = hdt_conf_explain(&fruit_schema, key, out, err);
    fclose(out);
    return text;
}

Test(conf, explain_names_type_bounds_default_and_help)
{
    struct hdt_error err = {0};
    enum hdt_status status;
    char *text = explain("wan.chunk", &status, &err);

    cr_expect_eq(status, HDT_OK);
    cr_expect_str_eq(text, "wan.chunk\n    (size, 64KiB to 64MiB; default 2MiB)\n"
                           "    Unit of sending.\n");
    free(text);
    text = explain("peers[3].name", &status, &err);
    cr_expect(strstr(text, "peers[].name\n    (text; required)\n"), "%s", text);
    free(text);
    text = explain("wan", &status, &err);
    cr_expect(strstr(text, "wan.rate\n"), "%s", text);
    free(text);
    text = explain(NULL, &status, &err);
    cr_expect(strstr(text, "site\n") && strstr(text, "peers[].tags\n"), "%s", text);
    free(text);
    text = explain("wan.chnk", &status, &err);
    cr_expect_eq(status, HDT_ENOENT);
    cr_expect_str_eq(err.hint, "did you mean 'wan.chunk'?");
    free(text);
}

Test(conf, mdoc_has_a_row_for_each_setting)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    hdt_conf_write_mdoc(&fruit_schema, out);
    fclose(out);
    cr_expect(strstr(text, ".It Cm wan.listen\n(text; default 0.0.0.0:7600)\n.br\n"
                           "Address and port.\nIPv6 too.\n"),
              "%s", text);
    free(text);
}

/* ---- a number, or "auto" ---- */

struct counted {
    int64_t n;
};
static const struct hdt_conf_row counted_rows[] = {
    HDT_CONF_COUNT(struct counted, n, "auto", 1, 64, "How many."),
    HDT_CONF_END,
};
static const struct hdt_conf_schema counted_schema = {
    .name = "counted", .help = "A number.", .rows = counted_rows, .size = sizeof(struct counted)};

static enum hdt_status count(const char *text, int64_t *n, struct hdt_error *err)
{
    struct counted counted = {.n = -1};
    const enum hdt_status status =
        hdt_conf_parse(&counted_schema, text, strlen(text), "c.yaml", &counted, NULL, err);

    if (status == HDT_OK) {
        *n = counted.n;
        hdt_conf_release(&counted_schema, &counted);
    }
    return status;
}

Test(conf, a_count_is_a_number_or_auto)
{
    struct hdt_error err = {0};
    int64_t n = -1;

    cr_assert_eq(count("{}", &n, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(n, 0);
    cr_assert_eq(count("n: 17", &n, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(n, 17);
    cr_assert_eq(count("n: auto", &n, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(n, 0);
    cr_expect_eq(count("n: 0", &n, &err), HDT_EINVAL);
    cr_expect_eq(count("n: 65", &n, &err), HDT_EINVAL);
    cr_expect_eq(count("n: automatic", &n, &err), HDT_EINVAL);
}

Test(conf, a_count_of_auto_is_itself_again_after_json)
{
    struct counted before = {.n = 0}, after = {.n = -1};
    struct hdt_error err = {0};
    json_t *json = hdt_conf_to_json(&counted_schema, &before);

    cr_expect_str_eq(json_string_value(json_object_get(json, "n")), "auto");
    cr_assert_eq(hdt_conf_from_json(&counted_schema, json, "c", &after, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_eq(after.n, 0);
    json_decref(json);
}

struct known {
    double tflops;
};
static const struct hdt_conf_row known_rows[] = {
    HDT_CONF_OPTIONAL(struct known, tflops, 0.1, 1e5, "Peak."),
    HDT_CONF_END,
};
static const struct hdt_conf_schema known_schema = {
    .name = "known", .help = "Help.", .rows = known_rows, .size = sizeof(struct known)};

static enum hdt_status known(const char *text, struct known *out, struct hdt_error *err)
{
    return hdt_conf_parse(&known_schema, text, strlen(text), "k.yaml", out, NULL, err);
}

Test(conf, an_optional_number_may_be_null)
{
    static const char *const nulls[] = {"{}", "tflops: null", "tflops: ~", "tflops:"};
    struct hdt_error err = {0};
    struct known k;

    for (size_t i = 0; i < sizeof(nulls) / sizeof(nulls[0]); i++) {
        k.tflops = 1;
        cr_assert_eq(known(nulls[i], &k, &err), HDT_OK, "%s", err.msg);
        cr_expect(isnan(k.tflops), "%s", nulls[i]);
    }
    cr_assert_eq(known("tflops: 312", &k, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(k.tflops, 312);
    cr_expect_eq(known("tflops: 0", &k, &err), HDT_EINVAL);
    cr_expect_str_eq(err.where, "k.yaml:1:9");
    cr_expect_eq(known("tflops: nan", &k, &err), HDT_EINVAL);
    cr_expect_eq(known("tflops: 'null'", &k, &err), HDT_EINVAL);
}

Test(conf, an_optional_number_is_itself_again_after_json)
{
    struct known before = {.tflops = NAN}, after = {.tflops = 1};
    struct hdt_error err = {0};
    json_t *json = hdt_conf_to_json(&known_schema, &before);

    cr_expect(json_is_null(json_object_get(json, "tflops")));
    cr_assert_eq(hdt_conf_from_json(&known_schema, json, "k", &after, &err), HDT_OK, "%s", err.msg);
    cr_expect(isnan(after.tflops));
    json_decref(json);
}

/* ---- writing ---- */

static char *written(const struct fruit *f)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    hdt_conf_write(&fruit_schema, f, out);
    cr_assert_eq(fclose(out), 0);
    return text;
}

Test(conf, what_is_written_is_not_a_default)
{
    static const char text[] = "site: 'a \"b\": c\\'\n"
                               "steps: 100\n"
                               "timeout: 90s\n"
                               "ratio: 0.1\n"
                               "codec: int8\n"
                               "words: ['1', x]\n"
                               "wan: {rate: 2.5gbit, chunk: 1.5MiB}\n"
                               "peers:\n"
                               "  - {name: b, address: 'h:1'}\n"
                               "  - {name: c, address: 'h:2', weight: 10, tags: []}\n";
    struct hdt_error err = {0};
    struct fruit f;
    char *got;

    cr_assert_eq(parse(text, &f, &err), HDT_OK, "%s: %s", err.where, err.msg);
    got = written(&f);
    cr_expect_str_eq(got, "site: \"a \\\"b\\\": c\\\\\"\n"
                          "timeout: \"90s\"\n"
                          "ratio: 0.1\n"
                          "codec: \"int8\"\n"
                          "words: [\"1\", \"x\"]\n"
                          "wan:\n"
                          "  rate: \"2500mbit\"\n"
                          "  chunk: \"1536KiB\"\n"
                          "peers:\n"
                          "  - {name: \"b\", address: \"h:1\"}\n"
                          "  - {name: \"c\", address: \"h:2\", weight: 10, tags: []}\n");
    free(got);
    hdt_conf_release(&fruit_schema, &f);
}

/* Also values without a unit of their own, and lists whose items do not fit a line. */
Test(conf, what_is_written_reads_back_the_same)
{
    static const char text[] = "{site: x, state: /a b/c, fast: false, ratio: 0.30000000000000004,"
                               " timeout: 100ms, words: ['', '#', 'null'],"
                               " wan: {listen: '', rate: max, chunk: 65537},"
                               " peers: [{name: long-long-long-long-long-long-long-long, address: "
                               "'[2001:db8::1]:7600, or more of it', weight: 3, tags: [q, r]}]}";
    struct hdt_error err = {0};
    struct fruit before, after;
    json_t *is, *was;
    char *got;

    cr_assert_eq(parse(text, &before, &err), HDT_OK, "%s: %s", err.where, err.msg);
    got = written(&before);
    cr_assert_eq(parse(got, &after, &err), HDT_OK, "%s: %s\n%s", err.where, err.msg, got);
    was = hdt_conf_to_json(&fruit_schema, &before);
    is = hdt_conf_to_json(&fruit_schema, &after);
    cr_expect(json_equal(was, is), "%s", got);
    json_decref(is);
    json_decref(was);
    free(got);
    hdt_conf_release(&fruit_schema, &before);
    hdt_conf_release(&fruit_schema, &after);
}
