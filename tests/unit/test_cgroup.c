/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/cgroup.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static char root[] = "/tmp/hdt-cgroup-XXXXXX";

static void put(const char *path, const char *text)
{
    char *whole = hdt_asprintf("%s%s", root, path), *slash = strrchr(whole, '/');
    struct hdt_buf bytes = {0};
    struct hdt_error err = {0};

    *slash = '\0';
    cr_assert_eq(hdt_dir_make(whole, 0755, &err), HDT_OK, "%s", err.msg);
    *slash = '/';
    hdt_buf_append_str(&bytes, text);
    cr_assert_eq(hdt_file_write(whole, &bytes, 0644, HDT_FILE_REPLACE, &err), HDT_OK);
    hdt_buf_release(&bytes);
    free(whole);
}

static void setup(void)
{
    cr_assert(mkdtemp(root));
}

static void teardown(void)
{
    char *command = hdt_asprintf("rm -rf '%s'", root);

    cr_expect_eq(system(command), 0);
    free(command);
}

TestSuite(cgroup, .init = setup, .fini = teardown);

Test(cgroup, no_limits_without_control_groups)
{
    struct hdt_cgroup cgroup;

    hdt_cgroup_read(root, &cgroup);
    cr_expect_eq(cgroup.version, 0);
    cr_expect_eq(cgroup.memory_bytes, 0);
    cr_expect_eq(cgroup.cpus, 0);
    cr_expect_geq(hdt_cgroup_cores(&cgroup), 1);
}

/* As in a container of Docker or a service with MemoryMax: the tightest of all levels counts. */
Test(cgroup, v2_takes_the_tightest_level)
{
    struct hdt_cgroup cgroup;

    put("/proc/self/cgroup", "0::/system.slice/hdt.service\n");
    put("/sys/fs/cgroup/system.slice/hdt.service/memory.max", "max\n");
    put("/sys/fs/cgroup/system.slice/hdt.service/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/system.slice/memory.current", "3221225472\n");
    put("/sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file 1073741824\n");
    put("/sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/cpu.max", "800000 100000\n");
    hdt_cgroup_read(root, &cgroup);
    cr_expect_eq(cgroup.version, 2);
    cr_expect_eq(cgroup.memory_bytes, 4ull << 30);
    cr_expect_eq(cgroup.memory_free, 2ull << 30, "3 GiB in use, 1 of them page cache: %llu",
                 (unsigned long long)cgroup.memory_free);
    cr_expect_float_eq(cgroup.cpus, 1.5, 1e-9);
    cr_expect_leq(hdt_cgroup_cores(&cgroup), 2);
}

Test(cgroup, v1_and_its_huge_number_that_means_none)
{
    struct hdt_cgroup cgroup;

    put("/proc/self/cgroup",
        "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/x\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "536870912\n");
    put("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "134217728\n");
    put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    hdt_cgroup_read(root, &cgroup);
    cr_expect_eq(cgroup.version, 1);
    cr_expect_eq(cgroup.memory_bytes, 512ull << 20);
    cr_expect_eq(cgroup.memory_free, 384ull << 20);
    cr_expect_float_eq(cgroup.cpus, 0.5, 1e-9);
    cr_expect_eq(hdt_cgroup_cores(&cgroup), 1);
}

/* The path is the host's and not there: the limits are those of the root that the container sees.
 */
Test(cgroup, a_container_with_the_hosts_path)
{
    struct hdt_cgroup cgroup;

    put("/proc/self/cgroup", "0::/kubepods/pod1/abc\n");
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/memory.current", "1073741824\n");
    hdt_cgroup_read(root, &cgroup);
    cr_expect_eq(cgroup.memory_bytes, 1ull << 30);
    cr_expect_eq(cgroup.memory_free, 0);
}
