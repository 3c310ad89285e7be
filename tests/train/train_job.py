"""A training program of train/ under `pliant run`, and what it has logged and saved."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(os.environ.get("PLIANT_SOURCE_DIR", "."))
BUILD = pathlib.Path(os.environ.get("PLIANT_BUILD_DIR", "build/release"))
sys.path.insert(0, str(SOURCE / "tests" / "process"))
from launched import PROGRAM, environment  # noqa: E402

PATIENCE_S = 200  # only a hang is cut off by this


def program(name):
    return str(BUILD / "train" / name)


def read_log(path):
    """The rows by step; of several members' the first."""
    rows = {}
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        rows.setdefault(row["step"], row)
    return rows


def read_model(path):
    """All numbers of a safetensors file, by name."""
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kind, size = {"F32": ("f", 4), "F64": ("d", 8)}[entry["dtype"]]
        found[name] = struct.unpack_from(f"<{(end - begin) // size}{kind}", data,
                                         8 + length + begin)
    return found


def largest_difference(one, other):
    """Relative to the largest number of each tensor."""
    assert one.keys() == other.keys()
    return max(max(abs(a - b) for a, b in zip(one[name], other[name]))
               / max(abs(a) for a in one[name]) for name in one)


class TrainJob:
    """A job in a folder of its own; `with` ends it and removes the folder. Its steps are slow until
    hurry(), so that few of them pass while its members change."""

    def __init__(self, run_options, command):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pliant-train-"))
        self.log = self.folder / "log.jsonl"
        self.model = self.folder / "model.safetensors"
        self.said = open(self.folder / "said.txt", "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [PROGRAM, "run", "--job", "train", *run_options, "--", *command, "--log",
             str(self.log), "--save", str(self.model), "--report", "0", "--slow-until",
             str(self.folder / "hurry")],
            stdout=self.said, stderr=self.said, env=self.environment())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self):
        return environment(XDG_RUNTIME_DIR=str(self.folder), HOME=str(self.folder))

    def text(self):
        self.said.flush()
        return (self.folder / "said.txt").read_text(encoding="utf-8")

    def await_that(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the job ended or hung before {what}: {self.text()}")
            time.sleep(0.005)

    def await_members(self, count):
        """The status once the job has so many members, and a step was committed by them."""
        def reached():
            rows = read_log(self.log)
            return rows and rows[max(rows)]["members"] == count
        self.await_that(reached, f"{count} members had committed a step")
        return self.status()

    def status(self):
        return json.loads(self.ask("status", "--json"))

    def ask(self, *words):
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False,
                              timeout=60, env=self.environment())
        if done.returncode != 0:
            raise AssertionError(done.stderr + self.text())
        return done.stdout

    def hurry(self):
        (self.folder / "hurry").touch()

    def kill(self, rank):
        os.kill(self.status()["members"][rank]["pid"], signal.SIGKILL)

    def end(self):
        """Waits for its end, which must be a good one."""
        code = self.process.wait(PATIENCE_S)
        if code != 0:
            raise AssertionError(f"the job ended with {code}: {self.text()}")
        return read_log(self.log), read_model(self.model)


def train_alone(command):
    """The same program without a launcher: its log and its model."""
    with tempfile.TemporaryDirectory() as folder:
        log, model = pathlib.Path(folder, "log.jsonl"), pathlib.Path(folder, "model.safetensors")
        done = subprocess.run([*command, "--log", str(log), "--save", str(model), "--report", "0"],
                              capture_output=True, text=True, check=False, timeout=PATIENCE_S,
                              env=environment())
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return read_log(log), read_model(model)
