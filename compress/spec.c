/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The language in which edges name their codecs. One table says which codecs exist and what they
 * take; parser, formatter, checks and hints read it, so that a new codec is one line here and one
 * in codec.c.
 */
#include "config.h"

#include "compress/spec.h"
#include "src/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Options that several codecs take, or that are too long for a line. */
#define OPT_SPARSE  (HDT_CODEC_OPT_KEEP | HDT_CODEC_OPT_BITS)
#define OPT_LOWRANK (HDT_CODEC_OPT_RANK | HDT_CODEC_OPT_BLOCK)
#define OPT_FP8     (HDT_CODEC_OPT_BLOCK | HDT_CODEC_E5M2 | HDT_CODEC_STOCHASTIC | HDT_CODEC_DELTA)
#define OPT_INT                                                                                    \
 (HDT_CODEC_OPT_BLOCK | HDT_CODEC_MINMAX | HDT_CODEC_ROTATE | HDT_CODEC_STOCHASTIC |               \
  HDT_CODEC_DELTA)

/* By number. */
static const struct hdt_codec_word words[] = {
    {HDT_CODEC_NONE, "none", 0, {0}, "none"},
    {HDT_CODEC_BF16, "bf16", HDT_CODEC_STOCHASTIC, {0}, "bf16 bf16:stochastic"},
    {HDT_CODEC_INT8,
     "int8",
     OPT_INT,
     {.block = 256},
     "int8 int8:minmax int8:block=64 int8:stochastic"},
    {HDT_CODEC_LOSSLESS, "lossless", 0, {0}, "lossless"},
    {HDT_CODEC_FP16, "fp16", HDT_CODEC_STOCHASTIC, {0}, "fp16 fp16:stochastic"},
    {HDT_CODEC_FP8, "fp8", OPT_FP8, {.block = 128}, "fp8 fp8:e5m2 fp8:stochastic"},
    {HDT_CODEC_INT4,
     "int4",
     OPT_INT,
     {.block = 64},
     "int4 int4:minmax int4:rotate int4:stochastic"},
    {HDT_CODEC_TOPK, "topk", OPT_SPARSE, {.bits = 2, .keep = 64}, "topk:64 topk:8,bits=8"},
    {HDT_CODEC_RANDK, "randk", OPT_SPARSE, {.bits = 2, .keep = 64}, "randk:64"},
    {HDT_CODEC_LOWRANK, "lowrank", OPT_LOWRANK, {.rank = 4}, "lowrank:4"},
};
#define N_WORDS (sizeof(words) / sizeof(words[0]))

#define DELTA_PREFIX "delta:"

/* Names of the flags that stand among the options; "delta" stands in front. */
static const struct {
    unsigned flag;
    const char *name;
} flag_names[] = {
    {HDT_CODEC_E5M2, "e5m2"},
    {HDT_CODEC_MINMAX, "minmax"},
    {HDT_CODEC_ROTATE, "rotate"},
    {HDT_CODEC_STOCHASTIC, "stochastic"},
};
#define N_FLAG_NAMES (sizeof(flag_names) / sizeof(flag_names[0]))

const struct hdt_codec_word *hdt_codec_words(size_t *n)
{
    *n = N_WORDS;
    return words;
}

const struct hdt_codec_word *hdt_codec_word(unsigned id)
{
    for (size_t i = 0; i < N_WORDS; i++) {
        if (words[i].id == id) {
            return &words[i];
        }
    }
    return NULL;
}

static const struct hdt_codec_word *word_named(const char *name, size_t len)
{
    for (size_t i = 0; i < N_WORDS; i++) {
        if (strlen(words[i].name) == len && memcmp(words[i].name, name, len) == 0) {
            return &words[i];
        }
    }
    return NULL;
}

struct hdt_codec_spec hdt_codec_spec_default(enum hdt_codec_id id)
{
    const struct hdt_codec_word *word = hdt_codec_word(id);
    struct hdt_codec_spec spec;

    HDT_ASSERT(word != NULL);
    spec = word->defaults;
    spec.block = 0;
    *(id == HDT_CODEC_LOSSLESS ? &spec.gateway : &spec.worker) = (uint8_t)id;
    return spec;
}

bool hdt_codec_spec_equal(const struct hdt_codec_spec *a, const struct hdt_codec_spec *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* ---- what a codec takes ---- */

static void options_of(const struct hdt_codec_word *word, struct hdt_buf *text)
{
    const char *comma = "";

    if (word->options & (HDT_CODEC_OPT_KEEP | HDT_CODEC_OPT_RANK)) {
        hdt_buf_appendf(text, "%s%s", comma,
                        word->options & HDT_CODEC_OPT_KEEP ? "one of N values, as 64"
                                                           : "a rank, as 4");
        comma = ", ";
    }
    if (word->options & HDT_CODEC_OPT_BLOCK) {
        hdt_buf_appendf(text, "%sblock=32..1024", comma);
        comma = ", ";
    }
    if (word->options & HDT_CODEC_OPT_BITS) {
        hdt_buf_appendf(text, "%sbits=2|4|8|16", comma);
        comma = ", ";
    }
    for (size_t i = 0; i < N_FLAG_NAMES; i++) {
        if (word->options & flag_names[i].flag) {
            hdt_buf_appendf(text, "%s%s", comma, flag_names[i].name);
            comma = ", ";
        }
    }
}

void hdt_codec_spec_known(char *text, size_t cap)
{
    struct hdt_buf known;

    hdt_buf_init(&known);
    for (size_t i = 0; i < N_WORDS; i++) {
        hdt_buf_appendf(&known, "%s%s", i > 0 ? ", " : "", words[i].name);
    }
    snprintf(text, cap, "%s", hdt_buf_str(&known));
    hdt_buf_release(&known);
}

static enum hdt_status no_codec(const char *text, struct hdt_error *err)
{
    char known[HDT_ERROR_HINT_CAP - 64];

    hdt_codec_spec_known(known, sizeof(known));
    hdt_error_set(err, HDT_EINVAL, "'%.64s' is no codec", text);
    hdt_error_hint(err, "known are %s; options and +lossless may follow (hdt codec list)", known);
    return HDT_EINVAL;
}

static enum hdt_status no_option(const struct hdt_codec_word *word, const char *option, size_t len,
                                 struct hdt_error *err)
{
    struct hdt_buf takes;

    hdt_buf_init(&takes);
    options_of(word, &takes);
    hdt_error_set(err, HDT_EINVAL, "codec %s has no option '%.*s'", word->name,
                  (int)(len < 64 ? len : 64), option);
    hdt_error_hint(err, "its options are %s", takes.len > 0 ? hdt_buf_str(&takes) : "none");
    hdt_buf_release(&takes);
    return HDT_EINVAL;
}

static bool is_power_of_two(unsigned n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static enum hdt_status check_numbers(const struct hdt_codec_word *word,
                                     const struct hdt_codec_spec *s, struct hdt_error *err)
{
    if (s->block != 0 && (!is_power_of_two(s->block) || s->block < HDT_CODEC_BLOCK_MIN ||
                          s->block > HDT_CODEC_BLOCK_MAX)) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s: block=%u is no power of two from %d to %d",
                             word->name, s->block, HDT_CODEC_BLOCK_MIN, HDT_CODEC_BLOCK_MAX);
    }
    if (word->options & HDT_CODEC_OPT_BITS &&
        (!is_power_of_two(s->bits) || s->bits < 2 || s->bits > 16)) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s: bits=%u is none of 2, 4, 8 and 16",
                             word->name, s->bits);
    }
    if (word->options & HDT_CODEC_OPT_KEEP &&
        (!is_power_of_two(s->keep) || s->keep < 2 || s->keep > HDT_CODEC_KEEP_MAX)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "codec %s keeps one of %u values: no power of two from 2 to %d",
                             word->name, s->keep, HDT_CODEC_KEEP_MAX);
    }
    if (word->options & HDT_CODEC_OPT_RANK && (s->rank < 1 || s->rank > HDT_CODEC_RANK_MAX)) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s: rank %u is not from 1 to %d", word->name,
                             s->rank, HDT_CODEC_RANK_MAX);
    }
    return HDT_OK;
}

enum hdt_status hdt_codec_spec_check(const struct hdt_codec_spec *s, struct hdt_error *err)
{
    const struct hdt_codec_word *word = hdt_codec_word(s->worker);

    if (!word || s->worker == HDT_CODEC_LOSSLESS ||
        (s->gateway != HDT_CODEC_NONE && s->gateway != HDT_CODEC_LOSSLESS)) {
        return hdt_error_set(err, HDT_EINVAL, "no codec has the numbers %u and %u", s->worker,
                             s->gateway);
    }
    if (s->flags & ~word->options || (s->block && !(word->options & HDT_CODEC_OPT_BLOCK)) ||
        (s->block && s->block == word->defaults.block) ||
        (s->bits && !(word->options & HDT_CODEC_OPT_BITS)) ||
        (s->keep && !(word->options & HDT_CODEC_OPT_KEEP)) ||
        (s->rank && !(word->options & HDT_CODEC_OPT_RANK))) {
        return hdt_error_set(err, HDT_EINVAL, "codec %s does not take such options", word->name);
    }
    return check_numbers(word, s, err);
}

/* ---- reading ---- */

/* A decimal number of at most five digits that fills `len` bytes; false: it is none. */
static bool read_number(const char *text, size_t len, unsigned *n)
{
    unsigned v = 0;

    if (len < 1 || len > 5) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        v = v * 10 + (unsigned)(text[i] - '0');
    }
    *n = v;
    return true;
}

/* Which option a text is, with its number; 0: none that exists. */
static unsigned read_option(const struct hdt_codec_word *word, const char *text, size_t len,
                            unsigned *n)
{
    *n = 0;
    for (size_t i = 0; i < N_FLAG_NAMES; i++) {
        if (strlen(flag_names[i].name) == len && memcmp(flag_names[i].name, text, len) == 0) {
            return flag_names[i].flag;
        }
    }
    if (len > 6 && memcmp(text, "block=", 6) == 0 && read_number(text + 6, len - 6, n)) {
        return HDT_CODEC_OPT_BLOCK;
    }
    if (len > 5 && memcmp(text, "bits=", 5) == 0 && read_number(text + 5, len - 5, n)) {
        return HDT_CODEC_OPT_BITS;
    }
    if (read_number(text, len, n)) {
        return word->options & (HDT_CODEC_OPT_KEEP | HDT_CODEC_OPT_RANK);
    }
    return 0;
}

/* Numbers that do not fit their member become 0, which check_numbers refuses. */
static void set_option(struct hdt_codec_spec *s, unsigned option, unsigned n)
{
    switch (option) {
    case HDT_CODEC_OPT_BLOCK:
        s->block = (uint16_t)(n <= HDT_CODEC_BLOCK_MAX && n > 0 ? n : UINT16_MAX);
        break;
    case HDT_CODEC_OPT_BITS:
        s->bits = (uint8_t)(n <= 16 ? n : 0);
        break;
    case HDT_CODEC_OPT_KEEP:
        s->keep = (uint16_t)(n <= HDT_CODEC_KEEP_MAX ? n : 0);
        break;
    case HDT_CODEC_OPT_RANK:
        s->rank = (uint8_t)(n <= HDT_CODEC_RANK_MAX ? n : 0);
        break;
    default:
        s->flags |= (uint16_t)option;
    }
}

/* "OPTION,OPTION": at least one, none twice. */
static enum hdt_status read_options(const struct hdt_codec_word *word, const char *text, size_t len,
                                    struct hdt_codec_spec *s, struct hdt_error *err)
{
    const char *end = text + len;
    unsigned seen = 0, option, n;

    for (;;) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        size_t part = (size_t)((comma ? comma : end) - text);

        option = read_option(word, text, part, &n);
        if (option == 0 || !(word->options & option)) {
            return no_option(word, text, part, err);
        }
        if (seen & option) {
            return hdt_error_set(err, HDT_EINVAL, "codec %s has option '%.*s' twice", word->name,
                                 (int)part, text);
        }
        seen |= option;
        set_option(s, option, n);
        if (!comma) {
            break;
        }
        text = comma + 1;
    }
    HDT_TRY(check_numbers(word, s, err));
    s->block = s->block == word->defaults.block ? 0 : s->block;
    return HDT_OK;
}

/* Cut "+lossless" off the end; true: it was there. */
static bool cut_lossless(const char *text, size_t *len)
{
    static const char tail[] = "+lossless";
    const size_t n = sizeof(tail) - 1;

    if (*len <= n || memcmp(text + *len - n, tail, n) != 0) {
        return false;
    }
    *len -= n;
    return true;
}

enum hdt_status hdt_codec_spec_parse(const char *text, struct hdt_codec_spec *spec,
                                     struct hdt_error *err)
{
    const size_t prefix = sizeof(DELTA_PREFIX) - 1;
    const char *at = text, *colon;
    size_t len = strlen(text);
    bool lossless = cut_lossless(text, &len);
    bool delta = len > prefix && memcmp(text, DELTA_PREFIX, prefix) == 0;
    const struct hdt_codec_word *word;
    struct hdt_codec_spec s;

    at += delta ? prefix : 0;
    len -= delta ? prefix : 0;
    colon = memchr(at, ':', len);
    word = word_named(at, colon ? (size_t)(colon - at) : len);
    if (!word || (lossless && (word->id == HDT_CODEC_LOSSLESS || word->id == HDT_CODEC_NONE)) ||
        (delta && !(word->options & HDT_CODEC_DELTA))) {
        return no_codec(text, err);
    }
    s = hdt_codec_spec_default(word->id);
    s.gateway = lossless ? HDT_CODEC_LOSSLESS : s.gateway;
    s.flags |= delta ? HDT_CODEC_DELTA : 0;
    if (colon) {
        HDT_TRY(read_options(word, colon + 1, len - (size_t)(colon + 1 - at), &s, err));
    }
    *spec = s;
    return HDT_OK;
}

/* ---- writing ---- */

const char *hdt_codec_spec_format(const struct hdt_codec_spec *s, char text[HDT_CODEC_SPEC_TEXT])
{
    const struct hdt_codec_word *word = hdt_codec_word(s->worker);
    const char *sep = ":";
    size_t at;

    if (hdt_codec_spec_check(s, NULL) != HDT_OK) {
        snprintf(text, HDT_CODEC_SPEC_TEXT, "?");
        return text;
    }
    if (s->worker == HDT_CODEC_NONE && s->gateway == HDT_CODEC_LOSSLESS) {
        snprintf(text, HDT_CODEC_SPEC_TEXT, "lossless");
        return text;
    }
    /* All options together are shorter than the room: 7 + 8 + 6 + 11 + 8 + 5 + 7 + 7 + 11 + 9. */
    at = (size_t)snprintf(text, HDT_CODEC_SPEC_TEXT, "%s%s",
                          s->flags & HDT_CODEC_DELTA ? DELTA_PREFIX : "", word->name);
    if (s->keep || s->rank) {
        at += (size_t)snprintf(text + at, HDT_CODEC_SPEC_TEXT - at, "%s%u", sep,
                               s->keep ? s->keep : s->rank);
        sep = ",";
    }
    if (s->block) {
        at += (size_t)snprintf(text + at, HDT_CODEC_SPEC_TEXT - at, "%sblock=%u", sep, s->block);
        sep = ",";
    }
    if (s->bits && s->bits != word->defaults.bits) {
        at += (size_t)snprintf(text + at, HDT_CODEC_SPEC_TEXT - at, "%sbits=%u", sep, s->bits);
        sep = ",";
    }
    for (size_t i = 0; i < N_FLAG_NAMES; i++) {
        if (s->flags & flag_names[i].flag) {
            at += (size_t)snprintf(text + at, HDT_CODEC_SPEC_TEXT - at, "%s%s", sep,
                                   flag_names[i].name);
            sep = ",";
        }
    }
    snprintf(text + at, HDT_CODEC_SPEC_TEXT - at, "%s",
             s->gateway == HDT_CODEC_LOSSLESS ? "+lossless" : "");
    return text;
}
