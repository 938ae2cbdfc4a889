/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CLUSTER_FILE_INTERNAL_H
#define HDT_CORE_CLUSTER_FILE_INTERNAL_H

/* What the files of cluster_file share; nobody else includes this. */
#include "src/core/cluster_file.h"

/* cluster_file_resolve.c: names to pointers. On failure the cluster is still to be released. */
enum hdt_status hdt_cluster_file_resolve(struct hdt_cluster_file *cluster,
                                         const struct hdt_devices *catalogue,
                                         const struct hdt_conf_doc *doc, struct hdt_error *err);

/* cluster_file.c: the way between two sites, each pair of which has an entry; false: it comes by a
 * site twice, or has too many links. */
bool hdt_cluster_file_follow(const struct hdt_cluster_file *cluster, size_t from_idx, size_t to_idx,
                             struct hdt_cluster_file_path *path);

#endif /* HDT_CORE_CLUSTER_FILE_INTERNAL_H */
