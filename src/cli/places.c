/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/places.h"
#include "src/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

static struct hdt_place *place_add(struct hdt_places *places, const char *site, const char *worker)
{
    struct hdt_place *place;

    places->items = hdt_realloc(places->items, (places->n + 1) * sizeof(*place));
    place = &places->items[places->n++];
    memset(place, 0, sizeof(*place));
    snprintf(place->site, sizeof(place->site), "%s", site);
    snprintf(place->worker, sizeof(place->worker), "%s", worker);
    snprintf(place->address, sizeof(place->address), "%s%s%s", place->site, worker[0] ? "/" : "",
             place->worker);
    return place;
}

static void workers_add(struct hdt_places *places, const json_t *status, const char *site,
                        const char *site_is_down)
{
    const json_t *worker;
    size_t i;

    json_array_foreach(json_object_get(status, "workers"), i, worker)
    {
        struct hdt_place *place;

        if (strcmp(text_of(worker, "site"), site) != 0) {
            continue;
        }
        place = place_add(places, site, text_of(worker, "worker"));
        place->up = !site_is_down && json_is_true(json_object_get(worker, "up"));
        if (!place->up) {
            snprintf(place->why_not, sizeof(place->why_not), "%s",
                     site_is_down ? site_is_down : "it is not connected to its gateway");
        }
    }
}

void hdt_places_read(const json_t *status, struct hdt_places *places)
{
    const json_t *site;
    size_t i;

    memset(places, 0, sizeof(*places));
    place_add(places, text_of(status, "site"), "")->up = true;
    workers_add(places, status, text_of(status, "site"), NULL);
    json_array_foreach(json_object_get(status, "sites"), i, site)
    {
        struct hdt_place *place = place_add(places, text_of(site, "site"), "");
        char why[sizeof(place->why_not)];

        place->up = json_is_true(json_object_get(site, "up"));
        snprintf(why, sizeof(why), "no session with its site: %s", text_of(site, "why_down"));
        if (!place->up) {
            snprintf(place->why_not, sizeof(place->why_not), "%s", why);
        }
        workers_add(places, status, text_of(site, "site"), place->up ? NULL : why);
    }
}

void hdt_places_release(struct hdt_places *places)
{
    free(places->items);
    memset(places, 0, sizeof(*places));
}

enum hdt_status hdt_place_ask(struct hdt_gwclient *client, const struct hdt_place *place,
                              struct hdt_gwclient_request *request, json_t **body,
                              struct hdt_error *err)
{
    enum hdt_status status;

    if (!place->up) {
        json_decref(request->body);
        return hdt_error_set(err, HDT_EPEER, "%s cannot be asked: %s", place->address,
                             place->why_not);
    }
    request->to = place->address;
    status = hdt_gwclient_ask(client, request, body, err);
    if (status != HDT_OK) {
        hdt_error_prefix(err, "%s gives no '%s'", place->address, request->type);
    }
    return status;
}

enum hdt_status hdt_places_status(struct hdt_gwclient *client, json_t **status,
                                  struct hdt_error *err)
{
    struct hdt_gwclient_request request = {.type = "status", .expect = "status.is"};

    return hdt_gwclient_ask(client, &request, status, err);
}
