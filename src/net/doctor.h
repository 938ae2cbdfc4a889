/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_DOCTOR_H
#define HDT_NET_DOCTOR_H

/*
 * Checks of a machine and a process, for `hdt doctor`: the command itself, a gateway and a worker
 * make the same ones, each where it runs. A check is {"name", "state": "ok|warn|fail", "detail",
 * "remedy"}: one line and, unless all is well, one remedy. Nothing is changed and nothing blocks
 * for long.
 */
#include <jansson.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Add a check; texts are copied. */
void hdt_doctor_add(json_t *checks, const char *name, const char *state, const char *remedy,
                    const char *detail_fmt, ...) __attribute__((format(printf, 5, 6)));

#define HDT_DOCTOR_DIRS 4

struct hdt_doctor_machine {
    const char *root; /* "" as it is; a test has /proc and /sys of its own */
    const char *cert; /* of this process; NULL: none */
    struct {
        const char *what, *path; /* "state_dir"; path NULL or "": none */
    } dirs[HDT_DOCTOR_DIRS];
    int threads;           /* that are to compute; 0: not a matter here */
    uint64_t memory_bytes; /* that is to be used; 0: not a matter here */
};

/* Limits, kernel, control group, disks, devices, clock, certificate. */
void hdt_doctor_machine(json_t *checks, const struct hdt_doctor_machine *machine);

/* A certificate: name, role, and how long it is good for. */
void hdt_doctor_certificate(json_t *checks, const char *path);
/* One that is seen elsewhere: `identity` as in its SAN, seconds until its end. */
void hdt_doctor_expiry(json_t *checks, const char *name, const char *identity, int64_t left_s);

/* GPUs that the kernel lists, and whether their driver is there. */
void hdt_doctor_gpus(json_t *checks, const char *root);

/* What a TCP stream may hold on its way out, and in, by the kernel's settings (net.ipv4.tcp_wmem,
 * tcp_rmem); 0: unknown. */
void hdt_doctor_buffers(const char *root, double *out_bytes, double *in_bytes);

/* Does any check have the state "fail"? */
int hdt_doctor_n_failed(const json_t *checks);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_DOCTOR_H */
