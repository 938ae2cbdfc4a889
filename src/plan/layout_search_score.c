/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What a candidate uses, and what a step of it is worth by the objective. */
#include "src/plan/layout_search_impl.h"

int64_t hdt_seek_devices(const struct search *s, const struct search_cand *c)
{
    int64_t n = 0;

    for (int i = 0; i < c->n_classes; i++) {
        for (int t = 0; t < c->n_stages; t++) {
            n += c->classes[i].n * (int64_t)s->kinds[c->cells[i][t].kind].tps[c->cells[i][t].tp];
        }
    }
    return n;
}

double hdt_seek_watts(const struct search *s, const struct search_cand *c)
{
    double watts = 0;

    for (int i = 0; i < c->n_classes; i++) {
        for (int t = 0; t < c->n_stages; t++) {
            const struct search_kind *k = &s->kinds[c->cells[i][t].kind];

            watts += (double)(c->classes[i].n * k->tps[c->cells[i][t].tp]) *
                     k->nodes->device->power.tdp_w;
        }
    }
    return watts;
}

struct wan_sum {
    double bytes, price;
};

static void wan_sum_add(void *user, const struct hdt_cluster_file_path *path, double n,
                        double bytes, double wire_bytes)
{
    struct wan_sum *sum = user;

    (void)bytes;
    sum->bytes += n * wire_bytes * (double)path->n_legs;
    sum->price += n * wire_bytes / 1e9 * path->price_per_gb;
}

double hdt_seek_wan_bytes(struct search *s, const struct search_cand *c, double *price)
{
    struct wan_sum sum = {0};

    hdt_seek_crossings(s, c, wan_sum_add, &sum);
    for (int t = 0; t < c->n_stages; t++) {
        struct hdt_stage_cost cost;
        size_t first = s->kinds[c->cells[0][t].kind].site_idx, last = first;

        hdt_seek_stage_cost(s, c, 0, t, &cost);
        for (int i = 1; i <= c->n_classes; i++) {
            size_t next = i < c->n_classes ? s->kinds[c->cells[i][t].kind].site_idx : first;

            if (next != last) {
                double bytes = 2 * hdt_stage_cost_grad_bytes(&cost) * cost.tp *
                               search_wire(s, c->codec, last, next)->sync_ratio;

                wan_sum_add(&sum, search_path(s, last, next), 1, bytes, bytes);
            }
            last = next;
        }
    }
    *price = sum.price;
    return sum.bytes;
}

double hdt_seek_score(const struct search *s, const struct search_cand *c, double step_s)
{
    double price;

    switch (s->options->objective) {
    case HDT_LAYOUT_COST:
        hdt_seek_wan_bytes((struct search *)s, c, &price);
        return price +
               (double)hdt_seek_devices(s, c) * step_s / 3600 * s->options->device_hour_price +
               1e-12 * step_s + c->move;
    case HDT_LAYOUT_ENERGY:
        return step_s * hdt_seek_watts(s, c) + c->move;
    default:
        return step_s + c->move;
    }
}
