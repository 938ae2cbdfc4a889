/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps up happen at once and steps down slowly: a frame that lost too much has cost quality for
 * good, one that was sent more exactly than needed has cost some milliseconds. Whether a less exact
 * codec would do again cannot be seen from the more exact one, so after a calm stretch it is tried;
 * since a refused frame is coded again before it leaves, a failed try costs that time and no
 * quality, and the stretch before the next try is twice as long.
 *
 * Saved form, little-endian:
 *
 *     u64  "HDTGUARD"        u32  version, 1         u32  length of the spec, 10
 *     u8[16]  planned spec, then zeros
 *     u8   rungs, planned rung, live, least, is_trial; three zeros
 *     u64  n_calm, n_needed, n_up, n_down, n_again
 */
#include "config.h"

#include "compress/ladder.h"
#include "src/base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SAVED_MAGIC   0x4452415547544448u /* "HDTGUARD" */
#define SAVED_VERSION 1

struct saved_guard {
    uint64_t magic;
    uint32_t version, spec_len;
    uint8_t spec[16];
    uint8_t n, planned, is_live, least, is_trial, zeros[3];
    uint64_t n_calm, n_needed, n_up, n_down, n_again;
};
HDT_STATIC_ASSERT(sizeof(struct saved_guard) == HDT_LADDER_GUARD_BYTES, "part of checkpoints");
HDT_STATIC_ASSERT(sizeof(struct hdt_codec_spec) <= 16, "has its place in the saved form");

/* Codecs that a choice, or a step up, falls on, most exact first. fp8 is not among them: it takes
 * the bytes of int8 and loses three times as much on values of one scale. fp16 takes those of bf16
 * and has no room for large values. */
static const struct hdt_codec_spec steps[] = {
    {.worker = HDT_CODEC_NONE},
    {.worker = HDT_CODEC_BF16},
    {.worker = HDT_CODEC_INT8},
    {.worker = HDT_CODEC_INT4, .flags = HDT_CODEC_ROTATE},
};
#define N_STEPS (sizeof(steps) / sizeof(steps[0]))

/*
 * A float of M stored bits of mantissa has an error that is uniform within half a unit in the last
 * place, 2^-M 2^e / sqrt(12) in the octave [2^e, 2^(e+1)). Over normal values, sum x^2 is 1.842
 * times sum 2^2e (integrated numerically).
 */
static double float_error(int mantissa_bits)
{
    return ldexp(1, -mantissa_bits) / sqrt(12 * 1.842);
}

/* A uniform quantizer whose block of n values is scaled by the largest: a step is that / levels,
 * the error step / sqrt(12). Of n normal values the largest is near 0.9 sqrt(2 ln n), within 6 %
 * from 32 to 1024 values. */
static double block_error(int n, double levels)
{
    return 0.9 * sqrt(2 * log(n)) / levels / sqrt(12);
}

double hdt_codec_expected_error(const struct hdt_codec_spec *spec)
{
    const struct hdt_codec_word *word = hdt_codec_word(spec->worker);
    const unsigned block = spec->block || !word ? spec->block : word->defaults.block;

    switch (spec->worker) {
    case HDT_CODEC_NONE:
    case HDT_CODEC_LOSSLESS:
        return 0;
    case HDT_CODEC_BF16:
        return float_error(7);
    case HDT_CODEC_FP16:
        return float_error(10);
    case HDT_CODEC_FP8:
        return float_error(spec->flags & HDT_CODEC_E5M2 ? 2 : 3);
    case HDT_CODEC_INT8:
        return block_error(block, 127);
    case HDT_CODEC_INT4:
        return block_error(block, 7);
    default:
        return 1;
    }
}

/* Has it feedback, or an error that says nothing? */
static bool has_ladder(const struct hdt_codec_spec *spec)
{
    return !(spec->flags & HDT_CODEC_DELTA) && hdt_codec_expected_error(spec) < 1;
}

static size_t rung_bytes(const struct hdt_codec_spec *spec, size_t tensor_bytes)
{
    const struct hdt_codec_ops *codec = hdt_codec_by_id(spec->worker);
    size_t bytes;

    return codec &&
                   hdt_codec_bound(codec, spec, HDT_DTYPE_F32, tensor_bytes, &bytes, NULL) == HDT_OK
               ? bytes
               : SIZE_MAX;
}

static void rung_add(struct hdt_ladder *ladder, const struct hdt_codec_spec *spec, uint8_t gateway,
                     size_t tensor_bytes, size_t frame_cap)
{
    if (rung_bytes(spec, tensor_bytes) <= frame_cap) {
        ladder->rungs[ladder->n] = *spec;
        ladder->rungs[ladder->n++].gateway = gateway;
    }
}

void hdt_ladder_init(struct hdt_ladder *ladder, const struct hdt_codec_spec *planned, bool is_live,
                     double error_budget, size_t tensor_bytes, size_t frame_cap)
{
    const double own = hdt_codec_expected_error(planned);
    size_t i = 0;

    memset(ladder, 0, sizeof(*ladder));
    HDT_STATIC_ASSERT(N_STEPS + 1 <= HDT_LADDER_MAX, "all steps and the planned codec fit");
    if (has_ladder(planned) && error_budget > 0) {
        ladder->error_budget = error_budget;
        ladder->is_live = is_live;
        for (; i < N_STEPS && hdt_codec_expected_error(&steps[i]) < own &&
               steps[i].worker != planned->worker;
             i++) {
            rung_add(ladder, &steps[i], planned->gateway, tensor_bytes, frame_cap);
        }
    }
    ladder->planned = ladder->n;
    ladder->rungs[ladder->n++] = *planned;
    for (; ladder->is_live && i < N_STEPS; i++) {
        if (steps[i].worker != planned->worker &&
            hdt_codec_expected_error(&steps[i]) <= error_budget) {
            rung_add(ladder, &steps[i], planned->gateway, tensor_bytes, frame_cap);
        }
    }
    ladder->is_live = ladder->is_live && ladder->n > 1;
}

size_t hdt_ladder_frame_bytes(const struct hdt_codec_spec *planned, bool is_live,
                              double error_budget, size_t tensor_bytes)
{
    struct hdt_ladder ladder;
    size_t most = 0, bytes;
    int i;

    hdt_ladder_init(&ladder, planned, is_live, error_budget, tensor_bytes, SIZE_MAX - 1);
    for (i = 0; i < ladder.n; i++) {
        bytes = rung_bytes(&ladder.rungs[i], tensor_bytes);
        most = bytes > most ? bytes : most;
    }
    return most;
}

void hdt_ladder_text(const struct hdt_ladder *ladder, char text[HDT_LADDER_TEXT])
{
    char one[HDT_CODEC_SPEC_TEXT];
    size_t len = 0;
    int i;

    text[0] = '\0';
    for (i = 0; i < ladder->n && len < HDT_LADDER_TEXT - 1; i++) {
        hdt_codec_spec_format(&ladder->rungs[i], one);
        len += (size_t)snprintf(text + len, HDT_LADDER_TEXT - len, "%s%s", i > 0 ? ", " : "", one);
    }
}

/* ---- the guard ---- */

void hdt_ladder_guard_init(struct hdt_ladder_guard *guard, const struct hdt_ladder *ladder)
{
    memset(guard, 0, sizeof(*guard));
    guard->least = ladder->is_live ? ladder->n - 1 : ladder->planned;
    guard->n_needed = HDT_LADDER_CALM_FRAMES;
}

double hdt_ladder_limit(const struct hdt_ladder *ladder, int rung)
{
    const double own = hdt_codec_expected_error(&ladder->rungs[rung]);

    return ladder->error_budget > 0 ? HDT_LADDER_FACTOR * fmax(ladder->error_budget, own)
                                    : INFINITY;
}

enum hdt_ladder_verdict hdt_ladder_check(struct hdt_ladder_guard *guard,
                                         const struct hdt_ladder *ladder, int rung,
                                         const struct hdt_codec_guard *seen, bool refused)
{
    const bool is_lost = refused || seen->n_nonfinite > 0;

    HDT_ASSERT(rung >= 0 && rung < ladder->n);
    if (rung == 0 || (!is_lost && hdt_codec_guard_error(seen) <= hdt_ladder_limit(ladder, rung))) {
        return HDT_LADDER_PASS;
    }
    if (guard->is_trial && guard->n_needed < HDT_LADDER_CALM_FRAMES_MAX) {
        guard->n_needed *= 2;
    }
    guard->is_trial = false;
    guard->least = rung - 1;
    guard->n_calm = 0;
    guard->n_up++;
    guard->n_again++;
    return is_lost ? HDT_LADDER_NONFINITE : HDT_LADDER_ERROR;
}

bool hdt_ladder_left(struct hdt_ladder_guard *guard, const struct hdt_ladder *ladder)
{
    const int lowest = ladder->is_live ? ladder->n - 1 : ladder->planned;

    if (guard->least >= lowest && !guard->is_trial) {
        return false;
    }
    if (++guard->n_calm < guard->n_needed) {
        return false;
    }
    if (guard->least >= lowest) { /* it went well: the next trouble is a new one */
        guard->is_trial = false;
        guard->n_needed = HDT_LADDER_CALM_FRAMES;
        return false;
    }
    guard->least++;
    guard->is_trial = true;
    guard->n_calm = 0;
    guard->n_down++;
    return true;
}

/* ---- saved form ---- */

static struct saved_guard saved_of(const struct hdt_ladder_guard *guard,
                                   const struct hdt_ladder *ladder)
{
    struct hdt_codec_spec spec = ladder->rungs[ladder->planned];
    struct saved_guard saved = {.magic = SAVED_MAGIC,
                                .version = SAVED_VERSION,
                                .spec_len = sizeof(spec),
                                .n = (uint8_t)ladder->n,
                                .planned = (uint8_t)ladder->planned,
                                .is_live = ladder->is_live,
                                .least = (uint8_t)guard->least,
                                .is_trial = guard->is_trial,
                                .n_calm = guard->n_calm,
                                .n_needed = guard->n_needed,
                                .n_up = guard->n_up,
                                .n_down = guard->n_down,
                                .n_again = guard->n_again};

    spec.gateway = HDT_CODEC_NONE; /* loses nothing */
    memcpy(saved.spec, &spec, sizeof(spec));
    return saved;
}

void hdt_ladder_guard_save(const struct hdt_ladder_guard *guard, const struct hdt_ladder *ladder,
                           uint8_t mem[HDT_LADDER_GUARD_BYTES])
{
    const struct saved_guard saved = saved_of(guard, ladder);

    memcpy(mem, &saved, sizeof(saved));
}

enum hdt_status hdt_ladder_guard_load(struct hdt_ladder_guard *guard,
                                      const struct hdt_ladder *ladder, const void *mem, size_t len,
                                      struct hdt_error *err)
{
    const int lowest = ladder->is_live ? ladder->n - 1 : ladder->planned;
    const struct saved_guard want = saved_of(guard, ladder);
    struct saved_guard got;

    if (len != sizeof(got)) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load a guard: %zu bytes are none", len);
    }
    memcpy(&got, mem, sizeof(got));
    if (got.magic != want.magic) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load a guard: these bytes are none");
    }
    if (got.version != want.version || got.spec_len != want.spec_len) {
        return hdt_error_set(err, HDT_EINVAL, "cannot load a guard: it has version %u, not %u",
                             got.version, want.version);
    }
    if (memcmp(got.spec, want.spec, sizeof(got.spec)) != 0 || got.n != want.n ||
        got.planned != want.planned || got.is_live != want.is_live) {
        return hdt_error_set(err, HDT_EINVAL, "cannot load a guard: it is of other codecs");
    }
    if (got.least > lowest || got.is_trial > 1 || got.n_needed < HDT_LADDER_CALM_FRAMES ||
        got.n_needed > HDT_LADDER_CALM_FRAMES_MAX || got.n_calm > got.n_needed) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load a guard: it is damaged");
    }
    *guard = (struct hdt_ladder_guard){.least = got.least,
                                       .is_trial = got.is_trial,
                                       .n_calm = got.n_calm,
                                       .n_needed = got.n_needed,
                                       .n_up = got.n_up,
                                       .n_down = got.n_down,
                                       .n_again = got.n_again};
    return HDT_OK;
}
