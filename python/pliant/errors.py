"""What can go wrong, as exceptions. The class names the reaction that is expected of the caller."""

from __future__ import annotations

from typing import Optional


class PliantError(Exception):
    """A call that failed; its text is the core's sentence: what was wrong, where, what to do."""

    #: The number of the failure in the C ABI.
    code: int = 0

    def __init__(self, message: str, peer: Optional[int] = None,
                 epoch: Optional[int] = None) -> None:
        super().__init__(message)
        #: The rank that it is about, in the view of `epoch`; None if it is about nobody.
        self.peer = peer
        #: The epoch of the view in which it happened; None outside a session.
        self.epoch = epoch


class PeerLost(PliantError):
    """A member is gone: end, or await the next view."""

    code = 1


class StaleEpoch(PliantError):
    """It belongs to an older view: discard and redo."""

    code = 2


class TimedOut(PliantError, TimeoutError):
    """A deadline passed: suspect the silent peer."""

    code = 3


class Cancelled(PliantError):
    """The session was closed, or this member is out of the job: unwind silently."""

    code = 4


class Overloaded(PliantError):
    """A bound was reached, or memory: back off."""

    code = 5


class Invalid(PliantError, ValueError):
    """The request itself is wrong: it will not succeed when it is repeated."""

    code = 6


class LibraryNotFound(ImportError):
    """libpliant is not there, or is of another version than this package."""


CLASSES = {error.code: error
           for error in (PeerLost, StaleEpoch, TimedOut, Cancelled, Overloaded, Invalid)}
