/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools that worker and gateway share: a memfd that both map.
 *
 * To the gateway the memory is foreign. A file that its owner can truncate would end the gateway
 * with SIGBUS at the next access, so only memory whose size is sealed for good is mapped, and only
 * when it is as long as the record says. What lies in it may change at any time: whoever takes
 * numbers from it copies them before checking.
 */
#include "config.h"

#include "src/net/link.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POOL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static enum hdt_status pool_map(int fd, size_t len, uint32_t number, struct hdt_pool *pool,
                                struct hdt_error *err)
{
    void *base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

    if (base == MAP_FAILED) {
        return hdt_error_set_errno(err, HDT_ENOMEM, errno, "cannot map shared pool %u of %zu bytes",
                                   number, len);
    }
    *pool = (struct hdt_pool){
        .base = base, .len = len, .fd = fd, .number = number, .ops = &hdt_link_shm};
    return HDT_OK;
}

/* All pages are there from the start: without that the first access past the memory that the
 * machine or the container has would be a SIGBUS, in the middle of a step. */
static enum hdt_status pool_file(size_t len, int *fd, struct hdt_error *err)
{
    int error;

    *fd = memfd_create("hdt-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot make a shared pool");
    }
    error = posix_fallocate(*fd, 0, (off_t)len);
    if (error != 0) {
        close(*fd);
        hdt_error_set_errno(err, HDT_ENOMEM, error, "cannot make a shared pool of %zu bytes", len);
        hdt_error_hint(err, "give the machine or container more shared memory, or use fewer "
                            "micro-batches in flight");
        return HDT_ENOMEM;
    }
    if (fcntl(*fd, F_ADD_SEALS, POOL_SEALS) != 0) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot seal a shared pool");
        close(*fd);
        return HDT_EIO;
    }
    return HDT_OK;
}

static enum hdt_status shm_pool_alloc(size_t len, uint32_t number, struct hdt_pool *pool,
                                      struct hdt_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    enum hdt_status status;
    int fd;

    if (len == 0 || len > HDT_POOL_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "cannot make a shared pool of %zu bytes", len);
    }
    len = (len + page - 1) / page * page;
    HDT_TRY(pool_file(len, &fd, err));
    status = pool_map(fd, len, number, pool, err);
    if (status != HDT_OK) {
        close(fd);
    }
    return status;
}

static enum hdt_status pool_check(int fd, uint64_t len, uint32_t number, struct hdt_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & POOL_SEALS) != POOL_SEALS) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot take shared pool %u: its descriptor is no memory of sealed "
                             "size",
                             number);
    }
    if (len == 0 || len > HDT_POOL_MAX) {
        return hdt_error_set(err, HDT_EPROTO, "cannot take shared pool %u: %llu bytes are %s",
                             number, (unsigned long long)len, len == 0 ? "none" : "too many");
    }
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_size == len && (uint64_t)st.st_blocks * 512 < len) {
        /* Mapping it would take that memory from us instead of from who made it. */
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot take shared pool %u: its memory is not allocated", number);
    }
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != len) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot take shared pool %u: its record says %llu bytes, the memory "
                             "has another size",
                             number, (unsigned long long)len);
    }
    return HDT_OK;
}

static enum hdt_status shm_pool_attach(int fd, uint64_t len, uint32_t number, struct hdt_pool *pool,
                                       struct hdt_error *err)
{
    enum hdt_status status;

    if (fd < 0) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot take shared pool %u: no descriptor came with its record",
                             number);
    }
    status = pool_check(fd, len, number, err);
    if (status == HDT_OK) {
        status = pool_map(fd, (size_t)len, number, pool, err);
    }
    if (status != HDT_OK) {
        close(fd);
    }
    return status;
}

static void shm_pool_free(struct hdt_pool *pool)
{
    if (pool->base) {
        munmap(pool->base, pool->len);
        close(pool->fd);
    }
    memset(pool, 0, sizeof(*pool));
    pool->fd = -1;
}

const struct hdt_link_ops hdt_link_shm = {.name = "shm",
                                          .caps = HDT_LINK_SHARED,
                                          .pool_alloc = shm_pool_alloc,
                                          .pool_attach = shm_pool_attach,
                                          .pool_free = shm_pool_free};
