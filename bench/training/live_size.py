#!/usr/bin/env python3
"""Does the policy best_size find the best number of members, live on this machine?

    bench/training/live_size.py [--build DIR] [--steps N] [--max N] [--json]

Two jobs of the same worker program: one computes (each sample costs time of a processor), one
communicates (each step sums up many bytes). First every size runs by itself, which is the truth of
this machine at this hour; then the policy starts with one member and looks for itself. Regret is
what the size that it settled on lacks of the best one's throughput.
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "process"))

JOBS = {
    "compute": ["--batch", 64, "--sample-seconds", 0.0005, "--bytes", 4096],
    "communication": ["--batch", 64, "--sample-seconds", 0.00002, "--bytes", 32 << 20],
}


def throughput(history):
    """The median, without the first steps, whose caches are cold."""
    known = [line["throughput"] for line in history[5:] if line["throughput"] > 0]
    return statistics.median(known)


def run(adaptation_job, members, run_options, worker_options):
    with adaptation_job.Job(members, run_options, ["--noise-every", 0, *worker_options],
                            patience=600) as job:
        if job.end(None) != 0:
            raise SystemExit(job.text())
        return job.by_step(), job.decisions()


def measure(adaptation_job, kind, arguments):
    options = JOBS[kind]
    by_size = {}
    for size in range(1, arguments.max + 1):
        history, _ = run(adaptation_job, size, [], [*options, "--steps", arguments.size_steps])
        by_size[size] = throughput(history)
        print(f"  {kind}, {size} members: {by_size[size]:8.0f} samples/s", file=sys.stderr)
    history, said = run(
        adaptation_job, 1, ["--min", "1", "--max", str(arguments.max)],
        [*options, "--steps", arguments.steps, "--policy",
         f"best_size:min=1,max={arguments.max},resize=0.1"])
    last = history[len(history) * 3 // 4:]
    chosen = int(collections.Counter(line["members"] for line in last).most_common(1)[0][0])
    best = max(by_size, key=by_size.get)
    return {"job": kind, "by_size": by_size, "chosen": chosen, "best": best,
            "regret": 1 - by_size[chosen] / by_size[best], "said": said}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--steps", type=int, default=800, help="of the job with the policy")
    parser.add_argument("--size-steps", type=int, default=80, help="of the job of each size")
    parser.add_argument("--max", type=int, default=8, help="members")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["PLIANT_BUILD_DIR"] = arguments.build
    import adaptation_job  # noqa: E402: it needs the build folder
    results = [measure(adaptation_job, kind, arguments) for kind in JOBS]
    if arguments.json:
        return print(json.dumps(results, indent=1))
    for result in results:
        sizes = ", ".join(f"{size}: {rate:.0f}" for size, rate in result["by_size"].items())
        print(f"{result['job']}-bound: samples/s by members {sizes}")
        print(f"  best {result['best']}, chosen {result['chosen']}, regret {result['regret']:.1%}")
        for line in result["said"]:
            if "best_size" in line:
                print("  " + line)
    return None


if __name__ == "__main__":
    main()
