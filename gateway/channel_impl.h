/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_CHANNEL_IMPL_H
#define HDT_GATEWAY_CHANNEL_IMPL_H

/* What channel.c (life of a channel), channel_tell.c (what gateways and programs are told),
 * channel_flow.c (flows) and channel_show.c share; nobody else's. */
#include "gateway/channel.h"
#include "src/core/channel_id.h"

#define CHANNELS_MAX     256
#define CHANNEL_NAME_CAP HDT_NAME_CAP
#define INSTANCE_CAP     20 /* 16 hexadecimal digits */

enum channel_end_state {
    END_UNKNOWN, /* no program has joined for this member, as far as is known */
    END_HERE,    /* connected to the gateway of its site */
    END_AWAY,    /* it was, and is not now, or its site is not */
    END_CLOSED,  /* its program has left in order */
    END_LOST,    /* it is gone */
};

/* One end of a flow, offered by a member. */
struct channel_flow {
    struct hdt_channel_offer offer;
    bool is_wanted; /* an end here: its program asked for it on its present connection */
    bool is_open;   /* the data plane has it */
    struct hdt_dataplane_flow conf;
};

/* One member and what is known of its program. */
struct channel_end {
    struct hdt_channel_member who;
    enum channel_end_state state;
    char instance[INSTANCE_CAP]; /* of its program; "": unknown */
    int64_t since_us;            /* of the last change of state */
    char why[HDT_ERROR_MSG_CAP]; /* it is away, or lost */
    struct channel_flow *flows;
    size_t n_flows;
    json_t *taken; /* END_CLOSED: [[flow, frames taken]], NULL: not said */
    uint64_t view; /* another site: the last that it said it sees; 0: not all of them */
    /* ours */
    uint64_t client; /* 0: not connected */
    char address[HDT_ADDRESS_CAP];
    char identity[224];
    long pid;
};

struct hdt_gwchannel {
    char name[CHANNEL_NAME_CAP];
    unsigned n;
    struct channel_end ends[HDT_CHANNEL_MEMBERS_MAX];
    uint64_t view; /* of all instances; 0: not all are known */
    bool up, over;
    uint32_t job, epoch;     /* up */
    int64_t since_us;        /* joined first here, up, or over */
    int64_t differs_us;      /* another site says other members, since; 0: none does */
    struct hdt_error differ; /* who, and what */
    int over_rank;
    struct hdt_error why; /* over */
    struct hdt_gwchannel *next;
};

/* ---- channel.c ---- */

/* The living one of that name; NULL: there is none. */
struct hdt_gwchannel *hdt_channel_find(struct hdt_gateway *gw, const char *name);
static inline bool hdt_channel_end_is_there(const struct channel_end *end)
{
    return end->state == END_HERE || end->state == END_AWAY;
}
bool hdt_channel_has_site(const struct hdt_gwchannel *channel, const char *site);
bool hdt_channel_end_is_ours(const struct hdt_gateway *gw, const struct channel_end *end);
/* This rank ends the channel for all, for this reason (error's message is about that rank). */
void hdt_channel_end_it(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                        const struct hdt_error *why);
/* The program of this rank is gone: the same, in these words. */
void hdt_channel_lose(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                      const char *why);
/* Nothing is known of it any more. */
void hdt_channel_end_reset(struct channel_end *end);
/* Ends, views or sites have changed: is it up now? Tells whom it concerns. */
void hdt_channel_settle(struct hdt_gateway *gw, struct hdt_gwchannel *channel);
void hdt_channel_set_state(struct channel_end *end, enum channel_end_state state, const char *why);
/* All that joined here have left in order: nobody is told. */
void hdt_channel_close_if_left(struct hdt_gateway *gw, struct hdt_gwchannel *channel);

/* ---- channel_join.c ---- */

/* [[flow, frames]]: what the member of this rank has taken of flows that end at it? */
bool hdt_channel_taken_is_right(const json_t *taken, json_int_t rank);

/* ---- channel_tell.c ---- */

/* Tell other sites what is true here; `ask`: and have them answer with what is true there. */
void hdt_channel_tell_sites(struct hdt_gateway *gw, const struct hdt_gwchannel *channel, bool ask);
void hdt_channel_tell_site(struct hdt_gateway *gw, const char *name, const char *site, bool ask);
/* Tell the programs here how the channel stands. */
void hdt_channel_tell_programs(struct hdt_gateway *gw, const struct hdt_gwchannel *channel);
/* Why nothing is known of an end. Returns text, or a constant. */
const char *hdt_channel_why_unknown(struct hdt_gateway *gw, const struct channel_end *end,
                                    char text[HDT_ERROR_MSG_CAP]);
const char *hdt_channel_state_name(enum channel_end_state state);
/* An array of names. New reference. */
json_t *hdt_channel_members_json(const struct hdt_gwchannel *channel);
/* "a, b/x, c" */
void hdt_channel_members_text(const json_t *members, struct hdt_buf *out);

/* ---- channel_flow.c ---- */

/* The offers of another site's end, as it said them. HDT_EPROTO. */
enum hdt_status hdt_channel_offers_take(struct channel_end *end, unsigned rank, const json_t *flows,
                                        struct hdt_error *err);
json_t *hdt_channel_offers_json(const struct channel_end *end);
/* Open what can be opened now. */
void hdt_channel_flows_open(struct hdt_gateway *gw, struct hdt_gwchannel *channel);
/* The program of this end has another connection, or none: nothing is open on it. */
void hdt_channel_flows_forget(struct channel_end *end);

#endif /* HDT_GATEWAY_CHANNEL_IMPL_H */
