/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_LAYOUT_H
#define HDT_CORE_LAYOUT_H

/*
 * A layout: how a model is laid out over a cluster that need not exist, as its user writes it
 * (layout.yaml), to ask what a step would take there. It names its cluster file, its model and the
 * profiles of devices; stages name nodes of the cluster. What a running federation trains is
 * src/core/plan.h.
 *
 * A *group* is what runs one replica of one stage: `tp` devices of one node. Groups are placed in
 * the order in which the file has them, each in the first node of its kind that has room and is not
 * before the last one that was filled.
 *
 * Loaded data is only read afterwards: any thread.
 */
#include "src/core/cluster_file.h"
#include "src/core/job.h"
#include "src/core/layer_profile.h"
#include "src/core/model_shape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_LAYOUT_MAX_STAGES 1024
#define HDT_LAYOUT_MAX_GROUPS 16384

enum hdt_layout_exchange {
    HDT_LAYOUT_FREE,   /* what is computed goes at once, beside the next computation */
    HDT_LAYOUT_PAIRED, /* DeepSpeed: a sender waits, and gradients come before activations go */
};

enum hdt_layout_all_reduce {
    HDT_LAYOUT_AUTO, /* hierarchical between sites, else a ring */
    HDT_LAYOUT_RING,
    HDT_LAYOUT_HIERARCHICAL,
    HDT_LAYOUT_TREE,
};

enum hdt_layout_attention {
    HDT_LAYOUT_PLAIN, /* T x T matrices go through memory and stay there */
    HDT_LAYOUT_FUSED, /* in one kernel: FlashAttention */
};

/* How replicas' gradients are added, and weights gathered where each has stepped on a part. */
enum hdt_layout_sync {
    HDT_LAYOUT_SYNC_AFTER,      /* when all is computed; when all have stepped */
    HDT_LAYOUT_SYNC_OVERLAPPED, /* gradients in buckets, while the last backward goes on */
    HDT_LAYOUT_SYNC_BOTH,       /* weights, too, while the next step's first forward goes on */
};

enum hdt_layout_moments {
    HDT_LAYOUT_MOMENTS_FP32,
    HDT_LAYOUT_MOMENTS_BF16,
    HDT_LAYOUT_MOMENTS_INT8
};

/* What the host has instead of the device: bits. */
enum hdt_layout_offload {
    HDT_LAYOUT_OFFLOAD_NONE = 0,
    HDT_LAYOUT_OFFLOAD_OPTIMIZER = 1,
    HDT_LAYOUT_OFFLOAD_ACTIVATIONS = 2,
    HDT_LAYOUT_OFFLOAD_BOTH = 3,
};

enum hdt_layout_recompute { HDT_LAYOUT_KEEP, HDT_LAYOUT_SELECTIVE, HDT_LAYOUT_FULL };

struct hdt_layout_profile {
    char *file;
};

/* Groups of one stage on alike nodes. */
struct hdt_layout_on {
    char *site; /* "": the only one */
    char *nodes;
    int64_t count, tp;
};

struct hdt_layout_stage {
    int64_t layers;
    int offload;             /* 0: as the layout; else 1 more than enum hdt_layout_offload */
    int recompute;           /* 0: as the layout; else 1 more than enum hdt_layout_recompute */
    struct hdt_conf_list on; /* of struct hdt_layout_on */
};

/* Replicas in their order that have other micro-batches than all would have. */
struct hdt_layout_replicas {
    int64_t count;
    int64_t micro_batch;   /* sequences; 0: the layout's */
    int64_t micro_batches; /* of each of these replicas */
};

/* What is another between two sites, there and back. */
struct hdt_layout_wan_link {
    char *from, *to;
    double codec_ratio, codec_gb_per_s, sync_ratio; /* NaN: the section's; 0 GB/s: takes no time */
};

/* What leaves a site. */
struct hdt_layout_wan {
    double codec_ratio;         /* of activations and their gradients */
    double codec_gb_per_s;      /* NaN: takes no time */
    double sync_ratio;          /* of gradients that are added */
    struct hdt_conf_list links; /* of struct hdt_layout_wan_link */
};

/* The same three between one site and another. */
struct hdt_layout_wire {
    double codec_ratio, codec_gb_per_s, sync_ratio;
};

struct hdt_layout_optimizer {
    int moments;  /* enum hdt_layout_moments */
    bool sharded; /* each replica keeps and steps on a part */
};

struct hdt_layout_measured {
    double step_s, memory_gb; /* NaN: not known */
};

struct hdt_layout {
    char *name;
    char *cluster, *model;
    struct hdt_conf_list profiles; /* of struct hdt_layout_profile */
    int precision;                 /* enum hdt_precision, of products and activations */
    bool fp32_gradients;
    int64_t seq_len, micro_batch, global_batch;
    int schedule;   /* enum hdt_schedule_kind */
    int64_t chunks; /* stages of a group that takes turns */
    int exchange, all_reduce, sync, recompute;
    int attention;        /* enum hdt_layout_attention */
    uint64_t sync_bucket; /* bytes of a device */
    int offload;          /* enum hdt_layout_offload */
    struct hdt_layout_optimizer optimizer;
    struct hdt_layout_wan wan;
    struct hdt_conf_list stages;   /* of struct hdt_layout_stage */
    struct hdt_conf_list replicas; /* of struct hdt_layout_replicas; none: all are alike */
    struct hdt_layout_measured measured;
};

extern const struct hdt_conf_schema hdt_layout_schema;

/* Where a group is. */
struct hdt_layout_group {
    size_t site_idx, nodes_idx; /* in the cluster */
    const struct hdt_cluster_file_nodes *nodes;
    int64_t node; /* which one of them */
    int64_t tp;
};

/* An entry of wan.links, its sites found. */
struct hdt_layout_wan_pair {
    size_t low, high; /* sites in the cluster */
    size_t idx;       /* in wan.links */
    struct hdt_layout_wire wire;
};

/* A layout with all that it names. */
struct hdt_layout_files {
    struct hdt_layout layout;
    struct hdt_conf_doc *doc; /* where its settings stand, for messages about what they cost */
    struct hdt_devices catalogue;
    struct hdt_cluster_file cluster;
    struct hdt_model_shape model;
    struct hdt_layer_profile *profiles;
    size_t n_profiles;
    size_t n_stages, n_replicas;
    struct hdt_layout_group *groups;       /* (n_replicas, n_stages) */
    int64_t n_micro_batches;               /* of the replica that has most */
    struct hdt_layout_wan_pair *wan_pairs; /* sorted: those of layout.wan.links */
    size_t n_wan_pairs;
};

/* What stands in for what the file names; NULL: nothing. */
struct hdt_layout_instead {
    const char *cluster, *model;
    const char *catalogue; /* NULL: the installed one */
};

/* Load a layout and what it names; to be released on success. HDT_ENOENT, HDT_EIO; HDT_EINVAL with
 * file:line: unknown names, layers that are not the model's, more groups than nodes have room for,
 * a batch that does not divide, two sites with two entries in wan.links. */
enum hdt_status hdt_layout_open(const char *path, const struct hdt_layout_instead *instead,
                                struct hdt_layout_files *files, struct hdt_error *err);
/* The same with the layout from memory; `file` names the text in messages and anchors its paths. */
enum hdt_status hdt_layout_parse(const char *text, size_t len, const char *file,
                                 const struct hdt_layout_instead *instead,
                                 struct hdt_layout_files *files, struct hdt_error *err);
void hdt_layout_release(struct hdt_layout_files *files);

/* Load a layout without its plan: stages and replicas may be missing, and are not looked at.
 * files->groups is NULL. Errors as hdt_layout_open's. */
enum hdt_status hdt_layout_open_job(const char *path, const struct hdt_layout_instead *instead,
                                    struct hdt_layout_files *files, struct hdt_error *err);
/* The same from memory, as hdt_layout_parse. */
enum hdt_status hdt_layout_parse_job(const char *text, size_t len, const char *file,
                                     const struct hdt_layout_instead *instead,
                                     struct hdt_layout_files *files, struct hdt_error *err);

/* `layout` on what `base` has loaded: checked and placed as a file is. `layout` is borrowed, and so
 * is all of `base`; both must stay. hdt_layout_derived_release on success. HDT_EINVAL. */
enum hdt_status hdt_layout_derive(const struct hdt_layout_files *base,
                                  const struct hdt_layout *layout, struct hdt_layout_files *files,
                                  struct hdt_error *err);
void hdt_layout_derived_release(struct hdt_layout_files *files);

/* A copy with strings and lists of its own; hdt_conf_release(&hdt_layout_schema, copy). */
void hdt_layout_copy(const struct hdt_layout *layout, struct hdt_layout *copy);

static inline const struct hdt_layout_stage *hdt_layout_stage(const struct hdt_layout *layout,
                                                              size_t idx)
{
    return (const struct hdt_layout_stage *)layout->stages.items + idx;
}

static inline const struct hdt_layout_group *hdt_layout_group(const struct hdt_layout_files *files,
                                                              size_t replica, size_t stage)
{
    return &files->groups[replica * files->n_stages + stage];
}

/* What a stage offloads; where that stands ("offload", "stages[3].offload"), for messages. */
enum hdt_layout_offload hdt_layout_offload(const struct hdt_layout *layout, size_t stage);
void hdt_layout_offload_key(const struct hdt_layout *layout, size_t stage, char *key, size_t cap);

/* What a stage recomputes. */
enum hdt_layout_recompute hdt_layout_recompute(const struct hdt_layout *layout, size_t stage);

/* Sequences of a replica's micro-batches, and how many it has. */
int64_t hdt_layout_micro_batch(const struct hdt_layout *layout, size_t replica);
int64_t hdt_layout_n_micro_batches(const struct hdt_layout_files *files, size_t replica);

/* What a path from one site to another has, or back: of wan.links where that names the two, else of
 * wan. Time: log(wan.links). */
struct hdt_layout_wire hdt_layout_wan_between(const struct hdt_layout_files *files, size_t site_a,
                                              size_t site_b);

/* The profile of a group's device; NULL: there is none. */
const struct hdt_layer_profile *hdt_layout_profile(const struct hdt_layout_files *files,
                                                   const struct hdt_layout_group *group);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_LAYOUT_H */
