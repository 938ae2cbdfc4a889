/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/task.h"

#include "src/core/ckpt.h"
#include "src/core/ckpt_files.h"
#include "runtime/generate.h"
#include "src/base/buf.h"
#include "src/core/safetensors.h"
#include "src/core/shard.h"
#include "src/core/tokenizer.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SEQ_LEN_MAX 2048 /* unless asked for: activations of a long context take much memory */
#define SLAB_BYTES  ((size_t)4 << 20)

/* ---- weights ---- */

/* A checkpoint of HDT, whose digests are checked, or a plain folder as transformers saves it. */
struct weights {
    struct hdt_ckpt_reader *reader;
    struct hdt_safetensors *plain;
    struct hdt_model_config model;
    int64_t seq_len; /* trained with; 0: not known */
};

static void weights_close(struct weights *weights)
{
    hdt_ckpt_reader_close(weights->reader);
    hdt_safetensors_close(weights->plain);
}

static enum hdt_status weights_open_plain(const char *dir, struct weights *weights,
                                          struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP];

    HDT_TRY(hdt_ckpt_path(dir, HDT_CKPT_CONFIG, path, err));
    HDT_TRY(hdt_model_load(path, &weights->model, err));
    HDT_TRY(hdt_ckpt_path(dir, HDT_CKPT_MODEL, path, err));
    return hdt_safetensors_open(path, &weights->plain, err);
}

static enum hdt_status weights_open(const char *dir, struct weights *weights, struct hdt_error *err)
{
    const struct hdt_ckpt_open how = {.weights_only = true};
    char manifest[HDT_CKPT_PATH_CAP], config[HDT_CKPT_PATH_CAP];
    const json_t *job;
    struct stat st;

    HDT_TRY(hdt_ckpt_path(dir, HDT_CKPT_MANIFEST, manifest, err));
    HDT_TRY(hdt_ckpt_path(dir, HDT_CKPT_CONFIG, config, err));
    if (stat(manifest, &st) != 0 && stat(config, &st) == 0) {
        return weights_open_plain(dir, weights, err);
    }
    HDT_TRY(hdt_ckpt_reader_open(dir, &how, &weights->reader, err));
    weights->model = *hdt_ckpt_reader_model(weights->reader);
    job = hdt_ckpt_reader_meta(weights->reader)->job;
    weights->seq_len =
        json_integer_value(json_object_get(json_object_get(job, "batch"), "seq_len"));
    return HDT_OK;
}

/* Values [pos, pos + n) of a tensor of a plain folder, as floats. */
static enum hdt_status plain_read(const struct weights *weights, const char *name, uint64_t pos,
                                  size_t n, float *out, struct hdt_error *err)
{
    const struct hdt_safetensors_entry *entry = hdt_safetensors_find(weights->plain, name);
    uint16_t *half = (uint16_t *)(void *)out;
    uint32_t bits;
    size_t i;

    if (!entry || (entry->dtype != HDT_DTYPE_F32 && entry->dtype != HDT_DTYPE_BF16) ||
        entry->len / hdt_dtype_size(entry->dtype) < pos + n) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot load '%s': it is not in the file as float32 or bfloat16 of "
                             "the shape that config.json says",
                             name);
    }
    if (entry->dtype == HDT_DTYPE_F32) {
        return hdt_safetensors_read_part(weights->plain, entry, pos * 4, n * 4, out, err);
    }
    HDT_TRY(hdt_safetensors_read_part(weights->plain, entry, pos * 2, n * 2, half, err));
    for (i = n; i-- > 0;) { /* from the end: in place */
        bits = (uint32_t)half[i] << 16;
        memcpy(&out[i], &bits, sizeof(bits));
    }
    return HDT_OK;
}

static enum hdt_status weights_load_tensor(const struct weights *weights, struct hdt_stage *stage,
                                           const struct hdt_stage_tensor *view, float *slab,
                                           struct hdt_error *err)
{
    size_t pos, n;

    for (pos = 0; pos < view->len; pos += n) {
        n = view->len - pos < SLAB_BYTES / 4 ? view->len - pos : SLAB_BYTES / 4;
        if (weights->reader) {
            HDT_TRY(hdt_ckpt_reader_read(weights->reader, view->model_idx, HDT_CKPT_WEIGHT, pos * 4,
                                         n * 4, slab, err));
        } else {
            HDT_TRY(plain_read(weights, view->info.name, pos, n, slab, err));
        }
        HDT_TRY(hdt_stage_write(stage, view->w + pos, slab, n * sizeof(float), err));
    }
    return HDT_OK;
}

static enum hdt_status weights_load(const struct weights *weights, struct hdt_stage *stage,
                                    struct hdt_error *err)
{
    float *slab = hdt_malloc(SLAB_BYTES);
    struct hdt_stage_tensor view;
    enum hdt_status status = HDT_OK;
    int i;

    for (i = 0; i < hdt_stage_n_tensors(stage) && status == HDT_OK; i++) {
        hdt_stage_tensor(stage, i, &view);
        if (!view.shared) {
            status = weights_load_tensor(weights, stage, &view, slab, err);
        }
    }
    free(slab);
    return status;
}

/* The whole model for inference, with the checkpoint's weights. */
static enum hdt_status model_open(const struct hdt_task_conf *conf, struct hdt_stage **stage,
                                  struct hdt_error *err)
{
    struct weights weights = {0};
    struct hdt_stage_conf stage_conf = {.B = 1, .n_slots = 1, .inference = true};
    enum hdt_status status;
    int64_t T;

    status = weights_open(conf->checkpoint, &weights, err);
    if (status == HDT_OK) {
        T = weights.model.T < SEQ_LEN_MAX ? weights.model.T : SEQ_LEN_MAX;
        T = weights.seq_len > 0 && weights.seq_len <= weights.model.T ? weights.seq_len : T;
        stage_conf.model = weights.model;
        stage_conf.n_units = (int)hdt_model_n_units(&weights.model);
        stage_conf.T = (int)(conf->seq_len > 0 ? conf->seq_len : T);
        status = hdt_stage_new(conf->backend, conf->device, &stage_conf, stage, err);
    }
    if (status == HDT_OK) {
        status = weights_load(&weights, *stage, err);
        if (status != HDT_OK) {
            hdt_stage_free(*stage);
        }
    }
    weights_close(&weights);
    return status;
}

/* ---- generate ---- */

struct sample {
    const struct hdt_tokenizer *tok;
    bool print;
    struct hdt_buf text; /* all of it */
    struct hdt_buf tail; /* not printed yet: an incomplete character */
    int n;
};

/* Bytes at the end of `text` that may be the beginning of a longer UTF-8 character. */
static size_t utf8_incomplete(const struct hdt_buf *text)
{
    size_t i;
    unsigned char c;

    for (i = 1; i <= 3 && i <= text->len; i++) {
        c = (unsigned char)text->data[text->len - i];
        if (c >= 0xc0) {
            return i < (c >= 0xf0 ? 4u : c >= 0xe0 ? 3u : 2u) ? i : 0;
        }
        if (c < 0x80) {
            return 0;
        }
    }
    return 0;
}

static void sample_print(struct sample *sample, bool last)
{
    size_t keep = last ? 0 : utf8_incomplete(&sample->tail), len = sample->tail.len - keep;
    struct hdt_buf safe = {0};

    hdt_text_append(&safe, hdt_buf_str(&sample->tail), len);
    hdt_buf_consume(&sample->tail, len);
    if (sample->print) {
        fputs(hdt_buf_str(&safe), stdout);
        fflush(stdout);
    } else {
        hdt_buf_append(&sample->text, hdt_buf_str(&safe), safe.len);
    }
    hdt_buf_release(&safe);
}

static bool sample_token(void *arg, int32_t token)
{
    struct sample *sample = arg;

    sample->n++;
    if (hdt_tokenizer_decode(sample->tok, &token, 1, &sample->tail, NULL) == HDT_OK) {
        sample_print(sample, false);
    }
    return true;
}

static enum hdt_status sample_run(const struct hdt_task_conf *conf, struct hdt_stage *stage,
                                  struct sample *sample, struct hdt_error *err)
{
    struct hdt_sampling sampling = {conf->temperature, conf->top_k, conf->seed};
    enum hdt_status status;
    int32_t *ids;
    size_t n;

    status = hdt_tokenizer_encode(sample->tok, conf->prompt, strlen(conf->prompt), &ids, &n);
    if (status != HDT_OK) {
        return hdt_error_set(err, status, "cannot encode the prompt");
    }
    if (n == 0) {
        status = hdt_error_set(err, HDT_EINVAL, "cannot generate: the prompt is empty");
    } else {
        hdt_buf_append_str(&sample->tail, conf->prompt);
        sample_print(sample, false);
        status =
            hdt_generate(stage, &sampling, ids, (int)n, conf->n_tokens, sample_token, sample, err);
        sample_print(sample, true);
    }
    free(ids);
    return status;
}

enum hdt_status hdt_task_generate(const struct hdt_task_conf *conf, struct hdt_error *err)
{
    const char *name = conf->tokenizer ? conf->tokenizer : "byte";
    struct hdt_tokenizer tok;
    struct hdt_stage *stage;
    enum hdt_status status;
    json_t *out;

    HDT_TRY(hdt_tokenizer_init(&tok, name, conf->tokenizer_model, err));
    status = model_open(conf, &stage, err);
    if (status == HDT_OK) {
        struct sample sample = {.tok = &tok, .print = !conf->json};

        status = sample_run(conf, stage, &sample, err);
        if (status == HDT_OK && conf->json) {
            out = json_pack("{s:s,s:s,s:i}", "prompt", conf->prompt, "text",
                            hdt_buf_str(&sample.text), "tokens", sample.n);
            json_dumpf(out, stdout, JSON_COMPACT);
            json_decref(out);
        }
        putchar('\n');
        hdt_buf_release(&sample.text);
        hdt_buf_release(&sample.tail);
        hdt_stage_free(stage);
    }
    hdt_tokenizer_release(&tok);
    return status;
}

/* ---- eval ---- */

static enum hdt_status shard_read_all(const char *path, int64_t V, int32_t **tokens, size_t *n,
                                      struct hdt_error *err)
{
    struct hdt_shard_options options = {.n_vocab = (uint32_t)V};
    struct hdt_shard *shard;
    enum hdt_status status;

    HDT_TRY(hdt_shard_open(path, &options, &shard, err));
    *n = hdt_shard_n_tokens(shard);
    *tokens = malloc(*n * sizeof(**tokens));
    status = *tokens ? hdt_shard_read(shard, 0, *n, *tokens, err)
                     : hdt_error_set(err, HDT_ENOMEM, "cannot read '%s': no memory", path);
    hdt_shard_close(shard);
    if (status != HDT_OK) {
        free(*tokens);
    }
    return status;
}

static enum hdt_status eval_run(const struct hdt_task_conf *conf, struct hdt_stage *stage,
                                json_t *out, struct hdt_error *err)
{
    int64_t V = hdt_stage_conf(stage)->model.V;
    enum hdt_status status;
    int32_t *tokens;
    double loss;
    size_t n;

    HDT_TRY(shard_read_all(conf->data, V, &tokens, &n, err));
    n = conf->max_tokens > 0 && (size_t)conf->max_tokens < n ? (size_t)conf->max_tokens : n;
    status = hdt_evaluate(stage, tokens, n, &loss, err);
    if (status == HDT_OK) {
        json_object_set_new(out, "loss", json_real(loss));
        json_object_set_new(out, "perplexity", json_real(exp(loss)));
        json_object_set_new(out, "bits_per_token", json_real(loss / log(2)));
        json_object_set_new(out, "tokens", json_integer((json_int_t)n));
    }
    free(tokens);
    return status;
}

static void eval_print(const struct hdt_task_conf *conf, const json_t *out)
{
    if (conf->json) {
        json_dumpf(out, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
        putchar('\n');
        return;
    }
    printf("loss %.4f nats a token (perplexity %.2f, %.3f bits) on %lld tokens of %s\n",
           json_real_value(json_object_get(out, "loss")),
           json_real_value(json_object_get(out, "perplexity")),
           json_real_value(json_object_get(out, "bits_per_token")),
           (long long)json_integer_value(json_object_get(out, "tokens")), conf->data);
}

enum hdt_status hdt_task_eval(const struct hdt_task_conf *conf, struct hdt_error *err)
{
    struct hdt_stage *stage;
    enum hdt_status status;
    json_t *out;

    HDT_TRY(model_open(conf, &stage, err));
    out = json_object();
    status = eval_run(conf, stage, out, err);
    if (status == HDT_OK) {
        eval_print(conf, out);
    }
    json_decref(out);
    hdt_stage_free(stage);
    return status;
}
