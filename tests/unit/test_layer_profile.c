/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/layer_profile.h"
#include "src/core/devices.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static enum hdt_status parse(const char *text, struct hdt_layer_profile *profile,
                             struct hdt_error *err)
{
    return hdt_layer_profile_parse(text, strlen(text), "p.json", profile, err);
}

#define HEAD "{\"model\": \"m\", \"device\": \"d\", \"seq_len\": 128,\n \"layers\": ["

Test(layer_profile, between_two_micro_batches_lies_a_line)
{
    /* Out of order, as a writer may have it. */
    static const char text[] =
        HEAD "{\"times\": [\n"
             "{\"tp\": 2, \"micro_batch\": 8, \"forward_s\": 0.007, \"backward_s\": 0.020},\n"
             "{\"tp\": 2, \"micro_batch\": 2, \"forward_s\": 0.004, \"backward_s\": 0.008},\n"
             "{\"tp\": 1, \"micro_batch\": 2, \"forward_s\": 0.1},\n"
             "{\"tp\": 2, \"micro_batch\": 4, \"forward_s\": 0.005, \"backward_s\": null}]}]}";
    /* By hand: forward 0.004 + (mb - 2) / 2 * 0.001, from 4 on 0.005 + (mb - 4) / 4 * 0.002;
     * backward, known at 2 and 8 only, 0.008 + (mb - 2) / 6 * 0.012. At 1 the backward's line gives
     * 0.006, more than half of 0.008. */
    static const struct {
        int64_t micro_batch;
        double fwd, bwd;
    } want[] = {
        {1, 0.0035, 0.006}, {2, 0.004, 0.008}, {3, 0.0045, 0.010},
        {4, 0.005, 0.012},  {6, 0.006, 0.016}, {16, 0.011, 0.036},
    };
    struct hdt_layer_profile profile;
    struct hdt_error err = {0};

    cr_assert_eq(parse(text, &profile, &err), HDT_OK, "%s: %s", err.where, err.msg);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct hdt_layer_times t;

        cr_assert_eq(
            hdt_layer_profile_times(&profile, HDT_LAYER_BLOCK, 2, want[i].micro_batch, &t, &err),
            HDT_OK, "%s", err.msg);
        cr_expect(fabs(t.forward_s - want[i].fwd) < 1e-12, "%g", t.forward_s);
        cr_expect(fabs(t.backward_s - want[i].bwd) < 1e-12, "%g", t.backward_s);
        cr_expect(isnan(t.recompute_s) && isnan(t.backward_input_s));
        cr_expect_eq(t.micro_batch, want[i].micro_batch);
    }
    hdt_layer_profile_release(&profile);
}

Test(layer_profile, a_line_never_promises_too_much)
{
    /* More than in proportion from 2 to 4, and less time at 16 than at 8. */
    static const char text[] = HEAD "{\"times\": [{\"micro_batch\": 2, \"forward_s\": 0.001},\n"
                                    "{\"micro_batch\": 4, \"forward_s\": 0.009},\n"
                                    "{\"micro_batch\": 8, \"forward_s\": 0.020},\n"
                                    "{\"micro_batch\": 16, \"forward_s\": 0.018}]}]}";
    struct hdt_layer_profile profile;
    struct hdt_layer_times t;
    struct hdt_error err = {0};

    cr_assert_eq(parse(text, &profile, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layer_profile_times(&profile, HDT_LAYER_BLOCK, 1, 1, &t, &err), HDT_OK);
    cr_expect_eq(t.forward_s, 0.0005); /* half of the smallest, not below 0 */
    cr_assert_eq(hdt_layer_profile_times(&profile, HDT_LAYER_BLOCK, 1, 64, &t, &err), HDT_OK);
    cr_expect_eq(t.forward_s, 0.018); /* that of the largest, not less */
    hdt_layer_profile_release(&profile);
}

Test(layer_profile, backward_is_the_sum_of_its_parts)
{
    static const char text[] =
        HEAD "{\"times\": [{\"micro_batch\": 1, \"forward_s\": 1, \"backward_input_s\": 1.25,"
             " \"backward_weight_s\": 0.75, \"recompute_s\": 1.5}]}]}";
    struct hdt_layer_profile profile;
    struct hdt_layer_times t;
    struct hdt_error err = {0};

    cr_assert_eq(parse(text, &profile, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layer_profile_times(&profile, HDT_LAYER_BLOCK, 1, 1, &t, &err), HDT_OK);
    cr_expect_eq(t.backward_s, 2.0);
    cr_expect_eq(t.backward_weight_s, 0.75);
    cr_expect_eq(t.recompute_s, 1.5);
    hdt_layer_profile_release(&profile);
}

Test(layer_profile, says_what_was_not_measured)
{
    static const char text[] = HEAD "{\"times\": [{\"tp\": 2, \"micro_batch\": 4, "
                                    "\"forward_s\": 1}, {\"tp\": 8, \"micro_batch\": 4, "
                                    "\"forward_s\": 1}]}]}";
    struct hdt_layer_profile profile;
    struct hdt_layer_times t = {.tp = 77};
    struct hdt_error err = {0};

    cr_assert_eq(parse(text, &profile, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_expect_eq(hdt_layer_profile_times(&profile, HDT_LAYER_BLOCK, 4, 4, &t, &err), HDT_ENOENT);
    cr_expect_str_eq(err.msg, "the profile of m on d has no block at tensor-parallel degree 4");
    cr_expect_str_eq(err.hint, "measured: 2, 8");
    cr_expect_eq(hdt_layer_profile_times(&profile, HDT_LAYER_BLOCK, 2, 8, &t, &err), HDT_ENOENT);
    cr_expect_str_eq(err.msg, "the profile of m on d has block at degree 2 for micro-batch 4 only, "
                              "not 8");
    cr_expect_eq(hdt_layer_profile_times(&profile, HDT_LAYER_HEAD, 2, 4, &t, &err), HDT_ENOENT);
    cr_expect_str_eq(err.msg, "the profile of m on d has no head");
    cr_expect_eq(t.tp, 77);
    hdt_layer_profile_release(&profile);
}

Test(layer_profile, refuses_with_place_and_cause)
{
    static const struct {
        const char *text, *where, *msg;
    } bad[] = {
        {"{\"model\": \"m\", \"device\": \"d\",\n \"seq_len\": 0.5}", "p.json:2:13",
         "cannot set 'seq_len': '0.5' is not a whole number"},
        {HEAD "{\"times\": [{\"micro_batch\": 1,\n \"forward_s\": -1}]}]}", "p.json:3:15",
         "cannot set 'layers[0].times[0].forward_s': -1 is too small"},
        {HEAD "{\"times\": [{\"micro_batch\": 1,\n \"forwards\": 1}]}]}", "p.json:3:2",
         "unknown key 'layers[0].times[0].forwards'"},
        {HEAD "{\"times\": [{\"micro_batch\": 1},\n {\"micro_batch\": 1}]}]}", "p.json:3:2",
         "tp 1, micro-batch 1 of block stands here twice"},
        {HEAD "{\"kind\": \"head\"},\n {\"kind\": \"head\"}]}", "p.json:3:2",
         "a layer of kind head stands here twice"},
        {"{\"model\": \"m\", \"device\": \"d\",\n \"precision\": \"fp64\"}", "p.json:2:15",
         "cannot set 'precision': 'fp64' is no precision"},
        {"{\"model\": \"m\", \"device\": \"d\", \"layers\": []}", "p.json:1:41",
         "the profile has no layers"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hdt_layer_profile profile;
        struct hdt_error err = {0};

        cr_assert_eq(parse(bad[i].text, &profile, &err), HDT_EINVAL, "%s", bad[i].text);
        cr_expect_str_eq(err.where, bad[i].where, "%s: %s", err.where, err.msg);
        cr_expect_str_eq(err.msg, bad[i].msg);
    }
}

Test(layer_profile, half_a_file_is_refused)
{
    struct hdt_layer_profile profile;
    struct hdt_error err = {0};

    cr_expect_eq(parse("{\"model\": \"m\",\n \"device\": ", &profile, &err), HDT_EINVAL);
    cr_expect_eq(strncmp(err.where, "p.json:", 7), 0, "%s", err.where);
    cr_expect_eq(strncmp(err.msg, "cannot read YAML: ", 18), 0, "%s", err.msg);
}

/* Every profile of the repository loads and names a device of the catalogue. */
Test(layer_profile, the_measured_ones_load)
{
    struct hdt_devices devices;
    struct hdt_error err = {0};
    DIR *folder = opendir(PROFILES);
    struct dirent *entry;
    int n = 0;

    cr_assert(folder);
    cr_assert_eq(hdt_devices_load(CATALOGUE, &devices, &err), HDT_OK, "%s", err.msg);
    while ((entry = readdir(folder))) {
        struct hdt_layer_profile profile;
        char path[4096];

        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", PROFILES, entry->d_name);
        cr_assert_eq(hdt_layer_profile_load(path, &profile, &err), HDT_OK, "%s: %s", err.where,
                     err.msg);
        cr_expect(hdt_devices_find(&devices, profile.device), "%s", profile.device);
        cr_expect(hdt_layer_profile_layer(&profile, HDT_LAYER_BLOCK));
        hdt_layer_profile_release(&profile);
        n++;
    }
    closedir(folder);
    cr_expect_eq(n, 16);
    hdt_devices_release(&devices);
}
