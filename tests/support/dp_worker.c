/* SPDX-License-Identifier: Apache-2.0 */
/* The rig's worker: blocking reads and writes on one thread, as plain as a client can be. */
#include "config.h"

#include "tests/support/content.h"
#include "tests/support/dp_rig.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "src/net/addr.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- frames ---- */

static uint64_t frame_hash(unsigned flow, uint64_t seq)
{
    uint64_t z = ((uint64_t)hdt_rig_seed << 32 | flow) + seq * 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint32_t frame_len(const struct rig *rig, unsigned idx, uint64_t seq)
{
    return hdt_content_len(rig->unchecked ? 0 : frame_hash(idx, seq), rig->flows[idx].frame_cap);
}

static void frame_fill(uint8_t *bytes, uint32_t len, unsigned idx, uint64_t seq)
{
    hdt_content_fill(frame_hash(idx, seq), false, bytes, len);
}

/* ---- bytes ---- */

static bool worker_write(struct rig_worker *worker, const void *bytes, size_t len, int passed_fd)
{
    const uint8_t *at = bytes;

    while (len > 0) {
        ssize_t n;

        if (worker->ssl != NULL) {
            n = SSL_write(worker->ssl, at, (int)len);
        } else {
            union {
                char buf[CMSG_SPACE(sizeof(int))];
                struct cmsghdr align;
            } control = {0};
            struct iovec iov = {.iov_base = (void *)at, .iov_len = len};
            struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

            if (passed_fd >= 0) {
                msg.msg_control = control.buf;
                msg.msg_controllen = sizeof(control.buf);
                CMSG_FIRSTHDR(&msg)->cmsg_level = SOL_SOCKET;
                CMSG_FIRSTHDR(&msg)->cmsg_type = SCM_RIGHTS;
                CMSG_FIRSTHDR(&msg)->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), &passed_fd, sizeof(int));
            }
            n = sendmsg(worker->fd, &msg, MSG_NOSIGNAL);
        }
        if (n <= 0) {
            return false;
        }
        passed_fd = -1;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static bool worker_read(struct rig_worker *worker, void *bytes, size_t len)
{
    uint8_t *at = bytes;

    while (len > 0) {
        const ssize_t n = worker->ssl != NULL ? SSL_read(worker->ssl, at, (int)len)
                                              : recv(worker->fd, at, len, 0);

        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static bool worker_send(struct rig_worker *worker, struct hdt_frame *frame, const void *payload,
                        size_t len, int passed_fd)
{
    uint8_t header[HDT_FRAME_HEADER_LEN];

    frame->version = HDT_FRAME_VERSION;
    hdt_frame_pack(frame, header);
    return worker_write(worker, header, sizeof(header), passed_fd) &&
           (len == 0 || worker_write(worker, payload, len, -1));
}

static bool worker_send_msg(struct rig_worker *worker, const char *type, json_t *body)
{
    json_t *msg = hdt_msg_new(type, NULL, body);
    struct hdt_buf bytes = {0};
    struct hdt_frame frame = {.kind = HDT_FRAME_MSG};
    bool ok;

    hdt_msg_encode(msg, &bytes);
    frame.coded_len = (uint32_t)bytes.len;
    ok = worker_send(worker, &frame, bytes.data, bytes.len, -1);
    hdt_buf_release(&bytes);
    json_decref(msg);
    return ok;
}

/* ---- connecting ---- */

static void worker_disconnect(struct rig_worker *worker)
{
    SSL_free(worker->ssl);
    worker->ssl = NULL;
    if (worker->fd >= 0) {
        close(worker->fd);
    }
    worker->fd = -1;
}

static bool worker_open_flow(struct rig_worker *worker, unsigned idx, bool is_src)
{
    struct rig_end *end = is_src ? &worker->src[idx] : &worker->dst[idx];

    end->is_synced = !is_src;
    end->ack_due = false;
    return worker_send_msg(worker, "open",
                           json_pack("{s:i,s:b,s:I,s:I}", "flow", (int)idx, "is_src", is_src,
                                     "offset", (json_int_t)end->offset, "next",
                                     (json_int_t)(is_src ? end->next : end->acked)));
}

static bool worker_greet(struct rig_worker *worker)
{
    struct hdt_frame pool = {.kind = HDT_FRAME_POOL, .seq = 5, .offset = worker->pool.len};
    struct rig *rig = worker->rig;
    unsigned i;

    if (!worker_send_msg(worker, "hello",
                         json_pack("{s:i,s:s,s:s,s:s}", "proto", HDT_PROTOCOL_VERSION, "role",
                                   "worker", "name", "w", "version", "test")) ||
        (!worker->over_tls && !worker_send(worker, &pool, NULL, 0, worker->pool.fd))) {
        return false;
    }
    for (i = 0; i < rig->n_flows; i++) {
        if ((rig->flows[i].dst_site == worker->site && !worker_open_flow(worker, i, false)) ||
            (rig->flows[i].src_site == worker->site && !worker_open_flow(worker, i, true))) {
            return false;
        }
    }
    return true;
}

static bool worker_connect(struct rig_worker *worker)
{
    const struct rig_site *site = &worker->rig->sites[worker->site];
    struct hdt_addr addr;

    if (hdt_addr_parse(worker->over_tls ? site->lan : site->sock, &addr, NULL) != HDT_OK ||
        hdt_addr_connect(&addr, 1000, &worker->fd, NULL) != HDT_OK) {
        worker->fd = -1;
        return false;
    }
    if (worker->over_tls) {
        worker->ssl = SSL_new(worker->ssl_ctx);
        SSL_set_fd(worker->ssl, worker->fd);
        if (SSL_connect(worker->ssl) != 1) {
            worker_disconnect(worker);
            return false;
        }
    }
    if (!worker_greet(worker)) {
        worker_disconnect(worker);
        return false;
    }
    return true;
}

/* ---- records ---- */

static uint8_t *worker_slot(struct rig_worker *worker, const struct rig_end *end,
                            const struct rig_flow *flow, uint64_t seq)
{
    const uint32_t stride =
        (flow->frame_cap + HDT_FRAME_GRANULE - 1) / HDT_FRAME_GRANULE * HDT_FRAME_GRANULE;

    return worker->pool.base + end->offset + (seq % flow->depth) * stride;
}

static bool worker_on_data(struct rig_worker *worker, const struct hdt_frame *frame)
{
    struct rig *rig = worker->rig;
    const struct rig_flow *flow = &rig->flows[frame->flow];
    struct rig_end *end = &worker->dst[frame->flow];
    uint8_t *slot = worker_slot(worker, end, flow, frame->seq);

    if (worker->over_tls && !worker_read(worker, slot, frame->frame_len)) {
        return false;
    }
    RIG_CHECK(frame->seq == end->next, "flow %u: frame %llu came, %llu was due", frame->flow,
              (unsigned long long)frame->seq, (unsigned long long)end->next);
    RIG_CHECK(frame->frame_len == frame_len(rig, frame->flow, frame->seq),
              "flow %u, frame %llu: %u bytes", frame->flow, (unsigned long long)frame->seq,
              frame->frame_len);
    RIG_CHECK(frame->flags == (uint8_t)(frame->seq * 3) && frame->dtype == HDT_DTYPE_BF16,
              "flow %u, frame %llu: flags %u", frame->flow, (unsigned long long)frame->seq,
              frame->flags);
    RIG_CHECK(rig->unchecked || frame->xxh3 == (uint32_t)XXH3_64bits(slot, frame->frame_len),
              "flow %u, frame %llu: its sender's hash is another", frame->flow,
              (unsigned long long)frame->seq);
    RIG_CHECK(worker->over_tls || slot == worker->pool.base + frame->offset, "wrong slot");
    if (!rig->unchecked) {
        frame_fill(worker->expected, frame->frame_len, frame->flow, frame->seq);
        RIG_CHECK(memcmp(slot, worker->expected, frame->frame_len) == 0,
                  "flow %u, frame %llu of %u bytes: wrong bytes", frame->flow,
                  (unsigned long long)frame->seq, frame->frame_len);
        memset(slot, 0xee, frame->frame_len);
    }
    end->next++;
    end->ack_due = true;
    return true;
}

static bool worker_on_record(struct rig_worker *worker)
{
    uint8_t header[HDT_FRAME_HEADER_LEN];
    struct hdt_error err = {0};
    struct hdt_frame frame;
    uint8_t msg[4096];

    if (!worker_read(worker, header, sizeof(header))) {
        return false;
    }
    RIG_CHECK(hdt_frame_unpack(header, &frame, &err) == HDT_OK, "%s", err.msg);
    if (frame.kind == HDT_FRAME_MSG) {
        RIG_CHECK(frame.coded_len <= sizeof(msg), "long message");
        return worker_read(worker, msg, frame.coded_len);
    }
    RIG_CHECK(frame.flow < worker->rig->n_flows && frame.job == 7 && frame.epoch == 1,
              "record of flow %u", frame.flow);
    if (frame.kind == HDT_FRAME_DATA) {
        return worker_on_data(worker, &frame);
    }
    if (frame.kind == HDT_FRAME_ACK) {
        struct rig_end *end = &worker->src[frame.flow];

        RIG_CHECK(frame.seq >= end->acked && frame.seq <= end->most, "flow %u: ACK %llu of %llu",
                  frame.flow, (unsigned long long)frame.seq, (unsigned long long)end->most);
        end->acked = frame.seq;
        end->credit = frame.offset;
        /* The rest again; but for what was on its way and is there now. */
        if (!end->is_synced || end->next < frame.seq) {
            end->is_synced = true;
            end->next = frame.seq;
        }
    }
    return true;
}

static bool worker_submit(struct rig_worker *worker, unsigned idx)
{
    const struct rig_flow *flow = &worker->rig->flows[idx];
    struct rig_end *end = &worker->src[idx];

    while (end->is_synced && end->next < flow->n_frames && end->next < end->credit &&
           end->next < end->acked + flow->depth) {
        struct hdt_frame frame = {.kind = HDT_FRAME_DATA, .job = 7, .epoch = 1, .flow = idx};
        uint8_t *slot = worker_slot(worker, end, flow, end->next);

        frame.seq = end->next++;
        end->most = end->next > end->most ? end->next : end->most;
        frame.frame_len = frame_len(worker->rig, idx, frame.seq);
        frame.raw_len = frame.frame_len * 2;
        frame.dtype = HDT_DTYPE_BF16;
        frame.flags = (uint8_t)(frame.seq * 3);
        frame.prio = (uint8_t)flow->prio;
        frame.offset = (uint64_t)(slot - worker->pool.base);
        if (!worker->rig->unchecked || frame.seq < flow->depth) {
            frame_fill(slot, frame.frame_len, idx, frame.seq);
        }
        frame.xxh3 = worker->rig->unchecked ? 0 : XXH3_64bits(slot, frame.frame_len);
        if (!worker_send(worker, &frame, worker->over_tls ? slot : NULL,
                         worker->over_tls ? frame.frame_len : 0, -1)) {
            return false;
        }
    }
    return true;
}

static bool worker_ack(struct rig_worker *worker, unsigned idx)
{
    struct rig_end *end = &worker->dst[idx];
    struct hdt_frame frame = {.kind = HDT_FRAME_ACK, .job = 7, .epoch = 1, .flow = idx};

    end->ack_due = false;
    end->acked = end->next;
    frame.seq = end->acked;
    frame.offset = end->acked + worker->rig->flows[idx].depth;
    /* Taken, whether or not the gateway is there to hear it: one that comes back is told by the
     * open. */
    atomic_store(&worker->rig->done[idx], end->acked);
    return worker_send(worker, &frame, NULL, 0, -1);
}

static bool worker_turn(struct rig_worker *worker)
{
    struct pollfd pfd = {.fd = worker->fd, .events = POLLIN};
    const bool is_pending = worker->ssl != NULL && SSL_pending(worker->ssl) > 0;
    const bool is_idle = !is_pending && poll(&pfd, 1, 10) == 0;
    unsigned i;

    if (!is_idle && !worker_on_record(worker)) {
        return false;
    }
    for (i = 0; i < worker->rig->n_flows; i++) {
        /* Now and then frames are taken together. */
        const bool is_ready = is_idle || hdt_rig_random(&worker->rng) % 4 != 0;

        if ((worker->dst[i].ack_due && is_ready && !worker_ack(worker, i)) ||
            (worker->rig->flows[i].src_site == worker->site && !worker_submit(worker, i))) {
            return false;
        }
    }
    return true;
}

/* After a loss: what was received and not acknowledged comes again. */
static void worker_lost(struct rig_worker *worker)
{
    unsigned i;

    worker_disconnect(worker);
    for (i = 0; i < worker->rig->n_flows; i++) {
        worker->dst[i].next = worker->dst[i].acked;
    }
}

static void *worker_main(void *arg)
{
    struct rig_worker *worker = arg;

    while (!atomic_load(&worker->stop)) {
        if (worker->fd < 0 && !worker_connect(worker)) {
            hdt_rig_sleep_ms(20);
        } else if (worker->fd >= 0 && !worker_turn(worker)) {
            worker_lost(worker);
        }
    }
    worker_disconnect(worker);
    return NULL;
}

/* ---- life ---- */

static SSL_CTX *worker_ssl_ctx(struct rig_worker *worker)
{
    char *name = hdt_asprintf("%s/w", worker->rig->sites[worker->site].name);
    char *dir = hdt_rig_issue(worker->rig, "worker", name);
    char *cert = hdt_asprintf("%s/cert.pem", dir);
    char *key = hdt_asprintf("%s/key.pem", dir);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());

    RIG_CHECK(SSL_CTX_use_certificate_chain_file(ctx, cert) == 1 &&
                  SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) == 1,
              "cannot load %s", cert);
    free(cert);
    free(key);
    free(dir);
    free(name);
    return ctx;
}

void hdt_rig_worker_start(struct rig_worker *worker)
{
    struct rig *rig = worker->rig;
    struct hdt_error err = {0};
    size_t len = HDT_FRAME_GRANULE;
    uint32_t longest = 1;
    unsigned i, pass;

    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < rig->n_flows; i++) {
            const struct rig_flow *flow = &rig->flows[i];
            struct rig_end *end = pass == 0 ? &worker->src[i] : &worker->dst[i];

            end->offset = len;
            len += (size_t)flow->depth * ((flow->frame_cap + 4095) / 4096 * 4096);
            longest = flow->frame_cap > longest ? flow->frame_cap : longest;
        }
    }
    worker->rng = hdt_rig_seed * 2 + worker->site + 1;
    worker->expected = hdt_malloc(longest);
    worker->ssl_ctx = worker->over_tls ? worker_ssl_ctx(worker) : NULL;
    RIG_CHECK(hdt_link_shm.pool_alloc(len, 5, &worker->pool, &err) == HDT_OK, "%s", err.msg);
    atomic_store(&worker->stop, false);
    RIG_CHECK(pthread_create(&worker->thread, NULL, worker_main, worker) == 0, "no thread");
}

void hdt_rig_worker_stop(struct rig_worker *worker)
{
    atomic_store(&worker->stop, true);
    pthread_join(worker->thread, NULL);
    worker->pool.ops->pool_free(&worker->pool);
    SSL_CTX_free(worker->ssl_ctx);
    free(worker->expected);
}
