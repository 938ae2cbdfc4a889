/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/fake_dataplane.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <string.h>

static struct {
    json_t *sent; /* [{"to", "msg"}] */
    char failing[32];
    enum hdt_status failing_status;
    size_t n_flows, n_jobs_closed, n_rechecks, n_probes;
    struct hdt_peer_stats peer;
} fake;

static void sent_add(const char *to, const json_t *msg)
{
    if (!fake.sent) {
        fake.sent = json_array();
    }
    json_array_append_new(fake.sent, json_pack("{s:s, s:o}", "to", to, "msg", json_deep_copy(msg)));
}

json_t *hdt_fake_dataplane_take(const char *to, const char *type)
{
    json_t *item;
    size_t i;

    json_array_foreach(fake.sent, i, item)
    {
        json_t *msg = json_object_get(item, "msg");

        if (strcmp(json_string_value(json_object_get(item, "to")), to) == 0 &&
            strcmp(hdt_msg_type(msg), type) == 0) {
            json_incref(msg);
            json_array_remove(fake.sent, i);
            return msg;
        }
    }
    return NULL;
}

size_t hdt_fake_dataplane_n_flows(void)
{
    return fake.n_flows;
}

size_t hdt_fake_dataplane_n_jobs_closed(void)
{
    return fake.n_jobs_closed;
}

size_t hdt_fake_dataplane_n_rechecks(void)
{
    return fake.n_rechecks;
}

size_t hdt_fake_dataplane_n_probes(void)
{
    return fake.n_probes;
}

void hdt_fake_dataplane_reset(void)
{
    json_decref(fake.sent);
    memset(&fake, 0, sizeof(fake));
}

void hdt_fake_dataplane_fail(const char *to, enum hdt_status status)
{
    snprintf(fake.failing, sizeof(fake.failing), "%s", to);
    fake.failing_status = status;
}

void hdt_fake_dataplane_set_peer(const struct hdt_peer_stats *peer)
{
    fake.peer = *peer;
}

static enum hdt_status sent_may_go(const char *to, struct hdt_error *err)
{
    if (fake.failing_status != HDT_OK && strcmp(fake.failing, to) == 0) {
        return hdt_error_set(err, fake.failing_status, "cannot send to %s", to);
    }
    return HDT_OK;
}

enum hdt_status hdt_dataplane_peer_send(struct hdt_dataplane *dp, const char *site,
                                        const json_t *msg, struct hdt_error *err)
{
    (void)dp;
    HDT_TRY(sent_may_go(site, err));
    sent_add(site, msg);
    return HDT_OK;
}

enum hdt_status hdt_dataplane_client_send(struct hdt_dataplane *dp, uint64_t client,
                                          const json_t *msg, struct hdt_error *err)
{
    char to[32];

    (void)dp;
    snprintf(to, sizeof(to), "%llu", (unsigned long long)client);
    HDT_TRY(sent_may_go(to, err));
    sent_add(to, msg);
    return HDT_OK;
}

enum hdt_status hdt_dataplane_flow_open(struct hdt_dataplane *dp,
                                        const struct hdt_dataplane_flow *flow,
                                        struct hdt_error *err)
{
    (void)dp;
    (void)flow;
    (void)err;
    fake.n_flows++;
    return HDT_OK;
}

void hdt_dataplane_job_close(struct hdt_dataplane *dp, uint32_t job, uint32_t epoch)
{
    (void)dp;
    (void)job;
    (void)epoch;
    fake.n_jobs_closed++;
}

void hdt_dataplane_dial(struct hdt_dataplane *dp, const char *site, const char *address)
{
    (void)dp;
    (void)site;
    (void)address;
}

void hdt_dataplane_probe(struct hdt_dataplane *dp, const char *site, uint64_t bytes, int timeout_ms)
{
    (void)dp;
    (void)site;
    (void)bytes;
    (void)timeout_ms;
    fake.n_probes++;
}

size_t hdt_dataplane_stream_stats(struct hdt_dataplane *dp, const char *site,
                                  struct hdt_tcp_stats *stats, size_t cap)
{
    (void)dp;
    (void)site;
    (void)stats;
    (void)cap;
    return 0;
}

size_t hdt_dataplane_peer_stats(struct hdt_dataplane *dp, struct hdt_peer_stats *stats, size_t cap)
{
    (void)dp;
    if (!fake.peer.site[0] || cap == 0) {
        return 0;
    }
    *stats = fake.peer;
    return 1;
}

bool hdt_dataplane_flow_find(struct hdt_dataplane *dp, uint32_t job, uint32_t flow, bool is_src,
                             struct hdt_flow_stats *stats)
{
    (void)dp;
    (void)job;
    (void)flow;
    (void)is_src;
    (void)stats;
    return false;
}

size_t hdt_dataplane_flow_stats(struct hdt_dataplane *dp, struct hdt_flow_stats *stats, size_t cap)
{
    (void)dp;
    (void)stats;
    (void)cap;
    return 0;
}

void hdt_dataplane_stats(struct hdt_dataplane *dp, struct hdt_dataplane_stats *stats)
{
    (void)dp;
    memset(stats, 0, sizeof(*stats));
    stats->engine = "none";
}

void hdt_dataplane_budget_uses(struct hdt_dataplane *dp, struct hdt_budget_use *uses)
{
    (void)dp;
    (void)uses; /* of none */
}

uint64_t hdt_dataplane_budget_cap(struct hdt_dataplane *dp, const char *site, const char *job,
                                  enum hdt_prio prio)
{
    (void)dp;
    (void)site;
    (void)job;
    (void)prio;
    return 0;
}

void hdt_dataplane_recheck(struct hdt_dataplane *dp)
{
    (void)dp;
    fake.n_rechecks++;
}
