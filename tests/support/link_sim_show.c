/* SPDX-License-Identifier: Apache-2.0 */
/* The state of everything, for who has to find out why a run failed. */
#include "config.h"

#include "tests/support/link_sim_impl.h"

#include <stdio.h>

static void show_tail(const struct sim *sim)
{
    const uint64_t n = sim->n_notes < SIM_TAIL ? sim->n_notes : SIM_TAIL;
    uint64_t i;

    fprintf(stderr, "---- the last %llu events ----\n", (unsigned long long)n);
    for (i = sim->n_notes - n; i < sim->n_notes; i++) {
        const struct sim_note *note = &sim->tail[i % SIM_TAIL];

        fprintf(stderr, "%12.6f %-12s %llu %llu %llu %llu\n",
                (double)(note->at_us - sim->began_us) / 1e6, note->what,
                (unsigned long long)note->n[0], (unsigned long long)note->n[1],
                (unsigned long long)note->n[2], (unsigned long long)note->n[3]);
    }
}

static void show_conn(const struct sim_conn *conn)
{
    static const char *const doors[] = {"wan", "unix", "tls"};
    unsigned side;

    if (conn->socks[0].is_closed && conn->socks[1].is_closed) {
        return;
    }
    fprintf(stderr, "connection %llu (%s) %c to %c:%s%s%s%s\n", (unsigned long long)conn->id,
            doors[conn->door], (char)('a' + (int)conn->site[0]), (char)('a' + (int)conn->site[1]),
            conn->is_connected ? "" : " connecting", conn->is_admitted ? "" : " not admitted",
            conn->is_forgotten ? " forgotten" : "", conn->is_swallowed ? " swallowed" : "");
    for (side = 0; side < 2; side++) {
        const struct sim_sock *sock = &conn->socks[side];
        const struct sim_pipe *pipe = &conn->pipes[side];

        fprintf(stderr,
                "  %u%s error %d, %s%sout: written %llu sent %llu arrived %llu read %llu acked "
                "%llu, %u segments%s\n",
                side, sock->is_closed ? " closed" : "", sock->error,
                sock->recv != NULL ? "receives, " : "", sock->send != NULL ? "sends, " : "",
                (unsigned long long)pipe->written, (unsigned long long)pipe->sent,
                (unsigned long long)pipe->arrived, (unsigned long long)pipe->read,
                (unsigned long long)pipe->acked, pipe->n_segments,
                pipe->has_ended ? ", ended" : "");
    }
}

static void show_peer(const struct hdt_peer *peer, int64_t now_us)
{
    const struct hdt_session *session = peer->session;
    unsigned i;

    fprintf(stderr, "  peer %s: %s%s%s, dials %s, next in %.3f s, ready %u\n", peer->site,
            session != NULL ? "session" : "none", peer->suspect ? ", suspect" : "",
            peer->wanted ? ", wanted" : "", peer->dialling != NULL ? "now" : "not",
            (double)(peer->next_dial_us - now_us) / 1e6, peer->n_ready);
    for (i = 0; session != NULL && i <= session->n_streams; i++) {
        const struct hdt_conn *conn = session->conns[i];

        if (conn == NULL) {
            fprintf(stderr, "    stream %u: none, again in %.3f s\n", i,
                    (double)(session->retry_us[i] - now_us) / 1e6);
        } else {
            const struct sim_sock *sock =
                conn->stream != NULL ? hdt_sim_sock_of(hdt_stream_fd(conn->stream)) : NULL;

            fprintf(stderr,
                    "    stream %u: state %d%s%s%s, heard %.3f s ago, ping %.3f s ago, connection "
                    "%lld\n",
                    i, (int)conn->state, conn->hungry ? ", hungry" : "",
                    conn->rx_stopped ? ", stopped" : "", conn->is_paused ? ", paused" : "",
                    (double)(now_us - conn->stats.last_recv_us) / 1e6,
                    conn->ping_sent_us != 0 ? (double)(now_us - conn->ping_sent_us) / 1e6 : -1.0,
                    sock != NULL ? (long long)sock->conn->id : -1ll);
        }
    }
}

static void show_src(const struct hdt_flow_end *flow)
{
    uint32_t i, k;

    for (i = 0; i < flow->conf.depth; i++) {
        const struct hdt_src_frame *frame = &flow->frames[i];
        uint32_t n[3] = {0, 0, 0};

        if (!frame->held) {
            continue;
        }
        for (k = 0; k < frame->n_chunks; k++) {
            n[frame->marks[k].state]++;
        }
        fprintf(stderr, "      frame %llu:%s%s%s %u chunks wait, %u taken, %u sent; %u to do\n",
                (unsigned long long)frame->frame.seq, frame->queued ? " queued" : "",
                frame->have ? " have" : "", frame->copying ? " copied" : "", n[0], n[1], n[2],
                frame->n_todo);
    }
}

static void show_dst(const struct hdt_flow_end *flow)
{
    uint32_t i;

    for (i = 0; i < flow->conf.depth; i++) {
        const struct hdt_dst_slot *slot = &flow->slots[i];

        if (slot->begun) {
            fprintf(stderr, "      frame %llu: %u of %u bytes%s, ask again %u to %u\n",
                    (unsigned long long)slot->seq, slot->done_bytes, slot->frame.frame_len,
                    slot->complete ? ", complete" : "", slot->nack_lo, slot->nack_hi);
        }
    }
}

static void show_flow(const struct hdt_flow_end *flow)
{
    fprintf(stderr, "    flow %u %s epoch %u: acked %llu credit %llu next %llu%s%s%s%s%s%s\n",
            flow->key.flow, flow->key.is_src ? "src" : "dst", flow->conf.epoch,
            (unsigned long long)flow->acked, (unsigned long long)flow->credit,
            (unsigned long long)flow->next_seq, flow->attached ? "" : ", detached",
            flow->awaiting_state ? ", awaits state" : "",
            flow->query_pending ? ", query pending" : "",
            flow->waiting ? ", waits for writers" : "",
            flow->on_peer_list ? ", on the peer's list" : "",
            flow->on_client_list ? ", on the client's list" : "");
    if (flow->key.is_src) {
        show_src(flow);
    } else {
        show_dst(flow);
    }
}

static void show_site(const struct sim_site *site, int64_t now_us)
{
    const struct hdt_flow_end *flow;
    const struct hdt_peer *peer;

    fprintf(stderr, "---- %s, life %llu%s%s ----\n", site->name, (unsigned long long)site->life,
            site->dp == NULL ? ", down" : "", site->paused_until_us > now_us ? ", paused" : "");
    if (site->dp == NULL) {
        return;
    }
    for (peer = site->dp->peers; peer != NULL; peer = peer->hh.next) {
        show_peer(peer, now_us);
    }
    for (flow = site->dp->flows; flow != NULL; flow = flow->hh.next) {
        show_flow(flow);
    }
    DL_FOREACH2(site->dp->draining, flow, drain_next)
    {
        fprintf(stderr, "    draining: flow %u, %u writers\n", flow->key.flow, flow->n_writers);
    }
}

static void show_worker(const struct sim_worker *worker)
{
    unsigned i;

    fprintf(stderr, "  worker %s/%s: epoch %u, connection %lld, %zu bytes out\n",
            worker->site->name, worker->name, worker->epoch,
            worker->sock != NULL ? (long long)worker->sock->conn->id : -1ll,
            worker->out.len - worker->out_start);
    for (i = 0; i < worker->sim->plan.n_flows; i++) {
        const struct sim_flow_plan *flow = &worker->sim->plan.flows[i];
        const struct sim_end *src = &worker->src[i], *dst = &worker->dst[i];

        if (flow->src_site == worker->site->idx && flow->src_worker == worker->idx) {
            fprintf(stderr, "    flow %u src: %llu of %llu out, acked %llu credit %llu%s\n", i,
                    (unsigned long long)src->next, (unsigned long long)flow->n_frames,
                    (unsigned long long)src->acked, (unsigned long long)src->credit,
                    src->is_synced ? "" : ", not told where to begin");
        }
        if (flow->dst_site == worker->site->idx && flow->dst_worker == worker->idx) {
            fprintf(stderr, "    flow %u dst: next %llu of %llu, taken %llu, acked %llu\n", i,
                    (unsigned long long)dst->next, (unsigned long long)flow->n_frames,
                    (unsigned long long)dst->taken, (unsigned long long)dst->acked);
        }
    }
}

void hdt_sim_show(struct sim *sim)
{
    unsigned i, k;

    show_tail(sim);
    hdt_sim_plan_print(&sim->plan);
    for (i = 0; i < sim->n_conns; i++) {
        show_conn(sim->conns[i]);
    }
    for (i = 0; i < sim->plan.n_sites; i++) {
        show_site(&sim->sites[i], sim->now_us);
        for (k = 0; k < sim->plan.sites[i].n_workers; k++) {
            show_worker(&sim->workers[i][k]);
        }
    }
    fprintf(stderr, "epoch %u: %llu of %llu frames\n", sim->epoch,
            (unsigned long long)sim->frames_done, (unsigned long long)sim->frames_total);
}
