"""run(): a function in several workers of a job of its own, for notebooks, tests and scripts."""

from __future__ import annotations

import importlib
import os
import pathlib
import pickle
import runpy
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Optional, Sequence

from ._library import candidates
from .errors import Invalid, PliantError

_MAIN = "__pliant_main__"


def run(function: Callable[..., Any], n: int, *arguments: Any, options: Sequence[str] = (),
        environment: Optional[Dict[str, str]] = None, timeout_seconds: Optional[float] = None
        ) -> List[Any]:
    """Calls `function(*arguments)` in each of `n` new workers, and returns what they returned, by
    rank. `options` are further ones of `pliant run`: `["--min", "1", "--max", "8"]`. Workers that
    were lost are left out; if the job failed, PliantError has the end of what they printed.

    The function is found by its name: in a module, or in the script that calls this, which the
    workers read without running what is under `if __name__ == "__main__"`. In a notebook the
    package cloudpickle is needed. Arguments and results are pickled.
    """
    if n < 1:
        raise Invalid(f"a job has at least one worker, not {n}")
    with tempfile.TemporaryDirectory(prefix="pliant-run-") as folder:  # of this user alone
        pathlib.Path(folder, "call").write_bytes(_packed(function, arguments))
        variables = {**os.environ, **(environment or {})}
        here = str(pathlib.Path(__file__).resolve().parent.parent)
        variables["PYTHONPATH"] = os.pathsep.join(
            [here] + [path for path in sys.path if path] +
            ([variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []))
        command = [_program(), "run", "-n", str(n), *options, "--", sys.executable, "-c",
                   "import sys, pliant.launch; pliant.launch.work(sys.argv[1])", folder]
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=timeout_seconds)
        sys.stdout.write(done.stdout)
        if done.returncode:
            raise PliantError(f"the job of {function!r} ended with code {done.returncode}: "
                              f"{done.stdout[-2000:]}", None, None)
        results = sorted(pathlib.Path(folder).glob("result-*"),
                         key=lambda path: int(path.name.split("-")[1]))
        return [pickle.loads(path.read_bytes()) for path in results]


def work(folder: str) -> None:
    """In a worker: makes the call, and leaves its result in the folder."""
    from .session import current_session
    module, name, blob = pickle.loads(pathlib.Path(folder, "call").read_bytes())
    if name is None:
        import cloudpickle
        function, arguments = cloudpickle.loads(blob)
    else:
        if module.endswith(".py"):
            found: Any = runpy.run_path(module, run_name=_MAIN)
            sys.modules["__main__"].__dict__.update(found)  # what was pickled there is found
            function = found[name]
        else:
            function = getattr(importlib.import_module(module), name)
        arguments = pickle.loads(blob)
    session = current_session()
    result = function(*arguments)
    if not session.closed:
        path = pathlib.Path(folder, f"result-{session.rank}-{os.getpid()}")
        path.write_bytes(pickle.dumps(result))


def _packed(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """How a worker finds the function, and what it gives it."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if name.isidentifier() and (module != "__main__" or script):
        if module == "__main__":
            module = os.path.abspath(script or "")
        return pickle.dumps((module, name, pickle.dumps(tuple(arguments))))
    try:
        import cloudpickle
    except ImportError:
        raise Invalid(f"{function!r} cannot be found by the workers: put it into a module or at "
                      "the top of a script, or install cloudpickle") from None
    return pickle.dumps((None, None, cloudpickle.dumps((function, tuple(arguments)))))


def _program() -> str:
    """`pliant`: as PLIANT_PROGRAM says, beside the library, or where the system finds programs."""
    beside = [os.path.join(os.path.dirname(path), "pliant") for path in candidates()
              if os.path.dirname(path)]
    for path in [os.environ.get("PLIANT_PROGRAM"), *beside, shutil.which("pliant")]:
        if path and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise Invalid("the program `pliant` was not found: install it (make install), or say where it "
                  "is: PLIANT_PROGRAM=/path/to/pliant")
