/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/link_sampler.h"

#include <string.h>
#include <unistd.h>

/* Some twenty in the shortest middle half; little work for a gateway. */
#define SAMPLER_EVERY_US 20000

static double flows_arrived(const json_t *status, const char *channel)
{
    const json_t *flow;
    double bytes = 0;
    size_t i;

    json_array_foreach(json_object_get(status, "flows"), i, flow)
    {
        const char *name = json_string_value(json_object_get(flow, "channel"));
        const char *end = json_string_value(json_object_get(flow, "end"));

        if (name && end && strcmp(name, channel) == 0 && strcmp(end, "dst") == 0) {
            bytes += json_number_value(json_object_get(flow, "coded_bytes"));
        }
    }
    return bytes;
}

static bool sampler_look(struct hdt_link_sampler *sampler)
{
    const struct hdt_gwclient_request request = {.type = "status",
                                                 .expect = "status.is",
                                                 .to = sampler->site,
                                                 .patience = HDT_GWCLIENT_RELAY};
    struct hdt_error err = {0};
    json_t *body;

    if (sampler->n == HDT_LINK_SAMPLES ||
        hdt_gwclient_ask(sampler->client, &request, &body, &err) != HDT_OK) {
        return false;
    }
    sampler->samples[sampler->n++] =
        (struct hdt_train_sample){.at_s = json_number_value(json_object_get(body, "up_s")),
                                  .bytes = flows_arrived(body, sampler->channel)};
    json_decref(body);
    return true;
}

static void *sampler_main(void *arg)
{
    struct hdt_link_sampler *sampler = arg;

    while (!atomic_load(&sampler->is_over) && sampler_look(sampler)) {
        usleep(SAMPLER_EVERY_US);
    }
    return NULL;
}

enum hdt_status hdt_link_sampler_open(struct hdt_link_sampler *sampler,
                                      const struct hdt_gwclient_conf *conf, const char *channel,
                                      struct hdt_error *err)
{
    memset(sampler, 0, sizeof(*sampler));
    sampler->channel = channel;
    return hdt_gwclient_open(conf, &sampler->client, err);
}

void hdt_link_sampler_close(struct hdt_link_sampler *sampler)
{
    hdt_gwclient_close(sampler->client);
    sampler->client = NULL;
}

void hdt_link_sampler_begin(struct hdt_link_sampler *sampler, const char *site)
{
    sampler->n = 0;
    sampler->site = site;
    atomic_store(&sampler->is_over, false);
    sampler->is_running =
        sampler_look(sampler) && pthread_create(&sampler->thread, NULL, sampler_main, sampler) == 0;
}

void hdt_link_sampler_end(struct hdt_link_sampler *sampler)
{
    if (!sampler->is_running) {
        sampler->n = 0;
        return;
    }
    atomic_store(&sampler->is_over, true);
    pthread_join(sampler->thread, NULL);
    sampler->is_running = false;
    if (!sampler_look(sampler)) {
        sampler->n = 0;
    }
}
