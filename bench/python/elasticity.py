#!/usr/bin/env python3
"""What a lost and a joining worker cost, under `pliant run` and under torchrun, side by side.

    bench/python/elasticity.py [kill] [join] [--rounds 5] [--json out.json]

The same model and data. Under torchrun it is DDP over gloo, with a checkpoint each --every steps,
from which all workers begin again when one is lost or more come: with torchrun's own settings, and
tuned (it looks after its workers each 100 ms, gives others 1 s to come, and each step is saved).
Under Pliant it is the loop of the README. `kill` kills one of four workers by SIGKILL; `join` makes
four out of two.

pause: from the kill to the end of the first step without the dead; of a join, the longest time
without the end of a step. redone: until the job is further than it was before. The contenders take
turns. Times are the workers' own (CLOCK_MONOTONIC).
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", ROOT / "build" / "release")).resolve()
PATIENCE_S = 120
CALM_STEPS = 30  # before something happens
WIDTH, BATCH, SAMPLES = 512, 64, 1 << 20
CONTENDERS = ("pliant", "torchrun", "torchrun tuned")


# ---- In the workers ----------------------------------------------------------------------------

class Records:
    """The steps of this process, a line each: when, which step, how many members."""

    def __init__(self, folder):
        self.file = open(pathlib.Path(folder, f"{os.getpid()}"), "a", buffering=1,
                         encoding="ascii")

    def add(self, step, members):
        self.file.write(f"{time.monotonic()} {step} {members}\n")


class Data:
    """Made up, the same in both."""

    def __init__(self, torch):
        self.torch = torch

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        inputs = self.torch.full((WIDTH,), (number % 97) / 97)
        return inputs, inputs.sum()


def make_model(torch):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
                               torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
                               torch.nn.Linear(WIDTH, 1))


def work_pliant(folder):
    import torch

    import pliant.torch

    torch.set_num_threads(1)
    session = pliant.torch.current_session()
    model = make_model(torch)
    optimizer = pliant.torch.SynchronousSGD(torch.optim.Adam(model.parameters()), model)
    records = Records(folder)
    for inputs, targets in pliant.torch.ElasticLoader(Data(torch), BATCH):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs)[:, 0], targets).backward()
        if optimizer.step():
            records.add(session.step.number, session.size)


def work_torchrun(folder, every):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model(torch)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = pathlib.Path(folder).with_suffix(".checkpoint")
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    data, records = Data(torch), Records(folder)
    while True:
        step += 1
        part = range(step * BATCH + rank * BATCH // size, step * BATCH + (rank + 1) * BATCH // size)
        samples = [data[number % SAMPLES] for number in part]
        inputs = torch.stack([one for one, _ in samples])
        targets = torch.stack([one for _, one in samples])
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(parallel(inputs)[:, 0], targets).backward()
        optimizer.step()
        records.add(step, size)
        if rank == 0 and step % every == 0:
            torch.save({"step": step, "model": model.state_dict(),
                        "optimizer": optimizer.state_dict()}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)


# ---- Jobs --------------------------------------------------------------------------------------

class Job:
    """A running job of one contender; `with` ends it."""

    def __init__(self, contender, members, arguments, nodes="1"):
        self.contender, self.arguments, self.nodes = contender, arguments, nodes
        self.scratch = tempfile.TemporaryDirectory(prefix="pliant-elasticity-")
        self.folder = os.path.join(self.scratch.name, "records")
        os.mkdir(self.folder)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                            "TP_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT / "python"),
                            "PLIANT_LIBRARY": str(BUILD / "libpliant.so")}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.launchers = []
        self.members = members
        self.start(members)

    def start(self, members):
        """Starts workers; torchrun is asked for a second time where more are to come."""
        worker = [__file__, "--worker", self.contender, "--folder", self.folder,
                  "--every", str(1 if "tuned" in self.contender else self.arguments.every)]
        if self.contender == "pliant":
            command = [str(BUILD / "pliant"), "run", "-n", str(members), "--min", "1", "--max",
                       "8", "--", sys.executable, *worker]
        else:
            tuned = ["--monitor_interval", "0.1"] if "tuned" in self.contender else []
            where = ["--master_port", str(self.port)]
            if self.nodes != "1":
                where = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{self.port}",
                         "--rdzv_id", "bench"]
                tuned += ["--rdzv_conf", "last_call_timeout=1"] if tuned else []
            # torch 1.13 with Python 3.11 does not understand its own default of redirects.
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", self.nodes,
                       "--nproc_per_node", str(members), *where, "--max_restarts", "3",
                       "--redirects", "1", "--tee", "1", "--log_dir",
                       os.path.join(self.scratch.name, "logs"), *tuned, *worker]
        with open(os.path.join(self.scratch.name, "log"), "ab") as log:
            self.launchers.append(subprocess.Popen(command, env=self.environment, stdout=log,
                                                   stderr=log, start_new_session=True))

    def grow(self, members):
        """Asks for more members."""
        if self.contender == "pliant":
            subprocess.run([str(BUILD / "pliant"), "resize", str(members), "--job",
                            str(self.launchers[0].pid)], check=True,
                           env=self.environment, stdout=subprocess.DEVNULL)
        else:
            self.start(members - self.members)

    def rows(self):
        """What all workers have recorded: (when, step, members, pid)."""
        found = []
        for name in os.listdir(self.folder):
            for line in pathlib.Path(self.folder, name).read_text(encoding="ascii").splitlines():
                parts = line.split()
                if len(parts) == 3:
                    found.append((float(parts[0]), int(parts[1]), int(parts[2]), int(name)))
        return found

    def await_that(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = condition(self.rows())
            if found:
                return found
            if time.monotonic() > deadline or all(one.poll() is not None
                                                  for one in self.launchers):
                log = pathlib.Path(self.scratch.name, "log").read_text(errors="replace")
                raise SystemExit(f"{self.contender}: ended or hung: {log[-3000:]}")
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for launcher in self.launchers:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGTERM)
        for launcher in self.launchers:
            try:
                launcher.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait()
        self.scratch.cleanup()


def calm(job, members):
    """Waits until so many members have done some steps together; returns their pids."""
    def holds(rows):
        of = {}
        for _, step, count, pid in rows:
            if count == members:
                of.setdefault(pid, []).append(step)
        return (len(of) == members and
                min(len(steps) for steps in of.values()) >= CALM_STEPS and list(of))
    return job.await_that(holds)


def kill(contender, arguments):
    """One of four is killed."""
    with Job(contender, 4, arguments) as job:
        victim = sorted(calm(job, 4))[-1]
        old = {pid for _, _, _, pid in job.rows()}
        os.kill(victim, signal.SIGKILL)
        since = time.monotonic()

        def is_new(row):
            return (row[2] == 3 if contender == "pliant" else row[3] not in old) and row[0] > since

        job.await_that(lambda rows: any(map(is_new, rows)))
        # The steps of those that were torn down count as far as anybody got.
        reached = max(row[1] for row in job.rows() if not is_new(row))
        job.await_that(lambda rows: any(row[1] > reached for row in rows if is_new(row)))
        new = sorted(filter(is_new, job.rows()))
        return {"pause_s": new[0][0] - since,
                "redone_s": min(row[0] for row in new if row[1] > reached) - since,
                "steps_lost": reached + 1 - new[0][1], "step_s": step_time(job.rows(), since)}


def join(contender, arguments):
    """Two become four."""
    with Job(contender, 2, arguments, "1:2") as job:
        calm(job, 2)
        asked = time.monotonic()
        job.grow(4)
        job.await_that(lambda rows: any(row[2] == 4 for row in rows))
        rows = sorted(job.rows())
        begun, first = next((row[0], row[1]) for row in rows if row[2] == 4)
        until = [row for row in rows if row[0] <= begun]
        reached = max(row[1] for row in until[:-1])
        job.await_that(lambda now: any(row[1] > reached for row in now if row[2] == 4))
        redone = min(row[0] for row in job.rows() if row[2] == 4 and row[1] > reached)
        # The newcomers may come one after the other: the longest time without a step counts.
        pauses = [after[0] - before[0] for before, after in zip(until, until[1:])
                  if after[0] > asked]
        return {"pause_s": max(pauses), "redone_s": max(pauses) + redone - begun,
                "until_joined_s": begun - asked, "steps_lost": max(0, reached + 1 - first),
                "step_s": step_time(rows, asked)}


def step_time(rows, before):
    """The median step until then, of all workers."""
    times = {}
    for when, _, _, pid in sorted(rows):
        if when < before:
            times.setdefault(pid, []).append(when)
    return statistics.median(b - a for of in times.values() for a, b in zip(of, of[1:]))


# ---- Report ------------------------------------------------------------------------------------

def show(results):
    for what, of in results.items():
        print(f"{what:5} {'contender':15} {'pause s':>9} {'least..most':>16} {'redone s':>9} "
              f"{'steps lost':>11} {'step ms':>8} {'times pliant':>13}")
        ours = statistics.median(row["pause_s"] for row in of["pliant"])
        for contender, rows in of.items():
            def median(key):
                return statistics.median(row[key] for row in rows)
            pauses = sorted(row["pause_s"] for row in rows)
            print(f"{'':5} {contender:15} {median('pause_s'):>9.4f} "
                  f"{f'{pauses[0]:.4f}..{pauses[-1]:.4f}':>16} {median('redone_s'):>9.4f} "
                  f"{median('steps_lost'):>11.0f} {median('step_s') * 1e3:>8.2f} "
                  f"{median('pause_s') / ours:>13.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=[], metavar="kill|join")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker == "pliant":
        return work_pliant(arguments.folder)
    if arguments.worker:
        return work_torchrun(arguments.folder, arguments.every)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the jobs end
    results = {what: {contender: [] for contender in CONTENDERS}
               for what in arguments.what or ("kill", "join")}
    for number in range(arguments.rounds):
        for what, of in results.items():
            for contender in CONTENDERS[number % 3:] + CONTENDERS[:number % 3]:
                row = {"kill": kill, "join": join}[what](contender, arguments)
                of[contender].append(row)
                print(what, contender, {k: round(v, 4) for k, v in row.items()}, file=sys.stderr)
    show(results)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
