/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file is JSON, but it is read as the YAML that JSON is a part of: by the table of settings, so
 * that a fault has its line.
 */
#include "config.h"

#include "src/core/layer_profile.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/core/devices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As much as the tables of settings take. */
#define TEXT_MAX (1u << 20)

const char *const hdt_layer_kind_names[] = {[HDT_LAYER_EMBEDDING] = "embedding",
                                            [HDT_LAYER_BLOCK] = "block",
                                            [HDT_LAYER_HEAD] = "head",
                                            [HDT_LAYER_HEAD + 1] = NULL};

/* ---- the table ---- */

/* A nanosecond is less than a kernel's start, a day more than any layer. */
#define SECONDS(field, help) HDT_CONF_OPTIONAL(struct hdt_layer_times, field, 1e-9, 86400, help)

static const struct hdt_conf_row times_rows[] = {
    HDT_CONF_INT(struct hdt_layer_times, tp, "1", 1, 4096, "Tensor-parallel degree."),
    HDT_CONF_INT(struct hdt_layer_times, micro_batch, NULL, 1, 65536, "Sequences."),
    SECONDS(forward_s, "Forward pass."),
    SECONDS(backward_s, "Backward pass: gradients of input and weights, without recompute."),
    SECONDS(backward_input_s, "Gradient of the input alone."),
    SECONDS(backward_weight_s, "Gradients of the weights alone."),
    SECONDS(recompute_s, "Forward pass in the backward pass."),
    HDT_CONF_END};

static const struct hdt_conf_row layer_rows[] = {
    HDT_CONF_ENUM(struct hdt_layer, kind, "block", hdt_layer_kind_names, "What the layer is."),
    HDT_CONF_OPTIONAL(struct hdt_layer, params, 1, 1e13, "Parameters."),
    HDT_CONF_OPTIONAL(struct hdt_layer, output_bytes, 1, 1e13,
                      "What it hands on, in bytes for one sequence."),
    HDT_CONF_OPTIONAL(struct hdt_layer, stored_bytes, 1, 1e14,
                      "What it keeps for the backward pass, in bytes for one sequence."),
    HDT_CONF_LIST(struct hdt_layer, times, times_rows, struct hdt_layer_times, "Measured times."),
    HDT_CONF_END};

static enum hdt_status precision_check(const char *text, struct hdt_error *err)
{
    for (int i = 0; hdt_precision_names[i]; i++) {
        if (strcmp(text, hdt_precision_names[i]) == 0) {
            return HDT_OK;
        }
    }
    if (text[0] == '\0') {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL, "'%.32s' is no precision", text);
    hdt_error_hint(err, "known are fp32, tf32, bf16, fp16, fp8 and int8");
    return HDT_EINVAL;
}

#define SIZE(field, max, help) HDT_CONF_INT(struct hdt_layer_shape, field, "0", 0, max, help)

static const struct hdt_conf_row shape_rows[] = {
    SIZE(hidden_size, 1 << 24, "Width."),
    SIZE(intermediate_size, 1 << 24, "Width of the feed-forward part."),
    SIZE(num_attention_heads, 1 << 20, "Heads of queries."),
    SIZE(num_key_value_heads, 1 << 20, "Heads of keys and values."),
    SIZE(head_dim, 1 << 20, "Width of a head."),
    SIZE(vocab_size, 1 << 24, "Tokens that there are."),
    HDT_CONF_END};

static const struct hdt_conf_row profile_rows[] = {
    HDT_CONF_STRING(struct hdt_layer_profile, model, NULL, "Name of the model."),
    HDT_CONF_SECTION(struct hdt_layer_profile, shape, shape_rows,
                     "Sizes of the model, as its config.json has them; 0: not said."),
    HDT_CONF_STRING(struct hdt_layer_profile, device, NULL,
                    "Name of the device, as the catalogue has it."),
    HDT_CONF_INT(struct hdt_layer_profile, threads, "0", 0, 65536,
                 "Threads of a processor that computed; 0: not said."),
    HDT_CONF_CHECKED(struct hdt_layer_profile, precision, "", precision_check,
                     "Kind of numbers that were multiplied. Empty: not said."),
    HDT_CONF_INT(struct hdt_layer_profile, seq_len, "0", 0, 16777216,
                 "Tokens of a sequence; 0: not said."),
    HDT_CONF_STRING(struct hdt_layer_profile, source, "", "Who measured it."),
    HDT_CONF_STRING(struct hdt_layer_profile, date, "", "When, as 2026-01-31."),
    HDT_CONF_STRING(struct hdt_layer_profile, note, "", "What a reader should know."),
    HDT_CONF_OPTIONAL(struct hdt_layer_profile, optimizer_s_per_param, 1e-12, 1,
                      "The optimizer's step, seconds for one parameter."),
    HDT_CONF_OPTIONAL(struct hdt_layer_profile, op_s, 1e-12, 60,
                      "What an op takes beside its work, seconds."),
    HDT_CONF_OPTIONAL(struct hdt_layer_profile, cast_bytes_per_s, 1, 1e15,
                      "fp32 made bf16 or int8 for a frame, bytes of fp32 a second."),
    HDT_CONF_OPTIONAL(struct hdt_layer_profile, copy_bytes_per_s, 1, 1e15,
                      "fp32 copied into or out of a frame, bytes a second."),
    HDT_CONF_LIST(struct hdt_layer_profile, layers, layer_rows, struct hdt_layer,
                  "The layers, one of a kind."),
    HDT_CONF_END};

const struct hdt_conf_schema hdt_layer_profile_schema = {
    .name = "layer profile",
    .help = "What the layers of a model take on a device.",
    .rows = profile_rows,
    .size = sizeof(struct hdt_layer_profile),
};

/* ---- reading ---- */

struct ranked {
    int64_t tp, micro_batch;
    size_t idx;
};

/* By degree and micro-batch; equal ones in the order of the file. */
static int ranked_compare(const void *a, const void *b)
{
    const struct ranked *l = a, *r = b;

    if (l->tp != r->tp) {
        return l->tp < r->tp ? -1 : 1;
    }
    if (l->micro_batch != r->micro_batch) {
        return l->micro_batch < r->micro_batch ? -1 : 1;
    }
    return l->idx < r->idx ? -1 : l->idx > r->idx;
}

/* Sort the times of a layer; refuse a point that stands there twice. */
static enum hdt_status times_sort(struct hdt_layer *layer, size_t layer_idx,
                                  const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    struct hdt_layer_times *times = layer->times.items;
    struct ranked *ranked = hdt_calloc(layer->times.n + 1, sizeof(*ranked));
    struct hdt_layer_times *sorted = hdt_calloc(layer->times.n + 1, sizeof(*sorted));
    enum hdt_status status = HDT_OK;
    char key[64];

    for (size_t i = 0; i < layer->times.n; i++) {
        ranked[i] = (struct ranked){times[i].tp, times[i].micro_batch, i};
    }
    qsort(ranked, layer->times.n, sizeof(*ranked), ranked_compare);
    for (size_t i = 0; i < layer->times.n && status == HDT_OK; i++) {
        sorted[i] = times[ranked[i].idx];
        if (i > 0 && ranked[i].tp == ranked[i - 1].tp &&
            ranked[i].micro_batch == ranked[i - 1].micro_batch) {
            snprintf(key, sizeof(key), "layers[%zu].times[%zu]", layer_idx, ranked[i].idx);
            status = hdt_conf_error(doc, key, err, HDT_EINVAL,
                                    "tp %lld, micro-batch %lld of %s stands here twice",
                                    (long long)ranked[i].tp, (long long)ranked[i].micro_batch,
                                    hdt_layer_kind_names[layer->kind]);
            hdt_error_hint(err, "remove one of the two");
        }
    }
    if (status == HDT_OK && layer->times.n > 0) {
        memcpy(times, sorted, layer->times.n * sizeof(*times));
    }
    free(ranked);
    free(sorted);
    return status;
}

static enum hdt_status profile_check(struct hdt_layer_profile *profile,
                                     const struct hdt_conf_doc *doc, struct hdt_error *err)
{
    struct hdt_layer *layers = profile->layers.items;
    char key[64];

    if (profile->layers.n == 0) {
        return hdt_conf_error(doc, "layers", err, HDT_EINVAL, "the profile has no layers");
    }
    for (size_t i = 0; i < profile->layers.n; i++) {
        if (hdt_layer_profile_layer(profile, (enum hdt_layer_kind)layers[i].kind) != &layers[i]) {
            snprintf(key, sizeof(key), "layers[%zu]", i);
            hdt_conf_error(doc, key, err, HDT_EINVAL, "a layer of kind %s stands here twice",
                           hdt_layer_kind_names[layers[i].kind]);
            hdt_error_hint(err, "put the times of both into one");
            return HDT_EINVAL;
        }
        HDT_TRY(times_sort(&layers[i], i, doc, err));
    }
    return HDT_OK;
}

static enum hdt_status parse_doc(const char *text, size_t len, const char *file,
                                 struct hdt_layer_profile *profile, struct hdt_conf_doc **doc,
                                 struct hdt_error *err)
{
    enum hdt_status status;

    HDT_TRY(hdt_conf_parse(&hdt_layer_profile_schema, text, len, file, profile, doc, err));
    status = profile_check(profile, *doc, err);
    if (status != HDT_OK) {
        hdt_conf_doc_free(*doc);
        hdt_layer_profile_release(profile);
    }
    return status;
}

enum hdt_status hdt_layer_profile_parse(const char *text, size_t len, const char *file,
                                        struct hdt_layer_profile *profile, struct hdt_error *err)
{
    struct hdt_conf_doc *doc;

    HDT_TRY(parse_doc(text, len, file, profile, &doc, err));
    hdt_conf_doc_free(doc);
    return HDT_OK;
}

enum hdt_status hdt_layer_profile_load_doc(const char *path, struct hdt_layer_profile *profile,
                                           struct hdt_conf_doc **doc, struct hdt_error *err)
{
    struct hdt_buf text = {0};
    enum hdt_status status = hdt_file_read(path, TEXT_MAX, &text, err);

    if (status == HDT_OK) {
        status = parse_doc(hdt_buf_str(&text), text.len, path, profile, doc, err);
    } else {
        hdt_error_prefix(err, "cannot read the profile of a device");
    }
    hdt_buf_release(&text);
    return status;
}

enum hdt_status hdt_layer_profile_load(const char *path, struct hdt_layer_profile *profile,
                                       struct hdt_error *err)
{
    struct hdt_conf_doc *doc;

    HDT_TRY(hdt_layer_profile_load_doc(path, profile, &doc, err));
    hdt_conf_doc_free(doc);
    return HDT_OK;
}

void hdt_layer_profile_release(struct hdt_layer_profile *profile)
{
    hdt_conf_release(&hdt_layer_profile_schema, profile);
}

/* ---- asking ---- */

const struct hdt_layer *hdt_layer_profile_layer(const struct hdt_layer_profile *profile,
                                                enum hdt_layer_kind kind)
{
    const struct hdt_layer *layers = profile->layers.items;

    for (size_t i = 0; i < profile->layers.n; i++) {
        if (layers[i].kind == (int)kind) {
            return &layers[i];
        }
    }
    return NULL;
}

/* The measured points of one degree, ascending in the micro-batch. */
struct points {
    const struct hdt_layer_times *first;
    size_t n;
};

static struct points points_find(const struct hdt_layer *layer, int64_t tp)
{
    const struct hdt_layer_times *times = layer->times.items;
    struct points points = {times, 0};

    for (size_t i = 0; i < layer->times.n; i++) {
        if (times[i].tp == tp) {
            points.first = points.n == 0 ? &times[i] : points.first;
            points.n++;
        }
    }
    return points;
}

static double field_of(const struct hdt_layer_times *times, size_t offset)
{
    return *(const double *)((const char *)times + offset);
}

/* The line through two points. */
static double line_at(const struct hdt_layer_times *a, const struct hdt_layer_times *b,
                      size_t offset, int64_t micro_batch)
{
    double slope =
        (field_of(b, offset) - field_of(a, offset)) / (double)(b->micro_batch - a->micro_batch);

    return field_of(a, offset) + slope * (double)(micro_batch - a->micro_batch);
}

/* One kind of time at a micro-batch; NaN: it cannot be told. */
static double time_at(const struct points *points, size_t offset, int64_t micro_batch)
{
    /* The known points that the line goes through: around the micro-batch, else the nearest two. */
    const struct hdt_layer_times *a = NULL, *b = NULL;
    double value, share;

    for (size_t i = 0; i < points->n && !(a && b->micro_batch > micro_batch); i++) {
        const struct hdt_layer_times *point = &points->first[i];

        if (isnan(field_of(point, offset))) {
            continue;
        }
        if (point->micro_batch == micro_batch) {
            return field_of(point, offset);
        }
        a = b;
        b = point;
    }
    if (!a) {
        return NAN;
    }
    value = line_at(a, b, offset, micro_batch);
    if (micro_batch < a->micro_batch) {
        share = (double)micro_batch / (double)a->micro_batch;
        return fmax(value, field_of(a, offset) * share);
    }
    return micro_batch > b->micro_batch ? fmax(value, field_of(b, offset)) : value;
}

static enum hdt_status degree_refuse(const struct hdt_layer_profile *profile,
                                     const struct hdt_layer *layer, int64_t tp,
                                     struct hdt_error *err)
{
    const struct hdt_layer_times *times = layer->times.items;
    struct hdt_buf known = {0};

    for (size_t i = 0; i < layer->times.n; i++) {
        if (i == 0 || times[i].tp != times[i - 1].tp) {
            hdt_buf_appendf(&known, "%s%lld", known.len ? ", " : "", (long long)times[i].tp);
        }
    }
    hdt_error_set(
        err, HDT_ENOENT, "the profile of %.64s on %.64s has no %s at tensor-parallel degree %lld",
        profile->model, profile->device, hdt_layer_kind_names[layer->kind], (long long)tp);
    hdt_error_hint(err, "measured: %.200s", known.len ? hdt_buf_str(&known) : "none");
    hdt_buf_release(&known);
    return HDT_ENOENT;
}

enum hdt_status hdt_layer_profile_times(const struct hdt_layer_profile *profile,
                                        enum hdt_layer_kind kind, int64_t tp, int64_t micro_batch,
                                        struct hdt_layer_times *times, struct hdt_error *err)
{
    static const size_t fields[] = {offsetof(struct hdt_layer_times, forward_s),
                                    offsetof(struct hdt_layer_times, backward_s),
                                    offsetof(struct hdt_layer_times, backward_input_s),
                                    offsetof(struct hdt_layer_times, backward_weight_s),
                                    offsetof(struct hdt_layer_times, recompute_s)};
    const struct hdt_layer *layer = hdt_layer_profile_layer(profile, kind);
    struct hdt_layer_times found = {.tp = tp, .micro_batch = micro_batch};
    struct points points;

    HDT_ASSERT(tp >= 1 && micro_batch >= 1);
    if (!layer) {
        return hdt_error_set(err, HDT_ENOENT, "the profile of %.64s on %.64s has no %s",
                             profile->model, profile->device, hdt_layer_kind_names[kind]);
    }
    points = points_find(layer, tp);
    if (points.n == 0) {
        return degree_refuse(profile, layer, tp, err);
    }
    if (points.n == 1 && points.first->micro_batch != micro_batch) {
        hdt_error_set(err, HDT_ENOENT,
                      "the profile of %.64s on %.64s has %s at degree %lld for micro-batch %lld "
                      "only, not %lld",
                      profile->model, profile->device, hdt_layer_kind_names[kind], (long long)tp,
                      (long long)points.first->micro_batch, (long long)micro_batch);
        hdt_error_hint(err, "measure a second micro-batch: one does not say how the time grows");
        return HDT_ENOENT;
    }
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        *(double *)((char *)&found + fields[i]) = time_at(&points, fields[i], micro_batch);
    }
    if (isnan(found.backward_s)) {
        found.backward_s = found.backward_input_s + found.backward_weight_s;
    }
    *times = found;
    return HDT_OK;
}
