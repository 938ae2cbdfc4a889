/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_TOKENIZER_H
#define HDT_CORE_TOKENIZER_H

/*
 * Tokenizers: text to token numbers and back. A kind of tokenizer is one const table; "byte" (each
 * byte is its own token, vocabulary 256) is built in and needs no model file. An open tokenizer is
 * read-only and may be used by several threads.
 */
#include "src/base/buf.h"
#include "src/base/error.h"
#include "src/core/shard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_tokenizer;

/* One kind of tokenizer. */
struct hdt_tokenizer_ops {
    const char *name;
    const char *help;
    bool needs_model;    /* `model` names a file that open reads */
    bool cut_at_newline; /* a stream of text may be cut only after '\n'; else anywhere */

    /* Optional pair: make and free the state that the others are given. */
    enum hdt_status (*open)(const char *model, void **state, struct hdt_error *err);
    void (*close)(void *state);

    uint32_t (*n_vocab)(const void *state);

    /* At most this many tokens for `len` bytes of text. */
    size_t (*bound)(const void *state, size_t len);

    /* Encode a piece of text into ids (room for bound(len)) and set *n. */
    enum hdt_status (*encode)(const void *state, const char *text, size_t len, int32_t *ids,
                              size_t *n);

    /* Append the bytes of the tokens (checked to be in the vocabulary) to out. */
    void (*decode)(const void *state, const int32_t *ids, size_t n, struct hdt_buf *out);
};

struct hdt_tokenizer {
    const struct hdt_tokenizer_ops *ops;
    void *state;
};

/* Kinds by name, NULL-terminated, for a table of settings. */
extern const char *const hdt_tokenizer_names[];

/* Fill *tok; `model` may be NULL for kinds without one. Release with hdt_tokenizer_release.
 * HDT_EINVAL for an unknown name (the list is in the message), or what the kind's open says. */
enum hdt_status hdt_tokenizer_init(struct hdt_tokenizer *tok, const char *name, const char *model,
                                   struct hdt_error *err);
void hdt_tokenizer_release(struct hdt_tokenizer *tok);

uint32_t hdt_tokenizer_n_vocab(const struct hdt_tokenizer *tok);

/* Encode a whole text; *ids is malloc'ed, the caller's, freed with free(). */
enum hdt_status hdt_tokenizer_encode(const struct hdt_tokenizer *tok, const char *text, size_t len,
                                     int32_t **ids, size_t *n);

/* Append the bytes of the tokens to out; HDT_EINVAL for a token outside the vocabulary (out is
 * unchanged then). The bytes may be cut or broken UTF-8: print them with hdt_text_append. */
enum hdt_status hdt_tokenizer_decode(const struct hdt_tokenizer *tok, const int32_t *ids, size_t n,
                                     struct hdt_buf *out, struct hdt_error *err);

/* Append bytes so that they are safe to print on a terminal: valid UTF-8 stays, each maximal broken
 * part becomes U+FFFD, control characters other than '\n' and '\t' become "\x1b"-like escapes. */
void hdt_text_append(struct hdt_buf *out, const char *bytes, size_t len);

/* Which part of a text file goes to a shard, and how far it has come. */
struct hdt_tokenize_job {
    const char *text_path;
    uint64_t begin, end; /* bytes of the text file; end 0: to its end */
    const char *shard_path;
    struct hdt_shard_options shard;                             /* n_vocab 0: the tokenizer's */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* optional; bytes of text */
    void *progress_arg;
};

/* Encode a text file into a shard file piece by piece, in a fixed amount of memory. On failure no
 * shard file is left. HDT_ENOENT, HDT_EIO, HDT_EINVAL. */
enum hdt_status hdt_tokenize_file(const struct hdt_tokenizer *tok,
                                  const struct hdt_tokenize_job *job, uint64_t *n_tokens,
                                  struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_TOKENIZER_H */
