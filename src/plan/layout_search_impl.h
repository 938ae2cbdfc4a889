/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_SEARCH_IMPL_H
#define HDT_PLAN_LAYOUT_SEARCH_IMPL_H

/*
 * What the files of the search share: layout_search.c runs it, layout_search_space.c writes down
 * candidates, layout_search_fit.c gives them layers, relief and micro-batches,
 * layout_search_cost.c estimates and bounds them, layout_search_judge.c simulates them,
 * layout_search_again.c begins at a plan that runs, layout_search_text.c says why.
 *
 * A *kind* is an entry of nodes of the cluster. A *class* is replicas that take the same way
 * through the cluster: a *cell* (kind and degree) for each stage.
 */
#include "src/plan/layout_cost.h"
#include "src/plan/layout_search.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline double search_max(double a, double b)
{
    return a > b ? a : b;
}
static inline double search_min(double a, double b)
{
    return a < b ? a : b;
}

#define SEARCH_MAX_KINDS     64
#define SEARCH_MAX_CLASSES   8
#define SEARCH_MAX_STAGES    64
#define SEARCH_MAX_TPS       8  /* degrees of a kind */
#define SEARCH_MAX_BATCHES   12 /* sizes of micro-batches */
#define SEARCH_MAX_CODECS    (HDT_LAYOUT_SEARCH_CODECS + 2)
#define SEARCH_MAX_CHOICES   64    /* of what links between sites have */
#define SEARCH_MAX_PAIRS     64    /* of sites, between which a candidate sends */
#define SEARCH_STARTS        16    /* candidates that are improved by estimate */
#define SEARCH_SMALL_DEVICES 8     /* clusters on which all are tried */
#define SEARCH_POOL          20000 /* candidates that are kept by estimate where all are tried */

struct search_kind {
    size_t site_idx, nodes_idx;
    const struct hdt_cluster_file_nodes *nodes;
    double memory_bytes; /* of a device */
    int tps[SEARCH_MAX_TPS];
    int n_tps;
};

struct search_cell {
    uint8_t kind, tp; /* tp: position in the kind's tps */
};

struct search_class {
    int n;        /* replicas */
    int batch;    /* position in the sizes */
    int64_t n_mb; /* micro-batches of each, */
    int n_more;   /* and of so many replicas one more */
};

struct search_cand {
    int n_stages, n_classes;
    int16_t layers[SEARCH_MAX_STAGES];
    uint8_t recompute[SEARCH_MAX_STAGES], offload[SEARCH_MAX_STAGES];
    struct search_class classes[SEARCH_MAX_CLASSES];
    struct search_cell cells[SEARCH_MAX_CLASSES][SEARCH_MAX_STAGES];
    uint8_t schedule, chunks, sharded, sync, all_reduce, codec;
    uint8_t more_last; /* replicas of a class that do one more come behind the others */
    double estimate_s, bound_s;
    double score;  /* the objective of estimate_s; once simulated of that */
    double step_s; /* simulated; 0: not yet */
    double move_s; /* from the plan that runs, where that counts; */
    double move;   /* and what it is worth by the objective, as the share of a step: in `score` */
    int found;     /* what the simulator said: position in the founds */
};

/* What all links between sites have, or each of its own. */
struct search_choice {
    char name[24];
    int wire;          /* of all, */
    uint16_t *by_pair; /* or (sites, sites): of each, the same in both directions */
    bool is_given;     /* as the layout has it: with its own links */
};

struct search_pair {
    size_t low, high; /* sites */
};

/* The costs of a layer and of what is beside it, of a kind at a degree and a micro-batch. */
struct search_unit {
    bool is_known, is_made;
    struct hdt_layout_part part; /* the template: layers, place and relief are filled in */
    double fwd_s, bwd_s;         /* of a layer */
    double again_s[3];           /* that recomputing it adds, by enum hdt_layout_recompute */
    double base_fwd_s[2][2], base_bwd_s[2][2]; /* of a stage without layers: [first][last] */
    double message_bytes;                      /* of a group, to the next stage */
};

/* A class's pipeline while it is estimated. */
struct search_pipe {
    int n_stages;
    int64_t n_mb;
    double fwd_s[SEARCH_MAX_STAGES], bwd_s[SEARCH_MAX_STAGES];
    double up_s[SEARCH_MAX_STAGES], down_s[SEARCH_MAX_STAGES]; /* wire to the next; back from it */
    double up_lat[SEARCH_MAX_STAGES], down_lat[SEARCH_MAX_STAGES];
    double end_s; /* of a message, at each end */
    int64_t warmup[SEARCH_MAX_STAGES];
    double done_s[SEARCH_MAX_STAGES]; /* out: when a stage has nothing left to do */
};

struct search {
    const struct hdt_layout_files *base;
    const struct hdt_layout_search_options *options;
    unsigned space; /* that is searched now: options->space, or a part of it */
    int part;       /* parts that were begun */
    const struct hdt_stage_cost_constants *constants;
    struct hdt_stage_cost_model model;
    struct search_kind kinds[SEARCH_MAX_KINDS];
    int n_kinds;
    int batches[SEARCH_MAX_BATCHES];
    int n_batches;
    struct hdt_layout_wire *wires; /* none twice; first those that every link may have */
    size_t n_wires, wires_cap;
    char codec_names[SEARCH_MAX_CODECS][24];
    int n_codecs; /* that every link may have */
    struct search_choice choices[SEARCH_MAX_CHOICES];
    int n_choices;      /* that each candidate may have; behind them those that were made for one */
    int n_made;         /* of all: positions in choices below it are taken */
    int least;          /* among those: no link ever has less bytes */
    double least_ratio; /* of all wires */
    struct search_unit *units;           /* (kinds, SEARCH_MAX_TPS, SEARCH_MAX_BATCHES) */
    struct hdt_cluster_file_path *paths; /* (sites, sites) */
    int64_t n_estimated, n_simulated, n_candidates, n_misfits;
    int64_t start_us;
    bool is_cut;
    bool is_small;            /* all candidates are in the pool */
    bool has_left_out;        /* one that might be better was not simulated */
    int64_t tasks_left;       /* of simulations */
    struct search_cand *pool; /* best by estimate, none twice */
    size_t n_pool, pool_cap;
    struct hdt_layout_found *founds; /* without layouts */
    size_t n_founds, founds_cap;
    struct search_judged { /* what was simulated, by what it is */
        uint64_t hash;
        int found; /* -1: it does not fit */
        int part;  /* of the search */
    } * judged;
    size_t n_judged, judged_cap;
    double best_estimate_s, best_score;
    int64_t n_asked;         /* whether to go on */
    int64_t n_unpinned;      /* candidates that a pin speaks against */
    struct hdt_error why;    /* the last one that was simulated could not be */
    double cut_score;        /* the best since it was set */
    double slack;            /* what takes longer than the best one by more is not written down */
    int64_t climbs_left;     /* estimates of steps */
    struct search_cand best; /* simulated; step_s 0: none yet */
    struct search_again {    /* a plan that runs; mover NULL: none does */
        struct hdt_layout_mover *mover;
        struct hdt_layout_placed placed; /* of the candidate that is weighed */
        size_t node_cap;
        double steps_left;
        double steps; /* that a move is shared by: those that are left, or fewer */
        bool counts;  /* moves are part of scores */
        double place[SEARCH_MAX_KINDS]; /* in the mean the stage that runs there; INFINITY: none */
        struct search_cand repair, fresh; /* step_s 0: not known */
        struct search_cand *kept;         /* simulated, of the parts of the search that are over */
        size_t n_kept;
    } again;
    int64_t n_before;            /* simulated before this part of the search began */
    int n_climbs;                /* from so many of the pool; 0: the usual number */
    struct search_short {        /* the least that was missing in a candidate */
        double bytes, has_bytes; /* of a device; bytes 0: nothing was missing */
        int kind, stage;
        int layers;
        bool on_host;
        bool is_first, is_last;
    } shortage;
    /* Of the candidate that is estimated. */
    struct search_pipe pipes[SEARCH_MAX_CLASSES];
    double pipe_bounds[SEARCH_MAX_CLASSES];
    double wan_s, rtt_s;
    double *leg_busy_s; /* of links between sites, there and back */
    uint64_t bucket;
    double *scratch; /* of the pipeline that is played */
    size_t scratch_n;
};

/* ---- layout_search_cost.c ---- */

/* NULL: a figure of the device is not known. */
const struct search_unit *hdt_seek_unit_get(struct search *s, int kind, int tp, int batch);

/* Are the figures of a kind known? HDT_EINVAL: which one is not. */
enum hdt_status hdt_seek_unit_check(struct search *s, int kind, struct hdt_error *err);

/* Of a stage of a class; that of a figure that is not known must not be asked for. */
const struct search_unit *hdt_seek_unit_of(struct search *s, const struct search_cand *c,
                                           int class_idx, int stage);
void hdt_seek_stage_cost(struct search *s, const struct search_cand *c, int class_idx, int stage,
                         struct hdt_stage_cost *cost);

/* A micro-batch through a stage of a class. */
void hdt_seek_stage_time(struct search *s, const struct search_cand *c, int class_idx, int stage,
                         double *fwd_s, double *bwd_s);

/* Do all stages fit, and all groups find room? Fills s->shortage. */
bool hdt_seek_fits(struct search *s, const struct search_cand *c);
bool hdt_seek_stage_fits(struct search *s, const struct search_cand *c, int class_idx, int stage);
/* Most layers of a stage that fit with its relief; 0: none. */
int hdt_seek_stage_most(struct search *s, const struct search_cand *c, int class_idx, int stage);
bool hdt_seek_places(const struct search *s, const struct search_cand *c);
bool hdt_seek_pins_hold(const struct search *s, const struct search_cand *c);

/* From site to another. */
static inline const struct hdt_cluster_file_path *search_path(const struct search *s, size_t from,
                                                              size_t to)
{
    return &s->paths[from * s->base->cluster.sites.n + to];
}

/* What a choice says of a pair of sites. */
static inline const struct hdt_layout_wire *search_wire(const struct search *s, int choice,
                                                        size_t a, size_t b)
{
    const struct search_choice *c = &s->choices[choice];

    return &s->wires[c->by_pair ? c->by_pair[a * s->base->cluster.sites.n + b] : c->wire];
}

/* Frames of micro-batches between stages of unlike sites, of all replicas: n of so many bytes, as
 * the stage gives them and as the legs of the path carry them. */
typedef void (*search_crossing_fn)(void *user, const struct hdt_cluster_file_path *path, double n,
                                   double bytes, double wire_bytes);
void hdt_seek_crossings(struct search *s, const struct search_cand *c, search_crossing_fn take,
                        void *user);

/* The least that links between sites take, before layers are known: they are set to an even cut. */
double hdt_seek_wan_least(struct search *s, struct search_cand *c);

/* Micro-batches that a stage keeps. */
int hdt_seek_in_flight(struct search *s, const struct search_cand *c, int class_idx, int stage,
                       int64_t n_mb);

/* c->estimate_s, bound_s and score. */
void hdt_seek_estimate(struct search *s, struct search_cand *c);
/* Its two halves: the second alone where only `sharded` is another. The first one is false when the
 * bound is more than most_s: it is not played then. */
bool hdt_seek_estimate_pipes(struct search *s, const struct search_cand *c, double most_s);
void hdt_seek_estimate_step(struct search *s, struct search_cand *c);

/* ---- layout_search_score.c ---- */

/* The objective of a step of so many seconds, with its share of what has to move (c->move). */
double hdt_seek_score(const struct search *s, const struct search_cand *c, double step_s);
double hdt_seek_wan_bytes(struct search *s, const struct search_cand *c, double *price);
double hdt_seek_watts(const struct search *s, const struct search_cand *c);
int64_t hdt_seek_devices(const struct search *s, const struct search_cand *c);

/* ---- layout_search_again.c ---- */

/* Where a plan runs: what it has, and the whole search. */
void hdt_seek_again_init(struct search *s);
void hdt_seek_again_release(struct search *s);
void hdt_seek_again(struct search *s);

/* c->move_s and move; 0 where moves do not count. */
void hdt_seek_move(struct search *s, struct search_cand *c);
/* The same, whether or not they count now. */
void hdt_seek_move_weigh(struct search *s, struct search_cand *c);

/* ---- layout_search_parts.c ---- */

/* Candidates of the sorted pool that are improved by estimate; starts: SEARCH_STARTS. */
size_t hdt_seek_starts(struct search *s, struct search_cand *starts);
/* As many stages and classes. Of pipelines through many kinds this leaves out the order: each has a
 * shape of its own, and they are all much the same. */
bool hdt_seek_is_of_form(const struct search_cand *a, const struct search_cand *b);
/* As many stages, and the same kinds of nodes in them: degrees, replicas and layers may differ. */
bool hdt_seek_is_of_shape(const struct search_cand *a, const struct search_cand *b);
/* Smaller spaces by themselves, where that is quick: s->best, and what was simulated in the pool.
 */
void hdt_seek_parts(struct search *s);

/* ---- layout_search.c ---- */

/* As if nothing ran: candidates, and the best of them improved. */
void hdt_seek_all(struct search *s);
/* The same of s->space alone. */
void hdt_seek_space(struct search *s);
/* Work of all simulations. */
int64_t hdt_seek_tasks_of(const struct search *s);

/* ---- layout_search_links.c ---- */

struct search_way {
    double latency_s, bytes_per_s; /* of a group's messages, when all of the class send */
    bool is_wan;
};

/* From a stage of a class to the next one, or back. */
void hdt_seek_way_find(const struct search *s, const struct search_cand *c, int class_idx, int from,
                       int to, double bytes, struct search_way *way);
/* All-reduce of `bytes` of each device through the replicas of a stage; is_gather: of weights. */
double hdt_seek_all_reduce_s(const struct search *s, const struct search_cand *c, int stage,
                             double bytes, bool is_gather);
/* The part of it that is between sites, over legs that all stages share. */
double hdt_seek_wan_sync_s(const struct search *s, const struct search_cand *c, int stage,
                           double bytes);

/* ---- layout_search_codecs.c ---- */

/* s->wires and s->choices: paths and sizes of micro-batches are there. */
void hdt_seek_codecs_fill(struct search *s);
void hdt_seek_codecs_release(struct search *s);

/* Pairs of sites between which a candidate sends, in a fixed order; how many, SEARCH_MAX_PAIRS at
 * most. */
int hdt_seek_pairs(const struct search *s, const struct search_cand *c, struct search_pair *pairs);

/* Do two choices say the same of these? */
bool hdt_seek_choice_is_same(const struct search *s, int a, int b, const struct search_pair *pairs,
                             int n);

/* A choice of its own for a candidate, as another one until pairs are set; -1: there is no room for
 * more. It stays until it is taken back; only the last one can be. */
int hdt_seek_choice_make(struct search *s, int like);
void hdt_seek_choice_set(struct search *s, int choice, const struct search_pair *pair, int wire);
void hdt_seek_choice_take_back(struct search *s);

/* The layout's wan as a candidate has it; layout->wan.links is empty. */
void hdt_seek_codecs_write(const struct search *s, const struct search_cand *c,
                           struct hdt_layout *layout);

/* "int8", or of each of the candidate's pairs "none a/b, int8 a/c". */
void hdt_seek_codecs_text(const struct search *s, const struct search_cand *c, char *text,
                          size_t cap);

/* ---- layout_search_fit.c ---- */

/* Give the stages of a candidate layers and relief, its classes micro-batches. False: it cannot be
 * done. */
bool hdt_seek_fill(struct search *s, struct search_cand *c);
/* Micro-batches alone. */
bool hdt_seek_share(struct search *s, struct search_cand *c);
/* Relief alone: the quickest that fits each stage. */
bool hdt_seek_relieve(struct search *s, struct search_cand *c);

/* ---- layout_search_space.c ---- */

struct search_team {
    int kinds[SEARCH_MAX_KINDS];
    int n;
};

/* One way to cut the cluster: teams, a degree for each kind, a size of micro-batches. */
struct search_cut {
    struct search_team teams[SEARCH_MAX_CLASSES];
    int n_teams;
    uint8_t tp[SEARCH_MAX_KINDS];
    int batch;
};

/* Is the schedule the job's, not to be searched? */
static inline bool search_keeps_schedule(const struct search *s)
{
    return s->options->keep & HDT_LAYOUT_KEEP_SCHEDULE &&
           s->base->layout.schedule != HDT_SCHEDULE_AUTO;
}

/* Have as many candidates been simulated as the caller wants, one of them with success? */
static inline bool search_is_spent(const struct search *s)
{
    return s->options->n_simulations > 0 && s->best.step_s > 0 &&
           s->n_simulated >= s->options->n_simulations;
}

/* Has it so many devices that candidates must be fewer, for the time they take? */
#define SEARCH_LARGE_DEVICES 512
static inline bool search_is_large(const struct search *s)
{
    return hdt_cluster_file_n_devices(&s->base->cluster) > SEARCH_LARGE_DEVICES;
}

/* Numbers of stages that are tried: from 1 on, many in larger steps; the most. */
static inline int hdt_seek_stages_next(int n)
{
    return n + 1 + n / 8;
}
int hdt_seek_most_stages(const struct search *s);
/* A cut of several teams with so many stages (0: with every number), in every order; one team has
 * as many as follow from its replicas. s->cut_score: the best, where it was more. */
void hdt_seek_cut_try(struct search *s, const struct search_cut *cut, int n_stages);

/* ---- layout_search_degrees.c ---- */

/* Every size and degree of a cut's teams. */
void hdt_seek_teams_try(struct search *s, struct search_cut *cut);
/* Kinds of one device and as many degrees have one type; how many types there are. */
int hdt_seek_types(const struct search *s, int *type);

void hdt_seek_generate(struct search *s);
void hdt_seek_enumerate(struct search *s); /* all, where they are few */
void hdt_seek_improve(struct search *s);
/* From one that is simulated, by simulation. */
void hdt_seek_climb(struct search *s, const struct search_cand *from);
/* Keep so many of the pool, the best by estimate; candidates may be put into it. */
void hdt_seek_pool_cut(struct search *s, size_t cap);

/* With what the options keep. */
void hdt_seek_cand_begin(const struct search *s, struct search_cand *c);
/* Is it one of the space that the options leave? */
bool hdt_seek_is_in_space(const struct search *s, const struct search_cand *c);

/* Estimate, and keep when it is good. */
void hdt_seek_offer(struct search *s, struct search_cand *c);
bool hdt_seek_goes_on(struct search *s);
/* But for layers, relief and micro-batches. */
bool hdt_seek_is_alike(const struct search_cand *a, const struct search_cand *b);
bool hdt_seek_is_same(const struct search_cand *a, const struct search_cand *b);

/* ---- layout_search_text.c ---- */

/* Simulate a layout and say what it is: all of `found` but its layout, bound and estimate. */
enum hdt_status hdt_seek_found_rate(const struct hdt_layout_files *files,
                                    const struct hdt_layout_search_options *options,
                                    const struct hdt_stage_cost_constants *constants,
                                    struct hdt_layout_found *found, struct hdt_error *err);

/* How a candidate differs from the best one. */
void hdt_seek_differs(const struct search *s, const struct search_cand *best,
                      const struct search_cand *c, char *text, size_t cap);

/* Nothing was found: why. */
enum hdt_status hdt_seek_refuse(const struct search *s, struct hdt_error *err);

/* ---- layout_search_judge.c ---- */

/* A layout of a candidate; hdt_conf_release(&hdt_layout_schema, ...). */
void hdt_seek_layout(struct search *s, const struct search_cand *c, struct hdt_layout *layout);

/* Its sync_bucket. */
uint64_t hdt_seek_bucket(struct search *s, const struct search_cand *c);

/* Simulate: step_s and score. False: it does not fit, or cannot be. */
bool hdt_seek_judge(struct search *s, struct search_cand *c);
int64_t hdt_seek_tasks(const struct search_cand *c);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_SEARCH_IMPL_H */
