#!/usr/bin/env python3
"""DistributedDataParallel with backend "pliant" and with "gloo": what a training step costs.

    bench/python/ddp.py [--np 4 8] [--rounds 5] [--steps 4] [--compute 0 200] [--json out.json]

The gradients are those of ResNet-50 (25.5 million of float32 in 161 tensors). Both groups live in
the same processes and take turns; so all see the same machine. `--compute` is how many milliseconds
a backward pass of each worker works besides writing its gradients: with 0 nothing can hide the
exchange. The ways:

    none     under no_sync(): DDP does nothing
    nothing  DDP copies gradients to its buckets and back, but exchanges none
    gloo     backend "gloo"
    pliant   backend "pliant"
    hook     pliant.torch.comm_hook

Exposed communication is a step less one that exchanges nothing. DDP's own copies, which it makes
with every backend, are in the difference to no_sync(). Measure on an idle machine.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", ROOT / "build" / "release")).resolve()
WAYS = ("none", "nothing", "gloo", "pliant", "hook")


def resnet50_shapes():
    """The parameters of ResNet-50, in the order of the forward pass."""
    def convolution(inputs, outputs, kernel):
        return [(outputs, inputs, kernel, kernel), (outputs,), (outputs,)]

    shapes = convolution(3, 64, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(inputs, width, 1) + convolution(width, width, 3)
            shapes += convolution(width, 4 * width, 1)
            if block == 0:
                shapes += convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return shapes + [(1000, 2048), (1000,)]


# ---- In the workers ----------------------------------------------------------------------------

def work(arguments):
    """One worker: rank 0 writes the rows down."""
    import torch
    import torch.distributed as dist

    import pliant.torch

    torch.set_num_threads(1)
    dist.init_process_group("pliant")
    groups = {"pliant": None, "gloo": dist.new_group(backend="gloo")}
    groups["hook"] = groups["nothing"] = groups["gloo"]
    rows = []
    for milliseconds in arguments.compute:
        chain = make_chain(torch, milliseconds)
        parallels = {}
        for way in WAYS[1:]:
            parallels[way] = torch.nn.parallel.DistributedDataParallel(
                chain, process_group=groups[way], gradient_as_bucket_view=arguments.view)
        parallels["hook"].register_comm_hook(None, pliant.torch.comm_hook)
        parallels["nothing"].register_comm_hook(None, exchange_nothing)
        for number in range(arguments.rounds + 1):
            # Who follows whom changes, so that no one has the better place.
            for way in WAYS[number % len(WAYS):] + WAYS[:number % len(WAYS)]:
                dist.barrier()
                seconds = measure(torch, parallels, way, arguments.steps)
                if number:  # the first round warms up
                    rows.append({"way": way, "compute_ms": milliseconds, "round": number,
                                 "step_s": seconds})
        parallels.clear()
    if dist.get_rank() == 0:
        pathlib.Path(arguments.rows).write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def exchange_nothing(_, bucket):
    """A hook that leaves a bucket as it is."""
    import torch
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def make_chain(torch, milliseconds):
    """A model whose layers write gradients and work, each for its share of the time."""
    shapes = resnet50_shapes()

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(context, signal, weight, products, matrix):
            context.save_for_backward(weight, matrix)
            context.products = products
            return signal + 0

        @staticmethod
        def backward(context, gradient):
            weight, matrix = context.saved_tensors
            for _ in range(context.products):
                matrix @ matrix
            return gradient, torch.full_like(weight, 1e-3), None, None

    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ParameterList(
                torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)
            self.matrix = torch.full((128, 128), 1e-3)
            self.products = self.products_of(milliseconds)

        def products_of(self, milliseconds):
            """How many products a layer makes, for so many milliseconds in all layers."""
            if not milliseconds:
                return 0
            for _ in range(200):
                self.matrix @ self.matrix
            begun = time.perf_counter()
            for _ in range(400):
                self.matrix @ self.matrix
            each = (time.perf_counter() - begun) / 400
            products = torch.tensor([milliseconds / 1e3 / each / len(shapes)])
            torch.distributed.broadcast(products, 0)  # the same work for everybody
            return max(1, round(products.item()))

        def forward(self, signal):
            for weight in self.layers:
                signal = Layer.apply(signal, weight, self.products, self.matrix)
            return signal

    return Chain()


def measure(torch, parallels, way, steps):
    """The mean of some steps in a row, forward and backward."""
    parallel = parallels["gloo" if way == "none" else way]
    signal = torch.ones(1, requires_grad=True)
    begun = time.perf_counter()
    for _ in range(steps):
        for parameter in parallel.parameters():
            parameter.grad = None
        if way == "none":
            with parallel.no_sync():
                parallel(signal).sum().backward()
        else:
            parallel(signal).sum().backward()
    return (time.perf_counter() - begun) / steps


# ---- The launcher ------------------------------------------------------------------------------

def run(np, arguments):
    """One job; returns its rows."""
    with tempfile.TemporaryDirectory(prefix="pliant-ddp-") as folder:
        rows = os.path.join(folder, "rows.json")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                       "PLIANT_LIBRARY": str(BUILD / "libpliant.so"),
                       "PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run(
            [str(BUILD / "pliant"), "run", "-n", str(np), "--", sys.executable, __file__,
             "--rows", rows, "--rounds", str(arguments.rounds), "--steps", str(arguments.steps),
             "--compute", *map(str, arguments.compute), *(["--view"] if arguments.view else [])],
            env=environment, capture_output=True, text=True, check=False,
            timeout=arguments.timeout)
        if done.returncode:
            raise SystemExit(f"np={np}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return [{"np": np, **row} for row in json.loads(pathlib.Path(rows).read_text())]


def summary(rows):
    """For each setting and way: the step and the exposed communication, in ms."""
    found = []
    for np, compute in sorted({(row["np"], row["compute_ms"]) for row in rows}):
        of = {way: {row["round"]: row["step_s"] * 1e3 for row in rows
                    if (row["np"], row["compute_ms"], row["way"]) == (np, compute, way)}
              for way in WAYS}
        for way in WAYS:
            exposed = sorted(of[way][n] - of["nothing"][n] for n in of[way])
            found.append({"np": np, "compute_ms": compute, "way": way,
                          "step_ms": statistics.median(of[way].values()),
                          "over_no_sync_ms": statistics.median(of[way][n] - of["none"][n]
                                                               for n in of[way]),
                          "exposed_ms": statistics.median(exposed),
                          "exposed_min_ms": exposed[0], "exposed_max_ms": exposed[-1]})
    return found


def show(found):
    print(f"{'np':>3} {'compute':>8} {'way':>8} {'step ms':>8} {'over no_sync':>13} "
          f"{'exposed ms':>11} {'least..most':>15} {'gloo / this':>12}")
    gloo = {(row["np"], row["compute_ms"]): row["exposed_ms"] for row in found
            if row["way"] == "gloo"}
    for row in found:
        ratio = exposed = spread = ""
        if row["way"] not in ("none", "nothing"):
            exposed = f"{row['exposed_ms']:.1f}"
            spread = f"{row['exposed_min_ms']:.1f}..{row['exposed_max_ms']:.1f}"
            if row["exposed_ms"] > 0:
                ratio = f"{gloo[row['np'], row['compute_ms']] / row['exposed_ms']:.2f}"
        print(f"{row['np']:>3} {row['compute_ms']:>8} {row['way']:>8} {row['step_ms']:>8.1f} "
              f"{row['over_no_sync_ms']:>13.1f} {exposed:>11} {spread:>15} {ratio:>12}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--compute", type=int, nargs="+", default=[0, 200])
    parser.add_argument("--view", action="store_true", help="DDP's gradient_as_bucket_view")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--json")
    parser.add_argument("--rows", help=argparse.SUPPRESS)  # in workers: where rank 0 writes
    arguments = parser.parse_args()
    if arguments.rows:
        work(arguments)
        return
    rows = [row for np in arguments.np for row in run(np, arguments)]
    found = summary(rows)
    show(found)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"summary": found, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
