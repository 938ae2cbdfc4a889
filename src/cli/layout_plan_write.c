/* SPDX-License-Identifier: Apache-2.0 */
/* hdt plan --output: the plan as a layout of its own. */
#include "config.h"

#include "src/cli/layout_plan.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* `path` as it is named in `folder`, both absolute: without the folders that they share. free() */
static char *path_from(const char *folder, const char *path)
{
    struct hdt_buf out = {0};
    size_t same = 0, i = 0;

    while (folder[i] && folder[i] == path[i]) {
        i++;
        same = folder[i - 1] == '/' ? i : same;
    }
    if (!folder[i] && path[i] == '/') {
        same = i + 1;
    } else {
        for (const char *at = folder + same; at && folder[1]; at = strchr(at + 1, '/')) {
            hdt_buf_append_str(&out, *at ? "../" : "");
        }
    }
    hdt_buf_append_str(&out, path + same);
    return hdt_buf_detach(&out);
}

static enum hdt_status path_move(char **path, const char *folder, struct hdt_error *err)
{
    char whole[PATH_MAX];

    if (!realpath(*path, whole)) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot find '%s'", *path);
    }
    free(*path);
    *path = path_from(folder, whole);
    return HDT_OK;
}

/* Files that the copy names, as seen from the folder of `out`. */
static enum hdt_status paths_move(const struct hdt_layout_planned *p, struct hdt_layout *copy,
                                  const char *out, struct hdt_error *err)
{
    const struct hdt_layout_instead *instead = &p->args->instead;
    struct hdt_layout_profile *profiles = copy->profiles.items;
    char *dir = hdt_strdup(out), *slash = strrchr(dir, '/'), folder[PATH_MAX];
    bool found;

    if (slash) {
        slash[slash == dir] = '\0';
    }
    found = realpath(slash ? dir : ".", folder) != NULL;
    free(dir);
    if (!found) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", out);
    }
    if (instead->cluster) {
        free(copy->cluster);
        copy->cluster = hdt_strdup(instead->cluster);
    }
    if (instead->model) {
        free(copy->model);
        copy->model = hdt_strdup(instead->model);
    }
    HDT_TRY(path_move(&copy->cluster, folder, err));
    HDT_TRY(path_move(&copy->model, folder, err));
    for (size_t i = 0; i < copy->profiles.n; i++) {
        HDT_TRY(path_move(&profiles[i].file, folder, err));
    }
    return HDT_OK;
}

enum hdt_status hdt_layout_planned_write(const struct hdt_layout_planned *p, const char *path,
                                         struct hdt_error *err)
{
    struct hdt_layout copy;
    enum hdt_status status;
    struct hdt_buf text = {0};
    FILE *out;

    hdt_layout_copy(&p->best->layout, &copy);
    status = paths_move(p, &copy, path, err);
    if (status == HDT_OK) {
        out = open_memstream(&text.data, &text.len);
        HDT_ASSERT(out);
        fprintf(out, "# Found by 'hdt plan': %.6g s a step, %.0f tokens/s.\n",
                p->best->prediction.step_s, p->best->tokens_per_s);
        hdt_conf_write(&hdt_layout_schema, &copy, out);
        HDT_ASSERT(fclose(out) == 0);
        status = hdt_file_write(path, &text, 0644, HDT_FILE_REPLACE, err);
        hdt_buf_release(&text);
    }
    hdt_conf_release(&hdt_layout_schema, &copy);
    return status;
}
