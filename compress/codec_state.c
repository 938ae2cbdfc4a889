/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that is saved lies in one run of memory, so that saving is one copy and nothing can be left
 * out of it. Saved form, little-endian:
 *
 *     u64  "HDTCODST"        u32  version, 1         u32  length of the spec, 10
 *     u64  n                 u64  keys               u8[16]  spec, then zeros
 *     ...  residual (n) and factor (rank, columns) f32; or key (keys) and visits (keys) u64, then
 *          sample (keys, n) f32
 *
 * A checkpoint has digests of its own: what is looked for here is a state of another run, not a bad
 * disk.
 */
#include "config.h"

#include "compress/codec_state.h"
#include "compress/codec.h"
#include "compress/lowrank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAVED_MAGIC   0x5453444f43544448u /* "HDTCODST" */
#define SAVED_VERSION 1

struct saved_head {
    uint64_t magic;
    uint32_t version, spec_len;
    uint64_t n, keys;
    uint8_t spec[16];
};
HDT_STATIC_ASSERT(sizeof(struct saved_head) == 48, "part of checkpoints");
HDT_STATIC_ASSERT(sizeof(struct hdt_codec_spec) <= 16, "has its place in the head");

/* What a codec keeps, in numbers of elements. */
struct parts {
    size_t residual, factor, keys, sample, scratch;
};

static struct parts parts_of(const struct hdt_codec_spec *spec, size_t n, size_t keys)
{
    struct parts p = {0};

    if (spec->flags & HDT_CODEC_DELTA) {
        p.keys = keys;
        p.sample = keys * n;
        p.scratch = n;
    } else if (spec->worker == HDT_CODEC_TOPK || spec->worker == HDT_CODEC_RANDK) {
        p.residual = n;
    } else if (spec->worker == HDT_CODEC_LOWRANK) {
        struct hdt_lowrank shape = hdt_lowrank_shape(n, spec->block, spec->rank);

        p.residual = n;
        p.factor = shape.rank * shape.columns;
        p.scratch = shape.rank * (shape.rows + shape.columns);
    }
    return p;
}

static size_t parts_saved(const struct parts *p)
{
    return 16 * p->keys + 4 * (p->residual + p->factor + p->sample);
}

size_t hdt_codec_state_mem(const struct hdt_codec_spec *spec, size_t n, size_t keys)
{
    struct parts p = parts_of(spec, n, keys);

    return parts_saved(&p) + 4 * p.scratch;
}

static enum hdt_status check_size(const struct hdt_codec_spec *spec, size_t n, size_t keys,
                                  struct hdt_error *err)
{
    HDT_TRY(hdt_codec_spec_check(spec, err));
    if (!hdt_codec_spec_has_state(spec)) {
        return hdt_error_set(err, HDT_EINVAL, "cannot make codec state: codec %s keeps nothing",
                             hdt_codec_spec_worker(spec)->name);
    }
    if (n > HDT_CODEC_PLAIN_MAX / 4) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot make codec state: tensors of %zu values are above %zu", n,
                             HDT_CODEC_PLAIN_MAX / 4);
    }
    if (spec->flags & HDT_CODEC_DELTA && (keys < 1 || keys > HDT_CODEC_KEYS_MAX)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot make codec state: %zu samples are not within 1 to %zu", keys,
                             HDT_CODEC_KEYS_MAX);
    }
    return HDT_OK;
}

/* Point the members into the saved run. */
static void place_parts(struct hdt_codec_state *s, const struct parts *p)
{
    float *floats = (float *)(void *)(s->saved + 16 * p->keys);

    if (p->keys > 0) {
        s->key = (uint64_t *)(void *)s->saved;
        s->visits = s->key + p->keys;
        s->sample = floats;
        return;
    }
    s->residual = floats;
    s->factor = p->factor > 0 ? floats + p->residual : NULL;
}

enum hdt_status hdt_codec_state_new(const struct hdt_codec_spec *spec, size_t n, size_t keys,
                                    struct hdt_codec_state **state, struct hdt_error *err)
{
    struct hdt_codec_state *s;
    struct parts p;

    HDT_TRY(check_size(spec, n, keys, err));
    p = parts_of(spec, n, keys);
    s = calloc(1, sizeof(*s));
    if (!s) {
        goto err_memory;
    }
    s->spec = *spec;
    s->n = n;
    s->keys = p.keys;
    s->saved_len = parts_saved(&p);
    s->saved = calloc(1, s->saved_len > 0 ? s->saved_len : 1);
    s->scratch = calloc(p.scratch > 0 ? p.scratch : 1, sizeof(*s->scratch));
    if (!s->saved || !s->scratch) {
        goto err_memory;
    }
    place_parts(s, &p);
    *state = s;
    return HDT_OK;

err_memory:
    hdt_codec_state_free(s);
    return hdt_error_set(err, HDT_ENOMEM, "cannot make codec state of %zu bytes: out of memory",
                         hdt_codec_state_mem(spec, n, keys));
}

void hdt_codec_state_free(struct hdt_codec_state *state)
{
    if (state) {
        free(state->saved);
        free(state->scratch);
        free(state);
    }
}

/* The gateway's codec is none of the state's business. */
enum hdt_status hdt_codec_state_fits(const struct hdt_codec_state *state,
                                     const struct hdt_codec_spec *spec, size_t n,
                                     struct hdt_error *err)
{
    struct hdt_codec_spec want;

    if (!state) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s needs the state of its flow",
                             hdt_codec_spec_worker(spec)->name);
    }
    want = state->spec;
    want.gateway = spec->gateway;
    if (!hdt_codec_spec_equal(&want, spec) || state->n != n) {
        return hdt_error_set(err, HDT_EINVAL,
                             "codec %s: the state is of another codec or of %zu values, not %zu",
                             hdt_codec_spec_worker(spec)->name, state->n, n);
    }
    return HDT_OK;
}

void hdt_codec_state_reset(struct hdt_codec_state *state)
{
    memset(state->saved, 0, state->saved_len);
}

/* ---- saved form ---- */

static struct saved_head head_of(const struct hdt_codec_state *state)
{
    struct hdt_codec_spec spec = state->spec;
    struct saved_head head = {.magic = SAVED_MAGIC,
                              .version = SAVED_VERSION,
                              .spec_len = sizeof(state->spec),
                              .n = state->n,
                              .keys = state->keys};

    spec.gateway = HDT_CODEC_NONE; /* not the state's business */
    memcpy(head.spec, &spec, sizeof(spec));
    return head;
}

size_t hdt_codec_state_bytes(const struct hdt_codec_state *state)
{
    return sizeof(struct saved_head) + state->saved_len;
}

void hdt_codec_state_save(const struct hdt_codec_state *state, void *mem)
{
    struct saved_head head = head_of(state);

    memcpy(mem, &head, sizeof(head));
    memcpy((uint8_t *)mem + sizeof(head), state->saved, state->saved_len);
}

static enum hdt_status check_head(const struct hdt_codec_state *state, const void *mem, size_t len,
                                  struct hdt_error *err)
{
    struct saved_head want = head_of(state), got;

    if (len < sizeof(got)) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load codec state: %zu bytes have no head",
                             len);
    }
    memcpy(&got, mem, sizeof(got));
    if (got.magic != want.magic) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load codec state: these bytes are none");
    }
    if (got.version != want.version || got.spec_len != want.spec_len) {
        return hdt_error_set(err, HDT_EINVAL, "cannot load codec state: it has version %u, not %u",
                             got.version, want.version);
    }
    if (memcmp(got.spec, want.spec, sizeof(got.spec)) != 0 || got.n != want.n ||
        got.keys != want.keys) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot load codec state: it is of another codec or tensor");
    }
    if (len != hdt_codec_state_bytes(state)) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load codec state: it has %zu bytes, not %zu",
                             len, hdt_codec_state_bytes(state));
    }
    return HDT_OK;
}

/* Slots in use come first: the codec looks no further than the first free one. */
static bool slots_fit(const uint8_t *saved, size_t keys)
{
    uint64_t visits, last = 1;

    for (size_t i = 0; i < keys; i++) {
        memcpy(&visits, saved + 8 * (keys + i), 8);
        if (visits > 0 && last == 0) {
            return false;
        }
        last = visits;
    }
    return true;
}

enum hdt_status hdt_codec_state_load(struct hdt_codec_state *state, const void *mem, size_t len,
                                     struct hdt_error *err)
{
    const uint8_t *saved = (const uint8_t *)mem + sizeof(struct saved_head);

    HDT_TRY(check_head(state, mem, len, err));
    if (!slots_fit(saved, state->keys)) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load codec state: its samples have gaps");
    }
    for (size_t at = 16 * state->keys; at < state->saved_len; at += 4) {
        float x;

        memcpy(&x, saved + at, 4);
        if (!isfinite(x)) {
            return hdt_error_set(err, HDT_EPROTO, "cannot load codec state: a value is not finite");
        }
    }
    if (state->saved_len > 0) {
        memcpy(state->saved, saved, state->saved_len);
    }
    return HDT_OK;
}
