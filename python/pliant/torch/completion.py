"""torch's futures for works of Pliant: a thread sets each one when its work has finished.

Works finish in any order, and whoever waits for a later one must not depend on an earlier one. So
the thread waits for all of them at once; waiting it does their work, since whoever waits for a
future of torch only sleeps.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, List, Tuple

import torch

from ..errors import Cancelled
from ..session import Session

# How long a session that is closed waits for the thread, if works are still under way.
_LONGEST_WAIT_S = 0.05
_Pending = Tuple[Callable[[], bool], torch.futures.Future]


class Completion:
    """One of these serves a session; any thread may add to it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pending: List[_Pending] = []
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="pliant-completion", daemon=True)
        self._thread.start()
        session.on_close(self._close)

    def add(self, done: Callable[[], bool], result: Callable[[], Any]) -> torch.futures.Future:
        """A future of `result()`, or of what that raises, once `done()`."""
        end: torch.futures.Future = torch.futures.Future()

        def value(_: torch.futures.Future) -> Any:
            if self._closed:
                raise Cancelled("the session is closed")
            return result()

        # Torch's C++ sees an error only in a future whose callback has raised it: one that was set
        # from Python looks like a value to it, which it takes for tensors.
        future = end.then(value)
        with self._changed:
            entry = (done, end)
            # Whoever finishes from here on is seen by the thread, which waits for the next one.
            self._pending.append(entry)
            finished = done()
            if finished:
                self._pending.remove(entry)
            else:
                self._changed.notify()
        if finished:
            end.set_result(None)
        return future

    def _serve(self) -> None:
        finished = ctypes.c_uint64()
        while True:
            with self._changed:
                while not self._pending and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                pending = list(self._pending)
            ready = [entry for entry in pending if entry[0]()]
            if not ready:
                self._session._await_works(finished, _LONGEST_WAIT_S)
                continue
            with self._changed:
                self._pending = [entry for entry in self._pending if entry not in ready]
            for _, end in ready:
                end.set_result(None)

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for _, end in self._pending:
            end.set_result(None)


_making = threading.Lock()


def completion_of(session: Session) -> Completion:
    """The one of a session."""
    with _making:
        if session._completion is None:
            session._completion = Completion(session)
        return session._completion
