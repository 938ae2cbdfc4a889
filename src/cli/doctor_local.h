/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_DOCTOR_LOCAL_H
#define HDT_CLI_DOCTOR_LOCAL_H

/* Checks of this machine for `hdt doctor`. */
#include "src/net/doctor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_doctor_files {
    const char *ca, *cert, *key; /* NULL: not given */
    const char *config;          /* gateway.yaml; NULL: the installed one, if it is there */
};

/* Certificates, limits, kernel, disk, devices, clock, and what the quickstart needs. */
void hdt_doctor_local(json_t *checks, const struct hdt_doctor_files *files);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_DOCTOR_LOCAL_H */
