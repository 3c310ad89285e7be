"""The program under test, started as users start it, and its processes.

The program is that of PLIANT_PROGRAM, or of the build folder.
"""

import os
import pathlib
import re
import subprocess
import time
import unittest

PROGRAM = os.environ.get("PLIANT_PROGRAM") or os.path.join(
    os.environ.get("PLIANT_BUILD_DIR", "build/release"), "pliant")
PROGRAM = os.path.abspath(PROGRAM)
CACHE = pathlib.Path(PROGRAM).with_name("CMakeCache.txt")
# A sanitizer's own memory is several times the program's.
SANITIZED = CACHE.exists() and re.search(r"^PLIANT_SANITIZE:\w+=.", CACHE.read_text(), re.MULTILINE)
LIMIT_S = 60  # only keeps a broken run from hanging


def environment(**extra):
    """Ours without what an outer job may have set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PLIANT_")}
    return {**kept, **extra}


def run(*arguments, **options):
    options.setdefault("env", environment())
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                          **options)


def start(*arguments, **options):
    options.setdefault("env", environment())
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([PROGRAM, *arguments], text=True, **options)


def wait_until(condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain until " + what)
        time.sleep(0.002)


def alive(pid):
    """True if the process runs; a zombie, whose parent is elsewhere, does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(") ", 1)[1][0] not in "ZX"


def host_agents(launcher):
    """Pids of the agents that the launcher (a pid) has started, by host; their launcher must say
    the host's name as the variable AT."""
    found = {}
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children")
    for pid in children.read_text().split():
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        at = [v[3:].decode() for v in variables if v.startswith(b"AT=")]
        if words[1:2] == [b"agent"] and at:
            found[at[0]] = int(pid)
    return found


class Commands(unittest.TestCase):
    """For tests of commands that end by themselves."""

    def good(self, *arguments):
        done = run(*map(str, arguments))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def bad(self, *arguments, code=1):
        done = run(*map(str, arguments))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr
