/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/layout.h"
#include "src/base/buf.h"
#include "src/base/near.h"
#include "src/core/layout_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the table ---- */

static const char *const exchange_names[] = {"free", "paired", NULL};
static const char *const all_reduce_names[] = {"auto", "ring", "hierarchical", "tree", NULL};
static const char *const attention_names[] = {"plain", "fused", NULL};
static const char *const sync_names[] = {"after", "overlapped", "both", NULL};
static const char *const moments_names[] = {"fp32", "bf16", "int8", NULL};
static const char *const offload_names[] = {"none", "optimizer", "activations", "both", NULL};
static const char *const stage_offload_names[] = {"layout",      "none", "optimizer",
                                                  "activations", "both", NULL};
static const char *const recompute_names[] = {"none", "selective", "full", NULL};
static const char *const stage_recompute_names[] = {"layout", "none", "selective", "full", NULL};

static const struct hdt_conf_row profile_rows[] = {
    HDT_CONF_PATH(struct hdt_layout_profile, file, NULL, "A file. Example: gh200.json."),
    HDT_CONF_END};

static const struct hdt_conf_row on_rows[] = {
    HDT_CONF_STRING(struct hdt_layout_on, site, "",
                    "Site of the cluster. Empty: the cluster has one."),
    HDT_CONF_STRING(struct hdt_layout_on, nodes, NULL,
                    "Name of nodes of that site. Example: a100."),
    HDT_CONF_INT(struct hdt_layout_on, count, "1", 1, HDT_LAYOUT_MAX_GROUPS,
                 "Replicas of the stage there."),
    HDT_CONF_INT(struct hdt_layout_on, tp, "1", 1, 1024,
                 "Tensor-parallel degree: devices of one node that share the work of a replica."),
    HDT_CONF_END};

static const struct hdt_conf_row stage_rows[] = {
    HDT_CONF_INT(struct hdt_layout_stage, layers, NULL, 0, 1e5,
                 "Transformer layers; the first stage has the embedding, too, the last the head. "
                 "Example: 12."),
    HDT_CONF_ENUM(struct hdt_layout_stage, offload, "layout", stage_offload_names,
                  "What hosts have of this stage; layout: what offload says for all."),
    HDT_CONF_ENUM(struct hdt_layout_stage, recompute, "layout", stage_recompute_names,
                  "What a backward of this stage computes again; layout: what recompute says for "
                  "all."),
    HDT_CONF_LIST(struct hdt_layout_stage, on, on_rows, struct hdt_layout_on,
                  "Where its replicas run, in their order; all stages have as many."),
    HDT_CONF_END};

static const struct hdt_conf_row replicas_rows[] = {
    HDT_CONF_INT(struct hdt_layout_replicas, count, "1", 1, HDT_LAYOUT_MAX_GROUPS,
                 "How many replicas, behind those of the entries before."),
    HDT_CONF_COUNT(struct hdt_layout_replicas, micro_batch, "auto", 1, 65536,
                   "Sequences of their micro-batches. auto: micro_batch."),
    HDT_CONF_INT(struct hdt_layout_replicas, micro_batches, NULL, 1, 65536,
                 "Micro-batches of each of them in a step. Example: 8."),
    HDT_CONF_END};

static const struct hdt_conf_row link_rows[] = {
    HDT_CONF_STRING(struct hdt_layout_wan_link, from, NULL, "A site. Example: site-a."),
    HDT_CONF_STRING(struct hdt_layout_wan_link, to, NULL, "Another one. Example: site-b."),
    HDT_CONF_OPTIONAL(struct hdt_layout_wan_link, codec_ratio, 0.001, 1,
                      "As wan.codec_ratio. null: that."),
    HDT_CONF_OPTIONAL(struct hdt_layout_wan_link, codec_gb_per_s, 0, 1e5,
                      "As wan.codec_gb_per_s. null: that; 0: it takes no time."),
    HDT_CONF_OPTIONAL(struct hdt_layout_wan_link, sync_ratio, 0.001, 1,
                      "As wan.sync_ratio. null: that."),
    HDT_CONF_END};

static const struct hdt_conf_row wan_rows[] = {
    HDT_CONF_FLOAT(struct hdt_layout_wan, codec_ratio, "1", 0.001, 1,
                   "Bytes of activations and their gradients after the codec, as a share."),
    HDT_CONF_OPTIONAL(struct hdt_layout_wan, codec_gb_per_s, 0.001, 1e5,
                      "Bytes before the codec that one end takes in a second, 1e9 bytes. null: it "
                      "takes no time."),
    HDT_CONF_FLOAT(
        struct hdt_layout_wan, sync_ratio, "1", 0.001, 1,
        "The same share of gradients that sites add up by levels; neither a flat ring nor "
        "trees have it."),
    HDT_CONF_LIST(struct hdt_layout_wan, links, link_rows, struct hdt_layout_wan_link,
                  "Pairs of sites that have other ones, there and back, over one link or relays."),
    HDT_CONF_END};

static const struct hdt_conf_row optimizer_rows[] = {
    HDT_CONF_ENUM(struct hdt_layout_optimizer, moments, "fp32", moments_names,
                  "Of Adam's two moments; int8: in blocks with a scale each."),
    HDT_CONF_BOOL(struct hdt_layout_optimizer, sharded, "false",
                  "Replicas share the work (ZeRO-1, Megatron's distributed optimizer): each has "
                  "moments and fp32 weights of a part, gets the sum of its gradients only, and all "
                  "gather the new weights."),
    HDT_CONF_END};

static const struct hdt_conf_row measured_rows[] = {
    HDT_CONF_OPTIONAL(struct hdt_layout_measured, step_s, 1e-6, 1e9, "Seconds of a step."),
    HDT_CONF_OPTIONAL(struct hdt_layout_measured, memory_gb, 1e-3, 1e6,
                      "Memory of the device that took most, 1e9 bytes."),
    HDT_CONF_END};

static const struct hdt_conf_row layout_rows[] = {
    HDT_CONF_STRING(struct hdt_layout, name, "layout", "Name, for what is printed."),
    HDT_CONF_PATH(struct hdt_layout, cluster, NULL,
                  "The cluster's file (hdt-cluster.yaml(5)). Example: cluster.yaml."),
    HDT_CONF_PATH(struct hdt_layout, model, NULL,
                  "The model's config.json, as Hugging Face has it. Example: model.json."),
    HDT_CONF_LIST(struct hdt_layout, profiles, profile_rows, struct hdt_layout_profile,
                  "Measured layers of the model, one file a device. A device without is predicted "
                  "from the catalogue."),
    HDT_CONF_ENUM(struct hdt_layout, precision, "bf16", hdt_precision_names,
                  "Of matrix products. fp32 and tf32 have activations of 4 bytes, others of 2; "
                  "devices without tf32 take fp32."),
    HDT_CONF_BOOL(struct hdt_layout, fp32_gradients, "true",
                  "Gradients of 4 bytes, not of as many as activations."),
    HDT_CONF_INT(struct hdt_layout, seq_len, "2048", 1, 16777216, "Tokens of a sequence."),
    HDT_CONF_INT(struct hdt_layout, micro_batch, "1", 1, 65536, "Sequences of a micro-batch."),
    HDT_CONF_INT(struct hdt_layout, global_batch, NULL, 1, 1e8,
                 "Sequences of a step, of all replicas. Example: 256."),
    HDT_CONF_ENUM(struct hdt_layout, schedule, "1f1b", hdt_schedule_names,
                  "Order of the work, as plan.schedule of a job. wan: warm-ups cover the round "
                  "trips. zb-mem: twice the warm-up of 1f1b. auto: 1f1b."),
    HDT_CONF_INT(struct hdt_layout, chunks, "1", 1, 64,
                 "With schedule interleaved: stages that each entry of the list is cut into."),
    HDT_CONF_ENUM(struct hdt_layout, exchange, "free", exchange_names,
                  "free: what is computed goes at once, beside the next computation. paired: as "
                  "DeepSpeed, whose sender waits until its message has left, and takes a gradient "
                  "before it sends an activation."),
    HDT_CONF_ENUM(struct hdt_layout, all_reduce, "auto", all_reduce_names,
                  "How replicas add gradients: along one ring; or inside nodes, then between "
                  "nodes, then between sites; or up and down two binary trees, as NCCL does where "
                  "latency counts. auto: hierarchical between sites, else a ring."),
    HDT_CONF_ENUM(struct hdt_layout, sync, "after", sync_names,
                  "When: after all that is computed; or overlapped, in buckets while the backward "
                  "of the last micro-batch goes on, as Megatron and DDP can. both: weights of a "
                  "sharded optimizer are gathered so, too, while the forward of the next step's "
                  "first micro-batch goes on, as Megatron can."),
    HDT_CONF_BYTES(struct hdt_layout, sync_bucket, "25MiB", 1 << 20, 1e12,
                   "Gradients of a device that are added at a time when that is overlapped; and "
                   "weights that are gathered."),
    HDT_CONF_SECTION(struct hdt_layout, optimizer, optimizer_rows, "Adam, and where its state is."),
    HDT_CONF_ENUM(struct hdt_layout, offload, "none", offload_names,
                  "What hosts have instead of devices: the optimizer's state and its step, the "
                  "activations that wait for their backward, both. The cluster says what hosts "
                  "have room for, and how fast."),
    HDT_CONF_ENUM(struct hdt_layout, recompute, "none", recompute_names,
                  "What a backward computes again: nothing, the attention's matrices, whole "
                  "layers."),
    HDT_CONF_ENUM(struct hdt_layout, attention, "plain", attention_names,
                  "plain: its matrices of T x T go through memory and are kept; fused: in one "
                  "kernel without them, as FlashAttention. For layers that no profile has."),
    HDT_CONF_SECTION(struct hdt_layout, wan, wan_rows, "What leaves a site."),
    HDT_CONF_LIST(struct hdt_layout, stages, stage_rows, struct hdt_layout_stage,
                  "The pipeline, from embedding to head."),
    HDT_CONF_LIST(struct hdt_layout, replicas, replicas_rows, struct hdt_layout_replicas,
                  "Unlike shares of the global batch, for replicas on unlike devices: gradients "
                  "are weighted by tokens. None: all replicas have as many micro-batches."),
    HDT_CONF_SECTION(struct hdt_layout, measured, measured_rows,
                     "What a run took, to be shown beside the prediction; nothing is fitted to "
                     "it."),
    HDT_CONF_END};

const struct hdt_conf_schema hdt_layout_schema = {
    .name = "layout",
    .help = "How a model is laid out over a cluster, to predict a step: stages, replicas, batches.",
    .rows = layout_rows,
    .size = sizeof(struct hdt_layout),
    .start = "seq_len: 128\n"
             "stages:\n"
             "  - layers: 3\n"
             "    on: [{site: site-a, nodes: h100, count: 2, tp: 4}]\n"
             "  - layers: 3\n"
             "    on: [{site: site-b, nodes: a100, count: 2, tp: 4}]\n",
};

/* ---- checks ---- */

static enum hdt_status layers_check(const struct layout_loader *loader)
{
    const struct hdt_layout_files *f = loader->files;
    int64_t n = 0;

    if (f->n_stages == 0 || f->n_stages > HDT_LAYOUT_MAX_STAGES) {
        return hdt_conf_error(loader->doc, "stages", loader->err, HDT_EINVAL,
                              "there are %zu stages, allowed are 1 to %d", f->n_stages,
                              HDT_LAYOUT_MAX_STAGES);
    }
    for (size_t i = 0; i < f->n_stages; i++) {
        n += hdt_layout_stage(&f->layout, i)->layers;
    }
    if (n != f->model.L) {
        return hdt_conf_error(loader->doc, "stages", loader->err, HDT_EINVAL,
                              "the stages have %lld layers, the model has %lld", (long long)n,
                              (long long)f->model.L);
    }
    return HDT_OK;
}

/* Interleaved: each chunk of a stage has a layer. */
static enum hdt_status chunks_check(const struct layout_loader *loader)
{
    const struct hdt_layout *l = &loader->files->layout;
    char key[48];

    for (size_t i = 0; l->chunks > 1 && i < loader->files->n_stages; i++) {
        if (hdt_layout_stage(l, i)->layers < l->chunks) {
            snprintf(key, sizeof(key), "stages[%zu].layers", i);
            return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                                  "stage %zu has %lld layers, fewer than its %lld chunks", i,
                                  (long long)hdt_layout_stage(l, i)->layers, (long long)l->chunks);
        }
    }
    return HDT_OK;
}

static enum hdt_status length_check(const struct layout_loader *loader)
{
    const struct hdt_layout *l = &loader->files->layout;

    if (l->seq_len > loader->files->model.T) {
        return hdt_conf_error(loader->doc, "seq_len", loader->err, HDT_EINVAL,
                              "sequences of %lld tokens are longer than the model's %lld",
                              (long long)l->seq_len, (long long)loader->files->model.T);
    }
    return HDT_OK;
}

/* A backward in two halves needs what a recomputation would make for one of them. */
static enum hdt_status split_check(const struct layout_loader *loader)
{
    const struct hdt_layout *l = &loader->files->layout;
    char key[48];

    for (size_t i = 0; i < loader->files->n_stages; i++) {
        if (!hdt_schedule_is_split((enum hdt_schedule_kind)l->schedule) ||
            hdt_layout_recompute(l, i) == HDT_LAYOUT_KEEP) {
            continue;
        }
        snprintf(key, sizeof(key), "stages[%zu].recompute", i);
        return hdt_conf_error(
            loader->doc, hdt_layout_stage(l, i)->recompute > 0 ? key : "recompute", loader->err,
            HDT_EINVAL, "schedule %s keeps activations, it cannot recompute them",
            hdt_schedule_names[l->schedule]);
    }
    return HDT_OK;
}

static enum hdt_status order_check(const struct layout_loader *loader)
{
    struct hdt_layout *l = &loader->files->layout;

    if (l->schedule == HDT_SCHEDULE_AUTO) {
        l->schedule = HDT_SCHEDULE_1F1B;
    }
    if ((l->chunks > 1) != (l->schedule == HDT_SCHEDULE_INTERLEAVED)) {
        return hdt_conf_error(loader->doc, "chunks", loader->err, HDT_EINVAL,
                              l->chunks > 1 ? "chunks are for schedule interleaved only"
                                            : "schedule interleaved needs 2 chunks at least");
    }
    if (l->chunks > 1 && loader->files->n_stages < 2) {
        return hdt_conf_error(loader->doc, "stages", loader->err, HDT_EINVAL,
                              "schedule interleaved needs 2 stages at least");
    }
    HDT_TRY(split_check(loader));
    if (l->all_reduce == HDT_LAYOUT_TREE && l->optimizer.sharded) {
        hdt_conf_error(loader->doc, "all_reduce", loader->err, HDT_EINVAL,
                       "optimizer.sharded scatters and gathers, which trees do not do");
        hdt_error_hint(loader->err, "choose ring, hierarchical or auto");
        return HDT_EINVAL;
    }
    return length_check(loader);
}

/* Entries of `replicas` are all replicas, and theirs is the global batch. */
static enum hdt_status shares_check(const struct layout_loader *loader)
{
    struct hdt_layout_files *f = loader->files;
    const struct hdt_layout_replicas *all = f->layout.replicas.items;
    int64_t n = 0, sequences = 0;

    f->n_micro_batches = 0;
    for (size_t i = 0; i < f->layout.replicas.n; i++) {
        int64_t one = all[i].micro_batch > 0 ? all[i].micro_batch : f->layout.micro_batch;

        n += all[i].count;
        sequences += all[i].count * one * all[i].micro_batches;
        if (all[i].micro_batches > f->n_micro_batches) {
            f->n_micro_batches = all[i].micro_batches;
        }
        if (n > HDT_LAYOUT_MAX_GROUPS || sequences > f->layout.global_batch) {
            break;
        }
    }
    if (n != (int64_t)f->n_replicas || sequences != f->layout.global_batch) {
        hdt_conf_error(loader->doc, "replicas", loader->err, HDT_EINVAL,
                       "the entries have %lld replicas with %lld sequences, the stages %zu "
                       "replicas, the step %lld sequences",
                       (long long)n, (long long)sequences, f->n_replicas,
                       (long long)f->layout.global_batch);
        hdt_error_hint(loader->err, "counts must add up to the replicas of a stage, count x "
                                    "micro_batch x micro_batches to global_batch");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

/* Replicas of every stage, and their micro-batches. */
static enum hdt_status batch_check(const struct layout_loader *loader)
{
    struct hdt_layout_files *f = loader->files;
    int64_t one = f->layout.micro_batch, all = f->layout.global_batch, n_first = 0;
    char key[48];

    for (size_t i = 0; i < f->n_stages; i++) {
        const struct hdt_layout_stage *s = hdt_layout_stage(&f->layout, i);
        const struct hdt_layout_on *on = s->on.items;
        int64_t n = 0;

        for (size_t k = 0; k < s->on.n; k++) {
            n += on[k].count;
        }
        n_first = i == 0 ? n : n_first;
        if (n != n_first || n == 0 || n * (int64_t)f->n_stages > HDT_LAYOUT_MAX_GROUPS) {
            snprintf(key, sizeof(key), "stages[%zu].on", i);
            hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                           "stage %zu has %lld replicas, the first stage %lld", i, (long long)n,
                           (long long)n_first);
            hdt_error_hint(loader->err,
                           "all stages have as many replicas, 1 at least, and all together at most "
                           "%d",
                           HDT_LAYOUT_MAX_GROUPS);
            return HDT_EINVAL;
        }
    }
    f->n_replicas = (size_t)n_first;
    if (f->layout.replicas.n > 0) {
        return shares_check(loader);
    }
    f->n_micro_batches = all / (n_first * one);
    if (f->n_micro_batches < 1 || f->n_micro_batches * n_first * one != all ||
        f->n_micro_batches > 65536) {
        hdt_conf_error(loader->doc, "global_batch", loader->err, HDT_EINVAL,
                       "%lld sequences cannot be shared by %lld replicas in micro-batches of %lld",
                       (long long)all, (long long)n_first, (long long)one);
        hdt_error_hint(loader->err, "a multiple of %lld, at most 65536 times as many",
                       (long long)(n_first * one));
        return HDT_EINVAL;
    }
    return HDT_OK;
}

/* ---- placing ---- */

/* How far nodes of a kind are filled. */
struct filled {
    int64_t node, devices;
};

static enum hdt_status nodes_refuse(const struct layout_loader *loader, const char *key,
                                    const struct hdt_cluster_file_site *site, const char *name)
{
    struct hdt_near near;

    hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL, "site '%.64s' has no nodes '%.64s'",
                   site->name, name);
    hdt_near_init(&near, name);
    for (size_t i = 0; i < site->nodes.n; i++) {
        hdt_near_offer(&near, hdt_cluster_file_nodes(site, i)->name);
    }
    hdt_error_hint(loader->err, "it has '%.64s'",
                   near.best ? near.best : hdt_cluster_file_nodes(site, 0)->name);
    return HDT_EINVAL;
}

static enum hdt_status on_find(const struct layout_loader *loader, const char *key,
                               const struct hdt_layout_on *on, struct hdt_layout_group *group)
{
    const struct hdt_cluster_file *cluster = &loader->files->cluster;
    const struct hdt_cluster_file_site *site;
    size_t i = 0;

    group->site_idx = 0;
    if (on->site[0]) {
        HDT_TRY(hdt_layout_site_find(loader, key, on->site, &group->site_idx));
    } else if (cluster->sites.n > 1) {
        hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                       "the cluster has several sites: these nodes need one");
        hdt_error_hint(loader->err, "its first one is '%.64s'",
                       hdt_cluster_file_site(cluster, 0)->name);
        return HDT_EINVAL;
    }
    site = hdt_cluster_file_site(cluster, group->site_idx);
    while (i < site->nodes.n && strcmp(hdt_cluster_file_nodes(site, i)->name, on->nodes) != 0) {
        i++;
    }
    if (i == site->nodes.n) {
        return nodes_refuse(loader, key, site, on->nodes);
    }
    if (loader->files->model.NH % on->tp != 0) {
        return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                              "%lld heads cannot be shared by %lld devices",
                              (long long)loader->files->model.NH, (long long)on->tp);
    }
    group->nodes_idx = i;
    group->nodes = hdt_cluster_file_nodes(site, i);
    group->tp = on->tp;
    return HDT_OK;
}

static enum hdt_status on_place(const struct layout_loader *loader, const char *key,
                                const struct hdt_layout_on *on, struct filled *filled,
                                struct hdt_layout_group *group)
{
    if (filled->devices + on->tp > group->nodes->devices && filled->devices > 0) {
        *filled = (struct filled){.node = filled->node + 1};
    }
    if (on->tp > group->nodes->devices || filled->node >= group->nodes->count) {
        hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                       "there is no room on nodes '%.64s' for %lld devices of one node",
                       group->nodes->name, (long long)on->tp);
        hdt_error_hint(loader->err, "the cluster has %lld of them, with %lld devices each",
                       (long long)group->nodes->count, (long long)group->nodes->devices);
        return HDT_EINVAL;
    }
    group->node = filled->node;
    filled->devices += on->tp;
    return HDT_OK;
}

/* Groups of all stages into f->groups. `first` is by site: where its nodes stand in `filled`. */
static enum hdt_status stages_place(const struct layout_loader *loader, const size_t *first,
                                    struct filled *filled)
{
    struct hdt_layout_files *f = loader->files;
    char key[64];

    for (size_t i = 0; i < f->n_stages; i++) {
        const struct hdt_layout_stage *s = hdt_layout_stage(&f->layout, i);
        size_t replica = 0;

        for (size_t k = 0; k < s->on.n; k++) {
            const struct hdt_layout_on *on = (const struct hdt_layout_on *)s->on.items + k;
            struct hdt_layout_group group;

            snprintf(key, sizeof(key), "stages[%zu].on[%zu]", i, k);
            HDT_TRY(on_find(loader, key, on, &group));
            for (int64_t c = 0; c < on->count; c++) {
                HDT_TRY(on_place(loader, key, on, &filled[first[group.site_idx] + group.nodes_idx],
                                 &group));
                f->groups[replica++ * f->n_stages + i] = group;
            }
        }
    }
    return HDT_OK;
}

static enum hdt_status groups_place(const struct layout_loader *loader)
{
    struct hdt_layout_files *f = loader->files;
    size_t n = 0, *first = hdt_calloc(f->cluster.sites.n, sizeof(first[0]));
    struct filled *filled;
    enum hdt_status status;

    for (size_t i = 0; i < f->cluster.sites.n; i++) {
        first[i] = n;
        n += hdt_cluster_file_site(&f->cluster, i)->nodes.n;
    }
    filled = hdt_calloc(n + 1, sizeof(filled[0]));
    f->groups = hdt_calloc(f->n_replicas * f->n_stages, sizeof(f->groups[0]));
    status = stages_place(loader, first, filled);
    free(filled);
    free(first);
    return status;
}

/* ---- hosts ---- */

/* A figure of the host that offloading to it needs; NULL: all are known. */
static const char *host_lacks(const struct hdt_cluster_file_host *host,
                              enum hdt_layout_offload offload)
{
    if (isnan(host->gb)) {
        return "host.gb";
    }
    if (isnan(host->gb_per_s)) {
        return "host.gb_per_s";
    }
    return offload & HDT_LAYOUT_OFFLOAD_OPTIMIZER && isnan(host->memory_gb_per_s)
               ? "host.memory_gb_per_s"
               : NULL;
}

static enum hdt_status stage_offload_check(const struct layout_loader *loader, size_t stage)
{
    const struct hdt_layout_files *f = loader->files;
    enum hdt_layout_offload offload = hdt_layout_offload(&f->layout, stage);
    char key[48];

    hdt_layout_offload_key(&f->layout, stage, key, sizeof(key));
    if (offload & HDT_LAYOUT_OFFLOAD_ACTIVATIONS &&
        hdt_schedule_is_split((enum hdt_schedule_kind)f->layout.schedule)) {
        return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                              "schedule %s needs activations twice, they cannot be offloaded",
                              hdt_schedule_names[f->layout.schedule]);
    }
    for (size_t r = 0; r < f->n_replicas && offload != HDT_LAYOUT_OFFLOAD_NONE; r++) {
        const struct hdt_cluster_file_nodes *nodes = hdt_layout_group(f, r, stage)->nodes;
        const char *lacks = host_lacks(&nodes->host, offload);

        if (lacks) {
            hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                           "stage %zu cannot offload: the cluster does not say %s of nodes '%.64s'",
                           stage, lacks, nodes->name);
            hdt_error_hint(loader->err, "give it to these nodes (hdt-cluster.yaml(5))");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

static enum hdt_status offload_check(const struct layout_loader *loader)
{
    for (size_t i = 0; i < loader->files->n_stages; i++) {
        HDT_TRY(stage_offload_check(loader, i));
    }
    return HDT_OK;
}

/* ---- reading ---- */

static bool device_is_called(const struct hdt_device *device, const char *name)
{
    bool is = strcasecmp(device->name, name) == 0;

    for (size_t i = 0; !is && i < device->aliases.n; i++) {
        is = strcasecmp(device->aliases.items[i], name) == 0;
    }
    return is;
}

static bool cluster_has(const struct hdt_cluster_file *cluster, const char *device)
{
    bool has = false;

    for (size_t i = 0; i < cluster->sites.n; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(cluster, i);

        for (size_t k = 0; k < site->nodes.n; k++) {
            has = has || device_is_called(hdt_cluster_file_nodes(site, k)->device, device);
        }
    }
    return has;
}

static bool has_four_bytes(const char *precision)
{
    return strcmp(precision, "fp32") == 0 || strcmp(precision, "tf32") == 0;
}

/* tf32 is how values of fp32 are multiplied: who says one may mean the other. */
static bool precision_is_alike(const char *profile, const char *layout)
{
    return !profile[0] || strcmp(profile, layout) == 0 ||
           (has_four_bytes(profile) && has_four_bytes(layout));
}

/* A size of the model that the profile says and that is another one; NULL: there is none. */
static const char *shape_differs(const struct hdt_layer_profile *p, const struct hdt_model_shape *m)
{
    const struct {
        const char *name;
        int64_t is, wanted;
    } sizes[] = {
        {"hidden_size", p->shape.hidden_size, m->C},
        {"intermediate_size", p->shape.intermediate_size, m->F},
        {"num_attention_heads", p->shape.num_attention_heads, m->NH},
        {"num_key_value_heads", p->shape.num_key_value_heads, m->NKV},
        {"head_dim", p->shape.head_dim, m->HS},
        {"vocab_size", p->shape.vocab_size, m->V},
    };
    const struct hdt_layer *block = hdt_layer_profile_layer(p, HDT_LAYER_BLOCK);
    double wanted = (double)hdt_model_shape_layer_params(m);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].is != 0 && sizes[i].is != sizes[i].wanted) {
            return sizes[i].name;
        }
    }
    /* Programs differ in biases. */
    return block && fabs(block->params - wanted) > 0.01 * wanted ? "parameters of a layer" : NULL;
}

static enum hdt_status profile_check(const struct layout_loader *loader, size_t idx)
{
    const struct hdt_layout_files *f = loader->files;
    const struct hdt_layer_profile *p = &f->profiles[idx];
    const char *precision = hdt_precision_names[f->layout.precision];
    const char *differs = shape_differs(p, &f->model);
    char key[48];

    snprintf(key, sizeof(key), "profiles[%zu].file", idx);
    if (p->seq_len != 0 && p->seq_len != f->layout.seq_len) {
        return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                              "the profile is of sequences of %lld tokens, not of %lld",
                              (long long)p->seq_len, (long long)f->layout.seq_len);
    }
    if (!precision_is_alike(p->precision, precision)) {
        return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                              "the profile is of %.16s, the layout of %s", p->precision, precision);
    }
    if (differs) {
        return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                              "the profile of '%.64s' is of another model: its %s differ", p->model,
                              differs);
    }
    if (!cluster_has(&f->cluster, p->device)) {
        hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                       "the profile is of '%.64s', which the cluster does not have", p->device);
        hdt_error_hint(loader->err, "remove it, or mend its device's name");
        return HDT_EINVAL;
    }
    for (size_t i = 0; i < idx; i++) {
        if (strcasecmp(f->profiles[i].device, p->device) == 0) {
            return hdt_conf_error(loader->doc, key, loader->err, HDT_EINVAL,
                                  "there are two profiles of '%.64s'", p->device);
        }
    }
    return HDT_OK;
}

static enum hdt_status profiles_load(const struct layout_loader *loader)
{
    struct hdt_layout_files *f = loader->files;
    const struct hdt_layout_profile *named = f->layout.profiles.items;

    f->profiles = hdt_calloc(f->layout.profiles.n + 1, sizeof(f->profiles[0]));
    for (size_t i = 0; i < f->layout.profiles.n; i++) {
        HDT_TRY(hdt_layer_profile_load(named[i].file, &f->profiles[i], loader->err));
        f->n_profiles++;
        HDT_TRY(profile_check(loader, i));
    }
    return HDT_OK;
}

static enum hdt_status files_load(const struct layout_loader *loader,
                                  const struct hdt_layout_instead *instead)
{
    struct hdt_layout_files *f = loader->files;
    const char *cluster = instead->cluster ? instead->cluster : f->layout.cluster;
    const char *model = instead->model ? instead->model : f->layout.model;

    f->n_stages = f->layout.stages.n;
    HDT_TRY(hdt_devices_load(instead->catalogue, &f->catalogue, loader->err));
    HDT_TRY(hdt_cluster_file_load(cluster, &f->catalogue, &f->cluster, loader->err));
    HDT_TRY(hdt_model_shape_load(model, &f->model, loader->err));
    return profiles_load(loader);
}

static enum hdt_status plan_check(const struct layout_loader *loader)
{
    HDT_TRY(hdt_layout_wan_resolve(loader));
    HDT_TRY(layers_check(loader));
    HDT_TRY(order_check(loader));
    HDT_TRY(chunks_check(loader));
    HDT_TRY(batch_check(loader));
    HDT_TRY(groups_place(loader));
    return offload_check(loader);
}

/* files->layout and files->doc are there; all is released on failure. */
static enum hdt_status layout_complete(struct hdt_layout_files *files, bool has_plan,
                                       const struct hdt_layout_instead *instead,
                                       struct hdt_error *err)
{
    struct layout_loader loader = {.files = files, .doc = files->doc, .err = err};
    enum hdt_status status = files_load(&loader, instead);

    if (status == HDT_OK && !has_plan) {
        status = hdt_layout_wan_resolve(&loader);
    }
    if (status == HDT_OK) {
        status = has_plan ? plan_check(&loader) : length_check(&loader);
    }
    if (status != HDT_OK) {
        hdt_layout_release(files);
    }
    return status;
}

static enum hdt_status layout_open(const char *path, bool has_plan,
                                   const struct hdt_layout_instead *instead,
                                   struct hdt_layout_files *files, struct hdt_error *err)
{
    memset(files, 0, sizeof(*files));
    HDT_TRY(hdt_conf_load(&hdt_layout_schema, path, &files->layout, &files->doc, err));
    return layout_complete(files, has_plan, instead, err);
}

static enum hdt_status layout_parse(const char *text, size_t len, const char *file, bool has_plan,
                                    const struct hdt_layout_instead *instead,
                                    struct hdt_layout_files *files, struct hdt_error *err)
{
    memset(files, 0, sizeof(*files));
    HDT_TRY(hdt_conf_parse(&hdt_layout_schema, text, len, file, &files->layout, &files->doc, err));
    return layout_complete(files, has_plan, instead, err);
}

enum hdt_status hdt_layout_open(const char *path, const struct hdt_layout_instead *instead,
                                struct hdt_layout_files *files, struct hdt_error *err)
{
    return layout_open(path, true, instead, files, err);
}

enum hdt_status hdt_layout_open_job(const char *path, const struct hdt_layout_instead *instead,
                                    struct hdt_layout_files *files, struct hdt_error *err)
{
    return layout_open(path, false, instead, files, err);
}

enum hdt_status hdt_layout_parse(const char *text, size_t len, const char *file,
                                 const struct hdt_layout_instead *instead,
                                 struct hdt_layout_files *files, struct hdt_error *err)
{
    return layout_parse(text, len, file, true, instead, files, err);
}

enum hdt_status hdt_layout_parse_job(const char *text, size_t len, const char *file,
                                     const struct hdt_layout_instead *instead,
                                     struct hdt_layout_files *files, struct hdt_error *err)
{
    return layout_parse(text, len, file, false, instead, files, err);
}

enum hdt_status hdt_layout_derive(const struct hdt_layout_files *base,
                                  const struct hdt_layout *layout, struct hdt_layout_files *files,
                                  struct hdt_error *err)
{
    struct layout_loader loader = {.files = files, .doc = base->doc, .err = err};
    enum hdt_status status;

    *files = *base;
    files->layout = *layout;
    files->n_stages = layout->stages.n;
    files->n_replicas = 0;
    files->groups = NULL;
    files->wan_pairs = NULL;
    files->n_wan_pairs = 0;
    status = plan_check(&loader);
    if (status != HDT_OK) {
        hdt_layout_derived_release(files);
    }
    return status;
}

void hdt_layout_derived_release(struct hdt_layout_files *files)
{
    free(files->groups);
    free(files->wan_pairs);
    memset(files, 0, sizeof(*files));
}

void hdt_layout_release(struct hdt_layout_files *files)
{
    for (size_t i = 0; i < files->n_profiles; i++) {
        hdt_layer_profile_release(&files->profiles[i]);
    }
    free(files->profiles);
    free(files->groups);
    free(files->wan_pairs);
    hdt_cluster_file_release(&files->cluster);
    hdt_devices_release(&files->catalogue);
    hdt_conf_release(&hdt_layout_schema, &files->layout);
    hdt_conf_doc_free(files->doc);
    memset(files, 0, sizeof(*files));
}

const struct hdt_layer_profile *hdt_layout_profile(const struct hdt_layout_files *files,
                                                   const struct hdt_layout_group *group)
{
    for (size_t i = 0; i < files->n_profiles; i++) {
        if (device_is_called(group->nodes->device, files->profiles[i].device)) {
            return &files->profiles[i];
        }
    }
    return NULL;
}
