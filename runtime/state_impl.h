/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_STATE_IMPL_H
#define HDT_RUNTIME_STATE_IMPL_H

/* What the parts of the state share: state.c (life, frames, what a rank holds), state_save.c,
 * state_load.c. */
#include "runtime/state.h"

#include <pthread.h>
#include <stdatomic.h>
#include <xxhash.h>

/* Slabs between the files and this rank's own stages: large enough for a disk, small beside all
 * else. */
#define STATE_SLAB_BYTES ((size_t)4 << 20)

/* The feedback, or the guard, of one end of this rank. */
struct state_feedback {
    int end; /* 2 flow, + 1 at the receiver; or of a unit: hdt_state_next_end */
    struct hdt_codec_state *codec;
    struct hdt_edge *edge; /* codec NULL: the guard of this one */
    bool only_loads;       /* another rank saves the same */
    uint8_t *bytes;        /* its saved form, */
    size_t len;            /* so long, */
    uint64_t xxh3;         /* and its digest when it is saved */
};

struct hdt_state {
    struct hdt_state_conf conf;
    uint8_t *snapshot; /* NULL: read from the stages */
    uint64_t *digests; /* of the snapshot's pairs, in the walk's order */
    uint8_t *slab;     /* STATE_SLAB_BYTES */
    struct state_feedback *feedback;
    size_t n_feedback;
    XXH3_state_t *xxh3;
    char older[4096]; /* hdt_state_older */
    struct hdt_ckpt_meta meta;
    int64_t keepalive_us;
    atomic_ullong n_moved; /* slabs and other pieces of work of saves */

    pthread_t thread;
    bool has_thread;      /* to be joined; the caller's thread only */
    pthread_mutex_t lock; /* guards busy */
    pthread_cond_t changed;
    bool busy;
    enum hdt_status status; /* of the last save; read after join, like the next two */
    struct hdt_error err;
    struct hdt_error save_err; /* why the checkpoint rank could not write the last one */
};

/* Walk over the (tensor, part) pairs of a rank: its stages in the plan's order, tensors in model
 * order. A tied head is no tensor of its own in files; one that does not share memory with the
 * embedding must be loaded all the same. */
struct state_walk {
    const struct hdt_plan *plan;
    const struct hdt_model_config *model;
    int rank;
    bool with_copies; /* loading: tied heads that are copies, too */
    size_t stage;     /* current, once `tensor` < `end` */
    int64_t tensor, end;
    int part;
};

void hdt_state_walk_init(struct state_walk *walk, const struct hdt_state *state, int rank,
                         bool with_copies);

/* Next pair in walk->tensor and walk->part; false at the end. */
bool hdt_state_walk_next(struct state_walk *walk);

static inline uint64_t hdt_state_walk_bytes(const struct state_walk *walk)
{
    return hdt_ckpt_tensor_bytes(walk->model, walk->tensor);
}

/* Device memory of the walk's current pair, on this rank. */
float *hdt_state_walk_memory(const struct hdt_state *state, const struct state_walk *walk);

/* A rank that the checkpoint rank gathers from or serves. */
struct state_peer {
    int flow;
    bool done;              /* the last frame went, or came */
    struct state_walk walk; /* serving: the pair that goes out, */
    uint64_t pos;           /* how much of it went, */
    bool at_end;            /* and whether there is no pair left; */
    int end;                /* then: the end whose feedback goes out, -1 before the first, */
    bool end_done;          /* and whether all of it went */
};

/* Flows of `kind` between the checkpoint rank and the others; *peers is the caller's. */
size_t hdt_state_peers(const struct hdt_state *state, enum hdt_flow_kind kind,
                       struct state_peer **peers);

/* The flow of `kind` between this rank and the checkpoint rank; -1: none. */
int hdt_state_own_flow(const struct hdt_state *state, enum hdt_flow_kind kind);

/* state_feedback.c */
enum hdt_status hdt_state_feedback_init(struct hdt_state *state, struct hdt_error *err);
void hdt_state_feedback_release(struct hdt_state *state);
/* Saving: copy what the codecs keep; send it; write what came, and one's own. */
enum hdt_status hdt_state_feedback_take(struct hdt_state *state, struct hdt_error *err);
enum hdt_status hdt_state_feedback_send(struct hdt_state *state, int flow, struct hdt_error *err);
enum hdt_status hdt_state_feedback_write(const struct hdt_state *state,
                                         struct hdt_ckpt_writer *writer,
                                         const struct hdt_state_header *header, const void *data,
                                         size_t len, struct hdt_error *err);
enum hdt_status hdt_state_feedback_write_own(const struct hdt_state *state,
                                             struct hdt_ckpt_writer *writer, struct hdt_error *err);
/* Loading: one's own; the next slab of peer->end to a peer; a slab that came, up to *pos. */
enum hdt_status hdt_state_feedback_load_own(struct hdt_state *state,
                                            const struct hdt_ckpt_reader *reader,
                                            struct hdt_error *err);
enum hdt_status hdt_state_feedback_serve(struct hdt_state *state,
                                         const struct hdt_ckpt_reader *reader,
                                         struct state_peer *peer, struct hdt_error *err);
enum hdt_status hdt_state_feedback_receive(struct hdt_state *state, struct state_feedback *item,
                                           uint64_t *pos, const struct hdt_state_header *header,
                                           const void *data, size_t len, struct hdt_error *err);

/* state_units.c: what replicas keep by unit. Its replica and unit; is it the outer momentum, or
 * moments? false: the end is an edge's. */
struct state_unit {
    int replica;
    int64_t unit;
    bool is_outer;
};
bool hdt_state_unit_of(const struct hdt_plan *plan, int end, struct state_unit *unit);
int hdt_state_n_ends(const struct hdt_plan *plan); /* of edges and units */
bool hdt_state_unit_is_of(const struct hdt_plan *plan, int rank, const struct state_unit *unit);
/* Not the moments of the first replica, which are saved as tensors, nor the same momentum twice. */
bool hdt_state_unit_is_saved(const struct state_unit *unit);
/* Copy what the rank holds of it to `bytes`, or back. */
enum hdt_status hdt_state_unit_copy(struct hdt_state *state, const struct state_unit *unit,
                                    void *bytes, bool to_stage, struct hdt_error *err);

/* Step and cursor; all else zero. */
void hdt_state_header_fill(const struct hdt_state *state, struct hdt_state_header *header);

/* A frame without data. */
enum hdt_status hdt_state_send_mark(struct hdt_state *state, int flow, uint8_t flags,
                                    struct hdt_error *err);

/* Data bytes of a slab that fit a slot: whole floats. */
size_t hdt_state_slab_len(size_t cap, uint64_t left);

/* A job that was told to end does not write or read gigabytes first: HDT_ECANCELED. */
enum hdt_status hdt_state_check(const struct hdt_state *state, struct hdt_error *err);

/* Something moved: neither this rank's waits nor those of others need end. */
void hdt_state_moved(void *state);

#endif /* HDT_RUNTIME_STATE_IMPL_H */
