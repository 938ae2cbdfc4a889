/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/cluster_file_internal.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

/* As much as the tables of settings take. */
#define TEXT_MAX (1u << 20)

/* ---- the table ---- */

static const struct hdt_conf_row host_rows[] = {
    HDT_CONF_OPTIONAL(struct hdt_cluster_file_host, gb, 0.1, 1e6,
                      "Memory of a node's host that may hold what is offloaded, 2^30 bytes."),
    HDT_CONF_OPTIONAL(struct hdt_cluster_file_host, gb_per_s, 0.01, 1e4,
                      "Rate between a device and it in one direction, 1e9 bytes a second."),
    HDT_CONF_OPTIONAL(struct hdt_cluster_file_host, memory_gb_per_s, 0.1, 1e5,
                      "Rate at which a node's processors together read and write it, 1e9 bytes a "
                      "second, as measured: an optimizer's step there is bound by it."),
    HDT_CONF_END};

#define NAMED(s, f, name_, def_, help_)                                                            \
 {                                                                                                 \
  .name = name_, .type = HDT_CONF_T_STRING, .offset = offsetof(s, f), .def = def_, .help = help_   \
 }

static const struct hdt_conf_row nodes_rows[] = {
    HDT_CONF_STRING(struct hdt_cluster_file_nodes, name, "",
                    "Name of these nodes, unique in their site. Empty: their device's."),
    HDT_CONF_INT(struct hdt_cluster_file_nodes, count, "1", 1, 1e6, "How many there are."),
    NAMED(struct hdt_cluster_file_nodes, device_name, "device", NULL,
          "What they have: a device of this file or of the catalogue ('hdt device list'). Example: "
          "H100."),
    HDT_CONF_INT(struct hdt_cluster_file_nodes, devices, "8", 1, 1024,
                 "Devices of one node; of processors, its sockets."),
    HDT_CONF_OPTIONAL(struct hdt_cluster_file_nodes, memory_gb, 0.1, 1e5,
                      "Memory of one device that may be used, 2^30 bytes. null: all that the "
                      "catalogue says."),
    HDT_CONF_FLOAT(struct hdt_cluster_file_nodes, framework_gb, "2.33", 0, 1000,
                   "Memory of a device that a process holds before its first layer, 2^30 bytes: "
                   "the framework's context, kernels and pools."),
    NAMED(struct hdt_cluster_file_nodes, inside_name, "inside", "",
          "Link among the devices of a node, each of which has its rate. Empty: the device's own, "
          "as the catalogue has it."),
    NAMED(struct hdt_cluster_file_nodes, between_name, "between", "",
          "Link from a node to others of its site; its devices share the rate. Needed where the "
          "site has more than one node."),
    HDT_CONF_SECTION(struct hdt_cluster_file_nodes, host, host_rows,
                     "The node's host, where something may be offloaded to it."),
    HDT_CONF_END};

static const struct hdt_conf_row pair_rows[] = {
    HDT_CONF_STRING(struct hdt_cluster_file_pair, from, NULL, "Name of nodes."),
    HDT_CONF_STRING(struct hdt_cluster_file_pair, to, NULL, "Name of other nodes of the site."),
    NAMED(struct hdt_cluster_file_pair, link_name, "link", NULL,
          "The link between them, in both directions."),
    HDT_CONF_END};

static const struct hdt_conf_row site_rows[] = {
    HDT_CONF_STRING(struct hdt_cluster_file_site, name, NULL, "Name. Example: site-a."),
    HDT_CONF_LIST(struct hdt_cluster_file_site, nodes, nodes_rows, struct hdt_cluster_file_nodes,
                  "Its nodes, alike ones in one entry."),
    HDT_CONF_LIST(struct hdt_cluster_file_site, pairs, pair_rows, struct hdt_cluster_file_pair,
                  "Links between unlike nodes that are neither's own. Without an entry: the slower "
                  "of the two."),
    HDT_CONF_END};

static const struct hdt_conf_row wan_rows[] = {
    HDT_CONF_STRING(struct hdt_cluster_file_wan, from, NULL, "A site. Example: site-a."),
    HDT_CONF_STRING(struct hdt_cluster_file_wan, to, NULL, "Another site. Example: site-b."),
    HDT_CONF_BOOL(struct hdt_cluster_file_wan, both_ways, "true",
                  "Also from `to` to `from`; each direction has the rate."),
    HDT_CONF_RATE(struct hdt_cluster_file_wan, rate, "max",
                  "What it carries. Example: 1gbit. Left away where link or via says it: max is no "
                  "rate."),
    NAMED(struct hdt_cluster_file_wan, link_name, "link", "",
          "A link whose rate depends on the size, instead of rate."),
    HDT_CONF_STRING(struct hdt_cluster_file_wan, via, "",
                    "The site that relays, where there is no link: what is said of its links "
                    "counts."),
    HDT_CONF_FLOAT(struct hdt_cluster_file_wan, rtt_ms, "0", 0, 1e5, "Round trip, milliseconds."),
    HDT_CONF_FLOAT(struct hdt_cluster_file_wan, loss, "0", 0, 0.9, "Share of packets lost."),
    HDT_CONF_FLOAT(struct hdt_cluster_file_wan, price_per_gb, "0", 0, 1e4,
                   "Price of 1e9 bytes, in any currency, the same one everywhere."),
    HDT_CONF_END};

static const struct hdt_conf_row cluster_rows[] = {
    HDT_CONF_STRING(struct hdt_cluster_file, name, "cluster", "Name, for what is printed."),
    {.name = "devices",
     .type = HDT_CONF_T_LIST,
     .offset = offsetof(struct hdt_cluster_file, own.items),
     .rows = hdt_device_rows,
     .item_size = sizeof(struct hdt_device),
     .help = "Devices that the catalogue does not have, or has other values for; sources are not "
             "asked for here."},
    HDT_CONF_LIST(struct hdt_cluster_file, links, hdt_link_curve_rows, struct hdt_link_curve,
                  "Links that nodes and the WAN refer to by name."),
    HDT_CONF_LIST(struct hdt_cluster_file, sites, site_rows, struct hdt_cluster_file_site,
                  "The sites."),
    HDT_CONF_LIST(struct hdt_cluster_file, wan, wan_rows, struct hdt_cluster_file_wan,
                  "Links between the sites: one for each pair."),
    HDT_CONF_END};

const struct hdt_conf_schema hdt_cluster_file_schema = {
    .name = "cluster",
    .help = "A cluster to make predictions for: sites, nodes, devices and the links between them.",
    .rows = cluster_rows,
    .size = sizeof(struct hdt_cluster_file),
    .start = "links:\n"
             "  - {name: ethernet, gb_per_s: 12.5, nominal: true}\n"
             "sites:\n"
             "  - name: site-a\n"
             "    nodes: [{name: h100, count: 2, device: H100-SXM5-80GB, between: ethernet}]\n"
             "  - name: site-b\n"
             "    nodes: [{name: a100, count: 2, device: A100-SXM4-40GB, between: ethernet}]\n"
             "wan:\n"
             "  - {from: site-a, to: site-b, rate: 10gbit, rtt_ms: 20}\n",
};

/* ---- reading ---- */

enum hdt_status hdt_cluster_file_parse(const char *text, size_t len, const char *file,
                                       const struct hdt_devices *catalogue,
                                       struct hdt_cluster_file *cluster, struct hdt_error *err)
{
    struct hdt_conf_doc *doc = NULL;
    enum hdt_status status;

    HDT_TRY(hdt_conf_parse(&hdt_cluster_file_schema, text, len, file, cluster, &doc, err));
    status = hdt_cluster_file_resolve(cluster, catalogue, doc, err);
    hdt_conf_doc_free(doc);
    if (status != HDT_OK) {
        hdt_cluster_file_release(cluster);
    }
    return status;
}

enum hdt_status hdt_cluster_file_load(const char *path, const struct hdt_devices *catalogue,
                                      struct hdt_cluster_file *cluster, struct hdt_error *err)
{
    struct hdt_buf text = {0};
    enum hdt_status status = hdt_file_read(path, TEXT_MAX, &text, err);

    if (status == HDT_OK) {
        status =
            hdt_cluster_file_parse(hdt_buf_str(&text), text.len, path, catalogue, cluster, err);
    } else {
        hdt_error_prefix(err, "cannot read the cluster");
        hdt_error_hint(err, "'hdt config example cluster' prints a file to start from");
    }
    hdt_buf_release(&text);
    return status;
}

void hdt_cluster_file_release(struct hdt_cluster_file *cluster)
{
    for (size_t i = 0; i < cluster->n_made; i++) {
        free(cluster->made[i]->name);
        free(cluster->made[i]);
    }
    free(cluster->made);
    free(cluster->way);
    hdt_devices_unindex(&cluster->own);
    hdt_conf_release(&hdt_cluster_file_schema, cluster);
}

/* ---- asking ---- */

size_t hdt_cluster_file_find_site(const struct hdt_cluster_file *cluster, const char *name)
{
    size_t i = 0;

    while (i < cluster->sites.n && strcmp(hdt_cluster_file_site(cluster, i)->name, name) != 0) {
        i++;
    }
    return i;
}

int64_t hdt_cluster_file_n_devices(const struct hdt_cluster_file *cluster)
{
    int64_t n = 0;

    for (size_t i = 0; i < cluster->sites.n; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(cluster, i);

        for (size_t j = 0; j < site->nodes.n; j++) {
            const struct hdt_cluster_file_nodes *nodes = hdt_cluster_file_nodes(site, j);

            n += nodes->count * nodes->devices;
        }
    }
    return n;
}

double hdt_cluster_file_memory_bytes(const struct hdt_cluster_file_nodes *nodes)
{
    return (isnan(nodes->memory_gb) ? nodes->device->memory.gb : nodes->memory_gb) * GIB;
}

/* ---- ways between sites ---- */

/* A part of a way that is still to be followed. */
struct stretch {
    size_t from, to;
};

static bool path_visits(const struct hdt_cluster_file_path *path, size_t site)
{
    for (size_t i = 0; i < path->n_legs; i++) {
        const struct hdt_cluster_file_wan *leg = path->legs[i];

        if ((path->reversed[i] ? leg->to_idx : leg->from_idx) == site) {
            return true;
        }
    }
    return false;
}

static bool path_add(struct hdt_cluster_file_path *path, const struct hdt_cluster_file_wan *leg,
                     const struct stretch *stretch)
{
    if (path->n_legs == HDT_CLUSTER_FILE_MAX_LEGS || path_visits(path, stretch->from) ||
        path_visits(path, stretch->to)) {
        return false;
    }
    path->legs[path->n_legs] = leg;
    path->reversed[path->n_legs] = leg->from_idx != stretch->from;
    path->n_legs++;
    path->rtt_s += leg->rtt_ms / 1e3;
    path->loss = 1 - (1 - path->loss) * (1 - leg->loss);
    path->price_per_gb += leg->price_per_gb;
    return true;
}

bool hdt_cluster_file_follow(const struct hdt_cluster_file *cluster, size_t from_idx, size_t to_idx,
                             struct hdt_cluster_file_path *path)
{
    /* The next stretch is on top. A relayed one becomes two, so that the stack grows by one for
     * each relay: one that would outgrow it has more legs than a path has, or turns in a circle. */
    struct stretch stack[HDT_CLUSTER_FILE_MAX_LEGS + 1] = {{from_idx, to_idx}};
    size_t n = 1;

    memset(path, 0, sizeof(*path));
    while (n > 0) {
        struct stretch s = stack[--n];
        const struct hdt_cluster_file_wan *wan = cluster->way[s.from * cluster->sites.n + s.to];

        if (!wan->via[0]) {
            if (!path_add(path, wan, &s)) {
                return false;
            }
            continue;
        }
        if (n + 2 > HDT_CLUSTER_FILE_MAX_LEGS || wan->via_idx == s.from || wan->via_idx == s.to) {
            return false;
        }
        stack[n++] = (struct stretch){wan->via_idx, s.to};
        stack[n++] = (struct stretch){s.from, wan->via_idx};
    }
    return true;
}

void hdt_cluster_file_path(const struct hdt_cluster_file *cluster, size_t from_idx, size_t to_idx,
                           struct hdt_cluster_file_path *path)
{
    bool ok;

    HDT_ASSERT(from_idx != to_idx);
    HDT_ASSERT(from_idx < cluster->sites.n && to_idx < cluster->sites.n);
    ok = hdt_cluster_file_follow(cluster, from_idx, to_idx, path);
    HDT_ASSERT(ok); /* the loader followed it */
}

double hdt_cluster_file_leg_bytes_per_s(const struct hdt_cluster_file_wan *leg, double bytes)
{
    return leg->link ? hdt_link_curve_bytes_per_s(leg->link, bytes, 1) : (double)leg->rate / 8;
}
