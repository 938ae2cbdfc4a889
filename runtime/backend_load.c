/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/backend_load.h"
#include "src/base/buf.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_LEN_MAX 32

static bool name_is_valid(const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)name[i]) && name[i] != '_') {
            return false;
        }
    }
    return len > 0 && len <= NAME_LEN_MAX;
}

/* The folder of the running program, as a build tree has its modules near by: in `.libs` of the top
 * build folder, where programs stand in the top folder, its `.libs`, or two folders below. */
static void program_dir(char *dir, size_t dir_cap)
{
    ssize_t len = readlink("/proc/self/exe", dir, dir_cap - 1);
    char *slash;

    dir[len > 0 ? len : 0] = '\0';
    slash = strrchr(dir, '/');
    if (slash) {
        *slash = '\0';
    }
}

void hdt_backend_dirs(struct hdt_buf *dirs)
{
    static const char *const build_dirs[] = {"", "/.libs", "/../../.libs", "/../../../.libs"};
    const char *env = getenv("HDT_MODULE_PATH");
    char dir[PATH_MAX];

    while (env && *env) {
        size_t len = strcspn(env, ":");

        if (len > 0) {
            hdt_buf_append(dirs, env, len);
            hdt_buf_append(dirs, "", 1);
        }
        env += len + (env[len] == ':');
    }
    program_dir(dir, sizeof(dir));
    for (size_t i = 0; dir[0] && i < sizeof(build_dirs) / sizeof(build_dirs[0]); i++) {
        hdt_buf_appendf(dirs, "%s%s", dir, build_dirs[i]);
        hdt_buf_append(dirs, "", 1);
    }
    hdt_buf_append_str(dirs, HDT_PKGLIBDIR);
    hdt_buf_append(dirs, "", 1);
}

/* The usual reason is a library of the vendor that this machine lacks, which the linker says as
 * "libx.so.1: cannot open shared object file: No such file or directory": name it and the remedy.
 */
static enum hdt_status module_refuse(const char *path, const char *reason, struct hdt_error *err)
{
    static const char missing[] = ": cannot open shared object file: No such file or directory";
    const char *end = reason ? strstr(reason, missing) : NULL;
    enum hdt_status status;

    if (!end || memchr(reason, '/', (size_t)(end - reason))) {
        status = hdt_error_set(err, HDT_ENOTSUP, "cannot load backend '%s': %s", path,
                               reason ? reason : "unknown reason");
        hdt_error_hint(err, "install program and modules anew, or choose another backend");
        return status;
    }
    status = hdt_error_set(err, HDT_ENOTSUP, "cannot load backend '%s': %.*s: not found", path,
                           (int)(end - reason), reason);
    hdt_error_hint(err,
                   "install the package that has %.*s, or add its folder to LD_LIBRARY_PATH, or "
                   "choose another backend",
                   (int)(end - reason), reason);
    return status;
}

enum hdt_status hdt_backend_load_file(const char *path, const struct hdt_backend **backend,
                                      struct hdt_error *err)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct hdt_backend *const *symbol;
    enum hdt_status status;

    if (!module) {
        return module_refuse(path, dlerror(), err);
    }
    symbol = dlsym(module, HDT_BACKEND_SYMBOL);
    if (!symbol || !*symbol) {
        status = hdt_error_set(err, HDT_ENOTSUP, "cannot load backend '%s': no symbol %s", path,
                               HDT_BACKEND_SYMBOL);
        goto err_close;
    }
    if ((*symbol)->abi != HDT_BACKEND_ABI) {
        status = hdt_error_set(err, HDT_EVERSION,
                               "cannot load backend '%s': it has interface %u, this program %u",
                               path, (*symbol)->abi, HDT_BACKEND_ABI);
        hdt_error_hint(err, "install program and modules of the same version");
        goto err_close;
    }
    *backend = *symbol;
    return HDT_OK;
err_close:
    dlclose(module);
    return status;
}

/* Every folder that was tried stands in the message: the remedy is to put the file in one. */
static enum hdt_status dirs_refuse(const char *name, const struct hdt_buf *dirs,
                                   struct hdt_error *err)
{
    struct hdt_buf text = {0};
    enum hdt_status status;

    for (size_t at = 0; at < dirs->len; at += strlen(dirs->data + at) + 1) {
        hdt_buf_appendf(&text, "%s%s", at ? ", " : "", dirs->data + at);
    }
    status = hdt_error_set(err, HDT_ENOENT, "cannot find backend '%s': no backend_%s.so in %s",
                           name, name, hdt_buf_str(&text));
    hdt_error_hint(err, "set HDT_MODULE_PATH to the folder that holds backend_%s.so", name);
    hdt_buf_release(&text);
    return status;
}

enum hdt_status hdt_backend_load(const char *name, const struct hdt_backend **backend,
                                 struct hdt_error *err)
{
    struct hdt_buf dirs = {0};
    struct hdt_buf path = {0};
    enum hdt_status status;

    if (!name_is_valid(name)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot load backend '%.*s': a name has letters, digits and '_'",
                             NAME_LEN_MAX, name);
    }
    hdt_backend_dirs(&dirs);
    for (size_t at = 0; at < dirs.len; at += strlen(dirs.data + at) + 1) {
        hdt_buf_clear(&path);
        hdt_buf_appendf(&path, "%s/backend_%s.so", dirs.data + at, name);
        if (access(path.data, F_OK) == 0) {
            status = hdt_backend_load_file(path.data, backend, err);
            goto out;
        }
    }
    status = dirs_refuse(name, &dirs, err);
out:
    hdt_buf_release(&path);
    hdt_buf_release(&dirs);
    return status;
}
