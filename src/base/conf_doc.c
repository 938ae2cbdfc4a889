/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct hdt_conf_doc *hdt_conf_doc_new(const char *file, bool is_json)
{
    struct hdt_conf_doc *doc = hdt_calloc(1, sizeof(*doc));

    doc->file = hdt_strdup(file);
    doc->is_json = is_json;
    return doc;
}

void hdt_conf_doc_free(struct hdt_conf_doc *doc)
{
    if (!doc) {
        return;
    }
    for (int i = 0; i < doc->n; i++) {
        free(doc->nodes[i].key);
        free(doc->nodes[i].scalar.text);
    }
    free(doc->nodes);
    free(doc->file);
    free(doc);
}

static void child_link(struct hdt_conf_doc *doc, int parent, int child)
{
    struct hdt_conf_node *up = &doc->nodes[parent];

    if (up->last < 0) {
        up->first = child;
    } else {
        doc->nodes[up->last].next = child;
        doc->nodes[child].item = doc->nodes[up->last].item + 1;
    }
    up->last = child;
}

int hdt_conf_doc_add(struct hdt_conf_doc *doc, int parent, enum hdt_conf_node_kind kind)
{
    struct hdt_conf_node *node;
    int idx = doc->n;

    if (idx == HDT_CONF_NODE_MAX) {
        return -1;
    }
    if (idx == doc->cap) {
        doc->cap = doc->cap ? 2 * doc->cap : 64;
        doc->nodes = hdt_realloc(doc->nodes, (size_t)doc->cap * sizeof(*doc->nodes));
    }
    doc->n++;
    node = &doc->nodes[idx];
    memset(node, 0, sizeof(*node));
    node->kind = kind;
    node->parent = parent;
    node->first = node->last = node->next = -1;
    if (parent >= 0) {
        child_link(doc, parent, idx);
    }
    return idx;
}

int hdt_conf_doc_child(const struct hdt_conf_doc *doc, int node, const char *key)
{
    for (int i = doc->nodes[node].first; i >= 0; i = doc->nodes[i].next) {
        if (doc->nodes[i].key && strcmp(doc->nodes[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}

static void name_append(char *buf, size_t *used, const char *text)
{
    for (; *text && *used + 1 < HDT_CONF_NAME_CAP; text++) {
        buf[(*used)++] = isprint((unsigned char)*text) ? *text : '?';
    }
    buf[*used] = '\0';
}

char *hdt_conf_doc_name(const struct hdt_conf_doc *doc, int node, const char *name,
                        char buf[HDT_CONF_NAME_CAP])
{
    int way[HDT_CONF_LEVEL_MAX + 2];
    int n_way = 0;
    size_t used = 0;
    char item[32];

    for (; node > 0 && n_way < HDT_CONF_LEVEL_MAX + 2; node = doc->nodes[node].parent) {
        way[n_way++] = node;
    }
    buf[0] = '\0';
    while (n_way-- > 0) {
        const struct hdt_conf_node *at = &doc->nodes[way[n_way]];

        if (at->key) {
            name_append(buf, &used, used ? "." : "");
            name_append(buf, &used, at->key);
        } else {
            snprintf(item, sizeof(item), "[%zu]", at->item);
            name_append(buf, &used, item);
        }
    }
    if (name) {
        name_append(buf, &used, used ? "." : "");
        name_append(buf, &used, name);
    }
    return buf;
}

void hdt_conf_doc_where(const struct hdt_conf_doc *doc, unsigned line, unsigned col,
                        struct hdt_error *err)
{
    if (doc->is_json || line == 0) {
        hdt_error_where(err, "%s", doc->file);
    } else {
        hdt_error_where(err, "%s:%u:%u", doc->file, line, col);
    }
}

/* One step of a key: the member up to '.' or '[', or the item "[N]". Moves *key behind it. Returns
 * the child, or -1 when there is none. */
static int key_step(const struct hdt_conf_doc *doc, int node, const char **key)
{
    char name[HDT_CONF_NAME_CAP];
    size_t len, item;
    char *end;
    int i;

    if (**key == '[') {
        item = strtoul(*key + 1, &end, 10);
        *key = *end == ']' ? end + 1 : end + strlen(end);
        for (i = doc->nodes[node].first; i >= 0 && doc->nodes[i].item != item;) {
            i = doc->nodes[i].next;
        }
        return i;
    }
    *key += **key == '.';
    len = strcspn(*key, ".[");
    snprintf(name, sizeof(name), "%.*s", (int)(len < sizeof(name) ? len : 0), *key);
    *key += len;
    return hdt_conf_doc_child(doc, node, name);
}

bool hdt_conf_has(const struct hdt_conf_doc *doc, const char *key)
{
    int node = doc && doc->n > 0 ? 0 : -1;

    while (*key && node >= 0) {
        node = key_step(doc, node, &key);
    }
    return node > 0 && doc->nodes[node].line > 0;
}

enum hdt_status hdt_conf_error(const struct hdt_conf_doc *doc, const char *key,
                               struct hdt_error *err, enum hdt_status status, const char *fmt, ...)
{
    char text[HDT_ERROR_MSG_CAP];
    va_list ap;
    int node = 0, child;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    hdt_error_set(err, status, "%s", text);
    if (!doc || doc->n == 0) {
        return status;
    }
    while (*key && (child = key_step(doc, node, &key)) >= 0) {
        node = child;
    }
    hdt_conf_doc_where(doc, doc->nodes[node].line, doc->nodes[node].col, err);
    return status;
}
