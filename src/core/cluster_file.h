/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CLUSTER_FILE_H
#define HDT_CORE_CLUSTER_FILE_H

/*
 * A cluster as its user writes it (cluster.yaml), to ask what would happen there: sites with groups
 * of alike nodes, devices by their name in the catalogue, links inside a node, between nodes and
 * between sites. What gateways measure of a running federation is src/core/cluster.h.
 *
 * Names are resolved when the file is loaded: pointers below lead into the file's own data or into
 * the catalogue, which must outlive it. Loaded data is only read afterwards: any thread.
 */
#include "src/core/devices.h"
#include "src/core/link_curve.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits that a file is checked against. */
#define HDT_CLUSTER_FILE_MAX_SITES 1024
#define HDT_CLUSTER_FILE_MAX_NODES 4096 /* groups of a site */
#define HDT_CLUSTER_FILE_MAX_LINKS 4096
#define HDT_CLUSTER_FILE_MAX_LEGS  16 /* of a way over relays */

/* Memory of the host for what is offloaded; NaN: none. */
struct hdt_cluster_file_host {
    double gb;              /* of a node, 2^30 bytes */
    double gb_per_s;        /* between a device and it, one direction, 1e9 bytes a second */
    double memory_gb_per_s; /* of it, all processors of the node together, 1e9 bytes a second */
};

/* `count` alike nodes. */
struct hdt_cluster_file_nodes {
    char *name;
    int64_t count;
    char *device_name;
    int64_t devices;     /* of a node */
    double memory_gb;    /* of a device that may be used; the catalogue's unless given */
    double framework_gb; /* of it that a process holds before its first layer, 2^30 bytes */
    char *inside_name, *between_name;
    struct hdt_cluster_file_host host;
    /* Resolved. */
    const struct hdt_device *device;
    const struct hdt_link_curve *inside;  /* among the devices of a node, each of which has the
                                             rate; NULL: a node has one device */
    const struct hdt_link_curve *between; /* to other nodes of the site: the rate of a whole node,
                                             shared by its devices; NULL: there is one node */
};

/* A link between two groups of nodes that is none of both groups' own. */
struct hdt_cluster_file_pair {
    char *from, *to;
    char *link_name;
    size_t from_idx, to_idx; /* resolved: positions in `nodes` */
    const struct hdt_link_curve *link;
};

struct hdt_cluster_file_site {
    char *name;
    struct hdt_conf_list nodes; /* of struct hdt_cluster_file_nodes */
    struct hdt_conf_list pairs; /* of struct hdt_cluster_file_pair */
};

/* From site to site. */
struct hdt_cluster_file_wan {
    char *from, *to;
    bool both_ways;
    uint64_t rate;   /* bits a second; 0: `link` or `via` */
    char *link_name; /* a curve instead of a rate */
    char *via;       /* the site that relays, instead of a link */
    double rtt_ms;
    double loss; /* share of packets */
    double price_per_gb;
    size_t from_idx, to_idx, via_idx; /* resolved */
    const struct hdt_link_curve *link;
};

struct hdt_cluster_file {
    char *name;
    struct hdt_devices own;     /* devices of this file: before the catalogue's of the same name */
    struct hdt_conf_list links; /* of struct hdt_link_curve */
    struct hdt_conf_list sites; /* of struct hdt_cluster_file_site */
    struct hdt_conf_list wan;   /* of struct hdt_cluster_file_wan */
    /* Resolved. */
    const struct hdt_cluster_file_wan **way; /* (sites, sites): [from * n + to] */
    struct hdt_link_curve **made;            /* links made of the devices' own */
    size_t n_made;
};

extern const struct hdt_conf_schema hdt_cluster_file_schema;

/* Load a file; to be released on success. HDT_ENOENT, HDT_EIO; HDT_EINVAL with file:line: unknown
 * names, numbers out of bounds, two sites without a link, relays in a circle. */
enum hdt_status hdt_cluster_file_load(const char *path, const struct hdt_devices *catalogue,
                                      struct hdt_cluster_file *cluster, struct hdt_error *err);
/* The same from memory; `file` names the text in messages. */
enum hdt_status hdt_cluster_file_parse(const char *text, size_t len, const char *file,
                                       const struct hdt_devices *catalogue,
                                       struct hdt_cluster_file *cluster, struct hdt_error *err);
void hdt_cluster_file_release(struct hdt_cluster_file *cluster);

/* Items of the lists, for readers. */
static inline const struct hdt_cluster_file_site *
hdt_cluster_file_site(const struct hdt_cluster_file *cluster, size_t idx)
{
    return (const struct hdt_cluster_file_site *)cluster->sites.items + idx;
}
static inline const struct hdt_cluster_file_nodes *
hdt_cluster_file_nodes(const struct hdt_cluster_file_site *site, size_t idx)
{
    return (const struct hdt_cluster_file_nodes *)site->nodes.items + idx;
}

/* Position of a site by name; cluster->sites.n: there is none. */
size_t hdt_cluster_file_find_site(const struct hdt_cluster_file *cluster, const char *name);

/* All devices of the cluster. */
int64_t hdt_cluster_file_n_devices(const struct hdt_cluster_file *cluster);

/* Bytes of memory that a device of these nodes may use; NaN: not known. */
double hdt_cluster_file_memory_bytes(const struct hdt_cluster_file_nodes *nodes);

/* The way from one site to another: its links one after another, relays between them. */
struct hdt_cluster_file_path {
    const struct hdt_cluster_file_wan *legs[HDT_CLUSTER_FILE_MAX_LEGS];
    bool reversed[HDT_CLUSTER_FILE_MAX_LEGS]; /* the leg goes from its `to` to its `from` */
    size_t n_legs;
    double rtt_s; /* sum */
    double loss;  /* of all legs together */
    double price_per_gb;
};

/* The sites must differ and be of this cluster; a loaded file has a way for each pair. */
void hdt_cluster_file_path(const struct hdt_cluster_file *cluster, size_t from_idx, size_t to_idx,
                           struct hdt_cluster_file_path *path);

/* Bytes a second of a leg for messages of `bytes`, alone on it. */
double hdt_cluster_file_leg_bytes_per_s(const struct hdt_cluster_file_wan *leg, double bytes);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CLUSTER_FILE_H */
