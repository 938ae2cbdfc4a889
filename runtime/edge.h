/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_EDGE_H
#define HDT_RUNTIME_EDGE_H

/*
 * One end of a flow of activations or their gradients: which codec a frame is made by.
 *
 * The plan names a codec. Around it stands a ladder (compress/ladder.h) that both ends work out
 * from plan and job alike; a frame's mark says which rung made it, 0 the planned one, else 1 +
 * rung. The sender steps up by itself when a frame would lose too much, and, where the job leaves
 * the codec open, goes by what the link carries (compress/adapt.h). The receiver follows the marks.
 *
 * Belongs to the thread of its runner, figures of the link included.
 */
#include "compress/adapt.h"
#include "compress/ladder.h"
#include "runtime/coder.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_edge_conf {
    struct hdt_codec_spec planned;
    bool is_src, is_live;
    double error_budget; /* relative; 0: neither guard nor choice */
    size_t tensor_bytes, frame_cap;
    double n_frames;   /* of a step */
    double dst_busy_s; /* arithmetic of the other worker beside a frame, predicted */
    double src_share, dst_share, in_flight, beyond_s; /* as in struct hdt_adapt_input */
    double n_live; /* edges of the job whose codec may change, this one among them; 0: one */
    struct hdt_coder *coder; /* tensors are device memory, and it codes them; NULL: host memory */
    char name[192];          /* for messages: "job 7, flow 3 (activations, a -> b), rank 0" */
};

/* What the gateway says of the way to the other end. */
struct hdt_edge_figures {
    double goodput_bytes_per_s; /* of the wire; 0: unknown */
    double rtt_s;
    double gw_encode_bytes_per_s, gw_decode_bytes_per_s; /* of all its threads; 0: unknown */
    double gw_threads;                                   /* of its codec; 0: unknown */
    double send_s_per_byte, recv_s_per_byte; /* its CPU time for a byte of the wire; 0: unknown */
    uint64_t plain_bytes, coded_bytes;       /* of the flow, sums, by its gateway codec */
    int64_t measured_us;                     /* goodput, by this machine's clock */
};

/* Of one rung, as seen here. */
struct hdt_edge_rung {
    double encode_bytes_per_s, decode_bytes_per_s; /* of the tensor; 0: unknown */
    double gw_ratio;                               /* 0: not seen yet */
    double error;
    uint64_t error_frame; /* number of the frame that it was last seen of; 0: none */
};

struct hdt_edge {
    struct hdt_edge_conf conf;
    struct hdt_ladder ladder;
    struct hdt_ladder_guard guard;
    struct hdt_edge_rung rungs[HDT_LADDER_MAX];
    struct hdt_edge_figures figures;
    struct hdt_codec_guard total; /* of all frames that left */
    double worst_error;           /* of one of them */
    int rung;                     /* that the next frame is made by */
    uint64_t n_frames, n_changes;
    double src_busy_s;
    int64_t encode_ns; /* of this step's frames */
    int64_t changed_us, chosen_us;
    struct hdt_adapt_candidate candidates[HDT_LADDER_MAX]; /* of the last choice */
    struct hdt_adapt_input input;
    struct hdt_adapt_table table; /* n 0: none was made */
};

/* Measures the rates of the ladder's codecs where there is a choice: some milliseconds each. */
void hdt_edge_init(struct hdt_edge *edge, const struct hdt_edge_conf *conf);

/* The sender has figures, at a step; or a step took so much time a frame, waits left out, the
 * encoding of its frames included, and what its gateway held it up; 0: a step that says nothing
 * of the next one. */
void hdt_edge_set_figures(struct hdt_edge *edge, const struct hdt_edge_figures *figures,
                          int64_t step);
void hdt_edge_set_busy(struct hdt_edge *edge, double src_busy_s);

/* Encode io (io->src is device memory where the edge has a coder) by the codec of now and set *len
 * and *mark; io->spec is the edge's affair, io->guard must be there and tells what the codec saw
 * that made the frame. HDT_EINVAL: no rung can carry it; the guard then is the most exact one's. */
enum hdt_status hdt_edge_encode(struct hdt_edge *edge, struct hdt_codec_ctx *ctx,
                                struct hdt_codec_io *io, int64_t step, size_t *len, uint8_t *mark,
                                struct hdt_error *err);

/* Frames of an evaluation leave no trace: `kept` is the edge as it was before the first of them. */
void hdt_edge_put_back(struct hdt_edge *edge, const struct hdt_edge *kept);

/* What the guard of a sending end knows, in HDT_LADDER_GUARD_BYTES; and back, as
 * hdt_ladder_guard_load says: the next frame is made as it would have been then. */
void hdt_edge_guard_save(const struct hdt_edge *edge, uint8_t mem[HDT_LADDER_GUARD_BYTES]);
enum hdt_status hdt_edge_guard_load(struct hdt_edge *edge, const void *mem, size_t len,
                                    struct hdt_error *err);

/* The dtype of a frame with a mark that this end made. */
enum hdt_dtype hdt_edge_dtype(const struct hdt_edge *edge, uint8_t mark);

/* Decode a frame with a mark that came; io->dst is device memory where the edge has a coder.
 * HDT_EPROTO: no rung is called so, or the bytes are no frame of it. */
enum hdt_status hdt_edge_decode(const struct hdt_edge *edge, struct hdt_codec_ctx *ctx,
                                struct hdt_codec_io *io, uint8_t mark, struct hdt_error *err);

/* Is there anything to report: does a codec lose something, or may it change? */
bool hdt_edge_is_of_note(const struct hdt_edge *edge);

/* What `hdt status`, /metrics and `hdt codec explain` show. New reference. */
json_t *hdt_edge_json(const struct hdt_edge *edge);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_EDGE_H */
