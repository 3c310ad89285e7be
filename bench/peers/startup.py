#!/usr/bin/env python3
"""From starting a job of N ranks to its first all-reduce done on all of them, interleaved.

`first collective` ends when the last rank has its result; `whole job` when the launcher has ended.
"""

import argparse
import json
import statistics
import sys

import contenders
import measure
import report

GOAL_MS = 50.0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    contenders.add_program_options(parser)
    return parser.parse_args()


def main():
    options = parse_arguments()
    where = contenders.programs(options)
    chosen = [contenders.pliant("registered"), contenders.OPENMPI[0], contenders.GLOO[0]]
    absent, first, whole = {}, {}, {}
    for contender in chosen:
        why = where.missing(contender)
        if why:
            absent[contender.name] = why
    for number in range(options.rounds + 1):
        for contender in chosen if number % 2 == 0 else reversed(chosen):
            if contender.name in absent:
                continue
            try:
                run = measure.run_group(lambda scratch, it=contender: contenders.commands(
                    it, where, options.np, ["--startup", "yes"], scratch))
            except measure.RunFailed as failure:
                absent[contender.name] = str(failure)
                continue
            if number == 0:
                continue  # the first of each reads its programs from disk
            done = max(line["done_ns"] for line in run.lines)
            first.setdefault(contender.name, []).append((done - run.started_ns) / 1e6)
            whole.setdefault(contender.name, []).append(run.seconds * 1e3)
    rows = [("contender", "np", "first collective", "least", "", "whole job", "least")]
    found = []
    for name, times in first.items():
        found.append({"contender": name, "np": options.np, "rounds": len(times),
                      "first_collective_ms": statistics.median(times),
                      "first_collective_min_ms": min(times),
                      "whole_job_ms": statistics.median(whole[name]),
                      "whole_job_min_ms": min(whole[name])})
        rows.append((name, str(options.np), f"{statistics.median(times):.1f} ms",
                     f"{min(times):.1f} ms", "", f"{statistics.median(whole[name]):.1f} ms",
                     f"{min(whole[name]):.1f} ms"))
    print(report.columns(rows))
    print(f"goal: the first collective of Pliant's 4 ranks within {GOAL_MS:g} ms")
    for name, why in absent.items():
        print(f"absent: {name}: {why}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"startup": found, "absent": absent}, file, indent=1)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
