"""Runs one group of processes and reads the lines that its drivers print."""

import json
import os
import resource
import select
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass


class RunFailed(Exception):
    """A group did not finish, or one of its ranks got a wrong result."""


@dataclass
class Run:
    lines: list  # the JSON objects that the drivers printed
    seconds: float  # from the start of the first process to the end of the last
    other: float  # CPUs that were busy with something else meanwhile
    started_ns: int  # on the clock that the drivers read


def _busy_seconds():
    """CPU seconds spent in user and system mode so far, by everything on this machine."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = file.readline().split()
    return sum(int(value) for value in fields[1:4]) / os.sysconf("SC_CLK_TCK")


def _children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end(processes):
    """Ends these processes' groups: politely first, since launchers clean up after workers."""
    for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            os.killpg(process.pid, number)  # each leads a session of its own
        for process in alive:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                pass


def _wait(processes, deadline):
    """Until all have ended well; raises RunFailed as soon as one has not.

    Sleeps in the kernel: a parent that polls would take time from the ranks it measures.
    """
    poll = select.poll()
    ends = {os.pidfd_open(process.pid): process for process in processes}
    try:
        for end in ends:
            poll.register(end, select.POLLIN)
        pending = len(ends)
        while pending:
            ready = poll.poll(max(deadline - time.monotonic(), 0) * 1000)
            if not ready:
                raise RunFailed("ran past its deadline")
            for end, _ in ready:
                poll.unregister(end)
                pending -= 1
                if ends[end].wait() != 0:
                    raise RunFailed(f"exit code {ends[end].returncode}")
    finally:
        for end in ends:
            os.close(end)


def run_group(make_commands, timeout=120.0):
    """Runs the commands that make_commands(scratch folder) gives, all at once."""
    with tempfile.TemporaryDirectory(prefix="pliant-peers-") as scratch:
        out_path, error_path = f"{scratch}/out", f"{scratch}/error"
        store = f"{scratch}/store"
        os.mkdir(store)
        processes = []
        busy, children = _busy_seconds(), _children_seconds()
        with open(out_path, "ab") as out, open(error_path, "ab") as error:
            started_ns = time.monotonic_ns()
            try:
                for command in make_commands(store):
                    processes.append(subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                        start_new_session=True))
                _wait(processes, time.monotonic() + timeout)
            except (RunFailed, OSError) as failure:
                with open(error_path, encoding="utf-8", errors="replace") as file:
                    said = [line.strip() for line in file if any(map(str.isalnum, line))]
                # The first lines: what launchers add to them comes after.
                raise RunFailed(f"{failure}: {' | '.join(said[:3])}"[:400]) from None
            finally:
                _end(processes)
        seconds = (time.monotonic_ns() - started_ns) / 1e9
        other = (_busy_seconds() - busy - (_children_seconds() - children)) / seconds
        with open(out_path, encoding="utf-8", errors="replace") as file:
            lines = [json.loads(line) for line in file if line.startswith("{")]
        return Run(lines, seconds, max(other, 0.0), started_ns)


@dataclass
class Sample:
    """One round of one contender at one size: several batches, each of several calls."""

    median: float  # seconds a call, of the median batch
    minimum: float  # of the best batch
    steal: float  # CPUs that the hypervisor withheld during the batches
    other: float  # CPUs that other programs used during the run
    calls: int


def samples(run, key):
    """Groups the batches of a run by key(line)."""
    batches = defaultdict(list)
    for line in run.lines:
        batches[key(line)].append(line)
    return {name: _sample(group, run.other) for name, group in batches.items()}


def _sample(group, other):
    each = [line["seconds"] / line["calls"] for line in group]
    total = sum(line["seconds"] for line in group)
    return Sample(median=statistics.median(each), minimum=min(each),
                  steal=sum(line["stolen"] for line in group) / total, other=other,
                  calls=sum(line["calls"] for line in group))


@dataclass
class Figure:
    """What a contender needs for one call, over all rounds."""

    median: float  # over the rounds, of the round's median; seconds
    minimum: float
    low: float  # quartiles of the rounds' medians
    high: float
    rounds: int
    dropped: int  # rounds disturbed by steal or other programs
    noisy: bool  # all rounds were disturbed, and the least bad one stands

    def as_json(self):
        micro = {f"{name}_us": round(getattr(self, name) * 1e6, 3)
                 for name in ("median", "minimum", "low", "high")}
        micro["min_us"] = micro.pop("minimum_us")
        return {**micro, "rounds": self.rounds, "dropped": self.dropped, "noisy": self.noisy}


@dataclass(frozen=True)
class Limits:
    """The most disturbance that a sample may have had, in CPUs."""

    steal: float
    other: float


def add_limit_options(parser):
    parser.add_argument("--steal-max", type=float, default=0.3, metavar="CPUS",
                        help="drop a round from which the hypervisor withheld more than this")
    parser.add_argument("--other-max", type=float, default=0.3, metavar="CPUS",
                        help="drop a round beside which other programs used more than this")


def limits(options):
    return Limits(options.steal_max, options.other_max)


def figure(rounds, bounds):
    """The figure of a list of Samples, or None of an empty one."""
    if not rounds:
        return None
    kept = [sample for sample in rounds
            if sample.steal <= bounds.steal and sample.other <= bounds.other]
    dropped, noisy = len(rounds) - len(kept), not kept
    if noisy:
        kept = [min(rounds, key=lambda sample: sample.steal + sample.other)]
    medians = sorted(sample.median for sample in kept)
    low = high = medians[0]
    if len(medians) > 1:
        low, _, high = statistics.quantiles(medians, n=4, method="inclusive")
    return Figure(median=statistics.median(medians),
                  minimum=min(sample.minimum for sample in kept), low=low, high=high,
                  rounds=len(kept), dropped=dropped, noisy=noisy)
