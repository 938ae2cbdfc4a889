/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/recorder.h"

#include <stdlib.h>

/*
 * What goes to a peer, and in which order.
 *
 * Frames with chunks to send wait by priority class and, within it, in order of arrival. A codec
 * thread cuts the next chunk off the most urgent frame when one of the peer's encoded-chunk buffers
 * is free; encoded ones are ready, again by class; whichever stream has room takes the next. So
 * fast streams carry more than slow ones and none waits for another. A static split over streams
 * was refused: the slowest would decide.
 *
 * An urgent frame overtakes all but what streams hold already: a stream takes a chunk only when
 * less than HDT_DP_LOW_WATER bytes wait in it, and the kernel is told not to take much more than it
 * can send. On a slow link that is still tens of milliseconds, so while classes of several
 * urgencies are in use, the first stream is kept for the most urgent, which may use the others as
 * well when that one is full; and the rest leaves some buffers free. With one class in use nothing
 * is kept back: the most urgent may be all there is.
 *
 * Within a class jobs take turns (gateway/txlane.h). What a budget holds back waits there, before
 * it is cut, so that it takes neither buffers nor streams from others.
 */

/* Two for each stream (one leaving, one ready), two for each codec thread, and two. */
static unsigned txq_count(const struct hdt_dataplane_conf *conf, unsigned n_streams)
{
    return 2u * n_streams + 2u * (unsigned)conf->n_codec_threads + 2u;
}

enum hdt_status hdt_txq_alloc(struct hdt_peer *peer, unsigned n_streams, struct hdt_error *err)
{
    struct hdt_dataplane *dp = peer->dp;
    const unsigned want = txq_count(&dp->conf, n_streams);
    const unsigned n = want > peer->n_tx ? want - peer->n_tx : 0;
    const size_t len = n * dp->tx_buf_cap;
    struct hdt_tx_block *block;
    unsigned i;

    if (n == 0) {
        return HDT_OK;
    }
    HDT_TRY(hdt_dp_charge(dp, len, "send buffers of a peer", err));
    block = hdt_calloc(1, sizeof(*block) + n * sizeof(block->chunks[0]));
    block->bytes = malloc(len);
    if (block->bytes == NULL) {
        free(block);
        dp->memory_used -= len;
        return hdt_error_set(err, HDT_ENOMEM, "cannot join site '%s': no memory for send buffers",
                             peer->site);
    }
    LL_PREPEND(peer->tx_blocks, block);
    for (i = 0; i < n; i++) {
        struct hdt_tx_chunk *chunk = &block->chunks[i];

        chunk->peer = peer;
        chunk->buf = block->bytes + i * dp->tx_buf_cap;
        chunk->out.kind = HDT_OUT_CHUNK;
        chunk->out.rec.user = &chunk->out;
        chunk->out.rec.passed_fd = -1;
        LL_PREPEND(peer->tx_free, chunk);
    }
    peer->n_tx += n;
    peer->n_tx_free += n;
    return HDT_OK;
}

static void txq_recycle(struct hdt_tx_chunk *chunk)
{
    struct hdt_peer *peer = chunk->peer;

    hdt_flow_end_unref(chunk->out.flow);
    chunk->out.flow = NULL;
    LL_PREPEND(peer->tx_free, chunk);
    peer->n_tx_free++;
    hdt_codecpool_wake(peer->dp);
}

/* Of the classes from `first` to `last`. */
static struct hdt_tx_chunk *txq_pop_ready(struct hdt_peer *peer, int first, int last)
{
    struct hdt_tx_chunk *chunk;
    int prio;

    for (prio = first; prio <= last; prio++) {
        struct hdt_tx_list *list = &peer->ready[prio];

        chunk = list->head;
        if (chunk != NULL) {
            list->head = chunk->next;
            if (list->head == NULL) {
                list->tail = NULL;
            }
            peer->n_ready--;
            return chunk;
        }
    }
    return NULL;
}

void hdt_txq_free(struct hdt_peer *peer)
{
    struct hdt_tx_block *block;
    struct hdt_tx_chunk *chunk;
    int prio;

    while ((chunk = txq_pop_ready(peer, 0, HDT_PRIO_COUNT - 1)) != NULL) {
        txq_recycle(chunk);
    }
    for (prio = 0; prio < HDT_PRIO_COUNT; prio++) {
        hdt_tx_lanes_free(&peer->queue[prio]);
    }
    while ((block = peer->tx_blocks) != NULL) {
        LL_DELETE(peer->tx_blocks, block);
        free(block->bytes);
        free(block);
    }
}

/* ---- frames ---- */

void hdt_txq_push(struct hdt_src_frame *frame, bool front)
{
    struct hdt_flow_end *flow = frame->flow;

    if (frame->queued) {
        return;
    }
    hdt_tx_lanes_push(&flow->peer->queue[flow->conf.prio], frame, front);
    frame->queued = true;
    hdt_codecpool_wake(flow->dp);
}

void hdt_txq_remove(struct hdt_src_frame *frame)
{
    struct hdt_flow_end *flow = frame->flow;

    if (frame->queued) {
        hdt_tx_lanes_remove(&flow->peer->queue[flow->conf.prio], frame);
        frame->queued = false;
    }
}

/* ---- urgency ---- */

static bool txq_in_use(const struct hdt_peer *peer, int prio, int64_t now_us)
{
    return peer->class_us[prio] != 0 && now_us - peer->class_us[prio] < HDT_DP_URGENT_US;
}

/* The most urgent of several classes in use; HDT_PRIO_COUNT: there is one at most. */
static int txq_first_of_several(const struct hdt_peer *peer, int64_t now_us)
{
    int first = 0, other;

    while (first < HDT_PRIO_COUNT && !txq_in_use(peer, first, now_us)) {
        first++;
    }
    for (other = first + 1; other < HDT_PRIO_COUNT; other++) {
        if (txq_in_use(peer, other, now_us)) {
            return first;
        }
    }
    return HDT_PRIO_COUNT;
}

int hdt_txq_urgent_class(const struct hdt_peer *peer, int64_t now_us)
{
    return peer->dp->conf.pace ? txq_first_of_several(peer, now_us) : HDT_PRIO_COUNT;
}

bool hdt_txq_is_mixed(const struct hdt_peer *peer, int64_t now_us)
{
    return txq_first_of_several(peer, now_us) < HDT_PRIO_COUNT;
}

struct hdt_conn *hdt_txq_urgent_conn(const struct hdt_peer *peer, int64_t now_us)
{
    const struct hdt_session *session = peer->session;
    struct hdt_conn *first = NULL;
    unsigned i;

    if (hdt_txq_urgent_class(peer, now_us) == HDT_PRIO_COUNT) {
        return NULL;
    }
    for (i = 1; session != NULL && i <= hdt_session_n_used(session); i++) {
        struct hdt_conn *conn = session->conns[i];

        if (conn == NULL || conn->state != HDT_CONN_UP) {
            continue;
        }
        if (first != NULL) {
            return first; /* there is another for the rest */
        }
        first = conn;
    }
    return NULL;
}

/* ---- cutting ---- */

static bool txq_has_stream(const struct hdt_session *session)
{
    unsigned i;

    for (i = 1; i <= session->n_streams; i++) {
        if (session->conns[i] != NULL && session->conns[i]->state == HDT_CONN_UP) {
            return true;
        }
    }
    return false;
}

/* When the codec did not make chunks smaller for a while, only every 16th tries it. */
static bool txq_use_codec(const struct hdt_src_frame *frame)
{
    struct hdt_flow_end *flow = frame->flow;

    if (!frame->use_codec) {
        return false;
    }
    if (flow->trial.n_unpaid < 4) {
        return true;
    }
    return flow->trial.n_unpaid++ % 16 == 0;
}

static void txq_fill_header(struct hdt_tx_chunk *chunk, const struct hdt_src_frame *frame,
                            uint64_t offset, uint32_t len)
{
    const struct hdt_flow_end *flow = frame->flow;
    struct hdt_frame *header = &chunk->out.rec.frame;

    *header = frame->frame;
    header->kind = HDT_FRAME_CHUNK;
    header->codec = 0;
    header->prio = (uint8_t)flow->conf.prio;
    header->offset = offset;
    header->len = len;
    header->coded_len = len;
    chunk->plain = frame->bytes + offset;
}

/* The next chunk of a frame that has one. */
static struct hdt_tx_chunk *txq_cut(struct hdt_peer *peer, struct hdt_src_frame *frame,
                                    int64_t now_us)
{
    const uint64_t chunk_bytes = peer->dp->conf.chunk_bytes;
    struct hdt_tx_chunk *chunk = peer->tx_free;
    struct hdt_tx_mark *mark;
    uint64_t offset, left;
    uint32_t idx = frame->scan_idx;

    while (frame->marks[idx].state != HDT_TX_WAITING) {
        idx++;
        HDT_ASSERT(idx < frame->n_chunks);
    }
    mark = &frame->marks[idx];
    mark->state = HDT_TX_TAKEN;
    mark->conn_id = 0;
    mark->again = false;
    frame->scan_idx = idx + 1;
    if (frame->n_todo == frame->n_chunks) {
        frame->cut_us = now_us;
        frame->wire_bytes = 0;
        frame->use_codec =
            frame->flow->conf.codec != 0 && hdt_codec_trial_next(&frame->flow->trial);
        frame->trial_era = frame->flow->trial.era;
    }
    frame->n_todo--;
    if (frame->n_todo == 0) {
        hdt_txq_remove(frame);
    } else {
        hdt_codecpool_wake(peer->dp); /* a frame wakes one thread, each chunk of it the next */
    }
    LL_DELETE(peer->tx_free, chunk);
    peer->n_tx_free--;
    peer->class_us[frame->flow->conf.prio] = now_us;
    offset = idx * chunk_bytes;
    left = frame->frame.frame_len - offset;
    chunk->out.flow = hdt_flow_end_ref(frame->flow);
    chunk->seq = frame->frame.seq;
    chunk->idx = idx;
    chunk->prio = (uint8_t)frame->flow->conf.prio;
    chunk->conn_id = 0;
    chunk->use_codec = txq_use_codec(frame);
    txq_fill_header(chunk, frame, offset, (uint32_t)(left < chunk_bytes ? left : chunk_bytes));
    hdt_tx_lanes_took(&peer->queue[chunk->prio], &peer->dp->budgets, frame,
                      chunk->out.rec.frame.len);
    return chunk;
}

/* What a cap lets pass at once is at least two chunks: one is on its way to a stream meanwhile. */
static double txq_least_burst(const struct hdt_dataplane *dp)
{
    return 2.0 * (double)dp->conf.chunk_bytes;
}

static struct hdt_tx_chunk *txq_take_of(struct hdt_peer *peer, int64_t now_us)
{
    const int urgent = hdt_txq_urgent_class(peer, now_us);
    struct hdt_src_frame *frame;
    int prio;

    if (peer->session == NULL || peer->tx_free == NULL || !txq_has_stream(peer->session)) {
        return NULL;
    }
    for (prio = 0; prio < HDT_PRIO_COUNT; prio++) {
        if (prio > urgent && peer->n_tx_free <= HDT_DP_URGENT_BUFS) {
            return NULL;
        }
        frame = hdt_tx_lanes_next(&peer->queue[prio], &peer->dp->budgets, txq_least_burst(peer->dp),
                                  now_us);
        if (frame != NULL) {
            return txq_cut(peer, frame, now_us);
        }
    }
    return NULL;
}

struct hdt_tx_chunk *hdt_txq_take(struct hdt_dataplane *dp)
{
    struct hdt_peer *first = dp->tx_next != NULL ? dp->tx_next : dp->peers;
    const int64_t now_us = first != NULL ? hdt_clock_now_us() : 0;
    struct hdt_peer *peer = first;
    struct hdt_tx_chunk *chunk;

    hdt_budgets_look(&dp->budgets, now_us, hdt_clock_wall_us());
    dp->budgets.held_until_us = 0;
    while (peer != NULL) {
        struct hdt_peer *next = peer->hh.next != NULL ? peer->hh.next : dp->peers;

        chunk = txq_take_of(peer, now_us);
        if (chunk != NULL) {
            dp->tx_next = next;
            return chunk;
        }
        peer = next != first ? next : NULL;
    }
    return NULL;
}

/* ---- ready ---- */

void hdt_txq_wake(struct hdt_peer *peer)
{
    struct hdt_session *session = peer->session;
    const struct hdt_conn *kept = hdt_txq_urgent_conn(peer, hdt_clock_now_us());
    const struct hdt_conn *one = session != NULL ? hdt_session_burst_stream(session) : NULL;
    unsigned i, n_left = peer->n_ready;

    for (i = 1; session != NULL && i <= session->n_streams && n_left > 0; i++) {
        struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->hungry && conn->state == HDT_CONN_UP &&
            (one == NULL || conn == one)) {
            conn->hungry = false;
            hdt_conn_kick(conn);
            n_left -= conn != kept; /* what is ready may not be for that one */
        }
    }
}

void hdt_txq_ready(struct hdt_tx_chunk *chunk)
{
    struct hdt_peer *peer = chunk->peer;
    struct hdt_flow_end *flow = chunk->out.flow;
    struct hdt_tx_list *list = &peer->ready[chunk->prio];

    if (chunk->use_codec) {
        flow->trial.n_unpaid = chunk->out.rec.frame.codec != 0 ? 0 : flow->trial.n_unpaid + 1;
    }
    hdt_budgets_spend(&peer->dp->budgets, flow->budgets,
                      HDT_FRAME_HEADER_LEN + chunk->out.rec.payload_len);
    chunk->next = NULL;
    if (list->tail != NULL) {
        list->tail->next = chunk;
    } else {
        list->head = chunk;
    }
    list->tail = chunk;
    peer->n_ready++;
    hdt_txq_wake(peer);
}

int64_t hdt_txq_rate_wait(struct hdt_dataplane *dp, int64_t now_us)
{
    const double rate = (double)dp->conf.rate_bits_per_s / 8.0;
    const double burst = rate * HDT_BUDGET_BURST_S, least = txq_least_burst(dp);

    return rate == 0 ? 0 : hdt_bucket_wait(&dp->rate, rate, burst > least ? burst : least, now_us);
}

void hdt_txq_rate_take(struct hdt_dataplane *dp, size_t len)
{
    hdt_bucket_spend(&dp->rate, (double)len);
}

/* Is it still worth sending? The frame may have been taken, or its client be gone. */
static struct hdt_src_frame *txq_frame(const struct hdt_tx_chunk *chunk)
{
    struct hdt_flow_end *flow = chunk->out.flow;

    return flow->attached ? hdt_src_frame_find(flow, chunk->seq) : NULL;
}

struct hdt_tx_chunk *hdt_txq_pull(struct hdt_conn *conn, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    const struct hdt_conn *kept = hdt_txq_urgent_conn(peer, now_us), *one;
    int first = 0, last = HDT_PRIO_COUNT - 1;
    struct hdt_tx_chunk *chunk;
    struct hdt_src_frame *frame;

    if (kept == conn) {
        last = hdt_txq_urgent_class(peer, now_us);
    } else if (kept != NULL && !kept->is_full) {
        first = hdt_txq_urgent_class(peer, now_us) + 1;
    }
    if (peer->session != conn->session) {
        return NULL;
    }
    if (conn->index > hdt_session_n_used(conn->session)) {
        conn->hungry = true; /* the peer sends on it */
        return NULL;
    }
    one = hdt_session_burst_stream(conn->session);
    if (one != NULL && conn != one) {
        conn->hungry = true;
        hdt_shortage_begin(&conn->link.shortage, now_us);
        return NULL;
    }
    if (peer->n_ready > 0) {
        conn->rate_wait_us = hdt_txq_rate_wait(peer->dp, now_us);
        if (conn->rate_wait_us > 0) {
            conn->hungry = true;
            hdt_shortage_end(&conn->link.shortage, now_us); /* the cap is short, not the work */
            return NULL;
        }
    }
    while ((chunk = txq_pop_ready(peer, first, last)) != NULL) {
        frame = txq_frame(chunk);
        if (frame == NULL || frame->have || chunk->out.flow->awaiting_state) {
            if (frame != NULL) {
                hdt_src_chunk_back(frame, chunk->idx);
            }
            txq_recycle(chunk);
            continue;
        }
        chunk->conn_id = conn->id;
        frame->marks[chunk->idx].conn_id = conn->id;
        hdt_txq_rate_take(peer->dp, HDT_FRAME_HEADER_LEN + chunk->out.rec.payload_len);
        return chunk;
    }
    conn->hungry = true;
    hdt_shortage_begin(&conn->link.shortage, now_us);
    peer->starved = peer->starved || kept != conn;
    return NULL;
}

static void txq_count_sent(struct hdt_tx_chunk *chunk, struct hdt_tx_mark *mark)
{
    struct hdt_peer *peer = chunk->peer;
    struct hdt_flow_end *flow = chunk->out.flow;
    const struct hdt_frame *header = &chunk->out.rec.frame;

    peer->total.sent_chunks++;
    if (mark != NULL && mark->sent_before) {
        peer->total.resent_chunks++;
        HDT_RECORD(HDT_REC_RESENT,
                   .n = {header->job, header->flow, (int64_t)header->seq, (int64_t)header->offset});
    }
    peer->total.plain_bytes += header->len;
    peer->total.coded_bytes += header->coded_len;
    peer->total.raw_bytes += (uint64_t)header->raw_len * header->len / header->frame_len;
    peer->window_bytes += HDT_FRAME_HEADER_LEN + header->coded_len;
    flow->sent_bytes += header->len;
    flow->coded_bytes += header->coded_len;
}

void hdt_txq_sent(struct hdt_tx_chunk *chunk, bool ok)
{
    struct hdt_src_frame *frame = txq_frame(chunk);
    struct hdt_tx_mark *mark = frame != NULL ? &frame->marks[chunk->idx] : NULL;

    if (mark != NULL && (mark->state != HDT_TX_TAKEN || mark->conn_id != chunk->conn_id)) {
        mark = NULL; /* the slot was given up and filled anew with the same frame */
    }
    if (ok) {
        txq_count_sent(chunk, mark);
    }
    if (mark != NULL) {
        mark->sent_before = mark->sent_before || ok;
        frame->wire_bytes += ok ? HDT_FRAME_HEADER_LEN + chunk->out.rec.frame.coded_len : 0;
        if (!ok || mark->again) {
            hdt_src_chunk_back(frame, chunk->idx);
        } else {
            mark->state = HDT_TX_SENT;
        }
    }
    txq_recycle(chunk);
}
