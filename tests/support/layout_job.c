/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/layout_job.h"

#include "src/base/buf.h"
#include "tests/support/scratch.h"

#include <stdlib.h>
#include <string.h>

enum hdt_status hdt_layout_job_open(const char *cluster, const char *model, const char *job,
                                    struct hdt_layout_files *files, struct hdt_error *err)
{
    char *text = hdt_asprintf("cluster: cluster.yaml\nmodel: model.json\n%s", job);
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    enum hdt_status status;

    hdt_scratch_init();
    hdt_scratch_write("model.json", model, strlen(model));
    hdt_scratch_write("cluster.yaml", cluster, strlen(cluster));
    hdt_scratch_write("layout.yaml", text, strlen(text));
    status = hdt_layout_open_job(hdt_scratch_path("layout.yaml"), &instead, files, err);
    hdt_scratch_release();
    free(text);
    return status;
}
