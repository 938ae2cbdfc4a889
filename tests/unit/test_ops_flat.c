/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding, loss, optimizer and elementwise ops, casts. */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "src/base/buf.h"
#include "tests/support/op_check.h"
#include "runtime/selftest/ref_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- embedding ------------------------------------------------------------------------------- */

struct embedding_args {
    int n, c, v;
    int32_t *tokens;
    struct op_array w, dout;
};

static void embedding_run(struct hdt_stream *s, void *arg, float *out)
{
    struct embedding_args *a = arg;
    float *dw = out + (size_t)a->n * a->c;

    memcpy(dw, a->w.f, a->w.len * sizeof(*dw));
    hdt_cpu_ops.embedding_fwd(s, a->tokens, a->w.f, a->n, a->c, out);
    hdt_cpu_ops.embedding_bwd(s, a->tokens, a->dout.f, a->n, a->c, dw);
}

Test(ops, embedding)
{
    struct embedding_args a = {.n = 500,
                               .c = 75,
                               .v = 11,
                               .w = hdt_op_array_new(11 * 75),
                               .dout = hdt_op_array_new(500 * 75),
                               .tokens = hdt_calloc(500, sizeof(int32_t))};
    struct op_case op = {.name = "embedding", .run = embedding_run, .arg = &a};
    double *out = hdt_calloc(a.dout.len, sizeof(*out)), *dw = hdt_calloc(a.w.len, sizeof(*dw));

    memcpy(dw, a.w.d, a.w.len * sizeof(*dw));
    for (int i = 0; i < a.n; i++) {
        a.tokens[i] = i * 7 % a.v;
        for (int j = 0; j < a.c; j++) {
            out[i * a.c + j] = a.w.d[a.tokens[i] * a.c + j];
            dw[a.tokens[i] * a.c + j] += a.dout.d[i * a.c + j];
        }
    }
    op.parts[0] = (struct op_part){"out", out, a.dout.len};
    op.parts[1] = (struct op_part){"dw", dw, a.w.len};
    hdt_op_case_check(&op);
    free(out);
    free(dw);
    free(a.tokens);
    hdt_op_array_free(&a.w);
    hdt_op_array_free(&a.dout);
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

struct loss_args {
    int n, v;
    float scale;
    int32_t *labels;
    struct op_array logits;
    double loss;
};

static double loss_objective(void *arg)
{
    struct loss_args *a = arg;

    return hdt_ref_cross_entropy(a->logits.d, a->labels, a->n, a->v) * 0.01;
}

static void loss_run(struct hdt_stream *s, void *arg, float *out)
{
    struct loss_args *a = arg;

    memcpy(out, a->logits.f, a->logits.len * sizeof(*out));
    a->loss = 1; /* the op adds */
    hdt_cpu_ops.cross_entropy(s, a->labels, a->n, a->v, a->scale, out, &a->loss);
    out[a->logits.len] = (float)a->loss;
}

static void loss_check(int n, int v)
{
    struct loss_args a = {.n = n,
                          .v = v,
                          .logits = hdt_op_array_new((size_t)n * v),
                          .scale = 0.01f,
                          .labels = hdt_calloc((size_t)n, sizeof(int32_t))};
    struct op_case op = {.name = "cross_entropy", .run = loss_run, .arg = &a};
    double *grad = hdt_calloc(a.logits.len, sizeof(*grad)), loss;

    for (int i = 0; i < n; i++) {
        a.labels[i] = i % 5 == 3 ? -100 : i * 13 % v;
    }
    hdt_ref_gradient(loss_objective, &a, a.logits.d, a.logits.len, grad);
    loss = 1 + hdt_ref_cross_entropy(a.logits.d, a.labels, n, v);
    op.parts[0] = (struct op_part){"dlogits", grad, a.logits.len};
    op.parts[1] = (struct op_part){"loss", &loss, 1};
    hdt_op_case_check(&op);
    a.scale = 0; /* evaluation leaves the logits */
    op.parts[0] = (struct op_part){"logits", a.logits.d, a.logits.len};
    hdt_op_case_check(&op);
    free(grad);
    free(a.labels);
    hdt_op_array_free(&a.logits);
}

Test(ops, cross_entropy)
{
    loss_check(1, 1);
    loss_check(7, 9);
    loss_check(40, 131);
}

/* Logits far apart neither overflow nor lose the loss. */
Test(ops, cross_entropy_of_extreme_logits)
{
    struct loss_args a = {.n = 2,
                          .v = 3,
                          .logits = hdt_op_array_new(6),
                          .scale = 1,
                          .labels = hdt_calloc(2, sizeof(int32_t))};
    static const float values[] = {1000, -1000, 0, -50000, -50001, -50002};
    float out[7];
    struct op_case op = {.name = "cross_entropy", .run = loss_run, .arg = &a};

    memcpy(a.logits.f, values, sizeof(values));
    a.labels[0] = 1;
    hdt_op_case_run_base(&op, out);
    cr_expect_float_eq(a.loss - 1, 2000 + log(1 + exp(-1) + exp(-2)), 1e-3);
    cr_expect_float_eq(out[0], 1, 1e-6);
    cr_expect_float_eq(out[1], -1, 1e-6);
    free(a.labels);
    hdt_op_array_free(&a.logits);
}

/* ---- flat ops -------------------------------------------------------------------------------- */

struct flat_args {
    struct op_array x, y, m, v;
    struct hdt_adamw adamw;
};

static void flat_run(struct hdt_stream *s, void *arg, float *out)
{
    struct flat_args *a = arg;
    size_t len = a->x.len;
    const struct hdt_span span = {a->x.f, len};
    double sum;

    memcpy(out, a->y.f, len * sizeof(*out));
    hdt_cpu_ops.add(s, a->x.f, len, out);
    hdt_cpu_ops.scale(s, 0.5f, len, out);
    hdt_cpu_ops.sumsq(s, &span, 1, &sum);
    out[len] = (float)sum;
    hdt_cpu_ops.zero(s, out + len + 1, 8 * sizeof(*out));
}

Test(ops, add_scale_sumsq_zero)
{
    static const size_t lens[] = {1, 7, 40000, 131073};

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        size_t len = lens[i];
        struct flat_args a = {.x = hdt_op_array_new(len), .y = hdt_op_array_new(len)};
        struct op_case op = {.name = "add, scale, sumsq, zero", .run = flat_run, .arg = &a};
        double *want = hdt_calloc(len, sizeof(*want)), sum = 0, zeros[8] = {0};

        for (size_t j = 0; j < len; j++) {
            want[j] = 0.5 * (a.x.d[j] + a.y.d[j]);
            sum += a.x.d[j] * a.x.d[j];
        }
        op.parts[0] = (struct op_part){"y", want, len};
        op.parts[1] = (struct op_part){"sumsq", &sum, 1};
        op.parts[2] = (struct op_part){"zero", zeros, 8};
        hdt_op_case_check(&op);
        free(want);
        hdt_op_array_free(&a.x);
        hdt_op_array_free(&a.y);
    }
}

static void adamw_run(struct hdt_stream *s, void *arg, float *out)
{
    struct flat_args *a = arg;
    size_t len = a->x.len;

    memcpy(out, a->y.f, len * sizeof(*out));
    memcpy(out + len, a->m.f, len * sizeof(*out));
    memcpy(out + 2 * len, a->v.f, len * sizeof(*out));
    hdt_cpu_ops.adamw(s, &a->adamw, a->x.f, len, out, out + len, out + 2 * len);
}

/* Loshchilov and Hutter, algorithm 2, with the decay scaled by the learning rate as in PyTorch. */
static void adamw_expect(const struct flat_args *a, double *w, double *m, double *v)
{
    const struct hdt_adamw *p = &a->adamw;
    double b1 = (double)p->beta1, b2 = (double)p->beta2;

    for (size_t i = 0; i < a->x.len; i++) {
        double g = a->x.d[i] * (double)p->grad_scale;

        m[i] = b1 * a->m.d[i] + (1 - b1) * g;
        v[i] = b2 * a->v.d[i] + (1 - b2) * g * g;
        w[i] = a->y.d[i] - (double)p->lr * (double)p->weight_decay * a->y.d[i] -
               (double)p->lr * m[i] / (1 - pow(b1, (double)p->step)) /
                   (sqrt(v[i] / (1 - pow(b2, (double)p->step))) + (double)p->eps);
    }
}

Test(ops, adamw)
{
    size_t len = 33001;
    struct flat_args a = {.x = hdt_op_array_new(len),
                          .y = hdt_op_array_new(len),
                          .m = hdt_op_array_new(len),
                          .v = hdt_op_array_new(len),
                          .adamw = {.lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .grad_scale = 0.3f,
                                    .step = 3}};
    struct op_case op = {.name = "adamw", .run = adamw_run, .arg = &a};
    double *w = hdt_calloc(3 * len, sizeof(*w));

    for (size_t i = 0; i < len; i++) {
        a.v.f[i] *= a.v.f[i];
        a.v.d[i] = (double)a.v.f[i];
    }
    adamw_expect(&a, w, w + len, w + 2 * len);
    op.parts[0] = (struct op_part){"w", w, len};
    op.parts[1] = (struct op_part){"m", w + len, len};
    op.parts[2] = (struct op_part){"v", w + 2 * len, len};
    hdt_op_case_check(&op);
    free(w);
    hdt_op_array_free(&a.x);
    hdt_op_array_free(&a.y);
    hdt_op_array_free(&a.m);
    hdt_op_array_free(&a.v);
}

/* Every operation of adamw.h rounded to float32 by itself: in float64, where a product or a sum of
 * two floats, a quotient and a root, rounded once more, are what float32 gives (Figueroa, "When is
 * double rounding innocuous?"). Any instruction set, any length. */
static void adamw_rounded(const struct hdt_adamw *p, const float *g, size_t len, float *w, float *m,
                          float *v)
{
    const double m_new = (double)(1.0f - p->beta1), v_new = (double)(1.0f - p->beta2);
    const float keep = (float)(1.0 - (double)p->lr * (double)p->weight_decay);
    const float m_rate = (float)((double)p->lr / (1.0 - pow((double)p->beta1, (double)p->step)));
    const float v_unbias = (float)(1.0 / sqrt(1.0 - pow((double)p->beta2, (double)p->step)));

    for (size_t i = 0; i < len; i++) {
        const float gi = (float)((double)g[i] * (double)p->grad_scale);
        const float m_old = (float)((double)p->beta1 * (double)m[i]);
        const float v_old = (float)((double)p->beta2 * (double)v[i]);
        const float v_half = (float)(v_new * (double)gi);
        const float m_part = (float)(m_new * (double)gi),
                    v_part = (float)((double)v_half * (double)gi);
        float size, move, kept;

        m[i] = (float)((double)m_old + (double)m_part);
        v[i] = (float)((double)v_old + (double)v_part);
        size = (float)((double)(float)sqrt((double)v[i]) * (double)v_unbias);
        size = (float)((double)size + (double)p->eps);
        move = (float)((double)(float)((double)m_rate * (double)m[i]) / (double)size);
        kept = (float)((double)w[i] * (double)keep);
        w[i] = (float)((double)kept - (double)move);
    }
}

Test(ops, adamw_is_the_same_everywhere_to_the_last_bit)
{
    const size_t len = 20011;
    struct hdt_adamw p = {.lr = 3e-4f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .grad_scale = 0.7f};
    struct op_array g = hdt_op_array_new(len), w = hdt_op_array_new(len), m = hdt_op_array_new(len);
    float *v = hdt_calloc(len, sizeof(*v)), *want = hdt_calloc(3 * len, sizeof(*want));

    memcpy(want, w.f, len * sizeof(*want));
    memcpy(want + len, m.f, len * sizeof(*want));
    for (p.step = 1; p.step < 40; p.step += 13) {
        hdt_cpu_adamw(&p, g.f, len, w.f, m.f, v);
        adamw_rounded(&p, g.f, len, want, want + len, want + 2 * len);
        cr_expect_eq(memcmp(w.f, want, len * sizeof(*want)), 0, "w");
        cr_expect_eq(memcmp(m.f, want + len, len * sizeof(*want)), 0, "m");
        cr_expect_eq(memcmp(v, want + 2 * len, len * sizeof(*want)), 0, "v");
    }
    free(v);
    free(want);
    hdt_op_array_free(&g);
    hdt_op_array_free(&w);
    hdt_op_array_free(&m);
}

/* ---- cast ------------------------------------------------------------------------------------ */

static float f32_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* All 16-bit values there and back; f16 against the compiler's own _Float16. */
Test(ops, cast_keeps_every_16_bit_value)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i, back;
        _Float16 want;
        float f;

        memcpy(&want, &half, sizeof(want));
        hdt_cpu_kernels_base.cast(&half, HDT_DTYPE_F16, 1, HDT_DTYPE_F32, &f);
        hdt_cpu_kernels_base.cast(&f, HDT_DTYPE_F32, 1, HDT_DTYPE_F16, &back);
        if (isnan((float)want)) {
            cr_assert(isnan(f) && (back & 0x7fff) > 0x7c00);
        } else {
            cr_assert(f == (float)want && back == half, "f16 %04x", i);
        }
        hdt_cpu_kernels_base.cast(&half, HDT_DTYPE_BF16, 1, HDT_DTYPE_F32, &f);
        hdt_cpu_kernels_base.cast(&f, HDT_DTYPE_F32, 1, HDT_DTYPE_BF16, &back);
        cr_assert(isnan(f) ? (back & 0x7fff) > 0x7f80 : back == half, "bf16 %04x", i);
    }
}

/* Rounding to nearest even on values of all exponents. */
Test(ops, cast_rounds_to_nearest_even)
{
    for (uint32_t i = 0; i < 2000000; i++) {
        uint32_t bits = i * 2654435761u;
        float f = f32_of_bits(bits);
        _Float16 want = (_Float16)f;
        uint16_t got, want_bits;

        if (isnan(f)) {
            continue;
        }
        memcpy(&want_bits, &want, sizeof(want));
        hdt_cpu_kernels_base.cast(&f, HDT_DTYPE_F32, 1, HDT_DTYPE_F16, &got);
        cr_assert_eq(got, want_bits, "f32 %08x: got f16 %04x, not %04x", bits, got, want_bits);
        hdt_cpu_kernels_base.cast(&f, HDT_DTYPE_F32, 1, HDT_DTYPE_BF16, &got);
        want_bits = (uint16_t)(bits >> 16);
        if ((bits & 0xffff) > 0x8000 || ((bits & 0xffff) == 0x8000 && (want_bits & 1))) {
            want_bits++;
        }
        cr_assert_eq(got, want_bits, "f32 %08x: got bf16 %04x, not %04x", bits, got, want_bits);
    }
}
