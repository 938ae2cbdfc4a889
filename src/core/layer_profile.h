/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_LAYER_PROFILE_H
#define HDT_CORE_LAYER_PROFILE_H

/*
 * What the layers of one model take on one device, measured: seconds by tensor-parallel degree and
 * micro-batch, and sizes. A JSON file; it goes before what a catalogue and a roofline say.
 *
 *     {"model": "OPT-350M", "device": "GH200-96GB", "precision": "fp32", "seq_len": 2048,
 *      "layers": [{"kind": "block", "params": 12596224,
 *                  "times": [{"tp": 4, "micro_batch": 1, "forward_s": 1.5e-3,
 *                             "backward_s": 1.94e-3}]}]}
 *
 * What was not measured is null or left away, and NaN here: ask with isnan() before use. Loaded
 * data is only read afterwards: any thread.
 */
#include "src/base/conf.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_layer_kind { HDT_LAYER_EMBEDDING, HDT_LAYER_BLOCK, HDT_LAYER_HEAD };
extern const char *const hdt_layer_kind_names[];

/* One micro-batch through one layer, seconds on each of `tp` devices, communication included. */
struct hdt_layer_times {
    int64_t tp, micro_batch;
    double forward_s;
    double backward_s;       /* input and weight together, without recompute */
    double backward_input_s; /* the gradient of the input alone */
    double backward_weight_s;
    double recompute_s; /* the forward pass again, in the backward pass */
};

/* Sizes are of the whole layer, undivided by tensor parallelism; bytes of one sequence. */
struct hdt_layer {
    int kind; /* enum hdt_layer_kind */
    double params;
    double output_bytes;        /* what goes to the next layer */
    double stored_bytes;        /* kept from forward to backward, without recompute */
    struct hdt_conf_list times; /* of struct hdt_layer_times, by tp, then micro_batch */
};

/* What of a model decides its layers' times, by the names of config.json; 0: not said. */
struct hdt_layer_shape {
    int64_t hidden_size, intermediate_size;
    int64_t num_attention_heads, num_key_value_heads, head_dim;
    int64_t vocab_size;
};

struct hdt_layer_profile {
    char *model;
    struct hdt_layer_shape shape;
    char *device;    /* a name of the catalogue, where it has it */
    int64_t threads; /* of a processor, that computed; 0: not said */
    char *precision; /* one of hdt_precision_names; "": not said */
    int64_t seq_len; /* 0: not said */
    char *source;    /* who measured it */
    char *date;
    char *note;
    /* Beside the layers; NaN: not measured. */
    double optimizer_s_per_param;
    double op_s;                               /* that an op takes beside its work */
    double cast_bytes_per_s, copy_bytes_per_s; /* fp32 into and out of frames */
    struct hdt_conf_list layers;               /* of struct hdt_layer, at most one of a kind */
};

extern const struct hdt_conf_schema hdt_layer_profile_schema;

/* Load a file; to be released on success. HDT_ENOENT, HDT_EIO, HDT_EINVAL with file:line. */
enum hdt_status hdt_layer_profile_load(const char *path, struct hdt_layer_profile *profile,
                                       struct hdt_error *err);
/* The same from memory; `file` names the text in messages. */
enum hdt_status hdt_layer_profile_parse(const char *text, size_t len, const char *file,
                                        struct hdt_layer_profile *profile, struct hdt_error *err);
/* Load a file and keep where its values stood, for who checks them further: *doc is to be freed. */
enum hdt_status hdt_layer_profile_load_doc(const char *path, struct hdt_layer_profile *profile,
                                           struct hdt_conf_doc **doc, struct hdt_error *err);
void hdt_layer_profile_release(struct hdt_layer_profile *profile);

/* The layer of a kind; NULL: the profile has none. */
const struct hdt_layer *hdt_layer_profile_layer(const struct hdt_layer_profile *profile,
                                                enum hdt_layer_kind kind);

/* Times of a kind of layer at a degree and a micro-batch. A micro-batch that was not measured is on
 * the line through its neighbours; beyond the measured ones on the line through the last two, but
 * never less than a share of the smallest one, nor less than the largest one. A time that is known
 * at one micro-batch only is NaN at others. `backward_s` is the sum of its two parts where only
 * these are known.
 *
 * HDT_ENOENT when there is no such layer, nothing was measured at this degree, or only one other
 * micro-batch: how a time grows cannot be told from one. */
enum hdt_status hdt_layer_profile_times(const struct hdt_layer_profile *profile,
                                        enum hdt_layer_kind kind, int64_t tp, int64_t micro_batch,
                                        struct hdt_layer_times *times, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_LAYER_PROFILE_H */
