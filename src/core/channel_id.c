/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/channel_id.h"

#include <stdio.h>
#include <string.h>

enum hdt_status hdt_channel_member_parse(const char *text, struct hdt_channel_member *member,
                                         struct hdt_error *err)
{
    const char *slash = strchr(text, '/');
    const size_t site_len = slash ? (size_t)(slash - text) : strlen(text);
    struct hdt_channel_member m = {.site = "", .name = ""};

    if (site_len < HDT_NAME_CAP) {
        memcpy(m.site, text, site_len);
    }
    if (slash && strlen(slash + 1) < HDT_NAME_CAP) {
        memcpy(m.name, slash + 1, strlen(slash + 1));
    }
    if (!hdt_name_is_valid(m.site) || (slash && !hdt_name_is_valid(m.name))) {
        hdt_error_set(err, HDT_EINVAL, "'%.140s' is no member of a channel", text);
        hdt_error_hint(err, "SITE, or SITE/NAME where a site has several programs: names of 1 to "
                            "63 letters, digits, '.', '_' and '-'");
        return HDT_EINVAL;
    }
    *member = m;
    return HDT_OK;
}

char *hdt_channel_member_format(const struct hdt_channel_member *member,
                                char text[HDT_CHANNEL_MEMBER_CAP])
{
    snprintf(text, HDT_CHANNEL_MEMBER_CAP, "%s%s%s", member->site, member->name[0] ? "/" : "",
             member->name);
    return text;
}

char *hdt_channel_flow_describe(uint32_t flow, unsigned rank, char text[96])
{
    const unsigned src = hdt_channel_flow_src(flow), dst = hdt_channel_flow_dst(flow);
    const unsigned tag = hdt_channel_flow_tag(flow);
    const char *way = src == rank ? "to" : "from";
    const unsigned other = src == rank ? dst : src;

    if (tag <= HDT_CHANNEL_TAG_MAX) {
        snprintf(text, 96, "the flow %s rank %u with tag %u", way, other, tag);
    } else {
        snprintf(text, 96, "the collectives' flow %s rank %u (%s)", way, other,
                 tag == HDT_CHANNEL_TAG_SCATTER ? "scatter" : "gather");
    }
    return text;
}
