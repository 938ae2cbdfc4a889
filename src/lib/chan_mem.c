/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a channel shares with its gateway: one pool of fixed size, since a gateway takes
 * only memory whose size is sealed, and a flow is opened within one pool. First fit over a list of
 * blocks in order of their place: there are as many as flows and tensors of hdt_alloc, tens of
 * them.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "src/base/buf.h"

#include <stdlib.h>

#define ALIGN ((size_t)HDT_FRAME_GRANULE)

struct chan_block {
    size_t offset, len;
    bool is_user; /* given by hdt_alloc */
    struct chan_block *next;
};

enum hdt_status hdt_chan_mem_init(struct hdt_channel *ch, size_t bytes, struct hdt_error *err)
{
    return hdt_gwlink_ops(ch->link)->pool_alloc(bytes, 1, &ch->pool, err);
}

void hdt_chan_mem_release(struct hdt_channel *ch)
{
    struct chan_block *block, *next;

    LL_FOREACH_SAFE(ch->blocks, block, next)
    {
        free(block);
    }
    ch->blocks = NULL;
    if (ch->pool.base) {
        ch->pool.ops->pool_free(&ch->pool);
    }
}

enum hdt_status hdt_chan_mem_get(struct hdt_channel *ch, size_t bytes, size_t *offset,
                                 struct hdt_error *err)
{
    struct chan_block **at = &ch->blocks, *block;
    size_t begin = 0, gap, largest = 0, len = ALIGN;

    if (bytes > 0 && bytes <= ch->pool.len) {
        len = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    for (;; at = &(*at)->next) {
        gap = (*at ? (*at)->offset : ch->pool.len) - begin;
        largest = gap > largest ? gap : largest;
        if (!*at || (bytes <= ch->pool.len && gap >= len)) {
            break;
        }
        begin = (*at)->offset + (*at)->len;
    }
    if (bytes > ch->pool.len || gap < len) {
        hdt_error_set(err, HDT_ENOMEM,
                      "cannot get %zu bytes of the memory of channel '%s': its largest free piece "
                      "has %zu",
                      bytes, ch->name, largest);
        hdt_error_hint(err, "raise memory_bytes of its conf, or use smaller windows");
        return HDT_ENOMEM;
    }
    block = hdt_calloc(1, sizeof(*block));
    block->offset = begin;
    block->len = len;
    block->next = *at;
    *at = block;
    *offset = begin;
    return HDT_OK;
}

static void mem_put(struct hdt_channel *ch, size_t offset, bool is_user)
{
    struct chan_block **at = &ch->blocks, *block;

    while (*at && (*at)->offset != offset) {
        at = &(*at)->next;
    }
    HDT_ASSERT(*at && (*at)->is_user == is_user);
    block = *at;
    *at = block->next;
    free(block);
}

void hdt_chan_mem_put(struct hdt_channel *ch, size_t offset)
{
    mem_put(ch, offset, false);
}

bool hdt_chan_mem_has(const struct hdt_channel *ch, const void *mem, size_t bytes)
{
    const uintptr_t at = (uintptr_t)mem, base = (uintptr_t)ch->pool.base;
    const struct chan_block *block;

    if (at < base || at >= base + ch->pool.len || bytes > ch->pool.len) {
        return false;
    }
    LL_FOREACH(ch->blocks, block)
    {
        if (block->is_user && at - base >= block->offset &&
            at - base + bytes <= block->offset + block->len) {
            return true;
        }
    }
    return false;
}

#pragma GCC visibility push(default)

enum hdt_err hdt_alloc(struct hdt_channel *ch, size_t bytes, void **memory,
                       struct hdt_error_info *error)
{
    struct hdt_error err = {0};
    struct chan_block *block;
    enum hdt_status status;
    size_t offset;

    *memory = NULL;
    pthread_mutex_lock(&ch->lock);
    status = hdt_chan_mem_get(ch, bytes, &offset, &err);
    if (status == HDT_OK) {
        LL_SEARCH_SCALAR(ch->blocks, block, offset, offset);
        block->is_user = true;
        *memory = ch->pool.base + offset;
    }
    pthread_mutex_unlock(&ch->lock);
    return status == HDT_OK ? HDT_ERR_NONE : hdt_lib_failure(status, &err, error);
}

void hdt_dealloc(struct hdt_channel *ch, void *memory)
{
    if (memory) {
        pthread_mutex_lock(&ch->lock);
        mem_put(ch, (size_t)((uint8_t *)memory - ch->pool.base), true);
        pthread_mutex_unlock(&ch->lock);
    }
}

#pragma GCC visibility pop
