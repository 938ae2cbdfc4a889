/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CHANNEL_ID_H
#define HDT_CORE_CHANNEL_ID_H

/*
 * Channels: programs at several sites that joined under one name, each with a rank. What both ends
 * of the protocol have in common: how members are written, what numbers of jobs and flows mean.
 *
 * A channel that is up has a job number of its own, of the upper half of all: numbers of training
 * jobs are of the lower. The number of a flow says which ranks it joins:
 *
 *     31      26 25      20 19                  0
 *    | src rank | dst rank |         tag         |
 */
#include "src/core/cluster.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_CHANNEL_JOB_BIT     0x80000000u
#define HDT_CHANNEL_MEMBERS_MAX 32
#define HDT_CHANNEL_FLOWS_MAX   256 /* ends of flows of one member */

/* Tags that a program may choose, and those of the flows that carry its collectives. */
#define HDT_CHANNEL_TAG_MAX     0xffffu
#define HDT_CHANNEL_TAG_SCATTER 0x10000u
#define HDT_CHANNEL_TAG_GATHER  0x10001u

#define HDT_CHANNEL_MEMBER_CAP (2 * HDT_NAME_CAP)

struct hdt_channel_member {
    char site[HDT_NAME_CAP];
    char name[HDT_NAME_CAP]; /* of the program, where a site has several; "": the only one */
};

/* "SITE" or "SITE/NAME". HDT_EINVAL. */
enum hdt_status hdt_channel_member_parse(const char *text, struct hdt_channel_member *member,
                                         struct hdt_error *err);
char *hdt_channel_member_format(const struct hdt_channel_member *member,
                                char text[HDT_CHANNEL_MEMBER_CAP]);

static inline bool hdt_channel_is_job(uint32_t job)
{
    return (job & HDT_CHANNEL_JOB_BIT) != 0;
}

static inline uint32_t hdt_channel_flow(unsigned src, unsigned dst, unsigned tag)
{
    return (uint32_t)src << 26 | (uint32_t)dst << 20 | (uint32_t)tag;
}

static inline unsigned hdt_channel_flow_src(uint32_t flow)
{
    return flow >> 26;
}

static inline unsigned hdt_channel_flow_dst(uint32_t flow)
{
    return flow >> 20 & 63;
}

static inline unsigned hdt_channel_flow_tag(uint32_t flow)
{
    return flow & 0xfffff;
}

/* Flags of the frames of channels' flows. */
#define HDT_CHANNEL_FRAME_LAST  1u /* of its tensor */
#define HDT_CHANNEL_FRAME_RAW   2u /* the flow's codec was not used: NaN or infinity is in it */
#define HDT_CHANNEL_FRAME_EMPTY 4u /* of a tensor without elements: its one byte is nothing */
#define HDT_CHANNEL_FRAME_HEAD  8u /* says which collective begins */

/* What the frames of a flow hold, where a dtype does not say it: "f32 by int8:block=64". To
 * gateways a text that both ends must say alike. */
#define HDT_CHANNEL_CONTENT_CAP 128

/* What both ends of a flow must agree in. */
struct hdt_channel_offer {
    uint32_t flow;
    uint32_t depth, frame_cap;
    uint8_t prio, codec, dtype;            /* as in "flow.open" */
    char content[HDT_CHANNEL_CONTENT_CAP]; /* "": the dtype says all */
};

/* "the flow to rank 1 with tag 7", "the collectives' flow from rank 0": as the member `rank` says
 * it. Returns text. */
char *hdt_channel_flow_describe(uint32_t flow, unsigned rank, char text[96]);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CHANNEL_ID_H */
