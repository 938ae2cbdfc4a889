/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- byte: each byte is its own token ---- */

static uint32_t byte_n_vocab(const void *state)
{
    (void)state;
    return 256;
}

static size_t byte_bound(const void *state, size_t len)
{
    (void)state;
    return len;
}

static enum hdt_status byte_encode(const void *state, const char *text, size_t len, int32_t *ids,
                                   size_t *n)
{
    (void)state;
    for (size_t i = 0; i < len; i++) {
        ids[i] = (unsigned char)text[i];
    }
    *n = len;
    return HDT_OK;
}

static void byte_decode(const void *state, const int32_t *ids, size_t n, struct hdt_buf *out)
{
    (void)state;
    for (size_t i = 0; i < n; i++) {
        char c = (char)(unsigned char)ids[i];

        hdt_buf_append(out, &c, 1);
    }
}

static const struct hdt_tokenizer_ops tokenizer_byte = {
    .name = "byte",
    .help = "Each byte is a token; 256 of them; needs no model file.",
    .n_vocab = byte_n_vocab,
    .bound = byte_bound,
    .encode = byte_encode,
    .decode = byte_decode,
};

/* ---- all kinds ---- */

/* The order is that of hdt_tokenizer_names. */
static const struct hdt_tokenizer_ops *const kinds[] = {&tokenizer_byte};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

const char *const hdt_tokenizer_names[] = {"byte", NULL};
HDT_STATIC_ASSERT(sizeof(hdt_tokenizer_names) / sizeof(hdt_tokenizer_names[0]) == N_KINDS + 1,
                  "each kind has a name");

static enum hdt_status unknown_kind(const char *name, struct hdt_error *err)
{
    struct hdt_buf list = {0};

    for (size_t i = 0; i < N_KINDS; i++) {
        hdt_buf_appendf(&list, " %s", kinds[i]->name);
    }
    hdt_error_set(err, HDT_EINVAL, "'%.64s' is no tokenizer", name);
    hdt_error_hint(err, "known are%s", hdt_buf_str(&list));
    hdt_buf_release(&list);
    return HDT_EINVAL;
}

enum hdt_status hdt_tokenizer_init(struct hdt_tokenizer *tok, const char *name, const char *model,
                                   struct hdt_error *err)
{
    const struct hdt_tokenizer_ops *ops = NULL;
    void *state = NULL;

    for (size_t i = 0; i < N_KINDS; i++) {
        ops = strcmp(kinds[i]->name, name) == 0 ? kinds[i] : ops;
    }
    if (!ops) {
        return unknown_kind(name, err);
    }
    if (ops->needs_model && !model) {
        return hdt_error_set(err, HDT_EINVAL, "tokenizer %s needs a model file", name);
    }
    if (ops->open) {
        HDT_TRY(ops->open(model, &state, err));
    }
    tok->ops = ops;
    tok->state = state;
    return HDT_OK;
}

void hdt_tokenizer_release(struct hdt_tokenizer *tok)
{
    if (tok->ops && tok->ops->close) {
        tok->ops->close(tok->state);
    }
    memset(tok, 0, sizeof(*tok));
}

uint32_t hdt_tokenizer_n_vocab(const struct hdt_tokenizer *tok)
{
    return tok->ops->n_vocab(tok->state);
}

enum hdt_status hdt_tokenizer_encode(const struct hdt_tokenizer *tok, const char *text, size_t len,
                                     int32_t **ids, size_t *n)
{
    size_t bound = tok->ops->bound(tok->state, len);
    int32_t *out = hdt_calloc(bound + 1, sizeof(*out));
    enum hdt_status status = tok->ops->encode(tok->state, text, len, out, n);

    if (status != HDT_OK) {
        free(out);
        return status;
    }
    *ids = out;
    return HDT_OK;
}

enum hdt_status hdt_tokenizer_decode(const struct hdt_tokenizer *tok, const int32_t *ids, size_t n,
                                     struct hdt_buf *out, struct hdt_error *err)
{
    uint32_t n_vocab = hdt_tokenizer_n_vocab(tok);

    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "cannot decode token %" PRId32
                                 ": tokenizer %s has a vocabulary of %" PRIu32,
                                 ids[i], tok->ops->name, n_vocab);
        }
    }
    tok->ops->decode(tok->state, ids, n, out);
    return HDT_OK;
}

/* ---- printing ---- */

/* Bytes that a sequence beginning with `lead` has; 0 when none begins so. */
static size_t utf8_len(unsigned char lead)
{
    return lead < 0x80   ? 1
           : lead < 0xc2 ? 0
           : lead < 0xe0 ? 2
           : lead < 0xf0 ? 3
           : lead < 0xf5 ? 4
                         : 0;
}

/* Range of the second byte: shuts out overlong forms, surrogates and what is above U+10FFFF. */
static int utf8_second_fits(unsigned char lead, unsigned char second)
{
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;

    return second >= low && second <= high;
}

/* Length of the valid sequence at s, or minus the length of the broken part there. */
static ptrdiff_t utf8_scan(const unsigned char *s, size_t len)
{
    size_t want = utf8_len(s[0]), have = 1;

    while (have < want && have < len &&
           (have == 1 ? utf8_second_fits(s[0], s[1]) : (s[have] & 0xc0) == 0x80)) {
        have++;
    }
    return want > 0 && have == want ? (ptrdiff_t)have : -(ptrdiff_t)have;
}

static int is_control(const unsigned char *s, ptrdiff_t n)
{
    /* C0 but newline and tab, DEL, and C1 (U+0080 to U+009F), which some terminals obey */
    return (n == 1 && ((s[0] < 0x20 && s[0] != '\n' && s[0] != '\t') || s[0] == 0x7f)) ||
           (n == 2 && s[0] == 0xc2 && s[1] < 0xa0);
}

void hdt_text_append(struct hdt_buf *out, const char *bytes, size_t len)
{
    const unsigned char *s = (const unsigned char *)bytes;

    while (len > 0) {
        ptrdiff_t n = utf8_scan(s, len);
        size_t used = (size_t)(n < 0 ? -n : n);

        if (n < 0) {
            hdt_buf_append_str(out, "\xef\xbf\xbd");
        } else if (is_control(s, n)) {
            hdt_buf_appendf(out, "\\x%02x", s[n - 1]);
        } else {
            hdt_buf_append(out, s, used);
        }
        s += used;
        len -= used;
    }
}
