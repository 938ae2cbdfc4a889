/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/process.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* proc(5): the name of the program, which may hold anything, ends with the last ')'. */
#define STAT_FORMAT                                                                                \
 ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %u %*d %llu %lu %ld"

static void stat_read(struct hdt_process_usage *usage, unsigned long long *start_ticks)
{
    unsigned long user_ticks, system_ticks, virtual_bytes;
    const double ticks_per_s = (double)sysconf(_SC_CLK_TCK);
    char text[1024] = "";
    const char *end;
    long pages;
    FILE *file = fopen("/proc/self/stat", "re");

    if (!file) {
        return;
    }
    end = fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
    if (end && sscanf(end, STAT_FORMAT, &user_ticks, &system_ticks, &usage->n_threads, start_ticks,
                      &virtual_bytes, &pages) == 6) {
        usage->cpu_s = (double)(user_ticks + system_ticks) / ticks_per_s;
        usage->virtual_bytes = virtual_bytes;
        usage->resident_bytes = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    }
    fclose(file);
}

/* 0: not known. */
static int64_t boot_time_s(void)
{
    long long boot_s = 0;
    char line[256];
    FILE *file = fopen("/proc/stat", "re");

    while (file && boot_s == 0 && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "btime %lld", &boot_s) != 1) {
            boot_s = 0;
        }
    }
    if (file) {
        fclose(file);
    }
    return boot_s;
}

static unsigned fds_count(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (dir && readdir(dir)) {
        n++;
    }
    if (dir) {
        closedir(dir);
    }
    return n > 3 ? n - 3 : 0; /* ".", ".." and that of the folder itself */
}

void hdt_process_usage(struct hdt_process_usage *usage)
{
    unsigned long long start_ticks = 0;
    const int64_t boot_s = boot_time_s();
    struct rlimit limit;

    memset(usage, 0, sizeof(*usage));
    stat_read(usage, &start_ticks);
    usage->n_fds = fds_count();
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        usage->max_fds = limit.rlim_cur;
    }
    if (boot_s > 0) {
        usage->started_s =
            boot_s + (int64_t)(start_ticks / (unsigned long long)sysconf(_SC_CLK_TCK));
    }
}
