/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors files. Input: length of the data part (2 bytes), then the JSON. */
#include "config.h"

#include "src/core/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hdt_error err = {0};
    uint64_t data_len;
    enum hdt_status status;

    if (size < 2) {
        return 0;
    }
    data_len = data[0] | (uint64_t)data[1] << 8;
    status = hdt_safetensors_check_header((const char *)data + 2, size - 2, data_len, &err);
    HDT_ASSERT(status == HDT_OK || (status == HDT_EINVAL && err.msg[0] != '\0'));
    return 0;
}
