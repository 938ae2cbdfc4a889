#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every fault at many seeded moments of a run: a table of what it cost, and whether the bits are the same.

Each kind of fault has a federation of its own: two sites in network namespaces joined by an emulated
link, one gateway and one worker a site. A run without faults is the reference; a run with faults must
report the same loss for every step, each step once (but those that a restart repeats), and end with the
same weights. The moments are steps of the run, drawn from the seed, and a fraction of a step.
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
    "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
WORDS = "the of and that to in he shall unto for i his a lord they be is not him them it with".split()
ADDRESS = {"a": "10.77.0.1", "b": "10.77.0.2"}
PATIENCE = int(os.environ.get("HDT_TEST_PATIENCE", "1"))  # more beside other tests
PATIENCE_S = 120 * PATIENCE  # without a new step: the run hangs
CHECKPOINT_EVERY = 10


class Failed(Exception):
    pass


def say(text):
    print(text, flush=True)


class Rig:
    """Programs, data and the references that all federations share."""

    def __init__(self, args, work):
        self.build, self.src, self.work = args.build, args.src, work
        self.env = dict(os.environ, PATH=f"{args.build}:{os.environ['PATH']}",
                        HDT_MODULE_PATH=f"{args.build}/.libs", HDT_WANEM=f"{args.build}/hdt-wanem")
        rng = random.Random(7)
        for name, n in ("train", 12000), ("valid", 2500):
            with open(f"{work}/{name}.txt", "w") as f:
                f.write(" ".join(rng.choice(WORDS) for _ in range(n)))
            self.hdt("tokenize", "-o", f"{work}/{name}.bin", f"{work}/{name}.txt")
        with open(f"{work}/model.json", "w") as f:
            json.dump(MODEL, f)
        self.hdt("ca", "init", "--dir", f"{work}/ca", "--federation", "lab")
        for site in ADDRESS:
            self.hdt("ca", "issue", "--dir", f"{work}/ca", "--out", f"{work}/tls-{site}", "site", site)

    def hdt(self, *args):
        done = subprocess.run(["hdt", *args], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60 * PATIENCE)
        if done.returncode != 0:
            raise Failed(f"hdt {' '.join(args)}: {done.stderr}")
        return done.stdout


class Federation:
    """Two sites in a lab of their own, and one job."""

    def __init__(self, rig, name, disk=False):
        self.rig, self.dir = rig, f"{rig.work}/{name}"
        self.procs, self.submitter, self.mounted = {}, None, []
        self.said, self.epochs = [], {}  # lines of the submitter with their time; job's epochs
        os.makedirs(self.dir)
        self.env = dict(rig.env, WANLAB_DIR=f"{self.dir}/wan")
        self.sockets = tempfile.mkdtemp(prefix="hdt-km.", dir="/tmp")
        topology = "".join(f"port {s} addr {ADDRESS[s]}/24\n" for s in ADDRESS)
        with open(f"{self.dir}/topology", "w") as f:
            f.write(topology + "link a b rate 200mbit rtt 20ms\n")
        self.lab("up", f"{self.dir}/topology")
        for site in ADDRESS:
            os.makedirs(f"{self.dir}/{site}/state")
            if disk and site == "a":
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "hdt-test",
                                f"{self.dir}/a/state"], check=True)
                self.mounted.append(f"{self.dir}/a/state")
            self.configure(site)

    def configure(self, site):
        other = "b" if site == "a" else "a"
        state = f"{self.dir}/{site}/state"
        with open(f"{self.dir}/{site}/gateway.yaml", "w") as f:
            f.write(f"site: {site}\nfederation: lab\nstate_dir: {state}\n"
                    f"tls:\n  ca: {self.rig.work}/tls-{site}/ca.pem\n"
                    f"  cert: {self.rig.work}/tls-{site}/cert.pem\n"
                    f"  key: {self.rig.work}/tls-{site}/key.pem\n"
                    f"wan:\n  listen: \"{ADDRESS[site]}:7420\"\n"
                    f"lan:\n  socket: {self.sockets}/{site}.sock\n"
                    "http:\n  listen: \"\"\ndata:\n  memory: 192MiB\n"
                    f"peers:\n  - site: {other}\n    address: \"{ADDRESS[other]}:7420\"\n")
        with open(f"{self.dir}/{site}/worker.yaml", "w") as f:
            f.write(f"name: w0\nthreads: 1\ndata_dir: {self.rig.work}\nstate_dir: {state}\n"
                    f"gateway: \"unix:{self.sockets}/{site}.sock\"\n")

    def lab(self, *args, check=True):
        return subprocess.run([f"{self.rig.src}/scripts/wan-lab", *args], env=self.env, check=check,
                              capture_output=True, text=True, timeout=60 * PATIENCE).stdout

    def start(self, what):
        """what: "a", "b" (gateways), "a/w0", "b/w0" (workers)."""
        site = what[0]
        program, conf = ("hdt-worker", "worker") if "/" in what else ("hdt-gateway", "gateway")
        log = open(f"{self.dir}/{site}/{conf}.log", "a")
        self.procs[what] = subprocess.Popen(
            [f"{self.rig.src}/scripts/wan-lab", "exec", site, program, "-c",
             f"{self.dir}/{site}/{conf}.yaml"],
            env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()

    def kill(self, what, sig=signal.SIGKILL):
        self.procs[what].send_signal(sig)
        if sig == signal.SIGKILL:
            self.procs[what].wait()

    def status(self):
        done = subprocess.run(["hdt", "status", "--gateway", f"unix:{self.sockets}/a.sock", "--json"],
                              env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60 * PATIENCE)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def start_all(self):
        for what in "a", "b", "a/w0", "b/w0":
            self.start(what)
        end = time.monotonic() + 60 * PATIENCE
        while True:
            status = self.status()
            if sum(w["up"] for w in status.get("workers", [])) == 2:
                return
            if time.monotonic() > end:
                raise Failed(f"the federation did not come up: {status}")
            time.sleep(0.1)

    def submit(self, n_steps, **extra):
        job = {"name": "matrix", "model": f"{self.rig.work}/model.json", "steps": n_steps,
               "data": {"train": f"{self.rig.work}/train.bin", "valid": f"{self.rig.work}/valid.bin"},
               "batch": {"micro_batch": 2, "n_micro_batches": 4, "seq_len": 32},
               "optimizer": {"lr": 3e-3, "warmup_steps": 2},
               "codec": {"activations": "lossless", "activation_grads": "lossless"},
               "checkpoint": {"dir": f"{self.dir}/a/state/ckpt", "every": CHECKPOINT_EVERY},
               "plan": {"min_stages": 2}, "eval": {"n_micro_batches": 4}, **extra}
        with open(f"{self.dir}/job.yaml", "w") as f:
            json.dump(job, f)  # JSON is YAML
        self.submitter = subprocess.Popen(
            ["hdt", "submit", "--gateway", f"unix:{self.sockets}/a.sock", "--json",
             f"{self.dir}/result.json", f"{self.dir}/job.yaml"],
            env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        with open(f"{self.dir}/submit.log", "w") as log:
            for line in self.submitter.stdout:
                self.said.append((time.time(), line))
                log.write(line)
                log.flush()

    def lines(self):
        """All whole lines of metrics.jsonl, in order."""
        jobs = f"{self.dir}/a/state/jobs"
        if not os.path.isdir(jobs) or not os.listdir(jobs):
            return []
        path = f"{jobs}/{os.listdir(jobs)[0]}/metrics.jsonl"
        if not os.path.exists(path):
            return []
        with open(path) as f:
            return [json.loads(line) for line in f.read().split("\n")[:-1] if line]

    def steps(self):
        return [line for line in self.lines() if "loss" in line]

    def wait_for(self, reached, what):
        """Until reached(step lines); says the lines. A run that reports nothing new hangs."""
        n_before, since = -1, time.monotonic()
        while True:
            steps = self.steps()
            if reached(steps):
                return steps
            if len(steps) != n_before:
                n_before, since = len(steps), time.monotonic()
            if self.submitter.poll() is not None:
                raise Failed(f"submit ended while {what}: {''.join(t for _, t in self.said[-6:])}")
            if time.monotonic() - since > PATIENCE_S:
                raise Failed(f"no new step for {PATIENCE_S} s while {what}")
            time.sleep(0.02)

    def wait_for_more(self, reached, what):
        """The same; None: the run ended well meanwhile."""
        try:
            return self.wait_for(reached, what)
        except Failed:
            if self.submitter.poll() == 0:
                return None
            raise

    def finish(self):
        """The result of the run, by its submitter."""
        end = time.monotonic() + PATIENCE_S
        n_before = -1
        while self.submitter.poll() is None:
            n = len(self.steps())
            if n != n_before:
                n_before, end = n, time.monotonic() + PATIENCE_S
            if time.monotonic() > end:
                raise Failed("the run does not end")
            time.sleep(0.1)
        if self.submitter.returncode != 0:
            raise Failed(f"submit: exit {self.submitter.returncode}: "
                         + "".join(t for _, t in self.said[-6:]))
        with open(f"{self.dir}/result.json") as f:
            return json.load(f)

    def last_lines(self):
        """Of its submitter, gateways and workers: for a look from afar."""
        found = []
        for name in "submit.log", *(f"{s}/{w}.log" for s in ADDRESS for w in ("gateway", "worker")):
            path = f"{self.dir}/{name}"
            if os.path.exists(path):
                with open(path, errors="replace") as f:
                    found += [f"    {name}: {line[:300].rstrip()}" for line in f.readlines()[-12:]]
        return found

    def close(self):
        if self.submitter and self.submitter.poll() is None:
            self.submitter.kill()
            self.submitter.wait()
        for proc in self.procs.values():
            if proc.poll() is None:
                proc.send_signal(signal.SIGCONT)
                proc.kill()
                proc.wait()
        self.lab("down", check=False)
        for path in self.mounted:
            subprocess.run(["umount", path], check=False)
        shutil.rmtree(self.sockets, ignore_errors=True)


# ---- faults: each does its harm and undoes it; returns when all was back ----

def fault_gateway(fed, rng, i):
    fed.kill("b")
    fed.start("b")


def fault_coordinator(fed, rng, i):
    fed.kill("a")
    fed.start("a")


def fault_worker(fed, rng, i):
    victim = ("a/w0", "b/w0")[i % 2]
    killed = time.time()
    fed.kill(victim)
    end = time.monotonic() + 5 * PATIENCE
    # The reason must be known before anything is repaired.
    while not any(t > killed and victim in line for t, line in list(fed.said)):
        if time.monotonic() > end:
            raise Failed(f"{5 * PATIENCE} s after the end of {victim} its submitter does not know it")
        time.sleep(0.02)
    fed.reasons.append(time.time() - killed)
    fed.start(victim)


def fault_link(fed, rng, i):
    fed.lab("ctl", "link", "a", "b", "down")
    time.sleep(30 if i == 0 else rng.uniform(0.2, 8))  # the fault itself
    fed.lab("ctl", "link", "a", "b", "up")


def fault_stream(fed, rng, i):
    """Resets a random one of the connections between the gateways."""
    end = time.monotonic() + 10
    while True:
        out = fed.lab("exec", "b", "ss", "-Htn", "state", "established", "dst", ADDRESS["a"])
        rows = [row.split() for row in out.splitlines() if ":" in row]
        if rows:
            break
        if time.monotonic() > end:
            raise Failed("no connection between the gateways to reset")
        time.sleep(0.05)
    here, there = rng.choice(rows)[2:4]
    fed.lab("exec", "b", "ss", "-K", "state", "established", "src", here, "dst", there)


def fault_stop(fed, rng, i):
    victim = ("a", "b", "a/w0", "b/w0")[i % 4]
    fed.kill(victim, signal.SIGSTOP)
    time.sleep(fed.stop_s)  # the fault itself
    fed.kill(victim, signal.SIGCONT)


def fault_disk(fed, rng, i):
    """The disk under checkpoints, job state and logs of the coordinator's site is full for a while."""
    path = f"{fed.dir}/a/state/filler"
    step = fed.steps()[-1]["step"]
    with open(path, "wb", buffering=0) as f:
        try:
            while True:
                f.write(b"\0" * 65536)
        except OSError:
            pass
        try:
            while True:
                f.write(b"\0" * 512)
        except OSError:
            pass
    time.sleep(rng.uniform(0.5, 2.5))  # the fault itself: some saves fall into it
    os.unlink(path)
    return step


def fault_all(fed, rng, i):
    order = ["a", "b", "a/w0", "b/w0"]
    rng.shuffle(order)
    for what in order:
        fed.kill(what)
    rng.shuffle(order)
    for what in order:
        fed.start(what)


# kind: (text, function, steps of a run, federations side by side, may steps be repeated)
KINDS = {
    "gateway": ("gateway killed", fault_gateway, 400, 1, False),
    "coordinator": ("coordinator's gateway killed", fault_coordinator, 400, 1, False),
    "worker": ("worker killed", fault_worker, 300, 1, True),
    "link": ("link cut 0.2 to 30 s", fault_link, 400, 1, False),
    "stream": ("one stream reset", fault_stream, 400, 1, False),
    "stop": ("process stopped 30 s", fault_stop, 80, 5, False),
    "disk": ("disk full 0.5 to 2.5 s", fault_disk, 1200, 1, False),
    "all": ("everything killed at once", fault_all, 300, 1, True),
}


def play(fed, kind, moments, n_steps, rng):
    """Run with faults; one record a moment."""
    fault, records = KINDS[kind][1], []
    fed.reasons = []
    fed.start_all()
    fed.submit(n_steps, recovery={"on_loss": "wait", "attempts": 100})
    for i, at in enumerate(moments):
        if fed.wait_for_more(lambda s: s and s[-1]["step"] >= at, f"waiting for step {at}") is None:
            break
        time.sleep(rng.uniform(0, 0.05))  # where in a step
        before = fed.steps()
        fault(fed, rng, i)
        back = time.time()
        epoch, n = before[-1].get("epoch", 1), len(before)
        last = before[-1]["step"]
        # Two new steps, or the first of a new epoch: one may have been under way to the coordinator.
        after = fed.wait_for_more(
            lambda s: len(s) > n and (s[-1]["step"] > last + 2 or s[-1].get("epoch", 1) > epoch
                                      or s[-1]["step"] >= n_steps - 1),
            f"waiting for training after {KINDS[kind][0]} at step {at}")
        if after is None:  # lines wait for room on the disk while the run goes on, here to its end
            break
        records.append({"at": at, "again_s": max(0.0, after[-1]["time"] - back),
                        "lost": lost_steps(after, n)})
    return records, fed.finish()


def lost_steps(lines, n):
    """Steps that were done before line n and are done again from there."""
    done = max(line["step"] for line in lines[:n])
    first = min(line["step"] for line in lines[n:])
    return max(0, done - first + 1)


def judge(fed, kind, result, reference, n_steps):
    """What is not as in the undisturbed run: list of texts."""
    wrong, seen, order = [], {}, []
    for line in fed.steps():
        key = (line.get("epoch", 1), line["step"])
        if key in seen:
            wrong.append(f"step {key} is said twice")
        seen[key] = line["loss"]
        order.append(key)
    if order != sorted(order):
        wrong.append("steps are out of order")
    losses = {}
    for (_, step), loss in seen.items():
        if losses.setdefault(step, loss) != loss:
            wrong.append(f"step {step} was repeated with another loss")
    if not KINDS[kind][4] and len(seen) != len(losses):
        wrong.append("steps were repeated")
    ref = reference["losses"]
    missing = sorted(set(ref) - set(losses))
    if missing:
        wrong.append(f"steps without a line: {missing[:10]}")
    other = [s for s in losses if losses[s] != ref.get(s)]
    if other:
        wrong.append(f"other losses from step {min(other)}")
    if result["weights_digest"] != reference["digest"]:
        wrong.append(f"weights {result['weights_digest']} are not {reference['digest']}")
    return wrong


def make_reference(rig, n_steps):
    fed = Federation(rig, f"calm-{n_steps}")
    try:
        fed.start_all()
        fed.submit(n_steps)
        result = fed.finish()
        losses = {line["step"]: line["loss"] for line in fed.steps()}
        if len(losses) != n_steps:
            raise Failed(f"the reference has {len(losses)} of {n_steps} steps")
        return {"losses": losses, "digest": result["weights_digest"]}
    finally:
        fed.close()


def run_one(rig, kind, part, moments, reference, args, out):
    rng = random.Random(f"{args.seed}-{kind}-{part}")
    n_steps = KINDS[kind][2]
    try:
        fed = Federation(rig, f"{kind}-{part}", disk=kind == "disk")
    except (subprocess.SubprocessError, OSError) as e:
        out.append({"wrong": [f"cannot make the lab: {e}"], "records": [], "reasons": []})
        return
    fed.stop_s = args.stop
    fed.reasons = []
    records, wrong = [], []
    try:
        records, result = play(fed, kind, moments, n_steps, rng)
        wrong = judge(fed, kind, result, reference, n_steps)
    except (Failed, subprocess.SubprocessError, OSError, KeyError, ValueError) as e:
        wrong = [f"{type(e).__name__}: {e}"]
    finally:
        fed.close()
    if wrong:
        rig.keep = True
        say("\n".join([f"FAILED: {kind}, part {part}: {wrong[0]}"] + fed.last_lines()))
    out.append({"wrong": wrong, "records": records, "reasons": fed.reasons})


def run_kind(rig, kind, references, args):
    """One row of the table."""
    text, _, n_steps, n_parts, _ = KINDS[kind]
    rng = random.Random(f"{args.seed}-{kind}")
    n_parts = min(n_parts, args.moments)
    out, threads, begin = [], [], time.monotonic()
    for part in range(n_parts):
        n = args.moments // n_parts + (part < args.moments % n_parts)
        # The last quarter is left out: a run must not be over before its last moment is played.
        moments = sorted(rng.sample(range(5, n_steps * 3 // 4), n))
        thread = threading.Thread(target=run_one, args=(rig, kind, part, moments,
                                                        references[n_steps], args, out))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    records = [r for part in out for r in part["records"]]
    again = sorted(r["again_s"] for r in records)
    return {"kind": kind, "text": text, "moments": len(records), "wanted": args.moments,
            "lost_max": max((r["lost"] for r in records), default=None),
            "lost_mean": sum(r["lost"] for r in records) / len(records) if records else None,
            "again_median_s": again[len(again) // 2] if again else None,
            "again_max_s": again[-1] if again else None,
            "reason_max_s": max((t for part in out for t in part["reasons"]), default=None),
            "took_s": time.monotonic() - begin,
            "wrong": [w for part in out for w in part["wrong"]]}


def number(value, form):
    return "-" if value is None else format(value, form)


def print_table(rows):
    say(f"{'fault':<30} {'moments':>7} {'steps lost':>15} {'training again, s':>19} "
        f"{'reason known, s':>15} {'bits':>7}")
    say(f"{'':<30} {'':>7} {'mean':>8} {'max':>6} {'median':>12} {'max':>6}")
    for r in rows:
        say(f"{r['text']:<30} {r['moments']:>7} {number(r['lost_mean'], '8.1f')} "
            f"{number(r['lost_max'], '6d')} {number(r['again_median_s'], '12.2f')} "
            f"{number(r['again_max_s'], '6.2f')} {number(r['reason_max_s'], '15.2f')} "
            f"{'same' if not r['wrong'] else 'WRONG':>7}")
        for text in r["wrong"]:
            say(f"    {text}")


def bench_rows(rows):
    for r in rows:
        for metric, unit, goal in (("again_max_s", "s", 5), ("lost_max", "steps", None),
                                   ("reason_max_s", "s", 5)):
            if metric == "lost_max" and not KINDS[r["kind"]][4]:
                goal = 0
            if r[metric] is not None:
                yield {"bench": "kill-matrix", "case": r["text"], "metric": metric,
                       "value": round(r[metric], 3), "unit": unit, "better": "lower", "peer": None,
                       "ratio": None, "goal": goal, "moments": r["moments"],
                       "same_bits": not r["wrong"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=os.getcwd(), help="build folder [the current one]")
    parser.add_argument("--src", default=os.path.realpath(f"{os.path.dirname(__file__)}/../.."))
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument("--moments", type=int, default=20, help="of each kind [20]")
    parser.add_argument("--stop", type=float, default=30, help="seconds of a stopped process [30]")
    parser.add_argument("--seed", type=int, default=None, help="[drawn, printed]")
    parser.add_argument("--json", help="write rows as scripts/bench does")
    args = parser.parse_args()
    args.build, args.src = os.path.realpath(args.build), os.path.realpath(args.src)
    args.seed = args.seed if args.seed is not None else random.SystemRandom().randrange(10**6)
    kinds = args.kinds.split(",")
    if any(k not in KINDS for k in kinds):
        parser.error(f"no kind of fault {args.kinds}: {','.join(KINDS)}")
    check = subprocess.run([f"{args.src}/scripts/wan-lab", "check"], capture_output=True, text=True,
                           env=dict(os.environ, HDT_WANEM=f"{args.build}/hdt-wanem"))
    if check.returncode != 0 or not shutil.which("ss"):
        say(f"SKIP: no emulated WAN here: {check.stderr.strip() or 'ss is missing'}")
        return 77
    say(f"seed {args.seed}")
    work = tempfile.mkdtemp(prefix="hdt-matrix.")
    rows, keep = [], True
    try:
        rig = Rig(args, work)
        rig.keep = False
        references = {n: make_reference(rig, n) for n in {KINDS[k][2] for k in kinds}}
        for kind in kinds:
            rows.append(run_kind(rig, kind, references, args))
            say(f"{rows[-1]['text']}: {rows[-1]['moments']} moments in {rows[-1]['took_s']:.0f} s"
                + "".join(f"\n    {w}" for w in rows[-1]["wrong"]))
        keep = rig.keep
    except Failed as e:
        say(f"FAILED: {e}")
    finally:
        if keep:
            say(f"kept for a look: {work}")
        else:
            shutil.rmtree(work)
    print_table(rows)
    if args.json:
        with open(args.json, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in bench_rows(rows))
    # Of a run that got to its end meanwhile some moments are enough.
    good = rows and all(not r["wrong"] and r["moments"] >= min(r["wanted"], 20 if r["kind"] != "disk" else 3)
                        for r in rows)
    return 0 if good and len(rows) == len(kinds) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    sys.exit(main())
