/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"
#include "src/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *memory_or_exit(void *p, size_t size)
{
    if (!p && size > 0) {
        fprintf(stderr, "hdt: out of memory: cannot allocate %zu bytes\n", size);
        exit(70);
    }
    return p;
}

void *hdt_malloc(size_t size)
{
    return memory_or_exit(malloc(size), size);
}

void *hdt_calloc(size_t n, size_t size)
{
    return memory_or_exit(calloc(n, size), n * size);
}

void *hdt_realloc(void *old, size_t size)
{
    return memory_or_exit(realloc(old, size), size);
}

char *hdt_strdup(const char *text)
{
    return memory_or_exit(strdup(text), strlen(text) + 1);
}

char *hdt_asprintf(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    return memory_or_exit(n < 0 ? NULL : text, 1);
}

void hdt_buf_init(struct hdt_buf *buf)
{
    memset(buf, 0, sizeof(*buf));
}

void hdt_buf_release(struct hdt_buf *buf)
{
    free(buf->data);
    hdt_buf_init(buf);
}

void hdt_buf_clear(struct hdt_buf *buf)
{
    buf->len = 0;
    if (buf->data) {
        buf->data[0] = '\0';
    }
}

void hdt_buf_reserve(struct hdt_buf *buf, size_t extra)
{
    size_t need = buf->len + extra + 1;
    size_t cap = buf->cap ? buf->cap : 64;

    HDT_ASSERT(need > extra);
    if (need <= buf->cap) {
        return;
    }
    while (cap < need) {
        cap += cap / 2;
    }
    buf->data = hdt_realloc(buf->data, cap);
    buf->cap = cap;
    buf->data[buf->len] = '\0';
}

void hdt_buf_append(struct hdt_buf *buf, const void *bytes, size_t len)
{
    hdt_buf_reserve(buf, len);
    if (len > 0) {
        memcpy(buf->data + buf->len, bytes, len);
    }
    buf->len += len;
    buf->data[buf->len] = '\0';
}

void hdt_buf_append_str(struct hdt_buf *buf, const char *text)
{
    hdt_buf_append(buf, text, strlen(text));
}

void hdt_buf_appendf(struct hdt_buf *buf, const char *fmt, ...)
{
    va_list ap;
    int n;

    HDT_ASSERT(fmt); /* also tells the compiler, which under UBSan warns that it may be NULL */
    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    HDT_ASSERT(n >= 0);
    hdt_buf_reserve(buf, (size_t)n);
    va_start(ap, fmt);
    vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    buf->len += (size_t)n;
}

void hdt_buf_consume(struct hdt_buf *buf, size_t len)
{
    HDT_ASSERT(len <= buf->len);
    if (len == 0) {
        return;
    }
    memmove(buf->data, buf->data + len, buf->len - len);
    buf->len -= len;
    buf->data[buf->len] = '\0';
}

const char *hdt_buf_str(const struct hdt_buf *buf)
{
    return buf->data ? buf->data : "";
}

char *hdt_buf_detach(struct hdt_buf *buf)
{
    char *data = buf->data ? buf->data : hdt_strdup("");

    hdt_buf_init(buf);
    return data;
}

int hdt_utf8_len(const char *bytes)
{
    const unsigned char *text = (const unsigned char *)bytes;
    int len = text[0] < 0x80                      ? 1
              : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
              : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
              : text[0] >= 0xf0 && text[0] < 0xf5 ? 4
                                                  : 0;

    for (int i = 1; i < len; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f)) {
        return 0;
    }
    return len;
}
