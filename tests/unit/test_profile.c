/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles on a machine that stands still now and then: the cpu backend, with halts in it. */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "runtime/profile.h"

#include <criterion/criterion.h>
#include <time.h>

#define HALT_S 0.5

static struct hdt_backend halting;
static int n_waits, halt_at, n_halts;

/* As if something else had the processor: of the waits from halt_at on, n_halts take so long. */
static enum hdt_status halting_wait(struct hdt_stream *stream, struct hdt_error *err)
{
    const struct timespec halt = {.tv_nsec = (long)(HALT_S * 1e9)};

    if (n_waits >= halt_at && n_waits < halt_at + n_halts) {
        nanosleep(&halt, NULL);
    }
    n_waits++;
    return hdt_backend_cpu.stream_wait(stream, err);
}

static const struct hdt_profile_shape shape = {.model = {.V = 64,
                                                         .C = 32,
                                                         .L = 2,
                                                         .NH = 2,
                                                         .NKV = 1,
                                                         .HS = 16,
                                                         .F = 64,
                                                         .T = 32,
                                                         .rms_norm_eps = 1e-5f},
                                               .micro_batch = 1,
                                               .seq_len = 16};

static void measure(struct hdt_profile *profile)
{
    const struct hdt_device_conf conf = {.n_threads = 1};
    struct hdt_device *device;
    struct hdt_error err = {0};

    halting = hdt_backend_cpu;
    halting.stream_wait = halting_wait;
    n_waits = 0;
    cr_assert_eq(hdt_backend_cpu.device_open(&conf, &device, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_profile_measure(&halting, device, &shape, profile, &err), HDT_OK, "%s",
                 err.msg);
    hdt_backend_cpu.device_close(device);
}

/* Wherever the halts fall, a unit of this model takes nowhere near as long as one of them. */
Test(profile, a_machine_that_stands_still_for_a_moment_is_not_believed, .timeout = 120)
{
    struct hdt_profile p;

    n_halts = 2;
    for (halt_at = 21; halt_at <= 27; halt_at += 3) { /* in the first runs of a block, by and by */
        measure(&p);
        cr_expect_lt(p.embed_fwd_s + p.embed_bwd_s, HALT_S / 4, "halt at %d", halt_at);
        cr_expect_lt(p.block_fwd_s + p.block_bwd_s, HALT_S / 4, "halt at %d", halt_at);
        cr_expect_lt(p.head_fwd_s + p.head_bwd_s, HALT_S / 4, "halt at %d", halt_at);
    }
}

/* One product of two is in each half, so that neither is nothing, nor much more than the whole. */
Test(profile, halves_of_a_backward_are_measured_apart)
{
    struct hdt_profile p;

    n_halts = 0;
    measure(&p);
    cr_expect_gt(p.block_bwd_input_s, 0.1 * p.block_bwd_s);
    cr_expect_gt(p.block_bwd_weight_s, 0.1 * p.block_bwd_s);
    cr_expect_gt(p.block_bwd_input_s + p.block_bwd_weight_s, 0.5 * p.block_bwd_s);
    cr_expect_lt(p.block_bwd_input_s + p.block_bwd_weight_s, 3 * p.block_bwd_s);
}

/* A device whose memory is not the host's, and whose copies take a while. */
#define COPY_S 0.002

static struct hdt_backend far_away;

static void slow_copy(struct hdt_stream *stream, void *dst, const void *src, size_t bytes,
                      enum hdt_copy_kind kind)
{
    const struct timespec pause = {.tv_nsec = (long)(COPY_S * 1e9)};

    nanosleep(&pause, NULL);
    hdt_backend_cpu.copy(stream, dst, src, bytes, kind);
}

/* The host's codecs alone would be a thousand times as fast: a frame out and in is two copies. */
Test(profile, frames_of_a_device_are_measured_as_a_run_moves_them)
{
    const struct hdt_device_conf conf = {.n_threads = 1};
    const double bytes = 4.0 * 16 * 32;
    struct hdt_device *device;
    struct hdt_profile p;

    far_away = hdt_backend_cpu;
    far_away.caps &= ~(uint32_t)HDT_BACKEND_HOST_MEMORY;
    far_away.copy = slow_copy;
    cr_assert_eq(hdt_backend_cpu.device_open(&conf, &device, NULL), HDT_OK);
    cr_assert_eq(hdt_profile_measure(&far_away, device, &shape, &p, NULL), HDT_OK);
    hdt_backend_cpu.device_close(device);
    cr_expect_lt(p.copy_bytes_per_s, bytes / COPY_S);
    cr_expect_lt(p.cast_bytes_per_s, bytes / COPY_S);
    cr_expect_gt(p.copy_bytes_per_s, 0);
    cr_expect_gt(p.cast_bytes_per_s, 0);
}
