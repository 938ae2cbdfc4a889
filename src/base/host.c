/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/host.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPUS_MAX 4096

struct cpus {
    uint64_t bits[CPUS_MAX / 64];
};

const char *hdt_host_id(char out[HDT_HOST_CAP])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    out[0] = '\0';
    if (file && !fgets(out, HDT_HOST_CAP, file)) {
        out[0] = '\0';
    }
    if (file) {
        fclose(file);
    }
    out[strcspn(out, "\n")] = '\0';
    return out;
}

const char *hdt_host_cpus(char out[HDT_CPUS_CAP])
{
    cpu_set_t set;
    size_t used = 0;

    out[0] = '\0';
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return out;
    }
    for (int first = 0; first < CPU_SETSIZE; first++) {
        int last = first;

        if (!CPU_ISSET(first, &set)) {
            continue;
        }
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) {
            last++;
        }
        used += (size_t)snprintf(out + used, HDT_CPUS_CAP - used, last > first ? "%s%d-%d" : "%s%d",
                                 used ? "," : "", first, last);
        if (used >= HDT_CPUS_CAP) {
            out[0] = '\0';
            return out;
        }
        first = last;
    }
    return out;
}

/* false: it is no list. */
static bool cpus_parse(const char *text, struct cpus *cpus)
{
    memset(cpus, 0, sizeof(*cpus));
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;

        if (end == text) {
            return false;
        }
        if (*end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
        }
        if (end == text || (*end != ',' && *end != '\0') || last < first || last >= CPUS_MAX) {
            return false;
        }
        for (unsigned long i = first; i <= last; i++) {
            cpus->bits[i / 64] |= UINT64_C(1) << (i % 64);
        }
        text = *end == ',' ? end + 1 : end;
    }
    return true;
}

int hdt_cpus_overlap(const char *a, const char *b)
{
    struct cpus x, y;
    int n = 0;

    if (!cpus_parse(a, &x) || !cpus_parse(b, &y)) {
        return 0;
    }
    for (size_t i = 0; i < CPUS_MAX / 64; i++) {
        n += __builtin_popcountll(x.bits[i] & y.bits[i]);
    }
    return n;
}

int hdt_cpus_count(const char *cpus)
{
    return hdt_cpus_overlap(cpus, cpus);
}
