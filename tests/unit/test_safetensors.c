/* SPDX-License-Identifier: Apache-2.0 */
/* Against an independent implementation (safetensors_ref.py) and against broken headers. */
#include "config.h"

#include "src/core/safetensors.h"
#include "src/base/buf.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PYTHON "/usr/bin/python3"

TestSuite(safetensors, .init = hdt_scratch_init, .fini = hdt_scratch_release);

static struct hdt_error err;

/* The same tensors as in safetensors_ref.py, in an order that is not that of the file. */
static const double w_double[] = {1.5, -2.25};
static const float embed[] = {0.0f, 1.0f, 2.0f, 3.0f, 4.0f, -5.5f}, scalar[] = {7.0f};
static const uint16_t tokens[] = {1, 2, 65535}, half[] = {0x3f80, 0xc000};
static const uint8_t flags[] = {1, 2, 3, 4, 5};

static const struct {
    struct hdt_safetensors_entry entry;
    const void *data;
    size_t len;
} tensors[] = {
    {{.name = "flags", .dtype = HDT_DTYPE_U8, .n_dims = 1, .shape = {5}}, flags, 5},
    {{.name = "half", .dtype = HDT_DTYPE_BF16, .n_dims = 2, .shape = {1, 2}}, half, 4},
    {{.name = "model.embed_tokens.weight", .dtype = HDT_DTYPE_F32, .n_dims = 2, .shape = {2, 3}},
     embed,
     24},
    {{.name = "empty", .dtype = HDT_DTYPE_F32, .n_dims = 2, .shape = {0, 4}}, NULL, 0},
    {{.name = "tokens \xc3\xa9\"", .dtype = HDT_DTYPE_U16, .n_dims = 1, .shape = {3}}, tokens, 6},
    {{.name = "scalar", .dtype = HDT_DTYPE_F32, .n_dims = 0}, scalar, 4},
    {{.name = "w.double", .dtype = HDT_DTYPE_F64, .n_dims = 1, .shape = {2}}, w_double, 16},
};
#define N_TENSORS (sizeof(tensors) / sizeof(tensors[0]))

static void write_all(const char *path)
{
    struct hdt_safetensors_writer *w;

    cr_assert_eq(hdt_safetensors_writer_open(path, &w, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < N_TENSORS; i++) {
        cr_assert_eq(hdt_safetensors_writer_declare(w, &tensors[i].entry, &err), HDT_OK);
    }
    cr_assert_eq(hdt_safetensors_writer_metadata(w, "format", "pt", &err), HDT_OK);
    cr_assert_eq(hdt_safetensors_writer_metadata(w, "step", "12", &err), HDT_OK);
    cr_assert_eq(hdt_safetensors_writer_begin(w, &err), HDT_OK, "%s", err.msg);
    for (int part = 0; part < 2; part++) { /* in turn, each in two pieces */
        for (size_t i = N_TENSORS; i-- > 0;) {
            size_t cut = tensors[i].len / 3, len = part ? tensors[i].len - cut : cut;
            const char *data = tensors[i].data ? (const char *)tensors[i].data : "";

            cr_assert_eq(hdt_safetensors_writer_append(w, i, data + (part ? cut : 0), len, &err),
                         HDT_OK);
        }
    }
    cr_assert_eq(hdt_safetensors_writer_close(w, &err), HDT_OK, "%s", err.msg);
}

static void read_all(const char *path)
{
    struct hdt_safetensors *st;
    char back[32];

    cr_assert_eq(hdt_safetensors_open(path, &st, &err), HDT_OK, "%s: %s", err.where, err.msg);
    cr_expect_eq(hdt_safetensors_n(st), N_TENSORS);
    for (size_t i = 0; i < N_TENSORS; i++) {
        const struct hdt_safetensors_entry *want = &tensors[i].entry;
        const struct hdt_safetensors_entry *e = hdt_safetensors_find(st, want->name);

        cr_assert(e, "%s", want->name);
        cr_expect_eq(e->dtype, want->dtype);
        cr_assert_eq(e->n_dims, want->n_dims);
        cr_expect_arr_eq(e->shape, want->shape, want->n_dims * sizeof(e->shape[0]));
        cr_assert_eq(e->len, tensors[i].len);
        cr_assert_eq(hdt_safetensors_read(st, e, back, &err), HDT_OK);
        cr_expect(e->len == 0 || memcmp(back, tensors[i].data, e->len) == 0, "%s", want->name);
    }
    const struct hdt_safetensors_entry *e = hdt_safetensors_find(st, "flags");
    cr_assert_eq(hdt_safetensors_read_part(st, e, 2, 2, back, &err), HDT_OK);
    cr_expect_arr_eq(back, flags + 2, 2);
    cr_expect_null(hdt_safetensors_find(st, "flag"));
    cr_expect_str_eq(hdt_safetensors_metadata(st, "step"), "12");
    cr_expect_null(hdt_safetensors_metadata(st, "none"));
    hdt_safetensors_close(st);
}

static int run_reference(const char *verb, const char *path)
{
    char *command = hdt_asprintf(PYTHON " '%s/tests/unit/safetensors_ref.py' %s '%s'",
                                 HDT_TEST_SRCDIR, verb, path);
    int rc = system(command);

    free(command);
    return rc;
}

Test(safetensors, what_is_written_is_read)
{
    write_all(hdt_scratch_path("a.safetensors"));
    read_all(hdt_scratch_path("a.safetensors"));
}

Test(safetensors, agrees_with_an_independent_implementation)
{
    const char *path = hdt_scratch_path("a.safetensors");

    if (access(PYTHON, X_OK) != 0) {
        cr_skip_test("%s is missing", PYTHON);
    }
    write_all(path);
    cr_expect_eq(run_reference("check", path), 0);
    cr_assert_eq(run_reference("write", path), 0);
    read_all(path);
}

/* ---- broken headers ---- */

#define T(dtype, shape, range)                                                                     \
 "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" range "}"

static const struct {
    const char *json;
    const char *word; /* of the message; NULL: good */
} headers[] = {
    /* against 8 bytes of data */
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", NULL},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "}     ", NULL},
    {"{\"b\":" T("\"U8\"", "[4]", "[4,8]") ",\"a\":" T("\"F32\"", "[]", "[0,4]") "}", NULL},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"z\":" T("\"F32\"", "[0]", "[8,8]") "}", NULL},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"z\":" T("\"F32\"", "[0]", "[0,0]") "}", NULL},
    {"", "JSON"},
    {"[]", "JSON"},
    {"{\"a\":", "JSON"},
    {"{\"a\":3}", "'a'"},
    {"{\"a\":" T("\"F31\"", "[2]", "[0,8]") "}", "dtype 'F31'"},
    {"{\"a\":" T("7", "[2]", "[0,8]") "}", "dtype"},
    {"{\"a\":" T("\"F32\"", "2", "[0,8]") "}", "shape"},
    {"{\"a\":" T("\"F32\"", "[-2]", "[0,8]") "}", "shape"},
    {"{\"a\":" T("\"F32\"", "[2.0]", "[0,8]") "}", "shape"},
    {"{\"a\":" T("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", "shape"},
    {"{\"a\":" T("\"F32\"", "[4611686018427387904,4]", "[0,8]") "}", "2^64"},
    {"{\"a\":" T("\"F32\"", "[99999999999999999999]", "[0,8]") "}", "JSON"},
    {"{\"a\":" T("\"F32\"", "[3]", "[0,8]") "}", "need 12"},
    {"{\"a\":" T("\"F32\"", "[3]", "[0,12]") "}", "outside"},
    {"{\"a\":" T("\"F32\"", "[2]", "[-4,4]") "}", "outside"},
    {"{\"a\":" T("\"F32\"", "[2]", "[8,0]") "}", "outside"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0]") "}", "data_offsets"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8,9]") "}", "data_offsets"},
    {"{\"a\":" T("\"F32\"", "[2]", "\"0,8\"") "}", "data_offsets"},
    {"{\"a\":{}}", "dtype"},
    {"{\"a\":" T("\"F32\"", "[1]", "[0,4]") "}", "end at byte 4"},
    {"{\"a\":" T("\"F32\"", "[1]", "[4,8]") "}", "hole"},
    {"{}", "end at byte 0"},
    {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"b\":" T("\"U8\"", "[4]", "[4,8]") "}", "overlap"},
    {"{\"a\":" T("\"U8\"", "[4]", "[0,4]") ",\"a\":" T("\"U8\"", "[4]", "[4,8]") "}", "JSON"},
    {"{\"__metadata__\":[],\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", "__metadata__"},
    {"{\"__metadata__\":{\"x\":1},\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", "__metadata__"},
};

Test(safetensors, headers_are_checked)
{
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        const char *json = headers[i].json;
        enum hdt_status status = hdt_safetensors_check_header(json, strlen(json), 8, &err);

        if (headers[i].word) {
            cr_expect_eq(status, HDT_EINVAL, "%s", json);
            cr_expect(strstr(err.msg, headers[i].word), "%s: '%s' lacks '%s'", json, err.msg,
                      headers[i].word);
        } else {
            cr_expect_eq(status, HDT_OK, "%s: %s", json, err.msg);
        }
    }
}

static void expect_refused(const char *name, const void *data, size_t len, const char *word)
{
    const char *path = hdt_scratch_write(name, data, len);
    struct hdt_safetensors *st = NULL;

    cr_expect_eq(hdt_safetensors_open(path, &st, &err), HDT_EINVAL, "%s", name);
    cr_expect_null(st);
    cr_expect_str_eq(err.where, path);
    cr_expect(strstr(err.msg, word), "'%s' lacks '%s'", err.msg, word);
}

Test(safetensors, broken_files_are_refused)
{
    struct hdt_safetensors *st;
    size_t len;
    char *file;

    write_all(hdt_scratch_path("good"));
    file = hdt_scratch_read(hdt_scratch_path("good"), &len);
    expect_refused("cut", file, len - 1, "cut or damaged");
    expect_refused("long", file, len + 1, "end at"); /* the '\\0' behind it */
    expect_refused("head", file, 50, "50");
    expect_refused("empty", "", 0, "0 bytes");
    expect_refused("huge", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10, "header");
    expect_refused("limit", "\x01\xe1\xf5\x05\0\0\0\0{}", 10, "header");
    cr_expect_eq(hdt_safetensors_open(hdt_scratch_path("none"), &st, &err), HDT_ENOENT);
    free(file);
}

Test(safetensors, a_file_that_is_cut_later_gives_an_error)
{
    const char *path = hdt_scratch_path("a");
    struct hdt_safetensors *st;
    char back[32];

    write_all(path);
    cr_assert_eq(hdt_safetensors_open(path, &st, &err), HDT_OK);
    cr_assert_eq(truncate(path, 100), 0);
    cr_expect_eq(hdt_safetensors_read(st, hdt_safetensors_find(st, "flags"), back, &err), HDT_EIO);
    hdt_safetensors_close(st);
}

Test(safetensors, writer_refuses_what_the_format_cannot_hold)
{
    struct hdt_safetensors_entry e = {
        .name = "a", .dtype = HDT_DTYPE_F32, .n_dims = 1, .shape = {2}};
    struct hdt_safetensors_writer *w;

    cr_expect_eq(hdt_safetensors_writer_open("/nonexistent/a", &w, &err), HDT_EIO);
    cr_assert_eq(hdt_safetensors_writer_open(hdt_scratch_path("a"), &w, &err), HDT_OK);
    cr_expect_eq(hdt_safetensors_writer_declare(w, &e, &err), HDT_OK);
    cr_expect_eq(hdt_safetensors_writer_declare(w, &e, &err), HDT_EINVAL);
    e.name = "\xff";
    cr_expect_eq(hdt_safetensors_writer_declare(w, &e, &err), HDT_EINVAL);
    e.name = "b";
    e.dtype = HDT_DTYPE_NONE;
    cr_expect_eq(hdt_safetensors_writer_declare(w, &e, &err), HDT_EINVAL);
    e.dtype = HDT_DTYPE_F64;
    e.shape[0] = UINT64_MAX;
    cr_expect_eq(hdt_safetensors_writer_declare(w, &e, &err), HDT_EINVAL);
    cr_assert_eq(hdt_safetensors_writer_begin(w, &err), HDT_OK);
    cr_expect_eq(hdt_safetensors_writer_append(w, 0, "123456789", 9, &err), HDT_EINVAL);
    cr_expect_eq(hdt_safetensors_writer_append(w, 0, "1234", 4, &err), HDT_OK);
    cr_expect_eq(hdt_safetensors_writer_close(w, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "4 of 8"), "%s", err.msg);
}
