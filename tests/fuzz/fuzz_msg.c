/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Any bytes: what decodes, encodes to bytes that decode to the same value. */
#include "tests/fuzz/fuzz.h"
#include "src/base/buf.h"
#include "src/core/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct hdt_buf out = {0};
    struct hdt_error err;
    json_t *value = NULL, *again = NULL;

    if (hdt_msg_decode(data, len, &value, &err) != HDT_OK) {
        HDT_ASSERT(err.msg[0] != '\0');
        return 0;
    }
    hdt_msg_encode(value, &out);
    HDT_ASSERT(hdt_msg_decode(out.data, out.len, &again, &err) == HDT_OK);
    HDT_ASSERT(json_equal(value, again));
    json_decref(value);
    json_decref(again);
    hdt_buf_release(&out);
    return 0;
}
