#!/usr/bin/env python3
"""How fast a training state changes its layout in memory, against what the machine can copy.

    bench/reshard/measure.py                        GPT-3 XL with AdamW in f32, 8 members: 15.7 GB
    bench/reshard/measure.py --scale 12 --np 4      a twelfth of the layers, 4 members
    bench/reshard/measure.py --keep                 memory of the old layout is kept for the next

Each change is made in turns with memcpy by as many processes, of as many bytes. Prints the median
of each direction: "of copy" compares with memcpy into memory that is there, "of fresh" with memcpy
into memory that the system must find first, as the first change must.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def changes(np):
    """Model, dtype and the two layouts of each measurement."""
    half = np // 2
    yield "gpt3-xl", "f32", f"tp={np}", f"dp=2,tp={half}"
    yield "gpt3-xl", "f32", f"tp={np}", f"tp={half},pp=2"
    yield "gpt3-xl", "f32", f"dp={np},zero=1", f"dp={half},tp=2,zero=1"
    yield ("qwen3-30b-a3b", "bf16", f"dp={np},ep={np},zero=1", f"dp={half},tp=2,ep={half},zero=1")


def measure(arguments, model, dtype, first, second):
    scale = arguments.scale * (arguments.moe_scale if "30b" in model else 1)
    command = [str(arguments.build / "pliant"), "run", "-n", str(arguments.np), "--no-prefix", "--",
               str(arguments.build / "bench/reshard/reshard_driver"), "--model", model, "--dtype",
               dtype, "--scale", str(scale), "--rounds", str(arguments.rounds), first, second]
    if arguments.keep:
        command.append("--keep")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{model} {first} -> {second}: {done.stderr.strip()}", file=sys.stderr)
        return {}
    directions = {}
    for line in done.stdout.splitlines():
        found = json.loads(line)
        directions.setdefault((found["from"], found["to"]), []).append(found)
    return directions


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--np", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=int, default=1, help="so many times fewer layers")
    parser.add_argument("--moe-scale", type=int, default=48,
                        help="the same for the model with experts, besides")
    parser.add_argument("--keep", action="store_true", help="keep the old layout's memory")
    parser.add_argument("--json", type=pathlib.Path, help="write every change here")
    arguments = parser.parse_args()
    everything = []
    print(f"{'model':15} {'change':32} {'GB':>6} {'moved':>6} {'s':>8} {'GB/s':>6} {'of copy':>8} "
          f"{'of fresh':>8}")
    for model, dtype, first, second in changes(arguments.np):
        for (before, after), found in measure(arguments, model, dtype, first, second).items():
            def median(key, found=found):
                return statistics.median(one[key] for one in found)
            print(f"{model:15} {before + ' -> ' + after:32} {median('bytes_total') / 1e9:6.2f} "
                  f"{median('bytes_moved') / 1e9:6.2f} {median('seconds'):8.4f} "
                  f"{median('gb_per_s'):6.2f} {median('ratio'):8.1%} {median('ratio_fresh'):8.1%}",
                  flush=True)
            everything += [{"model": model, **one} for one in found]
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))
    return 0 if everything else 1


if __name__ == "__main__":
    sys.exit(main())
