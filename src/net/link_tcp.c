/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of a link that copies: private memory of each side. */
#include "config.h"

#include "src/net/link.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static enum hdt_status tcp_pool_alloc(size_t len, uint32_t number, struct hdt_pool *pool,
                                      struct hdt_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *base;

    if (len == 0 || len > HDT_POOL_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "cannot make a pool of %zu bytes", len);
    }
    len = (len + page - 1) / page * page;
    base =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) {
        return hdt_error_set_errno(err, HDT_ENOMEM, errno, "cannot make a pool of %zu bytes", len);
    }
    *pool = (struct hdt_pool){
        .base = base, .len = len, .fd = -1, .number = number, .ops = &hdt_link_tcp};
    return HDT_OK;
}

static void tcp_pool_free(struct hdt_pool *pool)
{
    if (pool->base) {
        munmap(pool->base, pool->len);
    }
    memset(pool, 0, sizeof(*pool));
    pool->fd = -1;
}

const struct hdt_link_ops hdt_link_tcp = {
    .name = "tcp", .pool_alloc = tcp_pool_alloc, .pool_free = tcp_pool_free};
