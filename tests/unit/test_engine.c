/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/engine.h"
#include "src/net/addr.h"
#include "src/base/clock.h"
#include "tests/support/stream_end.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Twice the number of an engine; odd: over TCP, where the test does not care which socket it has.
 */
static int engine_ids[] = {0, 1, 2, 3};

static size_t engine_count(void)
{
    return hdt_engine_built_in(1) ? 4 : 2;
}

/* A test that each engine of this build has to pass. */
#define ENGINE_TEST(test_, ...)                                                                    \
 ParameterizedTestParameters(engine, test_)                                                        \
 {                                                                                                 \
  return cr_make_param_array(int, engine_ids, engine_count());                                     \
 }                                                                                                 \
 ParameterizedTest(int *id, engine, test_, __VA_ARGS__)

static struct hdt_engine *engine_open(int id)
{
    const char *name = hdt_engine_built_in((unsigned)id / 2);
    struct hdt_engine *engine = NULL;
    struct hdt_error err = {0};

    if (hdt_engine_open(name, &engine, &err) != HDT_OK) {
        cr_assert_geq(id, 2, "%s", err.msg);
        cr_skip_test("%s: %s", name, err.msg);
    }
    cr_expect_str_eq(hdt_engine_name(engine), name);
    return engine;
}

/* Connected sockets that hold less than a MiB. */
static void pair_open(int id, int fds[2])
{
    int len = 64 << 10;

    if (id % 2 == 0) {
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        return;
    }
    hdt_tcp_pair(fds);
    cr_assert_eq(setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &len, sizeof(len)), 0);
    cr_assert_eq(setsockopt(fds[0], SOL_SOCKET, SO_RCVBUF, &len, sizeof(len)), 0);
}

/* What an operation ended with. */
struct outcome {
    unsigned n;
    int64_t result;
};

static void note_done(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct outcome *outcome = io->user;

    (void)engine;
    outcome->n++;
    outcome->result = result;
}

static struct hdt_io io_of(enum hdt_io_kind kind, int fd, void *buf, size_t len,
                           struct outcome *outcome)
{
    return (struct hdt_io){.kind = kind,
                           .fd = fd,
                           .buf = buf,
                           .len = len,
                           .passed_fd = -1,
                           .done = note_done,
                           .user = outcome};
}

static void run_until(struct hdt_engine *engine, const struct outcome *outcome, unsigned n)
{
    int64_t end_us = hdt_clock_now_us() + 30 * HDT_US_PER_S;

    while (outcome->n < n) {
        hdt_engine_run_once(engine, 100000);
        cr_assert_lt(hdt_clock_now_us(), end_us, "no completion");
    }
}

Test(engine, unknown_names_are_refused_with_a_remedy)
{
    struct hdt_engine *engine = NULL;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_engine_open("kqueue", &engine, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "kqueue") && strstr(err.hint, "epoll"), "%s; %s", err.msg, err.hint);
    cr_assert_eq(hdt_engine_open("epoll", &engine, &err), HDT_OK);
    cr_expect_str_eq(hdt_engine_name(engine), "epoll");
    hdt_engine_close(engine);
    hdt_engine_close(NULL);
}

ENGINE_TEST(receives_before_and_after_the_bytes_are_there, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct outcome got = {0};
    char buf[16] = "";
    int fds[2];
    struct hdt_io io;

    pair_open(*id, fds);
    io = io_of(HDT_IO_RECV, fds[0], buf, sizeof(buf), &got);
    cr_assert_eq(write(fds[1], "early", 5), 5);
    hdt_engine_submit(engine, &io);
    cr_expect_eq(got.n, 0u, "done was called by submit");
    run_until(engine, &got, 1);
    cr_expect_eq(got.result, 5);
    hdt_engine_submit(engine, &io);
    hdt_engine_run_once(engine, 0);
    cr_expect_eq(got.n, 1u);
    cr_assert_eq(write(fds[1], "late!!", 6), 6);
    run_until(engine, &got, 2);
    cr_expect_eq(got.result, 6);
    cr_expect_arr_eq(buf, "late!!", 6);
    close(fds[1]);
    hdt_engine_submit(engine, &io);
    run_until(engine, &got, 3);
    cr_expect_eq(got.result, 0);
    hdt_engine_forget(engine, fds[0]);
    close(fds[0]);
    hdt_engine_close(engine);
}

/* Several operations on one descriptor finish in order; long sends are cut where the kernel cuts.
 */
ENGINE_TEST(queued_operations_keep_their_order, .timeout = 60)
{
    enum { N = 8, LEN = 1 << 20 };
    struct hdt_engine *engine = engine_open(*id);
    struct outcome sent = {0}, got[N] = {{0}};
    static char big[LEN], parts[N][4];
    struct hdt_io send, recvs[N];
    int fds[2];
    size_t n_taken = 0;

    pair_open(*id, fds);
    for (int i = 0; i < N; i++) {
        recvs[i] = io_of(HDT_IO_RECV, fds[0], parts[i], 4, &got[i]);
        hdt_engine_submit(engine, &recvs[i]);
    }
    for (int i = 0; i < LEN; i++) {
        big[i] = (char)(i * 7 + i / 251);
    }
    send = io_of(HDT_IO_SEND, fds[1], big, LEN, &sent);
    hdt_engine_submit(engine, &send);
    run_until(engine, &sent, 1);
    run_until(engine, &got[N - 1], 1);
    cr_expect_gt(sent.result, 0);
    cr_expect_lt(sent.result, LEN);
    for (int i = 0; i < N; i++) {
        cr_expect_eq(got[i].result, 4);
        cr_expect_arr_eq(parts[i], big + 4 * i, 4);
        n_taken += 4;
    }
    while (n_taken < (size_t)sent.result) {
        static char rest[LEN];
        ssize_t n = read(fds[0], rest, sizeof(rest));

        cr_assert_gt(n, 0);
        cr_expect_eq(memcmp(rest, big + n_taken, (size_t)n), 0);
        n_taken += (size_t)n;
    }
    hdt_engine_close(engine);
}

ENGINE_TEST(blocked_sends_go_on_when_there_is_room, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct outcome sent = {0};
    static char bytes[1 << 18];
    struct hdt_io io;
    int fds[2];
    unsigned n = 0;

    pair_open(*id, fds);
    io = io_of(HDT_IO_SEND, fds[1], bytes, sizeof(bytes), &sent);
    for (;;) {
        hdt_engine_submit(engine, &io);
        hdt_engine_run_once(engine, 0);
        if (sent.n == n) {
            break;
        }
        n = sent.n;
    }
    while (recv(fds[0], bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
    run_until(engine, &sent, n + 1);
    cr_expect_gt(sent.result, 0);
    hdt_engine_close(engine);
}

ENGINE_TEST(cancel_tells_later_and_only_what_waits, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct outcome first = {0}, second = {0};
    char a[4], b[4];
    struct hdt_io one, two;
    int fds[2];

    pair_open(*id, fds);
    one = io_of(HDT_IO_RECV, fds[0], a, 4, &first);
    two = io_of(HDT_IO_RECV, fds[0], b, 4, &second);
    hdt_engine_submit(engine, &one);
    hdt_engine_submit(engine, &two);
    hdt_engine_cancel(engine, &one);
    cr_expect_eq(first.n, 0u);
    run_until(engine, &first, 1);
    cr_expect_eq(first.result, -ECANCELED);
    cr_assert_eq(write(fds[1], "abcd", 4), 4);
    run_until(engine, &second, 1);
    cr_expect_eq(second.result, 4);
    cr_expect_arr_eq(b, "abcd", 4);
    /* Ready: the result wins. */
    cr_assert_eq(write(fds[1], "efgh", 4), 4);
    hdt_engine_submit(engine, &one);
    hdt_engine_cancel(engine, &one);
    run_until(engine, &first, 2);
    cr_expect_eq(first.result, 4);
    /* Idle: nothing happens. */
    hdt_engine_cancel(engine, &one);
    hdt_engine_run_once(engine, 0);
    cr_expect_eq(first.n, 2u);
    hdt_engine_close(engine);
}

ENGINE_TEST(accepts_and_connects, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct outcome accepted = {0}, connected = {0}, refused = {0};
    struct hdt_addr addr, there;
    struct hdt_io accept_io, connect_io;
    char text[64];
    int listener, fd;

    cr_assert_eq(hdt_addr_parse("127.0.0.1:0", &addr, NULL), HDT_OK);
    cr_assert_eq(hdt_addr_listen(&addr, 0, &listener, NULL), HDT_OK);
    hdt_addr_of_socket(listener, false, text, sizeof(text));
    cr_assert_eq(hdt_addr_parse(text, &there, NULL), HDT_OK);
    accept_io = io_of(HDT_IO_ACCEPT, listener, NULL, 0, &accepted);
    hdt_engine_submit(engine, &accept_io);
    for (unsigned i = 1; i <= 20; i++) {
        cr_assert_eq(hdt_addr_socket(&there, &fd, NULL), HDT_OK);
        connect_io = io_of(HDT_IO_CONNECT, fd, NULL, 0, &connected);
        connect_io.addr = there.sa;
        connect_io.addr_len = there.sa_len;
        hdt_engine_submit(engine, &connect_io);
        run_until(engine, &connected, i);
        cr_expect_eq(connected.result, 0);
        run_until(engine, &accepted, i);
        cr_expect_geq(accepted.result, 0);
        cr_expect(fcntl((int)accepted.result, F_GETFL) & O_NONBLOCK);
        cr_expect(fcntl((int)accepted.result, F_GETFD) & FD_CLOEXEC);
        close((int)accepted.result);
        close(fd);
        hdt_engine_submit(engine, &accept_io);
    }
    hdt_engine_cancel(engine, &accept_io);
    run_until(engine, &accepted, 21);
    hdt_engine_forget(engine, listener);
    close(listener);
    cr_assert_eq(hdt_addr_socket(&there, &fd, NULL), HDT_OK);
    connect_io.fd = fd;
    connect_io.user = &refused;
    hdt_engine_submit(engine, &connect_io);
    run_until(engine, &refused, 1);
    cr_expect_eq(refused.result, -ECONNREFUSED);
    hdt_engine_close(engine);
}

ENGINE_TEST(descriptors_travel_over_unix_sockets, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct outcome sent = {0}, got = {0};
    struct hdt_io send, recv;
    struct stat mine, theirs;
    char byte = 'x', buf[8];
    int fds[2], passed = open("/dev/null", O_RDONLY | O_CLOEXEC);

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    send = io_of(HDT_IO_SEND, fds[0], &byte, 1, &sent);
    send.passed_fd = passed;
    recv = io_of(HDT_IO_RECV, fds[1], buf, sizeof(buf), &got);
    hdt_engine_submit(engine, &recv);
    hdt_engine_submit(engine, &send);
    run_until(engine, &got, 1);
    run_until(engine, &sent, 1);
    cr_expect_eq(got.result, 1);
    cr_assert_geq(recv.passed_fd, 0);
    cr_expect_neq(recv.passed_fd, passed);
    fstat(passed, &mine);
    fstat(recv.passed_fd, &theirs);
    cr_expect_eq(mine.st_rdev, theirs.st_rdev);
    cr_expect(fcntl(recv.passed_fd, F_GETFD) & FD_CLOEXEC);
    send.passed_fd = -1;
    hdt_engine_submit(engine, &send);
    hdt_engine_submit(engine, &recv);
    run_until(engine, &got, 2);
    cr_expect_eq(recv.passed_fd, -1);
    run_until(engine, &sent, 2);
    hdt_engine_close(engine);
}

ENGINE_TEST(readable_is_level, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct outcome got = {0};
    uint64_t count = 1;
    int fd = eventfd(0, EFD_NONBLOCK);
    struct hdt_io io = io_of(HDT_IO_READABLE, fd, NULL, 0, &got);

    hdt_engine_submit(engine, &io);
    hdt_engine_run_once(engine, 0);
    cr_expect_eq(got.n, 0u);
    cr_assert_eq(write(fd, &count, 8), 8);
    run_until(engine, &got, 1);
    hdt_engine_submit(engine, &io); /* not read yet: at once again */
    run_until(engine, &got, 2);
    cr_assert_eq(read(fd, &count, 8), 8);
    hdt_engine_submit(engine, &io);
    hdt_engine_run_once(engine, 0);
    cr_expect_eq(got.n, 2u);
    cr_assert_eq(write(fd, &count, 8), 8);
    run_until(engine, &got, 3);
    hdt_engine_close(engine);
}

/* A number that comes back for another socket after forget. */
ENGINE_TEST(descriptor_numbers_may_come_back, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);

    for (int i = 0; i < 3; i++) {
        struct outcome got = {0};
        char buf[4];
        int fds[2];
        struct hdt_io io;

        cr_assert_eq(socketpair(i == 1 ? AF_UNIX : AF_LOCAL, SOCK_STREAM, 0, fds), 0);
        io = io_of(HDT_IO_RECV, fds[0], buf, 4, &got);
        hdt_engine_submit(engine, &io);
        hdt_engine_run_once(engine, 0);
        cr_assert_eq(write(fds[1], "abcd", 4), 4);
        run_until(engine, &got, 1);
        hdt_engine_forget(engine, fds[0]);
        close(fds[0]);
        close(fds[1]);
    }
    hdt_engine_close(engine);
}

ENGINE_TEST(bad_descriptors_fail_in_order, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct outcome got = {0};
    char buf[4];
    struct hdt_io io = io_of(HDT_IO_RECV, -1, buf, 4, &got);

    hdt_engine_submit(engine, &io);
    run_until(engine, &got, 1);
    cr_expect_eq(got.result, -EBADF);
    io.fd = 60000;
    hdt_engine_submit(engine, &io);
    run_until(engine, &got, 2);
    cr_expect_eq(got.result, -EBADF);
    hdt_engine_close(engine);
}

/* Timers. */

enum { N_TIMERS = 1000 };
static struct hdt_timer timers[N_TIMERS];
static int64_t last_due_us;
static unsigned n_fired, n_disorder;

static void timer_note(struct hdt_engine *engine, struct hdt_timer *timer)
{
    (void)engine;
    n_disorder += timer->due_us < last_due_us || timer->due_us > hdt_clock_now_us();
    last_due_us = timer->due_us;
    n_fired++;
}

ENGINE_TEST(timers_fire_once_in_order_and_not_early, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    int64_t now_us = hdt_clock_now_us();
    unsigned seed = (unsigned)now_us, n_armed = 0;

    cr_log_info("seed %u", seed);
    for (int i = 0; i < N_TIMERS; i++) {
        timers[i].fire = timer_note;
        hdt_engine_timer_arm(engine, &timers[i], now_us + rand_r(&seed) % 50000);
    }
    for (int i = 0; i < N_TIMERS; i++) {
        switch (rand_r(&seed) % 3) {
        case 0:
            hdt_engine_timer_disarm(engine, &timers[i]);
            hdt_engine_timer_disarm(engine, &timers[i]);
            break;
        case 1:
            hdt_engine_timer_arm(engine, &timers[i], now_us + rand_r(&seed) % 50000);
            n_armed++;
            break;
        default:
            n_armed++;
        }
    }
    while (hdt_clock_now_us() < now_us + 60000) {
        hdt_engine_run_once(engine, 5000);
    }
    cr_expect_eq(n_fired, n_armed);
    cr_expect_eq(n_disorder, 0u);
    hdt_engine_close(engine);
}

static void timer_again(struct hdt_engine *engine, struct hdt_timer *timer)
{
    n_fired++;
    hdt_engine_timer_arm(engine, timer, 0);
}

ENGINE_TEST(a_timer_that_arms_itself_for_the_past_does_not_hold_the_loop, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    struct hdt_timer timer = {.fire = timer_again};

    hdt_engine_timer_arm(engine, &timer, 0);
    hdt_engine_run_once(engine, 1000000);
    cr_expect_eq(n_fired, 1u);
    hdt_engine_run_once(engine, 1000000);
    cr_expect_eq(n_fired, 2u);
    hdt_engine_timer_disarm(engine, &timer);
    hdt_engine_close(engine);
}

/* Posts. */

enum { N_POSTERS = 4, N_POSTS = 5000 };

struct post {
    struct hdt_task task;
    unsigned poster, number;
};

struct poster {
    struct hdt_engine *engine;
    struct post posts[N_POSTS];
};

static struct poster posters[N_POSTERS];
static unsigned post_next[N_POSTERS], n_run, n_post_disorder;

static void post_run(struct hdt_engine *engine, struct hdt_task *task)
{
    struct post *post = (struct post *)task;

    n_post_disorder += post->number != post_next[post->poster];
    post_next[post->poster] = post->number + 1;
    if (++n_run == N_POSTERS * N_POSTS) {
        hdt_engine_stop(engine);
    }
}

static void *poster_main(void *arg)
{
    struct poster *poster = arg;

    for (unsigned i = 0; i < N_POSTS; i++) {
        poster->posts[i] = (struct post){
            .task.run = post_run, .poster = (unsigned)(poster - posters), .number = i};
        hdt_engine_post(poster->engine, &poster->posts[i].task);
    }
    return NULL;
}

ENGINE_TEST(posts_of_many_threads_run_in_their_order, .timeout = 60)
{
    struct hdt_engine *engine = engine_open(*id);
    pthread_t threads[N_POSTERS];

    for (int i = 0; i < N_POSTERS; i++) {
        posters[i].engine = engine;
        pthread_create(&threads[i], NULL, poster_main, &posters[i]);
    }
    hdt_engine_run(engine);
    for (int i = 0; i < N_POSTERS; i++) {
        pthread_join(threads[i], NULL);
    }
    cr_expect_eq(n_run, (unsigned)N_POSTERS * N_POSTS);
    cr_expect_eq(n_post_disorder, 0u);
    hdt_engine_close(engine);
}

static void post_own(struct hdt_engine *engine, struct hdt_task *task)
{
    if (++n_run < 10) {
        hdt_engine_post(engine, task);
    } else {
        hdt_engine_stop(engine);
    }
}

ENGINE_TEST(posts_from_its_own_thread_wake_it, .timeout = 30)
{
    struct hdt_engine *engine = engine_open(*id);
    struct hdt_task task = {.run = post_own};

    hdt_engine_post(engine, &task);
    hdt_engine_run(engine);
    cr_expect_eq(n_run, 10u);
    /* A stop before run holds for that run. */
    hdt_engine_stop(engine);
    hdt_engine_run(engine);
    hdt_engine_close(engine);
}

/* The choice opens here, says why, and what a build has not got is said with its remedy. */
Test(engine, a_choice_opens_and_says_why, .timeout = 60)
{
    static const char *const settings[] = {"auto", "epoll", "io_uring"};

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        struct hdt_engine_choice choice;
        struct hdt_engine *engine = NULL;

        hdt_engine_choose(settings[i], &choice);
        cr_expect_neq(choice.why[0], '\0');
        cr_assert_eq(hdt_engine_open(choice.name, &engine, NULL), HDT_OK, "%s", choice.name);
        if (choice.refused.status != HDT_OK) {
            cr_expect_str_eq(choice.name, "epoll");
            cr_expect(choice.refused.msg[0] && choice.refused.hint[0]);
        } else if (i > 0) {
            cr_expect_str_eq(choice.name, settings[i]);
        }
        hdt_engine_close(engine);
    }
}

/* As a container's filter does. */
static void call_forbid(long nr, int errnum)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        cr_skip_test("no seccomp here: %s", strerror(errno));
    }
}

static void refusal_expect(long nr, int errnum, const char *in_hint)
{
    static const char *const settings[] = {"auto", "io_uring"};

    if (!hdt_engine_built_in(1)) {
        cr_skip_test("this build has no io_uring");
    }
    call_forbid(nr, errnum);
    for (size_t i = 0; i < 2; i++) {
        struct hdt_engine_choice choice;

        hdt_engine_choose(settings[i], &choice);
        cr_expect_str_eq(choice.name, "epoll");
        cr_expect_eq(choice.refused.status, HDT_ENOTSUP);
        cr_expect(strstr(choice.refused.msg, "io_uring"), "%s", choice.refused.msg);
        cr_expect(strstr(choice.refused.hint, in_hint), "%s", choice.refused.hint);
    }
}

Test(engine, a_filter_that_forbids_io_uring_is_named_and_epoll_serves)
{
    refusal_expect(__NR_io_uring_setup, EPERM, "seccomp");
}

Test(engine, a_filter_that_forbids_the_use_of_a_ring_is_named_and_epoll_serves)
{
    refusal_expect(__NR_io_uring_enter, EPERM, "seccomp");
}

Test(engine, a_filter_that_forbids_registering_is_named_and_epoll_serves)
{
    refusal_expect(__NR_io_uring_register, EPERM, "seccomp");
}

Test(engine, a_kernel_without_io_uring_is_named_and_epoll_serves)
{
    refusal_expect(__NR_io_uring_setup, ENOSYS, "5.13");
}

Test(engine, too_little_locked_memory_is_named_and_epoll_serves)
{
    refusal_expect(__NR_io_uring_setup, ENOMEM, "LimitMEMLOCK");
}
