/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/validated.h"

enum hdt_validated_class hdt_validated_class_of(enum hdt_op_kind kind)
{
    switch (kind) {
    case HDT_OP_FORWARD:
        return HDT_VALIDATED_FORWARD;
    case HDT_OP_BACKWARD:
    case HDT_OP_BACKWARD_INPUT:
    case HDT_OP_BACKWARD_WEIGHT:
        return HDT_VALIDATED_BACKWARD;
    case HDT_OP_SEND_TOKENS:
    case HDT_OP_SEND_LABELS:
    case HDT_OP_SEND_FORWARD:
    case HDT_OP_SEND_BACKWARD:
        return HDT_VALIDATED_SEND;
    case HDT_OP_RECV_TOKENS:
    case HDT_OP_RECV_LABELS:
    case HDT_OP_RECV_FORWARD:
    case HDT_OP_RECV_BACKWARD:
        return HDT_VALIDATED_RECV;
    case HDT_OP_LOAD:
        return HDT_VALIDATED_LOAD;
    case HDT_OP_STEP:
        return HDT_VALIDATED_STEP;
    default:
        return HDT_VALIDATED_SYNC;
    }
}
