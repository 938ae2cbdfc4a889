/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/link.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

Test(link, kinds_follow_the_address)
{
    cr_expect_eq(hdt_link_ops_for("unix:/run/hdt.sock"), &hdt_link_shm);
    cr_expect_eq(hdt_link_ops_for("tls:gw.example:7070"), &hdt_link_tcp);
    cr_expect_null(hdt_link_ops_for("gw.example:7070"));
}

Test(link, both_ends_of_a_shared_pool_see_the_same_bytes)
{
    struct hdt_pool mine, theirs;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_link_shm.pool_alloc(100000, 7, &mine, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq((uintptr_t)mine.base % 4096, 0);
    cr_expect_geq(mine.len, 100000u);
    cr_expect_eq(mine.base[99999], 0);
    cr_assert_eq(hdt_link_shm.pool_attach(dup(mine.fd), mine.len, 7, &theirs, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_neq(mine.base, theirs.base);
    memcpy(mine.base + 50000, "there", 6);
    cr_expect_str_eq((char *)theirs.base + 50000, "there");
    /* The owner cannot take the memory away. */
    cr_expect_neq(ftruncate(mine.fd, 0), 0);
    cr_expect_neq(ftruncate(mine.fd, 1 << 20), 0);
    hdt_link_shm.pool_free(&mine);
    cr_expect_null(mine.base);
    cr_expect_str_eq((char *)theirs.base + 50000, "there");
    hdt_link_shm.pool_free(&theirs);
}

static bool fd_is_closed(int fd)
{
    return fcntl(fd, F_GETFD) < 0;
}

Test(link, foreign_memory_that_could_vanish_is_refused)
{
    struct hdt_pool pool = {.len = 1};
    struct hdt_error err = {0};
    int fd = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert_eq(ftruncate(fd, 8192), 0);
    cr_expect_eq(hdt_link_shm.pool_attach(fd, 8192, 1, &pool, &err), HDT_EPROTO);
    cr_expect(fd_is_closed(fd));
    cr_expect_eq(pool.len, 1u, "set on failure");

    /* Sealed against shrinking only: anything but all three is refused. */
    fd = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, 8192), 0);
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    cr_expect_eq(hdt_link_shm.pool_attach(fd, 8192, 1, &pool, &err), HDT_EPROTO);

    fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    cr_expect_eq(hdt_link_shm.pool_attach(fd, 8192, 1, &pool, &err), HDT_EPROTO);
    cr_expect_eq(hdt_link_shm.pool_attach(-1, 8192, 1, &pool, &err), HDT_EPROTO);
}

/* Who maps it would pay for it. */
Test(link, a_pool_of_holes_is_refused)
{
    struct hdt_pool pool = {0};
    struct hdt_error err = {0};
    int fd = memfd_create("hole", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert_eq(ftruncate(fd, 1ll << 36), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    cr_expect_eq(hdt_link_shm.pool_attach(fd, 1ull << 36, 1, &pool, &err), HDT_EPROTO);
    cr_expect(strstr(err.msg, "not allocated"), "%s", err.msg);
}

Test(link, foreign_lengths_must_fit)
{
    const uint64_t lens[] = {0, 4096, 8191, 16384, 1ull << 41, UINT64_MAX};
    struct hdt_pool mine, theirs;

    cr_assert_eq(hdt_link_shm.pool_alloc(8192, 1, &mine, NULL), HDT_OK);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        cr_expect_eq(hdt_link_shm.pool_attach(dup(mine.fd), lens[i], 1, &theirs, NULL), HDT_EPROTO);
    }
    hdt_link_shm.pool_free(&mine);
}

Test(link, private_pools_are_zeroed_and_bounded)
{
    struct hdt_pool pool;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_link_tcp.pool_alloc(1 << 20, 2, &pool, &err), HDT_OK);
    cr_expect_eq(pool.fd, -1);
    cr_expect_eq(pool.base[(1 << 20) - 1], 0);
    cr_expect_null(hdt_link_tcp.pool_attach);
    hdt_link_tcp.pool_free(&pool);
    cr_expect_eq(hdt_link_tcp.pool_alloc(0, 2, &pool, &err), HDT_EINVAL);
    cr_expect_eq(hdt_link_tcp.pool_alloc(SIZE_MAX, 2, &pool, &err), HDT_EINVAL);
    cr_expect_eq(hdt_link_shm.pool_alloc(SIZE_MAX, 2, &pool, &err), HDT_EINVAL);
}

Test(link, contains_is_safe_for_foreign_numbers)
{
    struct hdt_pool pool = {.len = 1000};

    cr_expect(hdt_pool_contains(&pool, 0, 1000));
    cr_expect(hdt_pool_contains(&pool, 1000, 0));
    cr_expect(!hdt_pool_contains(&pool, 1, 1000));
    cr_expect(!hdt_pool_contains(&pool, 1001, 0));
    cr_expect(!hdt_pool_contains(&pool, UINT64_MAX, 2));
    cr_expect(!hdt_pool_contains(&pool, 2, UINT64_MAX));
    cr_expect(!hdt_pool_contains(&pool, UINT64_MAX, UINT64_MAX));
}
