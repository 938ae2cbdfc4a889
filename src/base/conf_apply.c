/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tree of nodes to a struct, by a table of rows.
 *
 * All of the tree is checked even after a problem was found, and the problem that stands first in
 * the file is the one reported: sections are visited in the order of a work list, which is not the
 * order that a reader corrects them in.
 */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 128

struct apply {
    const struct hdt_conf_schema *schema;
    struct hdt_conf_doc *doc;
    struct hdt_conf_work work;
    enum hdt_status status;
    bool is_missing;    /* the problem is a key that is not there */
    unsigned line, col; /* of the problem to be reported */
    struct hdt_error problem;
};

/* Keep `problem` if it stands before the one found so far. What is there and wrong comes before
 * what is missing: a missing key is often one that was written wrong. */
static void problem_note(struct apply *apply, unsigned line, unsigned col,
                         const struct hdt_error *problem)
{
    if (apply->status != HDT_OK && !apply->is_missing &&
        (line > apply->line || (line == apply->line && col >= apply->col))) {
        return;
    }
    apply->status = problem->status;
    apply->is_missing = false;
    apply->line = line;
    apply->col = col;
    apply->problem = *problem;
    hdt_conf_doc_where(apply->doc, line, col, &apply->problem);
}

/* A value's problem: `cause` gets the setting's name in front. */
static void value_refuse(struct apply *apply, int node, struct hdt_error *cause)
{
    char name[HDT_CONF_NAME_CAP];
    const struct hdt_conf_node *at = &apply->doc->nodes[node];

    hdt_error_prefix(cause, "cannot set '%s'", hdt_conf_doc_name(apply->doc, node, NULL, name));
    problem_note(apply, at->line, at->col, cause);
}

static void kind_refuse(struct apply *apply, int node, const char *need, const char *hint)
{
    static const char *const kinds[] = {"a single value", "a section", "a list"};
    struct hdt_error cause = {0};

    hdt_error_set(&cause, HDT_EINVAL, "%s is needed here, not %s", need,
                  kinds[apply->doc->nodes[node].kind]);
    hdt_error_hint(&cause, "%s", hint);
    value_refuse(apply, node, &cause);
}

/* The full name of a setting called `key` anywhere in the schema; false when there is none. */
static bool key_find_elsewhere(const struct apply *apply, const char *key,
                               char name[HDT_CONF_NAME_CAP])
{
    struct hdt_conf_walk walk;
    const struct hdt_conf_row *row;

    hdt_conf_walk_init(&walk, apply->schema->rows);
    while ((row = hdt_conf_walk_next(&walk))) {
        if (strcmp(row->name, key) == 0) {
            hdt_conf_walk_name(&walk, row, name);
            return true;
        }
    }
    return false;
}

static void unknown_hint(const struct apply *apply, const struct hdt_conf_row *rows,
                         const char *key, struct hdt_error *problem)
{
    struct hdt_near near;
    struct hdt_buf names = {0};
    char elsewhere[HDT_CONF_NAME_CAP];

    hdt_near_init(&near, key);
    for (const struct hdt_conf_row *row = rows; row->name; row++) {
        hdt_near_offer(&near, row->name);
        hdt_buf_appendf(&names, "%s%s", row == rows ? "" : ", ", row->name);
    }
    if (near.best) {
        hdt_error_hint(problem, "did you mean '%s'?", near.best);
    } else if (key_find_elsewhere(apply, key, elsewhere)) {
        hdt_error_hint(problem, "did you mean '%s'?", elsewhere);
    } else {
        hdt_error_hint(problem, "known here: %s", hdt_buf_str(&names));
    }
    hdt_buf_release(&names);
}

static void unknown_refuse(struct apply *apply, const struct hdt_conf_row *rows, int node)
{
    const struct hdt_conf_node *at = &apply->doc->nodes[node];
    struct hdt_error problem = {0};
    char name[HDT_CONF_NAME_CAP];

    if (apply->status != HDT_OK && !apply->is_missing && at->key_line >= apply->line) {
        return; /* a later one is not shown: spare the search for a hint */
    }
    hdt_error_set(&problem, HDT_EINVAL, "unknown key '%s'",
                  hdt_conf_doc_name(apply->doc, node, NULL, name));
    unknown_hint(apply, rows, at->key, &problem);
    problem_note(apply, at->key_line, at->key_col, &problem);
}

static void repeated_refuse(struct apply *apply, int node, int first)
{
    const struct hdt_conf_node *at = &apply->doc->nodes[node];
    struct hdt_error problem = {0};
    char name[HDT_CONF_NAME_CAP];

    hdt_error_set(&problem, HDT_EINVAL, "key '%s' is given twice, first on line %u",
                  hdt_conf_doc_name(apply->doc, node, NULL, name),
                  apply->doc->nodes[first].key_line);
    hdt_error_hint(&problem, "remove one of the two");
    problem_note(apply, at->key_line, at->key_col, &problem);
}

/* A required row that the section `node` does not have. */
static void missing_refuse(struct apply *apply, const struct hdt_conf_row *row, int node)
{
    const struct hdt_conf_node *at = &apply->doc->nodes[node];
    struct hdt_error problem = {0};
    char name[HDT_CONF_NAME_CAP];

    if (apply->status != HDT_OK && (!apply->is_missing || at->line > apply->line)) {
        return;
    }
    hdt_error_set(&problem, HDT_EINVAL, "missing key '%s'",
                  hdt_conf_doc_name(apply->doc, node, row->name, name));
    hdt_error_hint(&problem, "add it (%s): %s", hdt_conf_type_name(row), row->help);
    problem_note(apply, at->line, at->col, &problem);
    apply->is_missing = true;
}

/* Paths in a file are relative to its folder, defaults too, so that a folder with its settings can
 * be moved as a whole and a daemon's working folder does not matter. */
static void path_anchor(const struct hdt_conf_doc *doc, char **path)
{
    const char *slash = strrchr(doc->file, '/');
    char *joined;

    if (doc->is_json || !slash || !*path || !**path || **path == '/') {
        return;
    }
    joined = hdt_asprintf("%.*s%s", (int)(slash - doc->file + 1), doc->file, *path);
    free(*path);
    *path = joined;
}

static void scalar_apply(struct apply *apply, const struct hdt_conf_row *row, int node, void *field)
{
    const struct hdt_conf_node *at = &apply->doc->nodes[node];
    struct hdt_error cause = {0};

    if (at->kind != HDT_CONF_NODE_SCALAR) {
        kind_refuse(apply, node, "a single value", "write 'key: value' on one line");
        return;
    }
    if (hdt_conf_scalar_is_null(&at->scalar) && hdt_conf_row_is_optional(row)) {
        hdt_conf_value_default(row, field);
        return;
    }
    if (hdt_conf_scalar_is_null(&at->scalar)) {
        hdt_error_set(&cause, HDT_EINVAL, "it has no value");
        hdt_error_hint(&cause, "write a value (%s), or remove the key; empty text is \"\"",
                       hdt_conf_type_name(row));
        value_refuse(apply, node, &cause);
        return;
    }
    if (hdt_conf_value_set(row, &at->scalar, field, &cause) != HDT_OK) {
        value_refuse(apply, node, &cause);
    }
}

static void strings_apply(struct apply *apply, int node, struct hdt_conf_strings *strings)
{
    static const struct hdt_conf_row item_row = {.name = "item", .type = HDT_CONF_T_STRING};
    const struct hdt_conf_doc *doc = apply->doc;

    if (doc->nodes[node].kind != HDT_CONF_NODE_LIST) {
        kind_refuse(apply, node, "a list", "write [one, two], or '- one' on a line each");
        return;
    }
    for (int i = doc->nodes[node].first; i >= 0; i = doc->nodes[i].next) {
        strings->items = hdt_realloc(strings->items, (strings->n + 1) * sizeof(*strings->items));
        strings->items[strings->n] = NULL;
        scalar_apply(apply, &item_row, i, &strings->items[strings->n]);
        strings->n++;
    }
}

static void list_apply(struct apply *apply, const struct hdt_conf_row *row, int node,
                       struct hdt_conf_list *list)
{
    const struct hdt_conf_doc *doc = apply->doc;
    size_t n = 0;

    if (doc->nodes[node].kind != HDT_CONF_NODE_LIST) {
        kind_refuse(apply, node, "a list", "begin each entry with '- '");
        return;
    }
    for (int i = doc->nodes[node].first; i >= 0; i = doc->nodes[i].next) {
        n++;
    }
    list->items = hdt_calloc(n ? n : 1, row->item_size);
    list->n = n;
    n = 0;
    for (int i = doc->nodes[node].first; i >= 0; i = doc->nodes[i].next, n++) {
        char *item = (char *)list->items + n * row->item_size;

        if (doc->nodes[i].kind != HDT_CONF_NODE_MAP) {
            kind_refuse(apply, i, "a section", "write 'key: value' lines behind the '- '");
            continue;
        }
        hdt_conf_work_push(&apply->work,
                           (struct hdt_conf_work_item){.rows = row->rows, .obj = item, .node = i});
    }
}

/* The node of a section that the file does not have: an empty one at its parent's place. */
static int section_add(struct apply *apply, const struct hdt_conf_row *row, int parent)
{
    int node = hdt_conf_doc_add(apply->doc, parent, HDT_CONF_NODE_MAP);
    struct hdt_error problem = {0};

    if (node < 0) {
        hdt_error_set(&problem, HDT_EINVAL, "the settings have more than 65536 values");
        problem_note(apply, 0, 0, &problem);
        return -1;
    }
    apply->doc->nodes[node].key = hdt_strdup(row->name);
    apply->doc->nodes[node].line = apply->doc->nodes[parent].line;
    apply->doc->nodes[node].col = apply->doc->nodes[parent].col;
    return node;
}

static void section_apply(struct apply *apply, const struct hdt_conf_row *row, int node, void *obj)
{
    if (apply->doc->nodes[node].kind == HDT_CONF_NODE_SCALAR &&
        hdt_conf_scalar_is_null(&apply->doc->nodes[node].scalar)) {
        apply->doc->nodes[node].kind = HDT_CONF_NODE_MAP; /* "wan:" with nothing under it */
    }
    if (apply->doc->nodes[node].kind != HDT_CONF_NODE_MAP) {
        kind_refuse(apply, node, "a section", "write its settings indented on lines of their own");
        return;
    }
    hdt_conf_work_push(&apply->work,
                       (struct hdt_conf_work_item){.rows = row->rows, .obj = obj, .node = node});
}

static bool node_is_null(const struct hdt_conf_doc *doc, int node)
{
    return doc->nodes[node].kind == HDT_CONF_NODE_SCALAR &&
           hdt_conf_scalar_is_null(&doc->nodes[node].scalar);
}

/* One row of the section `parent`; `node` is its value or -1. */
static void row_apply(struct apply *apply, const struct hdt_conf_row *row, int parent, int node,
                      void *field)
{
    bool is_list = row->type == HDT_CONF_T_LIST || row->type == HDT_CONF_T_STRINGS;

    if (row->type == HDT_CONF_T_SECTION) {
        node = node < 0 ? section_add(apply, row, parent) : node;
        if (node >= 0) {
            section_apply(apply, row, node, field);
        }
        return;
    }
    if (node >= 0 && is_list && node_is_null(apply->doc, node)) {
        node = -1; /* "peers:" with nothing under it */
    }
    if (node < 0 && row->type == HDT_CONF_T_LIST) {
        return;
    }
    if (node < 0 && !row->def) {
        missing_refuse(apply, row, parent);
    } else if (node < 0) {
        hdt_conf_value_default(row, field);
    } else if (row->type == HDT_CONF_T_LIST) {
        list_apply(apply, row, node, field);
    } else if (row->type == HDT_CONF_T_STRINGS) {
        strings_apply(apply, node, field);
    } else {
        scalar_apply(apply, row, node, field);
    }
    if (row->type == HDT_CONF_T_PATH) {
        path_anchor(apply->doc, field);
    }
}

static size_t row_find(const struct hdt_conf_row *rows, const char *key)
{
    size_t i = 0;

    while (rows[i].name && strcmp(rows[i].name, key) != 0) {
        i++;
    }
    return i;
}

static void rows_apply(struct apply *apply, const struct hdt_conf_work_item *item)
{
    int given[ROWS_MAX];
    size_t i;

    memset(given, -1, sizeof(given));
    for (int node = apply->doc->nodes[item->node].first; node >= 0;
         node = apply->doc->nodes[node].next) {
        i = row_find(item->rows, apply->doc->nodes[node].key);
        HDT_ASSERT(i < ROWS_MAX);
        if (!item->rows[i].name) {
            unknown_refuse(apply, item->rows, node);
        } else if (given[i] >= 0) {
            repeated_refuse(apply, node, given[i]);
        } else {
            given[i] = node;
        }
    }
    for (i = 0; item->rows[i].name; i++) {
        row_apply(apply, &item->rows[i], item->node, given[i],
                  (char *)item->obj + item->rows[i].offset);
    }
}

/* The root must be a section; a file without any setting is an empty one. */
static void root_apply(struct apply *apply, void *out)
{
    struct hdt_conf_row root = {.name = "", .type = HDT_CONF_T_SECTION};

    root.rows = apply->schema->rows;
    if (apply->doc->n == 0) {
        hdt_conf_doc_add(apply->doc, -1, HDT_CONF_NODE_MAP);
        apply->doc->nodes[0].line = apply->doc->nodes[0].col = 1;
    }
    if (apply->doc->nodes[0].kind != HDT_CONF_NODE_MAP && !node_is_null(apply->doc, 0)) {
        struct hdt_error problem = {0};

        hdt_error_set(&problem, HDT_EINVAL, "the settings must be 'key: value' lines");
        hdt_error_hint(&problem, "'hdt config example %s' prints a file to start from",
                       apply->schema->name);
        problem_note(apply, apply->doc->nodes[0].line, apply->doc->nodes[0].col, &problem);
        return;
    }
    section_apply(apply, &root, 0, out);
}

enum hdt_status hdt_conf_apply(const struct hdt_conf_schema *schema, struct hdt_conf_doc *doc,
                               void *out, struct hdt_error *err)
{
    struct apply *apply = hdt_calloc(1, sizeof(*apply));
    struct hdt_conf_work_item item;
    enum hdt_status status;

    apply->schema = schema;
    apply->doc = doc;
    memset(out, 0, schema->size);
    root_apply(apply, out);
    while (hdt_conf_work_pop(&apply->work, &item)) {
        rows_apply(apply, &item);
    }
    hdt_conf_work_release(&apply->work);
    status = apply->status;
    if (status != HDT_OK) {
        hdt_conf_release(schema, out);
        if (err) {
            *err = apply->problem;
        }
    }
    free(apply);
    return status;
}
