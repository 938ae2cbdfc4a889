/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_CA_FOLDER_H
#define HDT_CLI_CA_FOLDER_H

/* What the sub-commands of `hdt ca` share. */
#include "src/net/ca.h"

struct json_t;

/* The authority's folder: as given, else $HDT_CA_DIR, else ~/.hdt/ca. To be freed. */
char *hdt_ca_folder_find(const char *given);

/* Open the authority there. */
enum hdt_status hdt_ca_folder_open(const char *given, struct hdt_ca **ca, struct hdt_error *err);

/* "2027-11-28", of seconds since 1970. Returns buf. */
const char *hdt_ca_date_format(int64_t seconds, char buf[16]);

/* A certificate as --json shows it; new reference. */
struct json_t *hdt_ca_entry_to_json(const struct hdt_ca_entry *entry);

/* The number of --days, 1 to HDT_CA_DAYS_MAX; 0: it is none. */
#define HDT_CA_DAYS_MAX 36500
int64_t hdt_ca_days_parse(const char *arg);

extern const struct hdt_cmd hdt_cmd_ca_bundle, hdt_cmd_ca_install;

#endif /* HDT_CLI_CA_FOLDER_H */
