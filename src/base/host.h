/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_HOST_H
#define HDT_BASE_HOST_H

/* Which machine a process runs on and which of its processors it may use: two processes that name
 * the same machine and processors slow one another down. Any thread. */

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_HOST_CAP 40  /* text of the machine, with the '\0' */
#define HDT_CPUS_CAP 128 /* "0-7,16", with the '\0' */

/* A text that only this machine has, until it is started again, also for what runs in containers;
 * "" where the kernel has none. Returns `out`. */
const char *hdt_host_id(char out[HDT_HOST_CAP]);

/* The processors that this process may use, in the kernel's form; "" when that is too long or not
 * to be had. Returns `out`. */
const char *hdt_host_cpus(char out[HDT_CPUS_CAP]);

/* Number of processors in the list, of those below 4096; 0: none, or it is no list. */
int hdt_cpus_count(const char *cpus);
/* Number that are in both lists. */
int hdt_cpus_overlap(const char *a, const char *b);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_HOST_H */
