/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LINK_SAMPLER_H
#define HDT_CLI_LINK_SAMPLER_H

/*
 * Looks at what has arrived of a channel while a train is under way: a thread asks the gateway of
 * the receiving site for its status, again and again, over a connection of its own. That gateway
 * counts chunks as they come, on whichever stream and of whichever tensor, and says by its own
 * clock when that was (src/cli/train.h says why neither tensors nor our clock will do).
 */
#include "src/cli/train.h"
#include "src/net/gwclient.h"

#include <pthread.h>
#include <stdatomic.h>

#define HDT_LINK_SAMPLES 1024 /* of one train at most: those of ten seconds or more */

struct hdt_link_sampler {
    struct hdt_gwclient *client;
    const char *channel, *site; /* borrowed; site NULL: that of the client's gateway */
    pthread_t thread;
    bool is_running;
    atomic_bool is_over;
    unsigned n;
    struct hdt_train_sample samples[HDT_LINK_SAMPLES];
};

/* `channel` and `conf` are borrowed; the latter for the call. */
enum hdt_status hdt_link_sampler_open(struct hdt_link_sampler *sampler,
                                      const struct hdt_gwclient_conf *conf, const char *channel,
                                      struct hdt_error *err);
void hdt_link_sampler_close(struct hdt_link_sampler *sampler);

/* A train to `site` (NULL: to ours) begins, or is over: all of it has arrived. Nothing is said
 * where a gateway does not answer: there are no samples then. */
void hdt_link_sampler_begin(struct hdt_link_sampler *sampler, const char *site);
void hdt_link_sampler_end(struct hdt_link_sampler *sampler);

#endif /* HDT_CLI_LINK_SAMPLER_H */
