/* SPDX-License-Identifier: Apache-2.0 */
/* A module as one is while its ops are being written, under a name that "auto" tries first: one op,
 * and a driver that fails. Or, with NEEDS_GONE, a module whose vendor's library is not here. */
#include "config.h"

#include "runtime/backend.h"

#ifdef NEEDS_GONE
int hdt_gone(void);
#else
static int hdt_gone(void)
{
    return 0;
}
#endif

static enum hdt_status partial_count(int *n_devices, struct hdt_error *err)
{
    (void)n_devices;
    if (err) {
        *err =
            (struct hdt_error){.status = HDT_EIO, .msg = "cannot count devices: driver is on fire"};
    }
    return hdt_gone() == 0 ? HDT_EIO : HDT_ENOENT;
}

static void partial_zero(struct hdt_stream *s, void *x, size_t bytes)
{
    (void)s;
    (void)x;
    (void)bytes;
}

static const struct hdt_ops ops = {.zero = partial_zero};
static const struct hdt_backend table = {
    .abi = HDT_BACKEND_ABI, .name = "cuda", .device_count = partial_count, .ops = &ops};

extern const struct hdt_backend *const hdt_backend_module;
__attribute__((visibility("default"))) const struct hdt_backend *const hdt_backend_module = &table;
