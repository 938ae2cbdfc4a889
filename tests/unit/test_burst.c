/* SPDX-License-Identifier: Apache-2.0 */
/* One stream for bursts, or all. */
#include "config.h"

#include "gateway/burst.h"

#include <criterion/criterion.h>

/* n windows; how many of them said that something changed. */
static int windows(struct hdt_burst *burst, int n, bool is_loaded)
{
    int n_changes = 0;

    for (int i = 0; i < n; i++) {
        n_changes += hdt_burst_window(burst, is_loaded, false);
    }
    return n_changes;
}

Test(burst, all_streams_before_a_probe_said_that_one_will_do)
{
    struct hdt_burst burst = {0};

    cr_expect_eq(windows(&burst, 100, false), 0);
    cr_expect_not(hdt_burst_uses_one(&burst));
    hdt_burst_probed(&burst, 24e6, 25e6);
    cr_expect(hdt_burst_uses_one(&burst));
}

/* A limit for each connection, or a core that cannot encrypt more. */
Test(burst, all_streams_where_one_carries_less)
{
    struct hdt_burst burst = {0};

    hdt_burst_probed(&burst, 40e6, 120e6);
    cr_expect_not(hdt_burst_uses_one(&burst));
    hdt_burst_probed(&burst, 0, 0);
    cr_expect_not(hdt_burst_uses_one(&burst));
}

Test(burst, load_that_lasts_uses_all_until_it_pauses_often)
{
    struct hdt_burst burst = {0};

    hdt_burst_probed(&burst, 25e6, 25e6);
    for (int step = 0; step < 100; step++) { /* three quarters of each step */
        cr_expect_eq(windows(&burst, 3, true), 0);
        cr_expect_eq(windows(&burst, 1, false), 0);
    }
    cr_expect_eq(windows(&burst, 30, true), 1);
    cr_expect_not(hdt_burst_uses_one(&burst));
    for (int pause = 0; pause < 20; pause++) { /* one now and then is no end of it */
        cr_expect_eq(windows(&burst, 1, false) + windows(&burst, 12, true), 0);
    }
    cr_expect_eq(windows(&burst, 30, false), 1);
    cr_expect(hdt_burst_uses_one(&burst));
}

/* The one stream hangs: the others do not wait for it to be given up. */
Test(burst, a_stream_that_hangs)
{
    struct hdt_burst burst = {0};

    hdt_burst_probed(&burst, 25e6, 25e6);
    cr_expect(hdt_burst_window(&burst, false, true));
    cr_expect_not(hdt_burst_uses_one(&burst));
}
