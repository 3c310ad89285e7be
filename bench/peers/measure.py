"""Runs one group of processes and reads the lines that its drivers print."""

import ctypes
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


def _adopt_orphans():
    """From now on the processes that children of ours leave behind are children of ours."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _reap_orphans(patience=2.0):
    """Waits for daemons that a launcher has left: Open MPI runs the ranks of other hosts by one.
    What they used would otherwise count as that of other programs, and all their batches as
    disturbed."""
    deadline = time.monotonic() + patience
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


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
        _adopt_orphans()
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
                _reap_orphans()
        seconds = (time.monotonic_ns() - started_ns) / 1e9
        other = (_busy_seconds() - busy - (_children_seconds() - children)) / seconds
        with open(out_path, encoding="utf-8", errors="replace") as file:
            lines = [json.loads(line) for line in file if line.startswith("{")]
        return Run(lines, seconds, max(other, 0.0), started_ns)


@dataclass
class Sample:
    """One batch of calls of one contender at one size."""

    seconds: float  # a call
    steal: float  # CPUs that the hypervisor withheld meanwhile
    other: float  # CPUs that other programs used during the run
    core_ns: tuple = ()  # from core to core, before and after; empty: not known


def samples(run, key):
    """The batches of a run, grouped by key(line)."""
    found = defaultdict(list)
    for line in run.lines:
        found[key(line)].append(Sample(
            seconds=line["seconds"] / line["calls"], steal=line["stolen"] / line["seconds"],
            other=run.other, core_ns=tuple(ns for ns in line.get("core_ns", ()) if ns > 0)))
    return found


TOGETHER, APART = "together", "apart"
APART_RATIO = 2.5  # cores so much further from each other than at the best time are apart


class Cores:
    """Tells the batches during which the cores were close from those during which they were not.

    The host of a virtual machine moves its cores apart and together again. What passes between
    processes takes up to four times as long then, so only batches of one state can be compared.
    """

    def __init__(self, everything):
        """`everything`: all samples of a measurement; what counts as close is found in them."""
        nearest = min((ns for sample in everything for ns in sample.core_ns), default=0.0)
        self.apart_ns = APART_RATIO * nearest

    def state(self, sample):
        """TOGETHER, APART, or None if the cores were moved during the batch."""
        found = {APART if ns > self.apart_ns else TOGETHER for ns in sample.core_ns}
        return found.pop() if len(found) == 1 else None if found else TOGETHER

    def of(self, state, batches):
        """The samples of a state; all of them for None."""
        return [sample for sample in batches if state in (None, self.state(sample))]

    def best_state(self, contenders):
        """The state of which there are most samples of whom there are fewest; None if there is no
        state of which there are any of all contenders."""
        least = {state: min((len(self.of(state, batches)) for batches in contenders), default=0)
                 for state in (TOGETHER, APART)}
        best = max(least, key=least.get)
        return best if least[best] else None


@dataclass
class Figure:
    """What a contender needs for one call, over all of its batches."""

    median: float  # over the batches; seconds
    minimum: float
    low: float  # quartiles
    high: float
    batches: int
    dropped: int  # batches disturbed by steal or other programs
    noisy: bool  # all were disturbed, and the least bad one stands

    def as_json(self):
        micro = {f"{name}_us": round(getattr(self, name) * 1e6, 3)
                 for name in ("median", "minimum", "low", "high")}
        micro["min_us"] = micro.pop("minimum_us")
        return {**micro, "batches": self.batches, "dropped": self.dropped, "noisy": self.noisy}


@dataclass(frozen=True)
class Limits:
    """The most disturbance that a sample may have had, in CPUs."""

    steal: float
    other: float


def add_limit_options(parser):
    parser.add_argument("--steal-max", type=float, default=0.3, metavar="CPUS",
                        help="drop a batch from which the hypervisor withheld more than this")
    parser.add_argument("--other-max", type=float, default=0.3, metavar="CPUS",
                        help="drop a batch beside which other programs used more than this")


def limits(options):
    return Limits(options.steal_max, options.other_max)


def figure(batches, bounds):
    """The figure of a list of Samples, or None of an empty one."""
    if not batches:
        return None
    kept = [sample for sample in batches
            if sample.steal <= bounds.steal and sample.other <= bounds.other]
    dropped, noisy = len(batches) - len(kept), not kept
    if noisy:
        kept = [min(batches, key=lambda sample: sample.steal + sample.other)]
    times = sorted(sample.seconds for sample in kept)
    low = high = times[0]
    if len(times) > 1:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return Figure(median=statistics.median(times), minimum=times[0], low=low, high=high,
                  batches=len(kept), dropped=dropped, noisy=noisy)
