#!/usr/bin/env python3
"""What the monitor costs a training step, with and without it in the same run.

    bench/training/monitor_cost.py [--build DIR] [--members N] [--json]

For each number of parameters: the step without and with the monitor, and what the monitor itself
says that it spent on norms and on the rest, as a share of the step. Build with
`cmake --build --preset release --target bench`.
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Parameters, and the seconds that a step computes: a small model, one like ResNet-50, a larger one.
CASES = [(100_000, 0.005), (1_000_000, 0.02), (25_500_000, 0.5)]


def run(build, members, parameters, step_seconds, noise_every):
    done = subprocess.run(
        [f"{build}/pliant", "run", "-n", str(members), "--no-prefix", "--",
         f"{build}/bench/training/monitor_driver", "--parameters", str(parameters),
         "--step-seconds", str(step_seconds), "--noise-every", str(noise_every), "--rounds",
         "5" if step_seconds < 0.1 else "2"],
        capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for parameters, step_seconds in CASES:
        for noise_every in (10, 1):
            row = run(arguments.build, arguments.members, parameters, step_seconds, noise_every)
            row["noise_every"] = noise_every
            row["norms_share"] = row["norms_us"] / 1e3 / row["step_ms"]
            row["signals_share"] = row["signals_us"] / 1e3 / row["step_ms"]
            rows.append(row)
    if arguments.json:
        return print(json.dumps(rows, indent=1))
    print("parameters  every  step ms  monitored ms  norms us (share)    signals us (share)  GB/s")
    for row in rows:
        print(f"{row['parameters']:10}  {row['noise_every']:5}  {row['step_ms']:7.2f}  "
              f"{row['monitored_ms']:12.2f}  {row['norms_us']:8.1f} ({row['norms_share']:6.2%})  "
              f"{row['signals_us']:8.1f} ({row['signals_share']:6.2%})  {row['norm_gbps']:.1f}")
    return None


if __name__ == "__main__":
    main()
