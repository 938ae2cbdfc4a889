/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as YAML: what differs from the defaults, one setting a line, items of lists in one line
 * each. */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_COLS 96

/* Settings of `rows` as JSON, and the same with every default. */
struct pruned {
    const struct hdt_conf_row *rows;
    json_t *is, *defaults; /* of `defaults` a reference is held */
};
struct prune_work {
    struct pruned *items;
    size_t n, cap;
};

static void prune_push(struct prune_work *work, const struct hdt_conf_row *rows, json_t *is,
                       json_t *defaults)
{
    if (work->n == work->cap) {
        work->cap = work->cap ? 2 * work->cap : 16;
        work->items = hdt_realloc(work->items, work->cap * sizeof(work->items[0]));
    }
    work->items[work->n++] = (struct pruned){rows, is, defaults};
}

/* Defaults of an item of a list, a new reference. */
static json_t *item_defaults(const struct hdt_conf_row *row)
{
    struct hdt_conf_schema schema = {.rows = row->rows, .size = row->item_size};
    void *item = hdt_calloc(1, row->item_size);
    json_t *json;

    hdt_conf_defaults(&schema, item);
    json = hdt_conf_to_json(&schema, item);
    hdt_conf_release(&schema, item);
    free(item);
    return json;
}

/* Numbers whose unit the file must say. */
static void quantity_name(const struct hdt_conf_row *row, json_t *is)
{
    json_t *value = json_object_get(is, row->name);
    char buf[HDT_CONF_VALUE_CAP] = "max";

    if (!json_is_integer(value)) {
        return;
    }
    if (json_integer_value(value) != 0) {
        hdt_conf_bound_format(row, (double)json_integer_value(value), buf);
    } else if (row->type != HDT_CONF_T_RATE) {
        snprintf(buf, sizeof(buf), row->type == HDT_CONF_T_DURATION ? "0ms" : "0");
    }
    json_object_set_new(is, row->name, json_string(buf));
}

static void row_prune(struct prune_work *work, const struct pruned *p,
                      const struct hdt_conf_row *row)
{
    json_t *is = json_object_get(p->is, row->name), *item, *defaults;
    size_t i;

    if (row->type == HDT_CONF_T_SECTION) {
        prune_push(work, row->rows, is, json_incref(json_object_get(p->defaults, row->name)));
    } else if (row->type == HDT_CONF_T_LIST && json_array_size(is) > 0) {
        defaults = item_defaults(row);
        json_array_foreach(is, i, item)
        {
            prune_push(work, row->rows, item, json_incref(defaults));
        }
        json_decref(defaults);
    } else if (row->type == HDT_CONF_T_LIST ||
               (row->def && json_equal(is, json_object_get(p->defaults, row->name)))) {
        json_object_del(p->is, row->name);
    } else if (row->type == HDT_CONF_T_RATE || row->type == HDT_CONF_T_DURATION ||
               row->type == HDT_CONF_T_BYTES) {
        quantity_name(row, p->is);
    }
}

static void prune(const struct hdt_conf_schema *schema, json_t *root)
{
    struct prune_work work = {0};
    void *defaults = hdt_calloc(1, schema->size);

    hdt_conf_defaults(schema, defaults);
    prune_push(&work, schema->rows, root, hdt_conf_to_json(schema, defaults));
    while (work.n > 0) {
        struct pruned p = work.items[--work.n];

        for (const struct hdt_conf_row *row = p.rows; row->name; row++) {
            row_prune(&work, &p, row);
        }
        json_decref(p.defaults);
    }
    hdt_conf_release(schema, defaults);
    free(defaults);
    free(work.items);
}

/* Copy a text with its quotes, or a key without; returns what follows. Keys are names of settings.
 */
static const char *string_copy(struct hdt_buf *out, const char *text)
{
    const char *end = text + 1;

    while (*end != '"') {
        end += *end == '\\' ? 2 : 1;
    }
    end++;
    if (*end == ':') {
        hdt_buf_append(out, text + 1, (size_t)(end - text) - 2);
    } else {
        hdt_buf_append(out, text, (size_t)(end - text));
    }
    return end;
}

/* The same for a number, in as few digits as it needs. */
static const char *number_copy(struct hdt_buf *out, const char *text)
{
    char *end, buf[HDT_CONF_VALUE_CAP];
    double value = strtod(text, &end);

    if (strcspn(text, ".e") < (size_t)(end - text)) {
        hdt_buf_append_str(out, hdt_conf_number_format(value, buf));
    } else {
        hdt_buf_append(out, text, (size_t)(end - text));
    }
    return end;
}

/* JSON in one line, which is YAML. free() */
static char *flow_text(const json_t *json)
{
    char *text = json_dumps(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    struct hdt_buf out = {0};

    HDT_ASSERT(text);
    for (const char *at = text; *at;) {
        if (*at == '"') {
            at = string_copy(&out, at);
        } else if (*at == '-' || (*at >= '0' && *at <= '9')) {
            at = number_copy(&out, at);
        } else {
            hdt_buf_append(&out, at++, 1);
        }
    }
    free(text);
    return hdt_buf_detach(&out);
}

static void flow_write(const json_t *json, FILE *out)
{
    char *text = flow_text(json);

    fprintf(out, "%s\n", text);
    free(text);
}

static bool is_of_objects(const json_t *json)
{
    return json_is_array(json) && json_is_object(json_array_get(json, 0));
}

/* An item of a list: in one line, or where that is long, one line a setting and an item below. */
static void item_write(json_t *item, FILE *out)
{
    char *text = flow_text(item);
    const char *key, *mark = "- ";
    json_t *value, *inner;
    size_t i;

    if (strlen(text) <= LINE_MAX_COLS || json_object_size(item) == 0) {
        fprintf(out, "  - %s\n", text);
        free(text);
        return;
    }
    free(text);
    json_object_foreach(item, key, value)
    {
        fprintf(out, "  %s%s:", mark, key);
        mark = "  ";
        if (!is_of_objects(value)) {
            putc(' ', out);
            flow_write(value, out);
            continue;
        }
        putc('\n', out);
        json_array_foreach(value, i, inner)
        {
            fprintf(out, "      - ");
            flow_write(inner, out);
        }
    }
}

static void setting_write(const char *key, json_t *value, FILE *out)
{
    const char *name;
    json_t *inner;
    size_t i;

    if (json_is_object(value)) {
        if (json_object_size(value) > 0) {
            fprintf(out, "%s:\n", key);
        }
        json_object_foreach(value, name, inner)
        {
            fprintf(out, "  %s: ", name);
            flow_write(inner, out);
        }
    } else if (is_of_objects(value)) {
        fprintf(out, "%s:\n", key);
        json_array_foreach(value, i, inner)
        {
            item_write(inner, out);
        }
    } else {
        fprintf(out, "%s: ", key);
        flow_write(value, out);
    }
}

void hdt_conf_write(const struct hdt_conf_schema *schema, const void *obj, FILE *out)
{
    json_t *root = hdt_conf_to_json(schema, obj), *value;
    const char *key;

    prune(schema, root);
    json_object_foreach(root, key, value)
    {
        setting_write(key, value, out);
    }
    json_decref(root);
}
