/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_JOB_H
#define HDT_CORE_JOB_H

/*
 * A training job as its user writes it (job.yaml). What decides the bits of a run stands here, not
 * in the plan: micro-batch size and count, seed, sampler, optimizer. Defaults in brackets.
 */
#include "compress/spec.h"
#include "src/base/conf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_job_data {
    char *train; /* STRING, required: token shard (.bin) on the machines of `site`; a relative path
                    starts at the data_dir of their worker */
    char *valid; /* STRING [""]: held-out shard; "": no evaluation */
    char *site;  /* STRING [""]: where the files are; "": the site that the job is submitted to */
};

struct hdt_job_batch {
    int64_t micro_batch;     /* [8] sequences in one micro-batch, 1..65536 */
    int64_t n_micro_batches; /* [8] micro-batches a step over all replicas, 1..65536 */
    int64_t seq_len; /* [128] tokens a sequence, 1..1048576; at most the model's positions */
};

/* Of matrix products and of activations within a block; what is saved and sent is float32. */
enum hdt_job_precision { HDT_JOB_FP32, HDT_JOB_BF16, HDT_JOB_FP8 };

/* The precision of a name, "bf16"; -1: none. And the name. */
int hdt_job_precision_of(const char *name);
const char *hdt_job_precision_name(int precision);

struct hdt_job_optimizer { /* AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) */
    double lr;             /* [1e-3] peak */
    double min_lr;         /* [1e-4] end of the cosine */
    int64_t warmup_steps;  /* [10] */
    double beta1, beta2;   /* [0.9] [0.95] */
    double eps;            /* [1e-8] */
    double weight_decay;   /* [0.1] on matrices, not on norms */
    double clip_norm;      /* [1.0] global norm; 0: no clipping */
};

struct hdt_job_codec {
    char *activations;      /* STRING [auto]: a codec's text, or "auto": the planner chooses */
    char *activation_grads; /* STRING [auto] */
    bool lossy;             /* [false] "auto" may choose what changes numbers, also in the run */
    double error_budget;    /* [0.02] relative, 0..1; 0: no choice in the run and no guard */
};

/* Replicas that train alone for some steps and then average their changes: DiLoCo (Douillard et
 * al., arXiv 2311.08105, algorithm 1), where a plan has several replicas. */
struct hdt_job_outer {
    int64_t steps; /* [0] inner steps between two outer steps; 0: one pipeline, every step exact */
    double lr;     /* [0.7] of the outer SGD */
    double momentum; /* [0.9] Nesterov's, as torch.optim.SGD(nesterov=True) */
    char *codec;     /* STRING [auto]: how changes travel; "auto": lossless between sites */
    struct hdt_conf_strings parts; /* [] micro-batches of a step for each replica of plan.cut, as
                                      counts; empty: dealt out by speed */
};

struct hdt_job_checkpoint {
    char *dir;     /* STRING ["checkpoints"]: folder on the machines of `site`, as data.train */
    char *site;    /* STRING [""]: "" = data.site; its first rank gathers and writes */
    int64_t every; /* [0] steps between checkpoints; 0: only at the end */
    int64_t keep;  /* [2] complete ones kept; 0: all */
};

struct hdt_job_eval {
    int64_t every;           /* [0] steps between evaluations; 0: only at the end */
    int64_t n_micro_batches; /* [16] micro-batches read from the held-out shard */
};

/* In which order the ranks of a pipeline do their work (schedule.h). */
enum hdt_schedule_kind {
    HDT_SCHEDULE_AUTO, /* jobs only: plans name one of the others */
    HDT_SCHEDULE_GPIPE,
    HDT_SCHEDULE_1F1B,
    HDT_SCHEDULE_INTERLEAVED,
    HDT_SCHEDULE_ZB_H1,
    HDT_SCHEDULE_ZB_MEM,
    HDT_SCHEDULE_WAN,
    HDT_SCHEDULE_KIND_COUNT
};

/* "auto", "gpipe", ...: as settings, plans and people call them; ends with NULL. */
extern const char *const hdt_schedule_names[HDT_SCHEDULE_KIND_COUNT + 1];

/* Does it do a backward in two halves? */
static inline bool hdt_schedule_is_split(enum hdt_schedule_kind kind)
{
    return kind == HDT_SCHEDULE_ZB_H1 || kind == HDT_SCHEDULE_ZB_MEM;
}

struct hdt_job_plan {
    struct hdt_conf_strings sites; /* [] only these sites, in any order; empty: all */
    int64_t max_stages;            /* [0] 0: no limit */
    int64_t min_stages;            /* [1] */
    struct hdt_conf_strings cut;   /* [] fixed plan: "SITE/WORKER=UNITS" in pipeline order, units a
                                      stage as a count; empty: searched */
    int schedule;                  /* enum hdt_schedule_kind [auto] */
};

/* What happens when a worker of the job is lost. */
enum hdt_on_loss { HDT_ON_LOSS_WAIT, HDT_ON_LOSS_SHRINK, HDT_ON_LOSS_FAIL };

struct hdt_job_recovery {
    int on_loss;      /* enum hdt_on_loss [shrink] */
    int64_t wait;     /* DURATION ms [2m], 0..1000d: so long for a lost worker, then without it */
    int64_t give_up;  /* DURATION ms [24h], 1s..1000d: so long without its workers: the job fails */
    int64_t attempts; /* [5] restarts in a row that bring no new step or checkpoint */
};

/* Another plan in a run, when it pays. */
struct hdt_job_replan {
    bool automatic; /* `auto` [true] */
    double
        drift; /* [0.15] |measured / predicted - 1| of the step time from which on one is sought */
    double gain; /* [0.05] least 1 - new / present */
};

struct hdt_job {
    char *name;  /* STRING ["job"] letters, digits, '-', '_' */
    char *model; /* PATH, required: config.json, read by `hdt` */
    struct hdt_job_data data;
    struct hdt_job_batch batch;
    int64_t steps;  /* required, 1..1e9 */
    int64_t seed;   /* [1] of weights and sampler */
    bool recompute; /* [false] recompute activations in the backward pass */
    int precision;  /* enum hdt_job_precision [fp32]; bf16: on devices that have it; fp8: on no
                       others */
    struct hdt_job_optimizer optimizer;
    struct hdt_job_codec codec;
    struct hdt_job_outer outer;
    struct hdt_job_checkpoint checkpoint;
    struct hdt_job_eval eval;
    struct hdt_job_plan plan;
    struct hdt_job_recovery recovery;
    struct hdt_job_replan replan;
    int64_t progress_timeout; /* DURATION ms [0s], 0..24h: nothing moved for so long: the job fails;
                                 0: the coordinating gateway's. Workers never see 0 */
};

extern const struct hdt_conf_schema hdt_job_schema;

/* Checks beyond the table (sequence against model, warm-up against steps, ...), with file:line when
 * doc is given. */
struct hdt_model_config;
enum hdt_status hdt_job_check(const struct hdt_job *job, const struct hdt_model_config *model,
                              const struct hdt_conf_doc *doc, struct hdt_error *err);

/* Is the job's own progress_timeout (0 is good) long enough beside `knob_ms`, that of the gateway
 * of `site`? A rank must not give up before a session is dialled anew. */
enum hdt_status hdt_job_check_timeout(const struct hdt_job *job, int64_t knob_ms, const char *site,
                                      const struct hdt_conf_doc *doc, struct hdt_error *err);

/* The codec that the job names for activations or, `is_grad`, for their gradients. false: "auto",
 * and *spec is not set. */
bool hdt_job_codec(const struct hdt_job *job, bool is_grad, struct hdt_codec_spec *spec);

/* May the codec of activations (of their gradients) between sites change in the run? */
bool hdt_job_codec_is_live(const struct hdt_job *job, bool is_grad);

/* Is a text what codec.activations may be? HDT_EINVAL with a hint of what exists. */
enum hdt_status hdt_job_codec_check(const char *text, struct hdt_error *err);

/* The codec of outer.codec; lossless for "auto". One worker codec for all, so that all replicas see
 * the same numbers; inside a site the caller leaves lossless out. */
struct hdt_codec_spec hdt_job_outer_codec(const struct hdt_job *job);

/* Is a text what outer.codec may be: a codec that keeps nothing from frame to frame? HDT_EINVAL. */
enum hdt_status hdt_job_outer_codec_check(const char *text, struct hdt_error *err);

/* Does an outer step follow on this step (0-based) where a plan has replicas? After every
 * outer.steps steps of the job, counted from its begin, and after the last one. */
bool hdt_job_outer_is_due(const struct hdt_job *job, int64_t step);

/* Learning rate of a step (0-based): linear warm-up, then cosine from lr to min_lr. */
double hdt_job_lr(const struct hdt_job *job, int64_t step);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_JOB_H */
