#!/usr/bin/env python3
"""The same float32-sum all-reduce by Pliant, Open MPI and Gloo, and the memory limit, interleaved.

Prints a table for each row and, with --json, everything that was measured. See docs/BENCHMARKS.md.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict

import contenders
import goals
import measure
import report

ROWS = ("registered", "shared", "plain", "tcp")
MEMORY_SIZE = 100 << 20  # the buffer size at which the streaming bandwidth of memory is read
TUNED_MARGIN = 1.5  # a tuned variant this much slower than the best in round one is not run again


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = units.get(text[-1:].upper(), 1)
    size = int(text[:-1] if unit > 1 else text) * unit
    if size <= 0 or size % 4:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive multiple of 4 bytes")
    return size


def listed(parse):
    return lambda text: [parse(item) for item in text.split(",") if item]


def parse_row(text):
    if text not in ROWS:
        raise argparse.ArgumentTypeError(f"unknown row '{text}'; one of {', '.join(ROWS)}")
    return text


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=listed(int), default=[2, 4, 8], help="2,4,8")
    parser.add_argument("--sizes", type=listed(parse_size), default=list(goals.SIZES),
                        help="1K,64K,1M,16M,100M")
    parser.add_argument("--rows", type=listed(parse_row), default=list(ROWS),
                        help="registered,shared,plain,tcp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3, help="batches of a round and size")
    parser.add_argument("--batch-ms", type=int, default=60)
    parser.add_argument("--touch", action="store_true",
                        help="each rank writes its input before each call and reads its result")
    parser.add_argument("--contenders", type=listed(str), metavar="NAME,...",
                        help="only these (a name or the beginning of one, such as 'gloo')")
    parser.add_argument("--tuned", action="store_true",
                        help="also Open MPI with each of its algorithms forced")
    parser.add_argument("--goals", choices=sorted(goals.TABLES),
                        default="sixteen-cores" if (os.cpu_count() or 1) >= 8 else "two-cores")
    measure.add_limit_options(parser)
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds, of one run")
    parser.add_argument("--json", metavar="FILE", help="write all results there; - for stdout")
    parser.add_argument("--quick", action="store_true",
                        help="a small table in about a minute: np 2,4, three sizes, two rounds")
    contenders.add_program_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.np, options.rounds, options.batch_ms = [2, 4], 2, 30
        options.sizes = [goals.KIB, goals.MIB, 16 * goals.MIB]
    return options


def choose(options):
    """Everyone who takes part, in the order of the first round."""
    chosen = [contenders.MEMORY]
    for row in options.rows:
        chosen += [contenders.pliant(row), *contenders.peers_of(row)]
    if options.tuned:
        chosen += contenders.tuned_openmpi()
    wanted = options.contenders
    kept = []
    for contender in chosen:
        named = not wanted or any(contender.name.startswith(name) for name in wanted)
        if named and contender not in kept:
            kept.append(contender)
    return kept


class Measurement:
    """All rounds of all contenders."""

    def __init__(self, options, where):
        self.options = options
        self.where = where
        self.absent = {}  # name -> why
        self.failed = {}  # name -> how; such a contender is not run again
        self.samples = defaultdict(list)  # (name, np, bytes or (bytes, kernel)) -> [Sample]
        self.traffic = {}  # (np, bytes, kernel) -> bytes of one pass
        self.other = []  # CPUs busy with something else, one for each run
        self.left_out = set()  # (name, np, bytes) of tuned variants that are too slow to matter
        self.runs = 0

    def run(self, chosen):
        for contender in chosen:
            why = self.where.missing(contender)
            if why:
                self.absent[contender.name] = why
        tuned = {contender.name for contender in contenders.tuned_openmpi()}
        for number in range(self.options.rounds):
            for np in self.options.np:
                for contender in chosen if number % 2 == 0 else reversed(chosen):
                    self._run_one(contender, np, number)
            if number == 0:
                self._leave_out_slow(tuned)

    def _sizes(self, contender, np):
        sizes = self.options.sizes
        if contender.kind == "memory":
            return sorted({size for size in sizes if size >= 1 << 20} | {MEMORY_SIZE})
        return [size for size in sizes if (contender.name, np, size) not in self.left_out]

    def _run_one(self, contender, np, number):
        sizes = self._sizes(contender, np)
        if contender.name in self.absent or contender.name in self.failed or not sizes:
            return
        arguments = ["--sizes", ",".join(map(str, sizes)), "--batches", str(self.options.batches),
                     "--batch-ms", str(self.options.batch_ms),
                     "--touch", "yes" if self.options.touch else "no"]
        try:
            run = measure.run_group(
                lambda scratch: contenders.commands(contender, self.where, np, arguments, scratch),
                self.options.timeout)
        except measure.RunFailed as failure:
            self.failed[contender.name] = f"np={np}: {failure}"
            print(f"{contender.name} failed: {failure}", file=sys.stderr)
            return
        self.runs += 1
        self.other.append(run.other)
        for line in run.lines:
            if "kernel" in line:
                self.traffic[np, line["bytes"], line["kernel"]] = line["traffic"]
        for size, batches in measure.samples(run, _size_key).items():
            self.samples[contender.name, np, size] += batches
        print(f"round {number + 1}/{self.options.rounds} np={np} {contender.name}: "
              f"{run.seconds:.1f} s", file=sys.stderr)

    def _leave_out_slow(self, tuned):
        for np in self.options.np:
            for size in self.options.sizes:
                for state in (measure.TOGETHER, measure.APART):
                    took = {name: figure.median for name in tuned
                            if (figure := self.figure(name, np, size, state))}
                    best = min(took.values(), default=0)
                    self.left_out |= {(name, np, size) for name, seconds in took.items()
                                      if seconds > TUNED_MARGIN * best}

    def cores(self):
        return measure.Cores([sample for batches in self.samples.values() for sample in batches])

    def state(self, names, np, size):
        """The state of the cores in which these contenders are compared; None: whatever it was."""
        present = [self.samples[name, np, size] for name in names
                   if self.samples.get((name, np, size))]
        return self.cores().best_state(present)

    def figure(self, name, np, size, state=None):
        batches = self.samples.get((name, np, size), [])
        return measure.figure(self.cores().of(state, batches) if state else batches,
                              measure.limits(self.options))

    def best(self, names, np, size, state=None):
        """(name, Figure) of the fastest of these contenders, or None."""
        found = [(name, self.figure(name, np, size, state)) for name in names]
        return min(((name, figure) for name, figure in found if figure),
                   key=lambda pair: pair[1].median, default=None)

    def bandwidth(self, np, size, state=None):
        """(bytes a second, kernel) of the best streaming kernel over np buffers of this size."""
        found = []
        for (ranks, bytes_, kernel), traffic in self.traffic.items():
            figure = self.figure("memory", np, (size, kernel), state)
            if (ranks, bytes_) == (np, size) and figure:
                found.append((traffic / figure.median, kernel))
        return max(found, default=None)


def _size_key(line):
    return (line["bytes"], line["kernel"]) if "kernel" in line else line["bytes"]


def bytes_to_cross(row, np, size):
    """The least that must cross memory: every input read, every result written."""
    return (np + 1) * size if row == "shared" else 2 * np * size


def cell(measurement, options, row, np, size):
    """One cell of a row's table, as it stands in the JSON; None where Pliant was not measured."""
    names = [contender.name for contender in contenders.peers_of(row)]
    own_names = [contenders.pliant(row).name] + (
        [contenders.pliant("registered").name] if row == "shared" else [])
    state = measurement.state(own_names + names, np, size)
    own = measurement.figure(own_names[0], np, size, state)
    best = measurement.best(names, np, size, state)
    found = {"row": row, "np": np, "bytes": size, "oversubscribed": np > (os.cpu_count() or 1),
             "cores": state, "pliant": own and own.as_json(),
             "peers": {name: figure.as_json() for name in names
                       if (figure := measurement.figure(name, np, size, state))}}
    found["best_peer"] = best and best[0]
    if best and own:
        found["ratio"] = best[1].median / own.median
        found["ratio_of_minima"] = best[1].minimum / own.minimum
    found["elsewhere"] = elsewhere(measurement, own_names[0], names, np, size, state)
    goal = goals.against_peers(options.goals, row, np, size)
    compared = found.get("ratio")
    if row == "shared":
        goal = goals.of_shared_result(np, size)
        private = measurement.figure(own_names[1], np, size, state)
        compared = private.median / own.median if private and own else None
        found["ratio_to_registered"] = compared
    found["goal"] = goal
    found["reached"] = compared >= goal if goal and compared else None
    if row == "registered" and options.tuned:
        found["tuned"] = tuned_cell(measurement, own_names[0], np, size)
    if row != "tcp" and size >= 16 << 20:
        found["memory"] = memory_cell(measurement, row, np, size)
    return found


def elsewhere(measurement, own_name, names, np, size, state):
    """The ratio while the cores were in the other state, if all were measured in it."""
    if not state:
        return None
    other = measure.APART if state == measure.TOGETHER else measure.TOGETHER
    present = [name for name in [own_name, *names] if measurement.samples.get((name, np, size))]
    if not all(measurement.figure(name, np, size, other) for name in present):
        return None
    best = measurement.best(names, np, size, other)
    own = measurement.figure(own_name, np, size, other)
    return {"cores": other, "ratio": best[1].median / own.median} if best and own else None


def tuned_cell(measurement, own_name, np, size):
    names = [contender.name for contender in contenders.OPENMPI + contenders.tuned_openmpi()
             if (contender.name, np, size) not in measurement.left_out]
    state = measurement.state([own_name, *names], np, size)
    best = measurement.best(names, np, size, state)
    own = measurement.figure(own_name, np, size, state)
    if not best or not own:
        return None
    ratio, goal = best[1].median / own.median, goals.against_tuned(np, size)
    return {"best": best[0], "figure": best[1].as_json(), "pliant": own.as_json(), "cores": state,
            "ratio": ratio, "goal": goal, "reached": ratio >= goal if goal else None}


def memory_cell(measurement, row, np, size):
    needed = bytes_to_cross(row, np, size)
    found = {"bytes": needed, "goal": goals.memory_share(row, size)}
    own_name = contenders.pliant(row).name
    for name, at in (("memory", MEMORY_SIZE), ("working_set", size)):
        kernels = [measurement.samples["memory", np, (at, kernel)]
                   for ranks, bytes_, kernel in measurement.traffic if (ranks, bytes_) == (np, at)]
        own_batches = measurement.samples.get((own_name, np, size), [])
        state = measurement.cores().best_state([*kernels, own_batches])
        streamed = measurement.bandwidth(np, at, state)
        own = measurement.figure(own_name, np, size, state)
        if not streamed:
            continue
        found[name] = {"gb_per_second": streamed[0] / 1e9, "kernel": streamed[1], "cores": state,
                       "limit_us": needed / streamed[0] * 1e6}
        if own:
            found[name]["share"] = needed / streamed[0] / own.median
            found[name]["own_us"] = own.median * 1e6
    return found


def machine():
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def main():
    options = parse_arguments()
    measurement = Measurement(options, contenders.programs(options))
    started = time.monotonic()
    measurement.run(choose(options))
    cells = [cell(measurement, options, row, np, size) for row in options.rows
             for np in options.np for size in options.sizes]
    dropped = sum(measure.figure(batches, measure.limits(options)).dropped
                  for batches in measurement.samples.values() if batches)
    summary = {
        "machine": machine(), "rounds": options.rounds, "runs": measurement.runs,
        "seconds": time.monotonic() - started, "goals": options.goals, "touch": options.touch,
        "batches": sum(map(len, measurement.samples.values())), "batches_dropped": dropped,
        "steal_max": options.steal_max, "other_max": options.other_max,
        "absent": measurement.absent, "failed": measurement.failed,
        "apart_ns": measurement.cores().apart_ns,
        "other_cpus": statistics.median(measurement.other) if measurement.other else 0.0,
        "all": [{"contender": name, "np": np, "bytes": size,
                 **measurement.figure(name, np, size).as_json()}
                for (name, np, size), batches in measurement.samples.items()
                if batches and isinstance(size, int)],
        "cells": cells,
    }
    print(report.render(summary, options.rows),
          file=sys.stderr if options.json == "-" else sys.stdout)
    if options.json:
        with open(options.json, "w", encoding="utf-8") if options.json != "-" else sys.stdout as to:
            to.write(json.dumps(summary, indent=1) + "\n")
    return 1 if measurement.failed or not measurement.runs else 0


if __name__ == "__main__":
    sys.exit(main())
