/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What links do for a candidate: messages from stage to stage, gradients of replicas. */
#include "src/plan/layout_search_impl.h"

#include <math.h>

/* ---- links ---- */

static double curve_rate(const struct hdt_link_curve *curve, double bytes, int64_t devices)
{
    return curve ? hdt_link_curve_bytes_per_s(curve, bytes > 1 ? bytes : 1, devices) : INFINITY;
}

static const struct hdt_link_curve *
between_curve(const struct search *s, const struct search_kind *a, const struct search_kind *b)
{
    const struct hdt_cluster_file_site *site =
        hdt_cluster_file_site(&s->base->cluster, a->site_idx);
    const struct hdt_cluster_file_pair *pairs = site->pairs.items;

    for (size_t i = 0; a->site_idx == b->site_idx && i < site->pairs.n; i++) {
        if ((pairs[i].from_idx == a->nodes_idx && pairs[i].to_idx == b->nodes_idx) ||
            (pairs[i].from_idx == b->nodes_idx && pairs[i].to_idx == a->nodes_idx)) {
            return pairs[i].link;
        }
    }
    return a->nodes->between;
}

/* What a group gets of its node's link while the others of its class there send, too. */
static double node_rate(const struct search *s, const struct search_kind *a,
                        const struct search_kind *b, int64_t tp, int64_t n, double bytes)
{
    const struct hdt_link_curve *curve = between_curve(s, a, b);
    int64_t per = a->nodes->devices / tp;
    double groups = (double)(n < per ? n : per);
    double all = curve_rate(curve, bytes / (double)tp, tp * (int64_t)groups);

    return search_min(all / groups, curve_rate(curve, bytes / (double)tp, tp));
}

/* From a stage of a class to the next one, or back. */
void hdt_seek_way_find(const struct search *s, const struct search_cand *c, int class_idx, int from,
                       int to, double bytes, struct search_way *way)
{
    struct search_cell x = c->cells[class_idx][from], y = c->cells[class_idx][to];
    const struct search_kind *a = &s->kinds[x.kind], *b = &s->kinds[y.kind];
    int64_t n = c->classes[class_idx].n, tp_a = a->tps[x.tp], tp_b = b->tps[y.tp];

    *way = (struct search_way){.bytes_per_s = INFINITY};
    if (x.kind == y.kind && n * (tp_a + tp_b) <= a->nodes->devices && a->nodes->inside) {
        way->bytes_per_s =
            (double)tp_a * curve_rate(a->nodes->inside, bytes / (double)tp_a, n * tp_a);
        way->latency_s = a->nodes->inside->latency_us / 1e6;
        return;
    }
    way->bytes_per_s =
        search_min(node_rate(s, a, b, tp_a, n, bytes), node_rate(s, b, a, tp_b, n, bytes));
    way->latency_s = search_max(between_curve(s, a, b) ? between_curve(s, a, b)->latency_us : 0,
                                between_curve(s, b, a) ? between_curve(s, b, a)->latency_us : 0) /
                     1e6;
    if (a->site_idx != b->site_idx) {
        const struct hdt_layout_wire *wan = search_wire(s, c->codec, a->site_idx, b->site_idx);
        struct hdt_cluster_file_path path;

        path = *search_path(s, a->site_idx, b->site_idx);
        for (size_t i = 0; i < path.n_legs; i++) {
            double rate = hdt_cluster_file_leg_bytes_per_s(path.legs[i], bytes / (double)tp_a);

            way->bytes_per_s =
                search_min(way->bytes_per_s, rate * (1 - path.loss) / wan->codec_ratio / (double)n);
        }
        way->latency_s += path.rtt_s / 2;
        if (!isnan(wan->codec_gb_per_s)) {
            way->latency_s += 2 * bytes / (wan->codec_gb_per_s * 1e9);
            way->bytes_per_s = search_min(way->bytes_per_s, wan->codec_gb_per_s * 1e9);
        }
        way->is_wan = true;
    }
}

/* ---- collectives ---- */

/* Groups of a stage, as far as their ring depends on them. */
struct ring_shape {
    int64_t n; /* groups */
    int64_t n_nodes, n_sites;
    int64_t tp; /* of the first */
    double inside_bytes_per_s, between_bytes_per_s, port_bytes_per_s, wan_bytes_per_s;
    double wan_coded_per_s; /* bytes before the codec, of gradients by levels */
    double inside_lat, between_lat, wan_lat;
    int64_t per_node;
    double loss;
};

static void shape_wan(const struct search *s, const struct search_cand *c, int stage,
                      struct ring_shape *r)
{
    size_t sites[SEARCH_MAX_CLASSES];

    for (int i = 0; i < c->n_classes; i++) {
        size_t site = s->kinds[c->cells[i][stage].kind].site_idx;
        bool is_new = true;

        for (int64_t k = 0; k < r->n_sites; k++) {
            is_new = is_new && sites[k] != site;
        }
        if (is_new) {
            sites[r->n_sites++] = site;
        }
    }
    r->wan_bytes_per_s = r->wan_coded_per_s = INFINITY;
    for (int64_t k = 0; k < r->n_sites && r->n_sites > 1; k++) {
        struct hdt_cluster_file_path path;

        size_t to = sites[(k + 1) % r->n_sites];
        double ratio = search_wire(s, c->codec, sites[k], to)->sync_ratio;

        path = *search_path(s, sites[k], to);
        for (size_t l = 0; l < path.n_legs; l++) {
            double rate = hdt_cluster_file_leg_bytes_per_s(path.legs[l], 1 << 26);

            r->wan_bytes_per_s = search_min(r->wan_bytes_per_s, rate);
            r->wan_coded_per_s = search_min(r->wan_coded_per_s, rate / ratio);
        }
        r->wan_lat = search_max(r->wan_lat, path.rtt_s / 2);
        r->loss = search_max(r->loss, path.loss);
    }
}

static void shape_fill(const struct search *s, const struct search_cand *c, int stage, double bytes,
                       struct ring_shape *r)
{
    *r = (struct ring_shape){.inside_bytes_per_s = INFINITY,
                             .between_bytes_per_s = INFINITY,
                             .port_bytes_per_s = INFINITY};
    for (int i = 0; i < c->n_classes; i++) {
        r->n += c->classes[i].n;
    }
    for (int i = 0; i < c->n_classes; i++) {
        const struct search_kind *k = &s->kinds[c->cells[i][stage].kind];
        int64_t tp = k->tps[c->cells[i][stage].tp], per = k->nodes->devices / tp;
        int64_t n = c->classes[i].n, here = n < per ? n : per;
        double piece = bytes / (double)tp / (double)r->n;
        const struct hdt_link_curve *in = k->nodes->inside, *out = k->nodes->between;

        r->tp = i == 0 ? tp : r->tp;
        r->n_nodes += (n + per - 1) / per;
        r->per_node = here > r->per_node ? here : r->per_node;
        if (here > 1 && in) {
            r->inside_bytes_per_s =
                search_min(r->inside_bytes_per_s, (double)tp * curve_rate(in, piece, here * tp) *
                                                      (in->nominal ? s->constants->ring_share : 1));
            r->inside_lat = search_max(r->inside_lat, in->latency_us / 1e6);
        }
        if (out) {
            double share = out->nominal ? s->constants->ring_share : 1;

            r->between_bytes_per_s =
                search_min(r->between_bytes_per_s, curve_rate(out, piece, here * tp) * share);
            r->port_bytes_per_s =
                search_min(r->port_bytes_per_s, curve_rate(out, piece, tp) * share);
            r->between_lat = search_max(r->between_lat, out->latency_us / 1e6);
        }
    }
    shape_wan(s, c, stage, r);
}

static double ring_s(int64_t n, double bytes, double bytes_per_s, double latency_s)
{
    return n > 1 ? 2 * (double)(n - 1) / (double)n * bytes / bytes_per_s +
                       2 * (double)(n - 1) * latency_s
                 : 0;
}

/* All-reduce of `bytes` of each device through the replicas of a stage. */
double hdt_seek_all_reduce_s(const struct search *s, const struct search_cand *c, int stage,
                             double bytes, bool is_gather)
{
    struct ring_shape r;
    double all;

    shape_fill(s, c, stage, bytes, &r);
    all = bytes * (double)r.tp;
    if (r.n < 2) {
        return 0;
    }
    if ((r.n_sites > 1 && c->all_reduce == HDT_LAYOUT_AUTO) ||
        c->all_reduce == HDT_LAYOUT_HIERARCHICAL) {
        return ring_s(r.per_node, all, r.inside_bytes_per_s, r.inside_lat) +
               ring_s(r.n_nodes > r.n_sites ? (r.n_nodes + r.n_sites - 1) / r.n_sites : 1, all,
                      r.between_bytes_per_s, r.between_lat) +
               ring_s(r.n_sites, all / (1 - r.loss),
                      is_gather ? r.wan_bytes_per_s : r.wan_coded_per_s, r.wan_lat);
    }
    if (r.n_nodes > 1) {
        return ring_s(r.n, all / (1 - r.loss),
                      search_min(search_min(r.inside_bytes_per_s,
                                            search_min(r.between_bytes_per_s, r.port_bytes_per_s)),
                                 r.wan_bytes_per_s),
                      r.wan_lat + r.between_lat);
    }
    return ring_s(r.n, all, r.inside_bytes_per_s, r.inside_lat);
}

/* Of gradients, through legs that all stages share. */
double hdt_seek_wan_sync_s(const struct search *s, const struct search_cand *c, int stage,
                           double bytes)
{
    struct ring_shape r;
    bool by_levels = c->all_reduce == HDT_LAYOUT_AUTO || c->all_reduce == HDT_LAYOUT_HIERARCHICAL;

    shape_fill(s, c, stage, bytes, &r);
    return r.n_sites > 1 ? ring_s(r.n_sites, bytes * (double)r.tp / (1 - r.loss),
                                  by_levels ? r.wan_coded_per_s : r.wan_bytes_per_s, r.wan_lat)
                         : 0;
}

void hdt_seek_crossings(struct search *s, const struct search_cand *c, search_crossing_fn take,
                        void *user)
{
    for (int i = 0; i < c->n_classes; i++) {
        const struct search_class *cl = &c->classes[i];
        double n = (double)cl->n * (double)cl->n_mb + (double)cl->n_more;

        for (int e = 0; e < 2 * (c->n_stages - 1); e++) {
            int from = e / 2 + e % 2, to = e / 2 + 1 - e % 2;
            size_t a = s->kinds[c->cells[i][from].kind].site_idx;
            size_t b = s->kinds[c->cells[i][to].kind].site_idx;

            if (a != b) {
                const struct hdt_cluster_file_path *path = search_path(s, a, b);
                double bytes = hdt_seek_unit_of(s, c, i, from)->message_bytes;

                double ratio = search_wire(s, c->codec, a, b)->codec_ratio;

                take(user, path, n, bytes, bytes * ratio / (1 - path->loss));
            }
        }
    }
}
