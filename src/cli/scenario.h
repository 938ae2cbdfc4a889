/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_SCENARIO_H
#define HDT_CLI_SCENARIO_H

/*
 * What goes wrong in a simulation, as it is written on the command line: a kind and its settings,
 * "outage:link=a/b,from=1,to=3".
 *
 *   straggler:rank=N,factor=F   a rank takes F times as long
 *   outage:link=A/B,to=T        no byte from site A to site B; links of another kind have one name
 *   slow:link=A/B,factor=F      1/F of the link's rate
 *   loss:link=A/B,share=S       so much of what is sent has to be sent again
 *   jitter:sigma=S[,seed=N]     computations take longer and shorter by chance
 *
 * `from` and `to` are seconds from the begin; without them it is all the time.
 */
#include "src/plan/cost.h"
#include "src/sim/sim_path.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_scenario {
    size_t n_all_ranks; /* of the simulation, and its links; not owned */
    const struct hdt_cost_link *all_links;
    size_t n_all_links;
    struct hdt_sim_slow *ranks, *links;
    size_t n_ranks, n_links;
    double jitter;
    uint64_t seed;
};

/* Add what `text` says. HDT_EINVAL, with what may stand there. Begins with the simulation's own
 * ranks and links in it and the rest zero; released by the caller in any case. */
enum hdt_status hdt_scenario_add(struct hdt_scenario *scenario, const char *text,
                                 struct hdt_error *err);
void hdt_scenario_release(struct hdt_scenario *scenario);

/* Does it change nothing? */
bool hdt_scenario_is_empty(const struct hdt_scenario *scenario);

/* Into a setup; the scenario stays there while it runs. Jitter takes the place of the setup's own.
 */
void hdt_scenario_apply(const struct hdt_scenario *scenario, struct hdt_sim_setup *setup);

/* A simulation that was played without its scenario, and with it. */
struct hdt_played {
    double calm_step_s, calm_makespan_s; /* without */
    struct hdt_sim_result result;        /* with all spans */
    struct hdt_sim_path path;
};

/* Play a setup without and with the scenario; once, when the scenario says nothing. *played is
 * zeroed before, and released by the caller in any case. As hdt_sim_run. */
enum hdt_status hdt_scenario_play(const struct hdt_scenario *scenario,
                                  const struct hdt_sim_setup *setup, struct hdt_played *played,
                                  struct hdt_error *err);
void hdt_played_release(struct hdt_played *played);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_SCENARIO_H */
