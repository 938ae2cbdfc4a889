/* SPDX-License-Identifier: Apache-2.0 */
/* A vendor's library that a module is linked to and that is found nowhere when it is loaded. */
#include "config.h"

int hdt_gone(void);

__attribute__((visibility("default"))) int hdt_gone(void)
{
    return 0;
}
