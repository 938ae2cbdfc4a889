/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_RESOLVE_H
#define HDT_NET_RESOLVE_H

/*
 * A name looked up beside its asker, who can wait with a deadline, for a signal, or not at all: the
 * system's resolver blocks for half a minute when a name server is away, and cannot be called off.
 */
#include "src/net/addr.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_resolve;

/* Begin with an address as hdt_addr_parse takes it. HDT_ENOMEM: no thread. */
enum hdt_status hdt_resolve_begin(const char *text, struct hdt_resolve **resolve,
                                  struct hdt_error *err);
/* Readable when the answer is there. */
int hdt_resolve_fd(const struct hdt_resolve *resolve);
/* Take the answer and free: as hdt_addr_parse; HDT_AGAIN when there is none yet, and then the
 * thread is left alone and frees its things when it comes back. */
enum hdt_status hdt_resolve_end(struct hdt_resolve *resolve, struct hdt_addr *addr,
                                struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_RESOLVE_H */
