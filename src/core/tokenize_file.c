/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text file to shard file, piece by piece. A tokenizer that looks at words is given pieces that end
 * after a newline; a line longer than a piece is cut anywhere, since memory must stay bounded.
 */
#include "config.h"

#include "src/core/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)1 << 18)

struct stream {
    const struct hdt_tokenizer *tok;
    const struct hdt_tokenize_job *job;
    FILE *text;
    uint64_t left, total; /* bytes of text still to be read, and all */
    char *piece;          /* PIECE bytes */
    size_t len;           /* bytes in it */
    int32_t *ids;
    struct hdt_shard_writer *writer;
};

static enum hdt_status read_failed(const struct stream *s, struct hdt_error *err)
{
    return hdt_error_set_errno(err, HDT_EIO, errno, "cannot read text file '%s'",
                               s->job->text_path);
}

/* Open the text and go to where the job begins. */
static enum hdt_status stream_open(struct stream *s, struct hdt_error *err)
{
    uint64_t end;
    off_t size;

    s->text = fopen(s->job->text_path, "rbe");
    if (!s->text) {
        return hdt_error_set_errno(err, errno == ENOENT ? HDT_ENOENT : HDT_EIO, errno,
                                   "cannot open text file '%s'", s->job->text_path);
    }
    if (fseeko(s->text, 0, SEEK_END) != 0 || (size = ftello(s->text)) < 0) {
        return read_failed(s, err);
    }
    if (size == 0) {
        return hdt_error_set(err, HDT_EINVAL, "cannot tokenize '%s': it is empty",
                             s->job->text_path);
    }
    end = s->job->end == 0 ? (uint64_t)size : s->job->end;
    if (end > (uint64_t)size || s->job->begin >= end) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot tokenize bytes %" PRIu64 " to %" PRIu64
                             " of '%s': it has %" PRIu64,
                             s->job->begin, end, s->job->text_path, (uint64_t)size);
    }
    if (fseeko(s->text, (off_t)s->job->begin, SEEK_SET) != 0) {
        return read_failed(s, err);
    }
    s->left = s->total = end - s->job->begin;
    return HDT_OK;
}

static enum hdt_status stream_fill(struct stream *s, struct hdt_error *err)
{
    size_t want = PIECE - s->len, got;

    want = s->left < want ? (size_t)s->left : want;
    got = fread(s->piece + s->len, 1, want, s->text);
    if (got < want) {
        return ferror(s->text) ? read_failed(s, err)
                               : hdt_error_set(err, HDT_EIO,
                                               "cannot read text file '%s': it became shorter "
                                               "meanwhile",
                                               s->job->text_path);
    }
    s->len += got;
    s->left -= got;
    return HDT_OK;
}

/* How much of the piece to encode now. */
static size_t stream_cut(const struct stream *s)
{
    const char *newline;

    if (!s->tok->ops->cut_at_newline || s->left == 0) {
        return s->len;
    }
    newline = memrchr(s->piece, '\n', s->len);
    return newline ? (size_t)(newline - s->piece) + 1 : s->len;
}

static enum hdt_status stream_run(struct stream *s, struct hdt_error *err)
{
    while (s->left > 0 || s->len > 0) {
        size_t cut, n;

        HDT_TRY(stream_fill(s, err));
        cut = stream_cut(s);
        if (s->tok->ops->encode(s->tok->state, s->piece, cut, s->ids, &n) != HDT_OK) {
            return hdt_error_set(err, HDT_EINVAL, "cannot tokenize '%s': tokenizer %s refuses it",
                                 s->job->text_path, s->tok->ops->name);
        }
        HDT_TRY(hdt_shard_writer_append(s->writer, s->ids, n, err));
        memmove(s->piece, s->piece + cut, s->len - cut);
        s->len -= cut;
        if (s->job->progress) {
            s->job->progress(s->job->progress_arg, s->total - s->left - s->len, s->total);
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_tokenize_file(const struct hdt_tokenizer *tok,
                                  const struct hdt_tokenize_job *job, uint64_t *n_tokens,
                                  struct hdt_error *err)
{
    struct hdt_shard_options options = job->shard;
    struct stream s = {.tok = tok, .job = job};
    enum hdt_status status = stream_open(&s, err);
    uint64_t n;

    if (status != HDT_OK) {
        goto out;
    }
    options.n_vocab = options.n_vocab == 0 ? hdt_tokenizer_n_vocab(tok) : options.n_vocab;
    status = hdt_shard_writer_open(job->shard_path, &options, tok->ops->name, &s.writer, err);
    if (status != HDT_OK) {
        goto out;
    }
    s.piece = hdt_malloc(PIECE);
    s.ids = hdt_calloc(tok->ops->bound(tok->state, PIECE) + 1, sizeof(*s.ids));
    status = stream_run(&s, err);
    if (status != HDT_OK) {
        hdt_shard_writer_abort(s.writer);
        goto out;
    }
    n = hdt_shard_writer_n_tokens(s.writer);
    status = hdt_shard_writer_finish(s.writer, err);
    if (status == HDT_OK) {
        *n_tokens = n;
    }
out:
    free(s.piece);
    free(s.ids);
    if (s.text) {
        fclose(s.text);
    }
    return status;
}
