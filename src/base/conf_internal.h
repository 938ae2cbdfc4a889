/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_CONF_INTERNAL_H
#define HDT_BASE_CONF_INTERNAL_H

/*
 * What the files of conf share; nobody else includes this.
 *
 * Text becomes a tree of nodes first (conf_yaml.c from YAML, conf_json.c from JSON), with the place
 * of each value; one checker (conf.c) then fills the struct from the tree by the table of rows. So
 * a setting is checked in the same way wherever it comes from, and the tree that is left over is
 * the document that later errors look their line up in.
 *
 * Nothing recurses: trees are walked by indices, tables by an explicit stack.
 */
#include "src/base/conf.h"
#include "src/base/near.h"

#define HDT_CONF_TEXT_MAX  (1u << 20)
#define HDT_CONF_NODE_MAX  65536
#define HDT_CONF_LEVEL_MAX 32
#define HDT_CONF_NAME_CAP  192 /* full name of a setting, in messages */
#define HDT_CONF_VALUE_CAP 64  /* a value as text; longer strings are cut */

enum hdt_conf_node_kind { HDT_CONF_NODE_SCALAR, HDT_CONF_NODE_MAP, HDT_CONF_NODE_LIST };

struct hdt_conf_scalar {
    char *text; /* owned by the document; always terminated */
    size_t len;
    bool plain; /* YAML: not quoted; JSON: not a string */
    bool json;  /* a plain number is in the field's own unit then */
};

struct hdt_conf_node {
    enum hdt_conf_node_kind kind;
    char *key;   /* NULL in a list and at the root */
    size_t item; /* position among its siblings */
    struct hdt_conf_scalar scalar;
    unsigned line, col;            /* of the value, from 1; 0: unknown */
    unsigned key_line, key_col;    /* of the key */
    int parent, first, last, next; /* indices of nodes; -1: none */
};

struct hdt_conf_doc {
    char *file;
    bool is_json;
    struct hdt_conf_node *nodes; /* nodes[0] is the root once n > 0 */
    int n, cap;
};

/* conf_doc.c: the tree. */
struct hdt_conf_doc *hdt_conf_doc_new(const char *file, bool is_json);

/* Append a node under `parent` (-1: the root); returns its index, -1 when the document has
 * HDT_CONF_NODE_MAX nodes already. The returned node's strings are to be filled by the caller. */
int hdt_conf_doc_add(struct hdt_conf_doc *doc, int parent, enum hdt_conf_node_kind kind);

/* Child of `node` named `key`, or -1. */
int hdt_conf_doc_child(const struct hdt_conf_doc *doc, int node, const char *key);

/* "peers[1].address": the full name of `node`, followed by `.name` if given. Text that is not
 * printable is shown as '?'. Returns buf. */
char *hdt_conf_doc_name(const struct hdt_conf_doc *doc, int node, const char *name,
                        char buf[HDT_CONF_NAME_CAP]);

/* Set err->where to a place in the document (line 0: only the file). */
void hdt_conf_doc_where(const struct hdt_conf_doc *doc, unsigned line, unsigned col,
                        struct hdt_error *err);

/* conf_yaml.c */
enum hdt_status hdt_conf_yaml_read(const char *text, size_t len, struct hdt_conf_doc *doc,
                                   struct hdt_error *err);

/* conf_apply.c: fill *out from the tree. On failure nothing is to be released. Sections that were
 * not given are added to the tree, so that later errors find a place for their settings. */
enum hdt_status hdt_conf_apply(const struct hdt_conf_schema *schema, struct hdt_conf_doc *doc,
                               void *out, struct hdt_error *err);

/* conf_value.c: one value. */

/* Parse `scalar` into the field of a scalar row. The message is only the cause ("...: 'x' is not a
 * number"); the caller puts the setting's name in front. Frees nothing, owns nothing on failure. */
enum hdt_status hdt_conf_value_set(const struct hdt_conf_row *row,
                                   const struct hdt_conf_scalar *scalar, void *field,
                                   struct hdt_error *err);
/* The same from the row's own default, which must be valid. STRINGS too. */
void hdt_conf_value_default(const struct hdt_conf_row *row, void *field);

/* What kind of value the row takes, as "size in bytes". */
const char *hdt_conf_type_name(const struct hdt_conf_row *row);
/* A bound (row->min or row->max) in the row's unit. */
char *hdt_conf_bound_format(const struct hdt_conf_row *row, double bound,
                            char buf[HDT_CONF_VALUE_CAP]);
/* A number in as few digits as read back to it. Returns buf. */
char *hdt_conf_number_format(double value, char buf[HDT_CONF_VALUE_CAP]);
bool hdt_conf_row_is_bounded(const struct hdt_conf_row *row);

/* A number that may be null. */
bool hdt_conf_row_is_optional(const struct hdt_conf_row *row);

/* Plain and empty, "~" or "null": nothing was given. */
bool hdt_conf_scalar_is_null(const struct hdt_conf_scalar *scalar);

/* Copy at most HDT_CONF_VALUE_CAP - 1 bytes of foreign text, with '?' for what is not printable. */
char *hdt_conf_text_clean(const char *text, size_t len, char buf[HDT_CONF_VALUE_CAP]);

/* conf_walk.c: every row of a table in order, sections and list items entered after their row. */
struct hdt_conf_walk {
    const struct hdt_conf_row *next[HDT_CONF_LEVEL_MAX];
    const struct hdt_conf_row *owner[HDT_CONF_LEVEL_MAX]; /* row whose rows these are */
    int depth;                                            /* of the row returned last */
    int enter;                                            /* depth of the next row */
};
void hdt_conf_walk_init(struct hdt_conf_walk *walk, const struct hdt_conf_row *rows);
/* The next row, NULL at the end. */
const struct hdt_conf_row *hdt_conf_walk_next(struct hdt_conf_walk *walk);
/* Full name of the row returned last: "wan.listen", "peers[].address". Returns buf. */
char *hdt_conf_walk_name(const struct hdt_conf_walk *walk, const struct hdt_conf_row *row,
                         char buf[HDT_CONF_NAME_CAP]);

/* Objects still to be visited: a growing stack instead of recursion. */
struct hdt_conf_work_item {
    const struct hdt_conf_row *rows;
    void *obj;
    int node;    /* conf_apply.c: the tree's node */
    void *extra; /* conf_json.c: the json_t that mirrors obj */
};
struct hdt_conf_work {
    struct hdt_conf_work_item *items;
    size_t n, cap;
};
void hdt_conf_work_push(struct hdt_conf_work *work, struct hdt_conf_work_item item);
bool hdt_conf_work_pop(struct hdt_conf_work *work, struct hdt_conf_work_item *item);
void hdt_conf_work_release(struct hdt_conf_work *work);

#endif /* HDT_BASE_CONF_INTERNAL_H */
