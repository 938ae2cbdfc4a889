/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_CGROUP_H
#define HDT_BASE_CGROUP_H

/* What a container or a service may use: the limits of this process's control group and those above
 * it, of cgroup v2 or v1. */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_cgroup {
    int version;           /* 2, 1, or 0: none is mounted */
    double cpus;           /* of the tightest quota; 0: no limit */
    uint64_t memory_bytes; /* of the tightest limit; 0: none */
    uint64_t memory_free;  /* of that limit, page cache counted as free; 0 when there is no limit */
};

/* Read them below `root` ("" as it is; a test has a tree of its own). Blocks shortly. */
void hdt_cgroup_read(const char *root, struct hdt_cgroup *cgroup);

/* Cores that this process may keep busy: those of its affinity mask, fewer when its control group
 * has a quota below that. At least 1. */
int hdt_cgroup_cores(const struct hdt_cgroup *cgroup);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_CGROUP_H */
