/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/conf_internal.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>

void hdt_conf_walk_init(struct hdt_conf_walk *walk, const struct hdt_conf_row *rows)
{
    memset(walk, 0, sizeof(*walk));
    walk->next[0] = rows;
}

const struct hdt_conf_row *hdt_conf_walk_next(struct hdt_conf_walk *walk)
{
    const struct hdt_conf_row *row;

    while (!walk->next[walk->enter]->name) {
        if (walk->enter == 0) {
            return NULL;
        }
        walk->enter--;
    }
    row = walk->next[walk->enter]++;
    walk->depth = walk->enter;
    if (row->rows) {
        HDT_ASSERT(walk->enter + 1 < HDT_CONF_LEVEL_MAX);
        walk->enter++;
        walk->next[walk->enter] = row->rows;
        walk->owner[walk->enter] = row;
    }
    return row;
}

char *hdt_conf_walk_name(const struct hdt_conf_walk *walk, const struct hdt_conf_row *row,
                         char buf[HDT_CONF_NAME_CAP])
{
    size_t used = 0;

    buf[0] = '\0';
    for (int i = 1; i <= walk->depth; i++) {
        const struct hdt_conf_row *owner = walk->owner[i];

        used += (size_t)snprintf(buf + used, HDT_CONF_NAME_CAP - used, "%s%s.", owner->name,
                                 owner->type == HDT_CONF_T_LIST ? "[]" : "");
        HDT_ASSERT(used < HDT_CONF_NAME_CAP);
    }
    snprintf(buf + used, HDT_CONF_NAME_CAP - used, "%s", row->name);
    return buf;
}

void hdt_conf_work_push(struct hdt_conf_work *work, struct hdt_conf_work_item item)
{
    if (work->n == work->cap) {
        work->cap = work->cap ? 2 * work->cap : 16;
        work->items = hdt_realloc(work->items, work->cap * sizeof(*work->items));
    }
    work->items[work->n++] = item;
}

bool hdt_conf_work_pop(struct hdt_conf_work *work, struct hdt_conf_work_item *item)
{
    if (work->n == 0) {
        return false;
    }
    *item = work->items[--work->n];
    return true;
}

void hdt_conf_work_release(struct hdt_conf_work *work)
{
    free(work->items);
    memset(work, 0, sizeof(*work));
}
