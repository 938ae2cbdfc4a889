/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Times are the mean of some runs after one round that is not counted, without those that took more
 * than twice the median: another process had the core then. A virtual processor whose hardware
 * others share has two speeds, up to 1.6 apart, and keeps each for seconds: the median and the
 * minimum would tell of one of them, a step has both. How many runs there are is decided by the
 * fastest of them, not by the clock: a machine that stood still for a second is measured again.
 *
 * A run of a job goes through all blocks of its stage and some micro-batches before it comes back
 * to the same memory. A block that is run alone, again and again, finds its weights and activations
 * in the cache and is up to a sixth faster than that: so several blocks with several slots are run
 * in turn, until they take more than caches hold.
 */
#include "runtime/profile.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "compress/rate.h"
#include "runtime/coder.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "src/base/cgroup.h"
#include "src/base/clock.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ROUNDS_MAX     16
#define BLOCKS_MAX     8
#define SLOTS_MAX      4
#define OUTLIER        2.0 /* times the median */
#define CAST_BUDGET_MS 40
#define FRAMES         8
#define FRAME_MORE     ((size_t)4096) /* a frame is longer than its tensor by less */
#define BUDGET_NS      2000000000ll   /* a kind of unit, once two rounds are done */
#define PATIENCE       4              /* budgets, where rounds take longer than the fastest did */
#define WORKING_SET    (128u << 20)   /* no cache of a processor holds so much */
#define DEVICE_SET                                                                                 \
 (4ull << 30) /* of other devices: blocks so large make ops that are long enough */
#define DEVICE_WARM_NS 300000000ll /* until their clocks are what they are under load */

static int time_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The mean of the times that are no outliers; sorts them. */
static double typical(double *times, int n)
{
    double sum = 0, most;
    int i;

    qsort(times, (size_t)n, sizeof(*times), time_compare);
    most = OUTLIER * times[(n - 1) / 2];
    for (i = 0; i < n && times[i] <= most; i++) {
        sum += times[i];
    }
    return sum / i;
}

struct probe {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    const struct hdt_profile_shape *shape;
    struct hdt_stage *stage;
    int n_threads;      /* of a CPU; 0: another device */
    size_t working_set; /* bytes that a stage of several blocks may have */
    bool recompute;
    int n_units, n_slots;
    int n_parts;                 /* of a round: only blocks have a backward in two halves */
    double fwd_s, bwd_s, step_s; /* of one unit */
    double input_s, weight_s;    /* of its backward in two halves */
    uint64_t n_params;
};

/* Inputs that look like a model's: token numbers spread over the vocabulary, small activations. */
static enum hdt_status probe_fill(struct probe *p, int slot, struct hdt_error *err)
{
    size_t n = (size_t)(p->shape->micro_batch * p->shape->seq_len), i;
    size_t bytes = hdt_stage_activation_bytes(p->stage);
    int32_t *tokens = hdt_malloc(n * sizeof(*tokens));
    float *values = malloc(bytes);
    enum hdt_status status = values ? HDT_OK : hdt_error_set(err, HDT_ENOMEM, "no memory");

    for (i = 0; i < n; i++) {
        tokens[i] = (int32_t)(i * 7919 % (size_t)p->shape->model.V);
    }
    for (i = 0; values && i < bytes / sizeof(float); i++) {
        values[i] = (float)(i * 2654435761u % 1000) / 1000.0f - 0.5f;
    }
    if (status == HDT_OK && hdt_stage_has_embedding(p->stage)) {
        status = hdt_stage_set_tokens(p->stage, slot, tokens, err);
    } else if (status == HDT_OK) {
        status = hdt_stage_write(p->stage, hdt_stage_input(p->stage, slot), values, bytes, err);
    }
    if (status == HDT_OK && hdt_stage_has_head(p->stage)) {
        status = hdt_stage_set_labels(p->stage, slot, tokens, err);
    } else if (status == HDT_OK) {
        status =
            hdt_stage_write(p->stage, hdt_stage_output_grad(p->stage, slot), values, bytes, err);
    }
    free(tokens);
    free(values);
    return status;
}

/* What is timed in a round, and how a stage does it. */
enum probe_part { PROBE_FWD, PROBE_BWD, PROBE_FWD_AGAIN, PROBE_INPUT, PROBE_WEIGHT, PROBE_PARTS };

static void probe_run(struct probe *p, enum probe_part part, int slot)
{
    switch (part) {
    case PROBE_BWD:
        hdt_stage_backward(p->stage, slot);
        break;
    case PROBE_INPUT:
        hdt_stage_backward_input(p->stage, slot);
        break;
    case PROBE_WEIGHT:
        hdt_stage_backward_weight(p->stage, slot);
        break;
    default:
        hdt_stage_forward(p->stage, slot, HDT_STAGE_TRAIN);
    }
}

/* All slots forward, then all backward, as a pipeline that fills and drains; and the same with a
 * backward in two halves. Times of one unit, a part of the round after the other. */
static enum hdt_status probe_round(struct probe *p, double *times, struct hdt_error *err)
{
    for (int i = 0; i < p->n_parts * p->n_slots; i++) {
        int slot = i % p->n_slots;
        enum probe_part part = (enum probe_part)(i / p->n_slots);
        bool fill = slot == 0 && (part == PROBE_FWD || part == PROBE_FWD_AGAIN);
        int64_t begin;

        for (int j = 0; fill && j < p->n_slots; j++) {
            HDT_TRY(probe_fill(p, j, err));
        }
        begin = hdt_clock_now_ns();
        probe_run(p, part, slot);
        HDT_TRY(hdt_stage_wait(p->stage, err));
        times[i] = (double)(hdt_clock_now_ns() - begin) / 1e9 / p->n_units;
    }
    return HDT_OK;
}

/* The end of a step: norm and AdamW; and its beginning, gradients to zero. */
static enum hdt_status probe_step(struct probe *p, double *step_s, struct hdt_error *err)
{
    struct hdt_adamw adamw = {
        .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .step = 1};
    double *sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(p->stage), sizeof(*sumsq));
    enum hdt_status status = hdt_stage_wait(p->stage, err);
    int64_t begin = hdt_clock_now_ns();

    hdt_stage_finish_grads(p->stage, NULL);
    if (status == HDT_OK) {
        status = hdt_stage_grad_sumsq(p->stage, sumsq, err);
    }
    if (status == HDT_OK) {
        hdt_stage_step(p->stage, &adamw);
        hdt_stage_zero_grads(p->stage);
        status = hdt_stage_wait(p->stage, err);
    }
    *step_s = (double)(hdt_clock_now_ns() - begin) / 1e9 / p->n_units;
    free(sumsq);
    return status;
}

/* After n rounds, the last ones since `begin_ns`. */
static bool rounds_are_enough(int n, int64_t fastest_ns, int64_t begin_ns)
{
    return n >= ROUNDS_MAX || (n >= 2 && (n * fastest_ns >= BUDGET_NS ||
                                          hdt_clock_now_ns() - begin_ns >= PATIENCE * BUDGET_NS));
}

/* Of all rounds' times those of one part. */
static double probe_typical(const struct probe *p, const double *times, int n_rounds,
                            enum probe_part part)
{
    double own[ROUNDS_MAX * SLOTS_MAX];
    int n = 0;

    for (int round = 0; round < n_rounds; round++) {
        for (int slot = 0; slot < p->n_slots; slot++) {
            own[n++] = times[(round * p->n_parts + (int)part) * p->n_slots + slot];
        }
    }
    return typical(own, n);
}

static enum hdt_status probe_time(struct probe *p, struct hdt_error *err)
{
    double times[ROUNDS_MAX * SLOTS_MAX * PROBE_PARTS], step[ROUNDS_MAX];
    int64_t begin_ns, round_ns, fastest_ns = INT64_MAX;
    int n = 0;

    begin_ns = hdt_clock_now_ns();
    do {
        HDT_TRY(probe_round(p, times, err));
    } while (p->n_threads == 0 && hdt_clock_now_ns() - begin_ns < DEVICE_WARM_NS);
    begin_ns = hdt_clock_now_ns();
    while (!rounds_are_enough(n, fastest_ns, begin_ns)) {
        round_ns = hdt_clock_now_ns();
        HDT_TRY(probe_round(p, times + n * p->n_parts * p->n_slots, err));
        HDT_TRY(probe_step(p, &step[n], err));
        round_ns = hdt_clock_now_ns() - round_ns;
        fastest_ns = round_ns < fastest_ns ? round_ns : fastest_ns;
        n++;
    }
    p->fwd_s = probe_typical(p, times, n, PROBE_FWD);
    p->bwd_s = probe_typical(p, times, n, PROBE_BWD);
    if (p->n_parts == PROBE_PARTS) {
        p->input_s = probe_typical(p, times, n, PROBE_INPUT);
        p->weight_s = probe_typical(p, times, n, PROBE_WEIGHT);
    }
    p->step_s = typical(step, n);
    return HDT_OK;
}

static struct hdt_stage_conf probe_conf(const struct probe *p, int64_t unit)
{
    return (struct hdt_stage_conf){.model = p->shape->model,
                                   .first_unit = (int)unit,
                                   .n_units = p->n_units,
                                   .B = (int)p->shape->micro_batch,
                                   .T = (int)p->shape->seq_len,
                                   .n_slots = p->n_slots,
                                   .recompute = p->recompute,
                                   .halves = p->n_parts == PROBE_PARTS,
                                   .mixed =
                                       p->shape->precision == HDT_JOB_FP8 ||
                                       (p->shape->precision == HDT_JOB_BF16 && p->backend->mixed),
                                   .fp8 = p->shape->precision == HDT_JOB_FP8,
                                   .seed = 1};
}

static enum hdt_status probe_units(struct probe *p, int64_t unit, int n_units, int n_slots,
                                   struct hdt_error *err)
{
    struct hdt_stage_conf conf;
    enum hdt_status status;

    p->n_units = n_units;
    p->n_slots = n_slots;
    p->n_parts =
        unit > 0 && unit <= p->shape->model.L && !p->recompute ? PROBE_PARTS : PROBE_BWD + 1;
    conf = probe_conf(p, unit);
    HDT_TRY(hdt_stage_new(p->backend, p->device, &conf, &p->stage, err));
    hdt_stage_set_loss_scale(p->stage, 1e-3f);
    hdt_stage_zero_grads(p->stage);
    status = probe_time(p, err);
    p->n_params = (uint64_t)hdt_model_unit_params(&p->shape->model, unit);
    hdt_stage_free(p->stage);
    p->stage = NULL;
    return status;
}

/* Blocks and slots that fill the caches, and of which a device gets as much to do at once as a
 * stage gives it, of those that a round of 200 ms can take. */
static enum hdt_status blocks_choose(struct probe *p, int *n_blocks, int *n_slots,
                                     struct hdt_error *err)
{
    int most = p->shape->model.L < BLOCKS_MAX ? (int)p->shape->model.L : BLOCKS_MAX;
    struct hdt_stage_bytes bytes;
    struct hdt_stage_conf conf;

    HDT_TRY(probe_units(p, 1, 1, 1, err));
    for (*n_blocks = most, *n_slots = SLOTS_MAX; *n_blocks * *n_slots > 1;) {
        conf = probe_conf(p, 1);
        conf.n_units = *n_blocks;
        conf.n_slots = *n_slots;
        HDT_TRY(hdt_stage_measure(&conf, &bytes, err));
        if (bytes.total <= p->working_set &&
            (p->fwd_s + p->bwd_s) * *n_blocks * *n_slots * 1e9 <= (double)BUDGET_NS / 10) {
            break;
        }
        if (*n_slots > 1) {
            --*n_slots;
        } else {
            --*n_blocks;
        }
    }
    return HDT_OK;
}

static enum hdt_status probe_blocks(struct probe *p, struct hdt_error *err)
{
    int n_blocks, n_slots;

    HDT_TRY(blocks_choose(p, &n_blocks, &n_slots, err));
    return n_blocks * n_slots > 1 ? probe_units(p, 1, n_blocks, n_slots, err) : HDT_OK;
}

/* What an op of the list costs beside its arithmetic: here, a wait for nothing. */
static enum hdt_status probe_overhead(struct probe *p, double *seconds, struct hdt_error *err)
{
    struct hdt_stream *stream;
    enum hdt_status status;
    int64_t begin;
    int i;

    HDT_TRY(p->backend->stream_new(p->device, &stream, err));
    begin = hdt_clock_now_ns();
    for (i = 0, status = HDT_OK; i < 100 && status == HDT_OK; i++) {
        status = p->backend->stream_wait(stream, err);
    }
    *seconds = (double)(hdt_clock_now_ns() - begin) / 1e9 / 100;
    p->backend->stream_free(stream);
    return status;
}

/* ---- frames ---- */

/* A tensor of the shape's edges that goes out of a device's memory into a frame and comes back. */
struct frame_probe {
    struct hdt_coder *coder;
    struct hdt_codec_ctx *ctx;
    void *tensor; /* device */
    void *frame;  /* host memory of the kind that frames have in a run: shared, then pinned */
    size_t frame_cap;
    bool is_pinned;
    size_t bytes;
};

static enum hdt_status frame_map(const struct probe *p, struct frame_probe *f,
                                 struct hdt_error *err)
{
    f->frame = mmap(NULL, f->frame_cap, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (f->frame == MAP_FAILED) {
        f->frame = NULL;
        return hdt_error_set(err, HDT_ENOMEM, "cannot map %zu bytes: %s", f->frame_cap,
                             strerror(errno));
    }
    if (p->backend->host_register) {
        HDT_TRY(p->backend->host_register(p->device, f->frame, f->frame_cap, err));
        f->is_pinned = true;
    }
    return HDT_OK;
}

static void frame_unmap(const struct probe *p, struct frame_probe *f)
{
    if (f->is_pinned) {
        p->backend->host_unregister(p->device, f->frame);
    }
    if (f->frame) {
        munmap(f->frame, f->frame_cap);
    }
}

static enum hdt_status frame_probe_open(const struct probe *p, struct frame_probe *f,
                                        struct hdt_error *err)
{
    struct hdt_stream *stream;
    enum hdt_status status;

    HDT_TRY(hdt_coder_new(p->backend, p->device, f->bytes, &f->coder, err));
    HDT_TRY(hdt_codec_ctx_new(0, &f->ctx, err));
    HDT_TRY(p->backend->alloc(p->device, f->bytes, &f->tensor, err));
    HDT_TRY(frame_map(p, f, err));
    HDT_TRY(p->backend->stream_new(p->device, &stream, err));
    p->backend->ops->zero(stream, f->tensor, f->bytes);
    status = p->backend->stream_wait(stream, err);
    p->backend->stream_free(stream);
    return status;
}

static void frame_probe_close(const struct probe *p, struct frame_probe *f)
{
    frame_unmap(p, f);
    p->backend->free(p->device, f->tensor);
    hdt_codec_ctx_free(f->ctx);
    hdt_coder_free(f->coder);
}

/* Bytes of the tensor a second: the mean of out and in. */
static enum hdt_status frame_rate(const struct frame_probe *f, const char *codec, double *rate,
                                  struct hdt_error *err)
{
    struct hdt_codec_spec spec;
    struct hdt_codec_guard guard;
    double times[FRAMES];
    size_t len;

    HDT_TRY(hdt_codec_spec_parse(codec, &spec, err));
    for (int i = -1; i < FRAMES; i++) { /* the first is not counted */
        struct hdt_codec_io out = {.spec = &spec,
                                   .src = f->tensor,
                                   .src_len = f->bytes,
                                   .dst = f->frame,
                                   .dst_len = f->frame_cap,
                                   .dtype = HDT_DTYPE_F32,
                                   .guard = &guard};
        struct hdt_codec_io in = {.spec = &spec,
                                  .src = f->frame,
                                  .dst = f->tensor,
                                  .dst_len = f->bytes,
                                  .dtype = HDT_DTYPE_F32};
        const int64_t begin_ns = hdt_clock_now_ns();

        memset(&guard, 0, sizeof(guard));
        HDT_TRY(hdt_coder_encode(f->coder, f->ctx, &out, &len, err));
        in.src_len = len;
        HDT_TRY(hdt_coder_decode(f->coder, f->ctx, &in, err));
        times[i < 0 ? 0 : i] = (double)(hdt_clock_now_ns() - begin_ns) / 1e9;
    }
    *rate = 2.0 * (double)f->bytes / typical(times, FRAMES);
    return HDT_OK;
}

/* What a send or receive takes of its rank: where tensors are in the memory of a device, as a run
 * does it, by the coder; else what the codecs take. */
static enum hdt_status probe_frames(const struct probe *p, struct hdt_profile *out,
                                    struct hdt_error *err)
{
    struct frame_probe f = {.bytes = sizeof(float) * (size_t)p->shape->micro_batch *
                                     (size_t)p->shape->seq_len * (size_t)p->shape->model.C};
    struct hdt_codec_rate rate;
    enum hdt_status status;

    f.frame_cap = f.bytes + FRAME_MORE;
    if (p->backend->caps & HDT_BACKEND_HOST_MEMORY) {
        HDT_TRY(hdt_codec_rate_measure(&hdt_codec_bf16, HDT_DTYPE_F32, CAST_BUDGET_MS, &rate, err));
        out->cast_bytes_per_s = rate.encode_bytes_per_s;
        HDT_TRY(hdt_codec_rate_measure(&hdt_codec_none, HDT_DTYPE_F32, CAST_BUDGET_MS, &rate, err));
        out->copy_bytes_per_s = rate.encode_bytes_per_s;
        return HDT_OK;
    }
    status = frame_probe_open(p, &f, err);
    if (status == HDT_OK) {
        status = frame_rate(&f, "bf16", &out->cast_bytes_per_s, err);
    }
    if (status == HDT_OK) {
        status = frame_rate(&f, "none", &out->copy_bytes_per_s, err);
    }
    frame_probe_close(p, &f);
    return status;
}

static struct probe probe_of(const struct hdt_backend *backend, struct hdt_device *device,
                             const struct hdt_profile_shape *shape)
{
    struct probe p = {.backend = backend, .device = device, .shape = shape};
    struct hdt_device_info info;

    backend->device_info(device, &info);
    p.n_threads = info.n_threads;
    p.working_set = info.n_threads > 0 ? WORKING_SET : DEVICE_SET;
    if (info.n_threads == 0 && info.memory_free / 4 < DEVICE_SET) {
        p.working_set = info.memory_free / 4;
    }
    return p;
}

/* As in struct hdt_profile. */
static double quota_cpus(const struct probe *p)
{
    struct hdt_cgroup cgroup;

    hdt_cgroup_read("", &cgroup);
    return cgroup.cpus > 0 && cgroup.cpus < p->n_threads ? cgroup.cpus : 0;
}

enum hdt_status hdt_profile_measure(const struct hdt_backend *backend, struct hdt_device *device,
                                    const struct hdt_profile_shape *shape,
                                    struct hdt_profile *profile, struct hdt_error *err)
{
    struct probe p = probe_of(backend, device, shape);
    struct hdt_profile out = {.micro_batch = shape->micro_batch, .seq_len = shape->seq_len};

    HDT_TRY(probe_units(&p, 0, 1, 1, err));
    out.embed_fwd_s = p.fwd_s;
    out.embed_bwd_s = p.bwd_s;
    HDT_TRY(probe_blocks(&p, err));
    out.block_fwd_s = p.fwd_s;
    out.block_bwd_s = p.bwd_s;
    out.block_bwd_input_s = p.input_s;
    out.block_bwd_weight_s = p.weight_s;
    out.step_s_per_param = p.step_s / (double)p.n_params;
    HDT_TRY(probe_units(&p, shape->model.L + 1, 1, 1, err));
    out.head_fwd_s = p.fwd_s;
    out.head_bwd_s = p.bwd_s;
    HDT_TRY(probe_frames(&p, &out, err));
    HDT_TRY(probe_overhead(&p, &out.op_overhead_s, err));
    out.quota_cpus = quota_cpus(&p);
    hdt_host_id(out.host);
    hdt_host_cpus(out.cpus);
    out.valid = true;
    *profile = out;
    return HDT_OK;
}

enum hdt_status hdt_profile_measure_recompute(const struct hdt_backend *backend,
                                              struct hdt_device *device,
                                              const struct hdt_profile_shape *shape,
                                              const struct hdt_profile *profile,
                                              double *recompute_s, struct hdt_error *err)
{
    struct probe p = probe_of(backend, device, shape);
    double bwd_s;

    p.recompute = true;
    HDT_TRY(probe_blocks(&p, err));
    /* The machine may have become faster or slower since: forwards say by how much. */
    bwd_s = p.bwd_s * profile->block_fwd_s / p.fwd_s;
    *recompute_s = bwd_s > profile->block_bwd_s ? bwd_s - profile->block_bwd_s : NAN;
    return HDT_OK;
}

/* ---- the cache ---- */

static bool shape_equal(const struct hdt_profile_shape *a, const struct hdt_profile_shape *b)
{
    const struct hdt_model_config *x = &a->model, *y = &b->model;

    return a->micro_batch == b->micro_batch && a->seq_len == b->seq_len &&
           a->precision == b->precision && x->V == y->V && x->C == y->C && x->F == y->F &&
           x->NH == y->NH && x->NKV == y->NKV && x->HS == y->HS;
}

const struct hdt_profile *hdt_profile_cache_find(const struct hdt_profile_cache *cache,
                                                 const struct hdt_profile_shape *shape)
{
    unsigned i, n = cache->n < HDT_PROFILE_CACHE_CAP ? cache->n : HDT_PROFILE_CACHE_CAP;

    for (i = 0; i < n; i++) {
        if (shape_equal(&cache->entries[i].shape, shape)) {
            return &cache->entries[i].profile;
        }
    }
    return NULL;
}

void hdt_profile_cache_add(struct hdt_profile_cache *cache, const struct hdt_profile_shape *shape,
                           const struct hdt_profile *profile)
{
    unsigned i = cache->n++ % HDT_PROFILE_CACHE_CAP;

    cache->entries[i].shape = *shape;
    cache->entries[i].profile = *profile;
}
