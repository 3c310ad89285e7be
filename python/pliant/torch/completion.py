"""torch's futures for works of Pliant: a thread sets each one when its work has finished.

It asks, instead of waiting for one after the other: works finish in any order, and whoever waits
for a later one must not depend on an earlier one.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, List, Optional, Tuple

import torch

from ..collectives import Work

_PAUSE_MIN_S, _PAUSE_MAX_S = 20e-6, 200e-6
_Pending = Tuple[Callable[[], bool], Callable[[], Any], torch.futures.Future]


class Completion:
    """One of these serves a process; any thread may add to it."""

    def __init__(self) -> None:
        self._pending: List[_Pending] = []
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None

    def future(self, work: Work) -> torch.futures.Future:
        """A future with the work's result."""
        return self.add(work.done, work.result)

    def add(self, done: Callable[[], bool], result: Callable[[], Any]) -> torch.futures.Future:
        """A future that is set to `result()`, or to what that raises, once `done()`."""
        future: torch.futures.Future = torch.futures.Future()
        with self._changed:
            self._pending.append((done, result, future))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="pliant-completion",
                                                daemon=True)
                self._thread.start()
            self._changed.notify()
        return future

    def _serve(self) -> None:
        pause = _PAUSE_MIN_S
        while True:
            with self._changed:
                while not self._pending:
                    self._changed.wait()
                ready = [entry for entry in self._pending if entry[0]()]
                self._pending = [entry for entry in self._pending if entry not in ready]
            for _, result, future in ready:
                try:
                    future.set_result(result())
                except Exception as error:  # whatever it is, it belongs to who waits
                    future.set_exception(error)
            pause = _PAUSE_MIN_S if ready else min(2 * pause, _PAUSE_MAX_S)
            time.sleep(pause)


completion = Completion()
