/* SPDX-License-Identifier: Apache-2.0 */
/* A coder makes and reads the frames of the host's codecs, on the device and beside it. */
#include "config.h"

#include "compress/codec_state.h"
#include "runtime/coder.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/edge.h"
#include "tests/support/host_codecs.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define N      ((size_t)5000)
#define TENSOR (4 * N)
#define FRAME  (TENSOR + 4096)

struct world {
    struct hdt_backend backend; /* the cpu's, with codecs or without */
    struct hdt_device *device;
    struct hdt_coder *coder;
    struct hdt_codec_ctx *ctx;
    struct values_rng rng;
    float values[N], *tensor, want[N];
    uint8_t want_frame[FRAME], frame[FRAME];
};

static struct world w;

static void world_open(bool with_codecs)
{
    const struct hdt_device_conf conf = {.n_threads = 1};
    struct hdt_error err = {0};

    w.backend = hdt_backend_cpu;
    w.backend.codecs = with_codecs ? &hdt_host_codecs : NULL;
    cr_assert_eq(w.backend.device_open(&conf, &w.device, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(w.backend.alloc(w.device, TENSOR, (void **)&w.tensor, &err), HDT_OK);
    cr_assert_eq(hdt_coder_new(&w.backend, w.device, TENSOR, &w.coder, &err), HDT_OK, "%s",
                 err.msg);
    cr_assert_eq(hdt_codec_ctx_new(0, &w.ctx, &err), HDT_OK);
    hdt_values_rng_init(&w.rng, "coder");
    hdt_values_fill(&w.rng, VALUES_HEAVY_TAILED, w.values, N);
    memcpy(w.tensor, w.values, TENSOR);
}

static void world_close(void)
{
    hdt_codec_ctx_free(w.ctx);
    hdt_coder_free(w.coder);
    w.backend.free(w.device, w.tensor);
    w.backend.device_close(w.device);
}

static struct hdt_codec_state *state_new(const struct hdt_codec_spec *spec)
{
    struct hdt_codec_state *state = NULL;

    if (hdt_codec_spec_has_state(spec)) {
        cr_assert_eq(hdt_codec_state_new(spec, N, 1, &state, NULL), HDT_OK);
    }
    return state;
}

/* A frame by the coder is the host's, and becomes the host's values in device memory. */
static void check_codec(const char *text, bool is_device)
{
    struct hdt_codec_spec spec;
    struct hdt_codec_guard want_guard, guard;
    struct hdt_codec_io io;
    struct hdt_codec_state *states[2];
    struct hdt_error err = {0};
    size_t want_len = 0, len = 0;

    cr_assert_eq(hdt_codec_spec_parse(text, &spec, NULL), HDT_OK);
    cr_assert_eq(hdt_coder_is_device(w.coder, &spec), is_device, "%s", text);
    states[0] = state_new(&spec);
    states[1] = state_new(&spec);
    io = (struct hdt_codec_io){.spec = &spec,
                               .src = w.values,
                               .src_len = TENSOR,
                               .dst = w.want_frame,
                               .dst_len = FRAME,
                               .dtype = HDT_DTYPE_F32,
                               .guard = &want_guard,
                               .state = states[0],
                               .seed = 7};
    cr_assert_eq(hdt_codec_encode(hdt_codec_spec_worker(&spec), w.ctx, &io, &want_len, &err),
                 HDT_OK, "%s", err.msg);
    io.src = w.tensor;
    io.dst = w.frame;
    io.guard = &guard;
    io.state = states[1];
    cr_assert_eq(hdt_coder_encode(w.coder, w.ctx, &io, &len, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(len, want_len, "%s", text);
    cr_assert_eq(memcmp(w.frame, w.want_frame, len), 0, "%s", text);
    cr_assert_eq(guard.n, want_guard.n);
    cr_assert_eq(guard.max_abs, want_guard.max_abs, "%s", text);
    cr_assert_float_eq(hdt_codec_guard_error(&guard), hdt_codec_guard_error(&want_guard),
                       1e-5 * hdt_codec_guard_error(&want_guard), "%s", text);
    io = (struct hdt_codec_io){.spec = &spec,
                               .src = w.frame,
                               .src_len = len,
                               .dst = w.want,
                               .dst_len = TENSOR,
                               .dtype = HDT_DTYPE_F32};
    cr_assert_eq(hdt_codec_decode(hdt_codec_spec_worker(&spec), w.ctx, &io, &err), HDT_OK);
    io.dst = w.tensor;
    cr_assert_eq(hdt_coder_decode(w.coder, w.ctx, &io, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(memcmp(w.tensor, w.want, TENSOR), 0, "%s", text);
    memcpy(w.tensor, w.values, TENSOR);
    hdt_codec_state_free(states[0]);
    hdt_codec_state_free(states[1]);
}

Test(coder, codes_on_the_device_what_it_can)
{
    static const char *const texts[] = {"none", "bf16",        "fp16",        "int8",
                                        "int4", "int8:minmax", "int4:rotate", "fp8:stochastic"};

    world_open(true);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        check_codec(texts[i], true);
    }
    check_codec("topk:64", false);
    check_codec("lowrank:2", false);
    world_close();
}

Test(coder, codes_on_the_host_where_a_backend_has_no_codecs)
{
    world_open(false);
    check_codec("none", false);
    check_codec("int8", false);
    check_codec("topk:64", false);
    world_close();
}

Test(coder, refuses_in_the_words_of_the_codec)
{
    struct hdt_codec_spec spec;
    struct hdt_codec_guard guard;
    struct hdt_codec_io io = {.spec = &spec,
                              .src_len = TENSOR,
                              .dst = w.frame,
                              .dst_len = FRAME,
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard};
    struct hdt_error err = {0};
    size_t len = 0;

    world_open(true);
    cr_assert_eq(hdt_codec_spec_parse("int8", &spec, NULL), HDT_OK);
    w.tensor[17] = NAN;
    io.src = w.tensor;
    cr_assert_eq(hdt_coder_encode(w.coder, w.ctx, &io, &len, &err), HDT_EINVAL);
    cr_assert_str_eq(err.msg, "cannot quantize tensor to int8: 1 of 5000 values are NaN or "
                              "infinite, or above 2^127");
    cr_assert_eq(guard.n_nonfinite, 1);
    w.tensor[17] = 0;
    cr_assert_eq(hdt_coder_encode(w.coder, w.ctx, &io, &len, &err), HDT_OK);
    io = (struct hdt_codec_io){.spec = &spec,
                               .src = w.frame,
                               .src_len = len,
                               .dst = w.tensor,
                               .dst_len = TENSOR,
                               .dtype = HDT_DTYPE_F32};
    w.frame[4 * 2 + 3] |= 0x80; /* the sign of the third scale */
    cr_assert_eq(hdt_coder_decode(w.coder, w.ctx, &io, &err), HDT_EPROTO);
    cr_assert_str_eq(err.msg, "codec int8: the scale of block 2 is negative or not finite");
    io.src_len--;
    cr_assert_eq(hdt_coder_decode(w.coder, w.ctx, &io, &err), HDT_EPROTO);
    io.src_len = FRAME + 1;
    cr_assert_eq(hdt_coder_decode(w.coder, w.ctx, &io, &err), HDT_EPROTO);
    world_close();
}

/* The ends of an edge: a device's and a host's speak to each other. */
Test(coder, edge_of_a_device_and_a_host)
{
    struct hdt_edge_conf conf = {.is_src = true,
                                 .error_budget = 0.02,
                                 .tensor_bytes = TENSOR,
                                 .frame_cap = FRAME,
                                 .n_frames = 4,
                                 .name = "job 1, flow 0"};
    static struct hdt_edge device, host;
    struct hdt_codec_guard guard;
    struct hdt_codec_io io = {.src_len = TENSOR,
                              .dst = w.frame,
                              .dst_len = FRAME,
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard};
    struct hdt_error err = {0};
    uint8_t mark;
    size_t len;

    world_open(true);
    cr_assert_eq(hdt_codec_spec_parse("int8", &conf.planned, NULL), HDT_OK);
    hdt_edge_init(&host, &conf);
    conf.coder = w.coder;
    hdt_edge_init(&device, &conf);
    hdt_values_fill(&w.rng, VALUES_NORMAL, w.values, N);
    memcpy(w.tensor, w.values, TENSOR);
    w.tensor[0] = INFINITY; /* no rung of int8: the edge steps up, on the device as on the host */
    io.src = w.tensor;
    cr_assert_eq(hdt_edge_encode(&device, w.ctx, &io, 1, &len, &mark, &err), HDT_OK, "%s", err.msg);
    cr_assert_neq(mark, 0);
    io = (struct hdt_codec_io){
        .src = w.frame, .src_len = len, .dst = w.want, .dst_len = TENSOR, .dtype = HDT_DTYPE_F32};
    cr_assert_eq(hdt_edge_decode(&host, w.ctx, &io, mark, &err), HDT_OK, "%s", err.msg);
    cr_assert(isinf(w.want[0]));
    cr_assert_float_eq(w.want[1], w.values[1], 0.01 * fabs((double)w.values[1]) + 1e-6);
    world_close();
}
