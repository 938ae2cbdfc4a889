/* SPDX-License-Identifier: Apache-2.0 */
/* The data plane's scenarios without Criterion, which does not start under ThreadSanitizer. */
#include "config.h"

#include "compress/codec.h"
#include "tests/support/dp_rig.h"

int main(void)
{
    hdt_rig_scenario_exchange(HDT_CODEC_NONE, false, 20);
    hdt_rig_scenario_exchange(HDT_CODEC_LOSSLESS, true, 12);
    hdt_rig_scenario_three_sites(12);
    hdt_rig_scenario_breaks(30);
    hdt_rig_scenario_forgotten(20);
    hdt_rig_scenario_restart(20);
    return 0;
}
