/* SPDX-License-Identifier: Apache-2.0 */
/* hdt export: a checkpoint to a folder that Hugging Face transformers loads. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/core/ckpt.h"
#include "src/core/ckpt_files.h"
#include "src/core/model.h"
#include "src/core/safetensors.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define PIECE 262144 /* elements converted at a time */

enum export_option { OPT_CHECKPOINT = 256, OPT_OUT, OPT_DTYPE, OPT_FORCE, OPT_JSON };

static const struct argp_option options[] = {
    {"checkpoint", OPT_CHECKPOINT, "DIR", 0,
     "Folder of the checkpoint, or of checkpoints: the "
     "newest one (required)",
     0},
    {"out", OPT_OUT, "DIR", 0, "Folder to write (required)", 0},
    {"dtype", OPT_DTYPE, "f32|bf16", 0, "Type of the weights (default f32, as trained)", 0},
    {"force", OPT_FORCE, NULL, 0, "Replace a model that is there already", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

struct export_args {
    const char *checkpoint, *out;
    enum hdt_dtype dtype;
    bool force, json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct export_args *args = state->input;

    switch (key) {
    case OPT_CHECKPOINT:
        args->checkpoint = arg;
        return 0;
    case OPT_OUT:
        args->out = arg;
        return 0;
    case OPT_DTYPE:
        if (strcmp(arg, "f32") != 0 && strcmp(arg, "bf16") != 0) {
            argp_error(state, "--dtype '%s' is neither f32 nor bf16", arg);
            return EINVAL;
        }
        args->dtype = strcmp(arg, "f32") == 0 ? HDT_DTYPE_F32 : HDT_DTYPE_BF16;
        return 0;
    case OPT_FORCE:
        args->force = true;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected '%s'", arg);
        return EINVAL;
    case ARGP_KEY_END:
        if (!args->checkpoint || !args->out) {
            argp_error(state, "--checkpoint DIR and --out DIR are needed");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "--checkpoint DIR --out DIR",
    .doc = "Write the weights of a checkpoint, without optimizer state, as config.json and "
           "model.safetensors: the form that Hugging Face transformers, vLLM and llama.cpp's "
           "converter read. All that is read is verified; SHA256SUMS tells whether a copy is "
           "whole (sha256sum -c).",
};

/* What is copied from where to where: from a checkpoint of HDT, whose digests are checked, or from
 * a folder of other programs, which has none. */
struct exporter {
    struct hdt_model_config model;
    struct hdt_ckpt_reader *reader; /* NULL: a folder of others */
    struct hdt_safetensors *in;
    struct hdt_safetensors_writer *out;
    enum hdt_dtype dtype;
    XXH3_state_t *xxh3;
    float *f32;     /* PIECE */
    uint16_t *bf16; /* PIECE */
    uint64_t n_parameters;
};

/* Nearest bf16, ties to even; NaN stays NaN. */
static uint16_t bf16_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* The checkpoint's entry for a tensor of the model; what fits not is refused by name. */
static enum hdt_status entry_find(const struct exporter *exp, const struct hdt_model_tensor *tensor,
                                  const struct hdt_safetensors_entry **entry, struct hdt_error *err)
{
    const struct hdt_safetensors_entry *found = hdt_safetensors_find(exp->in, tensor->name);

    if (!found) {
        return hdt_error_set(err, HDT_EINVAL, "cannot export: the checkpoint has no tensor '%s'",
                             tensor->name);
    }
    if (found->dtype != HDT_DTYPE_F32 || (int)found->n_dims != tensor->n_dims ||
        found->len != (uint64_t)tensor->rows * (uint64_t)tensor->cols * sizeof(float) ||
        found->shape[found->n_dims - 1] != (uint64_t)tensor->cols) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot export: tensor '%s' has not the type and shape that "
                             "config.json gives it",
                             tensor->name);
    }
    *entry = found;
    return HDT_OK;
}

static enum hdt_status tensors_declare(struct exporter *exp, struct hdt_error *err)
{
    int64_t n = hdt_model_n_tensors(&exp->model);

    for (int64_t i = 0; i < n; i++) {
        const struct hdt_safetensors_entry *entry;
        struct hdt_safetensors_entry made;
        struct hdt_model_tensor tensor;

        hdt_model_tensor(&exp->model, i, &tensor);
        if (tensor.tied) {
            continue;
        }
        HDT_TRY(entry_find(exp, &tensor, &entry, err));
        made = *entry;
        made.dtype = exp->dtype;
        HDT_TRY(hdt_safetensors_writer_declare(exp->out, &made, err));
        exp->n_parameters += entry->len / sizeof(float);
    }
    HDT_TRY(hdt_safetensors_writer_metadata(exp->out, "format", "pt", err));
    return hdt_safetensors_writer_begin(exp->out, err);
}

/* The manifest's digest against that of the bytes that went into the copy. */
static enum hdt_status tensor_check(const struct exporter *exp, int64_t tensor, uint64_t got,
                                    struct hdt_error *err)
{
    uint64_t want;
    char name[128];

    if (!exp->reader) {
        return HDT_OK;
    }
    want = hdt_ckpt_reader_digest(exp->reader, tensor, HDT_CKPT_WEIGHT);
    if (got == want) {
        return HDT_OK;
    }
    hdt_ckpt_tensor_name(&exp->model, tensor, HDT_CKPT_WEIGHT, name, sizeof(name));
    return hdt_error_set(err, HDT_EIO,
                         "cannot export tensor '%s' of '%s': what was read has the digest "
                         "%016" PRIx64 ", the manifest says %016" PRIx64
                         ": it was changed meanwhile, or memory is at fault",
                         name, hdt_ckpt_reader_path(exp->reader), got, want);
}

static enum hdt_status tensor_copy(struct exporter *exp, const struct hdt_safetensors_entry *entry,
                                   size_t idx, struct hdt_error *err)
{
    uint64_t n = entry->len / sizeof(float);

    XXH3_64bits_reset(exp->xxh3);
    for (uint64_t pos = 0; pos < n; pos += PIECE) {
        size_t n_now = n - pos < PIECE ? (size_t)(n - pos) : PIECE;
        const void *data = exp->f32;

        HDT_TRY(hdt_safetensors_read_part(exp->in, entry, pos * sizeof(float),
                                          n_now * sizeof(float), exp->f32, err));
        XXH3_64bits_update(exp->xxh3, exp->f32, n_now * sizeof(float));
        for (size_t i = 0; i < n_now && exp->dtype == HDT_DTYPE_BF16; i++) {
            exp->bf16[i] = bf16_of(exp->f32[i]);
            data = exp->bf16;
        }
        HDT_TRY(hdt_safetensors_writer_append(exp->out, idx, data,
                                              n_now * hdt_dtype_size(exp->dtype), err));
    }
    return HDT_OK;
}

static enum hdt_status tensors_copy(struct exporter *exp, struct hdt_error *err)
{
    int64_t n = hdt_model_n_tensors(&exp->model);
    size_t idx = 0;

    for (int64_t i = 0; i < n; i++) {
        const struct hdt_safetensors_entry *entry;
        struct hdt_model_tensor tensor;

        hdt_model_tensor(&exp->model, i, &tensor);
        if (!tensor.tied) {
            HDT_TRY(entry_find(exp, &tensor, &entry, err));
            HDT_TRY(tensor_copy(exp, entry, idx++, err));
            HDT_TRY(tensor_check(exp, i, XXH3_64bits_digest(exp->xxh3), err));
        }
    }
    return HDT_OK;
}

/* Write all weights to `path`. */
static enum hdt_status weights_write(struct exporter *exp, const char *path, struct hdt_error *err)
{
    enum hdt_status status;

    HDT_TRY(hdt_safetensors_writer_open(path, &exp->out, err));
    status = tensors_declare(exp, err);
    if (status == HDT_OK) {
        status = tensors_copy(exp, err);
    }
    if (status == HDT_OK) {
        return hdt_safetensors_writer_close(exp->out, err);
    }
    hdt_safetensors_writer_abort(exp->out);
    return status;
}

static enum hdt_status config_write(const struct exporter *exp, const char *out,
                                    struct hdt_error *err)
{
    json_t *json = hdt_model_to_json(&exp->model);
    char *path = hdt_asprintf("%s/config.json", out), *text;
    struct hdt_buf buf = {0};
    enum hdt_status status;

    json_object_set_new(json, "torch_dtype",
                        json_string(exp->dtype == HDT_DTYPE_BF16 ? "bfloat16" : "float32"));
    text = json_dumps(json, JSON_INDENT(2));
    hdt_buf_appendf(&buf, "%s\n", text);
    status = hdt_file_write(path, &buf, 0644, HDT_FILE_REPLACE, err);
    hdt_buf_release(&buf);
    free(text);
    free(path);
    json_decref(json);
    return status;
}

/* The folder of a step that `dir` means, its digests checked; or a folder of other programs. */
static enum hdt_status checkpoint_open(struct exporter *exp, const char *dir, struct hdt_error *err)
{
    const struct hdt_ckpt_open how = {.weights_only = true};
    char *config = hdt_asprintf("%s/config.json", dir);
    char *manifest = hdt_asprintf("%s/hdt.json", dir), *weights;
    enum hdt_status status;

    if (!hdt_file_exists(manifest) && hdt_file_exists(config)) {
        status = hdt_model_load(config, &exp->model, err);
        weights = hdt_asprintf("%s/model.safetensors", dir);
    } else {
        status = hdt_ckpt_reader_open(dir, &how, &exp->reader, err);
        if (status == HDT_OK) {
            exp->model = *hdt_ckpt_reader_model(exp->reader);
        }
        weights = hdt_asprintf("%s/model.safetensors",
                               status == HDT_OK ? hdt_ckpt_reader_path(exp->reader) : dir);
    }
    if (status == HDT_OK) {
        status = hdt_safetensors_open(weights, &exp->in, err);
    }
    if (status != HDT_OK) {
        hdt_error_prefix(err, "cannot read checkpoint '%s'", dir);
    }
    free(weights);
    free(manifest);
    free(config);
    return status;
}

/* SHA256SUMS, as coreutils' sha256sum reads it: taken from the disk, so that whoever copies the
 * folder can tell whether the copy is whole. */
static enum hdt_status sums_write(const char *out, struct hdt_error *err)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char *sums = hdt_asprintf("%s/SHA256SUMS", out);
    struct hdt_buf text = {0};
    enum hdt_status status = HDT_OK;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == HDT_OK; i++) {
        char *path = hdt_asprintf("%s/%s", out, names[i]);
        struct hdt_ckpt_scan scan = {.path = path, .from_disk = true};

        status = hdt_ckpt_scan_file(&scan, err);
        hdt_buf_appendf(&text, "%s  %s\n", scan.sha256, names[i]);
        free(path);
    }
    if (status == HDT_OK) {
        status = hdt_file_write(sums, &text, 0644, HDT_FILE_REPLACE, err);
    }
    hdt_buf_release(&text);
    free(sums);
    return status;
}

/* Weights under a temporary name first; config.json and the final name only when they are whole. */
static enum hdt_status folder_write(struct exporter *exp, const struct export_args *args,
                                    struct hdt_error *err)
{
    char *final = hdt_asprintf("%s/model.safetensors", args->out);
    char *temp = hdt_asprintf("%s/model.safetensors.tmp", args->out);
    enum hdt_status status = HDT_OK;

    if (hdt_file_exists(final) && !args->force) {
        status = hdt_error_set(err, HDT_EEXIST, "'%s' exists already; nothing was changed", final);
        hdt_error_hint(err, "write to another folder, or replace it with --force");
    }
    status = status == HDT_OK ? hdt_dir_make(args->out, 0755, err) : status;
    status = status == HDT_OK ? weights_write(exp, temp, err) : status;
    if (status == HDT_OK) {
        status = config_write(exp, args->out, err);
    }
    if (status == HDT_OK && rename(temp, final) != 0) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", final);
    }
    if (status == HDT_OK) {
        status = sums_write(args->out, err);
    }
    if (status != HDT_OK && status != HDT_EEXIST) {
        unlink(temp);
    }
    free(temp);
    free(final);
    return status;
}

static void result_print(const struct exporter *exp, const struct export_args *args)
{
    json_t *json;

    if (!args->json) {
        printf("%s: %" PRIu64 " parameters in %s\n", args->out, exp->n_parameters,
               hdt_dtype_name(exp->dtype));
        return;
    }
    json = json_pack("{s:s, s:I, s:s}", "dir", args->out, "n_parameters",
                     (json_int_t)exp->n_parameters, "dtype", hdt_dtype_name(exp->dtype));
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

static int export_run(int argc, char **argv)
{
    struct export_args args = {.dtype = HDT_DTYPE_F32};
    struct exporter exporter = {0};
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&argp, argc, argv, &args);
    exporter.dtype = args.dtype;
    exporter.f32 = hdt_malloc(PIECE * sizeof(*exporter.f32));
    exporter.bf16 = hdt_malloc(PIECE * sizeof(*exporter.bf16));
    exporter.xxh3 = XXH3_createState();
    HDT_ASSERT(exporter.xxh3);
    status = checkpoint_open(&exporter, args.checkpoint, &err);
    if (status == HDT_OK) {
        status = folder_write(&exporter, &args, &err);
    }
    if (status == HDT_OK) {
        result_print(&exporter, &args);
    }
    hdt_safetensors_close(exporter.in);
    hdt_ckpt_reader_close(exporter.reader);
    XXH3_freeState(exporter.xxh3);
    free(exporter.f32);
    free(exporter.bf16);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_export = {"export", "write a checkpoint for Hugging Face transformers",
                                       export_run, &argp, NULL};
