/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First weights and the table of rotations.
 *
 * Each weight is a function of (seed, tensor name, element), so that any cut of the model makes the
 * same bits, and so that a tied matrix that stands on two machines is equal on both. For that no
 * libm function may take part (log and cos differ in the last bit between machines): a normal value
 * is the sum of twelve 16-bit uniform integers, exact, with mean and deviation put right at the
 * end. Its tails end at 6 deviations, which training does not see.
 */
#include "config.h"

#include "runtime/stage_impl.h"

#include "runtime/alive.h"

#include <math.h>
#include <string.h>

#define CHUNK_LEN ((size_t)1 << 18)

static uint64_t mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* FNV-1a */
static uint64_t name_hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    }
    return hash;
}

static double normal_at(uint64_t key, uint64_t element)
{
    int32_t sum = 0;

    for (uint64_t word = 0; word < 3; word++) {
        uint64_t bits = mix64(key + (3 * element + word + 1) * 0x9e3779b97f4a7c15u);

        sum += (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
               (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);
    }
    return (sum - 393210) / 65536.0;
}

/* Name that a tensor draws its values by: a tied head has the embedding's. */
static void tensor_seed_name(const struct hdt_stage *stage, const struct hdt_model_tensor *info,
                             struct hdt_model_tensor *named)
{
    if (info->tied) {
        hdt_model_tensor(&stage->conf.model, 0, named);
    } else {
        *named = *info;
    }
}

static void chunk_fill(const struct hdt_stage *stage, const struct stage_tensor *tensor, size_t at,
                       size_t len, float *host)
{
    struct hdt_model_tensor named;
    double deviation = stage->conf.model.initializer_range;
    uint64_t key;

    if (tensor->info.n_dims == 1) {
        for (size_t i = 0; i < len; i++) {
            host[i] = 1.0f;
        }
        return;
    }
    if (tensor->info.residual) {
        deviation /= sqrt(2.0 * (double)stage->conf.model.L);
    }
    tensor_seed_name(stage, &tensor->info, &named);
    key = mix64(mix64(stage->conf.seed + 0x9e3779b97f4a7c15u) ^ name_hash(named.name));
    for (size_t i = 0; i < len; i++) {
        host[i] = (float)(deviation * normal_at(key, at + i));
    }
}

enum hdt_status hdt_stage_init_weights(struct hdt_stage *stage, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    uint64_t done = 0;
    void *host;

    HDT_TRY(stage->backend->host_alloc(stage->device, CHUNK_LEN * sizeof(float), &host, err));
    for (int i = 0; i < stage->n_tensors; i++) {
        const struct stage_tensor *tensor = &stage->tensors[i];

        for (size_t at = 0; at < tensor->len && !tensor->shared; at += CHUNK_LEN) {
            size_t len = tensor->len - at < CHUNK_LEN ? tensor->len - at : CHUNK_LEN;

            chunk_fill(stage, tensor, at, len, host);
            status = hdt_stage_write(stage, tensor->w + at, host, len * sizeof(float), err);
            if (status != HDT_OK) {
                goto out;
            }
            done += len;
            hdt_alive_moved(stage->conf.alive, "building", done, stage->params_len);
        }
    }
    if (!stage->conf.inference) {
        stage->ops->zero(stage->stream, stage->m, stage->params_len * sizeof(float));
        stage->ops->zero(stage->stream, stage->v, stage->params_len * sizeof(float));
        hdt_stage_zero_grads(stage);
        status = hdt_stage_wait(stage, err);
    }
out:
    stage->backend->host_free(stage->device, host);
    return status;
}

/* Llama 3's rule: frequencies with a wavelength beyond the original context are divided by the
 * factor, short ones stay, those between go over smoothly. */
static double llama3_scale(const struct hdt_model_config *model, double freq)
{
    double wavelength = 2.0 * M_PI / freq;
    double low = (double)model->rope_original_T / model->rope_low_freq_factor;
    double high = (double)model->rope_original_T / model->rope_high_freq_factor;
    double smooth;

    if (wavelength < high) {
        return freq;
    }
    if (wavelength > low) {
        return freq / model->rope_factor;
    }
    smooth = ((double)model->rope_original_T / wavelength - model->rope_low_freq_factor) /
             (model->rope_high_freq_factor - model->rope_low_freq_factor);
    return (1.0 - smooth) * freq / model->rope_factor + smooth * freq;
}

static double rope_frequency(const struct hdt_model_config *model, int pair)
{
    double freq = pow(model->rope_theta, -2.0 * pair / (double)model->HS);

    switch (model->rope_scaling) {
    case HDT_ROPE_LINEAR:
        return freq / model->rope_factor;
    case HDT_ROPE_LLAMA3:
        return llama3_scale(model, freq);
    case HDT_ROPE_NONE:
        break;
    }
    return freq;
}

enum hdt_status hdt_stage_init_rope(struct hdt_stage *stage, struct hdt_error *err)
{
    int half = stage->HS / 2;
    size_t bytes = (size_t)stage->HS * sizeof(float);
    enum hdt_status status = HDT_OK;
    void *host;

    HDT_TRY(stage->backend->host_alloc(stage->device, bytes, &host, err));
    for (int pos = 0; pos < stage->T && status == HDT_OK; pos++) {
        float *row = host;

        for (int i = 0; i < half; i++) {
            double angle = pos * rope_frequency(&stage->conf.model, i);

            row[i] = (float)cos(angle);
            row[half + i] = (float)sin(angle);
        }
        status = hdt_stage_write(stage, stage->cos_sin + (size_t)pos * stage->HS, host, bytes, err);
    }
    stage->backend->host_free(stage->device, host);
    return status;
}
