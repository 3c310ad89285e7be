#!/usr/bin/env python3
"""What a call of a collective costs from Python: a session of one rank, so that nothing is moved.

    bench/python/call.py [--calls 20000] [--rounds 7] [--json out.json]

Microseconds a call, the median of the rounds and the best. `core` is the C function by ctypes with
arguments that are ready; the rest is what this package adds.
"""

import argparse
import array
import ctypes
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", ROOT / "build" / "release")).resolve()
os.environ.setdefault("PLIANT_LIBRARY", str(BUILD / "libpliant.so"))
sys.path.insert(0, str(ROOT / "python"))

import pliant  # noqa: E402


def cases(session):
    """What is called, by name."""
    numbers = array.array("f", [1, 2, 3, 4])
    address = numbers.buffer_info()[0]
    core = session._library.all_reduce

    def call_core(handle=ctypes.c_void_p(session._handle)):
        core(handle, None, b"core", address, address, 4, 11, 0)

    found = {"core: all_reduce": call_core,
             "array: all_reduce": lambda: session.all_reduce("a", numbers),
             "array: all_reduce_async, wait": lambda: session.all_reduce_async("b", numbers).wait(),
             "array: broadcast": lambda: session.broadcast("c", numbers),
             "array: all_gather": lambda: session.all_gather("d", numbers, numbers[:]),
             "barrier": session.barrier}
    try:
        import torch
        import torch.distributed as dist

        import pliant.torch
    except ImportError:
        return found
    tensor = torch.ones(4)
    registered = pliant.torch.allocate(4)
    found["tensor: all_reduce"] = lambda: session.all_reduce("e", tensor)
    found["registered tensor: all_reduce"] = lambda: session.all_reduce("f", registered)
    store = dist.HashStore() if hasattr(dist, "HashStore") else None
    dist.init_process_group("pliant", store=store, rank=0, world_size=1)
    found["torch.distributed: all_reduce"] = lambda: dist.all_reduce(tensor)
    found["torch.distributed: all_reduce, async_op"] = (
        lambda: dist.all_reduce(tensor, async_op=True).wait())
    found["torch.distributed: broadcast"] = lambda: dist.broadcast(tensor, 0)
    found["torch.distributed: barrier"] = dist.barrier
    return found


def measure(call, calls, rounds):
    """Microseconds a call, of each round."""
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begun) / calls * 1e6)
    return times[1:]  # the first warms up


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    found = {}
    with pliant.Session(coordinator="") as session:
        for name, call in cases(session).items():
            times = measure(call, arguments.calls, arguments.rounds)
            found[name] = {"median_us": statistics.median(times), "min_us": min(times)}
            print(f"{name:42} {found[name]['median_us']:7.2f} us  best {min(times):7.2f}",
                  flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
