/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_DPSTEP_H
#define HDT_GATEWAY_DPSTEP_H

/*
 * A data plane without threads: opened with hdt_dataplane_conf.stepped, it does nothing until its
 * owner does the work of its threads, here, one step at a time, in any order, on one thread. Each
 * step is what a thread does between two moments at which another one could come in between. So a
 * test decides who runs when (tests/support/link_sim.h), with the code that threads run otherwise.
 *
 * The engine is the owner's, too. There is no listening: who connects is let in by
 * hdt_dpstep_admit. hdt_dataplane_close runs the engines until their connections are closed.
 */
#include "gateway/dataplane.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A round of I/O thread i: what its engine has finished, tasks, timers that are due. */
void hdt_dpstep_io(struct hdt_dataplane *dp, unsigned i);

/* Codec thread i: take a piece of work in hand (false: there is none, and it would wait on
 * hdt_dataplane.work until it is signalled), do it, hand on the result. */
bool hdt_dpstep_codec_take(struct hdt_dataplane *dp, unsigned i);
bool hdt_dpstep_codec_is_busy(const struct hdt_dataplane *dp, unsigned i);
void hdt_dpstep_codec_run(struct hdt_dataplane *dp, unsigned i);
void hdt_dpstep_codec_settle(struct hdt_dataplane *dp, unsigned i);

/* The resolver: answer what was asked. */
void hdt_dpstep_resolve(struct hdt_dataplane *dp);

/* The doorman: whoever is behind this connected socket, which is the data plane's from here, has
 * greeted and may go on. */
void hdt_dpstep_admit(struct hdt_dataplane *dp, enum hdt_listener door, int fd);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_DPSTEP_H */
