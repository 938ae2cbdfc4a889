/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/selftest/ref_grads.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void hdt_ref_rmsnorm_grad(const double *dy, const double *x, const double *w, int n, int c,
                          double eps, double *dx, double *dw)
{
    for (int i = 0; i < n; i++) {
        const double *xi = x + (size_t)i * c, *dyi = dy + (size_t)i * c;
        double square = 0, dot = 0, rstd;

        for (int j = 0; j < c; j++) {
            square += xi[j] * xi[j];
            dot += dyi[j] * w[j] * xi[j];
        }
        rstd = 1 / sqrt(square / c + eps);
        for (int j = 0; j < c; j++) {
            dx[(size_t)i * c + j] += rstd * (dyi[j] * w[j] - xi[j] * rstd * rstd * dot / c);
            dw[j] += dyi[j] * xi[j] * rstd;
        }
    }
}

static double dot(const double *a, const double *b, int len)
{
    double sum = 0;

    for (int i = 0; i < len; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void axpy(double factor, const double *x, int len, double *y)
{
    for (int i = 0; i < len; i++) {
        y[i] += factor * x[i];
    }
}

/* Attention weights of a query over n_keys keys, rows `stride` apart. */
static void softmax_of(const double *q, const double *k, int stride, int hs, int n_keys, double *p)
{
    double max = -INFINITY, sum = 0;

    for (int j = 0; j < n_keys; j++) {
        p[j] = dot(q, k + (size_t)j * stride, hs) / sqrt(hs);
        max = fmax(max, p[j]);
    }
    for (int j = 0; j < n_keys; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (int j = 0; j < n_keys; j++) {
        p[j] /= sum;
    }
}

void hdt_ref_attention_grad(const struct hdt_ref_attention *a, const double *qkv,
                            const double *dout, double *dqkv)
{
    int hs = a->head_size, group = a->n_heads / a->n_kv_heads, T = a->q_len;
    int stride = (a->n_heads + 2 * a->n_kv_heads) * hs;
    double *p = hdt_calloc((size_t)T, sizeof(*p)), *dp = hdt_calloc((size_t)T, sizeof(*dp));

    memset(dqkv, 0, (size_t)a->n_seqs * T * stride * sizeof(*dqkv));
    for (int i = 0; i < a->n_seqs * a->n_heads * T; i++) {
        int t = i % T, h = i / T % a->n_heads, seq = i / T / a->n_heads;
        size_t first = (size_t)seq * T * stride;
        size_t q = first + (size_t)t * stride + (size_t)h * hs;
        size_t k = first + (size_t)(a->n_heads + h / group) * hs;
        size_t v = k + (size_t)a->n_kv_heads * hs;
        const double *dy = dout + (((size_t)seq * T + t) * a->n_heads + h) * hs;
        double delta = 0;

        softmax_of(qkv + q, qkv + k, stride, hs, t + 1, p);
        for (int j = 0; j <= t; j++) {
            dp[j] = dot(dy, qkv + v + (size_t)j * stride, hs);
            delta += p[j] * dp[j];
        }
        for (int j = 0; j <= t; j++) {
            double ds = p[j] * (dp[j] - delta) / sqrt(hs);

            axpy(ds, qkv + k + (size_t)j * stride, hs, dqkv + q);
            axpy(ds, qkv + q, hs, dqkv + k + (size_t)j * stride);
            axpy(p[j], dy, hs, dqkv + v + (size_t)j * stride);
        }
    }
    free(p);
    free(dp);
}

void hdt_ref_swiglu_grad(const double *dh, const double *gate_up, int n, int f, double *dgate_up)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < f; j++) {
            size_t at = (size_t)i * 2 * f + j;
            double gate = gate_up[at], up = gate_up[at + f], d = dh[(size_t)i * f + j];
            double sigmoid = 1 / (1 + exp(-gate));

            dgate_up[at] = d * up * sigmoid * (1 + gate * (1 - sigmoid));
            dgate_up[at + f] = d * gate * sigmoid;
        }
    }
}

void hdt_ref_cross_entropy_grad(const int32_t *labels, int n, int v, double scale, double *logits)
{
    for (int i = 0; i < n; i++) {
        double *row = logits + (size_t)i * v, max = -INFINITY, sum = 0;

        for (int j = 0; j < v; j++) {
            max = fmax(max, row[j]);
        }
        for (int j = 0; j < v; j++) {
            sum += exp(row[j] - max);
        }
        for (int j = 0; j < v; j++) {
            row[j] = labels[i] < 0 ? 0 : scale * (exp(row[j] - max) / sum - (j == labels[i]));
        }
    }
}
