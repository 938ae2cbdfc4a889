/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_LINK_SIM_H
#define HDT_TESTS_LINK_SIM_H

/*
 * Data planes of two or three sites over a network that is not there, on one thread, by a virtual
 * clock: everything that happens follows from one number, the seed, which is printed when something
 * is wrong and given back with HDT_TEST_SEED.
 *
 * Real: all of the data plane but its threads' loops, resolver and doorman (gateway/dpstep.h says
 * how it is run without), streams and records, and the engine but its back-end. Played: the system
 * below them (link_sim_engine.c: sockets, clock, random numbers; link_sim_net.c: TCP over links),
 * workers (link_sim_worker.c), the control plane (link_sim_site.c). TLS is left out: it would cost
 * most of the time and turn damage on a link into a closed stream before the records' own checks
 * see it. There is no switch in the product for that; the program is linked so that the context is
 * none, and streams are plain.
 *
 * Workers check every byte, every frame once and in order; that a slot is left alone from its
 * delivery to its acknowledgement; and whatever waits has to move within the deadline that ranks
 * have, once nothing is broken any more. Then, or when an assertion fails, the process ends with
 * the seed, the last events and the state of everything.
 */
#include <stdbool.h>
#include <stdint.h>

/* What goes wrong in a run, as bits. */
enum hdt_sim_fault {
    HDT_SIM_LOSS = 1u << 0,      /* segments are lost and repeated: streams stall for some time */
    HDT_SIM_SKEW = 1u << 1,      /* streams of very unlike delay: chunks overtake */
    HDT_SIM_RESET = 1u << 2,     /* streams are reset, also in the middle of a record */
    HDT_SIM_CUT = 1u << 3,       /* a link carries nothing for some time, in both directions */
    HDT_SIM_HALF_OPEN = 1u << 4, /* the same in one direction */
    HDT_SIM_FORGET = 1u << 5,    /* a middlebox forgets what is connected; new connections pass */
    HDT_SIM_KILL = 1u << 6,      /* a gateway is killed and started again */
    HDT_SIM_POWER = 1u << 7,     /* its machine goes without a word, and comes back */
    HDT_SIM_PAUSE = 1u << 8,     /* it does not run for some time */
    HDT_SIM_WORKER = 1u << 9,    /* a worker's connection is lost */
    HDT_SIM_SLOW = 1u << 10,     /* workers take frames slowly, sockets a few bytes at a time */
    HDT_SIM_FLIP = 1u << 11,     /* bits of records are flipped */
    HDT_SIM_TWICE = 1u << 12,    /* chunks come again, much later, on another stream */
    HDT_SIM_EPOCH = 1u << 13,    /* the job goes on in a new epoch */
    HDT_SIM_DIALS = 1u << 14,    /* both ends dial, at the same moment */
    HDT_SIM_CROWD = 1u << 15,    /* threads are kept from the processor */
    HDT_SIM_TUNE = 1u << 16,     /* sites send over more streams, and over fewer again */
    HDT_SIM_FAULTS = 17,
    HDT_SIM_FAULTS_ALL = (1u << 17) - 1,
    HDT_SIM_DRAWN = 1u << 17, /* some of them, drawn from the seed */
};

/* "loss", ...; NULL beyond the last. */
const char *hdt_sim_fault_name(unsigned i);

struct hdt_sim_outcome {
    uint64_t digest;   /* of all events, in order, with their times */
    uint64_t n_events; /* of the simulation */
    int64_t took_us;   /* virtual time */
    int64_t rest_us;   /* the longest time without a frame that was taken, or bytes of one */
    uint64_t n_frames, n_bytes;
    unsigned n_faults; /* that were played */
    uint64_t sent_chunks, resent_chunks, dup_chunks, bad_chunks;
    uint64_t n_sessions, n_stream_losses;
};

/* Play the scenario of the seed with these faults. Returns only when all was right. Not from two
 * threads at once. */
void hdt_sim_run(uint64_t seed, unsigned faults, struct hdt_sim_outcome *outcome);

/* HDT_TEST_SEED, or `otherwise`; *is_given may be NULL. HDT_TEST_FAULTS, or `otherwise`. */
uint64_t hdt_sim_seed(uint64_t otherwise, bool *is_given);
unsigned hdt_sim_faults(unsigned otherwise);

#endif /* HDT_TESTS_LINK_SIM_H */
