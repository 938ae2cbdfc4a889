/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/selftest/ref_ops.h"

#include <math.h>
#include <stdlib.h>

void hdt_ref_gemm(const struct hdt_ref_gemm *g, const double *a, const double *b, double *c)
{
    for (int i = 0; i < g->m; i++) {
        for (int j = 0; j < g->n; j++) {
            double sum = 0;

            for (int p = 0; p < g->k; p++) {
                double x = g->trans_a ? a[(size_t)p * g->lda + i] : a[(size_t)i * g->lda + p];
                double y = g->trans_b ? b[(size_t)j * g->ldb + p] : b[(size_t)p * g->ldb + j];

                sum += x * y;
            }
            c[(size_t)i * g->ldc + j] =
                g->alpha * sum + (g->beta != 0 ? g->beta * c[(size_t)i * g->ldc + j] : 0);
        }
    }
}

void hdt_ref_rmsnorm(const double *x, const double *w, int n, int c, double eps, double *y)
{
    for (int i = 0; i < n; i++) {
        double sum = 0;

        for (int j = 0; j < c; j++) {
            sum += x[i * c + j] * x[i * c + j];
        }
        for (int j = 0; j < c; j++) {
            y[i * c + j] = x[i * c + j] / sqrt(sum / c + eps) * w[j];
        }
    }
}

void hdt_ref_rope(int n, int t, int pos, int n_heads, int head_size, int stride, double theta,
                  double *x)
{
    int half = head_size / 2;

    for (int row = 0; row < n; row++) {
        for (int i = 0; i < n_heads * half; i++) {
            double *head = x + (size_t)row * stride + (size_t)(i / half) * head_size;
            double angle = (pos + row % t) * pow(theta, -2.0 * (i % half) / head_size);
            double a = head[i % half], b = head[i % half + half];

            head[i % half] = a * cos(angle) - b * sin(angle);
            head[i % half + half] = b * cos(angle) + a * sin(angle);
        }
    }
}

/* One query of one head. */
static double attend(const struct hdt_ref_attention *a, const double *q, const double *k,
                     const double *v, int n_keys, double *out)
{
    int stride = (a->n_heads + 2 * a->n_kv_heads) * a->head_size;
    double *score = calloc((size_t)n_keys, sizeof(*score)), max = -INFINITY, sum = 0;

    for (int j = 0; j < n_keys; j++) {
        for (int d = 0; d < a->head_size; d++) {
            score[j] += q[d] * k[(size_t)j * stride + d] / sqrt(a->head_size);
        }
        max = fmax(max, score[j]);
    }
    for (int j = 0; j < n_keys; j++) {
        sum += exp(score[j] - max);
    }
    for (int d = 0; d < a->head_size; d++) {
        out[d] = 0;
        for (int j = 0; j < n_keys; j++) {
            out[d] += exp(score[j] - max) / sum * v[(size_t)j * stride + d];
        }
    }
    free(score);
    return max + log(sum);
}

void hdt_ref_attention(const struct hdt_ref_attention *a, const double *qkv, double *out,
                       double *lse)
{
    int hs = a->head_size, group = a->n_heads / a->n_kv_heads;
    int stride = (a->n_heads + 2 * a->n_kv_heads) * hs, before = a->kv_len - a->q_len;

    for (int i = 0; i < a->n_seqs * a->n_heads * a->q_len; i++) {
        int t = i % a->q_len, h = i / a->q_len % a->n_heads, seq = i / a->q_len / a->n_heads;
        const double *rows = qkv + (size_t)seq * a->kv_len * stride;
        const double *k = rows + (size_t)(a->n_heads + h / group) * hs;
        double *o = out + ((size_t)seq * a->q_len + t) * a->n_heads * hs + (size_t)h * hs;

        lse[i] = attend(a, rows + (size_t)(before + t) * stride + (size_t)h * hs, k,
                        k + (size_t)a->n_kv_heads * hs, before + t + 1, o);
    }
}

void hdt_ref_swiglu(const double *gate_up, int n, int f, double *h)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < f; j++) {
            double gate = gate_up[(size_t)i * 2 * f + j], up = gate_up[(size_t)i * 2 * f + f + j];

            h[(size_t)i * f + j] = gate / (1 + exp(-gate)) * up;
        }
    }
}

double hdt_ref_cross_entropy(const double *logits, const int32_t *labels, int n, int v)
{
    double loss = 0;

    for (int i = 0; i < n; i++) {
        const double *row = logits + (size_t)i * v;
        double max = -INFINITY, sum = 0;

        for (int j = 0; j < v; j++) {
            max = fmax(max, row[j]);
        }
        for (int j = 0; j < v; j++) {
            sum += exp(row[j] - max);
        }
        loss += labels[i] >= 0 ? max + log(sum) - row[labels[i]] : 0;
    }
    return loss;
}

void hdt_ref_gradient(double (*f)(void *arg), void *arg, double *x, size_t len, double *grad)
{
    const double step = 1e-5;

    for (size_t i = 0; i < len; i++) {
        double at = x[i], above;

        x[i] = at + step;
        above = f(arg);
        x[i] = at - step;
        grad[i] = (above - f(arg)) / (2 * step);
        x[i] = at;
    }
}

double hdt_ref_nmse(const float *got, const double *want, size_t len)
{
    double error = 0, power = 0;

    for (size_t i = 0; i < len; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        power += want[i] * want[i];
    }
    return power > 0 ? error / power : error;
}
