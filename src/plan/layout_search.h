/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_SEARCH_H
#define HDT_PLAN_LAYOUT_SEARCH_H

/*
 * From a cluster, a model and a job to a layout: the one with the most tokens a second that fits.
 *
 * Searched together: which nodes make which stages and in which order, how many replicas, uneven
 * layers, tensor-parallel degrees by stage, unlike nodes in one stage, what each stage recomputes
 * and offloads, size and number of micro-batches of each replica, schedule, sharded optimizer,
 * when and how gradients are added, codec between sites.
 *
 * How: candidates are written down in terms of kinds of nodes, not of devices. Each has a lower
 * bound of its step (its busiest rank, what must come before and after it, what its links must
 * carry) and an estimate (its pipeline played without contention, its collectives in closed form).
 * Where they are few, all are held against the simulator of layout_sim.h in the order of their
 * bounds until no bound is below the best that was simulated, so that the best there is has been
 * found (but for the simulator's drift); else the best by estimate are improved step by step and
 * those at the top simulated, one of each shape (stages, and nodes in them) before others of it; on
 * clusters of up to 96 devices smaller spaces are searched by themselves, too. What is returned has
 * always been simulated, and fits.
 *
 * A plan that runs (options.current) is a place to begin at, and what the others are weighed
 * against: the search then looks for the least of (steps that are left) x (a step) + (what has to
 * move, by layout_moves.h). It begins with what can be made of the plan that runs: as it is, or
 * without what is gone, whose layers go to the stages beside it in every share, to other devices
 * with room, or to all; replicas that lost something without them; degrees stay. These are improved
 * step by step, by that sum. Then it searches as if nothing ran, and goes on from the best of both,
 * also with their nodes in the order in which they stand now; on small clusters all candidates are
 * weighed by the sum. So no plan is returned that is worse by it than the one that moves least or
 * the one that has the quickest step.
 *
 * The same inputs and options give the same result, unless a time limit or the caller ends the
 * search early. One thread; no I/O.
 */
#include "src/core/layout.h"
#include "src/plan/layout_moves.h"
#include "src/plan/layout_sim.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_LAYOUT_SEARCH_TOP      8
#define HDT_LAYOUT_SEARCH_TEXT_CAP 320
#define HDT_LAYOUT_SEARCH_MAX_PINS 16
#define HDT_LAYOUT_SEARCH_MAX_GONE 64
#define HDT_LAYOUT_SEARCH_CODECS   8
#define HDT_LAYOUT_SEARCH_STEPS    1000 /* that are left, where nobody says */

enum hdt_layout_objective {
    HDT_LAYOUT_THROUGHPUT, /* least seconds of a step */
    HDT_LAYOUT_COST,       /* least money: traffic between sites, and devices by the hour */
    HDT_LAYOUT_ENERGY,     /* least joules: of the devices that are used, at their limit */
};
extern const char *const hdt_layout_objective_names[]; /* NULL-terminated */

/* What a pin holds in a site. Embedding: raw tokens come in there; head: labels do. */
enum hdt_layout_pin_part {
    HDT_LAYOUT_PIN_EMBED = 1,
    HDT_LAYOUT_PIN_HEAD = 2,
    HDT_LAYOUT_PIN_LAYERS = 4, /* first_layer..last_layer */
};
struct hdt_layout_pin {
    unsigned parts; /* of enum hdt_layout_pin_part */
    int64_t first_layer, last_layer;
    size_t site_idx;
};

/* Settings of the layout that stay as it has them. What is not among them is searched. */
enum hdt_layout_keep {
    HDT_LAYOUT_KEEP_MICRO_BATCH = 1,
    HDT_LAYOUT_KEEP_SCHEDULE = 2, /* and chunks */
    HDT_LAYOUT_KEEP_RECOMPUTE = 4,
    HDT_LAYOUT_KEEP_OFFLOAD = 8,
    HDT_LAYOUT_KEEP_SHARDED = 16,
    HDT_LAYOUT_KEEP_SYNC = 32, /* and sync_bucket */
    HDT_LAYOUT_KEEP_ALL_REDUCE = 64,
    HDT_LAYOUT_KEEP_CODEC = 128,
};

/* Those that stand in the layout's file: what its writer has decided. */
unsigned hdt_layout_search_given(const struct hdt_layout_files *base);

/* Smaller spaces, for baselines: bits. */
enum hdt_layout_space {
    HDT_LAYOUT_SPACE_EVEN = 1,         /* stages have as many layers, but for a rest of one */
    HDT_LAYOUT_SPACE_ALIKE = 2,        /* replicas are alike: size and number of micro-batches */
    HDT_LAYOUT_SPACE_PURE = 4,         /* one kind of device in a stage */
    HDT_LAYOUT_SPACE_POWERS = 8,       /* replicas, and devices of a stage: powers of two */
    HDT_LAYOUT_SPACE_ONE_TP = 16,      /* one degree of tensor parallelism */
    HDT_LAYOUT_SPACE_FULL_LINK = 32,   /* no codec between sites */
    HDT_LAYOUT_SPACE_NO_RELIEF = 64,   /* neither recomputes nor offloads */
    HDT_LAYOUT_SPACE_ONE_RELIEF = 128, /* all stages recompute and offload the same */
    HDT_LAYOUT_SPACE_1F1B = 256,       /* that schedule only */
    HDT_LAYOUT_SPACE_ONE_SITE = 512,   /* devices of one site */
};

/* What may be sent between sites, beside what the layout says. */
struct hdt_layout_codec {
    char name[24];
    double ratio;      /* bytes of activations after it, as a share */
    double gb_per_s;   /* as wan.codec_gb_per_s; NaN: no time */
    double sync_ratio; /* of gradients that sites add */
};

struct hdt_layout_progress {
    int64_t n_estimated, n_simulated;
    double best_step_s; /* INFINITY: nothing yet */
    double elapsed_s;
};

struct hdt_layout_search_options {
    enum hdt_layout_objective objective;
    double device_hour_price; /* HDT_LAYOUT_COST: of a device that is used, by the hour */
    double time_limit_s;      /* 0: none. The best so far, at least one, is returned */
    unsigned keep;            /* of enum hdt_layout_keep */
    unsigned space;           /* of enum hdt_layout_space */
    int64_t max_micro_batch;  /* 0: 32 */
    int64_t n_simulations;    /* most; 0: as many as the size of the cluster allows */
    struct hdt_layout_pin pins[HDT_LAYOUT_SEARCH_MAX_PINS];
    size_t n_pins;
    size_t without[HDT_LAYOUT_SEARCH_MAX_GONE]; /* sites that are not used */
    size_t n_without;
    struct hdt_layout_codec codecs[HDT_LAYOUT_SEARCH_CODECS];
    size_t n_codecs;
    const struct hdt_stage_cost_constants *constants; /* NULL: hdt_stage_cost_fitted */
    const struct hdt_layout_files *current; /* a plan that runs, of this job; NULL: none does */
    double steps_left;                      /* of the job; 0: HDT_LAYOUT_SEARCH_STEPS */
    /* False: end, with the best so far. Not asked before a first candidate fits. */
    bool (*on_progress)(void *ctx, const struct hdt_layout_progress *progress);
    void *ctx;
};

/* What the step waits for most. */
enum hdt_layout_limit {
    HDT_LAYOUT_LIMIT_COMPUTE, /* a stage that computes all the time */
    HDT_LAYOUT_LIMIT_BUBBLE,  /* too few micro-batches for as many stages */
    HDT_LAYOUT_LIMIT_WAN,     /* a link between sites */
    HDT_LAYOUT_LIMIT_LINK,    /* a link inside a site */
    HDT_LAYOUT_LIMIT_SYNC,    /* adding gradients */
    HDT_LAYOUT_LIMIT_MEMORY,  /* recomputing and offloading that more memory would spare */
};
extern const char *const hdt_layout_limit_names[]; /* NULL-terminated */

struct hdt_layout_found {
    struct hdt_layout layout; /* whole: its own strings and lists */
    struct hdt_layout_prediction prediction;
    double objective; /* seconds, money or joules of a step: the less the better */
    double tokens_per_s;
    double bound_s;    /* by estimate a plan of its shape takes no less, with whole backwards */
    double estimate_s; /* what the search took it for before it was simulated */
    double wan_bytes;  /* of a step, all legs */
    double wan_price;  /* of them */
    double joules;
    int64_t n_devices; /* that are used */
    double move_s;     /* what has to move from the plan that runs; 0: there is none */
    double total;      /* that, and steps_left of `objective`: by the objective, the move counted */
    enum hdt_layout_limit limit;
    char limit_text[HDT_LAYOUT_SEARCH_TEXT_CAP]; /* which stage or link, how long it is busy */
    char differs[HDT_LAYOUT_SEARCH_TEXT_CAP];    /* from the best one, in words; of it: "" */
};

/* Beside the best plan, where one runs: what else was weighed. */
struct hdt_layout_search_other {
    bool is_known;
    double step_s, move_s, total;
};

struct hdt_layout_search_result {
    /* Best first, unlike in substance: replicas, order of nodes, degrees, relief, schedule; not
     * only in a layer or two. */
    struct hdt_layout_found top[HDT_LAYOUT_SEARCH_TOP];
    size_t n_top;
    bool is_complete; /* every candidate that was estimated below the best one's step was simulated
                       */
    bool is_cut;      /* ended by the time limit or the caller */
    int64_t n_candidates, n_estimated, n_simulated, n_misfits;
    double bound_s;    /* of all: devices busy all the time, no bubble, no wire */
    double steps_left; /* options.current: that were counted with; else 0 */
    struct hdt_layout_search_other repair; /* of what was made of the plan that runs, the one that
                                              moves least */
    struct hdt_layout_search_other fresh;  /* the best where nothing ran; not known when the search
                                              was cut before */
    double elapsed_s;
};

/* `base`: from hdt_layout_open_job (stages, if any, are not looked at). To be released on HDT_OK.
 * HDT_EINVAL: pins and sites that contradict each other, a device whose figures are not known.
 * HDT_ENOMEM: nothing fits: what is short where, by how much, what would help. HDT_ECANCELED,
 * HDT_ETIMEDOUT: ended before anything was found. */
enum hdt_status hdt_layout_search(const struct hdt_layout_files *base,
                                  const struct hdt_layout_search_options *options,
                                  struct hdt_layout_search_result *result, struct hdt_error *err);
void hdt_layout_search_release(struct hdt_layout_search_result *result);

/* What is measured of a plan that is there: as in hdt_layout_found, whose layout is a copy. */
enum hdt_status hdt_layout_search_rate(const struct hdt_layout_files *files,
                                       const struct hdt_layout_search_options *options,
                                       struct hdt_layout_found *found, struct hdt_error *err);
void hdt_layout_found_release(struct hdt_layout_found *found);

/* May the search with these options return this plan: does it hold to the pins, the sites that are
 * left out, and what is kept of the job? `plan` is derived from `base`. False: `why` says what
 * speaks against it. */
bool hdt_layout_search_holds(const struct hdt_layout_files *base,
                             const struct hdt_layout_files *plan,
                             const struct hdt_layout_search_options *options, char *why,
                             size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_SEARCH_H */
