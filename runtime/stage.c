/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage's memory. Everything is laid out by one pass over the shapes that takes pieces from an
 * arena: first with no memory, which measures, then with it, which assigns. So what measure says is
 * what new takes.
 *
 * Four allocations hold weights, gradients and the two moments with the same offsets; one holds all
 * activations.
 */
#include "config.h"

#include "runtime/stage_impl.h"
#include "runtime/backend_find.h"
#include "src/base/buf.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES ((size_t)256)

/* Values of logits that are there at a time: 32 MiB; in mixed precision, which is for devices with
 * room and a thousand times the arithmetic, 256 MiB. */
#define HEAD_VALUES       ((int64_t)1 << 23)
#define HEAD_VALUES_MIXED ((int64_t)1 << 27)

/* Most rows of a micro-batch: with the model's own limits, row counts and widths then fit an int,
 * and byte counts a size_t. */
#define ROWS_MAX (1 << 24)

struct arena {
    char *base; /* NULL: only measure */
    size_t at;
};

static void *arena_take(struct arena *arena, size_t n, size_t size)
{
    size_t at = arena->at;

    arena->at += (n * size + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return arena->base ? arena->base + at : NULL;
}

static float *arena_floats(struct arena *arena, size_t rows, size_t cols)
{
    return arena_take(arena, rows * cols, sizeof(float));
}

/* Values of activations: float, or bfloat16. */
static void *arena_values(const struct hdt_stage *s, struct arena *arena, size_t rows, size_t cols)
{
    return arena_take(arena, rows * cols, s->conf.mixed ? sizeof(uint16_t) : sizeof(float));
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- Configuration --------------------------------------------------------------------------- */

static enum hdt_status model_check(const struct hdt_model_config *m, struct hdt_error *err)
{
    if (m->V < 1 || m->V > HDT_MODEL_MAX_V || m->C < 1 || m->C > HDT_MODEL_MAX_C || m->F < 1 ||
        m->F > HDT_MODEL_MAX_F || m->L < 0 || m->L > HDT_MODEL_MAX_L || m->T < 1 ||
        m->T > HDT_MODEL_MAX_T || m->NH < 1 || m->NKV < 1 || m->HS < 2 || m->HS % 2 != 0 ||
        m->NH > HDT_MODEL_MAX_C || m->HS > HDT_MODEL_MAX_C || m->NH % m->NKV != 0 ||
        m->NH * m->HS > HDT_MODEL_MAX_F) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot make a stage: the model's sizes are out of "
                             "bounds");
    }
    return HDT_OK;
}

HDT_STATIC_ASSERT(HDT_MIXED_HEAD_MAX == HDT_MODEL_BF16_HEAD_MAX, "one limit");

HDT_STATIC_ASSERT(HDT_FP8_DIM == HDT_MODEL_FP8_DIM, "one limit");

static enum hdt_status mixed_check(const struct hdt_stage_conf *conf, struct hdt_error *err)
{
    bool has_head = conf->first_unit + conf->n_units == conf->model.L + 2;

    HDT_ASSERT(!conf->inference);
    HDT_TRY(hdt_model_check_bf16(&conf->model, has_head, err));
    return conf->fp8 ? hdt_model_check_fp8(&conf->model, conf->B, conf->T, err) : HDT_OK;
}

static enum hdt_status conf_check(const struct hdt_stage_conf *conf, struct hdt_error *err)
{
    int64_t n_units = conf->model.L + 2;

    HDT_TRY(model_check(&conf->model, err));
    if (conf->first_unit < 0 || conf->n_units < 1 || conf->first_unit + conf->n_units > n_units) {
        return hdt_error_set(
            err, HDT_EINVAL, "cannot make a stage of units %d to %d: the model has units 0 to %lld",
            conf->first_unit, conf->first_unit + conf->n_units - 1, (long long)n_units - 1);
    }
    if (conf->T < 1 || conf->T > conf->model.T) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot make a stage for sequences of %d tokens: the model takes 1 to "
                             "%lld",
                             conf->T, (long long)conf->model.T);
    }
    if (conf->B < 1 || (int64_t)conf->B * conf->T > ROWS_MAX ||
        conf->B * (int64_t)conf->T * conf->model.NH >= INT_MAX || conf->n_slots < 1 ||
        conf->n_slots > 65536) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot make a stage for %d sequences of %d tokens, %d in flight",
                             conf->B, conf->T, conf->n_slots);
    }
    HDT_ASSERT(conf->mixed || !conf->fp8);
    return conf->mixed ? mixed_check(conf, err) : HDT_OK;
}

static void shapes_set(struct hdt_stage *s)
{
    const struct hdt_model_config *m = &s->conf.model;
    int64_t last = s->conf.first_unit + s->conf.n_units - 1, rows;

    s->n = s->conf.B * s->conf.T;
    s->T = s->conf.T;
    s->C = (int)m->C;
    s->F = (int)m->F;
    s->V = (int)m->V;
    s->NH = (int)m->NH;
    s->NKV = (int)m->NKV;
    s->HS = (int)m->HS;
    s->Q = (s->NH + 2 * s->NKV) * s->HS;
    s->has_embedding = s->conf.first_unit == 0;
    s->has_head = last == m->L + 1;
    s->n_blocks = s->conf.n_units - s->has_embedding - s->has_head;
    rows = (s->conf.mixed ? HEAD_VALUES_MIXED : HEAD_VALUES) / s->V;
    s->head_rows = rows < 1 ? 1 : rows > s->n ? s->n : (int)rows;
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* Tensors that the next one follows without a gap: q, k and gate. */
static bool tensor_is_joined(const struct hdt_stage *s, int idx)
{
    int in_block = idx - s->block0_tensor;
    int which = in_block % HDT_MODEL_TENSORS_PER_BLOCK;

    return in_block >= 0 && in_block < s->n_blocks * HDT_MODEL_TENSORS_PER_BLOCK &&
           (which == 1 || which == 2 || which == 6);
}

static void tensors_list(struct hdt_stage *s)
{
    const struct hdt_model_config *m = &s->conf.model;
    int64_t first, n, end;

    hdt_model_unit_tensors(m, s->conf.first_unit, &s->first_tensor, &n);
    hdt_model_unit_tensors(m, s->conf.first_unit + s->conf.n_units - 1, &first, &n);
    end = first + n;
    s->n_tensors = (int)(end - s->first_tensor);
    s->block0_tensor = s->has_embedding ? 1 : 0;
    s->tensors = hdt_calloc((size_t)s->n_tensors, sizeof(*s->tensors));
    s->spans = hdt_calloc((size_t)s->n_tensors, sizeof(*s->spans));
    for (int i = 0; i < s->n_tensors; i++) {
        struct stage_tensor *t = &s->tensors[i];

        hdt_model_tensor(m, s->first_tensor + i, &t->info);
        t->len = (size_t)t->info.rows * (size_t)t->info.cols;
        t->shared = t->info.tied && s->has_embedding;
    }
}

/* Offsets of all tensors; with memory, their pointers too. A shared head is the last tensor, so
 * that only the gradients have room for it. */
static void tensors_place(struct hdt_stage *s)
{
    size_t at = 0;

    s->params_len = 0;
    for (int i = 0; i < s->n_tensors; i++) {
        struct stage_tensor *t = &s->tensors[i];

        if (t->shared) {
            t->w = s->tensors[0].w;
            t->m = s->tensors[0].m;
            t->v = s->tensors[0].v;
        } else {
            t->w = s->params ? s->params + at : NULL;
            t->m = s->m ? s->m + at : NULL;
            t->v = s->v ? s->v + at : NULL;
        }
        t->grad = s->grads ? s->grads + at : NULL;
        at += t->len;
        if (!tensor_is_joined(s, i)) {
            at = (at + ALIGN_BYTES / 4 - 1) / (ALIGN_BYTES / 4) * (ALIGN_BYTES / 4);
        }
        if (!t->shared) {
            s->params_len = at;
        }
    }
    s->grads_len = at;
}

/* Elements of all blocks' tensors, with the gaps between them. */
static size_t blocks_len(const struct hdt_stage *s)
{
    const size_t unit = ALIGN_BYTES / 4;
    size_t len = 0;

    for (int i = 0; i < s->n_blocks * HDT_MODEL_TENSORS_PER_BLOCK; i++) {
        const int idx = s->block0_tensor + i;

        len += s->tensors[idx].len;
        if (!tensor_is_joined(s, idx)) {
            len = (len + unit - 1) / unit * unit;
        }
    }
    return len;
}

/* Bytes of the copies in FP8, of their scales and of largest magnitudes. */
static size_t params8_bytes(const struct hdt_stage *s)
{
    return 2 * blocks_len(s) + (size_t)s->n_blocks * N_PRODUCTS * (SCALE_STEP + 1) * sizeof(float);
}

static enum hdt_status params8_alloc(struct hdt_stage *s, struct hdt_error *err)
{
    s->params8_len = blocks_len(s);
    s->params8_old = true;
    HDT_TRY(s->backend->alloc(s->device, params8_bytes(s), (void **)&s->params8, err));
    s->params8_scales = (float *)(void *)(s->params8 + 2 * s->params8_len);
    s->params8_amax = s->params8_scales + (size_t)s->n_blocks * N_PRODUCTS * SCALE_STEP;
    return HDT_OK;
}

static enum hdt_status weights_alloc(struct hdt_stage *s, struct hdt_error *err)
{
    size_t bytes = s->params_len * sizeof(float);

    HDT_TRY(s->backend->alloc(s->device, bytes, (void **)&s->params, err));
    if (s->mixed) {
        HDT_TRY(s->backend->alloc(s->device, bytes / 2, (void **)&s->params16, err));
        s->params16_old = true;
    }
    if (s->fp8 && s->n_blocks > 0) {
        HDT_TRY(params8_alloc(s, err));
    }
    HDT_TRY(s->backend->alloc(s->device, (size_t)s->T * s->HS * sizeof(float), (void **)&s->cos_sin,
                              err));
    if (!s->conf.inference) {
        HDT_TRY(
            s->backend->alloc(s->device, s->grads_len * sizeof(float), (void **)&s->grads, err));
        HDT_TRY(s->backend->alloc(s->device, bytes, (void **)&s->m, err));
        HDT_TRY(s->backend->alloc(s->device, bytes, (void **)&s->v, err));
    }
    tensors_place(s);
    return HDT_OK;
}

/* ---- Activations ----------------------------------------------------------------------------- */

static void act8_take(const struct hdt_stage *s, struct arena *arena, struct stage_act *act)
{
    for (int p = 0; p < N_PRODUCTS; p++) {
        act->in8t[p] = arena_take(arena, (size_t)s->n, (size_t)hdt_stage_matrix(s, p).in);
    }
    act->scales8 = arena_floats(arena, 2 * SCALE_STEP, N_PRODUCTS);
}

/* All of a block's activations but qkv (which a cache of keys keeps per block) and y. */
static void act_take(const struct hdt_stage *s, struct arena *arena, struct stage_act *act)
{
    size_t n = (size_t)s->n;

    if (s->conf.fp8) {
        act8_take(s, arena, act);
    } else {
        act->xn1 = arena_values(s, arena, n, (size_t)s->C);
        act->xn2 = arena_values(s, arena, n, (size_t)s->C);
    }
    act->rstd1 = arena_floats(arena, n, 1);
    act->att = arena_values(s, arena, n, (size_t)s->NH * s->HS);
    act->lse = arena_floats(arena, n, (size_t)s->NH);
    act->mid = arena_floats(arena, n, (size_t)s->C);
    act->rstd2 = arena_floats(arena, n, 1);
    act->gu = arena_values(s, arena, n, 2 * (size_t)s->F);
    if (hdt_stage_keeps_h(s)) {
        act->h = arena_values(s, arena, n, (size_t)s->F);
    }
}

/* Activations of all blocks. Inference keeps keys and values of each block, and lets blocks share
 * all else, with two outputs in turn. */
static void acts_take(const struct hdt_stage *s, struct arena *arena, struct stage_act *acts)
{
    size_t n = (size_t)s->n, C = (size_t)s->C;

    for (int i = 0; i < s->n_blocks; i++) {
        bool reuse = s->conf.inference && i > 0;

        if (reuse) {
            acts[i] = acts[0];
        } else {
            act_take(s, arena, &acts[i]);
        }
        acts[i].qkv = arena_values(s, arena, n, (size_t)s->Q);
        if (s->conf.inference && i > 1) {
            acts[i].y = acts[i - 2].y;
        } else {
            acts[i].y = i < s->n_blocks - 1 ? arena_floats(arena, n, C) : NULL;
        }
    }
}

static void slot_take(const struct hdt_stage *s, struct arena *arena, struct stage_slot *slot)
{
    size_t n = (size_t)s->n, C = (size_t)s->C;

    slot->x = arena_floats(arena, n, C);
    slot->y = s->n_blocks > 0 ? arena_floats(arena, n, C) : slot->x;
    slot->grad = s->conf.inference ? NULL : arena_floats(arena, n, C);
    slot->tokens = s->has_embedding ? arena_take(arena, n, sizeof(int32_t)) : NULL;
    slot->labels = s->has_head ? arena_take(arena, n, sizeof(int32_t)) : NULL;
    slot->loss = s->has_head ? arena_take(arena, 1, sizeof(double)) : NULL;
    if (!s->conf.recompute && !s->conf.inference) {
        acts_take(s, arena, slot->acts);
    }
}

static void work8_take(const struct hdt_stage *s, struct arena *arena, struct stage_work *work)
{
    size_t width = max_size(max_size(2 * (size_t)s->F, (size_t)s->Q), (size_t)s->C);

    work->rows8 = arena_take(arena, (size_t)s->n, width);
    work->cols8 = arena_take(arena, (size_t)s->n, width);
    work->scale8 = arena_floats(arena, 1, 1);
    work->amax8 = arena_floats(arena, 1, 1);
}

static void work_take(const struct hdt_stage *s, struct arena *arena, struct stage_work *work)
{
    size_t n = (size_t)s->n, C = (size_t)s->C;

    if (s->conf.recompute || s->conf.inference) {
        acts_take(s, arena, work->acts);
    }
    if (!s->conf.inference) {
        work->dwide = arena_values(s, arena, n, max_size(2 * (size_t)s->F, (size_t)s->Q));
        work->dnarrow = arena_values(s, arena, n, max_size((size_t)s->F, (size_t)s->NH * s->HS));
        work->dxn = arena_values(s, arena, n, C);
        work->grad16 = s->conf.mixed ? arena_values(s, arena, n, C) : NULL;
        if (s->conf.fp8) {
            work8_take(s, arena, work);
        } else if (!hdt_stage_keeps_h(s)) {
            work->h = arena_values(s, arena, n, (size_t)s->F);
        }
        work->sumsq = arena_take(arena, (size_t)s->n_tensors, sizeof(double));
        if (s->conf.model.tie_word_embeddings && s->has_embedding != s->has_head) {
            work->tied = arena_floats(arena, (size_t)s->V, C);
        }
    }
    if (s->has_head) {
        work->head_xn = arena_values(s, arena, n, C);
        work->head_rstd = arena_floats(arena, n, 1);
        work->logits = arena_values(s, arena, (size_t)s->head_rows, (size_t)s->V);
    }
}

/* Tables of pointers: one set of block activations per slot, and one to share. */
static void tables_make(struct hdt_stage *s)
{
    size_t n_slots = (size_t)s->conf.n_slots, n_blocks = (size_t)s->n_blocks;

    s->slots = hdt_calloc(n_slots, sizeof(*s->slots));
    s->act_table = hdt_calloc((n_slots + 1) * n_blocks + 1, sizeof(*s->act_table));
    for (size_t i = 0; i < n_slots; i++) {
        s->slots[i].acts = s->act_table + i * n_blocks;
    }
    s->work.acts = s->act_table + n_slots * n_blocks;
}

/* One pass over everything; returns the bytes of (one slot, workspace). */
static void activations_place(struct hdt_stage *s, struct arena *arena, size_t *slot_bytes,
                              size_t *work_bytes)
{
    for (int i = 0; i < s->conf.n_slots; i++) {
        slot_take(s, arena, &s->slots[i]);
    }
    *slot_bytes = arena->at / (size_t)s->conf.n_slots;
    *work_bytes = arena->at;
    work_take(s, arena, &s->work);
    *work_bytes = arena->at - *work_bytes;
}

/* Blocks find their output behind their activations; slots that share these bring their own. */
static void outputs_link(struct hdt_stage *s)
{
    bool share = s->conf.recompute || s->conf.inference;
    size_t n_acts = ((size_t)s->conf.n_slots + 1) * (size_t)s->n_blocks;

    for (size_t i = 0; i < n_acts && !hdt_stage_keeps_h(s); i++) {
        s->act_table[i].h = s->work.h;
        if (s->conf.fp8) { /* a forward's, while no backward runs */
            s->act_table[i].xn1 = s->act_table[i].xn2 = s->work.dxn;
            s->act_table[i].h = s->work.dnarrow;
        }
    }
    for (int i = 0; i < s->conf.n_slots && s->n_blocks > 0; i++) {
        if (share) {
            s->slots[i].acts = s->work.acts;
        } else {
            s->slots[i].acts[s->n_blocks - 1].y = s->slots[i].y;
        }
    }
}

static enum hdt_status activations_alloc(struct hdt_stage *s, struct hdt_error *err)
{
    struct arena arena = {0};
    size_t slot_bytes, work_bytes, n = (size_t)s->n;
    int32_t *host;

    activations_place(s, &arena, &slot_bytes, &work_bytes);
    HDT_TRY(s->backend->alloc(s->device, arena.at, &s->act_mem, err));
    arena = (struct arena){.base = s->act_mem};
    activations_place(s, &arena, &slot_bytes, &work_bytes);
    outputs_link(s);
    HDT_TRY(s->backend->host_alloc(s->device, 2 * n * (size_t)s->conf.n_slots * sizeof(int32_t),
                                   &s->host_mem, err));
    host = s->host_mem;
    for (int i = 0; i < s->conf.n_slots; i++) {
        s->slots[i].tokens_host = host + 2 * n * (size_t)i;
        s->slots[i].labels_host = s->slots[i].tokens_host + n;
    }
    return HDT_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Everything that needs no device. */
static enum hdt_status stage_prepare(struct hdt_stage *s, const struct hdt_stage_conf *conf,
                                     struct hdt_error *err)
{
    HDT_TRY(conf_check(conf, err));
    s->conf = *conf;
    shapes_set(s);
    tensors_list(s);
    tensors_place(s);
    tables_make(s);
    return HDT_OK;
}

static void stage_release(struct hdt_stage *s)
{
    free(s->tensors);
    free(s->spans);
    free(s->slots);
    free(s->act_table);
}

static void bytes_fill(struct hdt_stage *s, struct hdt_stage_bytes *bytes)
{
    struct arena arena = {0};
    size_t slot, work;

    activations_place(s, &arena, &slot, &work);
    *bytes = (struct hdt_stage_bytes){
        .weights = s->params_len * (sizeof(float) + (s->conf.mixed ? sizeof(uint16_t) : 0)) +
                   (s->conf.fp8 ? params8_bytes(s) : 0) + (size_t)s->T * s->HS * sizeof(float),
        .grads = s->conf.inference ? 0 : s->grads_len * sizeof(float),
        .optimizer = s->conf.inference ? 0 : 2 * s->params_len * sizeof(float),
        .slot = slot,
        .workspace = work,
    };
    bytes->total = bytes->weights + bytes->grads + bytes->optimizer + bytes->workspace +
                   (uint64_t)s->conf.n_slots * slot;
}

enum hdt_status hdt_stage_measure(const struct hdt_stage_conf *conf, struct hdt_stage_bytes *bytes,
                                  struct hdt_error *err)
{
    struct hdt_stage s = {0};

    HDT_TRY(stage_prepare(&s, conf, err));
    bytes_fill(&s, bytes);
    stage_release(&s);
    return HDT_OK;
}

static enum hdt_status stage_fill(struct hdt_stage *s, struct hdt_error *err)
{
    struct hdt_stage_bytes bytes;
    struct hdt_error cause = {0};
    enum hdt_status status;

    bytes_fill(s, &bytes);
    HDT_TRY(s->backend->stream_new(s->device, &s->stream, err));
    status = weights_alloc(s, &cause);
    if (status == HDT_OK) {
        status = activations_alloc(s, &cause);
    }
    if (status != HDT_OK) {
        hdt_error_set(err, status,
                      "cannot make a stage: it takes %.1f MiB of device memory (weights %.1f, "
                      "gradients and optimizer %.1f, activations %.1f): %s",
                      (double)bytes.total / 0x1p20, (double)bytes.weights / 0x1p20,
                      (double)(bytes.grads + bytes.optimizer) / 0x1p20,
                      (double)(bytes.total - bytes.weights - bytes.grads - bytes.optimizer) /
                          0x1p20,
                      cause.msg);
        hdt_error_hint(err, "fewer units on this device, a smaller micro-batch, or recompute");
        return status;
    }
    HDT_TRY(hdt_stage_init_rope(s, err));
    return hdt_stage_init_weights(s, err);
}

enum hdt_status hdt_stage_new(const struct hdt_backend *backend, struct hdt_device *device,
                              const struct hdt_stage_conf *conf, struct hdt_stage **stage,
                              struct hdt_error *err)
{
    struct hdt_stage *s = hdt_calloc(1, sizeof(*s));
    enum hdt_status status;

    s->backend = backend;
    s->ops = backend->ops;
    s->device = device;
    s->mixed = conf->mixed ? backend->mixed : NULL;
    s->fp8 = conf->fp8 ? backend->fp8 : NULL;
    status = hdt_backend_require(backend, err);
    if (status == HDT_OK && conf->mixed && !conf->fp8 && !s->mixed) {
        status = hdt_error_set(err, HDT_ENOTSUP,
                               "cannot make a stage with products of bf16: backend '%s' has none",
                               backend->name);
    }
    if (status == HDT_OK && conf->fp8) {
        status = hdt_backend_require_fp8(backend, device, err);
    }
    if (status == HDT_OK) {
        status = stage_prepare(s, conf, err);
    }
    if (status == HDT_OK) {
        status = stage_fill(s, err);
    }
    if (status != HDT_OK) {
        hdt_stage_free(s);
        return status;
    }
    *stage = s;
    return HDT_OK;
}

void hdt_stage_free(struct hdt_stage *s)
{
    if (!s) {
        return;
    }
    if (s->stream) {
        s->backend->stream_wait(s->stream, NULL);
        s->backend->stream_free(s->stream);
    }
    s->backend->host_free(s->device, s->host_mem);
    s->backend->free(s->device, s->act_mem);
    s->backend->free(s->device, s->cos_sin);
    s->backend->free(s->device, s->v);
    s->backend->free(s->device, s->m);
    s->backend->free(s->device, s->grads);
    s->backend->free(s->device, s->params8);
    s->backend->free(s->device, s->params16);
    s->backend->free(s->device, s->params);
    stage_release(s);
    free(s);
}

/* ---- What a stage has ------------------------------------------------------------------------ */

const struct hdt_stage_conf *hdt_stage_conf(const struct hdt_stage *s)
{
    return &s->conf;
}

bool hdt_stage_has_embedding(const struct hdt_stage *s)
{
    return s->has_embedding;
}

bool hdt_stage_has_head(const struct hdt_stage *s)
{
    return s->has_head;
}

struct hdt_stream *hdt_stage_stream(const struct hdt_stage *s)
{
    return s->stream;
}

enum hdt_status hdt_stage_wait(struct hdt_stage *s, struct hdt_error *err)
{
    return s->backend->stream_wait(s->stream, err);
}

size_t hdt_stage_activation_bytes(const struct hdt_stage *s)
{
    return (size_t)s->n * s->C * sizeof(float);
}

static struct stage_slot *slot_at(struct hdt_stage *s, int slot)
{
    HDT_ASSERT(slot >= 0 && slot < s->conf.n_slots);
    return &s->slots[slot];
}

float *hdt_stage_input(struct hdt_stage *s, int slot)
{
    return s->has_embedding ? NULL : slot_at(s, slot)->x;
}

float *hdt_stage_output(struct hdt_stage *s, int slot)
{
    return s->has_head ? NULL : slot_at(s, slot)->y;
}

float *hdt_stage_output_grad(struct hdt_stage *s, int slot)
{
    return s->has_head ? NULL : slot_at(s, slot)->grad;
}

float *hdt_stage_input_grad(struct hdt_stage *s, int slot)
{
    return s->has_embedding ? NULL : slot_at(s, slot)->grad;
}

static enum hdt_status indices_set(struct hdt_stage *s, const int32_t *src, int32_t min,
                                   int32_t *host, int32_t *device_mem, struct hdt_error *err)
{
    /* Copied first, then checked: src may be memory that another process can write to. */
    memcpy(host, src, (size_t)s->n * sizeof(*src));
    for (int i = 0; i < s->n; i++) {
        if (host[i] >= s->V || host[i] < min) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "cannot use token %d at row %d of a micro-batch: the vocabulary "
                                 "has 0 to %d",
                                 host[i], i, s->V - 1);
        }
    }
    s->backend->copy(s->stream, device_mem, host, (size_t)s->n * sizeof(*src), HDT_COPY_TO_DEVICE);
    return HDT_OK;
}

enum hdt_status hdt_stage_set_tokens(struct hdt_stage *s, int slot, const int32_t *tokens,
                                     struct hdt_error *err)
{
    struct stage_slot *at = slot_at(s, slot);

    HDT_ASSERT(s->has_embedding);
    return indices_set(s, tokens, 0, at->tokens_host, at->tokens, err);
}

enum hdt_status hdt_stage_set_labels(struct hdt_stage *s, int slot, const int32_t *labels,
                                     struct hdt_error *err)
{
    struct stage_slot *at = slot_at(s, slot);

    HDT_ASSERT(s->has_head);
    return indices_set(s, labels, INT32_MIN, at->labels_host, at->labels, err);
}

int64_t hdt_stage_first_tensor(const struct hdt_stage *s)
{
    return s->first_tensor;
}

int hdt_stage_n_tensors(const struct hdt_stage *s)
{
    return s->n_tensors;
}

void hdt_stage_tensor(const struct hdt_stage *s, int idx, struct hdt_stage_tensor *view)
{
    const struct stage_tensor *t = &s->tensors[idx];

    HDT_ASSERT(idx >= 0 && idx < s->n_tensors);
    *view = (struct hdt_stage_tensor){
        .info = t->info,
        .model_idx = s->first_tensor + idx,
        .len = t->len,
        .w = t->w,
        .grad = t->grad,
        .m = t->m,
        .v = t->v,
        .shared = t->shared,
    };
}

enum hdt_status hdt_stage_read(struct hdt_stage *s, void *host, const void *device_mem,
                               size_t bytes, struct hdt_error *err)
{
    s->backend->copy(s->stream, host, device_mem, bytes, HDT_COPY_FROM_DEVICE);
    return s->backend->stream_wait(s->stream, err);
}

enum hdt_status hdt_stage_write(struct hdt_stage *s, void *device_mem, const void *host,
                                size_t bytes, struct hdt_error *err)
{
    const float *at = device_mem;

    s->params16_old = s->params16_old || (at >= s->params && at < s->params + s->params_len);
    s->backend->copy(s->stream, device_mem, host, bytes, HDT_COPY_TO_DEVICE);
    return s->backend->stream_wait(s->stream, err);
}
