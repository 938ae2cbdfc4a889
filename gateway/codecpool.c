/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/*
 * The codec threads: checksums, gateway codecs, copies between local ends; all work that is
 * proportional to bytes except encryption, which the I/O threads do.
 *
 * What was received goes first: it frees a buffer here and credit there. A chunk that is sent
 * without a codec is only read once here, for its checksum; its bytes leave from the client's slot.
 */

/* Coded forms that save less than this share are sent plain: decoding them costs more. */
#define CODEC_WORTH_SHARE 32

struct codec_thread {
    struct hdt_dataplane *dp;
    struct hdt_codec_ctx *ctx;
    uint8_t *scratch; /* a plain chunk: coded, and some of it is in its slot already */
};

size_t hdt_codecpool_bound(uint64_t chunk_bytes)
{
    size_t most = (size_t)chunk_bytes, bound;
    unsigned id;
    int dtype;

    for (id = 0; id < HDT_CODEC_COUNT; id++) {
        const struct hdt_codec_ops *codec = hdt_codec_by_id(id);

        if (codec == NULL || (codec->caps & HDT_CODEC_AT_GATEWAY) == 0) {
            continue;
        }
        for (dtype = 0; dtype < HDT_DTYPE_COUNT; dtype++) {
            if (hdt_codec_bound(codec, (enum hdt_dtype)dtype, (size_t)chunk_bytes, &bound, NULL) ==
                    HDT_OK &&
                bound > most) {
                most = bound;
            }
        }
    }
    return most;
}

void hdt_codecpool_wake(struct hdt_dataplane *dp)
{
    pthread_cond_signal(&dp->work);
}

void hdt_rx_job_release(struct hdt_rx_job *job)
{
    struct hdt_conn *conn = job->conn;

    if (job->flow != NULL) {
        hdt_flow_end_unref(job->flow);
        job->flow = NULL;
    }
    job->mode = HDT_RX_IDLE;
    job->conn = NULL;
    if (conn->rx_stopped) {
        conn->rx_stopped = false;
        conn->resume_requested = true;
        hdt_conn_kick(conn);
    }
    hdt_conn_unref(conn);
}

void hdt_codecpool_push(struct hdt_rx_job *job)
{
    struct hdt_dataplane *dp = job->conn->dp;

    if (dp->stopping) {
        hdt_dst_done(job, false);
        hdt_rx_job_release(job);
        return;
    }
    job->next = NULL;
    if (dp->rx_head == NULL) {
        dp->rx_head = job;
    } else {
        dp->rx_tail->next = job;
    }
    dp->rx_tail = job;
    hdt_codecpool_wake(dp);
}

/* ---- received ---- */

static void codec_copy_claimed(const struct hdt_rx_job *job, const uint8_t *plain)
{
    const uint32_t len = job->frame.len;
    uint32_t at;

    for (at = 0; at < len; at += HDT_FRAME_GRANULE) {
        const uint32_t i = at / HDT_FRAME_GRANULE;
        const uint32_t n = len - at < HDT_FRAME_GRANULE ? len - at : HDT_FRAME_GRANULE;

        if ((job->claimed[i / 64] >> (i % 64) & 1) != 0) {
            memcpy(job->slot + job->frame.offset + at, plain + at, n);
        }
    }
}

static bool codec_decode(struct codec_thread *self, const struct hdt_rx_job *job, uint8_t *plain,
                         struct hdt_error *err)
{
    const struct hdt_codec_io io = {
        .src = job->buf,
        .src_len = job->frame.coded_len,
        .dst = plain,
        .dst_len = job->frame.len,
        .dtype = (enum hdt_dtype)job->frame.dtype,
        .offset = job->frame.offset,
    };

    return hdt_codec_decode(hdt_codec_by_id(job->frame.codec), self->ctx, &io, err) == HDT_OK;
}

/* Without the lock. true: the bytes are in the slot and right. */
static bool codec_run_rx(struct codec_thread *self, const struct hdt_rx_job *job)
{
    const struct hdt_frame *chunk = &job->frame;
    uint8_t *plain = job->slot + chunk->offset;
    struct hdt_error err = {0};
    bool ok = true;

    if (job->mode == HDT_RX_BUFFER && chunk->codec == HDT_CODEC_NONE) {
        plain = job->buf;
    } else if (job->mode == HDT_RX_BUFFER) {
        plain = job->whole ? plain : self->scratch;
        ok = codec_decode(self, job, plain, &err);
    }
    if (ok && XXH3_64bits(plain, chunk->len) != chunk->xxh3) {
        hdt_error_set(&err, HDT_ECRC, "its checksum is wrong");
        ok = false;
    }
    if (!ok) {
        hdt_log_debug("chunk of job %u, flow %u, frame %llu: %s; it is asked for again", chunk->job,
                      chunk->flow, (unsigned long long)chunk->seq, err.msg);
    } else if (!job->whole) {
        codec_copy_claimed(job, plain);
    }
    return ok;
}

/* L */
static void codec_do_rx(struct codec_thread *self)
{
    struct hdt_dataplane *dp = self->dp;
    struct hdt_rx_job *job = dp->rx_head;
    int64_t began_ns, took_ns;
    bool ok;

    dp->rx_head = job->next;
    hdt_dp_unlock(dp);
    began_ns = hdt_clock_thread_cpu_ns();
    ok = codec_run_rx(self, job);
    took_ns = hdt_clock_thread_cpu_ns() - began_ns;
    hdt_dp_lock(dp);
    if (job->frame.codec != HDT_CODEC_NONE) {
        dp->decode_bytes += job->frame.len;
        dp->decode_ns += (uint64_t)took_ns;
    }
    if (!ok) {
        hdt_peer_bad_chunk(job->conn->peer, &job->frame, HDT_BAD_CHECKSUM,
                           "its bytes do not decode or do not fit their checksum");
    }
    hdt_dst_done(job, ok);
    hdt_rx_job_release(job);
}

/* ---- to send ---- */

/* Without the lock. */
static void codec_run_tx(struct codec_thread *self, struct hdt_tx_chunk *chunk)
{
    struct hdt_frame *header = &chunk->out.rec.frame;
    const struct hdt_codec_ops *codec = hdt_codec_by_id(chunk->out.flow->conf.codec);
    const struct hdt_codec_io io = {
        .src = chunk->plain,
        .src_len = header->len,
        .dst = chunk->buf,
        .dst_len = self->dp->tx_buf_cap,
        .dtype = (enum hdt_dtype)header->dtype,
        .offset = header->offset,
    };
    size_t coded_len;

    header->xxh3 = XXH3_64bits(chunk->plain, header->len);
    chunk->out.rec.payload = chunk->plain;
    chunk->out.rec.payload_len = header->len;
    if (!chunk->use_codec || codec == NULL ||
        hdt_codec_encode(codec, self->ctx, &io, &coded_len, NULL) != HDT_OK ||
        coded_len > header->len - header->len / CODEC_WORTH_SHARE) {
        return; /* plain */
    }
    header->codec = (uint8_t)codec->id;
    header->coded_len = (uint32_t)coded_len;
    chunk->out.rec.payload = chunk->buf;
    chunk->out.rec.payload_len = coded_len;
}

/* L */
static void codec_do_tx(struct codec_thread *self, struct hdt_tx_chunk *chunk)
{
    struct hdt_dataplane *dp = self->dp;
    int64_t began_ns, took_ns;

    hdt_dp_unlock(dp);
    began_ns = hdt_clock_thread_cpu_ns();
    codec_run_tx(self, chunk);
    took_ns = hdt_clock_thread_cpu_ns() - began_ns;
    hdt_dp_lock(dp);
    if (chunk->use_codec) {
        dp->encode_bytes += chunk->out.rec.frame.len;
        dp->encode_ns += (uint64_t)took_ns;
    }
    hdt_txq_ready(chunk);
}

/* L */
static void codec_do_copy(struct hdt_dataplane *dp, struct hdt_local_copy *copy)
{
    hdt_dp_unlock(dp);
    memcpy(copy->to, copy->from, copy->len);
    hdt_dp_lock(dp);
    hdt_local_done(copy);
}

/* ---- threads ---- */

static void *codec_main(void *arg)
{
    struct codec_thread *self = arg;
    struct hdt_dataplane *dp = self->dp;
    struct hdt_tx_chunk *chunk;
    struct hdt_local_copy copy;

    hdt_dp_lock(dp);
    while (!dp->stopping) {
        if (dp->rx_head != NULL) {
            codec_do_rx(self);
        } else if ((chunk = hdt_txq_take(dp)) != NULL) {
            codec_do_tx(self, chunk);
        } else if (hdt_local_take(dp, &copy)) {
            codec_do_copy(dp, &copy);
        } else {
            pthread_cond_wait(&dp->work, &dp->lock);
        }
    }
    hdt_dp_unlock(dp);
    hdt_codec_ctx_free(self->ctx);
    free(self->scratch);
    free(self);
    return NULL;
}

static enum hdt_status codec_start_one(struct hdt_dataplane *dp, struct hdt_error *err)
{
    struct codec_thread *self = hdt_calloc(1, sizeof(*self));
    int rc = -1;

    self->dp = dp;
    self->scratch = malloc(HDT_DP_CHUNK_MAX);
    if (self->scratch == NULL) {
        hdt_error_set(err, HDT_ENOMEM, "cannot start a codec thread: no memory");
    } else if (hdt_codec_ctx_new(HDT_DP_CHUNK_MAX, &self->ctx, err) == HDT_OK) {
        rc = pthread_create(&dp->codec_threads[dp->n_codec_started], NULL, codec_main, self);
        if (rc != 0) {
            hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start a codec thread");
        }
    }
    if (rc != 0) {
        hdt_codec_ctx_free(self->ctx);
        free(self->scratch);
        free(self);
        return HDT_ENOMEM;
    }
    dp->n_codec_started++;
    return HDT_OK;
}

enum hdt_status hdt_codecpool_start(struct hdt_dataplane *dp, struct hdt_error *err)
{
    int i;

    dp->codec_threads = hdt_calloc((size_t)dp->conf.n_codec_threads, sizeof(pthread_t));
    for (i = 0; i < dp->conf.n_codec_threads; i++) {
        HDT_TRY(codec_start_one(dp, err));
    }
    return HDT_OK;
}

void hdt_codecpool_stop(struct hdt_dataplane *dp)
{
    struct hdt_rx_job *job;
    int i;

    hdt_dp_lock(dp);
    dp->stopping = true;
    pthread_cond_broadcast(&dp->work);
    hdt_dp_unlock(dp);
    for (i = 0; i < dp->n_codec_started; i++) {
        pthread_join(dp->codec_threads[i], NULL);
    }
    free(dp->codec_threads);
    dp->codec_threads = NULL;
    dp->n_codec_started = 0;
    hdt_dp_lock(dp);
    while ((job = dp->rx_head) != NULL) {
        dp->rx_head = job->next;
        hdt_dst_done(job, false);
        hdt_rx_job_release(job);
    }
    hdt_dp_unlock(dp);
}
