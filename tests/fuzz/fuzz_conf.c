/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings from hostile text. What is taken must survive the way to JSON and back unchanged; what
 * is refused must come with a message. The table has every type, nested.
 */
#include "config.h"

#include "src/base/conf.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct inner {
    char *name;
    uint64_t size;
    struct hdt_conf_strings words;
};
struct outer {
    char *path;
    bool on;
    int64_t count, wait;
    uint64_t rate;
    double ratio, maybe;
    int kind;
    struct inner section;
    struct hdt_conf_list list;
};

static const char *const kinds[] = {"none", "one", "two", NULL};
static const struct hdt_conf_row inner_rows[] = {
    HDT_CONF_STRING(struct inner, name, "x", "Text."),
    HDT_CONF_BYTES(struct inner, size, "2MiB", 1, 1e15, "Size."),
    HDT_CONF_STRINGS(struct inner, words, "a, b", "Words."),
    HDT_CONF_END,
};
static const struct hdt_conf_row outer_rows[] = {
    HDT_CONF_PATH(struct outer, path, "p", "Path."),
    HDT_CONF_BOOL(struct outer, on, "true", "Switch."),
    HDT_CONF_INT(struct outer, count, "1", -5, 5, "Count."),
    HDT_CONF_DURATION(struct outer, wait, "1s", 0, 0, "Wait."),
    HDT_CONF_RATE(struct outer, rate, "max", "Rate."),
    HDT_CONF_FLOAT(struct outer, ratio, "0.5", 0, 0, "Ratio."),
    HDT_CONF_OPTIONAL(struct outer, maybe, 0, 0, "Perhaps."),
    HDT_CONF_ENUM(struct outer, kind, "one", kinds, "Kind."),
    HDT_CONF_SECTION(struct outer, section, inner_rows, "Section."),
    HDT_CONF_LIST(struct outer, list, inner_rows, struct inner, "List."),
    HDT_CONF_END,
};
static const struct hdt_conf_schema schema = {
    .name = "fuzz", .help = "Fuzz.", .rows = outer_rows, .size = sizeof(struct outer)};

static void round_trip_check(const struct outer *conf)
{
    json_t *json = hdt_conf_to_json(&schema, conf), *again;
    struct hdt_error err = {0};
    struct outer copy;

    HDT_ASSERT(hdt_conf_from_json(&schema, json, "fuzz", &copy, &err) == HDT_OK);
    again = hdt_conf_to_json(&schema, &copy);
    HDT_ASSERT(json_equal(json, again));
    json_decref(json);
    json_decref(again);
    hdt_conf_release(&schema, &copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hdt_error err = {0};
    struct hdt_conf_doc *doc;
    struct outer conf;
    json_t *json;

    if (hdt_conf_parse(&schema, (const char *)data, size, "fuzz", &conf, &doc, &err) == HDT_OK) {
        round_trip_check(&conf);
        hdt_conf_error(doc, "list[1].words[0]", &err, HDT_EINVAL, "x");
        hdt_conf_release(&schema, &conf);
        hdt_conf_doc_free(doc);
    } else {
        HDT_ASSERT(err.status != HDT_OK && err.msg[0]);
    }
    json = json_loadb((const char *)data, size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    if (json && hdt_conf_from_json(&schema, json, "fuzz", &conf, &err) == HDT_OK) {
        round_trip_check(&conf);
        hdt_conf_release(&schema, &conf);
    }
    json_decref(json);
    return 0;
}
