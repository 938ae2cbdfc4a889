/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/plan/cost.h"
#include "compress/adapt.h"
#include "compress/codec.h"
#include "compress/codec_state.h"
#include "compress/ladder.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Between workers of one site, until LAN links are measured: 10 Gbit/s, 100 us. */
#define LAN_BYTES_PER_S 1.25e9
#define LAN_LATENCY_S   1e-4

/* Lossless coding before a link has been seen at work: byte planes + zstd on one core, ratios on
 * activations of trained models. fp32 keeps three noisy bytes of four, bf16 one of two; fp16 has
 * five bits of exponent in sixteen. */
#define LOSSLESS_BYTES_PER_S 400e6
#define LOSSLESS_RATIO_F32   1.15
#define LOSSLESS_RATIO_BF16  1.30
#define LOSSLESS_RATIO_F16   1.15
#define LOSSLESS_RATIO_INT8  1.10

/* Logits that a head's stage holds at a time; as the worker's stage does it. */
#define HEAD_VALUES      (INT64_C(1) << 23)
#define HEAD_VALUES_BF16 (INT64_C(1) << 27)

const struct hdt_cluster_worker *hdt_cost_find_worker(const struct hdt_cluster *cluster,
                                                      const char *site, const char *name)
{
    for (size_t i = 0; i < cluster->n_workers; i++) {
        const struct hdt_cluster_worker *w = &cluster->workers[i];

        if (strcmp(w->site, site) == 0 && strcmp(w->name, name) == 0) {
            return w;
        }
    }
    return NULL;
}

static int64_t n_blocks_of(const struct hdt_model_config *model, int64_t begin, int64_t end)
{
    int64_t first = begin < 1 ? 1 : begin;
    int64_t last = end > model->L + 1 ? model->L + 1 : end;

    return last > first ? last - first : 0;
}

void hdt_cost_stage_times(const struct hdt_cost_inputs *in, const struct hdt_profile *p,
                          int64_t begin, int64_t end, double *fwd_s, double *bwd_s, double *step_s)
{
    double n_blocks = (double)n_blocks_of(in->model, begin, end);
    double params = 0;

    *fwd_s = n_blocks * p->block_fwd_s;
    *bwd_s = n_blocks * (p->block_bwd_s + (in->job->recompute ? p->block_fwd_s : 0.0));
    if (begin == 0) {
        *fwd_s += p->embed_fwd_s;
        *bwd_s += p->embed_bwd_s;
        params += (double)hdt_model_unit_params(in->model, 0);
    }
    if (end == in->model->L + 2) {
        *fwd_s += p->head_fwd_s;
        *bwd_s += p->head_bwd_s;
        params += (double)hdt_model_unit_params(in->model, in->model->L + 1);
    }
    params += n_blocks * (double)(in->model->L > 0 ? hdt_model_unit_params(in->model, 1) : 0);
    *step_s = params * p->step_s_per_param;
}

static double max2(double a, double b)
{
    return a > b ? a : b;
}

/* All that an embedding has of a backward is its weights' half; the head's is done in its forward.
 * Halves of a block do all that its backward does: what they were measured to take less is noise,
 * and would be made a gain of by every block and micro-batch. */
enum hdt_status hdt_cost_stage_halves(const struct hdt_cost_inputs *in,
                                      const struct hdt_cluster_worker *worker, int64_t begin,
                                      int64_t end, double *input_s, double *weight_s,
                                      struct hdt_error *err)
{
    const struct hdt_profile *p = &worker->profile;
    double n_blocks = (double)n_blocks_of(in->model, begin, end);
    double sum_s = p->block_bwd_input_s + p->block_bwd_weight_s, longer;

    if (n_blocks > 0 && (p->block_bwd_input_s <= 0 || p->block_bwd_weight_s <= 0)) {
        hdt_error_set(err, HDT_EINVAL,
                      "worker %s/%s has not measured a backward in two halves, as zb-h1 and zb-mem "
                      "do it",
                      worker->site, worker->name);
        hdt_error_hint(err,
                       "hdt-worker %s/%s is older than this program, or its profile_file has no "
                       "backward_input_s and backward_weight_s: measure anew, or choose another "
                       "plan.schedule",
                       worker->site, worker->name);
        return HDT_EINVAL;
    }
    longer = n_blocks > 0 ? max2(p->block_bwd_s / sum_s, 1) : 1;
    *input_s =
        n_blocks * longer * p->block_bwd_input_s + (end == in->model->L + 2 ? p->head_bwd_s : 0.0);
    *weight_s = n_blocks * longer * p->block_bwd_weight_s + (begin == 0 ? p->embed_bwd_s : 0.0);
    return HDT_OK;
}

/* Bytes a token that one block keeps for its backward. In bf16 the residual stream and what norms
 * and attention keep of rows is still fp32, and h is made again unless backwards come in halves.
 * With fp8, what products took is kept in a byte each, and in bf16 attention's output beside it. */
static double block_bytes(const struct hdt_model_config *m, const struct hdt_cost_memory *stage)
{
    double q = (double)(m->NH * m->HS), kv = (double)(m->NKV * m->HS);
    double floats = 2.0 * (double)m->C + (double)m->NH + 2.0;
    double values = 2.0 * q + 2.0 * kv + 2.0 * (double)m->F;

    if (stage->precision == HDT_JOB_FP8) {
        return 4.0 * floats + 2.0 * values + 2.0 * (double)m->C + q + (double)m->F;
    }
    values += 2.0 * (double)m->C;
    values += stage->precision == HDT_JOB_FP32 || stage->halves ? (double)m->F : 0;
    return 4.0 * floats + (stage->precision == HDT_JOB_BF16 ? 2.0 : 4.0) * values;
}

static double stage_params(const struct hdt_model_config *m, int64_t begin, int64_t end)
{
    double n =
        (double)n_blocks_of(m, begin, end) * (double)(m->L > 0 ? hdt_model_unit_params(m, 1) : 0);

    n += begin == 0 ? (double)hdt_model_unit_params(m, 0) : 0.0;
    n += end == m->L + 2 ? (double)hdt_model_unit_params(m, m->L + 1) : 0.0;
    return n;
}

int hdt_cost_precision(const struct hdt_cost_inputs *in, const struct hdt_cluster_worker *worker)
{
    return in->job->precision == HDT_JOB_BF16 && !(worker && worker->bf16) ? HDT_JOB_FP32
                                                                           : in->job->precision;
}

enum hdt_status hdt_cost_check_precision(const struct hdt_cost_inputs *in,
                                         const struct hdt_cluster_worker *worker,
                                         struct hdt_error *err)
{
    if (in->job->precision != HDT_JOB_FP8 || worker->fp8) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_ENOTSUP,
                  "worker %s/%s has no products of fp8: its backend is '%s', its device '%s'",
                  worker->site, worker->name, worker->backend, worker->device);
    hdt_error_hint(err, "leave its site out by plan.sites, or set precision: bf16 in the job");
    return HDT_ENOTSUP;
}

/* What the head of a stage works in. */
static double head_bytes(const struct hdt_model_config *m, double n, bool bf16)
{
    double most = (double)((bf16 ? HEAD_VALUES_BF16 : HEAD_VALUES) / m->V);
    double rows = max2(n < most ? n : most, 1.0);

    return 4.0 * n + (bf16 ? 2.0 : 4.0) * (n * (double)m->C + rows * (double)m->V);
}

uint64_t hdt_cost_stage_memory(const struct hdt_cost_inputs *in,
                               const struct hdt_cost_memory *stage)
{
    const struct hdt_model_config *m = in->model;
    bool embed = stage->begin == 0, head = stage->end == m->L + 2;
    double n = (double)in->job->batch.micro_batch * (double)in->job->batch.seq_len;
    double C = (double)m->C, F = (double)m->F, q = (double)(m->NH * m->HS);
    double table = (double)m->V * C, params = stage_params(m, stage->begin, stage->end);
    double n_blocks = (double)n_blocks_of(m, stage->begin, stage->end);
    double acts = n * n_blocks * block_bytes(m, stage), row = 4.0 * n * C;
    double slot = 2.0 * row + 4.0 * n * (embed + head); /* tokens, labels */
    bool mixed = stage->precision != HDT_JOB_FP32, fp8 = stage->precision == HDT_JOB_FP8;
    double value = mixed ? 2.0 : 4.0, wide = max2(2.0 * F, q + 2.0 * (double)(m->NKV * m->HS));
    double weights, work;

    /* Weights and moments of a tied pair in one stage are shared, gradients are not. */
    weights = 4.0 * params + (mixed ? 14.0 : 12.0) *
                                 (params - (embed && head && m->tie_word_embeddings ? table : 0.0));
    work = value * n * (wide + max2(F, q) + C);
    if (mixed) {
        work += value * n * (C + (stage->halves || fp8 ? 0.0 : F));
    }
    if (fp8) { /* matrices twice; both operands of a product */
        weights += 2.0 * n_blocks * (double)(m->L > 0 ? hdt_model_unit_params(m, 1) : 0);
        work += 2.0 * n * max2(wide, C);
    }
    if (m->tie_word_embeddings && embed != head) {
        work += 4.0 * table;
    }
    work += head ? head_bytes(m, n, mixed) : 0.0;
    if (in->job->recompute && n_blocks > 0) { /* the last block's output is the slot's own */
        work += acts - row;
        slot += row;
    } else {
        slot += acts;
    }
    work += 4.0 * (double)in->job->batch.seq_len * (double)m->HS; /* angles */
    return (uint64_t)(weights + work + (double)stage->n_slots * slot);
}

/* What a decoder must know of the past, delta codecs keep. */
static bool end_keeps(const struct hdt_codec_spec *spec, bool is_src)
{
    return hdt_codec_spec_has_state(spec) && (is_src || spec->flags & HDT_CODEC_DELTA);
}

uint64_t hdt_cost_feedback_memory(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                  int stage)
{
    const size_t n_values =
        (size_t)(in->job->batch.micro_batch * in->job->batch.seq_len) * (size_t)in->model->C;
    const bool has_eval = in->job->data.valid && in->job->data.valid[0] != '\0';
    uint64_t bytes = 0;

    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];
        const bool is_grad = f->kind == HDT_FLOW_ACTIVATION_GRAD;

        if ((is_grad || f->kind == HDT_FLOW_ACTIVATION) &&
            (f->src_stage == stage || f->dst_stage == stage) &&
            end_keeps(&f->codec, f->src_stage == stage)) {
            bytes += (uint64_t)(2 + (!is_grad && has_eval)) *
                     hdt_codec_state_mem(&f->codec, n_values, 1);
        }
    }
    return bytes;
}

static double lossless_ratio(const struct hdt_cluster_link *link,
                             const struct hdt_codec_spec *codec)
{
    if (codec->gateway != HDT_CODEC_LOSSLESS) {
        return 1.0;
    }
    switch (hdt_codec_coded_dtype(hdt_codec_spec_worker(codec), HDT_DTYPE_F32)) {
    case HDT_DTYPE_F32:
        return link->lossless_ratio > 0 ? link->lossless_ratio : LOSSLESS_RATIO_F32;
    case HDT_DTYPE_BF16:
        return LOSSLESS_RATIO_BF16;
    case HDT_DTYPE_F16:
        return LOSSLESS_RATIO_F16;
    case HDT_DTYPE_I8:
        return LOSSLESS_RATIO_INT8;
    default:
        return 1.0;
    }
}

static enum hdt_status no_link(const char *from, const char *to,
                               const struct hdt_cluster_link *link, struct hdt_error *err)
{
    hdt_error_set(err, HDT_ENOENT, "no link from site %s to site %s: %s", from, to,
                  !link       ? "the sites do not know each other"
                  : !link->up ? "it is down"
                              : "its rate is not measured");
    hdt_error_hint(err, "run hdt doctor; plan.sites can leave a site out");
    return HDT_ENOENT;
}

/* A site reaches itself by its LAN. */
static const struct hdt_cluster_link lan_link = {
    .up = true, .rate_bytes_per_s = LAN_BYTES_PER_S, .rtt_s = 2 * LAN_LATENCY_S};

static double rate_or(double rate, double otherwise)
{
    return rate > 0 ? rate : otherwise;
}

/* What the gateways do with a frame, as the choice in the run counts it. */
static void transfer_cross(const struct hdt_cost_inputs *in, const char *from, const char *to,
                           const struct hdt_cluster_link *link, const struct hdt_codec_spec *codec,
                           struct hdt_cost_transfer *t)
{
    static const struct hdt_cluster_gateway unknown;
    const struct hdt_cluster_site *a = hdt_cluster_find_site(in->cluster, from);
    const struct hdt_cluster_site *b = hdt_cluster_find_site(in->cluster, to);
    const struct hdt_cluster_gateway *src = a ? &a->gateway : &unknown;
    const struct hdt_cluster_gateway *dst = b ? &b->gateway : &unknown;
    struct hdt_adapt_candidate c = {.frame_bytes = t->frame_bytes, .gw_ratio = 1};
    struct hdt_adapt_crossing way;

    if (codec->gateway == HDT_CODEC_LOSSLESS) {
        c.gw_ratio = lossless_ratio(link, codec);
        c.gw_encode_bytes_per_s = rate_or(
            src->encode_bytes_per_s, rate_or(link->lossless_bytes_per_s, LOSSLESS_BYTES_PER_S));
        c.gw_decode_bytes_per_s = rate_or(dst->decode_bytes_per_s, LOSSLESS_BYTES_PER_S);
    }
    hdt_adapt_cross(&c, link->rate_bytes_per_s, &way);
    t->wire_bytes = way.wire_bytes;
    t->busy_s = way.link_s;
    t->pace_s = max2(t->busy_s, max2(way.encode_s, way.decode_s));
    t->service_s = way.alone_s;
    t->src_cpu_s = way.encode_s;
    t->dst_cpu_s = way.decode_s;
    if (strcmp(from, to) != 0) {
        t->src_cpu_s += src->frame_s + t->wire_bytes * src->send_s_per_byte;
        t->dst_cpu_s += dst->frame_s + t->wire_bytes * dst->recv_s_per_byte;
    }
}

enum hdt_status hdt_cost_transfer(const struct hdt_cost_inputs *in, const char *from,
                                  const char *to, const struct hdt_codec_spec *codec,
                                  double n_values, struct hdt_cost_transfer *t,
                                  struct hdt_error *err)
{
    const struct hdt_cluster_link *link =
        strcmp(from, to) == 0 ? &lan_link : hdt_cluster_find_link(in->cluster, from, to);

    if (!link || !link->up || link->rate_bytes_per_s <= 0) {
        return no_link(from, to, link, err);
    }
    t->frame_bytes = (double)hdt_plan_frame_bytes(codec, (uint64_t)n_values);
    t->latency_s = link->rtt_s / 2;
    transfer_cross(in, from, to, link, codec, t);
    return HDT_OK;
}

/* A budget of 0 guards nothing: no less exact one than bf16 then. */
static bool is_allowed(const struct hdt_job_codec *job, const struct hdt_codec_spec *codec)
{
    const double error = hdt_codec_expected_error(codec);

    return error == 0 || (job->lossy && (job->error_budget > 0 ? error <= job->error_budget
                                                               : codec->worker == HDT_CODEC_BF16));
}

const struct hdt_codec_spec *hdt_cost_codecs(const struct hdt_job *job, size_t *n)
{
    static const struct hdt_codec_spec live[] = {
        {.worker = HDT_CODEC_NONE, .gateway = HDT_CODEC_LOSSLESS},
        {.worker = HDT_CODEC_BF16, .gateway = HDT_CODEC_LOSSLESS},
        {.worker = HDT_CODEC_INT8, .gateway = HDT_CODEC_LOSSLESS}};
    static const struct hdt_codec_spec fixed[] = {
        {.worker = HDT_CODEC_NONE},
        {.worker = HDT_CODEC_NONE, .gateway = HDT_CODEC_LOSSLESS},
        {.worker = HDT_CODEC_BF16},
        {.worker = HDT_CODEC_BF16, .gateway = HDT_CODEC_LOSSLESS}};
    const bool is_live = job->codec.lossy && job->codec.error_budget > 0;
    const struct hdt_codec_spec *all = is_live ? live : fixed;
    const size_t n_all =
        is_live ? sizeof(live) / sizeof(live[0]) : sizeof(fixed) / sizeof(fixed[0]);

    *n = 0;
    while (*n < n_all && is_allowed(&job->codec, &all[*n])) {
        (*n)++; /* from the most exact to the least */
    }
    return all;
}

struct hdt_codec_spec hdt_cost_edge_codec(const struct hdt_cost_inputs *in,
                                          const struct hdt_cluster_worker *from,
                                          const struct hdt_cluster_worker *to, bool is_grad)
{
    const double src_share = hdt_cost_gateway_share(in, NULL, from);
    const double dst_share = hdt_cost_gateway_share(in, NULL, to);
    const double n =
        (double)in->job->batch.micro_batch * (double)in->job->batch.seq_len * (double)in->model->C;
    size_t n_choices;
    const struct hdt_codec_spec *choices = hdt_cost_codecs(in->job, &n_choices);
    struct hdt_codec_spec best = {0};
    double best_s = DBL_MAX;

    if (strcmp(from->site, to->site) == 0 || hdt_job_codec(in->job, is_grad, &best)) {
        return best;
    }
    for (size_t i = 0; i < n_choices; i++) {
        struct hdt_cost_transfer t;
        double all_s;

        if (hdt_cost_transfer(in, from->site, to->site, &choices[i], n, &t, NULL) != HDT_OK) {
            continue;
        }
        all_s = hdt_cost_cast(&from->profile, &choices[i], n) + src_share * t.src_cpu_s +
                t.service_s + dst_share * t.dst_cpu_s + hdt_cost_cast(&to->profile, &choices[i], n);
        if (all_s < best_s) {
            best = choices[i];
            best_s = all_s;
        }
    }
    return best;
}

double hdt_cost_cast(const struct hdt_profile *profile, const struct hdt_codec_spec *codec,
                     double n_values)
{
    bool casts = codec->worker != HDT_CODEC_NONE;
    double rate = casts ? profile->cast_bytes_per_s : profile->copy_bytes_per_s;

    return rate > 0 ? 4.0 * n_values / rate : 0.0;
}

/* ---- who is held up by a gateway ---- */

static bool same_host(const char *a, const char *b)
{
    return a[0] != '\0' && strcmp(a, b) == 0;
}

/* Threads that compute on processors which this worker may use, its own among them. */
static int threads_beside(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                          const struct hdt_cluster_worker *worker)
{
    int n = 0;

    for (size_t i = 0; i < in->cluster->n_workers; i++) {
        const struct hdt_cluster_worker *w = &in->cluster->workers[i];

        if ((!plan || hdt_plan_has_worker(plan, w->site, w->name)) &&
            strcmp(w->backend, "cpu") == 0 && same_host(worker->profile.host, w->profile.host) &&
            hdt_cpus_overlap(worker->profile.cpus, w->profile.cpus) > 0) {
            n += w->n_threads;
        }
    }
    return n;
}

double hdt_cost_gateway_share(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                              const struct hdt_cluster_worker *worker)
{
    const struct hdt_cluster_site *site = hdt_cluster_find_site(in->cluster, worker->site);
    const struct hdt_profile *p = &worker->profile;
    int n_both, n_gateway, n_worker;

    if (!site || strcmp(worker->backend, "cpu") != 0 || !same_host(site->gateway.host, p->host)) {
        return 0;
    }
    n_gateway = hdt_cpus_count(site->gateway.cpus);
    n_worker = hdt_cpus_count(p->cpus);
    n_both = hdt_cpus_overlap(site->gateway.cpus, p->cpus);
    if (n_both == 0 || threads_beside(in, plan, worker) < n_worker) {
        return 0; /* the gateway finds a processor that is idle */
    }
    /* It runs on any of its processors; that it is one of ours takes a thread of n_worker away. */
    return (double)n_both / ((double)n_gateway * (double)n_worker);
}
