/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_LINK_H
#define HDT_NET_LINK_H

/*
 * How a worker and its gateway share tensor memory. A link kind is a const table; records travel on
 * a stream, the table says where the bytes of a DATA frame are:
 *
 *   shm  Unix socket; the worker's pool is a sealed memfd that both map. A DATA record is 64 bytes,
 *        its `offset` is the frame's place in the pool: no bytes are copied.
 *   tcp  TLS over TCP; the bytes follow the record. The pool is private memory of each side.
 *   (verbs: the pool is a registered memory region; DATA is a write with immediate.)
 *
 * All pool memory is allocated and registered through this table, once, at the start of a job.
 */
#include "src/base/error.h"
#include "src/core/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_LINK_SHARED 1u           /* both ends see the same memory */
#define HDT_POOL_MAX    (1ull << 40) /* bytes of one pool, own or foreign */

struct hdt_pool {
    uint8_t *base; /* page-aligned */
    size_t len;
    int fd;          /* memfd of a shared pool, else -1 */
    uint32_t number; /* chosen by the owner; in POOL records */
    const struct hdt_link_ops *ops;
};

struct hdt_link_ops {
    const char *name; /* "shm", "tcp" */
    unsigned caps;
    /* Worker: make the pool (zeroed, resident; len is rounded up to whole pages, and POOL records
     * carry pool->len). shm: memfd sealed against shrinking and growing. HDT_ENOMEM, HDT_EINVAL. */
    enum hdt_status (*pool_alloc)(size_t len, uint32_t number, struct hdt_pool *pool,
                                  struct hdt_error *err);
    /* Gateway: take the descriptor that came with a POOL record (owned by the callee from here,
     * also on failure; -1: none came). Checks the seals and that the memory is as long as `len`
     * says: foreign input, HDT_EPROTO. NULL when the kind shares no memory. */
    enum hdt_status (*pool_attach)(int fd, uint64_t len, uint32_t number, struct hdt_pool *pool,
                                   struct hdt_error *err);
    void (*pool_free)(struct hdt_pool *pool); /* unmaps, closes; both sides; zeroes *pool */
};

extern const struct hdt_link_ops hdt_link_shm;
extern const struct hdt_link_ops hdt_link_tcp;

/* By address form: "unix:" gives shm, "tls:" tcp. */
const struct hdt_link_ops *hdt_link_ops_for(const char *address);

/* true when [offset, offset + len) lies in the pool; safe for foreign numbers. */
bool hdt_pool_contains(const struct hdt_pool *pool, uint64_t offset, uint64_t len);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_LINK_H */
