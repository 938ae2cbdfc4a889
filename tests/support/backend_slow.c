/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a slower machine, for tests: what the cpu backend computes, bit for bit, and each
 * large op then keeps its core as long as a machine would that is SLOW_TIMES slower. It counts
 * processor time, so that how much slower it is depends on no neighbour. While the file named in
 * HDT_TEST_FAST is there it is as fast as the cpu backend. While the one named in HDT_TEST_STUCK is
 * there no product ends: a device that does not answer. A product that has come to hang so writes a
 * byte to it.
 */
#include "config.h"

#include "runtime/cpu/cpu_device.h"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SLOW_TIMES 24

static int64_t thread_cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void stretch(int64_t begin_ns)
{
    const char *fast = getenv("HDT_TEST_FAST");
    const int64_t end_ns = begin_ns + SLOW_TIMES * (thread_cpu_ns() - begin_ns);

    if (fast && access(fast, F_OK) == 0) {
        return;
    }
    while (thread_cpu_ns() < end_ns) {
    }
}

static void slow_gemm(struct hdt_stream *s, const struct hdt_gemm *g)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    const int64_t begin_ns = thread_cpu_ns();
    const char *stuck = getenv("HDT_TEST_STUCK");
    int fd = stuck ? open(stuck, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;

    if (fd >= 0) {
        if (write(fd, ".", 1) != 1) {
            abort();
        }
        close(fd);
    }
    while (stuck && access(stuck, F_OK) == 0) {
        nanosleep(&pause, NULL);
    }

    hdt_cpu_ops.gemm(s, g);
    stretch(begin_ns);
}

static void slow_attention_fwd(struct hdt_stream *s, const struct hdt_attention *a)
{
    const int64_t begin_ns = thread_cpu_ns();

    hdt_cpu_ops.attention_fwd(s, a);
    stretch(begin_ns);
}

static void slow_attention_bwd(struct hdt_stream *s, const struct hdt_attention *a,
                               const float *dout, float *dq, float *dk, float *dv)
{
    const int64_t begin_ns = thread_cpu_ns();

    hdt_cpu_ops.attention_bwd(s, a, dout, dq, dk, dv);
    stretch(begin_ns);
}

static struct hdt_ops slow_ops;
static struct hdt_backend slow_backend;

__attribute__((constructor)) static void slow_fill(void)
{
    slow_ops = hdt_cpu_ops;
    slow_ops.gemm = slow_gemm;
    slow_ops.attention_fwd = slow_attention_fwd;
    slow_ops.attention_bwd = slow_attention_bwd;
    slow_backend = hdt_backend_cpu;
    slow_backend.about = "a slower processor, for tests"; /* planned with as one: its name stays */
    slow_backend.ops = &slow_ops;
}

extern const struct hdt_backend *const hdt_backend_module;
__attribute__((visibility("default"))) const struct hdt_backend *const hdt_backend_module =
    &slow_backend;
