/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/link.h"

#include <string.h>

struct link_form {
    const char *prefix;
    const struct hdt_link_ops *ops;
};

static const struct link_form link_forms[] = {{"unix:", &hdt_link_shm}, {"tls:", &hdt_link_tcp}};

const struct hdt_link_ops *hdt_link_ops_for(const char *address)
{
    for (size_t i = 0; i < sizeof(link_forms) / sizeof(link_forms[0]); i++) {
        if (strncmp(address, link_forms[i].prefix, strlen(link_forms[i].prefix)) == 0) {
            return link_forms[i].ops;
        }
    }
    return NULL;
}

bool hdt_pool_contains(const struct hdt_pool *pool, uint64_t offset, uint64_t len)
{
    return offset <= pool->len && len <= pool->len - offset;
}
