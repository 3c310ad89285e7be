#!/usr/bin/env python3
"""What elasticity costs: a killed worker, a stopped one, a change of size, and nothing at all.

    bench/elastic/measure.py kills  [--count 1000] [--np 8] [--gradient 100M] [--private 2G]
                                    [--victims 4] [--output kills.json]
    bench/elastic/measure.py stops  [--count 20]   heartbeat of 200 ms
    bench/elastic/measure.py resize [--count 20]   2 -> 4 and 4 -> 2, with and without state
    bench/elastic/measure.py steady [--rounds 15]  elastic steps, those of a job of fixed size, and
                                                   the same operations without steps

Times come from the workers' own records (CLOCK_MONOTONIC, one machine). Every run is judged: each
commit is compared with a serial replay of the history. Measure on an idle machine.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "process"))

import elastic_job  # noqa: E402

KILLS_A_JOB = 100  # then the next one begins, so that the judge and the folder stay small
CALM_STEPS = 2     # of every member between two kills
SLOTS = 256        # a place that failed rests, so replacements get fresh ones
PROGRESS_S = 10


class Job(elastic_job.Job):
    """A job without a limit of time, judged when it has ended."""

    def __init__(self, pliant, members, run_options, worker_options):
        super().__init__(pliant, members, ["--quiet", *run_options], worker_options, patience=None)

    def __exit__(self, *trouble):
        self.end()
        found = self.judge()
        self.remove()
        if found and not trouble[0]:
            raise SystemExit(found)


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


class Kills:
    """Kills members of one job at random instants, again and again; the next kill comes when the
    group is whole again and has gone on undisturbed for a few steps."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.rows = []
        self.calms = []
        self.told = time.monotonic()

    def run(self):
        while len(self.rows) < self.arguments.count:
            self.run_job(min(KILLS_A_JOB, self.arguments.count - len(self.rows)))
            self.save(self.summary())
        return self.summary()

    def run_job(self, count):
        np = self.arguments.np
        with Job(self.arguments.pliant, np, ["-H", f"localhost:{SLOTS}", "--max", str(np)],
                 ["--gradient", self.arguments.gradient, "--private",
                  self.arguments.private]) as job:
            dead = set()
            for _ in range(count):
                members, calm = self.await_whole(job, dead)
                self.kill_some(job, members, calm, dead)
                self.report()

    def await_whole(self, job, dead):
        """The pids of a whole group that has committed a few steps, and the time of one."""
        def whole():
            pids = [int(name) for name in os.listdir(job.folder) if int(name) not in dead]
            tails = elastic_job.tail_records(job.folder, CALM_STEPS + 1, pids)
            last = [made[-1] for made in tails.values()]
            if len(last) != self.arguments.np:
                return None
            steady = all(len(made) == CALM_STEPS + 1 and made[0]["epoch"] == last[0]["epoch"] and
                         made[0]["members"] == self.arguments.np for made in tails.values())
            return tails if steady else None
        tails = job.await_that(whole)
        steps = [record["committed"] - record["begun"] for made in tails.values()
                 for record in made[1:]]
        return list(tails), statistics.median(steps)

    def choose(self, job, members):
        """One at random; of several, rank 0 is one."""
        if self.arguments.victims == 1:
            return [random.choice(members)]
        ranks = [member["pid"] for member in job.status()["members"]]
        return [ranks[0], *random.sample(ranks[1:], self.arguments.victims - 1)]

    def kill_some(self, job, members, calm, dead):
        victims = self.choose(job, members)
        survivors = [pid for pid in members if pid not in victims]
        time.sleep(random.random() * self.arguments.spread)
        epoch = max(made["epoch"] for made in
                    elastic_job.last_records(job.folder, members).values())
        since = time.monotonic_ns()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        dead.update(victims)
        job.await_that(lambda: all(
            made["epoch"] > epoch
            for made in elastic_job.last_records(job.folder, survivors).values()))
        records = elastic_job.tail_records(job.folder, 50, survivors)
        self.calms.append(calm)
        self.rows.append(recovery(records, epoch, since, calm))
        # They are replaced in fresh places, without a rest.
        job.resize(self.arguments.np)

    def report(self):
        if time.monotonic() - self.told < PROGRESS_S:
            return
        self.told = time.monotonic()
        found = self.summary()
        total = found["ms"]["total"]
        print(f"{len(self.rows)} of {self.arguments.count} kills, total p50 {total['p50']} ms, "
              f"p99 {total['p99']} ms", file=sys.stderr)
        self.save(found)

    def summary(self):
        counted = sum(row["members"] == self.arguments.np for row in self.rows)
        return {"kills": len(self.rows), "np": self.arguments.np,
                "victims": self.arguments.victims, "gradient": self.arguments.gradient,
                "private": self.arguments.private,
                "undisturbed_step_ms": round(statistics.median(self.calms) / 1e6, 2),
                "ms": summarise(self.rows), "steps_in_which_the_dead_still_counted": counted}

    def save(self, found):
        if not self.arguments.output:
            return
        partial = self.arguments.output + ".new"
        pathlib.Path(partial).write_text(json.dumps({**found, "rows": self.rows}, indent=1) + "\n")
        os.replace(partial, self.arguments.output)


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)([KMG]?)", text).groups()
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def kills(arguments):
    if not 0 < arguments.victims < arguments.np:
        raise SystemExit("--victims: somebody must be left, and somebody must die")
    # A worker has its gradient, and with the others of its host the result.
    needed = arguments.np * (bytes_of(arguments.private) + 2 * bytes_of(arguments.gradient))
    available = int(re.search(r"MemAvailable:\s+(\d+)",
                              pathlib.Path("/proc/meminfo").read_text())[1]) << 10
    if needed > available:
        raise SystemExit(f"this takes {needed >> 20} MiB, and {available >> 20} MiB are available")
    return Kills(arguments).run()


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


# The same loop in an elastic job, in a job of fixed size, and by operations without steps.
STEADY = (("elastic", lambda np: ["--max", str(np)], []), ("static", lambda np: [], []),
          ("bare", lambda np: [], ["--steps-off"]))


def steady(arguments):
    """The machine's pace changes by the second: runs are compared with those beside them."""
    found = {}
    for size in ("1K", "1M", "100M"):
        for np in (2, 4, 8):
            times = {name: [] for name, _, _ in STEADY}
            for turn in range(arguments.rounds):
                for name, run, worker in STEADY[::-1] if turn % 2 else STEADY:
                    done = subprocess.run(
                        [arguments.pliant, "run", "-n", str(np), "--no-prefix", *run(np), "--",
                         arguments.pliant, "chaos-worker", "--gradient", size, "--seconds", "0.3",
                         *worker], capture_output=True, text=True, check=True)
                    times[name].append(statistics.median(map(float, done.stdout.split())))
            row = {f"{name}_us": round(statistics.median(values), 3)
                   for name, values in times.items()}
            for other in ("static", "bare"):
                ratios = [mine / theirs for mine, theirs in zip(times["elastic"], times[other])]
                low, middle, high = statistics.quantiles(ratios, n=4)
                row[f"over_{other}"] = round(middle, 3)
                row[f"over_{other}_quartiles"] = [round(low, 3), round(high, 3)]
            found[f"np {np} {size}"] = row
            print(np, size, row, file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "stops", "resize", "steady"])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--np", type=int, default=8)
    parser.add_argument("--gradient", default="100M")
    parser.add_argument("--private", default="0", help="memory that each worker holds besides")
    parser.add_argument("--spread", type=float, default=0.1,
                        help="seconds over which the instant of a kill is drawn")
    parser.add_argument("--victims", type=int, default=1, help="members killed at once")
    parser.add_argument("--output", default="", help="file for the results of `kills` as they come")
    parser.add_argument("--pliant", default=str(ROOT / "build/release/pliant"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the jobs end
    found = globals()[arguments.what](arguments)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
