/* SPDX-License-Identifier: Apache-2.0 */
/* The one symbol of backend_cpu.so. */
#include "config.h"

#include "runtime/cpu/cpu_device.h"

extern const struct hdt_backend *const hdt_backend_module;
__attribute__((visibility("default"))) const struct hdt_backend *const hdt_backend_module =
    &hdt_backend_cpu;
