/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers: the two ends that own a flow. They speak records byte by byte, with code of their own,
 * over a Unix socket with shared memory or as over TLS, and check what they get: the frame that is
 * due, of the length and the bytes that follow from (seed, flow, epoch, number), with its sender's
 * hash; and that nobody writes to its slot from its delivery to its acknowledgement.
 */
#include "config.h"

#include "src/base/buf.h"
#include "src/core/msg.h"
#include "src/net/link.h"
#include "tests/support/content.h"
#include "tests/support/link_sim_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define AGAIN_US   (50 * SIM_MS) /* between attempts to connect, up to twice that */
#define TAKEN_BYTE 0xee          /* fills a slot whose frame was taken */
#define OUT_MAX    (2u << 20)    /* bytes that wait before no more frames are handed over */

static void worker_turn(struct sim *sim, void *arg, uint64_t n);

/* ---- frames ---- */

static uint64_t frame_hash(const struct sim *sim, unsigned flow, uint32_t epoch, uint64_t seq)
{
    return hdt_sim_mix(sim->seed + hdt_sim_mix(((uint64_t)epoch << 32 | flow) + 1) +
                       seq * 0x9e3779b97f4a7c15ull);
}

uint32_t hdt_sim_frame_len(const struct sim *sim, unsigned flow, uint32_t epoch, uint64_t seq)
{
    return hdt_content_len(frame_hash(sim, flow, epoch, seq), sim->plan.flows[flow].frame_cap);
}

/* Some flows like numbers with few exponents, some like noise. */
static void frame_fill(const struct sim *sim, uint8_t *bytes, uint32_t len, unsigned flow,
                       uint32_t epoch, uint64_t seq)
{
    hdt_content_fill(frame_hash(sim, flow, epoch, seq), flow % 3 == 2, bytes, len);
}

static uint8_t *slot_of(const struct sim_worker *worker, const struct sim_end *end, unsigned flow,
                        uint64_t seq)
{
    const struct sim_flow_plan *plan = &worker->sim->plan.flows[flow];
    const uint32_t stride =
        (plan->frame_cap + HDT_FRAME_GRANULE - 1) / HDT_FRAME_GRANULE * HDT_FRAME_GRANULE;

    return worker->pool.base + end->offset + (seq % plan->depth) * stride;
}

static bool is_src_of(const struct sim_worker *worker, unsigned flow)
{
    const struct sim_flow_plan *plan = &worker->sim->plan.flows[flow];

    return plan->src_site == worker->site->idx && plan->src_worker == worker->idx;
}

static bool is_dst_of(const struct sim_worker *worker, unsigned flow)
{
    const struct sim_flow_plan *plan = &worker->sim->plan.flows[flow];

    return plan->dst_site == worker->site->idx && plan->dst_worker == worker->idx;
}

/* ---- out ---- */

static void out_record(struct sim_worker *worker, struct hdt_frame *frame, const void *payload,
                       size_t len)
{
    uint8_t header[HDT_FRAME_HEADER_LEN];

    frame->version = HDT_FRAME_VERSION;
    hdt_frame_pack(frame, header);
    hdt_buf_append(&worker->out, header, sizeof(header));
    if (len > 0) {
        hdt_buf_append(&worker->out, payload, len);
    }
}

static void out_msg(struct sim_worker *worker, const char *type, json_t *body)
{
    json_t *msg = hdt_msg_new(type, NULL, body);
    struct hdt_frame frame = {.kind = HDT_FRAME_MSG};
    struct hdt_buf bytes = {0};

    hdt_msg_encode(msg, &bytes);
    frame.coded_len = (uint32_t)bytes.len;
    out_record(worker, &frame, bytes.data, bytes.len);
    hdt_buf_release(&bytes);
    json_decref(msg);
}

static void out_pool(struct sim_worker *worker)
{
    struct hdt_frame frame = {.kind = HDT_FRAME_POOL,
                              .job = SIM_JOB,
                              .epoch = worker->epoch,
                              .seq = worker->epoch,
                              .offset = worker->pool.len};

    worker->out_fd_at = worker->out.len;
    out_record(worker, &frame, NULL, 0);
}

static void out_open(struct sim_worker *worker, unsigned flow, bool is_src)
{
    struct sim_end *end = is_src ? &worker->src[flow] : &worker->dst[flow];

    end->is_synced = !is_src;
    out_msg(worker, "open",
            json_pack("{s:i, s:I, s:b, s:I, s:I}", "flow", (int)flow, "epoch",
                      (json_int_t)worker->epoch, "is_src", is_src, "offset",
                      (json_int_t)end->offset, "next",
                      (json_int_t)(is_src ? end->handed : end->acked)));
}

/* Its pool, and its flows as they stand. */
static void out_epoch(struct sim_worker *worker)
{
    unsigned i;

    if (worker->epoch == 0) {
        return;
    }
    if (!worker->plan->over_tls) {
        out_pool(worker);
    }
    for (i = 0; i < worker->sim->plan.n_flows; i++) {
        if (is_dst_of(worker, i)) {
            out_open(worker, i, false);
        }
        if (is_src_of(worker, i)) {
            out_open(worker, i, true);
        }
    }
}

static void out_frames(struct sim_worker *worker, unsigned idx)
{
    const struct sim_flow_plan *flow = &worker->sim->plan.flows[idx];
    struct sim_end *end = &worker->src[idx];

    while (end->is_synced && end->next < flow->n_frames && end->next < end->credit &&
           end->next < end->acked + flow->depth && worker->out.len - worker->out_start < OUT_MAX) {
        const uint64_t seq = end->next++;
        const uint32_t len = hdt_sim_frame_len(worker->sim, idx, worker->epoch, seq);
        uint8_t *slot = slot_of(worker, end, idx, seq);
        struct hdt_frame frame = {.kind = HDT_FRAME_DATA,
                                  .job = SIM_JOB,
                                  .epoch = worker->epoch,
                                  .flow = idx,
                                  .seq = seq,
                                  .frame_len = len,
                                  .raw_len = 2 * len,
                                  .dtype = (uint8_t)flow->dtype,
                                  .flags = (uint8_t)(seq * 3),
                                  .prio = (uint8_t)flow->prio};

        end->handed = end->next > end->handed ? end->next : end->handed;
        frame_fill(worker->sim, slot, len, idx, worker->epoch, seq);
        frame.xxh3 = XXH3_64bits(slot, len);
        frame.offset = (uint64_t)(slot - worker->pool.base);
        out_record(worker, &frame, slot, worker->plan->over_tls ? len : 0);
    }
}

/* A slot of a frame that was taken is as its owner left it. */
static void check_untouched(const struct sim_worker *worker, unsigned flow, uint64_t seq)
{
    const uint32_t len = hdt_sim_frame_len(worker->sim, flow, worker->epoch, seq);
    const uint8_t *slot = slot_of(worker, &worker->dst[flow], flow, seq);
    uint32_t i;

    for (i = 0; i < len && slot[i] == TAKEN_BYTE; i++) {
    }
    SIM_CHECK(worker->sim, i == len,
              "flow %u: byte %u of frame %llu was written after the frame was delivered", flow, i,
              (unsigned long long)seq);
}

static void out_ack(struct sim_worker *worker, unsigned idx)
{
    struct sim *sim = worker->sim;
    struct sim_end *end = &worker->dst[idx];
    struct hdt_frame frame = {
        .kind = HDT_FRAME_ACK, .job = SIM_JOB, .epoch = worker->epoch, .flow = idx};

    for (; end->acked < end->taken; end->acked++) {
        check_untouched(worker, idx, end->acked);
        sim->frames_done++;
        sim->frames_taken++;
        sim->bytes_taken += hdt_sim_frame_len(sim, idx, worker->epoch, end->acked);
    }
    hdt_sim_moved(sim);
    frame.seq = end->acked;
    frame.offset = end->acked + sim->plan.flows[idx].depth;
    out_record(worker, &frame, NULL, 0);
    hdt_sim_note(sim, "acks", worker->site->idx, idx, end->acked, worker->epoch);
    hdt_sim_faults_due(sim);
}

/* As far as the socket takes it. false: the connection is broken. */
static bool out_flush(struct sim_worker *worker)
{
    while (worker->out_start < worker->out.len) {
        size_t len = worker->out.len - worker->out_start;
        int fd = -1;
        int64_t n;

        if (worker->out_fd_at == worker->out_start) {
            fd = worker->pool.fd;
        } else if (worker->out_fd_at != SIZE_MAX) {
            len = worker->out_fd_at - worker->out_start;
        }
        n = hdt_sim_write(worker->sock, worker->out.data + worker->out_start, len, fd);
        if (n == -EAGAIN) {
            return true;
        }
        if (n < 0) {
            return false;
        }
        if (fd >= 0) {
            worker->out_fd_at = SIZE_MAX;
        }
        worker->out_start += (size_t)n;
    }
    hdt_buf_clear(&worker->out);
    worker->out_start = 0;
    return true;
}

/* ---- in ---- */

static void frame_is_taken(struct sim *sim, void *arg, uint64_t n)
{
    struct sim_worker *worker = arg;
    struct sim_end *end = &worker->dst[n >> 32 & 0xff];

    (void)sim;
    if (worker->sock != NULL && worker->n_connects == n >> 40 && worker->epoch != 0) {
        end->taken = (uint32_t)n > end->taken ? (uint32_t)n : end->taken;
        hdt_sim_worker_ready(worker);
    }
}

static void on_data(struct sim_worker *worker, const struct hdt_frame *frame)
{
    struct sim *sim = worker->sim;
    struct sim_end *end = &worker->dst[frame->flow];
    uint8_t *slot = slot_of(worker, end, frame->flow, frame->seq);
    const unsigned long long seq = frame->seq;

    SIM_CHECK(sim, frame->seq == end->next, "flow %u: frame %llu came, %llu was due", frame->flow,
              seq, (unsigned long long)end->next);
    SIM_CHECK(sim, worker->plan->over_tls || slot == worker->pool.base + frame->offset,
              "flow %u: frame %llu lies at %llu", frame->flow, seq,
              (unsigned long long)frame->offset);
    SIM_CHECK(sim,
              frame->frame_len == hdt_sim_frame_len(sim, frame->flow, worker->epoch, frame->seq),
              "flow %u: frame %llu has %u bytes", frame->flow, seq, frame->frame_len);
    SIM_CHECK(
        sim,
        frame->flags == (uint8_t)(seq * 3) && frame->dtype == sim->plan.flows[frame->flow].dtype,
        "flow %u: frame %llu has flags %u, dtype %u", frame->flow, seq, frame->flags, frame->dtype);
    SIM_CHECK(sim, frame->xxh3 == (uint32_t)XXH3_64bits(slot, frame->frame_len),
              "flow %u: frame %llu does not fit its sender's hash", frame->flow, seq);
    frame_fill(sim, worker->spare, frame->frame_len, frame->flow, worker->epoch, frame->seq);
    SIM_CHECK(sim, memcmp(slot, worker->spare, frame->frame_len) == 0,
              "flow %u: frame %llu of %u bytes has wrong bytes", frame->flow, seq,
              frame->frame_len);
    memset(slot, TAKEN_BYTE, frame->frame_len);
    end->next++;
    hdt_sim_note(sim, "takes", worker->site->idx, frame->flow, frame->seq, frame->frame_len);
    hdt_sim_at(sim, sim->now_us + (int64_t)hdt_sim_below(sim, (uint64_t)worker->plan->think_us + 1),
               frame_is_taken, worker,
               worker->n_connects << 40 | (uint64_t)frame->flow << 32 | (uint32_t)(seq + 1));
}

static void on_ack(struct sim_worker *worker, const struct hdt_frame *frame)
{
    struct sim_end *end = &worker->src[frame->flow];
    const uint32_t depth = worker->sim->plan.flows[frame->flow].depth;

    SIM_CHECK(worker->sim,
              frame->seq >= end->acked && frame->seq <= end->handed &&
                  frame->offset >= frame->seq && frame->offset - frame->seq <= depth,
              "flow %u: acknowledged to %llu, credit %llu; %llu were, %llu are out", frame->flow,
              (unsigned long long)frame->seq, (unsigned long long)frame->offset,
              (unsigned long long)end->acked, (unsigned long long)end->handed);
    end->acked = frame->seq;
    end->credit = frame->offset;
    if (!end->is_synced || end->next < frame->seq) {
        end->is_synced = true;
        end->next = frame->seq; /* the rest again; some of which may have been on its way */
    }
}

static bool is_of_now(const struct sim_worker *worker, const struct hdt_frame *frame)
{
    return worker->epoch != 0 && frame->epoch == worker->epoch;
}

/* A record is whole. */
static void on_record(struct sim_worker *worker)
{
    const struct hdt_frame *frame = &worker->frame;

    if (frame->kind == HDT_FRAME_MSG) {
        return; /* welcome; or why not, and then the connection ends */
    }
    SIM_CHECK(worker->sim,
              frame->job == SIM_JOB && frame->flow < worker->sim->plan.n_flows &&
                  (frame->kind == HDT_FRAME_DATA || frame->kind == HDT_FRAME_ACK),
              "a record of kind %u of job %u, flow %u", frame->kind, frame->job, frame->flow);
    if (!is_of_now(worker, frame)) {
        return;
    }
    if (frame->kind == HDT_FRAME_DATA) {
        SIM_CHECK(worker->sim, is_dst_of(worker, frame->flow), "a frame of flow %u", frame->flow);
        on_data(worker, frame);
    } else {
        SIM_CHECK(worker->sim, is_src_of(worker, frame->flow), "an ACK of flow %u", frame->flow);
        on_ack(worker, frame);
    }
}

/* A header is whole: where its payload goes. */
static void on_header(struct sim_worker *worker)
{
    struct hdt_error err = {0};
    struct hdt_frame *frame = &worker->frame;

    SIM_CHECK(worker->sim, hdt_frame_unpack(worker->header, frame, &err) == HDT_OK,
              "the gateway says: %s", err.msg);
    worker->payload = worker->spare;
    worker->payload_have = 0;
    worker->payload_len = frame->kind == HDT_FRAME_MSG ? frame->coded_len
                          : frame->kind == HDT_FRAME_DATA && worker->plan->over_tls
                              ? frame->frame_len
                              : 0;
    SIM_CHECK(worker->sim, worker->payload_len <= worker->spare_len, "a record of %zu bytes",
              worker->payload_len);
    if (frame->kind == HDT_FRAME_DATA && is_of_now(worker, frame) &&
        is_dst_of(worker, frame->flow)) {
        worker->payload = slot_of(worker, &worker->dst[frame->flow], frame->flow, frame->seq);
    }
}

/* Up to `most` bytes; what the call to read says. */
static int64_t in_read(struct sim_worker *worker, size_t most)
{
    const bool is_header = worker->header_len < HDT_FRAME_HEADER_LEN;
    uint8_t *to =
        is_header ? worker->header + worker->header_len : worker->payload + worker->payload_have;
    size_t len = is_header ? HDT_FRAME_HEADER_LEN - worker->header_len
                           : worker->payload_len - worker->payload_have;
    int fd;
    int64_t n = hdt_sim_read(worker->sock, to, len < most ? len : most, &fd);

    if (n <= 0) {
        return n;
    }
    if (is_header) {
        worker->header_len += (size_t)n;
        if (worker->header_len == HDT_FRAME_HEADER_LEN) {
            on_header(worker);
        }
    } else {
        worker->payload_have += (size_t)n;
    }
    if (worker->header_len == HDT_FRAME_HEADER_LEN && worker->payload_have == worker->payload_len) {
        worker->header_len = 0;
        on_record(worker);
    }
    return n;
}

/* ---- turns ---- */

/* What was received and not acknowledged comes again. */
static void worker_lost(struct sim_worker *worker)
{
    struct sim *sim = worker->sim;
    unsigned i;

    hdt_sim_sock_close(worker->sock);
    worker->sock = NULL;
    worker->header_len = 0;
    worker->payload_len = 0;
    worker->payload_have = 0;
    worker->out_fd_at = SIZE_MAX;
    worker->out_start = 0;
    hdt_buf_clear(&worker->out);
    for (i = 0; i < sim->plan.n_flows; i++) {
        worker->dst[i].next = worker->dst[i].acked;
        worker->dst[i].taken = worker->dst[i].acked;
        worker->src[i].is_synced = false;
    }
    hdt_sim_at(sim, sim->now_us + AGAIN_US + (int64_t)hdt_sim_below(sim, AGAIN_US), worker_turn,
               worker, 0);
}

static void worker_connect(struct sim_worker *worker)
{
    struct sim *sim = worker->sim;

    worker->sock = hdt_sim_connect_worker(worker);
    if (worker->sock == NULL) {
        hdt_sim_at(sim, sim->now_us + AGAIN_US + (int64_t)hdt_sim_below(sim, AGAIN_US), worker_turn,
                   worker, 0);
        return;
    }
    worker->n_connects++;
    hdt_sim_note(sim, "connects", worker->site->idx, worker->idx, worker->n_connects, 0);
    out_msg(worker, "hello",
            json_pack("{s:i, s:s, s:s, s:s, s:o}", "proto", HDT_PROTOCOL_VERSION, "role", "worker",
                      "name", worker->name, "version", "test", "instance",
                      hdt_msg_u64_hex(worker->instance)));
    out_epoch(worker);
}

static void worker_say(struct sim_worker *worker)
{
    unsigned i;

    for (i = 0; i < worker->sim->plan.n_flows && worker->epoch != 0; i++) {
        if (worker->dst[i].taken > worker->dst[i].acked) {
            out_ack(worker, i);
        }
        if (is_src_of(worker, i)) {
            out_frames(worker, i);
        }
    }
}

static void worker_turn(struct sim *sim, void *arg, uint64_t is_usual)
{
    struct sim_worker *worker = arg;
    int64_t n = 1;
    size_t left = worker->plan->read_max;

    if (is_usual != 0) {
        worker->is_turn_due = false;
    }
    if (sim->now_us < worker->asleep_until_us) {
        worker->is_turn_due = worker->is_turn_due || is_usual != 0;
        hdt_sim_at(sim, worker->asleep_until_us, worker_turn, worker, is_usual);
        return;
    }
    if (worker->sock == NULL) {
        if (is_usual != 0) {
            return; /* another turn, of the loss, is on its way */
        }
        worker_connect(worker);
        if (worker->sock == NULL) {
            return;
        }
    }
    while (left > 0 && n > 0) {
        n = in_read(worker, left);
        left -= n > 0 ? (size_t)n : 0;
    }
    worker_say(worker);
    if (n == 0 || (n < 0 && n != -EAGAIN) || !out_flush(worker)) {
        worker_lost(worker);
    } else if (hdt_sim_can_read(worker->sock)) {
        hdt_sim_worker_ready(worker);
    }
}

void hdt_sim_worker_ready(struct sim_worker *worker)
{
    if (!worker->is_turn_due && worker->sock != NULL) {
        worker->is_turn_due = true;
        hdt_sim_at(worker->sim, worker->sim->now_us + worker->plan->turn_us, worker_turn, worker,
                   1);
    }
}

/* ---- epochs ---- */

void hdt_sim_worker_release(struct sim_worker *worker)
{
    worker->epoch = 0;
    hdt_sim_note(worker->sim, "releases", worker->site->idx, worker->idx, 0, 0);
}

void hdt_sim_worker_begin(struct sim_worker *worker, uint32_t epoch)
{
    unsigned i;

    worker->epoch = epoch;
    for (i = 0; i < worker->sim->plan.n_flows; i++) {
        worker->src[i] = (struct sim_end){.offset = worker->src[i].offset};
        worker->dst[i] = (struct sim_end){.offset = worker->dst[i].offset};
    }
    if (worker->sock != NULL && worker->out_fd_at != SIZE_MAX) {
        hdt_sim_reset(worker->sock->conn); /* its last pool is not announced yet: all anew */
    } else if (worker->sock != NULL) {
        out_epoch(worker);
        hdt_sim_worker_ready(worker);
    }
}

/* ---- life ---- */

static void worker_open(struct sim_worker *worker)
{
    const struct sim_plan *plan = &worker->sim->plan;
    size_t len = HDT_FRAME_GRANULE;
    struct hdt_error err = {0};
    unsigned i, pass;

    worker->spare_len = 64u << 10;
    for (i = 0; i < plan->n_flows; i++) {
        const size_t bytes =
            (size_t)plan->flows[i].depth * ((plan->flows[i].frame_cap + HDT_FRAME_GRANULE - 1) /
                                            HDT_FRAME_GRANULE * HDT_FRAME_GRANULE);

        for (pass = 0; pass < 2; pass++) {
            if (pass == 0 ? is_src_of(worker, i) : is_dst_of(worker, i)) {
                (pass == 0 ? worker->src : worker->dst)[i].offset = len;
                len += bytes;
            }
        }
        if (plan->flows[i].frame_cap > worker->spare_len) {
            worker->spare_len = plan->flows[i].frame_cap;
        }
    }
    worker->spare = hdt_malloc(worker->spare_len);
    worker->out_fd_at = SIZE_MAX;
    worker->instance = ++worker->sim->next_instance;
    SIM_CHECK(worker->sim, hdt_link_shm.pool_alloc(len, 1, &worker->pool, &err) == HDT_OK, "%s",
              err.msg);
    hdt_sim_worker_begin(worker, worker->sim->epoch);
    hdt_sim_at(worker->sim, worker->sim->now_us + (int64_t)hdt_sim_below(worker->sim, AGAIN_US),
               worker_turn, worker, 0);
}

void hdt_sim_workers_open(struct sim *sim)
{
    unsigned i, k;

    for (i = 0; i < sim->plan.n_sites; i++) {
        for (k = 0; k < sim->plan.sites[i].n_workers; k++) {
            struct sim_worker *worker = &sim->workers[i][k];

            worker->sim = sim;
            worker->site = &sim->sites[i];
            worker->idx = k;
            worker->plan = &sim->plan.workers[i][k];
            snprintf(worker->name, sizeof(worker->name), "w%u", k);
            worker_open(worker);
        }
    }
}

void hdt_sim_workers_close(struct sim *sim)
{
    unsigned i, k;

    for (i = 0; i < sim->plan.n_sites; i++) {
        for (k = 0; k < sim->plan.sites[i].n_workers; k++) {
            struct sim_worker *worker = &sim->workers[i][k];

            worker->pool.ops->pool_free(&worker->pool);
            hdt_buf_release(&worker->out);
            free(worker->spare);
        }
    }
}
