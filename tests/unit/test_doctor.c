/* SPDX-License-Identifier: Apache-2.0 */
/* Each check where it can be made to fail. */
#include "config.h"

#include "src/net/doctor.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static char root[] = "/tmp/hdt-doctor-XXXXXX";
static json_t *checks;

static void put(const char *path, const char *text)
{
    char *whole = hdt_asprintf("%s%s", root, path), *slash = strrchr(whole, '/');
    struct hdt_buf bytes = {0};
    struct hdt_error err = {0};

    *slash = '\0';
    cr_assert_eq(hdt_dir_make(whole, 0755, &err), HDT_OK, "%s", err.msg);
    *slash = '/';
    hdt_buf_append_str(&bytes, text);
    cr_assert_eq(hdt_file_write(whole, &bytes, 0644, HDT_FILE_REPLACE, &err), HDT_OK);
    hdt_buf_release(&bytes);
    free(whole);
}

static void setup(void)
{
    cr_assert(mkdtemp(root));
    checks = json_array();
}

static void teardown(void)
{
    char *command = hdt_asprintf("rm -rf '%s'", root);

    json_decref(checks);
    cr_expect_eq(system(command), 0);
    free(command);
}

TestSuite(doctor, .init = setup, .fini = teardown);

static const char *field_of(const char *name, const char *field)
{
    const json_t *check;
    size_t i;

    json_array_foreach(checks, i, check)
    {
        if (strcmp(json_string_value(json_object_get(check, "name")), name) == 0) {
            return json_string_value(json_object_get(check, field));
        }
    }
    return "";
}

/* Not well, with a remedy. */
static void expect_bad(const char *name, const char *state, const char *detail)
{
    cr_expect_str_eq(field_of(name, "state"), state, "%s: %s", name, field_of(name, "detail"));
    cr_expect(strstr(field_of(name, "detail"), detail), "%s: %s", name, field_of(name, "detail"));
    cr_expect(field_of(name, "remedy")[0], "%s has no remedy", name);
}

static void machine(struct hdt_doctor_machine *m)
{
    m->root = root;
    hdt_doctor_machine(checks, m);
}

Test(doctor, small_limits_are_named)
{
    setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){65536, 65536});
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){100, 100});
    machine(&(struct hdt_doctor_machine){0});
    expect_bad("memlock", "warn", "0.0625 MiB");
    expect_bad("open files", "fail", "100 may be open");
    cr_expect_eq(hdt_doctor_n_failed(checks), 1);
}

Test(doctor, a_container_that_is_smaller_than_the_settings)
{
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    machine(&(struct hdt_doctor_machine){.threads = 64, .memory_bytes = 2ull << 30});
    expect_bad("memory limit", "fail", "2.0 GiB are to be used");
    expect_bad("cores", "warn", "64 threads are to compute on 1 core (the control group's quota");
}

Test(doctor, kernel_settings_that_slow_it_down)
{
    put("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic\n");
    put("/proc/sys/net/ipv4/tcp_congestion_control", "cubic\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    machine(&(struct hdt_doctor_machine){0});
    expect_bad("congestion control", "warn", "cubic is used; there are: reno cubic");
    cr_expect_not_null(strstr(field_of("congestion control", "remedy"), "wan.congestion: bbr"));
    expect_bad("cpu frequency", "warn", "powersave");
}

Test(doctor, kernel_settings_that_are_well)
{
    put("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic bbr\n");
    put("/proc/sys/net/ipv4/tcp_congestion_control", "bbr\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    machine(&(struct hdt_doctor_machine){0});
    cr_expect_str_eq(field_of("congestion control", "state"), "ok");
    cr_expect_str_eq(field_of("cpu frequency", "state"), "ok");
}

Test(doctor, a_disk_that_cannot_be_written)
{
    machine(&(struct hdt_doctor_machine){.dirs = {{"state_dir", "/proc"}, {"data_dir", root}}});
    cr_expect_str_eq(field_of("disk of state_dir", "state"), "fail");
    cr_expect(strstr(field_of("disk of data_dir", "detail"), root));
}

Test(doctor, certificates_by_the_days_that_are_left)
{
    char *path = hdt_asprintf("%s/none.pem", root);

    hdt_doctor_expiry(checks, "gone", "hdt://lab/site/a", -1);
    hdt_doctor_expiry(checks, "soon", "hdt://lab/site/b", 3 * 86400 + 5);
    hdt_doctor_expiry(checks, "good", "hdt://lab/site/c", 400 * 86400ll);
    expect_bad("gone", "fail", "hdt://lab/site/a has expired");
    expect_bad("soon", "warn", "ends in 3 days");
    cr_expect_str_eq(field_of("good", "state"), "ok");
    hdt_doctor_certificate(checks, path);
    expect_bad("certificate", "fail", "is no certificate");
    free(path);
}

/* Made by another program: openssl(1). */
Test(doctor, an_expired_certificate_of_another_program)
{
    char *path = hdt_asprintf("%s/old.pem", root);
    char *command = hdt_asprintf(
        "openssl req -x509 -newkey ed25519 -nodes -keyout '%s/key.pem' -out '%s' -subj /CN=a "
        "-addext 'subjectAltName=URI:hdt://lab/site/a' -not_before 20200101000000Z "
        "-not_after 20200201000000Z >/dev/null 2>&1 || "
        "(openssl req -newkey ed25519 -nodes -keyout '%s/key.pem' -subj /CN=a "
        "-addext 'subjectAltName=URI:hdt://lab/site/a' -out '%s/req.pem' && "
        "openssl x509 -req -in '%s/req.pem' -signkey '%s/key.pem' -copy_extensions copyall "
        "-days -1 -out '%s') >/dev/null 2>&1",
        root, path, root, root, root, root, path);

    if (system(command) != 0) {
        cr_skip_test("this openssl(1) makes no certificate of the past");
    }
    hdt_doctor_certificate(checks, path);
    expect_bad("certificate", "fail", "(hdt://lab/site/a) has expired");
    free(command);
    free(path);
}

Test(doctor, a_gpu_without_its_driver)
{
    put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    put("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n"); /* its sound */
    hdt_doctor_gpus(checks, root);
    expect_bad("gpu", "warn", "1 of NVIDIA; driver: none is loaded");
}

Test(doctor, a_gpu_with_its_driver)
{
    put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    put("/proc/driver/nvidia/version", "NVRM version: 550.54\n");
    hdt_doctor_gpus(checks, root);
    cr_expect_str_eq(field_of("gpu", "state"), "ok");
    cr_expect(strstr(field_of("gpu", "detail"), "550.54"));
}

Test(doctor, buffers_are_the_third_numbers)
{
    double out, in;

    put("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n");
    put("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
    hdt_doctor_buffers(root, &out, &in);
    cr_expect_eq(out, 4194304);
    cr_expect_eq(in, 6291456);
}
