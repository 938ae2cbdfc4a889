/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LINK_BENCH_H
#define HDT_CLI_LINK_BENCH_H

/* The parts of `hdt link` that measure: see src/cli/cmd_link.c for the group. */
#include "src/cli/cmd.h"

extern const struct hdt_cmd hdt_cmd_link_bench;

/* The other end of a measurement, which a gateway starts; not for people, and not listed. */
extern const struct hdt_cmd hdt_cmd_link_echo;

#endif /* HDT_CLI_LINK_BENCH_H */
