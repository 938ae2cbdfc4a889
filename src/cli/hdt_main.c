/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/cmd.h"

#include <argp.h>
#include <stddef.h>

/* In the order of `hdt --help`; a command without summary is not listed. */
const struct hdt_cmd *const hdt_cmds[] = {
    &hdt_cmd_ca,       &hdt_cmd_config,   &hdt_cmd_doctor,
    &hdt_cmd_tokenize, &hdt_cmd_plan,     &hdt_cmd_simulate,
    &hdt_cmd_submit,   &hdt_cmd_status,   &hdt_cmd_link,
    &hdt_cmd_logs,     &hdt_cmd_stop,     &hdt_cmd_eval,
    &hdt_cmd_generate, &hdt_cmd_export,   &hdt_cmd_checkpoint,
    &hdt_cmd_codec,    &hdt_cmd_device,   &hdt_cmd_cluster,
    &hdt_cmd_version,  &hdt_cmd_complete, NULL,
};

static const char intro[] =
    "hdt trains one large model on accelerators of several sites as one job.\n"
    "\n"
    "Commands:\n";

int main(int argc, char **argv)
{
    argv[0] = (char *)"hdt";
    argp_err_exit_status = HDT_EXIT_USAGE;
    return hdt_cmd_dispatch(hdt_cmds, intro, argc, argv);
}
