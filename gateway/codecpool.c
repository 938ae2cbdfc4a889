/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "gateway/dp.h"
#include "gateway/dpstep.h"
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
 * One that came without a codec is compared by the I/O thread that decrypted it
 * (hdt_rx_job_check): its bytes are in that core's cache, and handing it over would cost two
 * wake-ups.
 */

/* Coded forms that save less than this share are sent plain: decoding them costs more. */
#define CODEC_WORTH_SHARE 32

/* One thread, and what it has in hand: at most one of these. */
struct hdt_codec_worker {
    struct hdt_dataplane *dp;
    pthread_t thread;
    struct hdt_codec_ctx *ctx;
    uint8_t *scratch; /* a plain chunk: coded, and some of it is in its slot already */
    struct hdt_rx_job *rx;
    struct hdt_tx_chunk *tx;
    struct hdt_local_copy copy; /* src NULL: none */
    bool ok;                    /* of rx: its bytes are right; else why not */
    struct hdt_error err;
    int64_t took_ns;
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
            if (hdt_codec_bound(codec, NULL, (enum hdt_dtype)dtype, (size_t)chunk_bytes, &bound,
                                NULL) == HDT_OK &&
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

static bool codec_decode(struct hdt_codec_worker *self, const struct hdt_rx_job *job,
                         uint8_t *plain, struct hdt_error *err)
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

/* Are these the bytes that were sent? They go to the slot where they are not there yet. */
static bool codec_check_rx(const struct hdt_rx_job *job, const uint8_t *plain,
                           struct hdt_error *err)
{
    if (XXH3_64bits(plain, job->frame.len) != job->frame.xxh3) {
        hdt_error_set(err, HDT_ECRC, "its checksum is wrong");
        return false;
    }
    if (!job->whole) {
        codec_copy_claimed(job, plain);
    }
    return true;
}

/* Without the lock. true: the bytes are in the slot and right. */
static bool codec_run_rx(struct hdt_codec_worker *self, const struct hdt_rx_job *job,
                         struct hdt_error *err)
{
    uint8_t *plain = job->slot + job->frame.offset;

    if (job->frame.codec == HDT_CODEC_NONE) {
        return codec_check_rx(job, job->mode == HDT_RX_BUFFER ? job->buf : plain, err);
    }
    plain = job->whole ? plain : self->scratch;
    return codec_decode(self, job, plain, err) && codec_check_rx(job, plain, err);
}

/* L: the job is over. */
static void codec_end_rx(struct hdt_rx_job *job, bool ok, const struct hdt_error *err)
{
    if (!ok) {
        hdt_log_debug("chunk of job %u, flow %u, frame %llu: %s; it is asked for again",
                      job->frame.job, job->frame.flow, (unsigned long long)job->frame.seq,
                      err->msg);
        hdt_peer_bad_chunk(job->conn->peer, &job->frame, HDT_BAD_CHECKSUM,
                           "its bytes do not decode or do not fit their checksum");
    }
    hdt_dst_done(job, ok);
    hdt_rx_job_release(job);
}

void hdt_rx_job_check(struct hdt_rx_job *job)
{
    struct hdt_dataplane *dp = job->conn->dp;
    struct hdt_error err = {0};
    bool ok;

    HDT_ASSERT(job->frame.codec == HDT_CODEC_NONE); /* there is no worker to decode it */
    ok = codec_run_rx(NULL, job, &err);
    hdt_dp_lock(dp);
    codec_end_rx(job, ok, &err);
    hdt_dp_unlock(dp);
}

/* L */
static void codec_settle_rx(struct hdt_codec_worker *self)
{
    struct hdt_dataplane *dp = self->dp;
    struct hdt_rx_job *job = self->rx;

    self->rx = NULL;
    dp->decode_bytes += job->frame.len;
    dp->decode_ns += (uint64_t)self->took_ns;
    codec_end_rx(job, self->ok, &self->err);
}

/* ---- to send ---- */

/* Without the lock. */
static void codec_run_tx(struct hdt_codec_worker *self, struct hdt_tx_chunk *chunk)
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
static void codec_settle_tx(struct hdt_codec_worker *self)
{
    struct hdt_dataplane *dp = self->dp;
    struct hdt_tx_chunk *chunk = self->tx;

    self->tx = NULL;
    if (chunk->use_codec) {
        dp->encode_bytes += chunk->out.rec.frame.len;
        dp->encode_ns += (uint64_t)self->took_ns;
    }
    hdt_txq_ready(chunk);
}

/* ---- a piece of work: taken with the lock, done without it, handed on with it ---- */

/* L: false: there is none. */
static bool codec_take(struct hdt_codec_worker *self)
{
    struct hdt_dataplane *dp = self->dp;

    self->rx = dp->rx_head;
    if (self->rx != NULL) {
        dp->rx_head = self->rx->next;
        return true;
    }
    self->tx = hdt_txq_take(dp);
    return self->tx != NULL || hdt_local_take(dp, &self->copy);
}

static void codec_run(struct hdt_codec_worker *self)
{
    const int64_t began_ns = hdt_clock_thread_cpu_ns();

    if (self->rx != NULL) {
        self->ok = codec_run_rx(self, self->rx, &self->err);
    } else if (self->tx != NULL) {
        codec_run_tx(self, self->tx);
    } else {
        memcpy(self->copy.to, self->copy.from, self->copy.len);
    }
    self->took_ns = hdt_clock_thread_cpu_ns() - began_ns;
}

/* L */
static void codec_settle(struct hdt_codec_worker *self)
{
    if (self->rx != NULL) {
        codec_settle_rx(self);
    } else if (self->tx != NULL) {
        codec_settle_tx(self);
    } else {
        hdt_local_done(&self->copy);
        self->copy.src = NULL;
    }
}

/* ---- threads ---- */

/* L: for a signal, or until a budget lets something pass. */
static void codec_wait(struct hdt_dataplane *dp)
{
    const int64_t until_us = dp->budgets.held_until_us;
    const struct timespec until = {.tv_sec = until_us / HDT_US_PER_S,
                                   .tv_nsec = until_us % HDT_US_PER_S * 1000};

    if (until_us == 0) {
        pthread_cond_wait(&dp->work, &dp->lock);
    } else {
        pthread_cond_timedwait(&dp->work, &dp->lock, &until);
    }
}

static void *codec_main(void *arg)
{
    struct hdt_codec_worker *self = arg;
    struct hdt_dataplane *dp = self->dp;

    hdt_dp_lock(dp);
    while (!dp->stopping) {
        if (codec_take(self)) {
            hdt_dp_unlock(dp);
            codec_run(self);
            hdt_dp_lock(dp);
            codec_settle(self);
        } else {
            codec_wait(dp);
        }
    }
    hdt_dp_unlock(dp);
    return NULL;
}

static void codec_release(struct hdt_codec_worker *self)
{
    hdt_codec_ctx_free(self->ctx);
    free(self->scratch);
}

static enum hdt_status codec_start_one(struct hdt_dataplane *dp, struct hdt_codec_worker *self,
                                       struct hdt_error *err)
{
    int rc = 0;

    self->dp = dp;
    self->scratch = malloc(HDT_DP_CHUNK_MAX);
    if (self->scratch == NULL) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot start a codec thread: no memory");
    }
    if (hdt_codec_ctx_new(HDT_DP_CHUNK_MAX, &self->ctx, err) != HDT_OK) {
        codec_release(self);
        return HDT_ENOMEM;
    }
    if (dp->conf.stepped == NULL) {
        rc = pthread_create(&self->thread, NULL, codec_main, self);
    }
    if (rc != 0) {
        codec_release(self);
        return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start a codec thread");
    }
    dp->n_codecs++;
    return HDT_OK;
}

enum hdt_status hdt_codecpool_start(struct hdt_dataplane *dp, struct hdt_error *err)
{
    int i;

    dp->codecs = hdt_calloc((size_t)dp->conf.n_codec_threads, sizeof(*dp->codecs));
    for (i = 0; i < dp->conf.n_codec_threads; i++) {
        HDT_TRY(codec_start_one(dp, &dp->codecs[i], err));
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
    for (i = 0; i < dp->n_codecs; i++) {
        if (dp->conf.stepped == NULL) {
            pthread_join(dp->codecs[i].thread, NULL);
        } else if (hdt_dpstep_codec_is_busy(dp, (unsigned)i)) {
            hdt_dpstep_codec_run(dp, (unsigned)i);
            hdt_dpstep_codec_settle(dp, (unsigned)i);
        }
        codec_release(&dp->codecs[i]);
    }
    free(dp->codecs);
    dp->codecs = NULL;
    dp->n_codecs = 0;
    hdt_dp_lock(dp);
    while ((job = dp->rx_head) != NULL) {
        dp->rx_head = job->next;
        hdt_dst_done(job, false);
        hdt_rx_job_release(job);
    }
    hdt_dp_unlock(dp);
}

/* ---- without threads ---- */

bool hdt_dpstep_codec_take(struct hdt_dataplane *dp, unsigned i)
{
    bool is_taken;

    HDT_ASSERT(!hdt_dpstep_codec_is_busy(dp, i));
    hdt_dp_lock(dp);
    is_taken = codec_take(&dp->codecs[i]);
    hdt_dp_unlock(dp);
    return is_taken;
}

bool hdt_dpstep_codec_is_busy(const struct hdt_dataplane *dp, unsigned i)
{
    const struct hdt_codec_worker *self = &dp->codecs[i];

    return self->rx != NULL || self->tx != NULL || self->copy.src != NULL;
}

void hdt_dpstep_codec_run(struct hdt_dataplane *dp, unsigned i)
{
    codec_run(&dp->codecs[i]);
}

void hdt_dpstep_codec_settle(struct hdt_dataplane *dp, unsigned i)
{
    hdt_dp_lock(dp);
    codec_settle(&dp->codecs[i]);
    hdt_dp_unlock(dp);
}
