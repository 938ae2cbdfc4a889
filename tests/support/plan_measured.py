#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which plans tests/bench/plan-measured.sh runs, and what their runs say. A plan is a line of a table:
number, name, cut, codec of activations, codec of their gradients, schedule, predicted step; 0 is the
chosen one. A run is a line: round, number of the plan, seconds of a step.

    plan_measured.py usual PLAN.json...              the plan that most of these are
    plan_measured.py others PLAN.json CODEC...       table without schedules and predictions of others
    plan_measured.py table TABLE DIR                 the same with them, from DIR/NUMBER.json of `hdt plan`
    plan_measured.py step_of METRICS                 median step without the first two
    plan_measured.py best RUNS N                     numbers of the N best others, best first
    plan_measured.py steps TABLE RUNS                name, measured and predicted step of all, best first
    plan_measured.py judge TABLE RUNS                of runs in turn: chosen against each other, worst first
"""
import itertools
import json
import sys
from collections import Counter
from statistics import median

N_WARM = 2  # first steps of a run, which do not count
AROUND = 2  # units by which the parts of three sites may differ from the chosen ones


class Plan:
    """Cut, codecs and schedule of what `hdt plan --json` prints."""

    def __init__(self, path):
        with open(path) as f:
            plan = json.load(f)["plan"]
        ranks = [f'{r["site"]}/{r["worker"]}' for r in plan["ranks"]]
        self.cut = [(ranks[s["rank"]], s["unit_end"] - s["unit_begin"]) for s in plan["stages"]]
        self.codecs = []
        for kind in "activation", "activation_grad":
            of_edges = {f["codec"] for f in plan["flows"] if f["kind"] == kind}
            # Links that were measured apart may get unlike codecs; a job can name one, or leave it open.
            self.codecs.append(of_edges.pop() if len(of_edges) == 1 else "auto")
        self.schedule, self.step_s = plan["schedule"], plan["step_s"]

    def key(self):
        return (tuple(self.cut), tuple(self.codecs), self.schedule)


def line(number, cut, codecs, schedule="-", step_s=0.0):
    codec = codecs[0] if codecs[0] == codecs[1] else "/".join(codecs)
    name = "-".join(f'{worker.split("/")[0]}{n}' for worker, n in cut) + " " + codec
    return "\t".join([str(number), name, ", ".join(f"{worker}={n}" for worker, n in cut),
                      *codecs, schedule, f"{step_s:.6f}"])


def usual(paths):
    plans = {path: Plan(path).key() for path in paths}
    (key, n), = Counter(plans.values()).most_common(1)
    print(next(path for path in paths if plans[path] == key), n)


def parts(n_units, n_parts):
    for borders in itertools.combinations(range(1, n_units), n_parts - 1):
        yield tuple(b - a for a, b in zip((0, *borders), (*borders, n_units)))


def even(n_units, n_parts):
    """The same number of blocks for each; the ends have the embedding and the head beside these."""
    n, more = divmod(n_units - 2, n_parts)
    counts = [n + (i < more) for i in range(n_parts)]
    return (counts[0] + 1, *counts[1:-1], counts[-1] + 1)


def others(path, codecs):
    chosen = Plan(path)
    units = Counter()
    for worker, n in chosen.cut:  # a worker with several stages has them once here
        units[worker] += n
    workers, of_chosen = list(units), tuple(units.values())
    n_units, n_parts = sum(of_chosen), len(workers)
    all_codecs = [(c, c) for c in codecs]
    cuts = []
    if n_parts == 2:
        for order in itertools.permutations(workers):
            cuts += [(order, p, all_codecs) for p in parts(n_units, n_parts)]
    else:
        near = {p for p in parts(n_units, n_parts)
                if all(abs(a - b) <= AROUND for a, b in zip(p, of_chosen))} | {even(n_units, n_parts)}
        cuts += [(workers, p, all_codecs) for p in sorted(near)]
        cuts += [(order, even(n_units, n_parts), [tuple(chosen.codecs)])
                 for order in itertools.permutations(workers) if list(order) != workers]
    print(line(0, chosen.cut, chosen.codecs, chosen.schedule, chosen.step_s))
    number = 1
    for order, p, pairs in cuts:
        for pair in pairs:
            cut = list(zip(order, p))
            if (cut, list(pair)) != (list(units.items()), chosen.codecs):
                print(line(number, cut, pair))
                number += 1


def filled(path, plans):
    with open(path) as f:
        rows = [row.rstrip("\n").split("\t") for row in f]
    for row in rows[1:]:
        plan = Plan(f"{plans}/{row[0]}.json")
        row[5:] = plan.schedule, f"{plan.step_s:.6f}"
    print("\n".join("\t".join(row) for row in rows))


def step_of(path):
    with open(path) as f:
        found = [json.loads(row) for row in f]
    found = [row["step_s"] for row in found if "step" in row and row.get("step_s", 0) > 0]
    print(f"{median(found[N_WARM:]):.6f}")


def table_of(path):
    with open(path) as f:
        rows = [row.rstrip("\n").split("\t") for row in f]
    return {int(row[0]): {"name": row[1], "schedule": row[5], "step_s": float(row[6])} for row in rows}


def runs_of(path):
    with open(path) as f:
        for row in f:
            in_round, number, step_s = row.split()
            yield in_round, int(number), float(step_s)


def relative(path):
    """Step of each other plan by the mean of the chosen plan's runs before and after it in its round."""
    runs, found = list(runs_of(path)), {}
    for i, (in_round, number, step_s) in enumerate(runs):
        if number == 0:
            continue
        beside = []
        for direction in range(i - 1, -1, -1), range(i + 1, len(runs)):
            beside += [next((runs[j][2] for j in direction if runs[j][:2] == (in_round, 0)), None)]
        beside = [s for s in beside if s is not None]
        found.setdefault(number, []).append(step_s / (sum(beside) / len(beside)))
    return {number: median(values) for number, values in found.items()}


def best(runs, n):
    # Of plans that ran in fewer rounds one knows less; they were left out because they were slower.
    last = list(runs_of(runs))[-1][0]
    in_last = {number for in_round, number, _ in runs_of(runs) if in_round == last}
    by_step = sorted((r, number) for number, r in relative(runs).items() if number in in_last)
    print(*[number for _, number in by_step[:n]])


def steps(table, runs):
    table, chosen_s = table_of(table), median(s for _, number, s in runs_of(runs) if number == 0)
    for r, number in sorted([(1.0, 0), *((r, number) for number, r in relative(runs).items())]):
        plan = table[number]
        print("\t".join([f'{plan["name"]}{" (chosen)" if number == 0 else ""}', plan["schedule"],
                         f"{r * chosen_s:.4f}", f'{plan["step_s"]:.4f}']))


def judge(table, runs):
    table, turns = table_of(table), {}
    for turn, number, step_s in runs_of(runs):
        turns.setdefault(turn, {})[number] = step_s
    found = [(median(t[number] / t[0] for t in turns.values()), number)
             for number in next(iter(turns.values())) if number != 0]
    for ratio, number in [*sorted(found), (1.0, 0)]:
        step_s = median(t[number] for t in turns.values())
        print("\t".join([f"{ratio:.4f}", f'{table[number]["name"]} {table[number]["schedule"]}', f"{step_s:.5f}",
                         f'{table[number]["step_s"]:.5f}']))


def main(what, *args):
    if what == "usual":
        usual(args)
    elif what == "others":
        others(args[0], args[1:])
    elif what == "best":
        best(args[0], int(args[1]))
    elif what in ("table", "step_of", "steps", "judge"):
        {"table": filled, "step_of": step_of, "steps": steps, "judge": judge}[what](*args)
    else:
        sys.exit(f"plan_measured.py: no '{what}'")


if __name__ == "__main__":
    main(*sys.argv[1:])
