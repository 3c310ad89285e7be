"""What the workers of the tests have in common: they write their commits down as elastic_job.Job
reads them, and go on as far as the test allows."""

import hashlib
import os
import pathlib
import signal
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "process"))

from elastic_job import RECORD  # noqa: E402


def record(file, session, step, state):
    """Writes a commit down as Job reads it."""
    contributors = step.contributors
    file.write(RECORD.pack(step.number, session.epoch, session.size, contributors.samples, 0,
                           hash_of(state), 0, 0, 0, 0, 0))


def hash_of(state):
    """A number for the bytes of the state."""
    return int.from_bytes(hashlib.blake2b(bytes(state), digest_size=8).digest(), "little")


def note_ready(directory):
    """Lets the test know that this worker is about to begin its first step."""
    pathlib.Path(directory, f"ready-{os.getpid()}").touch()


def await_permission(directory, session):
    """Waits until the test allows a step after the last one."""
    done = session.step.number if session.step else 0
    while int(pathlib.Path(directory, "allowed").read_text()) <= done:
        time.sleep(0.001)


def die_at(directory, session, number):
    """Kills the second of several members in the middle of this step, when others are in it; one
    in the life of the job."""
    inside, dead = pathlib.Path(directory, "inside"), pathlib.Path(directory, "dead")
    if session.step.number != number or session.size == 1 or dead.exists():
        return
    if session.rank != 1:
        inside.touch()
        return
    while not inside.exists():
        time.sleep(0.001)
    dead.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def note_more(directory, step):
    """Lets the test know that a step has got more samples."""
    if step.more:
        pathlib.Path(directory, f"more-{os.getpid()}").touch()
