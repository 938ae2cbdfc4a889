/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs of a plan's edges: which are allowed, and what belongs to an edge whatever the plan's
 * numbers are. An edge is known by the unit behind which the model is cut there: so its seeds and
 * its feedback are the same in every plan that cuts at this place.
 */
#include "config.h"

#include "compress/codec.h"
#include "src/core/plan.h"

#include <stdio.h>

/* One value of so many: sparser activations hurt training. */
#define SPARSE_ACTIVATIONS_KEEP 10

static bool flow_is_edge(const struct hdt_plan_flow *flow)
{
    return flow->kind == HDT_FLOW_ACTIVATION || flow->kind == HDT_FLOW_ACTIVATION_GRAD;
}

int64_t hdt_plan_edge_unit(const struct hdt_plan *plan, const struct hdt_plan_flow *flow)
{
    HDT_ASSERT(flow_is_edge(flow));
    return plan->stages[flow->kind == HDT_FLOW_ACTIVATION ? flow->src_stage : flow->dst_stage]
        .unit_end;
}

void hdt_plan_edge_name(const struct hdt_plan *plan, const struct hdt_plan_flow *flow, bool is_src,
                        char name[HDT_PLAN_EDGE_NAME])
{
    int stage = flow->src_stage >= 0 ? flow->src_stage : flow->dst_stage;
    int replica = plan->stages[stage].replica;
    char of[24] = "";

    if (replica > 0) {
        snprintf(of, sizeof(of), "replica%d-", replica);
    }
    snprintf(name, HDT_PLAN_EDGE_NAME, "%s%s-%lld%s", of, hdt_flow_kind_name(flow->kind),
             (long long)hdt_plan_edge_unit(plan, flow), is_src ? "" : "-in");
}

/* The finalizer of splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t hdt_plan_frame_seed(const struct hdt_plan *plan, const struct hdt_plan_flow *flow,
                             uint64_t job_seed, bool eval, uint64_t frame)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t edge = (uint64_t)hdt_plan_edge_unit(plan, flow) << 2 |
                    (uint64_t)(flow->kind == HDT_FLOW_ACTIVATION_GRAD) << 1 | (uint64_t)eval;

    return mix64(mix64(mix64(job_seed + golden) ^ (edge + golden)) + (frame + 1) * golden);
}

/* ---- what is allowed ---- */

static bool is_lossy(const struct hdt_codec_spec *codec)
{
    return !(hdt_codec_spec_worker(codec)->caps & HDT_CODEC_EXACT);
}

enum hdt_status hdt_plan_check_codecs(const struct hdt_plan *plan, const struct hdt_job *job,
                                      struct hdt_error *err)
{
    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];
        struct hdt_codec_spec named;
        char text[HDT_CODEC_SPEC_TEXT];

        if (f->codec.flags & HDT_CODEC_DELTA) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "flow %zu has codec %s, but no batch of a job comes twice", i,
                                 hdt_codec_spec_format(&f->codec, text));
        }
        if (f->kind != HDT_FLOW_ACTIVATION_GRAD || !is_lossy(&f->codec) ||
            hdt_codec_spec_has_state(&f->codec) || job->codec.lossy ||
            (hdt_job_codec(job, true, &named) && hdt_codec_spec_equal(&named, &f->codec))) {
            continue;
        }
        hdt_error_set(err, HDT_EINVAL,
                      "flow %zu sends gradients by %s, which loses bits and makes up for none, and "
                      "the job does not ask for it",
                      i, hdt_codec_spec_format(&f->codec, text));
        hdt_error_hint(err, "name it in the job, codec.activation_grads: %s, or set codec.lossy",
                       text);
        return HDT_EINVAL;
    }
    return HDT_OK;
}

bool hdt_job_codec_warning(const struct hdt_job *job, char *text, size_t cap)
{
    struct hdt_codec_spec named;
    char name[HDT_CODEC_SPEC_TEXT];

    if (!hdt_job_codec(job, false, &named) || named.keep <= SPARSE_ACTIVATIONS_KEEP) {
        return false;
    }
    snprintf(text, cap,
             "codec.activations: %s keeps one of %u values of an activation: below one in ten "
             "training suffers; int8 or int4 lose less",
             hdt_codec_spec_format(&named, name), named.keep);
    return true;
}
