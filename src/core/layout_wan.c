/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Sites that a layout names, and what it says of pairs of them. */
#include "src/base/buf.h"
#include "src/base/near.h"
#include "src/core/layout_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of wan.codec_gb_per_s, for those who give it. */
#define LEAST_GB_PER_S 0.001

static int pair_compare(const void *a, const void *b)
{
    const struct hdt_layout_wan_pair *x = a, *y = b;

    if (x->low != y->low) {
        return x->low < y->low ? -1 : 1;
    }
    return x->high < y->high ? -1 : x->high > y->high;
}

/* Where two are of the same sites, that one first which stands first in the file. */
static int entry_compare(const void *a, const void *b)
{
    const struct hdt_layout_wan_pair *x = a, *y = b;
    int order = pair_compare(a, b);

    return order ? order : x->idx < y->idx ? -1 : 1;
}

enum hdt_status hdt_layout_site_find(const struct layout_loader *loader, const char *key,
                                     const char *name, size_t *site)
{
    const struct hdt_cluster_file *cluster = &loader->files->cluster;
    struct hdt_near near;

    *site = hdt_cluster_file_find_site(cluster, name);
    if (*site < cluster->sites.n) {
        return HDT_OK;
    }
    hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL, "the cluster has no site '%.64s'",
                   name);
    hdt_near_init(&near, name);
    for (size_t i = 0; i < cluster->sites.n; i++) {
        hdt_near_offer(&near, hdt_cluster_file_site(cluster, i)->name);
    }
    hdt_error_hint(loader->err, "it has '%.64s'",
                   near.best ? near.best : hdt_cluster_file_site(cluster, 0)->name);
    return HDT_EINVAL;
}

static enum hdt_status pair_fill(const struct layout_loader *loader, size_t idx,
                                 struct hdt_layout_wan_pair *pair)
{
    const struct hdt_layout_wan *wan = &loader->files->layout.wan;
    const struct hdt_layout_wan_link *link = (const struct hdt_layout_wan_link *)wan->links.items;
    size_t from, to;
    char key[64];

    link += idx;
    snprintf(key, sizeof(key), "wan.links[%zu].from", idx);
    HDT_TRY(hdt_layout_site_find(loader, key, link->from, &from));
    snprintf(key, sizeof(key), "wan.links[%zu].to", idx);
    HDT_TRY(hdt_layout_site_find(loader, key, link->to, &to));
    if (from == to) {
        hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                       "the link goes from '%.64s' to itself", link->to);
        hdt_error_hint(loader->err, "nothing leaves a site there: name two sites");
        return HDT_EINVAL;
    }
    if (link->codec_gb_per_s > 0 && link->codec_gb_per_s < LEAST_GB_PER_S) {
        snprintf(key, sizeof(key), "wan.links[%zu].codec_gb_per_s", idx);
        return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                              "%g GB/s is below %g, and not 0", link->codec_gb_per_s,
                              LEAST_GB_PER_S);
    }
    *pair = (struct hdt_layout_wan_pair){
        .low = from < to ? from : to, .high = from < to ? to : from, .idx = idx};
    pair->wire.codec_ratio = isnan(link->codec_ratio) ? wan->codec_ratio : link->codec_ratio;
    pair->wire.sync_ratio = isnan(link->sync_ratio) ? wan->sync_ratio : link->sync_ratio;
    pair->wire.codec_gb_per_s = isnan(link->codec_gb_per_s) ? wan->codec_gb_per_s
                                : link->codec_gb_per_s > 0  ? link->codec_gb_per_s
                                                            : NAN;
    return HDT_OK;
}

/* Of pairs that are there twice the one whose second entry comes first in the file. */
static enum hdt_status pairs_check(const struct layout_loader *loader)
{
    const struct hdt_layout_files *f = loader->files;
    const struct hdt_layout_wan_link *links = f->layout.wan.links.items;
    const struct hdt_layout_wan_pair *twice = NULL;
    char key[64];

    for (size_t i = 1; i < f->n_wan_pairs; i++) {
        const struct hdt_layout_wan_pair *p = &f->wan_pairs[i];

        if (pair_compare(p - 1, p) == 0 && (!twice || p->idx < twice->idx)) {
            twice = p;
        }
    }
    if (!twice) {
        return HDT_OK;
    }
    snprintf(key, sizeof(key), "wan.links[%zu].from", twice->idx);
    hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                   "'%.64s' and '%.64s' have an entry already", links[twice->idx].from,
                   links[twice->idx].to);
    hdt_error_hint(loader->err, "an entry is for both directions: keep one of the two");
    return HDT_EINVAL;
}

enum hdt_status hdt_layout_wan_resolve(const struct layout_loader *loader)
{
    struct hdt_layout_files *f = loader->files;
    size_t n = f->layout.wan.links.n;

    if (n == 0) {
        return HDT_OK;
    }
    f->wan_pairs = hdt_calloc(n, sizeof(f->wan_pairs[0]));
    for (; f->n_wan_pairs < n; f->n_wan_pairs++) {
        HDT_TRY(pair_fill(loader, f->n_wan_pairs, &f->wan_pairs[f->n_wan_pairs]));
    }
    qsort(f->wan_pairs, n, sizeof(f->wan_pairs[0]), entry_compare);
    return pairs_check(loader);
}

struct hdt_layout_wire hdt_layout_wan_between(const struct hdt_layout_files *files, size_t site_a,
                                              size_t site_b)
{
    const struct hdt_layout_wan *wan = &files->layout.wan;
    const struct hdt_layout_wan_pair key = {.low = site_a < site_b ? site_a : site_b,
                                            .high = site_a < site_b ? site_b : site_a};
    const struct hdt_layout_wan_pair *found =
        files->n_wan_pairs == 0 ? NULL
                                : bsearch(&key, files->wan_pairs, files->n_wan_pairs,
                                          sizeof(files->wan_pairs[0]), pair_compare);

    return found ? found->wire
                 : (struct hdt_layout_wire){wan->codec_ratio, wan->codec_gb_per_s, wan->sync_ratio};
}
