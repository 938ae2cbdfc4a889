/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static json_t *strings_to_json(const struct hdt_conf_strings *strings)
{
    json_t *array = json_array();

    for (size_t i = 0; i < strings->n; i++) {
        json_array_append_new(array, json_string(strings->items[i]));
    }
    return array;
}

/* The list's items as empty objects of `array`, each pushed to be filled. */
static json_t *list_to_json(const struct hdt_conf_row *row, const struct hdt_conf_list *list,
                            struct hdt_conf_work *work)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->n; i++) {
        json_t *object = json_object();

        json_array_append_new(array, object);
        hdt_conf_work_push(
            work, (struct hdt_conf_work_item){.rows = row->rows,
                                              .obj = (char *)list->items + i * row->item_size,
                                              .extra = object});
    }
    return array;
}

/* The field as JSON, a new reference; NULL: text that was never set. */
static json_t *field_to_json(const struct hdt_conf_row *row, void *field,
                             struct hdt_conf_work *work)
{
    json_t *object;

    switch (row->type) {
    case HDT_CONF_T_STRING:
    case HDT_CONF_T_PATH:
        return *(char **)field ? json_string(*(char **)field) : NULL;
    case HDT_CONF_T_BOOL:
        return json_boolean(*(bool *)field);
    case HDT_CONF_T_COUNT:
        if (*(int64_t *)field == 0) {
            return json_string("auto");
        }
        /* fall through */
    case HDT_CONF_T_INT:
    case HDT_CONF_T_DURATION:
        return json_integer(*(int64_t *)field);
    case HDT_CONF_T_BYTES:
    case HDT_CONF_T_RATE:
        return json_integer((json_int_t) * (uint64_t *)field);
    case HDT_CONF_T_FLOAT:
        return isnan(*(double *)field) ? json_null() : json_real(*(double *)field);
    case HDT_CONF_T_ENUM:
        return json_string(row->names[*(int *)field]);
    case HDT_CONF_T_STRINGS:
        return strings_to_json(field);
    case HDT_CONF_T_LIST:
        return list_to_json(row, field, work);
    case HDT_CONF_T_SECTION:
        object = json_object();
        hdt_conf_work_push(
            work, (struct hdt_conf_work_item){.rows = row->rows, .obj = field, .extra = object});
        return object;
    }
    return NULL;
}

json_t *hdt_conf_to_json(const struct hdt_conf_schema *schema, const void *obj)
{
    struct hdt_conf_work work = {0};
    struct hdt_conf_work_item item = {.rows = schema->rows, .obj = (void *)obj};
    json_t *root = json_object();

    HDT_ASSERT(root);
    item.extra = root;
    do {
        for (const struct hdt_conf_row *row = item.rows; row->name; row++) {
            json_t *value = field_to_json(row, (char *)item.obj + row->offset, &work);

            if (value) {
                json_object_set_new(item.extra, row->name, value);
            }
        }
    } while (hdt_conf_work_pop(&work, &item));
    hdt_conf_work_release(&work);
    return root;
}

/* A scalar's text, as the checker reads it; NULL for text with a zero byte. */
static char *scalar_text(const json_t *json)
{
    char buf[64];

    switch (json_typeof(json)) {
    case JSON_STRING:
        if (strlen(json_string_value(json)) != json_string_length(json)) {
            return NULL;
        }
        return hdt_strdup(json_string_value(json));
    case JSON_INTEGER:
        return hdt_asprintf("%" JSON_INTEGER_FORMAT, json_integer_value(json));
    case JSON_REAL:
        snprintf(buf, sizeof(buf), "%.17g", json_real_value(json));
        return hdt_strdup(buf);
    case JSON_TRUE:
        return hdt_strdup("true");
    case JSON_FALSE:
        return hdt_strdup("false");
    default:
        return hdt_strdup("");
    }
}

/* Add one JSON value under `parent`; false: too many values or text with a zero byte. Takes `key`
 * (NULL in a list). A container is pushed, its members are added when it is popped. */
static bool node_add(struct hdt_conf_doc *doc, struct hdt_conf_work *work, int parent,
                     const char *key, const json_t *json)
{
    enum hdt_conf_node_kind kind = json_is_object(json)  ? HDT_CONF_NODE_MAP
                                   : json_is_array(json) ? HDT_CONF_NODE_LIST
                                                         : HDT_CONF_NODE_SCALAR;
    int idx = hdt_conf_doc_add(doc, parent, kind);
    struct hdt_conf_scalar *scalar;

    if (idx < 0) {
        return false;
    }
    doc->nodes[idx].key = key ? hdt_strdup(key) : NULL;
    if (kind != HDT_CONF_NODE_SCALAR) {
        hdt_conf_work_push(work, (struct hdt_conf_work_item){.node = idx, .extra = (void *)json});
        return true;
    }
    scalar = &doc->nodes[idx].scalar;
    scalar->text = scalar_text(json);
    scalar->len = scalar->text ? strlen(scalar->text) : 0;
    scalar->plain = !json_is_string(json);
    scalar->json = true;
    return scalar->text != NULL;
}

static bool members_add(struct hdt_conf_doc *doc, struct hdt_conf_work *work,
                        const struct hdt_conf_work_item *item)
{
    json_t *json = item->extra, *value;
    const char *key;
    size_t i;

    if (json_is_array(json)) {
        json_array_foreach(json, i, value)
        {
            if (!node_add(doc, work, item->node, NULL, value)) {
                return false;
            }
        }
        return true;
    }
    json_object_foreach(json, key, value)
    {
        if (!node_add(doc, work, item->node, key, value)) {
            return false;
        }
    }
    return true;
}

/* Depth needs no limit here: nothing recurses, and a level that the table does not have is refused
 * by the checker as an unknown key. */
static bool json_read(const json_t *json, struct hdt_conf_doc *doc)
{
    struct hdt_conf_work work = {0};
    struct hdt_conf_work_item item;
    bool ok = node_add(doc, &work, -1, NULL, json);

    while (ok && hdt_conf_work_pop(&work, &item)) {
        ok = members_add(doc, &work, &item);
    }
    hdt_conf_work_release(&work);
    return ok;
}

enum hdt_status hdt_conf_from_json(const struct hdt_conf_schema *schema, const json_t *json,
                                   const char *where, void *out, struct hdt_error *err)
{
    struct hdt_conf_doc *doc = hdt_conf_doc_new(where, true);
    enum hdt_status status;

    if (json_read(json, doc)) {
        status = hdt_conf_apply(schema, doc, out, err);
    } else {
        status = hdt_error_set(err, HDT_EINVAL,
                               "cannot read settings: more than 65536 values, or a zero byte in "
                               "text");
        hdt_error_where(err, "%s", where);
    }
    hdt_conf_doc_free(doc);
    return status;
}
