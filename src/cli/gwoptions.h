/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_GWOPTIONS_H
#define HDT_CLI_GWOPTIONS_H

/* What every command that talks to a gateway shares: its options, and Ctrl-C while it waits. */
#include "src/net/gwclient.h"

#include <argp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --gateway, --ca, --cert, --key; a child parser whose input is struct hdt_gwclient_conf. */
extern const struct argp hdt_gwoptions_argp;

/* Count SIGINT and SIGTERM instead of dying of them, from now on. Waits of clients whose options
 * were parsed here end with HDT_ECANCELED once for each new one. */
void hdt_interrupts_catch(void);
int hdt_interrupts_count(void);
/* Readable when there was one; -1 until they are caught. For hdt_gwclient_conf.wake_fd. */
const int *hdt_interrupts_fd(void);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_GWOPTIONS_H */
