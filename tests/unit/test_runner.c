/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/log.h"
#include "src/core/ckpt_manifest.h"
#include "src/core/msg.h"
#include "tests/support/job_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static struct rig *rig;

static void setup(void)
{
    hdt_log_init("test", HDT_LOG_ERROR);
    rig = hdt_rig_new(12345);
}

static void teardown(void)
{
    hdt_rig_free(rig);
}

TestSuite(runner, .init = setup, .fini = teardown, .timeout = 120);

static const struct rig_run one = {
    .n_ranks = 1, .n_stages = 1, .stage_rank = {0}, .n_units = {6}, .steps = 8, .eval_every = 4};
static const struct rig_run two = {.n_ranks = 2,
                                   .n_stages = 2,
                                   .stage_rank = {0, 1},
                                   .n_units = {3, 3},
                                   .steps = 8,
                                   .eval_every = 4,
                                   .threads = {2, 1}};
static const struct rig_run three = {.n_ranks = 3,
                                     .n_stages = 3,
                                     .stage_rank = {0, 1, 2},
                                     .n_units = {1, 3, 2},
                                     .steps = 8,
                                     .eval_every = 4,
                                     .threads = {1, 3, 2}};

static void print_error(const struct rig_result *result)
{
    char *text = result->error ? json_dumps(result->error, 0) : NULL;

    if (text) {
        cr_log_error("%s", text);
    }
    free(text);
}

static void run_well(const struct rig_run *run, struct rig_result *result)
{
    hdt_rig_run(rig, run, result);
    print_error(result);
    if (result->error) {
        char *text = json_dumps(result->error, 0);

        cr_assert_fail("the run failed: %s", text);
    }
}

/* Every digit of every loss, and the weights. */
static void expect_same(const struct rig_result *a, const struct rig_result *b, int64_t from,
                        int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        cr_expect_eq(a->losses[step], b->losses[step], "step %d: %.17g and %.17g", (int)step,
                     a->losses[step], b->losses[step]);
        cr_expect_eq(a->norms[step], b->norms[step]);
    }
    cr_expect_eq(a->val_loss, b->val_loss, "%.17g and %.17g", a->val_loss, b->val_loss);
    cr_expect_str_eq(a->digest, b->digest);
}

Test(runner, one_two_and_three_stages_give_the_same_bits)
{
    struct rig_result a, b, c;

    run_well(&one, &a);
    run_well(&two, &b);
    run_well(&three, &c);
    cr_expect_eq(a.n_losses, 8);
    cr_expect_lt(a.losses[8], a.losses[1]);
    cr_expect(a.val_loss > 0 && a.val_loss < 6);
    cr_expect_eq(strlen(a.digest), 16);
    cr_expect_str_eq(a.digest, a.ckpt_digest, "the checkpoint holds what was trained");
    expect_same(&a, &b, 1, 8);
    expect_same(&a, &c, 1, 8);
}

/* Ops of one thread follow one another: none begins before the last one's end, waits are gaps. */
static void expect_trace(const char *path, int64_t n_steps)
{
    json_t *root = json_load_file(path, 0, NULL), *events, *event;
    double end_us[RIG_STAGES_MAX + 1] = {0};
    int64_t n_syncs = 0;
    size_t i;

    cr_assert(root, "%s", path);
    events = json_object_get(root, "traceEvents");
    json_array_foreach(events, i, event)
    {
        double ts = json_real_value(json_object_get(event, "ts"));
        double dur = json_real_value(json_object_get(event, "dur"));
        int64_t tid = json_integer_value(json_object_get(event, "tid"));
        const char *name = json_string_value(json_object_get(event, "name"));
        const json_t *args = json_object_get(event, "args");

        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0) {
            continue;
        }
        cr_assert(tid >= 0 && tid <= RIG_STAGES_MAX);
        /* Microseconds since 1970 have a quarter of one as their last digit in a double. */
        cr_expect(dur >= 0 && ts + 0.5 >= end_us[tid], "%s of %s begins %.1f us too early", name,
                  path, end_us[tid] - ts);
        end_us[tid] = ts + dur;
        n_syncs += strcmp(name, "NORM_SYNC") == 0 && !json_object_get(args, "eval");
    }
    cr_expect_eq(n_syncs, n_steps);
    json_decref(root);
}

Test(runner, traces_tell_waiting_from_work)
{
    struct rig_result result;

    run_well(&three, &result);
    for (int rank = 0; rank < three.n_ranks; rank++) {
        expect_trace(result.traces[rank], three.steps);
    }
}

Test(runner, tied_embeddings_give_the_same_bits)
{
    /* Apart, on one rank in two stages, and in one stage. */
    struct rig_run runs[4] = {one,
                              two,
                              three,
                              {.n_ranks = 2,
                               .n_stages = 3,
                               .stage_rank = {0, 1, 0},
                               .n_units = {2, 2, 2},
                               .steps = 8,
                               .eval_every = 4}};
    struct rig_result results[4];

    for (int i = 0; i < 4; i++) {
        runs[i].tied = true;
        run_well(&runs[i], &results[i]);
        expect_same(&results[0], &results[i], 1, 8);
    }
}

static const struct rig_run turns = {.n_ranks = 2,
                                     .n_stages = 4,
                                     .stage_rank = {0, 1, 0, 1},
                                     .n_units = {1, 2, 1, 2},
                                     .schedule = HDT_SCHEDULE_INTERLEAVED,
                                     .steps = 8,
                                     .eval_every = 4,
                                     .threads = {2, 1}};

/* Under each schedule, with data and checkpoints at each rank, and embeddings of both kinds. */
Test(runner, every_schedule_gives_the_same_bits)
{
    for (int tied = 0; tied < 2; tied++) {
        struct rig_run plain = three;
        struct rig_result a, b;

        plain.tied = tied;
        plain.schedule = HDT_SCHEDULE_1F1B;
        run_well(&plain, &a);
        for (int kind = HDT_SCHEDULE_GPIPE; kind < HDT_SCHEDULE_KIND_COUNT; kind++) {
            struct rig_run run = kind == HDT_SCHEDULE_INTERLEAVED ? turns : plain;

            run.tied = tied;
            run.schedule = (enum hdt_schedule_kind)kind;
            run.n_more = 2;
            run.data_rank = kind % run.n_ranks;
            run_well(&run, &b);
            expect_same(&a, &b, 1, 8);
        }
    }
}

/* Several stages of a rank that take no turns, and data that comes from beside them. */
Test(runner, schedules_of_uneven_ranks_give_the_same_bits)
{
    struct rig_run run = {.n_ranks = 3,
                          .n_stages = 4,
                          .stage_rank = {0, 1, 0, 2},
                          .n_units = {2, 1, 2, 1},
                          .data_rank = 1,
                          .n_more = 1,
                          .steps = 8,
                          .eval_every = 4};
    struct rig_result a, b;

    run_well(&one, &a);
    for (int i = 0; i < 3; i++) {
        run.schedule = (enum hdt_schedule_kind[]){HDT_SCHEDULE_GPIPE, HDT_SCHEDULE_ZB_H1,
                                                  HDT_SCHEDULE_ZB_MEM}[i];
        run_well(&run, &b);
        expect_same(&a, &b, 1, 8);
    }
    run = turns;
    run.data_rank = 1;
    run_well(&run, &b);
    expect_same(&a, &b, 1, 8);
    run.n_ranks = 3; /* one of them only reads data */
    run.data_rank = 2;
    run_well(&run, &b);
    expect_same(&a, &b, 1, 8);
}

Test(runner, data_may_lie_with_another_rank)
{
    struct rig_run last = three, middle = three;
    struct rig_result a, b, c;

    last.data_rank = 2;
    middle.data_rank = 1;
    middle.recompute = true;
    run_well(&one, &a);
    run_well(&last, &b);
    run_well(&middle, &c);
    expect_same(&a, &b, 1, 8);
    expect_same(&a, &c, 1, 8);
}

Test(runner, a_lost_connection_changes_no_bit)
{
    struct rig_run cut = three;
    struct rig_result a, b;

    cut.cut_every = 1;
    cut.checkpoint_every = 3;
    run_well(&one, &a);
    run_well(&cut, &b);
    cr_expect_geq(b.n_cuts, 8);
    expect_same(&a, &b, 1, 8);
    hdt_rig_result_release(&b);
    cut.cut_forgets = true;
    run_well(&cut, &b);
    expect_same(&a, &b, 1, 8);
}

Test(runner, resumes_on_another_number_of_stages)
{
    struct rig_run first = two, rest = three;
    struct rig_result whole, a, b, c;

    run_well(&one, &whole);
    first.stop_first = true;
    first.ckpt_name = "first";
    run_well(&first, &a);
    cr_expect(a.stopped);
    cr_assert_eq(a.n_losses, 1);
    cr_expect_eq(a.ckpt_step, a.n_losses);
    rest.resume = "first";
    rest.ckpt_name = "second";
    run_well(&rest, &b);
    cr_expect_eq(b.start_step, a.n_losses);
    expect_same(&whole, &b, a.n_losses + 1, 8);
    rest = one;
    rest.resume = a.checkpoint;
    run_well(&rest, &c);
    expect_same(&whole, &c, a.n_losses + 1, 8);
}

Test(runner, a_tied_model_resumes_with_its_ends_apart)
{
    struct rig_run first = one, rest = three;
    struct rig_result whole, a, b;

    first.tied = true;
    rest.tied = true;
    run_well(&first, &whole);
    first.stop_first = true;
    first.ckpt_name = "first";
    run_well(&first, &a);
    rest.resume = "first";
    run_well(&rest, &b);
    cr_assert_eq(b.start_step, 1);
    expect_same(&whole, &b, 2, 8);
}

Test(runner, periodic_checkpoints_do_not_disturb)
{
    struct rig_run run = two;
    struct rig_result a, b;

    run_well(&one, &a);
    run.checkpoint_every = 2;
    run_well(&run, &b);
    expect_same(&a, &b, 1, 8);
    cr_expect_geq(b.n_ckpts, 2);
    cr_expect_eq(b.ckpt_step, 8);
    cr_expect_str_eq(b.ckpt_digest, b.digest);
}

Test(runner, lossy_codecs_train_nearly_as_well)
{
    struct rig_run run = three;
    struct rig_result a, b;

    run_well(&one, &a);
    run.codec = "bf16";
    run_well(&run, &b);
    cr_expect(fabs(b.val_loss - a.val_loss) < 0.01 * a.val_loss, "%g and %g", a.val_loss,
              b.val_loss);
    cr_expect_str_neq(a.digest, b.digest);
    hdt_rig_result_release(&b);
    run.codec = "int8";
    run_well(&run, &b);
    cr_expect(fabs(b.val_loss - a.val_loss) < 0.02 * a.val_loss, "%g and %g", a.val_loss,
              b.val_loss);
}

/* A codec with feedback owes what it has not sent yet: resumed, from either end of the plan, with
 * connections lost on the way or after a restart, it goes on as if nothing had been. */
Test(runner, a_codec_with_feedback_resumes_with_the_same_bits)
{
    static const char *const codecs[] = {"topk:8", "lowrank:2"};

    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++) {
        struct rig_run run = three, rest;
        struct rig_result whole, a, b, c;

        run.codec = codecs[i];
        run_well(&run, &whole);
        run.data_rank = 1; /* one end is the checkpoint rank's own, the others travel */
        run.checkpoint_every = 3;
        run.cut_every = 1;
        run.ckpt_name = i ? "lowrank" : "topk";
        run_well(&run, &a);
        expect_same(&whole, &a, 1, 8);
        rest = run;
        rest.cut_every = 0;
        rest.stop_first = true;
        rest.ckpt_name = i ? "lowrank-1" : "topk-1";
        run_well(&rest, &b);
        cr_assert_eq(b.ckpt_step, 1);
        rest.stop_first = false;
        rest.resume = b.checkpoint;
        rest.data_rank = 2;
        rest.ckpt_name = i ? "lowrank-2" : "topk-2";
        run_well(&rest, &c);
        cr_expect_eq(c.start_step, 1);
        expect_same(&whole, &c, 2, 8);
        hdt_rig_result_release(&c);
        rest.resume = NULL;
        rest.restart_after = 4;
        rest.ckpt_name = i ? "lowrank-3" : "topk-3";
        run_well(&rest, &c);
        expect_same(&whole, &c, 5, 8);
        hdt_rig_result_release(&whole);
        hdt_rig_result_release(&a);
        hdt_rig_result_release(&b);
        hdt_rig_result_release(&c);
    }
}

/* ---- guards in checkpoints ---- */

/* Digests of a file that was changed, in the manifest that is to name them. */
static void file_digest(json_t *root, const char *name, const uint8_t *bytes, size_t len)
{
    json_t *file = json_object_get(json_object_get(root, "files"), name);
    json_t *state =
        json_object_get(json_object_get(json_object_get(root, "tensors"), name), "state");
    const json_t *range = json_object_get(state, "range");
    const size_t begin = (size_t)json_integer_value(json_array_get(range, 0));
    const size_t end = (size_t)json_integer_value(json_array_get(range, 1));
    uint8_t sha[32];
    char hex[65];

    cr_assert_eq(end, len);
    cr_assert_eq(EVP_Digest(bytes, len, sha, NULL, EVP_sha256(), NULL), 1);
    for (size_t i = 0; i < sizeof(sha); i++) {
        snprintf(hex + 2 * i, 3, "%02x", sha[i]);
    }
    json_object_set_new(file, "sha256", json_string(hex));
    json_object_set_new(state, "xxh3", hdt_msg_u64_hex(XXH3_64bits(bytes + begin, end - begin)));
}

/* Bytes of the saved form, as compress/ladder.c has it. */
#define GUARD_LEN     80
#define GUARD_PLANNED 33
#define GUARD_LEAST   35

/* All guards of a checkpoint, as if each had stepped up to the most exact codec in a frame before.
 * Returns how many there are. */
static int step_up_guards(const char *checkpoint)
{
    struct hdt_ckpt_manifest manifest;
    struct hdt_error err = {0};
    const char *name;
    json_t *value;
    int n = 0;

    cr_assert_eq(hdt_ckpt_manifest_read(checkpoint, &manifest, &err), HDT_OK, "%s", err.msg);
    json_object_foreach(json_object_get(manifest.root, "files"), name, value)
    {
        uint8_t bytes[4096], *guard;
        char path[4400];
        size_t len;
        FILE *file;

        if (strncmp(name, "feedback-", 9) != 0) {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", checkpoint, name);
        file = fopen(path, "r+b");
        cr_assert_not_null(file);
        len = fread(bytes, 1, sizeof(bytes), file);
        cr_assert_geq(len, GUARD_LEN);
        guard = bytes + len - GUARD_LEN;
        cr_assert_arr_eq(guard, "HDTGUARD", 8);
        cr_expect_eq(guard[GUARD_LEAST], guard[GUARD_PLANNED]);
        guard[GUARD_LEAST] = 0;
        rewind(file);
        cr_assert_eq(fwrite(bytes, 1, len, file), len);
        cr_assert_eq(fclose(file), 0);
        file_digest(manifest.root, name, bytes, len);
        n++;
    }
    cr_assert_eq(hdt_ckpt_manifest_write(manifest.root, checkpoint, &err), HDT_OK, "%s", err.msg);
    hdt_ckpt_manifest_release(&manifest);
    return n;
}

/* Where the guard stands goes with a checkpoint: at no codec, after trouble that is over, the run
 * goes on with the bits of one without codec, not with those of its own, fp16. Two ranks' guards
 * travel, the checkpoint rank's does not. */
Test(runner, a_guard_that_stepped_up_stays_there_when_resumed)
{
    struct rig_run run = three;
    struct rig_result first, plain, again, stepped;

    run.codec = "fp16";
    run.data_rank = 1;
    run.stop_first = true;
    run.ckpt_name = "guard-1";
    run_well(&run, &first);
    cr_assert_eq(first.ckpt_step, 1);
    run.stop_first = false;
    run.resume = first.checkpoint;
    run.ckpt_name = "guard-2";
    run_well(&run, &again);
    run.codec = "none";
    run.ckpt_name = "guard-3";
    run_well(&run, &plain);
    cr_assert_neq(again.losses[8], plain.losses[8]);
    run.codec = "fp16";
    run.ckpt_name = "guard-4";
    cr_expect_eq(step_up_guards(first.checkpoint), 4); /* both ways over two cuts */
    run_well(&run, &stepped);
    cr_expect_eq(stepped.start_step, 1);
    expect_same(&plain, &stepped, 2, 8);
    hdt_rig_result_release(&first);
    hdt_rig_result_release(&again);
    hdt_rig_result_release(&plain);
    hdt_rig_result_release(&stepped);
}

/* Feedback of an edge that is no more, or that the checkpoint lacks, is zeros; training goes on. */
Test(runner, feedback_that_is_not_there_starts_with_zeros)
{
    struct rig_run first = two, rest = three;
    struct rig_result whole, a, b;
    char file[4200];

    first.codec = rest.codec = "topk:8";
    run_well(&first, &whole);
    first.stop_first = true;
    first.ckpt_name = "first";
    run_well(&first, &a);
    rest.resume = a.checkpoint;
    rest.ckpt_name = "second";
    run_well(&rest, &b);
    cr_expect_eq(b.start_step, 1);
    cr_expect_eq(b.ckpt_step, 8);
    hdt_rig_result_release(&b);
    first.stop_first = false;
    first.resume = a.checkpoint;
    first.codec = "topk:4"; /* another codec has another file's worth of it */
    first.ckpt_name = "third";
    run_well(&first, &b);
    cr_expect_eq(b.ckpt_step, 8);
    snprintf(file, sizeof(file), "%s/feedback-activation_grad-3.bin", a.checkpoint);
    cr_expect_eq(access(file, R_OK), 0, "%s", file);
}

/* From the last checkpoint, or from the start, in the middle of a step or of a checkpoint. */
Test(runner, a_later_epoch_ends_with_the_same_bits)
{
    struct rig_run run = three;
    struct rig_result a, b;

    run_well(&one, &a);
    run.checkpoint_every = 2;
    run.restart_after = 5;
    run_well(&run, &b);
    cr_expect_geq(b.start_step, 2);
    expect_same(&a, &b, 1, 8);
    hdt_rig_result_release(&b);
    run.restart_at_once = true;
    run.checkpoint_every = 1;
    run.ckpt_name = "at-once";
    run_well(&run, &b);
    expect_same(&a, &b, 1, 8);
    hdt_rig_result_release(&b);
    run.checkpoint_every = 0;
    run.ckpt_name = "none";
    run_well(&run, &b);
    cr_expect_eq(b.start_step, 0);
    expect_same(&a, &b, 1, 8);
}

Test(runner, an_epoch_is_dropped_while_it_is_built)
{
    struct rig_run run = three;
    struct rig_result a, b;

    run_well(&one, &a);
    run.drop_first = true;
    run_well(&run, &b);
    expect_same(&a, &b, 1, 8);
}

static void expect_error(const struct rig_result *result, const char *status, const char *part)
{
    const char *msg = json_string_value(json_object_get(result->error, "msg"));

    cr_assert(result->error);
    cr_expect_str_eq(json_string_value(json_object_get(result->error, "status")), status);
    cr_expect(msg && strstr(msg, part), "'%s' is not in '%s'", part, msg);
}

Test(runner, too_little_memory_is_refused)
{
    struct rig_run run = one;
    struct rig_result result;

    run.memory_bytes = 100000;
    hdt_rig_run(rig, &run, &result);
    expect_error(&result, "ENOMEM", "it needs");
    hdt_rig_result_release(&result);
}

Test(runner, missing_and_damaged_checkpoints_are_refused)
{
    struct rig_run run = two;
    struct rig_result result;
    char path[4200];
    FILE *file;

    run.resume = "nowhere";
    hdt_rig_run(rig, &run, &result);
    expect_error(&result, "ENOENT", "cannot find a checkpoint");
    hdt_rig_result_release(&result);
    run.resume = NULL;
    run.steps = 2;
    run.ckpt_name = "ckpt";
    run_well(&run, &result);
    snprintf(path, sizeof(path), "%s/model.safetensors", result.checkpoint);
    file = fopen(path, "r+");
    cr_assert(file);
    fseek(file, -5, SEEK_END);
    fputc(0x55, file);
    fclose(file);
    run.resume = "ckpt";
    hdt_rig_run(rig, &run, &result);
    expect_error(&result, "EINVAL", "was altered");
    hdt_rig_result_release(&result);
}

Test(runner, a_full_disk_costs_checkpoints_and_no_step)
{
    struct rig_run run = three;
    struct rig_result a, b;

    run_well(&one, &a);
    run.checkpoint_every = 1;
    run.n_full = 2;
    run_well(&run, &b);
    cr_expect_geq(b.n_ckpts_failed, 2); /* the limit goes after the report of the second */
    cr_expect(strstr(b.ckpt_error, "File too large"), "%s", b.ckpt_error);
    cr_expect_geq(b.n_ckpts, 1);
    cr_expect_eq(b.ckpt_step, 8);
    cr_expect_str_eq(b.ckpt_digest, a.ckpt_digest);
    expect_same(&a, &b, 1, 8);
}

Test(runner, the_last_checkpoint_is_tried_again)
{
    struct rig_run run = three;
    struct rig_result a, b;

    run_well(&one, &a);
    run.n_full = 1;
    run_well(&run, &b);
    cr_expect_eq(b.n_ckpts_failed, 1, "%d: %s", b.n_ckpts_failed, b.ckpt_error);
    cr_expect_eq(b.n_ckpts, 1);
    cr_expect_str_eq(b.digest, a.digest);
    cr_expect_str_eq(b.ckpt_digest, a.digest);
}

/* The job's progress_timeout is 5 s. */
Test(runner, a_disk_that_stays_full_ends_the_job_with_its_newest_checkpoint)
{
    struct rig_run run = two;
    struct rig_result first, result;
    const char *hint;

    run.ckpt_name = "ckpt";
    run.steps = 4;
    run_well(&run, &first);
    run.resume = "ckpt";
    run.steps = 8;
    run.n_full = 1000;
    hdt_rig_run(rig, &run, &result);
    expect_error(&result, "EJOB", "cannot save the last checkpoint, of step 8");
    hint = json_string_value(json_object_get(result.error, "hint"));
    cr_expect(strstr(hint, first.checkpoint), "'%s' does not name %s", hint, first.checkpoint);
    hdt_rig_result_release(&result);
}

Test(runner, a_bit_that_flips_on_the_way_is_found_by_name)
{
    struct rig_run run = three;
    struct rig_result a, b, c;

    run_well(&one, &a);
    run.checkpoint_every = 3;
    run.n_flip = 1;
    run_well(&run, &b);
    cr_expect_eq(b.n_ckpts_failed, 1, "%d: %s", b.n_ckpts_failed, b.ckpt_error);
    cr_expect(strstr(b.ckpt_error, "damaged on its way") && strstr(b.ckpt_error, "model."), "%s",
              b.ckpt_error);
    cr_expect_str_eq(b.ckpt_digest, a.digest, "the last one is whole");
    run.resume = b.checkpoint;
    run.flip_load = true;
    run.steps = 10;
    hdt_rig_run(rig, &run, &c);
    expect_error(&c, "ECRC", "cannot load tensor 'model.");
    hdt_rig_result_release(&c);
}

Test(runner, another_jobs_checkpoints_are_not_overwritten)
{
    struct rig_run run = one;
    struct rig_result a, b;

    run.ckpt_name = "ckpt";
    run_well(&run, &a);
    hdt_rig_run(rig, &run, &b);
    expect_error(&b, "EEXIST", "wrote it, this is job");
    hdt_rig_result_release(&b);
    run.resume = a.checkpoint; /* going on behind them is no conflict */
    run.steps = 9;
    run_well(&run, &b);
    cr_expect_eq(b.ckpt_step, 9);
}

/* Step 1 makes the weights useless; a successor (which one is a matter of the compiler's rounding)
 * is refused, by every codec that carries it. */
Test(runner, a_diverged_run_stops_and_says_where)
{
    static const char *const codecs[] = {"none", "bf16", "int8"};
    struct rig_run run = two;
    struct rig_result result;

    run.lr = 1e3;
    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++) {
        run.codec = codecs[i];
        hdt_rig_run(rig, &run, &result);
        expect_error(&result, "EJOB", "values are not finite");
        expect_error(&result, "EJOB", "of stage 1, micro-batch ");
        expect_error(&result, "EJOB", ", step ");
        cr_expect_lt(result.n_losses, 8);
        hdt_rig_result_release(&result);
    }
}

Test(runner, a_lost_worker_is_named)
{
    struct rig_run run = two;
    struct rig_result result;

    run.lose_rank = 1;
    run.steps = 60;
    hdt_rig_run(rig, &run, &result);
    expect_error(&result, "ECANCELED", "worker w1 was stopped");
    hdt_rig_result_release(&result);
}
