/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_DOCTOR_LOCAL_H
#define HDT_CLI_DOCTOR_LOCAL_H

/* Checks of this machine for `hdt doctor`. */
#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Add a check {"name", "state": "ok|warn|fail", "detail", "remedy"}; texts are copied. */
void hdt_doctor_add(json_t *checks, const char *name, const char *state, const char *remedy,
                    const char *detail_fmt, ...) __attribute__((format(printf, 5, 6)));

struct hdt_doctor_files {
    const char *ca, *cert, *key; /* NULL: not given */
    const char *config;          /* gateway.yaml; NULL: the installed one, if it is there */
};

/* Certificates, limits, kernel, disk, devices, clock. Changes nothing, does not block for long. */
void hdt_doctor_local(json_t *checks, const struct hdt_doctor_files *files);

/* Socket buffers against the links that the gateway's /status shows; NULL: none known. */
void hdt_doctor_buffers(json_t *checks, const json_t *status);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_DOCTOR_LOCAL_H */
