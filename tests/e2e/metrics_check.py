#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold doc/metrics.md to what HDT gives, and alerts and board to doc/metrics.md.

metrics_check.py page DOC PAGE        families, types, units and labels of /metrics, both ways
metrics_check.py lines DOC FILE       fields of metrics.jsonl and their types, both ways
metrics_check.py uses DOC FILE...     every metric and label in alerts or board is documented
"""
import json
import re
import sys

UNITS = {"bytes": "bytes", "seconds": "seconds", "bytes_per_second": "bytes a second",
         "tokens_per_second": "tokens a second"}
TYPES = {"integer": int, "number": (int, float, type(None)), "array": list, "string": str,
         "object": dict}
SCRAPER_LABELS = {"job", "instance"}
problems = []


def wrong(text):
    problems.append(text)


def tables(path):
    """Rows of the tables below each heading or line that ends in ':', cells without backquotes."""
    title, rows = "", {}
    for line in open(path, encoding="utf-8"):
        line = line.strip()
        if line.startswith("|"):
            cells = [c.strip() for c in line.strip("|").split("|")]
            if cells[0] not in ("name", "field") and not set(cells[0]) <= set("- "):
                rows.setdefault(title, []).append([c.replace("`", "") for c in cells])
        elif line.startswith("#") or line.endswith(":"):
            title = line.strip("#: ")
    return rows


def documented(path):
    """{family: (type, unit, labels)}"""
    found = {}
    for rows in tables(path).values():
        for row in rows:
            if len(row) == 5 and re.match(r"(hdt|process)_", row[0]):
                if row[0] in found:
                    wrong(f"{row[0]} stands twice in the page")
                found[row[0]] = (row[1], row[2], set() if row[3] == "-" else set(row[3].split()))
    return found


def unit_of(name):
    stem = name.removesuffix("_total")
    for suffix in sorted(UNITS, key=len, reverse=True):
        if stem.endswith("_" + suffix):
            return UNITS[suffix]
    return None


SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)$')


def families_of(path):
    """{family: [type, set of label names]} of a page in the text format, and its form."""
    found, seen = {}, set()
    for line in open(path, encoding="utf-8"):
        line = line.rstrip("\n")
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            found[name] = [kind, None]
        elif line.startswith("# HELP "):
            if len(line.split(" ", 3)) < 4:
                wrong(f"{line}: no help")
        else:
            match = SAMPLE.match(line)
            if not match:
                wrong(f"not a sample: {line}")
                continue
            name, labels, value = match.groups()
            float(value)
            if name not in found:
                wrong(f"{name}: sample before its type")
                continue
            if (name, labels) in seen:
                wrong(f"{name}{labels}: comes twice")
            seen.add((name, labels))
            names = set(re.findall(r'(\w+)="', re.sub(r'"(?:[^"\\]|\\.)*"', '""', labels or "")))
            if found[name][1] not in (None, names):
                wrong(f"{name}: samples with unlike labels")
            found[name][1] = names
    return found


def page(doc_path, page_path):
    doc, live = documented(doc_path), families_of(page_path)
    for name in sorted(doc.keys() - live.keys()):
        wrong(f"{name} is documented, and no gateway gives it")
    for name in sorted(live.keys() - doc.keys()):
        wrong(f"{name} is on the gateway's page and not documented")
    for name in sorted(doc.keys() & live.keys()):
        kind, unit, labels = doc[name]
        if kind != live[name][0]:
            wrong(f"{name} is documented as a {kind}, it is a {live[name][0]}")
        if live[name][1] is None:
            wrong(f"{name} has no sample: this test should make it have one")
        elif labels != live[name][1]:
            wrong(f"{name}: labels {sorted(labels)} documented, {sorted(live[name][1])} given")
        if (kind == "counter") != name.endswith("_total"):
            wrong(f"{name}: counters and nothing else end in _total")
        if unit_of(name) and unit_of(name) != unit:
            wrong(f"{name}: unit '{unit}' documented, its name says '{unit_of(name)}'")
        if unit in UNITS.values() and not unit_of(name):
            wrong(f"{name}: in {unit}, and its name does not say so")
        if SCRAPER_LABELS & labels:
            wrong(f"{name}: a label that the scraper sets")


def lines(doc_path, path):
    rows = tables(doc_path)
    kinds = {"A line of a step": "loss", "A line of an evaluation": "val_loss",
             "After a loss, when the job trains again, a line of a restart": "restart",
             "When the job goes on with another plan, a line of it": "replan",
             "When a checkpoint cannot be written, and the job goes on, a line of that": "ckpt.failed"}
    fields = {kind: {row[0]: row[1] for row in rows[title]} for title, kind in kinds.items()}
    outer = "With several replicas, when an outer step followed, a line of a step has also"
    fields["outer"] = {**fields["loss"], **{row[0]: row[1] for row in rows[outer]}}
    seen = {kind: 0 for kind in fields}
    for text in open(path, encoding="utf-8"):
        line = json.loads(text)
        kind = line.get("event", "val_loss" if "val_loss" in line else "outer" if "outer_loss" in line
                        else "loss")
        seen[kind] += 1
        for name in sorted(line.keys() ^ fields[kind].keys()):
            wrong(f"{name}: {'not documented' if name in line else 'missing'} in {text.strip()}")
        for name in line.keys() & fields[kind].keys():
            if not isinstance(line[name], TYPES[fields[kind][name]]):
                wrong(f"{name}: {line[name]!r} is no {fields[kind][name]}")
        for rank in line.get("ranks", []):
            if rank.keys() != {"rank", "busy_s", "wait_s"}:
                wrong(f"ranks: {rank}")
    for kind, n in seen.items():
        if n == 0 and kind in ("loss", "val_loss"):
            wrong(f"no line with {kind} in {path}")


def expressions(path):
    if path.endswith(".json"):
        def walk(node):
            if isinstance(node, dict):
                for key, value in node.items():
                    if key in ("expr", "query", "definition") and isinstance(value, str):
                        yield value
                    else:
                        yield from walk(value)
            elif isinstance(node, list):
                for value in node:
                    yield from walk(value)
        return [text for text in walk(json.load(open(path, encoding="utf-8"))) if text != "prometheus"]
    text = open(path, encoding="utf-8").read()
    text = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    return [text]


def uses(doc_path, paths):
    doc = documented(doc_path)
    known = set().union(*(labels for _, _, labels in doc.values())) | SCRAPER_LABELS
    for path in paths:
        n = 0
        for text in expressions(path):
            for name, labels in re.findall(r"\b((?:hdt|process)_\w+)\s*(\{[^{}]*\})?", text):
                n += 1
                if name not in doc:
                    wrong(f"{path}: {name} is not documented")
                    continue
                for label in re.findall(r"(\w+)\s*[!=]~?\s*\"", labels):
                    if label not in doc[name][2] | SCRAPER_LABELS:
                        wrong(f"{path}: {name} has no label {label}")
            for label in re.findall(r"\$labels\.(\w+)", text):
                if label not in known:
                    wrong(f"{path}: no metric has a label {label}")
        if n == 0:
            wrong(f"{path}: no metric in it")


command, doc_path, *rest = sys.argv[1:]
{"page": lambda: page(doc_path, *rest), "lines": lambda: lines(doc_path, *rest),
 "uses": lambda: uses(doc_path, rest)}[command]()
print("\n".join(problems) or "agrees")
sys.exit(1 if problems else 0)
