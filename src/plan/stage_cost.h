/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_STAGE_COST_H
#define HDT_PLAN_STAGE_COST_H

/*
 * What a stage of a pipeline costs on accelerators: how long its work and its messages take, what
 * memory it needs, from numbers alone. doc/predictor.md derives the formulas and holds them against
 * measurements. Who plays the times of all stages (order, waiting, sharing of links) is elsewhere.
 * Pure functions: no I/O, no allocation; any thread.
 */
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What no data sheet tells: found on measured runs, the same for all of them. */
struct hdt_stage_cost_constants {
    double message_s;         /* that each end of a message spends beside the wire */
    double input_s_per_token; /* batches and embedding, on the first stage, both directions */
    double backward_start_s;  /* that a profile of one layer adds to its backward */
    double matrix_share;      /* of its peak that a device reaches in a matrix product */
    double ring_share;        /* of a link's nominal rate that a ring of all-reduces gets */
    double drift; /* sigma of computations' times where replicas share links; not fitted:
                     what it must be is more than nothing */
};
#define HDT_STAGE_COST_N_CONSTANTS 5
extern const struct hdt_stage_cost_constants hdt_stage_cost_fitted;

struct hdt_stage_cost_model {
    double C;    /* width */
    double NH;   /* heads */
    double T, V; /* positions of a sample, vocabulary */
    double layer_params, embed_params;
    double layer_matrices; /* parameters of a layer that are factors of products */
    double heads_width;    /* heads times their size */
    bool is_fused;         /* attention in one kernel: no T x T matrix in memory */
    double head_params;    /* without the table that it shares with the embedding, when tied */
    double table_params;   /* V times the embedding's width */
    double head_matrices;  /* the head's factor of products: the table, and its way from width C */
    bool is_tied;
    double layer_kept;  /* values of a sample that one layer keeps for its backward, undivided; */
    double scores_kept; /* of them, those of T x T matrices */
    double value_bytes; /* of an activation, in memory and on the wire */
    double grad_bytes;  /* of a gradient, in memory and on the wire */
};

/* One accelerator, and the tensor-parallel group that it works in. */
struct hdt_stage_cost_device {
    double flop_per_s;       /* matrix products at the model's precision, dense */
    double bytes_per_s;      /* memory */
    double ring_bytes_per_s; /* of each one, through a ring of the group; unused when tp is 1 */
    double framework_bytes;  /* that it holds before the first layer */
};

/* A transformer layer, measured alone. */
struct hdt_stage_cost_point {
    int64_t micro_batch;
    double fwd_s, bwd_s;
    double recompute_s; /* of a whole layer's forward in its backward; 0: as its forward */
};

/* Points of one degree of tensor parallelism, by micro-batch. */
struct hdt_stage_cost_profile {
    const struct hdt_stage_cost_point *points;
    int n_points;
    double head_fwd_s, head_bwd_s;   /* of a micro-batch; 0: from the device's figures, */
    double embed_fwd_s, embed_bwd_s; /* and from input_s_per_token */
    double step_s_per_param;         /* 0: from the device's figures */
};

enum hdt_stage_cost_recompute {
    HDT_STAGE_COST_KEEP_ALL,
    HDT_STAGE_COST_KEEP_LINEAR, /* all but the T x T matrices of the attention */
    HDT_STAGE_COST_KEEP_INPUTS, /* of layers */
};

/* Where the optimizer's state is, and how much of it. */
struct hdt_stage_cost_optimizer {
    double moments_bytes; /* both, of a parameter */
    int n_shards;         /* replicas that keep and step on a part each (ZeRO-1); 1: all on each */
    bool on_host;         /* state and step (ZeRO-Offload) */
};

struct hdt_stage_cost {
    const struct hdt_stage_cost_constants *constants;
    const struct hdt_stage_cost_model *model;
    const struct hdt_stage_cost_device *device;
    const struct hdt_stage_cost_profile *profile;
    int64_t n_layers, micro_batch;
    int tp;
    bool is_first, is_last; /* has the embedding; has the head */
    enum hdt_stage_cost_recompute recompute;
    struct hdt_stage_cost_optimizer optimizer;
    bool activations_on_host; /* those that wait for their backward */
};

/* Both moments of a parameter in 8 bits each: blocks of 2048 values share a scale of 4 bytes
 * (Dettmers et al., arXiv 2110.02861, section 2). */
#define HDT_STAGE_COST_MOMENTS_INT8 (2 * (1 + 4.0 / 2048))

/* Micro-batches whose activations are on the device when the others are on the host: one at work,
 * one that leaves, one that comes back. */
#define HDT_STAGE_COST_HOST_SLOTS 3

/* One micro-batch through one layer, as it runs among others. Between points of the profile and
 * beyond them along a line, but beyond the last one never below it; the slope of a single point,
 * and all when there is none, from the device's figures. */
void hdt_stage_cost_layer_time(const struct hdt_stage_cost *stage, double *fwd_s, double *bwd_s);

/* One micro-batch through the stage: layers, embedding, head, recomputation, and what a group of
 * tensor parallelism does to make parts of messages whole. */
void hdt_stage_cost_time(const struct hdt_stage_cost *stage, double *fwd_s, double *bwd_s);

/* The activations of a micro-batch, or their gradient, from stage to stage: each rank of the group
 * sends its part. */
struct hdt_stage_cost_message {
    double bytes;       /* of each rank */
    double end_s;       /* that the sender spends before, and the receiver after */
    double eager_share; /* that buffers take: the sender goes on when the rest has left */
};
void hdt_stage_cost_message(const struct hdt_stage_cost *stage,
                            struct hdt_stage_cost_message *message);

/* Parameters on each rank of the stage. A head that is tied to the embedding of another stage has a
 * copy of its table. */
double hdt_stage_cost_params(const struct hdt_stage_cost *stage);

/* Gradients of the stage on each rank; those of the tied table, which first and last stage add. */
double hdt_stage_cost_grad_bytes(const struct hdt_stage_cost *stage);
double hdt_stage_cost_tied_bytes(const struct hdt_stage_cost *stage);

/* Adam with clipping: what the device does of it. */
double hdt_stage_cost_step_s(const struct hdt_stage_cost *stage);

/* With the optimizer on the host: bytes that its step reads and writes there for each rank,
 * gradients that go down to it, those of them that are a table's which another stage has too, and
 * weights that come back. Else 0. */
double hdt_stage_cost_host_step_bytes(const struct hdt_stage_cost *stage);
double hdt_stage_cost_down_bytes(const struct hdt_stage_cost *stage);
double hdt_stage_cost_tied_down_bytes(const struct hdt_stage_cost *stage);
double hdt_stage_cost_up_bytes(const struct hdt_stage_cost *stage);

/* Weights that each rank gathers the parts of after a step that replicas share; 0: they do not. */
double hdt_stage_cost_gather_bytes(const struct hdt_stage_cost *stage);

/* What a layer at work takes beside what is kept, when layers keep their inputs; else 0. One layer
 * of a rank is at work at a time. */
double hdt_stage_cost_work_bytes(const struct hdt_stage_cost *stage);

/* Bytes of one device, by what they are for. */
struct hdt_stage_cost_memory {
    double weights, grads;
    double master; /* weights in fp32, where others compute */
    double moments;
    double buffers;     /* all-reduce and optimizer */
    double activations; /* of layers, and inputs of the stage */
    double head;        /* logits and what the loss makes of them */
    double framework;
    double total;
    /* Of the host, not in `total`. */
    double host_optimizer; /* weights in fp32, moments, gradients */
    double host_activations;
};
/* With activations of n_in_flight micro-batches. */
void hdt_stage_cost_memory(const struct hdt_stage_cost *stage, int64_t n_in_flight,
                           struct hdt_stage_cost_memory *memory);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_STAGE_COST_H */
