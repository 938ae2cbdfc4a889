/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_KINDS_H
#define HDT_CLI_KINDS_H

/* The kinds of settings files that `hdt config` knows. */
#include "src/base/conf.h"
#include "src/core/cluster_file.h"
#include "src/core/devices.h"
#include "src/core/gateway_conf.h"
#include "src/core/job.h"
#include "src/core/layout.h"
#include "src/core/worker_conf.h"

/* NULL-terminated. */
const struct hdt_conf_schema *const *hdt_kinds(void);

#endif /* HDT_CLI_KINDS_H */
