/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/sync.h"

#include "runtime/wire.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SYNC_UP_MAGIC   0x55534448u /* "HDSU" */
#define SYNC_DOWN_MAGIC 0x44534448u /* "HDSD" */

/* ---- records ---- */

size_t hdt_sync_up_len(uint32_t n_items)
{
    return HDT_SYNC_HEADER_LEN + (size_t)n_items * HDT_SYNC_ITEM_LEN;
}

static void sync_pack_head(uint8_t *p, uint32_t magic, uint8_t phase, uint8_t flags)
{
    hdt_wire_put_u32(p, magic);
    hdt_wire_put_u16(p + 4, HDT_SYNC_VERSION);
    p[6] = phase;
    p[7] = flags;
}

void hdt_sync_up_pack(const struct hdt_sync_up *up, const struct hdt_sync_item *items, void *out)
{
    uint8_t *p = out;
    uint32_t i;

    memset(p, 0, hdt_sync_up_len(up->n_items));
    sync_pack_head(p, SYNC_UP_MAGIC, up->phase, up->flags);
    hdt_wire_put_u32(p + 8, up->rank);
    hdt_wire_put_u32(p + 12, up->n_items);
    hdt_wire_put_u64(p + 16, (uint64_t)up->step);
    hdt_wire_put_f64(p + 24, up->loss_sum);
    hdt_wire_put_u64(p + 32, up->n_tokens);
    hdt_wire_put_f64(p + 40, up->busy_s);
    hdt_wire_put_f64(p + 48, up->wait_s);
    p += HDT_SYNC_HEADER_LEN;
    for (i = 0; i < up->n_items; i++, p += HDT_SYNC_ITEM_LEN) {
        hdt_wire_put_u32(p, items[i].tensor);
        hdt_wire_put_u64(p + 8, items[i].value);
    }
}

void hdt_sync_down_pack(const struct hdt_sync_down *down, void *out)
{
    uint8_t *p = out;

    memset(p, 0, HDT_SYNC_DOWN_LEN);
    sync_pack_head(p, SYNC_DOWN_MAGIC, down->phase, down->flags);
    hdt_wire_put_u64(p + 16, (uint64_t)down->step);
    hdt_wire_put_f64(p + 24, down->loss);
    hdt_wire_put_f64(p + 32, down->norm);
    hdt_wire_put_f64(p + 40, down->clip_scale);
    hdt_wire_put_u64(p + 48, down->digest);
}

static enum hdt_status sync_check_head(const uint8_t *p, size_t len, uint32_t magic,
                                       struct hdt_error *err)
{
    const char *name = magic == SYNC_UP_MAGIC ? "SYNC_UP" : "SYNC_DOWN";

    if (len < HDT_SYNC_HEADER_LEN || hdt_wire_get_u32(p) != magic) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot read a frame of %zu bytes: it is no %s record", len, name);
    }
    if (hdt_wire_get_u16(p + 4) != HDT_SYNC_VERSION) {
        return hdt_error_set(err, HDT_EVERSION,
                             "cannot read a %s record: its version is %u, this worker's %d", name,
                             hdt_wire_get_u16(p + 4), HDT_SYNC_VERSION);
    }
    if (p[6] >= HDT_SYNC_PHASE_COUNT) {
        return hdt_error_set(err, HDT_EPROTO, "cannot read a %s record: its phase %u is unknown",
                             name, p[6]);
    }
    return HDT_OK;
}

enum hdt_status hdt_sync_up_unpack(const void *in, size_t len, struct hdt_sync_up *up,
                                   struct hdt_error *err)
{
    const uint8_t *p = in;

    HDT_TRY(sync_check_head(p, len, SYNC_UP_MAGIC, err));
    up->phase = p[6];
    up->flags = p[7];
    up->rank = hdt_wire_get_u32(p + 8);
    up->n_items = hdt_wire_get_u32(p + 12);
    up->step = (int64_t)hdt_wire_get_u64(p + 16);
    up->loss_sum = hdt_wire_get_f64(p + 24);
    up->n_tokens = hdt_wire_get_u64(p + 32);
    up->busy_s = hdt_wire_get_f64(p + 40);
    up->wait_s = hdt_wire_get_f64(p + 48);
    if (hdt_sync_up_len(up->n_items) != len) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot read a SYNC_UP record: %u items do not fill %zu bytes",
                             up->n_items, len);
    }
    return HDT_OK;
}

struct hdt_sync_item hdt_sync_item_get(const void *in, uint32_t idx)
{
    const uint8_t *p = (const uint8_t *)in + hdt_sync_up_len(idx);
    struct hdt_sync_item item = {hdt_wire_get_u32(p), hdt_wire_get_u64(p + 8)};

    return item;
}

enum hdt_status hdt_sync_down_unpack(const void *in, size_t len, struct hdt_sync_down *down,
                                     struct hdt_error *err)
{
    const uint8_t *p = in;

    HDT_TRY(sync_check_head(p, len, SYNC_DOWN_MAGIC, err));
    if (len != HDT_SYNC_DOWN_LEN) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot read a SYNC_DOWN record: it has %zu bytes, not %d", len,
                             HDT_SYNC_DOWN_LEN);
    }
    down->phase = p[6];
    down->flags = p[7];
    down->step = (int64_t)hdt_wire_get_u64(p + 16);
    down->loss = hdt_wire_get_f64(p + 24);
    down->norm = hdt_wire_get_f64(p + 32);
    down->clip_scale = hdt_wire_get_f64(p + 40);
    down->digest = hdt_wire_get_u64(p + 48);
    return HDT_OK;
}

/* ---- the root's sums ---- */

void hdt_sync_total_init(struct hdt_sync_total *total, uint32_t n_tensors)
{
    memset(total, 0, sizeof(*total));
    total->values = hdt_calloc(n_tensors, sizeof(*total->values));
    total->seen = hdt_calloc(n_tensors, 1);
    total->n_tensors = n_tensors;
}

void hdt_sync_total_release(struct hdt_sync_total *total)
{
    free(total->values);
    free(total->seen);
    memset(total, 0, sizeof(*total));
}

void hdt_sync_total_clear(struct hdt_sync_total *total)
{
    memset(total->values, 0, total->n_tensors * sizeof(*total->values));
    memset(total->seen, 0, total->n_tensors);
    total->loss_sum = 0;
    total->n_tokens = 0;
    total->flags = 0;
}

void hdt_sync_total_add(struct hdt_sync_total *total, const struct hdt_sync_up *up)
{
    total->loss_sum += up->loss_sum;
    total->n_tokens += up->n_tokens;
    total->flags |= up->flags;
}

enum hdt_status hdt_sync_total_item(struct hdt_sync_total *total, const struct hdt_sync_item *item,
                                    struct hdt_error *err)
{
    if (item->tensor >= total->n_tensors) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot add a SYNC_UP record: it names tensor %u of %u", item->tensor,
                             total->n_tensors);
    }
    if (total->seen[item->tensor]) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot add a SYNC_UP record: tensor %u was told before",
                             item->tensor);
    }
    total->seen[item->tensor] = 1;
    total->values[item->tensor] = item->value;
    return HDT_OK;
}

enum hdt_status hdt_sync_total_check(const struct hdt_sync_total *total, uint32_t n,
                                     struct hdt_error *err)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        if (!total->seen[i]) {
            return hdt_error_set(err, HDT_EPROTO,
                                 "cannot end a step: no rank has told of tensor %u", i);
        }
    }
    return HDT_OK;
}

double hdt_sync_total_norm(const struct hdt_sync_total *total, uint32_t n)
{
    double sum = 0;
    uint32_t i;

    for (i = 0; i < n; i++) {
        sum += hdt_wire_bits_f64(total->values[i]);
    }
    return sqrt(sum);
}

uint64_t hdt_sync_total_digest(const struct hdt_sync_total *total, uint32_t n)
{
    XXH3_state_t *state = XXH3_createState();
    uint64_t digest;
    uint8_t bytes[8];
    uint32_t i;

    HDT_ASSERT(state);
    XXH3_64bits_reset(state);
    for (i = 0; i < n; i++) {
        hdt_wire_put_u64(bytes, total->values[i]);
        XXH3_64bits_update(state, bytes, sizeof(bytes));
    }
    digest = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return digest;
}

double hdt_sync_clip_scale(double norm, double clip_norm)
{
    if (clip_norm <= 0 || norm <= clip_norm) {
        return 1;
    }
    return clip_norm / norm;
}
