/* SPDX-License-Identifier: Apache-2.0 */
/* Names of a cluster file become pointers, and what its table cannot say is checked. */
#include "config.h"

#include "src/core/cluster_file_internal.h"
#include "src/base/buf.h"
#include "src/base/near.h"
#include "src/core/cluster.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loader {
    struct hdt_cluster_file *cluster;
    const struct hdt_devices *catalogue;
    const struct hdt_conf_doc *doc;
    struct hdt_error *err;
};

/* An error at `key`, which is taken; a hint is the caller's to add. Returns HDT_EINVAL. */
static enum hdt_status fail_at(const struct loader *loader, char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static enum hdt_status fail_at(const struct loader *loader, char *key, const char *fmt, ...)
{
    char text[HDT_ERROR_MSG_CAP];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL, "%s", text);
    free(key);
    return HDT_EINVAL;
}

static enum hdt_status links_check(struct loader *loader)
{
    const struct hdt_link_curve *links = loader->cluster->links.items;
    char key[32];

    if (loader->cluster->links.n > HDT_CLUSTER_FILE_MAX_LINKS) {
        return fail_at(loader, hdt_strdup("links"), "there are %zu links, the limit is %d",
                       loader->cluster->links.n, HDT_CLUSTER_FILE_MAX_LINKS);
    }
    for (size_t i = 0; i < loader->cluster->links.n; i++) {
        snprintf(key, sizeof(key), "links[%zu]", i);
        HDT_TRY(hdt_link_curve_check(&links[i], key, loader->doc, loader->err));
        for (size_t j = 0; j < i; j++) {
            if (strcmp(links[i].name, links[j].name) == 0) {
                fail_at(loader, hdt_asprintf("links[%zu].name", i),
                        "the name '%.64s' is given to two links", links[i].name);
                hdt_error_hint(loader->err, "change one of the two");
                return HDT_EINVAL;
            }
        }
    }
    return HDT_OK;
}

/* The link of a name; NULL after a message at `key`, which is taken. */
static const struct hdt_link_curve *link_find(struct loader *loader, const char *name, char *key)
{
    const struct hdt_link_curve *links = loader->cluster->links.items;
    struct hdt_near near;

    hdt_near_init(&near, name);
    for (size_t i = 0; i < loader->cluster->links.n; i++) {
        if (strcmp(links[i].name, name) == 0) {
            free(key);
            return &links[i];
        }
        hdt_near_offer(&near, links[i].name);
    }
    fail_at(loader, key, "there is no link '%.64s'", name);
    if (near.best) {
        hdt_error_hint(loader->err, "did you mean '%s'?", near.best);
    } else {
        hdt_error_hint(loader->err, "add it to the list of links");
    }
    return NULL;
}

/* The device's own link, as a link of this cluster. */
static const struct hdt_link_curve *link_make(struct hdt_cluster_file *cluster,
                                              const struct hdt_device *device)
{
    struct hdt_link_curve *link = hdt_calloc(1, sizeof(*link));

    link->name = hdt_strdup(device->link.name);
    link->gb_per_s = device->link.gb_per_s;
    cluster->made = hdt_realloc(cluster->made, (cluster->n_made + 1) * sizeof(*cluster->made));
    cluster->made[cluster->n_made++] = link;
    return link;
}

static enum hdt_status device_resolve(struct loader *loader, struct hdt_cluster_file_nodes *nodes,
                                      size_t site_idx, size_t nodes_idx)
{
    struct hdt_error cause = {0};

    nodes->device = hdt_devices_find(&loader->cluster->own, nodes->device_name);
    if (nodes->device ||
        hdt_devices_get(loader->catalogue, nodes->device_name, &nodes->device, &cause) == HDT_OK) {
        return HDT_OK;
    }
    fail_at(loader, hdt_asprintf("sites[%zu].nodes[%zu].device", site_idx, nodes_idx),
            "unknown device '%.64s'", nodes->device_name);
    hdt_error_hint(loader->err, "%s", cause.hint);
    return HDT_EINVAL;
}

static enum hdt_status inside_resolve(struct loader *loader, struct hdt_cluster_file_nodes *nodes,
                                      size_t site_idx, size_t nodes_idx)
{
    if (nodes->inside_name[0]) {
        nodes->inside =
            link_find(loader, nodes->inside_name,
                      hdt_asprintf("sites[%zu].nodes[%zu].inside", site_idx, nodes_idx));
        return nodes->inside ? HDT_OK : HDT_EINVAL;
    }
    if (nodes->devices == 1) {
        return HDT_OK;
    }
    if (isnan(nodes->device->link.gb_per_s)) {
        fail_at(loader, hdt_asprintf("sites[%zu].nodes[%zu]", site_idx, nodes_idx),
                "nodes of %lld '%.64s' have no link inside", (long long)nodes->devices,
                nodes->device->name);
        hdt_error_hint(loader->err, "the catalogue knows none of this device: give inside");
        return HDT_EINVAL;
    }
    nodes->inside = link_make(loader->cluster, nodes->device);
    return HDT_OK;
}

static enum hdt_status between_resolve(struct loader *loader,
                                       const struct hdt_cluster_file_site *site,
                                       struct hdt_cluster_file_nodes *nodes, size_t site_idx,
                                       size_t nodes_idx)
{
    if (nodes->between_name[0]) {
        nodes->between =
            link_find(loader, nodes->between_name,
                      hdt_asprintf("sites[%zu].nodes[%zu].between", site_idx, nodes_idx));
        return nodes->between ? HDT_OK : HDT_EINVAL;
    }
    if (site->nodes.n == 1 && nodes->count == 1) {
        return HDT_OK;
    }
    fail_at(loader, hdt_asprintf("sites[%zu].nodes[%zu]", site_idx, nodes_idx),
            "site '%.64s' has several nodes, but '%.64s' no link between", site->name, nodes->name);
    hdt_error_hint(loader->err, "give between: the link that joins it to the other nodes");
    return HDT_EINVAL;
}

/* Position of nodes by name in their site; site->nodes.n: there are none. */
static size_t nodes_find(const struct hdt_cluster_file_site *site, const char *name)
{
    size_t i = 0;

    while (i < site->nodes.n && strcmp(hdt_cluster_file_nodes(site, i)->name, name) != 0) {
        i++;
    }
    return i;
}

static enum hdt_status nodes_name(struct loader *loader, struct hdt_cluster_file_site *site,
                                  struct hdt_cluster_file_nodes *nodes, size_t site_idx,
                                  size_t nodes_idx)
{
    if (!nodes->name[0]) {
        free(nodes->name);
        nodes->name = hdt_strdup(nodes->device_name);
    }
    if (!hdt_name_is_valid(nodes->name)) {
        fail_at(loader, hdt_asprintf("sites[%zu].nodes[%zu].name", site_idx, nodes_idx),
                "'%.64s' is no name of nodes", nodes->name);
        hdt_error_hint(loader->err, "letters, digits, '.', '_' and '-', up to %d",
                       HDT_NAME_CAP - 1);
        return HDT_EINVAL;
    }
    if (nodes_find(site, nodes->name) == nodes_idx) {
        return HDT_OK;
    }
    fail_at(loader, hdt_asprintf("sites[%zu].nodes[%zu]", site_idx, nodes_idx),
            "the name '%.64s' is given to two groups of nodes", nodes->name);
    hdt_error_hint(loader->err, "name them apart");
    return HDT_EINVAL;
}

/* One end of a pair. */
static enum hdt_status pair_end(struct loader *loader, const struct hdt_cluster_file_site *site,
                                const char *name, size_t *idx, char *key)
{
    struct hdt_near near;

    *idx = nodes_find(site, name);
    if (*idx < site->nodes.n) {
        free(key);
        return HDT_OK;
    }
    fail_at(loader, key, "site '%.64s' has no nodes '%.64s'", site->name, name);
    hdt_near_init(&near, name);
    for (size_t i = 0; i < site->nodes.n; i++) {
        hdt_near_offer(&near, hdt_cluster_file_nodes(site, i)->name);
    }
    if (near.best) {
        hdt_error_hint(loader->err, "did you mean '%s'?", near.best);
    } else {
        hdt_error_hint(loader->err, "name nodes of this site");
    }
    return HDT_EINVAL;
}

static enum hdt_status pairs_resolve(struct loader *loader, struct hdt_cluster_file_site *site,
                                     size_t site_idx)
{
    struct hdt_cluster_file_pair *pairs = site->pairs.items;

    for (size_t i = 0; i < site->pairs.n; i++) {
        HDT_TRY(pair_end(loader, site, pairs[i].from, &pairs[i].from_idx,
                         hdt_asprintf("sites[%zu].pairs[%zu].from", site_idx, i)));
        HDT_TRY(pair_end(loader, site, pairs[i].to, &pairs[i].to_idx,
                         hdt_asprintf("sites[%zu].pairs[%zu].to", site_idx, i)));
        pairs[i].link = link_find(loader, pairs[i].link_name,
                                  hdt_asprintf("sites[%zu].pairs[%zu].link", site_idx, i));
        if (!pairs[i].link) {
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

static enum hdt_status site_resolve(struct loader *loader, struct hdt_cluster_file_site *site,
                                    size_t site_idx)
{
    struct hdt_cluster_file_nodes *nodes = site->nodes.items;

    if (!hdt_name_is_valid(site->name) ||
        hdt_cluster_file_find_site(loader->cluster, site->name) != site_idx) {
        fail_at(loader, hdt_asprintf("sites[%zu].name", site_idx), "'%.64s' is %s", site->name,
                hdt_name_is_valid(site->name) ? "the name of two sites" : "no name of a site");
        hdt_error_hint(loader->err, "1 to 63 letters, digits, '.', '_' and '-'; each site its own");
        return HDT_EINVAL;
    }
    if (site->nodes.n > HDT_CLUSTER_FILE_MAX_NODES) {
        return fail_at(loader, hdt_asprintf("sites[%zu].nodes", site_idx),
                       "site '%.64s' has %zu groups of nodes, the limit is %d", site->name,
                       site->nodes.n, HDT_CLUSTER_FILE_MAX_NODES);
    }
    for (size_t i = 0; i < site->nodes.n; i++) {
        HDT_TRY(nodes_name(loader, site, &nodes[i], site_idx, i));
        HDT_TRY(device_resolve(loader, &nodes[i], site_idx, i));
        HDT_TRY(inside_resolve(loader, &nodes[i], site_idx, i));
        HDT_TRY(between_resolve(loader, site, &nodes[i], site_idx, i));
    }
    return pairs_resolve(loader, site, site_idx);
}

/* ---- ways between sites ---- */

/* The site of a name in wan[wan_idx].FIELD. */
static enum hdt_status wan_end(struct loader *loader, const char *name, size_t wan_idx,
                               const char *field, size_t *idx)
{
    struct hdt_near near;

    *idx = hdt_cluster_file_find_site(loader->cluster, name);
    if (*idx < loader->cluster->sites.n) {
        return HDT_OK;
    }
    fail_at(loader, hdt_asprintf("wan[%zu].%s", wan_idx, field), "there is no site '%.64s'", name);
    hdt_near_init(&near, name);
    for (size_t i = 0; i < loader->cluster->sites.n; i++) {
        hdt_near_offer(&near, hdt_cluster_file_site(loader->cluster, i)->name);
    }
    if (near.best) {
        hdt_error_hint(loader->err, "did you mean '%s'?", near.best);
    } else {
        hdt_error_hint(loader->err, "add it to the list of sites");
    }
    return HDT_EINVAL;
}

/* One of rate, link and via. */
static enum hdt_status wan_check_kind(struct loader *loader, const struct hdt_cluster_file_wan *wan,
                                      size_t idx)
{
    int n = (wan->rate > 0) + (wan->link_name[0] != '\0') + (wan->via[0] != '\0');

    if (n == 1) {
        return HDT_OK;
    }
    fail_at(loader, hdt_asprintf("wan[%zu]", idx), "the link from '%.64s' to '%.64s' has %s",
            wan->from, wan->to, n == 0 ? "no rate" : "more than one of rate, link and via");
    hdt_error_hint(loader->err, "give one of rate (as 1gbit), link and via");
    return HDT_EINVAL;
}

/* Note the entry as the way from a site to another. */
static enum hdt_status way_set(struct loader *loader, size_t from, size_t to,
                               const struct hdt_cluster_file_wan *wan, size_t idx)
{
    struct hdt_cluster_file *cluster = loader->cluster;

    if (!cluster->way[from * cluster->sites.n + to]) {
        cluster->way[from * cluster->sites.n + to] = wan;
        return HDT_OK;
    }
    fail_at(loader, hdt_asprintf("wan[%zu]", idx), "there are two links from '%.64s' to '%.64s'",
            hdt_cluster_file_site(cluster, from)->name, hdt_cluster_file_site(cluster, to)->name);
    hdt_error_hint(loader->err,
                   "remove one, or write both_ways: false where each is one direction");
    return HDT_EINVAL;
}

static enum hdt_status wan_resolve(struct loader *loader, struct hdt_cluster_file_wan *wan,
                                   size_t idx)
{
    HDT_TRY(wan_end(loader, wan->from, idx, "from", &wan->from_idx));
    HDT_TRY(wan_end(loader, wan->to, idx, "to", &wan->to_idx));
    HDT_TRY(wan_check_kind(loader, wan, idx));
    if (wan->from_idx == wan->to_idx) {
        return fail_at(loader, hdt_asprintf("wan[%zu].to", idx), "site '%.64s' is both ends",
                       wan->to);
    }
    if (wan->via[0]) {
        HDT_TRY(wan_end(loader, wan->via, idx, "via", &wan->via_idx));
    }
    if (wan->link_name[0]) {
        wan->link = link_find(loader, wan->link_name, hdt_asprintf("wan[%zu].link", idx));
        if (!wan->link) {
            return HDT_EINVAL;
        }
    }
    HDT_TRY(way_set(loader, wan->from_idx, wan->to_idx, wan, idx));
    return wan->both_ways ? way_set(loader, wan->to_idx, wan->from_idx, wan, idx) : HDT_OK;
}

/* Every pair of sites has a way in both directions. */
static enum hdt_status ways_check_missing(struct loader *loader)
{
    const struct hdt_cluster_file *cluster = loader->cluster;
    size_t n = cluster->sites.n;

    for (size_t i = 0; i < n * n; i++) {
        if (i / n == i % n || cluster->way[i]) {
            continue;
        }
        fail_at(loader, cluster->wan.n > 0 ? hdt_strdup("wan") : hdt_asprintf("sites[%zu]", i % n),
                "there is no link from site '%.64s' to site '%.64s'",
                hdt_cluster_file_site(cluster, i / n)->name,
                hdt_cluster_file_site(cluster, i % n)->name);
        hdt_error_hint(loader->err, "add one to wan, or say via: which site relays");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

static enum hdt_status circle_refuse(struct loader *loader, const struct hdt_cluster_file_wan *wan)
{
    const struct hdt_cluster_file_wan *first = loader->cluster->wan.items;

    fail_at(loader, hdt_asprintf("wan[%zu].via", (size_t)(wan - first)),
            "the relays from '%.64s' to '%.64s' run in a circle, or over more than %d links",
            wan->from, wan->to, HDT_CLUSTER_FILE_MAX_LEGS);
    hdt_error_hint(loader->err, "'%.64s' must reach both by links that do not come back here",
                   wan->via);
    return HDT_EINVAL;
}

/* Follow each entry that is relayed; a way that comes by a site twice is a circle. */
static enum hdt_status ways_check_circles(struct loader *loader)
{
    const struct hdt_cluster_file_wan *wan = loader->cluster->wan.items;
    struct hdt_cluster_file_path path;

    for (size_t i = 0; i < loader->cluster->wan.n; i++) {
        if (!wan[i].via[0]) {
            continue;
        }
        if (!hdt_cluster_file_follow(loader->cluster, wan[i].from_idx, wan[i].to_idx, &path) ||
            (wan[i].both_ways &&
             !hdt_cluster_file_follow(loader->cluster, wan[i].to_idx, wan[i].from_idx, &path))) {
            return circle_refuse(loader, &wan[i]);
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_cluster_file_resolve(struct hdt_cluster_file *cluster,
                                         const struct hdt_devices *catalogue,
                                         const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    struct loader loader = {cluster, catalogue, doc, err};
    struct hdt_cluster_file_site *sites = cluster->sites.items;
    struct hdt_cluster_file_wan *wan = cluster->wan.items;
    size_t n = cluster->sites.n;

    if (n == 0 || n > HDT_CLUSTER_FILE_MAX_SITES) {
        hdt_conf_error(doc, "sites", err, HDT_EINVAL, "there are %zu sites, allowed are 1 to %d", n,
                       HDT_CLUSTER_FILE_MAX_SITES);
        hdt_error_hint(err, "'man hdt-cluster.yaml' has a small cluster to start from");
        return HDT_EINVAL;
    }
    HDT_TRY(hdt_devices_index(&cluster->own, "devices", doc, err));
    HDT_TRY(links_check(&loader));
    for (size_t i = 0; i < n; i++) {
        HDT_TRY(site_resolve(&loader, &sites[i], i));
    }
    cluster->way = hdt_calloc(n * n, sizeof(*cluster->way));
    for (size_t i = 0; i < cluster->wan.n; i++) {
        HDT_TRY(wan_resolve(&loader, &wan[i], i));
    }
    HDT_TRY(ways_check_missing(&loader));
    return ways_check_circles(&loader);
}
