"""`pliant run` with chaos workers, for tests and measurements: what they wrote down, how to wait
for it, and the judgement of it."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

from launched import alive, environment, host_agents

# Only a hang is cut off by this; nothing is expected to come near it.
PATIENCE_S = 120
SAMPLES = 10000  # of an epoch
RECORD = struct.Struct("<QIIQQQqqqqQ")
FIELDS = ("step", "epoch", "members", "samples", "sample_sum", "state", "committed", "agree",
          "redo", "transfer", "begun")


def read_records(folder):
    """The commits of each worker as dictionaries, by pid."""
    found = {}
    for name in os.listdir(folder):
        data = pathlib.Path(folder, name).read_bytes()
        whole = len(data) // RECORD.size * RECORD.size
        found[int(name)] = [dict(zip(FIELDS, row)) for row in RECORD.iter_unpack(data[:whole])]
    return found


def tail_records(folder, count, pids=None):
    """The last commits of each worker that has any, or of these, by pid."""
    found = {}
    for name in os.listdir(folder) if pids is None else map(str, pids):
        try:
            with open(os.path.join(folder, name), "rb") as file:
                whole = os.fstat(file.fileno()).st_size // RECORD.size
                first = max(0, whole - count)
                file.seek(first * RECORD.size)
                data = file.read((whole - first) * RECORD.size)
        except FileNotFoundError:
            continue
        if data:
            found[int(name)] = [dict(zip(FIELDS, row)) for row in RECORD.iter_unpack(data)]
    return found


def last_records(folder, pids=None):
    """The last commit of each, by pid."""
    return {pid: made[-1] for pid, made in tail_records(folder, 1, pids).items()}


class Job:
    """A running job in folders of its own; `with` ends it and removes them. Without a number of
    members, the options say how many there are; a command is made out of the chaos worker's; the
    launcher may be started inside of something."""

    def __init__(self, pliant, members, run_options=(), worker_options=(), command=None,
                 patience=PATIENCE_S, inside=()):
        self.pliant = pliant
        self.patience = patience
        self.directory = tempfile.mkdtemp(prefix="pliant-elastic-")
        self.folder = os.path.join(self.directory, "records")
        os.mkdir(self.folder)
        worker = [pliant, "chaos-worker", "--records", self.folder, *worker_options]
        size = [] if members is None else ["-n", str(members)]
        self.process = subprocess.Popen(
            [*inside, pliant, "run", *size, "--no-prefix", *run_options, "--",
             *(command(worker) if command else worker)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=self.environment())
        self.lines = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.cut_off = None
        if patience:
            self.cut_off = threading.Timer(patience, self.process.kill)
            self.cut_off.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGINT)
        self.remove()

    def environment(self, **extra):
        return environment(XDG_RUNTIME_DIR=self.directory, HOME=self.directory, **extra)

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def text(self):
        return "".join(self.lines)

    # What the workers wrote down.

    def records(self):
        return read_records(self.folder)

    def newest(self):
        return max(last_records(self.folder).values(), key=lambda record: record["step"],
                   default=None)

    def step(self):
        """The last that anybody committed; it does not need the coordinator."""
        return (self.newest() or {"step": 0})["step"]

    def await_that(self, condition):
        """Waits until the condition holds, and returns what it returned; the job's end is a
        fault."""
        deadline = time.monotonic() + (self.patience or PATIENCE_S)
        while True:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the job ended or hung at {self.newest()}: {self.text()}")
            time.sleep(0.003)

    def await_step(self, step, members=None):
        """The newest commit, once somebody has committed this step with so many members."""
        def reached():
            for record in last_records(self.folder).values():
                if record["step"] >= step and members in (None, record["members"]):
                    return record
            return None
        return self.await_that(reached)

    def await_steps(self, count):
        """So many more than now."""
        self.await_step(self.step() + count)

    def by_last_step(self):
        """Pids of those that run, those that are ahead first."""
        last = last_records(self.folder)
        return sorted(filter(alive, last), key=lambda pid: -last[pid]["step"])

    def judge(self):
        """Nothing if every commit agrees with a serial replay; otherwise what does not."""
        judged = subprocess.run(
            [self.pliant, "chaos-check", self.folder, "--samples", str(SAMPLES)],
            capture_output=True, text=True, check=False)
        return judged.stdout + judged.stderr if judged.returncode != 0 else ""

    # What people ask of it.

    def ask(self, *arguments, **variables):
        return subprocess.run([self.pliant, *arguments], capture_output=True, text=True,
                              timeout=PATIENCE_S, env=self.environment(**variables), check=False)

    def status(self):
        """Nothing while it cannot be asked."""
        done = self.ask("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def await_status(self, condition):
        def holds():
            status = self.status()
            return status if status and condition(status) else None
        return self.await_that(holds)

    def await_members(self, count):
        return self.await_status(lambda status: len(status["members"]) == count)

    def resize(self, size):
        done = self.ask("resize", str(size))
        if done.returncode != 0:
            raise AssertionError(done.stderr)

    def agents(self):
        return host_agents(self.process.pid)

    # Its end.

    def end(self, sig=signal.SIGINT):
        """The exit code; without a signal it is waited for."""
        if sig is not None and self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.cut_off:
            self.cut_off.cancel()
        self.reader.join()
        self.process.stderr.close()
        return code

    def clean_up(self):
        """Whatever has become of it."""
        self.end(signal.SIGKILL)
        self.remove()

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)
