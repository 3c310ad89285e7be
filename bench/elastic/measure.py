#!/usr/bin/env python3
"""What elasticity costs: a killed worker, a stopped one, a change of size, and nothing at all.

    bench/elastic/measure.py kills  [--count 1000] [--np 8] [--gradient 100M] [--private 0]
    bench/elastic/measure.py stops  [--count 20]   heartbeat of 200 ms
    bench/elastic/measure.py resize [--count 20]   2 -> 4 and 4 -> 2, with and without state
    bench/elastic/measure.py steady [--rounds 5]   steps against the same operations without steps

Times come from the workers' own records (CLOCK_MONOTONIC, one machine). Every run is judged: each
commit is compared with a serial replay of the history. Measure on an idle machine.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = struct.Struct("<QIIQQQqqqqQ")
FIELDS = ("step", "epoch", "members", "samples", "sample_sum", "state", "committed", "agree",
          "redo", "transfer", "begun")
PATIENCE_S = 60


class Job:
    """`pliant run` with chaos workers, in a folder of records."""

    def __init__(self, pliant, members, run_options, worker_options):
        self.pliant = pliant
        self.folder = tempfile.mkdtemp(prefix="pliant-measure-")
        command = [pliant, "run", "-n", str(members), "--quiet", *run_options, "--", pliant,
                   "chaos-worker", "--records", self.folder, *worker_options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def records(self):
        found = {}
        for name in os.listdir(self.folder):
            data = pathlib.Path(self.folder, name).read_bytes()
            whole = len(data) // RECORD.size * RECORD.size
            found[int(name)] = [dict(zip(FIELDS, row)) for row in RECORD.iter_unpack(data[:whole])]
        return found

    def newest(self):
        return max((made[-1] for made in self.records().values() if made),
                   key=lambda record: record["step"], default=None)

    def await_step(self, step, members=None):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            newest = self.newest()
            if newest and newest["step"] >= step and members in (None, newest["members"]):
                return newest
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the job ended or hung at {newest}")
            time.sleep(0.002)

    def judge(self):
        judged = subprocess.run([self.pliant, "chaos-check", self.folder], capture_output=True,
                                text=True, check=False)
        if judged.returncode != 0:
            raise SystemExit(judged.stdout)


def flat(records):
    return [record for made in records.values() for record in made]


def calm_step(records, before):
    """The median step, from the end of the one before to its commit."""
    steps = [record["committed"] - record["begun"] for record in flat(records)
             if record["step"] > 2 and record["committed"] < before]
    return statistics.median(steps)


def quantiles(values):
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return {"n": len(ordered), "p50": round(at(0.5), 2), "p99": round(at(0.99), 2),
            "max": round(ordered[-1], 2)}


def recovery(records, epoch, since, calm):
    """The parts of the way from an event to the first commit of a later view, in ms."""
    first = min((record for record in flat(records) if record["epoch"] > epoch),
                key=lambda record: record["committed"])
    detected = first["committed"] - first["redo"] - first["agree"] - first["transfer"]
    return {"total": (first["committed"] - since - calm) / 1e6, "detect": (detected - since) / 1e6,
            "agree": first["agree"] / 1e6, "redo": first["redo"] / 1e6,
            "members": first["members"]}


def summarise(rows):
    return {part: quantiles([row[part] for row in rows])
            for part in ("total", "detect", "agree", "redo")}


def kills(arguments):
    """One kill a job at full size, at a random instant; the next job begins anew."""
    worker = ["--gradient", arguments.gradient, "--private", arguments.private]
    rows = []
    calms = []
    for index in range(arguments.count):
        with Job(arguments.pliant, arguments.np, ["--max", str(arguments.np)], worker) as job:
            newest = job.await_step(4, arguments.np)
            time.sleep(random.random() * arguments.spread)
            victim = random.choice([pid for pid, made in job.records().items() if made])
            newest = job.newest()
            since = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
            job.await_step(newest["step"] + 2, None)
            deadline = time.monotonic() + PATIENCE_S
            while all(r["epoch"] <= newest["epoch"] for r in flat(job.records())):
                if time.monotonic() > deadline:
                    raise SystemExit("no new view")
                time.sleep(0.002)
            records = job.records()
            job.judge()
            calms.append(calm_step(records, since))
            rows.append(recovery(records, newest["epoch"], since, calms[-1]))
        if sys.stderr.isatty() or (index + 1) % 50 == 0:
            print(f"{index + 1} of {arguments.count} kills", file=sys.stderr)
    counted = sum(row["members"] == arguments.np for row in rows)
    return {"kills": len(rows), "np": arguments.np, "gradient": arguments.gradient,
            "private": arguments.private, "undisturbed_step_ms": round(
                statistics.median(calms) / 1e6, 2), "ms": summarise(rows),
            "steps_in_which_the_dead_still_counted": counted}


def stops(arguments):
    rows = []
    for _ in range(arguments.count):
        with Job(arguments.pliant, 4, ["--max", "4", "--heartbeat", "0.2"],
                 ["--gradient", "1M"]) as job:
            job.await_step(20, 4)
            victim = random.choice([pid for pid, made in job.records().items() if made])
            newest = job.newest()
            since = time.monotonic_ns()
            os.kill(victim, signal.SIGSTOP)
            job.await_step(newest["step"] + 20, 3)
            records = job.records()
            os.kill(victim, signal.SIGCONT)
            rows.append(recovery(records, newest["epoch"], since, calm_step(records, since)))
            job.judge()
    return {"stops": len(rows), "heartbeat_ms": 200, "ms": summarise(rows)}


def resize(arguments):
    """The longest gap between two commits of an old member around the change."""
    found = {}
    for state in ("64", "100M"):
        up, down = [], []
        for _ in range(arguments.count):
            schedule = "2@0,4@200,2@600"
            with Job(arguments.pliant, 2, ["--max", "4", "--schedule", schedule],
                     ["--state", state, "--gradient", "64K", "--compute-ms", "1"]) as job:
                job.await_step(650, 2)
                records = job.records()
                job.judge()
            oldest = max(records.values(), key=len)
            for before, after in zip(oldest, oldest[1:]):
                gap = (after["committed"] - before["committed"]) / 1e6
                # Joined: the first step of the larger group; the view may have come a step earlier.
                if before["members"] == 2 and after["members"] == 4:
                    up.append(gap)
                if before["members"] == 4 and after["members"] == 2:
                    down.append(gap)
        found[f"state {state}"] = {"2 -> 4, pause ms": quantiles(up),
                                   "4 -> 2, pause ms": quantiles(down)}
    return found


def steady(arguments):
    found = {}
    for size in ("1K", "1M", "100M"):
        for np in (2, 4, 8):
            times = {"steps": [], "bare": []}
            for _ in range(arguments.rounds):
                for name, run, worker in (("steps", ["--max", str(np)], []),
                                          ("bare", [], ["--steps-off"])):
                    done = subprocess.run(
                        [arguments.pliant, "run", "-n", str(np), "--no-prefix", *run, "--",
                         arguments.pliant, "chaos-worker", "--gradient", size, "--seconds", "1",
                         *worker], capture_output=True, text=True, check=True)
                    times[name] += [float(line) for line in done.stdout.split()]
            middle = {name: statistics.median(values) for name, values in times.items()}
            low = {name: min(values) for name, values in times.items()}
            found[f"np {np} {size}"] = {
                "steps_us": round(middle["steps"], 2), "bare_us": round(middle["bare"], 2),
                "ratio": round(middle["steps"] / middle["bare"], 3),
                "ratio_of_minima": round(low["steps"] / low["bare"], 3)}
            print(np, size, found[f"np {np} {size}"], file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "stops", "resize", "steady"])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--np", type=int, default=8)
    parser.add_argument("--gradient", default="100M")
    parser.add_argument("--private", default="0", help="memory that each worker holds besides")
    parser.add_argument("--spread", type=float, default=0.1,
                        help="seconds over which the instant of a kill is drawn")
    parser.add_argument("--pliant", default=str(ROOT / "build/release/pliant"))
    arguments = parser.parse_args()
    found = globals()[arguments.what](arguments)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
