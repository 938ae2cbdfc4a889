/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_CODEC_BENCH_H
#define HDT_CLI_CODEC_BENCH_H

/* hdt codec bench: what every codec makes of the tensors of a file. */
#include "src/cli/cmd.h"

extern const struct hdt_cmd hdt_cmd_codec_bench;

#endif /* HDT_CLI_CODEC_BENCH_H */
