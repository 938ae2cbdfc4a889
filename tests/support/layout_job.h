/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_LAYOUT_JOB_H
#define HDT_TESTS_SUPPORT_LAYOUT_JOB_H

/* Layouts without stages, as the search takes them, from texts. */
#include "src/core/layout.h"

/* The job's lines go on where cluster and model are named; devices are those of the cluster's text
 * and of etc/devices.yaml. To be released on success. */
enum hdt_status hdt_layout_job_open(const char *cluster, const char *model, const char *job,
                                    struct hdt_layout_files *files, struct hdt_error *err);

#endif /* HDT_TESTS_SUPPORT_LAYOUT_JOB_H */
