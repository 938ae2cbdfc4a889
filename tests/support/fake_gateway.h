/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_FAKE_GATEWAY_H
#define HDT_TESTS_SUPPORT_FAKE_GATEWAY_H

/*
 * The worker's side of a gateway, for tests: one Unix socket, any number of workers, frames copied
 * from one worker's shared memory to another's as the protocol says. No site, no WAN, no plan. It
 * may drop a worker's connection at any time, as a gateway that is restarted does; what it held of
 * the frames is lost then or not, by choice.
 */
#include <jansson.h>
#include <stdbool.h>

struct fake_gateway;

/* Listen at `path` and serve in a thread. Aborts the process when the machine refuses. */
struct fake_gateway *hdt_fake_gateway_new(const char *path);
void hdt_fake_gateway_free(struct fake_gateway *gateway);

/* Send a message to the worker of that name (stolen). Dropped when it is not connected. */
void hdt_fake_gateway_send(struct fake_gateway *gateway, const char *worker, json_t *msg);

/* Next message of one of the types ("a|b") that workers sent, in order of arrival; others stay.
 * NULL after timeout_ms. The caller's reference. "from" is the worker's name. */
json_t *hdt_fake_gateway_take(struct fake_gateway *gateway, const char *types, int timeout_ms);

/* Close a worker's connection. `forget`: also the frames held for it, as after a crash. */
void hdt_fake_gateway_cut(struct fake_gateway *gateway, const char *worker, bool forget);

/* True as soon as exactly `n` workers are connected; waits for timeout_ms. */
bool hdt_fake_gateway_wait_workers(struct fake_gateway *gateway, int n, int timeout_ms);

/* Reports (messages with a number) are taken in order and once, as a coordinator takes them, and
 * acknowledged. But the next n are answered with EPEER, as a gateway without a session with the
 * coordinator's site does; or are lost on their way, without a word; or, of every `one_in`, one is
 * lost at random (0: none). */
void hdt_fake_gateway_refuse(struct fake_gateway *gateway, int n);
void hdt_fake_gateway_lose(struct fake_gateway *gateway, int n);
void hdt_fake_gateway_lose_some(struct fake_gateway *gateway, unsigned one_in, unsigned seed);

/* Reports that came so far, also those that were taken before. */
unsigned long hdt_fake_gateway_n_reports(struct fake_gateway *gateway);

/* Flip a bit of the tensor in the next n STATE frames: memory that fails behind every checksum of a
 * wire. */
void hdt_fake_gateway_flip(struct fake_gateway *gateway, int n);

/* DATA records taken from workers so far. */
unsigned long hdt_fake_gateway_n_frames(struct fake_gateway *gateway);

#endif /* HDT_TESTS_SUPPORT_FAKE_GATEWAY_H */
