/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_CHAN_RIG_H
#define HDT_TESTS_CHAN_RIG_H

/*
 * A federation of real gateways on loopback, and programs of libhdt as processes of their own, for
 * tests that see the public header alone. Sites are called "a", "b", "c", ...
 */
#include "src/hdt.h"

#include <stdbool.h>
#include <sys/types.h>

#define CHAN_RIG_SITES 4

#define CHAN_CHECK(cond)                                                                           \
 do {                                                                                              \
  if (!(cond)) {                                                                                   \
   hdt_chan_rig_failed(__FILE__, __LINE__, #cond);                                                 \
  }                                                                                                \
 } while (0)

/* Checks that failed in this process, printed when they did. */
extern int hdt_chan_rig_n_failed;
void hdt_chan_rig_failed(const char *file, int line, const char *what);

/* A folder with an authority. Ends the process when that cannot be made. */
void hdt_chan_rig_open(void);
/* End all gateways, remove the folder. */
void hdt_chan_rig_close(void);
/* Start gateways of the first n sites, and wait until each sees all others. `knob` is their
 * progress_timeout. */
void hdt_chan_rig_start(int n, const char *knob);
/* Kill one; start it again at the same port. Does not wait for its peers. */
void hdt_chan_rig_kill(int site);
void hdt_chan_rig_restart(int site);
/* A context at a site's gateway; NULL with a failed check when there is none. */
struct hdt_ctx *hdt_chan_rig_ctx(int site);
/* "unix:PATH" of a site; and "tls:HOST:PORT". */
const char *hdt_chan_rig_address(int site, bool tls);
/* A PEM file of an identity that is made when it is asked for first: role "operator" or "worker"
 * with its name ("ann", "a/w0"), file "cert.pem", "key.pem" or "ca.pem". */
const char *hdt_chan_rig_pem(const char *role, const char *name, const char *file);

/* Run `rank` in n processes (rank r at site r), each with its channel called `name` between the
 * first n sites; the channel is closed behind it. Returns when all have ended; failed checks of
 * theirs are failed checks here. `seconds`: they are killed after so long. */
typedef void hdt_chan_rig_rank(struct hdt_channel *channel, int rank, int n);
void hdt_chan_rig_run(const char *name, int n, int seconds, hdt_chan_rig_rank *rank);

/* The same in pieces: a process at a site that does what it likes. */
pid_t hdt_chan_rig_fork(void (*run)(int site), int site);
/* Wait for it; true: it ended with 0. */
bool hdt_chan_rig_join(pid_t pid, int seconds);
struct hdt_channel *hdt_chan_rig_channel(const char *name, int n, int rank,
                                         struct hdt_error_info *error);

double hdt_chan_rig_now_s(void);
void hdt_chan_rig_sleep_ms(int ms);
/* Wait until a file is there, or make one: what processes tell each other. */
bool hdt_chan_rig_wait_file(const char *name, int seconds);
void hdt_chan_rig_touch(const char *name);
/* Random numbers of a seed that HDT_TEST_SEED sets and that is printed. */
unsigned hdt_chan_rig_seed(void);
unsigned hdt_chan_rig_random(unsigned *state);

#endif /* HDT_TESTS_CHAN_RIG_H */
