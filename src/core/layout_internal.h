/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_LAYOUT_INTERNAL_H
#define HDT_CORE_LAYOUT_INTERNAL_H

/* What the files of layout share; nobody else includes this. */
#include "src/core/layout.h"

/* A layout that is being checked. */
struct layout_loader {
    struct hdt_layout_files *files;
    const struct hdt_conf_doc *doc;
    struct hdt_error *err;
};

/* layout_wan.c: the site of this name, which stands at `key`. HDT_EINVAL, with the nearest name:
 * there is none. */
enum hdt_status hdt_layout_site_find(const struct layout_loader *loader, const char *key,
                                     const char *name, size_t *site);

/* layout_wan.c: files->wan_pairs of the layout's wan.links; the cluster is there. HDT_EINVAL: a
 * site that it does not have, twice the same one, a pair that has an entry already. */
enum hdt_status hdt_layout_wan_resolve(const struct layout_loader *loader);

#endif /* HDT_CORE_LAYOUT_INTERNAL_H */
