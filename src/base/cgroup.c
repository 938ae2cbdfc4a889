/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit may stand at any level above the process, and the tightest counts, so that every level up
 * to the root is read. In a container without a namespace of its own for control groups the path in
 * /proc/self/cgroup is the host's and not there below /sys/fs/cgroup: its levels are skipped, and
 * the root is the container's.
 */
#include "config.h"

#include "src/base/cgroup.h"
#include "src/base/buf.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* v1 says "no limit" by a number near 2^63. */
#define NO_LIMIT (1ull << 60)

/* Names of the files of a version. */
struct names {
    const char *memory_dir, *max, *current, *inactive;
    const char *cpu_dir, *quota, *period; /* period NULL: it stands in the quota's file */
};

static const struct names names_v2 = {
    "", "memory.max", "memory.current", "inactive_file", "", "cpu.max", NULL};
static const struct names names_v1 = {
    "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
    "/cpu",    "cpu.cfs_quota_us",      "cpu.cfs_period_us"};

static bool line_read(const char *dir, const char *name, char *line, size_t cap)
{
    char *path = hdt_asprintf("%s/%s", dir, name);
    FILE *file = fopen(path, "re");
    bool ok = file && fgets(line, (int)cap, file);

    if (file) {
        fclose(file);
    }
    free(path);
    return ok;
}

/* false: not there, or no limit. */
static bool number_read(const char *dir, const char *name, uint64_t *value)
{
    char line[64], *end;

    if (!line_read(dir, name, line, sizeof(line)) || line[0] < '0' || line[0] > '9') {
        return false; /* "max", "-1" */
    }
    *value = strtoull(line, &end, 10);
    return end != line && *value < NO_LIMIT;
}

/* One number of memory.stat; 0 when it is not there. */
static uint64_t stat_read(const char *dir, const char *key)
{
    char *path = hdt_asprintf("%s/memory.stat", dir);
    FILE *file = fopen(path, "re");
    unsigned long long value = 0, number;
    char line[128], name[64];

    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%63s %llu", name, &number) == 2 && strcmp(name, key) == 0) {
            value = number;
        }
    }
    if (file) {
        fclose(file);
    }
    free(path);
    return value;
}

static void memory_level(const char *dir, const struct names *names, struct hdt_cgroup *cgroup)
{
    uint64_t max, used = 0, cache, room;

    if (!number_read(dir, names->max, &max)) {
        return;
    }
    number_read(dir, names->current, &used);
    cache = stat_read(dir, names->inactive);
    used = used > cache ? used - cache : 0;
    room = max > used ? max - used : 0;
    if (cgroup->memory_bytes == 0 || max < cgroup->memory_bytes) {
        cgroup->memory_free =
            cgroup->memory_bytes && cgroup->memory_free < room ? cgroup->memory_free : room;
        cgroup->memory_bytes = max;
    } else if (room < cgroup->memory_free) {
        cgroup->memory_free = room; /* a wider limit that others fill */
    }
}

static void cpu_level(const char *dir, const struct names *names, struct hdt_cgroup *cgroup)
{
    unsigned long long quota = 0, period = 0;
    uint64_t number;
    char line[64];
    double cpus;

    if (names->period) {
        quota = number_read(dir, names->quota, &number) ? number : 0;
        period = number_read(dir, names->period, &number) ? number : 0;
    } else if (line_read(dir, names->quota, line, sizeof(line)) &&
               sscanf(line, "%llu %llu", &quota, &period) != 2) {
        quota = 0; /* "max 100000" */
    }
    if (quota == 0 || period == 0) {
        return;
    }
    cpus = (double)quota / (double)period;
    cgroup->cpus = cgroup->cpus > 0 && cgroup->cpus < cpus ? cgroup->cpus : cpus;
}

/* `path` and all levels above it, the root among them. */
static void levels_walk(const char *base, const char *path, const struct names *names,
                        void (*level)(const char *, const struct names *, struct hdt_cgroup *),
                        struct hdt_cgroup *cgroup)
{
    char *dir = hdt_asprintf("%s%s", base, path);
    const size_t base_len = strlen(base);

    for (;;) {
        char *slash = strrchr(dir + base_len, '/');

        level(dir, names, cgroup);
        if (!slash) {
            break;
        }
        *slash = '\0';
    }
    free(dir);
}

/* The controllers of a line of /proc/self/cgroup of v1 ("cpu,cpuacct"). */
static bool has_controller(const char *list, const char *name)
{
    const size_t len = strlen(name);
    const char *at = list;

    while ((at = strstr(at, name))) {
        if ((at == list || at[-1] == ',') && (at[len] == ',' || at[len] == '\0')) {
            return true;
        }
        at += len;
    }
    return false;
}

static void line_take(const char *root, char *line, struct hdt_cgroup *cgroup)
{
    char *controllers = strchr(line, ':'),
         *path = controllers ? strchr(controllers + 1, ':') : NULL;
    char *base;

    if (!path) {
        return;
    }
    *path++ = '\0';
    controllers++;
    path[strcspn(path, "\n")] = '\0';
    if (strcmp(path, "/") == 0) {
        path = "";
    }
    if (controllers[0] == '\0') {
        base = hdt_asprintf("%s/sys/fs/cgroup", root);
        levels_walk(base, path, &names_v2, memory_level, cgroup);
        levels_walk(base, path, &names_v2, cpu_level, cgroup);
        cgroup->version = cgroup->version ? cgroup->version : 2;
        free(base);
        return;
    }
    if (has_controller(controllers, "memory")) {
        base = hdt_asprintf("%s/sys/fs/cgroup%s", root, names_v1.memory_dir);
        levels_walk(base, path, &names_v1, memory_level, cgroup);
        cgroup->version = 1;
        free(base);
    }
    if (has_controller(controllers, "cpu")) {
        base = hdt_asprintf("%s/sys/fs/cgroup%s", root, names_v1.cpu_dir);
        levels_walk(base, path, &names_v1, cpu_level, cgroup);
        free(base);
    }
}

void hdt_cgroup_read(const char *root, struct hdt_cgroup *cgroup)
{
    char *path = hdt_asprintf("%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    char line[PATH_MAX];

    memset(cgroup, 0, sizeof(*cgroup));
    while (file && fgets(line, sizeof(line), file)) {
        line_take(root, line, cgroup);
    }
    if (file) {
        fclose(file);
    }
    free(path);
}

int hdt_cgroup_cores(const struct hdt_cgroup *cgroup)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = cgroup->cpus > 0 ? (int)(cgroup->cpus + 0.999) : n;

    n = quota < n ? quota : n;
    return n > 0 ? n : 1;
}
