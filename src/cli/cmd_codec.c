/* SPDX-License-Identifier: Apache-2.0 */
/* hdt codec: what is done to tensors on their way. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/codec_explain.h"

static const struct hdt_cmd *const subs[] = {&hdt_cmd_codec_explain, NULL};

static int codec_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs, "What is done to tensors on their way.\n\nCommands:\n", argc,
                            argv);
}

const struct hdt_cmd hdt_cmd_codec = {"codec", "codecs: which pays, and why", codec_run, NULL,
                                      subs};
