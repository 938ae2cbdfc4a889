/* SPDX-License-Identifier: Apache-2.0 */
/* A module that must be refused: its interface number is not ours; or, as backend_nosymbol, it has
 * no table at all. */
#include "config.h"

#include "runtime/backend.h"

#ifndef NO_SYMBOL
static const struct hdt_backend table = {.abi = HDT_BACKEND_ABI + 1, .name = "oldabi"};

extern const struct hdt_backend *const hdt_backend_module;
__attribute__((visibility("default"))) const struct hdt_backend *const hdt_backend_module = &table;
#else
extern const int hdt_backend_nothing;
__attribute__((visibility("default"))) const int hdt_backend_nothing = 0;
#endif
