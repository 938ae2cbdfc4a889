/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One direction of a wire.
 *
 * The model is the textbook's: a queue that drops what does not fit, a transmitter that takes
 * len * 8 / rate for each segment, random loss on the wire, then the delay. It needs no event per
 * segment: a single number, the time at which the transmitter becomes idle, says when a segment
 * that arrives now will leave, and how much is queued before it. Segments of one packet are
 * accounted one by one but travel as one piece while they arrive within QUANTUM_NS.
 *
 * Loss is drawn as distances ("the next 1,371 segments arrive"), a logarithm per loss instead of a
 * random number per segment; bursts are the same with two alternating distances.
 */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <math.h>
#include <stdlib.h>

#define NS_PER_S 1000000000ll

/* A piece spans at most so much link time: the receiver sees a slow link's packets come in small
 * steps, and the emulator is woken at most so often by a saturated link. */
#define QUANTUM_NS 500000ll

/* More than the product of 10 Gbit/s and 400 ms; beyond it the emulator would eat the machine. */
#define BYTES_HELD_MAX ((size_t)1 << 30)

/* splitmix64: full period, any seed is good, eight bytes of state. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in (0, 1]. */
static double random_unit(uint64_t *state)
{
    return (double)((random_next(state) >> 11) + 1) * 0x1p-53;
}

/* Number of trials up to and with the first success of probability `p` (geometric, mean 1/p). */
static int64_t random_distance(uint64_t *state, double p)
{
    double n;

    if (p >= 1.0) {
        return 1;
    }
    n = floor(log(random_unit(state)) / log1p(-p)) + 1.0;
    return n < 1e15 ? (int64_t)n : (int64_t)1e15;
}

/* Draw how many segments are kept until the next loss burst begins. With bursts of mean length b
 * and loss rate p, the kept runs have mean length b (1 - p) / p. */
static void loss_plan(struct hdt_wanem_link *link)
{
    double p = link->shape.loss;
    double burst = link->shape.loss_burst < 1.0 ? 1.0 : link->shape.loss_burst;

    link->losing = false;
    link->loss_countdown = INT64_MAX;
    if (p >= 1.0) {
        link->losing = true;
    } else if (p > 0.0 && burst == 1.0) {
        /* Independent losses: runs of kept segments may be empty. */
        link->loss_countdown = random_distance(&link->random, p) - 1;
    } else if (p > 0.0) {
        double mean = burst * (1.0 - p) / p;

        link->loss_countdown = random_distance(&link->random, mean > 1.0 ? 1.0 / mean : 1.0);
    }
}

/* Is the next segment lost? */
static bool loss_step(struct hdt_wanem_link *link)
{
    if (link->loss_countdown == INT64_MAX) {
        return link->losing;
    }
    if (!link->losing && link->loss_countdown == 0) {
        double burst = link->shape.loss_burst;

        link->losing = true;
        link->loss_countdown = burst > 1.0 ? random_distance(&link->random, 1.0 / burst) : 1;
    }
    link->loss_countdown--;
    if (link->losing) {
        if (link->loss_countdown == 0) {
            loss_plan(link);
        }
        return true;
    }
    return false;
}

struct hdt_wanem_link *hdt_wanem_link_new(uint64_t seed)
{
    struct hdt_wanem_link *link = hdt_calloc(1, sizeof(*link));

    link->shape.up = true;
    link->shape.loss_burst = 1.0;
    link->shape.queue_ns = NS_PER_S / 10;
    hdt_wanem_link_seed(link, seed);
    return link;
}

void hdt_wanem_link_seed(struct hdt_wanem_link *link, uint64_t seed)
{
    link->random = seed;
    loss_plan(link);
}

/* Drop all that is on the wire. */
static void link_clear(struct hdt_wanem_link *link, struct hdt_wanem_pool *pool)
{
    while (link->head) {
        struct hdt_wanem_piece *piece = link->head;

        link->head = piece->next;
        link->count.n_cut += piece->n_segments;
        hdt_wanem_piece_put(pool, piece);
    }
    link->tail = NULL;
    link->busy_until_ns = 0;
    link->last_due_ns = 0;
}

void hdt_wanem_link_free(struct hdt_wanem_link *link, struct hdt_wanem_pool *pool)
{
    if (link) {
        link_clear(link, pool);
        free(link);
    }
}

void hdt_wanem_link_set(struct hdt_wanem_link *link, const struct hdt_wanem_shape *shape,
                        struct hdt_wanem_pool *pool)
{
    bool new_loss = shape->loss != link->shape.loss || shape->loss_burst != link->shape.loss_burst;

    link->shape = *shape;
    if (new_loss) {
        loss_plan(link);
    }
    if (!shape->up) {
        link_clear(link, pool);
    }
}

static int64_t transmit_ns(const struct hdt_wanem_shape *shape, uint64_t n_bytes)
{
    uint64_t rate = shape->rate_bits_per_s;

    /* Bytes stay below 2^31, so that the product fits 64 bits. */
    return rate ? (int64_t)((n_bytes * 8u * (uint64_t)NS_PER_S + rate / 2) / rate) : 0;
}

static int64_t queue_limit_ns(const struct hdt_wanem_shape *shape)
{
    return shape->queue_bytes ? transmit_ns(shape, shape->queue_bytes) : shape->queue_ns;
}

static int64_t jitter_draw(struct hdt_wanem_link *link)
{
    int64_t jitter = link->shape.jitter_ns;

    return jitter ? (int64_t)((random_unit(&link->random) * 2.0 - 1.0) * (double)jitter) : 0;
}

/* Put segments [first, first + n) on the wire; the last of them leaves the transmitter at
 * `left_ns`. Pieces keep their order whatever the jitter: a wire does not let them pass. */
static void piece_launch(struct hdt_wanem_link *link, struct hdt_wanem_piece span, int64_t left_ns,
                         struct hdt_wanem_pool *pool)
{
    struct hdt_wanem_piece *piece;
    int64_t due_ns;

    if (span.n_segments == 0) {
        return;
    }
    due_ns = left_ns + link->shape.delay_ns + jitter_draw(link);
    piece = hdt_wanem_piece_get(pool);
    *piece = span;
    piece->due_ns = due_ns > link->last_due_ns ? due_ns : link->last_due_ns;
    link->last_due_ns = piece->due_ns;
    piece->packet->n_refs++;
    if (link->tail) {
        link->tail->next = piece;
    } else {
        link->head = piece;
    }
    link->tail = piece;
}

/* Account for the segments of a packet on an open link and launch what survives. */
static void packet_transmit(struct hdt_wanem_link *link, struct hdt_wanem_packet *packet,
                            int64_t now_ns, struct hdt_wanem_pool *pool)
{
    struct hdt_wanem_piece span = {.packet = packet};
    int64_t limit_ns = queue_limit_ns(&link->shape);
    int64_t span_start_ns;
    bool too_long;

    if (link->busy_until_ns < now_ns) {
        link->busy_until_ns = now_ns;
    }
    span_start_ns = link->busy_until_ns;
    for (uint32_t i = 0; i < packet->n_segments; i++) {
        uint32_t n_bytes = hdt_wanem_packet_segment_bytes(packet, i) + link->shape.overhead;
        int64_t wait_ns = link->busy_until_ns - now_ns;

        if (wait_ns > limit_ns && link->shape.rate_bits_per_s) {
            link->count.n_overflowed += packet->n_segments - i;
            break; /* no later segment of this packet can fit either */
        }
        if (wait_ns > link->count.queue_peak_ns) {
            link->count.queue_peak_ns = wait_ns;
        }
        if (span.n_segments == 0) {
            span.first_segment = i;
            span_start_ns = link->busy_until_ns;
        }
        link->busy_until_ns += transmit_ns(&link->shape, n_bytes);
        /* A black hole, as of a tunnel behind a firewall that keeps ICMP to itself. */
        too_long =
            link->shape.mtu != 0 && hdt_wanem_packet_segment_bytes(packet, i) > link->shape.mtu;
        if (loss_step(link) || too_long) {
            link->count.n_lost++;
            piece_launch(link, span, link->busy_until_ns - transmit_ns(&link->shape, n_bytes),
                         pool);
            span.n_segments = 0;
            continue;
        }
        span.n_segments++;
        if (link->busy_until_ns - span_start_ns >= QUANTUM_NS) {
            piece_launch(link, span, link->busy_until_ns, pool);
            span.n_segments = 0;
        }
    }
    piece_launch(link, span, link->busy_until_ns, pool);
}

void hdt_wanem_link_send(struct hdt_wanem_link *link, struct hdt_wanem_packet *packet,
                         int64_t now_ns, struct hdt_wanem_pool *pool)
{
    link->count.n_segments_in += packet->n_segments;
    link->count.n_bytes_in += packet->len + (uint64_t)(packet->n_segments - 1) * packet->header_len;
    packet->n_refs++; /* ours, while pieces come and go */
    if (!link->shape.up) {
        link->count.n_cut += packet->n_segments;
    } else if (pool->n_bytes_held > BYTES_HELD_MAX) {
        link->count.n_overflowed += packet->n_segments;
    } else {
        packet_transmit(link, packet, now_ns, pool);
    }
    if (--packet->n_refs == 0) {
        hdt_wanem_packet_put(pool, packet);
    }
}

struct hdt_wanem_piece *hdt_wanem_link_take(struct hdt_wanem_link *link, int64_t now_ns)
{
    struct hdt_wanem_piece *piece = link->head;
    const struct hdt_wanem_packet *packet;

    if (!piece || piece->due_ns > now_ns) {
        return NULL;
    }
    link->head = piece->next;
    if (!link->head) {
        link->tail = NULL;
    }
    packet = piece->packet;
    link->count.n_segments_out += piece->n_segments;
    for (uint32_t i = 0; i < piece->n_segments; i++) {
        link->count.n_bytes_out += hdt_wanem_packet_segment_bytes(packet, piece->first_segment + i);
    }
    if (now_ns - piece->due_ns > link->count.late_peak_ns) {
        link->count.late_peak_ns = now_ns - piece->due_ns;
    }
    return piece;
}

int64_t hdt_wanem_link_next_ns(const struct hdt_wanem_link *link)
{
    return link->head ? link->head->due_ns : INT64_MAX;
}
