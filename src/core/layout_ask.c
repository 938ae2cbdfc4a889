/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"
#include "src/core/layout.h"

#include <stdio.h>
#include <string.h>

/* ---- asking ---- */

enum hdt_layout_offload hdt_layout_offload(const struct hdt_layout *layout, size_t stage)
{
    int own = hdt_layout_stage(layout, stage)->offload;

    return (enum hdt_layout_offload)(own > 0 ? own - 1 : layout->offload);
}

void hdt_layout_offload_key(const struct hdt_layout *layout, size_t stage, char *key, size_t cap)
{
    if (hdt_layout_stage(layout, stage)->offload > 0) {
        snprintf(key, cap, "stages[%zu].offload", stage);
    } else {
        snprintf(key, cap, "offload");
    }
}

enum hdt_layout_recompute hdt_layout_recompute(const struct hdt_layout *layout, size_t stage)
{
    int own = hdt_layout_stage(layout, stage)->recompute;

    return (enum hdt_layout_recompute)(own > 0 ? own - 1 : layout->recompute);
}

/* The entry of a replica; NULL: all are alike. */
static const struct hdt_layout_replicas *replicas_of(const struct hdt_layout *layout,
                                                     size_t replica)
{
    const struct hdt_layout_replicas *all = layout->replicas.items;
    int64_t left = (int64_t)replica;

    for (size_t i = 0; i < layout->replicas.n; i++) {
        if (left < all[i].count) {
            return &all[i];
        }
        left -= all[i].count;
    }
    return NULL;
}

int64_t hdt_layout_micro_batch(const struct hdt_layout *layout, size_t replica)
{
    const struct hdt_layout_replicas *own = replicas_of(layout, replica);

    return own && own->micro_batch > 0 ? own->micro_batch : layout->micro_batch;
}

int64_t hdt_layout_n_micro_batches(const struct hdt_layout_files *files, size_t replica)
{
    const struct hdt_layout_replicas *own = replicas_of(&files->layout, replica);

    return own ? own->micro_batches : files->n_micro_batches;
}

/* ---- copying ---- */

static void list_copy(const struct hdt_conf_list *list, size_t item_size,
                      struct hdt_conf_list *copy)
{
    copy->n = list->n;
    copy->items = hdt_calloc(list->n + 1, item_size);
    if (list->n > 0) {
        memcpy(copy->items, list->items, list->n * item_size);
    }
}

void hdt_layout_copy(const struct hdt_layout *layout, struct hdt_layout *copy)
{
    *copy = *layout;
    copy->name = hdt_strdup(layout->name);
    copy->cluster = hdt_strdup(layout->cluster);
    copy->model = hdt_strdup(layout->model);
    list_copy(&layout->profiles, sizeof(struct hdt_layout_profile), &copy->profiles);
    list_copy(&layout->stages, sizeof(struct hdt_layout_stage), &copy->stages);
    list_copy(&layout->replicas, sizeof(struct hdt_layout_replicas), &copy->replicas);
    list_copy(&layout->wan.links, sizeof(struct hdt_layout_wan_link), &copy->wan.links);
    for (size_t i = 0; i < copy->wan.links.n; i++) {
        struct hdt_layout_wan_link *l = (struct hdt_layout_wan_link *)copy->wan.links.items + i;

        l->from = hdt_strdup(l->from);
        l->to = hdt_strdup(l->to);
    }
    for (size_t i = 0; i < copy->profiles.n; i++) {
        struct hdt_layout_profile *p = (struct hdt_layout_profile *)copy->profiles.items + i;

        p->file = hdt_strdup(p->file);
    }
    for (size_t i = 0; i < copy->stages.n; i++) {
        struct hdt_layout_stage *s = (struct hdt_layout_stage *)copy->stages.items + i;
        struct hdt_conf_list on = s->on;

        list_copy(&on, sizeof(struct hdt_layout_on), &s->on);
        for (size_t k = 0; k < s->on.n; k++) {
            struct hdt_layout_on *o = (struct hdt_layout_on *)s->on.items + k;

            o->site = hdt_strdup(o->site);
            o->nodes = hdt_strdup(o->nodes);
        }
    }
}
