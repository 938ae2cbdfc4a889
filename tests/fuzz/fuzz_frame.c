/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Any 64 bytes: a header that is accepted packs to bytes that are accepted again, and its sizes
 * hold to their limits. */
#include "tests/fuzz/fuzz.h"
#include "src/core/frame.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN] = {0x48, 0x44, 0x54, 0x31, HDT_FRAME_VERSION};
    uint8_t again[HDT_FRAME_HEADER_LEN];
    struct hdt_frame frame;
    struct hdt_error err;

    if (len < HDT_FRAME_HEADER_LEN) {
        /* Short inputs fill the fields behind magic and version. */
        memcpy(bytes + 5, data, len < sizeof(bytes) - 5 ? len : sizeof(bytes) - 5);
    } else {
        memcpy(bytes, data, sizeof(bytes));
    }
    /* What gets past the check is what is to be looked at. */
    bytes[20] = (uint8_t)hdt_frame_crc(bytes);
    bytes[21] = (uint8_t)(hdt_frame_crc(bytes) >> 8);
    if (hdt_frame_unpack(bytes, &frame, &err) != HDT_OK) {
        HDT_ASSERT(err.msg[0] != '\0');
        return 0;
    }
    HDT_ASSERT(frame.frame_len <= HDT_FRAME_MAX_LEN);
    HDT_ASSERT(frame.kind != HDT_FRAME_CHUNK || frame.offset + frame.len <= frame.frame_len);
    HDT_ASSERT(frame.kind != HDT_FRAME_MSG || frame.coded_len <= HDT_FRAME_MAX_MSG);
    hdt_frame_pack(&frame, again);
    HDT_ASSERT(memcmp(bytes, again, sizeof(bytes)) == 0);
    return 0;
}
