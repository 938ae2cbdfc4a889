/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_CHANNEL_H
#define HDT_GATEWAY_CHANNEL_H

/*
 * Channels: programs of libhdt that joined under one name at the gateways of their sites, to move
 * tensors between them (src/core/channel_id.h has the words). Main thread.
 *
 * There is no coordinator. Each gateway owns the truth about the ends of its own clients and says
 * it whole ("channel.ends") to the sites of the other members, after each change, when a session
 * comes up, and once a second while something is missing. A channel is up at a gateway when it
 * knows one program for each member and every other site has said that it knows the same ones: the
 * hash of all their instances, the *view*, is compared. The job number and the epoch of the
 * channel's flows follow from the view, so that nobody has to hand them out, and a gateway that was
 * restarted comes to the same ones by asking. An end that is over (its program left, died, or was
 * started anew) is over for good: the same name is joined anew with other instances, and has
 * another number.
 *
 * A flow is opened in the data plane when its program asks for it and the gateway of its other end
 * has offered the same: same ranks, tag, type, codec, class and slots.
 */
#include "gateway/control.h"

struct hdt_gwchannel;

/* Of a program here. */
void hdt_channel_join(struct hdt_gateway *gw, const json_t *msg);
void hdt_channel_leave(struct hdt_gateway *gw, const json_t *msg);
void hdt_channel_flow_open(struct hdt_gateway *gw, const json_t *msg);
/* Its connection has ended: it may come back for as long as a worker may. */
void hdt_channel_client_down(struct hdt_gateway *gw, const struct hdt_gwclient *client,
                             const struct hdt_error *why);

/* "channel.ends" of another gateway. */
void hdt_channel_ends(struct hdt_gateway *gw, const json_t *msg);
void hdt_channel_peer_up(struct hdt_gateway *gw, const char *site);
void hdt_channel_peer_down(struct hdt_gateway *gw, const char *site, const struct hdt_error *why);

/* The data plane cannot go on with a flow of this number: its channel is over. */
void hdt_channel_flow_failed(struct hdt_gateway *gw, uint32_t job, const struct hdt_error *why);

/* Deadlines, and questions that are due; every tick. */
void hdt_channels_tick(struct hdt_gateway *gw);
void hdt_channels_free(struct hdt_gateway *gw);

/* For /status: array of {channel, state, job, members: [...]}. New reference. */
json_t *hdt_channels_json(struct hdt_gateway *gw);
/* Name of the channel with this job number, NULL: there is none. */
const char *hdt_channel_name_of(const struct hdt_gateway *gw, uint32_t job);
void hdt_channels_metrics(struct hdt_gateway *gw, struct hdt_buf *out);

#endif /* HDT_GATEWAY_CHANNEL_H */
