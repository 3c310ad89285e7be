"""What the tests of the Python package share: where the package and the library under test are, an
interpreter that has what a test needs, and elastic jobs of Python workers, which go on as far as
the test lets them."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import time

SOURCE = pathlib.Path(os.environ.get("PLIANT_SOURCE_DIR",
                                     pathlib.Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(SOURCE / "tests" / "process"), str(SOURCE / "python")]

from elastic_job import Job  # noqa: E402
from launched import PROGRAM, environment, run  # noqa: E402,F401

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = str(pathlib.Path(PROGRAM).with_name("libpliant.so"))
VARIABLES = {"PLIANT_LIBRARY": LIBRARY, "OMP_NUM_THREADS": "1",
             "PYTHONPATH": f"{SOURCE / 'python'}:{HERE}"}
os.environ["PLIANT_LIBRARY"] = LIBRARY
SKIPPED = 77  # CTest's SKIP_RETURN_CODE


def need(*modules):
    """Goes on in an interpreter that has these modules, or ends the test as skipped."""
    if all(map(importlib.util.find_spec, modules)):
        return
    other = "/usr/bin/python3"
    if os.path.exists(other) and os.path.realpath(other) != os.path.realpath(sys.executable):
        has = ("import importlib.util, sys; "
               "sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))")
        if subprocess.run([other, "-c", has, *modules], check=False).returncode == 0:
            os.execv(other, [other, *sys.argv])
    print(f"skipped: no Python here has {', '.join(modules)}; tools/setup.sh test installs it")
    sys.exit(SKIPPED)


def run_workers(ranks, script, *arguments, options=()):
    """`pliant run` of a Python program of this folder, to its end."""
    return run("run", "-n", str(ranks), *options, "--", sys.executable, str(HERE / script),
               *arguments, env=environment(**VARIABLES))


class PythonJob(Job):
    """An elastic job of Python workers. They do the steps that allow() has granted."""

    def __init__(self, script, members, *run_options, arguments=()):
        def command(worker):
            self.directory = os.path.dirname(worker[worker.index("--records") + 1])
            self.allow(0)
            return ["env", *(f"{name}={value}" for name, value in VARIABLES.items()),
                    sys.executable, str(HERE / script), self.directory, *arguments]
        super().__init__(PROGRAM, members, run_options, command=command)

    def ends(self, test):
        """Lets it run to its end; what the workers that saw it have left there, as bytes. All have
        committed the same states."""
        self.allow(1 << 40)
        test.assertEqual(self.end(None), 0, self.text())
        test.assertNotIn("exited with code", self.text())
        states = {}
        for commits in self.records().values():
            for commit in commits:
                states.setdefault(commit["step"], set()).add(commit["state"])
        test.assertEqual([step for step, found in states.items() if len(found) > 1], [])
        ends = [path.read_bytes() for path in pathlib.Path(self.directory).glob("end-*")]
        test.assertTrue(ends, self.text())
        return ends

    def allow(self, steps):
        path = pathlib.Path(self.directory, "allowed")
        path.with_suffix(".new").write_text(str(steps))
        path.with_suffix(".new").rename(path)

    def await_ready(self, count):
        """Until so many workers in all have imported and made what they need, which takes long:
        steps that wait for members must not run out meanwhile."""
        self.await_that(lambda: len(list(pathlib.Path(self.directory).glob("ready-*"))) >= count)

    def step_until(self, condition, pause=0.02):
        """Lets one step after the other pass, until something has happened; slowly, so that it can
        happen before the last one."""
        while True:
            found = condition()
            if found:
                return found
            step = self.step() + 1
            self.allow(step)
            self.await_that(lambda: self.step() >= step)
            time.sleep(pause)

    def step_until_members(self, count, pause=0.02):
        """The newest commit is one of so many members."""
        def holds():
            newest = self.newest()
            return newest and newest["members"] == count and newest
        return self.step_until(holds, pause)
