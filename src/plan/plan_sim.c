/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"
#include "src/plan/plan_sim.h"
#include "src/plan/play.h"

#include <stdlib.h>

struct hdt_plan_sim {
    struct play play;
    struct play_tables tables;
    struct hdt_cost cost;
};

enum hdt_status hdt_plan_sim_open(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                  int n_steps, struct hdt_plan_sim **out, struct hdt_error *err)
{
    struct hdt_plan_sim *sim = hdt_calloc(1, sizeof(*sim));
    enum hdt_status status;

    sim->play = (struct play){.in = in, .plan = plan, .cost = &sim->cost};
    status = hdt_play_open(&sim->play, err);
    if (status != HDT_OK) {
        free(sim);
        return status;
    }
    hdt_play_tables_init(&sim->play, n_steps, &sim->tables);
    *out = sim;
    return HDT_OK;
}

void hdt_plan_sim_close(struct hdt_plan_sim *sim)
{
    if (sim) {
        hdt_play_tables_release(&sim->play, &sim->tables);
        hdt_play_close(&sim->play);
        hdt_cost_release(&sim->cost);
        free(sim);
    }
}

const struct hdt_sim_setup *hdt_plan_sim_setup(const struct hdt_plan_sim *sim)
{
    return &sim->tables.setup;
}

int64_t hdt_plan_sim_n_tasks(const struct hdt_plan_sim *sim)
{
    int64_t n = 0;

    for (size_t i = 0; i < sim->play.plan->n_ranks; i++) {
        n += (int64_t)sim->tables.lists.ranks[i].n_tasks;
    }
    return n * sim->tables.lists.n_steps;
}

const struct hdt_cost_link *hdt_plan_sim_links(const struct hdt_plan_sim *sim, size_t *n)
{
    *n = sim->cost.n_links;
    return sim->cost.links;
}
