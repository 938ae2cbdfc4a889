/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/conf.h"
#include "src/base/conf_internal.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <stdlib.h>
#include <string.h>

enum hdt_status hdt_conf_parse(const struct hdt_conf_schema *schema, const char *text, size_t len,
                               const char *file, void *out, struct hdt_conf_doc **doc,
                               struct hdt_error *err)
{
    struct hdt_conf_doc *tree = hdt_conf_doc_new(file, false);
    enum hdt_status status;

    if (len > HDT_CONF_TEXT_MAX) {
        status = hdt_error_set(err, HDT_EINVAL, "cannot read settings: more than 1 MiB of text");
        hdt_error_where(err, "%s", file);
        hdt_error_hint(err, "settings files are small; is this the right file?");
    } else {
        status = hdt_conf_yaml_read(text, len, tree, err);
    }
    if (status == HDT_OK) {
        status = hdt_conf_apply(schema, tree, out, err);
    }
    if (status == HDT_OK && doc) {
        *doc = tree;
    } else {
        hdt_conf_doc_free(tree);
    }
    return status;
}

enum hdt_status hdt_conf_load(const struct hdt_conf_schema *schema, const char *path, void *out,
                              struct hdt_conf_doc **doc, struct hdt_error *err)
{
    struct hdt_buf text = {0};
    enum hdt_status status = hdt_file_read(path, HDT_CONF_TEXT_MAX, &text, err);

    if (status == HDT_OK) {
        status = hdt_conf_parse(schema, hdt_buf_str(&text), text.len, path, out, doc, err);
    } else {
        hdt_error_prefix(err, "cannot read %s settings", schema->name);
        hdt_error_hint(err, "'hdt config example %s' prints a file to start from", schema->name);
    }
    hdt_buf_release(&text);
    return status;
}

void hdt_conf_defaults(const struct hdt_conf_schema *schema, void *out)
{
    struct hdt_conf_work work = {0};
    struct hdt_conf_work_item item = {.rows = schema->rows, .obj = out};

    memset(out, 0, schema->size);
    do {
        for (const struct hdt_conf_row *row = item.rows; row->name; row++) {
            void *field = (char *)item.obj + row->offset;

            if (row->type == HDT_CONF_T_SECTION) {
                hdt_conf_work_push(&work,
                                   (struct hdt_conf_work_item){.rows = row->rows, .obj = field});
            } else if (row->type != HDT_CONF_T_LIST) {
                hdt_conf_value_default(row, field);
            }
        }
    } while (hdt_conf_work_pop(&work, &item));
    hdt_conf_work_release(&work);
}

static void strings_release(struct hdt_conf_strings *strings)
{
    for (size_t i = 0; i < strings->n; i++) {
        free(strings->items[i]);
    }
    free(strings->items);
}

/* Free what the rows of one object own; its sections and list items go to the work list, the
 * memory of a list to `lists`, to be freed when its items have been visited. */
static void rows_release(const struct hdt_conf_work_item *item, struct hdt_conf_work *work,
                         struct hdt_conf_work *lists)
{
    for (const struct hdt_conf_row *row = item->rows; row->name; row++) {
        void *field = (char *)item->obj + row->offset;
        struct hdt_conf_list *list = field;

        if (row->type == HDT_CONF_T_STRING || row->type == HDT_CONF_T_PATH) {
            free(*(char **)field);
        } else if (row->type == HDT_CONF_T_STRINGS) {
            strings_release(field);
        } else if (row->type == HDT_CONF_T_SECTION) {
            hdt_conf_work_push(work, (struct hdt_conf_work_item){.rows = row->rows, .obj = field});
        } else if (row->type == HDT_CONF_T_LIST) {
            for (size_t i = 0; i < list->n; i++) {
                char *obj = (char *)list->items + i * row->item_size;

                hdt_conf_work_push(work,
                                   (struct hdt_conf_work_item){.rows = row->rows, .obj = obj});
            }
            hdt_conf_work_push(lists, (struct hdt_conf_work_item){.obj = list->items});
        }
    }
}

void hdt_conf_release(const struct hdt_conf_schema *schema, void *obj)
{
    struct hdt_conf_work work = {0}, lists = {0};
    struct hdt_conf_work_item item = {.rows = schema->rows, .obj = obj};

    do {
        rows_release(&item, &work, &lists);
    } while (hdt_conf_work_pop(&work, &item));
    while (hdt_conf_work_pop(&lists, &item)) {
        free(item.obj);
    }
    hdt_conf_work_release(&work);
    hdt_conf_work_release(&lists);
    memset(obj, 0, schema->size);
}
