/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_LADDER_H
#define HDT_COMPRESS_LADDER_H

/*
 * The codecs that one edge may use, and the guard that steps up in precision.
 *
 * Both ends of a flow work out the same ladder from the plan and the job: rung 0 is the most exact
 * codec. A frame's header says from which rung it is, so that the sender may change from frame to
 * frame without asking. Codecs with feedback state have no ladder but themselves: what one frame
 * lost is in the next, and their error is no sign of trouble.
 *
 * The guard looks at each frame before it leaves. One that the codec cannot carry (values that
 * become infinite or NaN by coding), or whose relative error is far beyond what the codec is used
 * for, is coded again by the next rung, and the flow stays there for long. Nothing that was refused
 * has been sent.
 *
 * Pure functions over the caller's memory; one thread at a time.
 */
#include "compress/codec.h"
#include "compress/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_LADDER_MAX 8

/* A frame is refused when its relative error is above this many times the budget, or, where the
 * codec itself is expected to lose more than the budget, that. */
#define HDT_LADDER_FACTOR 4.0

/* Frames in a row that pass before a less exact rung is tried again; twice as many after each time
 * that it failed, up to the largest. */
#define HDT_LADDER_CALM_FRAMES     1000
#define HDT_LADDER_CALM_FRAMES_MAX 64000

struct hdt_ladder {
    struct hdt_codec_spec rungs[HDT_LADDER_MAX]; /* most exact first; all with one gateway codec */
    int n;                                       /* at least 1 */
    int planned;                                 /* rung of the plan's codec */
    bool is_live;                                /* the sender chooses among all rungs */
    double error_budget;                         /* relative; 0: no guard */
};

/* The error of a codec on normally distributed values, sqrt(sum err^2 / sum x^2): by the arithmetic
 * of its rounding. 0 for exact ones, 1 for those whose error depends on what is kept. */
double hdt_codec_expected_error(const struct hdt_codec_spec *spec);

/*
 * The ladder of a flow whose plan says `planned`, whose tensors have `tensor_bytes` bytes of f32
 * and whose slots take frames of `frame_cap` bytes; rungs that do not fit are left out. `is_live`:
 * the job leaves the choice open and allows lossy codecs; the rungs are then all within the budget.
 * Else they are the planned codec and, where a guard is wanted (error_budget > 0), more exact ones.
 */
void hdt_ladder_init(struct hdt_ladder *ladder, const struct hdt_codec_spec *planned, bool is_live,
                     double error_budget, size_t tensor_bytes, size_t frame_cap);

/* Longest frame that the planned codec, or any rung of its ladder, makes: what a slot has to take.
 * Same parameters. */
size_t hdt_ladder_frame_bytes(const struct hdt_codec_spec *planned, bool is_live,
                              double error_budget, size_t tensor_bytes);

/* Names of all rungs with commas, for messages. Always terminated. */
#define HDT_LADDER_TEXT 256
void hdt_ladder_text(const struct hdt_ladder *ladder, char text[HDT_LADDER_TEXT]);

/* ---- the guard, at the sender ---- */

struct hdt_ladder_guard {
    int least;     /* least exact rung that may be used now */
    bool is_trial; /* the last step was one down */
    uint64_t n_calm, n_needed;
    uint64_t n_up, n_down; /* steps so far */
    uint64_t n_again;      /* frames that were coded again */
};

enum hdt_ladder_verdict {
    HDT_LADDER_PASS,      /* the frame may leave */
    HDT_LADDER_NONFINITE, /* it must not: values that the codec cannot carry; */
    HDT_LADDER_ERROR,     /* relative error too large: code it again by the next rung, `rung` - 1 */
};

void hdt_ladder_guard_init(struct hdt_ladder_guard *guard, const struct hdt_ladder *ladder);

/* Largest relative error that a frame of the rung may have; infinite where nothing is guarded. */
double hdt_ladder_limit(const struct hdt_ladder *ladder, int rung);

/* A frame was encoded by `rung`, and this was seen; `refused`: the encoder found no coded form.
 * Steps up when it does not pass; rung 0 always passes. Figures of sums that are not finite do not
 * pass. */
enum hdt_ladder_verdict hdt_ladder_check(struct hdt_ladder_guard *guard,
                                         const struct hdt_ladder *ladder, int rung,
                                         const struct hdt_codec_guard *seen, bool refused);

/* A frame left. true: it was calm for so long that the next less exact rung may be used again. */
bool hdt_ladder_left(struct hdt_ladder_guard *guard, const struct hdt_ladder *ladder);

/* The saved form of a guard: with it a run that is resumed goes on by the same rungs. */
#define HDT_LADDER_GUARD_BYTES 80

void hdt_ladder_guard_save(const struct hdt_ladder_guard *guard, const struct hdt_ladder *ladder,
                           uint8_t mem[HDT_LADDER_GUARD_BYTES]);

/* Take over a saved form: foreign bytes. HDT_EPROTO when it is damaged; HDT_EINVAL when it is of
 * another ladder or version. The guard is as it was then. */
enum hdt_status hdt_ladder_guard_load(struct hdt_ladder_guard *guard,
                                      const struct hdt_ladder *ladder, const void *mem, size_t len,
                                      struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_LADDER_H */
