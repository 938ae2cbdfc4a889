/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/profile_file.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The file takes no time below a nanosecond: less is a measurement of nothing. */
#define SECONDS_MIN 1e-9
/* Digits that a measured time may claim, and some more. */
#define DIGITS 9

/* ---- writing ---- */

static void text_set(char **field, const char *text)
{
    free(*field);
    *field = hdt_strdup(text);
}

/* A layer without times, and the bytes that it hands on for a sequence. */
static void layer_init(struct hdt_layer *layer, enum hdt_layer_kind kind, int64_t params,
                       double output_bytes)
{
    *layer = (struct hdt_layer){.kind = (int)kind,
                                .params = params > 0 ? (double)params : NAN,
                                .output_bytes = output_bytes,
                                .stored_bytes = NAN};
}

void hdt_profile_file_begin(struct hdt_layer_profile *file,
                            const struct hdt_profile_file_head *head,
                            const struct hdt_model_config *model)
{
    double row_bytes = 4.0 * (double)head->seq_len * (double)model->C;
    struct hdt_layer *layers = hdt_calloc(3, sizeof(*layers));
    time_t now = time(NULL);
    struct tm utc;
    char date[16];

    hdt_conf_defaults(&hdt_layer_profile_schema, file);
    strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &utc));
    text_set(&file->model, head->model);
    text_set(&file->device, head->device);
    text_set(&file->precision, hdt_job_precision_name(head->precision));
    text_set(&file->source, head->source);
    text_set(&file->note, head->note);
    text_set(&file->date, date);
    file->threads = head->n_threads;
    file->seq_len = head->seq_len;
    file->shape = (struct hdt_layer_shape){.hidden_size = model->C,
                                           .intermediate_size = model->F,
                                           .num_attention_heads = model->NH,
                                           .num_key_value_heads = model->NKV,
                                           .head_dim = model->HS,
                                           .vocab_size = model->V};
    layer_init(&layers[HDT_LAYER_EMBEDDING], HDT_LAYER_EMBEDDING, hdt_model_unit_params(model, 0),
               row_bytes);
    layer_init(&layers[HDT_LAYER_BLOCK], HDT_LAYER_BLOCK,
               model->L > 0 ? hdt_model_unit_params(model, 1) : 0, row_bytes);
    layer_init(&layers[HDT_LAYER_HEAD], HDT_LAYER_HEAD, hdt_model_unit_params(model, model->L + 1),
               NAN);
    file->layers = (struct hdt_conf_list){layers, 3};
}

static double seconds(double measured_s)
{
    return fmax(measured_s, SECONDS_MIN);
}

/* Not measured is 0 or NaN. */
static double seconds_or_nan(double measured_s)
{
    return measured_s > 0 ? seconds(measured_s) : NAN;
}

static double rate_or_nan(double rate)
{
    return rate > 0 ? rate : NAN;
}

static void times_add(struct hdt_layer_profile *file, enum hdt_layer_kind kind,
                      const struct hdt_layer_times *times)
{
    struct hdt_layer *layer = (struct hdt_layer *)file->layers.items + kind;
    struct hdt_conf_list *list = &layer->times;

    list->items = hdt_realloc(list->items, (list->n + 1) * sizeof(*times));
    ((struct hdt_layer_times *)list->items)[list->n++] = *times;
}

void hdt_profile_file_add(struct hdt_layer_profile *file, const struct hdt_profile *p,
                          double recompute_s)
{
    struct hdt_layer_times times = {.tp = 1,
                                    .micro_batch = p->micro_batch,
                                    .forward_s = seconds(p->embed_fwd_s),
                                    .backward_s = seconds(p->embed_bwd_s),
                                    .backward_input_s = NAN,
                                    .backward_weight_s = NAN,
                                    .recompute_s = NAN};

    HDT_ASSERT(file->layers.n == 3 && p->seq_len == file->seq_len);
    times_add(file, HDT_LAYER_EMBEDDING, &times);
    times.forward_s = seconds(p->head_fwd_s);
    times.backward_s = seconds(p->head_bwd_s);
    times_add(file, HDT_LAYER_HEAD, &times);
    times.forward_s = seconds(p->block_fwd_s);
    times.backward_s = seconds(p->block_bwd_s);
    times.backward_input_s = seconds_or_nan(p->block_bwd_input_s);
    times.backward_weight_s = seconds_or_nan(p->block_bwd_weight_s);
    times.recompute_s = seconds_or_nan(recompute_s);
    times_add(file, HDT_LAYER_BLOCK, &times);
    file->optimizer_s_per_param = rate_or_nan(p->step_s_per_param);
    file->op_s = rate_or_nan(p->op_overhead_s);
    file->cast_bytes_per_s = rate_or_nan(p->cast_bytes_per_s);
    file->copy_bytes_per_s = rate_or_nan(p->copy_bytes_per_s);
}

enum hdt_status hdt_profile_file_write(const struct hdt_layer_profile *file, const char *path,
                                       struct hdt_error *err)
{
    json_t *json = hdt_conf_to_json(&hdt_layer_profile_schema, file);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(DIGITS));
    struct hdt_buf bytes = {0};
    enum hdt_status status;

    hdt_buf_appendf(&bytes, "%s\n", text);
    status = hdt_file_write(path, &bytes, 0644, HDT_FILE_REPLACE, err);
    if (status != HDT_OK) {
        hdt_error_prefix(err, "cannot write the profile");
    }
    hdt_buf_release(&bytes);
    free(text);
    json_decref(json);
    return status;
}

/* ---- reading ---- */

struct reader {
    const struct hdt_layer_profile *file;
    const struct hdt_conf_doc *doc;
    const struct hdt_profile_file_want *want;
    struct hdt_error *err;
};

/* Sizes that the file says are those of the model. */
static enum hdt_status shape_check(const struct reader *r)
{
    const struct hdt_layer_shape *s = &r->file->shape;
    const struct hdt_model_config *m = r->want->model;
    const struct {
        const char *key;
        int64_t file, model;
    } sizes[] = {{"shape.hidden_size", s->hidden_size, m->C},
                 {"shape.intermediate_size", s->intermediate_size, m->F},
                 {"shape.num_attention_heads", s->num_attention_heads, m->NH},
                 {"shape.num_key_value_heads", s->num_key_value_heads, m->NKV},
                 {"shape.head_dim", s->head_dim, m->HS},
                 {"shape.vocab_size", s->vocab_size, m->V},
                 {"seq_len", r->file->seq_len, r->want->seq_len}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].file != 0 && sizes[i].file != sizes[i].model) {
            hdt_conf_error(r->doc, sizes[i].key, r->err, HDT_EINVAL,
                           "the profile was measured with %s %lld, the job has %lld", sizes[i].key,
                           (long long)sizes[i].file, (long long)sizes[i].model);
            hdt_error_hint(r->err,
                           "measure one with 'hdt-worker --profile' for the job's model and "
                           "sequences");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

/* How it computed is how the worker does. */
static enum hdt_status machine_check(const struct reader *r)
{
    const char *precision = r->file->precision, *ours;

    ours = hdt_job_precision_name(r->want->precision);
    if (precision && precision[0] && strcmp(precision, ours) != 0) {
        hdt_conf_error(r->doc, "precision", r->err, HDT_EINVAL,
                       "the profile was measured in %s, the worker computes this job in %s",
                       precision, ours);
        hdt_error_hint(r->err,
                       "measure one with 'hdt-worker --profile --precision %s'; a worker computes "
                       "in bf16 when the job's precision is bf16 and the cluster says \"bf16\": "
                       "true of the worker",
                       ours);
        return HDT_EINVAL;
    }
    if (r->file->threads != 0 && r->want->n_threads != 0 &&
        r->file->threads != r->want->n_threads) {
        hdt_conf_error(r->doc, "threads", r->err, HDT_EINVAL,
                       "the profile was measured with %lld threads, the worker has %lld",
                       (long long)r->file->threads, (long long)r->want->n_threads);
        hdt_error_hint(r->err, "measure one with 'hdt-worker --profile --threads %lld'",
                       (long long)r->want->n_threads);
        return HDT_EINVAL;
    }
    return HDT_OK;
}

/* Forward and backward of a layer at the micro-batch; both are needed. */
static enum hdt_status times_read(const struct reader *r, enum hdt_layer_kind kind,
                                  struct hdt_layer_times *times)
{
    struct hdt_error cause = {0};

    if (hdt_layer_profile_times(r->file, kind, 1, r->want->micro_batch, times, &cause) != HDT_OK) {
        hdt_conf_error(r->doc, "layers", r->err, HDT_EINVAL, "%s", cause.msg);
        hdt_error_hint(r->err, "%s", cause.hint);
        return HDT_EINVAL;
    }
    if (isnan(times->forward_s) || isnan(times->backward_s)) {
        return hdt_conf_error(r->doc, "layers", r->err, HDT_EINVAL,
                              "the profile does not say how long the %s of %s takes at micro-batch "
                              "%lld",
                              isnan(times->forward_s) ? "forward" : "backward",
                              hdt_layer_kind_names[kind], (long long)r->want->micro_batch);
    }
    return HDT_OK;
}

static double number_or(double value, double otherwise)
{
    return isnan(value) ? otherwise : value;
}

static enum hdt_status profile_take(const struct reader *r, struct hdt_profile *profile)
{
    struct hdt_layer_times embedding, block, head;
    struct hdt_profile p = *profile;

    HDT_TRY(shape_check(r));
    HDT_TRY(machine_check(r));
    HDT_TRY(times_read(r, HDT_LAYER_EMBEDDING, &embedding));
    HDT_TRY(times_read(r, HDT_LAYER_BLOCK, &block));
    HDT_TRY(times_read(r, HDT_LAYER_HEAD, &head));
    p.step_s_per_param = number_or(r->file->optimizer_s_per_param, p.step_s_per_param);
    if (p.step_s_per_param <= 0) {
        return hdt_conf_error(r->doc, "optimizer_s_per_param", r->err, HDT_EINVAL,
                              "the profile does not say how long the optimizer takes");
    }
    p.op_overhead_s = number_or(r->file->op_s, p.op_overhead_s);
    p.cast_bytes_per_s = number_or(r->file->cast_bytes_per_s, p.cast_bytes_per_s);
    p.copy_bytes_per_s = number_or(r->file->copy_bytes_per_s, p.copy_bytes_per_s);
    p.embed_fwd_s = embedding.forward_s;
    p.embed_bwd_s = embedding.backward_s;
    p.block_fwd_s = block.forward_s;
    p.block_bwd_s = block.backward_s;
    p.block_bwd_input_s = number_or(block.backward_input_s, 0);
    p.block_bwd_weight_s = number_or(block.backward_weight_s, 0);
    p.head_fwd_s = head.forward_s;
    p.head_bwd_s = head.backward_s;
    p.micro_batch = r->want->micro_batch;
    p.seq_len = r->want->seq_len;
    p.run_factor = 0; /* what runs said of the times that these replace */
    p.valid = true;
    *profile = p;
    return HDT_OK;
}

enum hdt_status hdt_profile_file_read(const char *path, const struct hdt_profile_file_want *want,
                                      struct hdt_profile *profile, struct hdt_error *err)
{
    struct hdt_layer_profile file;
    struct hdt_conf_doc *doc;
    enum hdt_status status;

    HDT_TRY(hdt_layer_profile_load_doc(path, &file, &doc, err));
    status = profile_take(&(struct reader){&file, doc, want, err}, profile);
    hdt_conf_doc_free(doc);
    hdt_layer_profile_release(&file);
    return status;
}
