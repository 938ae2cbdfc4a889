/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "tests/support/dp_rig.h"

#include <criterion/criterion.h>

Test(dataplane, exchanges_plain, .timeout = 60)
{
    hdt_rig_scenario_exchange(HDT_CODEC_NONE, false, 150);
}

Test(dataplane, exchanges_lossless, .timeout = 60)
{
    hdt_rig_scenario_exchange(HDT_CODEC_LOSSLESS, false, 100);
}

Test(dataplane, exchanges_with_a_worker_over_tls, .timeout = 60)
{
    hdt_rig_scenario_exchange(HDT_CODEC_NONE, true, 100);
}

Test(dataplane, joins_three_sites_and_local_ends, .timeout = 60)
{
    hdt_rig_scenario_three_sites(80);
}

Test(dataplane, survives_broken_streams, .timeout = 60)
{
    hdt_rig_scenario_breaks(150);
}

Test(dataplane, survives_restarts, .timeout = 60)
{
    hdt_rig_scenario_restart(100);
}
