/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What a plan comes to and why: what limits it, how others differ, why nothing fits. */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

const char *const hdt_layout_limit_names[] = {"compute", "bubble", "wan", "link",
                                              "sync",    "memory", NULL};

/* A link that is busy for so much of a step limits it. */
#define LINK_LIMITS 0.85
/* And so does a stage that computes for so much of it. */
#define STAGE_LIMITS 0.7

/* ---- what limits ---- */

/* A simulated layout. */
struct played {
    const struct hdt_layout_files *files;
    const struct hdt_layout_sim *sim;
    const struct hdt_sim_result *result;
};

static size_t busiest_rank(const struct played *p)
{
    size_t at = 0;

    for (size_t i = 1; i < p->result->n_ranks; i++) {
        if (p->result->ranks[i].use_s[HDT_SIM_BUSY] > p->result->ranks[at].use_s[HDT_SIM_BUSY]) {
            at = i;
        }
    }
    return at;
}

static bool is_wan(const struct played *p, size_t link)
{
    return hdt_layout_sim_link(p->sim, link)->to[0] != '\0';
}

/* The link that is busy longest, between sites or inside them; n_links: there is none. */
static size_t busiest_link(const struct played *p, bool wan)
{
    size_t at = p->result->n_links;

    for (size_t i = 0; i < p->result->n_links; i++) {
        if (is_wan(p, i) == wan && (at == p->result->n_links ||
                                    p->result->links[i].busy_s > p->result->links[at].busy_s)) {
            at = i;
        }
    }
    return at;
}

static double link_share(const struct played *p, size_t link)
{
    return link < p->result->n_links ? p->result->links[link].busy_s / p->result->makespan_s : 0;
}

static void link_text(const struct played *p, size_t link, struct hdt_layout_found *f)
{
    const struct hdt_layout_link *l = hdt_layout_sim_link(p->sim, link);

    snprintf(f->limit_text, sizeof(f->limit_text), "%.80s%s%.80s is busy for %.0f %% of the step",
             l->from, l->to[0] ? " -> " : "", l->to, 100 * link_share(p, link));
}

static void stage_text(const struct played *p, size_t rank, struct hdt_layout_found *f)
{
    static const char *const recompute_text[] = {"", ", recomputes the attention's matrices",
                                                 ", recomputes its layers"};
    static const char *const offload_text[] = {"", ", optimizer on the host",
                                               ", activations on the host",
                                               ", optimizer and activations on the host"};
    size_t stage = rank % p->files->n_stages;
    enum hdt_layout_recompute r = hdt_layout_recompute(&p->files->layout, stage);
    enum hdt_layout_offload o = hdt_layout_offload(&p->files->layout, stage);
    double share = p->result->ranks[rank].use_s[HDT_SIM_BUSY] / p->result->makespan_s;

    snprintf(f->limit_text, sizeof(f->limit_text),
             "stage %zu of replica %zu ('%.60s', %lld layers%s%s) computes for %.0f %% of the step",
             stage, rank / p->files->n_stages, p->files->groups[rank].nodes->name,
             (long long)hdt_layout_stage(&p->files->layout, stage)->layers, recompute_text[r],
             offload_text[o], 100 * share);
    f->limit = r != HDT_LAYOUT_KEEP || o != HDT_LAYOUT_OFFLOAD_NONE ? HDT_LAYOUT_LIMIT_MEMORY
                                                                    : HDT_LAYOUT_LIMIT_COMPUTE;
}

static void rest_text(const struct played *p, size_t rank, struct hdt_layout_found *f)
{
    const double *use = p->result->ranks[rank].use_s;
    double all = p->result->makespan_s, comm = use[HDT_SIM_COMM] / all;
    double bubble = (use[HDT_SIM_BUBBLE] + use[HDT_SIM_WAIT]) / all;

    f->limit = comm > bubble ? HDT_LAYOUT_LIMIT_SYNC : HDT_LAYOUT_LIMIT_BUBBLE;
    snprintf(f->limit_text, sizeof(f->limit_text),
             "the busiest stage, %zu, computes for %.0f %% of the step, adds gradients and handles "
             "messages for %.0f %%, waits for %.0f %% (%lld micro-batches over %zu stages)",
             rank % p->files->n_stages, 100 * use[HDT_SIM_BUSY] / all, 100 * comm, 100 * bubble,
             (long long)p->files->n_micro_batches, p->files->n_stages);
}

static void limit_find(const struct played *p, struct hdt_layout_found *f)
{
    size_t rank = busiest_rank(p), wan = busiest_link(p, true), link = busiest_link(p, false);
    double share = p->result->ranks[rank].use_s[HDT_SIM_BUSY] / p->result->makespan_s;

    if (link_share(p, wan) > LINK_LIMITS && link_share(p, wan) > share) {
        f->limit = HDT_LAYOUT_LIMIT_WAN;
        link_text(p, wan, f);
    } else if (link_share(p, link) > LINK_LIMITS && link_share(p, link) > share) {
        f->limit = HDT_LAYOUT_LIMIT_LINK;
        link_text(p, link, f);
    } else if (share > STAGE_LIMITS) {
        stage_text(p, rank, f);
    } else {
        rest_text(p, rank, f);
    }
}

/* ---- rates ---- */

/* Money for a gigabyte on the leg that a link is. */
static double leg_price(const struct played *p, size_t link)
{
    const struct hdt_layout_link *l = hdt_layout_sim_link(p->sim, link);
    const struct hdt_conf_list *wan = &p->files->cluster.wan;

    for (size_t i = 0; i < wan->n; i++) {
        const struct hdt_cluster_file_wan *w = (const struct hdt_cluster_file_wan *)wan->items + i;

        if (w->via[0] == '\0' &&
            ((strcmp(w->from, l->from) == 0 && strcmp(w->to, l->to) == 0) ||
             (w->both_ways && strcmp(w->from, l->to) == 0 && strcmp(w->to, l->from) == 0))) {
            return w->price_per_gb;
        }
    }
    return 0;
}

static void uses_fill(const struct played *p, struct hdt_layout_found *f)
{
    double watts = 0, busy_s = 0;

    for (size_t i = 0; i < p->result->n_links; i++) {
        if (is_wan(p, i)) {
            f->wan_bytes += p->result->links[i].bytes;
            f->wan_price += p->result->links[i].bytes / 1e9 * leg_price(p, i);
        }
    }
    for (size_t i = 0; i < p->result->n_ranks; i++) {
        const struct hdt_layout_group *g = &p->files->groups[i];

        f->n_devices += g->tp;
        watts += (double)g->tp * g->nodes->device->power.tdp_w;
        busy_s += p->result->ranks[i].use_s[HDT_SIM_BUSY];
    }
    f->joules = watts * p->result->makespan_s;
    f->prediction = (struct hdt_layout_prediction){
        .step_s = p->result->makespan_s,
        .memory_bytes = hdt_layout_sim_memory_bytes(p->sim),
        .bubble_share = 1 - busy_s / (double)p->result->n_ranks / p->result->makespan_s};
    f->tokens_per_s = (double)p->files->layout.global_batch * (double)p->files->layout.seq_len /
                      p->result->makespan_s;
}

/* Each device has room for what its rank holds. */
static enum hdt_status memory_check(const struct hdt_layout_files *files,
                                    const struct hdt_layout_sim *sim, struct hdt_error *err)
{
    for (size_t i = 0; i < files->n_stages * files->n_replicas; i++) {
        const struct hdt_cluster_file_nodes *nodes = files->groups[i].nodes;
        double has = hdt_cluster_file_memory_bytes(nodes);
        double wants = hdt_layout_sim_rank(sim, i)->memory.total;

        if (wants > has) {
            hdt_error_set(err, HDT_ENOMEM,
                          "the plan does not fit: stage %zu needs %.4g GiB of a device of nodes "
                          "'%.64s', which has %.4g",
                          i % files->n_stages, wants / GIB, nodes->name, has / GIB);
            hdt_error_hint(err, "recompute or offload more there, or give it fewer layers");
            return HDT_ENOMEM;
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_seek_found_rate(const struct hdt_layout_files *files,
                                    const struct hdt_layout_search_options *options,
                                    const struct hdt_stage_cost_constants *constants,
                                    struct hdt_layout_found *found, struct hdt_error *err)
{
    struct hdt_layout_sim *sim;
    struct hdt_sim_result result;
    struct played p = {.files = files, .result = &result};
    enum hdt_status status;

    HDT_TRY(hdt_layout_sim_open(files, constants, &sim, err));
    p.sim = sim;
    status = memory_check(files, sim, err);
    status = status == HDT_OK ? hdt_sim_run(hdt_layout_sim_setup(sim), &result, err) : status;
    if (status == HDT_OK) {
        uses_fill(&p, found);
        limit_find(&p, found);
        found->objective = options->objective == HDT_LAYOUT_THROUGHPUT ? found->prediction.step_s
                           : options->objective == HDT_LAYOUT_ENERGY
                               ? found->joules
                               : found->wan_price + (double)found->n_devices *
                                                        found->prediction.step_s / 3600 *
                                                        options->device_hour_price;
        hdt_sim_result_release(&result);
    }
    hdt_layout_sim_close(sim);
    return status;
}

/* ---- differences ---- */

static int replicas_count(const struct search_cand *c)
{
    int n = 0;

    for (int i = 0; i < c->n_classes; i++) {
        n += c->classes[i].n;
    }
    return n;
}

/* "a100 x2, v100 x3": nodes of the first class's stages. */
static void order_text(const struct search *s, const struct search_cand *c, struct hdt_buf *buf)
{
    for (int t = 0; t < c->n_stages;) {
        int n = 1;
        const struct search_kind *k = &s->kinds[c->cells[0][t].kind];

        while (t + n < c->n_stages && c->cells[0][t + n].kind == c->cells[0][t].kind) {
            n++;
        }
        hdt_buf_appendf(buf, "%s%.40s", t ? ", " : "", k->nodes->name);
        if (n > 1) {
            hdt_buf_appendf(buf, " x%d", n);
        }
        t += n;
    }
}

void hdt_seek_differs(const struct search *s, const struct search_cand *best,
                      const struct search_cand *c, char *text, size_t cap)
{
    struct hdt_buf buf;
    int r = replicas_count(c), of = replicas_count(best);
    const char *sep = "";
    char own[HDT_LAYOUT_SEARCH_TEXT_CAP / 3], its[HDT_LAYOUT_SEARCH_TEXT_CAP / 3];

    hdt_buf_init(&buf);
    if (c->n_stages != best->n_stages || r != of) {
        hdt_buf_appendf(&buf, "%d stages and %d replicas, not %d and %d", c->n_stages, r,
                        best->n_stages, of);
        sep = "; ";
    }
    if (c->n_stages != best->n_stages ||
        memcmp(c->cells[0], best->cells[0], (size_t)c->n_stages * sizeof(c->cells[0][0])) != 0) {
        hdt_buf_appendf(&buf, "%sstages on ", sep);
        order_text(s, c, &buf);
        sep = "; ";
    }
    if (c->classes[0].batch != best->classes[0].batch) {
        hdt_buf_appendf(&buf, "%smicro-batches of %d, not %d", sep, s->batches[c->classes[0].batch],
                        s->batches[best->classes[0].batch]);
        sep = "; ";
    }
    if (c->n_classes != best->n_classes) {
        hdt_buf_appendf(&buf, "%s%d unlike ways through the cluster, not %d", sep, c->n_classes,
                        best->n_classes);
        sep = "; ";
    }
    if (c->schedule != best->schedule) {
        hdt_buf_appendf(&buf, "%sschedule %s, not %s", sep, hdt_schedule_names[c->schedule],
                        hdt_schedule_names[best->schedule]);
        sep = "; ";
    }
    if (c->sharded != best->sharded) {
        hdt_buf_appendf(&buf, "%soptimizer %s", sep, c->sharded ? "sharded" : "not sharded");
        sep = "; ";
    }
    if (c->codec != best->codec) {
        hdt_seek_codecs_text(s, c, own, sizeof(own));
        hdt_seek_codecs_text(s, best, its, sizeof(its));
        hdt_buf_appendf(&buf, "%scodec %s, not %s", sep, own, its);
        sep = "; ";
    }
    if (buf.len == 0) {
        hdt_buf_append_str(&buf, "other nodes or degrees in some replicas");
    }
    snprintf(text, cap, "%s", hdt_buf_str(&buf));
    hdt_buf_release(&buf);
}

/* ---- what is asked for ---- */

static const char *site_at(const struct hdt_layout_files *files, size_t site)
{
    return hdt_cluster_file_site(&files->cluster, site)->name;
}

/* Is a stage that begins with layer `first` bound by a pin? */
static bool is_bound(const struct hdt_layout_files *plan, const struct hdt_layout_pin *pin,
                     size_t stage, int64_t first)
{
    return (pin->parts & HDT_LAYOUT_PIN_EMBED && stage == 0) ||
           (pin->parts & HDT_LAYOUT_PIN_HEAD && stage + 1 == plan->n_stages) ||
           (pin->parts & HDT_LAYOUT_PIN_LAYERS && first <= pin->last_layer &&
            first + hdt_layout_stage(&plan->layout, stage)->layers > pin->first_layer);
}

static bool plan_pin_holds(const struct hdt_layout_files *plan, const struct hdt_layout_pin *pin,
                           char *why, size_t cap)
{
    int64_t first = 0;

    for (size_t t = 0; t < plan->n_stages; t++) {
        for (size_t r = 0; r < plan->n_replicas && is_bound(plan, pin, t, first); r++) {
            const struct hdt_layout_group *g = &plan->groups[r * plan->n_stages + t];

            if (g->site_idx != pin->site_idx) {
                snprintf(why, cap,
                         "its stage %zu is at '%.64s', what it holds is pinned to '%.64s'", t,
                         site_at(plan, g->site_idx), site_at(plan, pin->site_idx));
                return false;
            }
        }
        first += hdt_layout_stage(&plan->layout, t)->layers;
    }
    return true;
}

/* Of all pairs of sites, where one of the two has pairs of its own. */
static bool codecs_differ(const struct hdt_layout_files *a, const struct hdt_layout_files *b)
{
    size_t n = a->n_wan_pairs + b->n_wan_pairs > 0 ? a->cluster.sites.n : 0;
    bool differ = n == 0 && (a->layout.wan.codec_ratio != b->layout.wan.codec_ratio ||
                             a->layout.wan.sync_ratio != b->layout.wan.sync_ratio);

    for (size_t i = 0; i < n && !differ; i++) {
        for (size_t k = i + 1; k < n && !differ; k++) {
            struct hdt_layout_wire x = hdt_layout_wan_between(a, i, k);
            struct hdt_layout_wire y = hdt_layout_wan_between(b, i, k);

            differ = x.codec_ratio != y.codec_ratio || x.sync_ratio != y.sync_ratio;
        }
    }
    return differ;
}

/* The first kept setting of which a plan has another; NULL: it has them all. */
static const char *kept_differs(const struct hdt_layout_files *base,
                                const struct hdt_layout_files *plan, unsigned keep)
{
    const struct hdt_layout *job = &base->layout, *l = &plan->layout;
    bool batch = l->micro_batch != job->micro_batch, recompute = false, offload = false;
    const struct hdt_layout_replicas *replicas = l->replicas.items;

    for (size_t i = 0; i < l->replicas.n; i++) {
        batch = batch || replicas[i].micro_batch != job->micro_batch;
    }
    for (size_t t = 0; t < plan->n_stages; t++) {
        recompute = recompute || (int)hdt_layout_recompute(l, t) != job->recompute;
        offload = offload || (int)hdt_layout_offload(l, t) != job->offload;
    }
    return keep & HDT_LAYOUT_KEEP_MICRO_BATCH && batch ? "micro_batch"
           : keep & HDT_LAYOUT_KEEP_SCHEDULE && job->schedule != HDT_SCHEDULE_AUTO &&
                   (l->schedule != job->schedule ||
                    (l->schedule == HDT_SCHEDULE_INTERLEAVED && l->chunks != job->chunks))
               ? "schedule"
           : keep & HDT_LAYOUT_KEEP_RECOMPUTE && recompute ? "recompute"
           : keep & HDT_LAYOUT_KEEP_OFFLOAD && offload     ? "offload"
           : keep & HDT_LAYOUT_KEEP_SHARDED && l->optimizer.sharded != job->optimizer.sharded
               ? "optimizer.sharded"
           : keep & HDT_LAYOUT_KEEP_SYNC && l->sync != job->sync                   ? "sync"
           : keep & HDT_LAYOUT_KEEP_ALL_REDUCE && l->all_reduce != job->all_reduce ? "all_reduce"
           : keep & HDT_LAYOUT_KEEP_CODEC && codecs_differ(base, plan)             ? "wan codec"
                                                                                   : NULL;
}

bool hdt_layout_search_holds(const struct hdt_layout_files *base,
                             const struct hdt_layout_files *plan,
                             const struct hdt_layout_search_options *options, char *why, size_t cap)
{
    const char *what = kept_differs(base, plan, options->keep);

    for (size_t i = 0; i < options->n_without; i++) {
        for (size_t g = 0; g < plan->n_replicas * plan->n_stages; g++) {
            if (plan->groups[g].site_idx == options->without[i]) {
                snprintf(why, cap, "it runs at site '%.64s'", site_at(plan, options->without[i]));
                return false;
            }
        }
    }
    for (size_t i = 0; i < options->n_pins; i++) {
        if (!plan_pin_holds(plan, &options->pins[i], why, cap)) {
            return false;
        }
    }
    if (what) {
        snprintf(why, cap, "its %s is not what the job asks for", what);
    }
    return !what;
}

/* ---- nothing ---- */

enum hdt_status hdt_seek_refuse(const struct search *s, struct hdt_error *err)
{
    const struct search_short *x = &s->shortage;
    const struct hdt_conf_doc *doc = s->base->doc;
    const char *name = s->base->layout.name;

    if (s->is_cut) {
        hdt_conf_error(doc, "cluster", err, HDT_ETIMEDOUT,
                       "cannot plan '%.64s': ended before a plan was found", name);
        hdt_error_hint(err, "give it more time");
        return HDT_ETIMEDOUT;
    }
    if (s->n_unpinned > 0 && s->n_simulated == 0) {
        hdt_conf_error(doc, "cluster", err, HDT_EINVAL,
                       "cannot plan '%.64s': of %lld candidates that fit none holds to the pins",
                       name, (long long)s->n_unpinned);
        hdt_error_hint(err, "loosen pins, or give the pinned site more devices");
        return HDT_EINVAL;
    }
    if (s->n_simulated > 0 && s->why.msg[0]) {
        hdt_conf_error(doc, "cluster", err, HDT_EINVAL,
                       "cannot plan '%.64s': none of %lld candidates can be: %.200s", name,
                       (long long)s->n_simulated, s->why.msg);
        hdt_error_hint(err, "%s", s->why.hint[0] ? s->why.hint : "loosen what the job keeps");
        return HDT_EINVAL;
    }
    if (x->bytes > 0) {
        bool keeps_all = s->options->keep & HDT_LAYOUT_KEEP_RECOMPUTE &&
                         s->base->layout.recompute != HDT_LAYOUT_FULL;
        const struct hdt_cluster_file_nodes *nodes = s->kinds[x->kind].nodes;

        hdt_conf_error(doc, keeps_all ? "recompute" : "cluster", err, HDT_ENOMEM,
                       "cannot plan '%.64s': nothing fits; nearest is a stage of %d layer%s%s%s, "
                       "which needs %.4g GiB of a %s of nodes '%.64s' that has %.4g (%.3g more)",
                       name, x->layers, x->layers == 1 ? "" : "s",
                       x->is_first ? " and the embedding" : "", x->is_last ? " and the head" : "",
                       x->bytes / GIB, x->on_host ? "host" : "device", nodes->name,
                       x->has_bytes / GIB, (x->bytes - x->has_bytes) / GIB);
        hdt_error_hint(err,
                       "%smore devices, or devices with more memory%s; shorter sequences; "
                       "optimizer.moments bf16 or int8; fp32_gradients: false",
                       keeps_all ? "leave out recompute, which the job has, or say full; " : "",
                       isnan(nodes->host.gb) ? "; a host to offload to (host in the cluster file)"
                                             : "");
        return HDT_ENOMEM;
    }
    hdt_conf_error(doc, s->options->n_pins > 0 ? "cluster" : "global_batch", err, HDT_EINVAL,
                   "cannot plan '%.64s': no plan holds to what is asked (%lld candidates)", name,
                   (long long)s->n_candidates);
    hdt_error_hint(err, "%s",
                   s->options->n_pins > 0 ? "loosen pins, or give the pinned site more devices"
                                          : "loosen what is kept of the layout, or the batch");
    return HDT_EINVAL;
}
