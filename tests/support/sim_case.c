/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/sim_case.h"
#include "src/base/buf.h"

#include <criterion/criterion.h>
#include <stdlib.h>

struct sim_case *hdt_sim_case_new(size_t n_ranks)
{
    struct sim_case *c = hdt_calloc(1, sizeof(*c));

    c->lists.ranks = hdt_calloc(n_ranks, sizeof(c->lists.ranks[0]));
    c->lists.n_steps = 1;
    c->setup = (struct hdt_sim_setup){.n_ranks = n_ranks,
                                      .links = c->links,
                                      .flows = c->flows,
                                      .routes = c->routes,
                                      .groups = c->groups,
                                      .members = c->members,
                                      .task = hdt_sim_list_task,
                                      .ctx = &c->lists,
                                      .n_steps = 1,
                                      .record = true};
    return c;
}

void hdt_sim_case_free(struct sim_case *c)
{
    for (size_t i = 0; i < c->setup.n_ranks; i++) {
        free(c->lists.ranks[i].tasks);
    }
    free(c->lists.ranks);
    hdt_sim_result_release(&c->result);
    free(c);
}

int hdt_sim_case_link(struct sim_case *c, double rate_bytes_per_s)
{
    cr_assert_lt(c->setup.n_links, SIM_CASE_CAP);
    c->links[c->setup.n_links].rate_bytes_per_s = rate_bytes_per_s;
    return (int)c->setup.n_links++;
}

struct hdt_sim_flow *hdt_sim_case_flow(struct sim_case *c, int src, int dst, double latency_s,
                                       size_t n_links, const int *links)
{
    struct hdt_sim_flow *f = &c->flows[c->setup.n_flows++];

    cr_assert_leq(c->setup.n_flows, SIM_CASE_CAP);
    cr_assert_leq(c->n_routes + n_links, SIM_CASE_CAP);
    *f = (struct hdt_sim_flow){.src = src,
                               .dst = dst,
                               .route = c->n_routes,
                               .n_route = n_links,
                               .queue = -1,
                               .latency_s = latency_s,
                               .src_host = -1,
                               .dst_host = -1};
    for (size_t i = 0; i < n_links; i++) {
        c->routes[c->n_routes++] = links[i];
    }
    return f;
}

int hdt_sim_case_group(struct sim_case *c, size_t n, const int *ranks, double dur_s)
{
    cr_assert_leq(c->n_members + n, SIM_CASE_CAP);
    c->groups[c->setup.n_groups] =
        (struct hdt_sim_group){.first = c->n_members, .n = n, .dur_s = dur_s, .flow = -1};
    for (size_t i = 0; i < n; i++) {
        c->members[c->n_members++] = ranks[i];
    }
    return (int)c->setup.n_groups++;
}

struct hdt_sim_task *hdt_sim_case_task(struct sim_case *c, int rank, enum hdt_sim_kind kind,
                                       int peer)
{
    struct hdt_sim_list *list = &c->lists.ranks[rank];
    struct hdt_sim_task task = {
        .kind = kind, .peer = peer, .op = {.kind = HDT_OP_FORWARD, .stage = rank, .mb = -1}};

    hdt_sim_list_push(list, &task);
    return &list->tasks[list->n_tasks - 1];
}

struct hdt_sim_task *hdt_sim_case_compute(struct sim_case *c, int rank, double dur_s)
{
    struct hdt_sim_task *task = hdt_sim_case_task(c, rank, HDT_SIM_COMPUTE, -1);

    task->dur_s = dur_s;
    return task;
}

struct hdt_sim_task *hdt_sim_case_send(struct sim_case *c, int rank, int flow, double bytes)
{
    struct hdt_sim_task *task = hdt_sim_case_task(c, rank, HDT_SIM_SEND, flow);

    task->bytes = bytes;
    return task;
}

struct hdt_sim_task *hdt_sim_case_recv(struct sim_case *c, int rank, int flow)
{
    return hdt_sim_case_task(c, rank, HDT_SIM_RECV, flow);
}

void hdt_sim_case_run(struct sim_case *c)
{
    struct hdt_error err = {0};

    hdt_sim_result_release(&c->result);
    c->lists.n_steps = c->setup.n_steps;
    cr_assert_eq(hdt_sim_run(&c->setup, &c->result, &err), HDT_OK, "%s %s", err.msg, err.hint);
}

double hdt_sim_case_end(const struct sim_case *c, int rank, int n)
{
    for (size_t i = 0; i < c->result.n_spans; i++) {
        if (c->result.spans[i].rank == rank && n-- == 0) {
            return c->result.spans[i].end_s;
        }
    }
    cr_assert_fail("rank %d has no such task", rank);
    return 0;
}
