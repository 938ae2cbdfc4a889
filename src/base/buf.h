/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_BUF_H
#define HDT_BASE_BUF_H

/*
 * A growable run of bytes, for text and control messages (not for the data path, which uses
 * pools). Invariant: data[len] is always '\0' once data is not NULL, so that a buffer of text can
 * be printed. One thread at a time. Out of memory ends the process: these buffers are small.
 */
#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_buf {
    char *data; /* NULL until the first append */
    size_t len; /* bytes used, without the terminating '\0' */
    size_t cap; /* bytes allocated */
};

/* Make an empty buffer; allocates nothing. `struct hdt_buf b = {0}` does the same. */
void hdt_buf_init(struct hdt_buf *buf);

/* Free the bytes and make the buffer empty; may be used again. */
void hdt_buf_release(struct hdt_buf *buf);

/* Forget the contents, keep the memory. */
void hdt_buf_clear(struct hdt_buf *buf);

/* Make room for `extra` more bytes. */
void hdt_buf_reserve(struct hdt_buf *buf, size_t extra);

void hdt_buf_append(struct hdt_buf *buf, const void *bytes, size_t len);
void hdt_buf_append_str(struct hdt_buf *buf, const char *text);
void hdt_buf_appendf(struct hdt_buf *buf, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Remove the first `len` bytes (len <= buf->len). */
void hdt_buf_consume(struct hdt_buf *buf, size_t len);

/* The text; "" when nothing was appended. Valid until the next change. */
const char *hdt_buf_str(const struct hdt_buf *buf);

/* Hand the bytes to the caller, who frees them with free(); the buffer becomes empty. Never NULL.
 */
char *hdt_buf_detach(struct hdt_buf *buf);

/* malloc, calloc and strdup that end the process when there is no memory: for start-up and control
 * paths, never for sizes that come from outside unless they were checked against a limit. */
void *hdt_malloc(size_t size);
void *hdt_calloc(size_t n, size_t size);
void *hdt_realloc(void *old, size_t size);
char *hdt_strdup(const char *text);
char *hdt_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Bytes of the UTF-8 character that begins at `text`, which is terminated; 0: it is none. */
int hdt_utf8_len(const char *text);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_BUF_H */
