/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_HOST_CODECS_H
#define HDT_TESTS_SUPPORT_HOST_CODECS_H

/*
 * The codecs of a device whose memory is the host's, by the scalar kernels: what stands around a
 * device's codecs is tried with them where no accelerator is. A stream is any pointer, no call
 * returns before its work is done.
 */
#include "compress/device.h"

extern const struct hdt_device_codecs hdt_host_codecs;

#endif /* HDT_TESTS_SUPPORT_HOST_CODECS_H */
