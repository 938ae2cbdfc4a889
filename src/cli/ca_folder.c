/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/ca_folder.h"
#include "src/base/buf.h"

#include <jansson.h>
#include <stdlib.h>
#include <time.h>

char *hdt_ca_folder_find(const char *given)
{
    const char *env = getenv("HDT_CA_DIR"), *home = getenv("HOME");

    if (given) {
        return hdt_strdup(given);
    }
    return env && *env ? hdt_strdup(env) : hdt_asprintf("%s/.hdt/ca", home ? home : ".");
}

enum hdt_status hdt_ca_folder_open(const char *given, struct hdt_ca **ca, struct hdt_error *err)
{
    char *dir = hdt_ca_folder_find(given);
    enum hdt_status status = hdt_ca_open(dir, ca, err);

    free(dir);
    return status;
}

const char *hdt_ca_date_format(int64_t seconds, char buf[16])
{
    time_t t = (time_t)seconds;
    struct tm tm;

    strftime(buf, 16, "%Y-%m-%d", gmtime_r(&t, &tm));
    return buf;
}

json_t *hdt_ca_entry_to_json(const struct hdt_ca_entry *entry)
{
    char uri[HDT_IDENTITY_URI_CAP];
    json_t *json = json_object();

    json_object_set_new(json, "serial", json_string(entry->serial));
    json_object_set_new(json, "identity", json_string(hdt_identity_format(&entry->identity, uri)));
    json_object_set_new(json, "role", json_string(hdt_role_name(entry->identity.role)));
    json_object_set_new(json, "valid_from", json_integer(entry->dates.from_s));
    json_object_set_new(json, "valid_until", json_integer(entry->dates.until_s));
    json_object_set_new(json, "revoked_at",
                        entry->revoked_s ? json_integer(entry->revoked_s) : json_null());
    return json;
}

int64_t hdt_ca_days_parse(const char *arg)
{
    char *end;
    int64_t days = strtoll(arg, &end, 10);

    return *end || end == arg || days < 1 || days > HDT_CA_DAYS_MAX ? 0 : days;
}
