/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_SEARCH_IMPL_H
#define HDT_PLAN_SEARCH_IMPL_H

/* What the parts of the search share: search.c (who may take part, cuts, candidates),
 * search_codecs.c (other codecs for a candidate) and search_judge.c (one candidate). */
#include "src/plan/search.h"
#include "src/plan/search_dp.h"

/* Codecs of activations and of their gradients between a stage and the next one. */
struct search_edge {
    struct hdt_codec_spec codecs[2];
};

struct search {
    const struct hdt_cost_inputs *in;
    enum hdt_schedule_kind schedule; /* that plans are made for; never AUTO */
    const struct hdt_cluster_worker *workers[HDT_SEARCH_MAX_WORKERS];
    int n_workers;
    const struct hdt_codec_spec *codec; /* of all edges between sites that the job leaves open;
                                           NULL: chosen for each */
    bool is_hinted;                     /* cuts are searched for no other codec than: */
    const struct hdt_codec_spec *hint;  /* NULL: none */
    const struct search_edge *by_stage; /* the same, of the edge behind each stage; NULL: codec */
    int n_chunks;                       /* stages of each worker of a cut; 0: one */
    bool ignore_memory;                 /* to find out what is missing */
    struct hdt_search_problem problem;
    struct hdt_search_memo *memo; /* of all schedules: most have the same problem */
    struct hdt_error last_err;    /* why the last candidate was dropped */
};

/* fp32 values of one activation. */
double hdt_search_values(const struct hdt_cost_inputs *in);

/* Memory of a worker's stage with its frames, which keeps so many micro-batches. */
uint64_t hdt_search_stage_bytes(const struct search *s, const struct hdt_cluster_worker *worker,
                                int64_t begin, int64_t end, int64_t warmup, int64_t in_flight);

void hdt_search_add_stage(struct search *s, struct hdt_plan *plan,
                          const struct hdt_cluster_worker *w, int64_t begin, int64_t end);

/* Fill in what follows from the stages and play it. Why it does not do: s->last_err. */
enum hdt_status hdt_search_judge(struct search *s, struct hdt_plan *plan, struct hdt_cost *cost);

/* The rest of it, once stages have warm-ups and memory: ranks for data and checkpoints, flows, and
 * the play. */
enum hdt_status hdt_search_finish(struct search *s, struct hdt_plan *plan, struct hdt_cost *cost);

/* As hdt_search_plan, without a timeline: of one pipeline; of several replicas; the better of both.
 */
enum hdt_status hdt_search_pipeline(const struct hdt_cost_inputs *in,
                                    struct hdt_search_result *result, struct hdt_error *err);
enum hdt_status hdt_search_replicas(const struct hdt_cost_inputs *in,
                                    struct hdt_search_result *result, struct hdt_error *err);
enum hdt_status hdt_search_outer(const struct hdt_cost_inputs *in, struct hdt_search_result *result,
                                 struct hdt_error *err);

/* A plan in words, and what makes it another than `best`. */
void hdt_search_words(const struct hdt_plan *plan, const struct hdt_plan *best, char *out,
                      size_t out_cap);

/* Keep the faster of the result and the candidate; the other becomes the runner-up if it is the
 * fastest such. It must be faster by the share `margin`. True when the candidate is kept. Takes
 * both. */
bool hdt_search_offer(struct hdt_search_result *result, double margin, struct hdt_plan *plan,
                      struct hdt_cost *cost);

/* What the codec of an edge between two workers is before the search knows more. */
struct hdt_codec_spec hdt_search_codec(const struct search *s,
                                       const struct hdt_cluster_worker *from,
                                       const struct hdt_cluster_worker *to, bool is_grad);

/* Does the job name the codec of all edges? */
bool hdt_search_is_named(const struct search *s, bool is_grad);

/* The codec that all edges of a plan have which the job leaves open, as it stands among those of
 * hdt_cost_codecs; NULL: they have several, or there is none. */
const struct hdt_codec_spec *hdt_search_codec_of(const struct hdt_job *job,
                                                 const struct hdt_plan *plan);

/* Has the job left a codec open, and may it fall between workers of the search? */
bool hdt_search_has_codecs(const struct search *s);

/* Other codecs for the stages of the result: the same for all edges, where `uniform` says so, and
 * for each edge by itself. */
void hdt_search_try_codecs(struct search *s, struct hdt_search_result *result, bool uniform);

#endif /* HDT_PLAN_SEARCH_IMPL_H */
