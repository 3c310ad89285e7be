"""Pliant for Python: sessions, collectives and elastic steps, over the C ABI of libpliant.

    import pliant
    with pliant.Session() as session:      # alone if nothing launched us
        session.all_reduce("gradients", array, op="mean")

docs/PYTHON.md is the tour. `pliant.torch` has the training loop for PyTorch.
"""

from . import data
from ._library import VERSION as __version__
from .buffers import DType, Op
from .collectives import Collectives, Group, Work
from .errors import (Cancelled, Invalid, LibraryNotFound, Overloaded, PeerLost, PliantError,
                     StaleEpoch, TimedOut)
from .launch import run
from .monitoring import Decisions, MonitorCosts
from .policy import Decision, GradientNoise, Policy, Signals, Straggler
from .session import Session, Snapshot, View, current_session
from .step import Contributors, Step
from .synchroniser import StepReport, Synchroniser

__all__ = ["Cancelled", "Collectives", "Contributors", "DType", "Decision", "Decisions",
           "GradientNoise", "Group", "Invalid", "LibraryNotFound", "MonitorCosts", "Op",
           "Overloaded", "PeerLost", "PliantError", "Policy", "Session", "Signals", "Snapshot",
           "StaleEpoch", "Step", "StepReport", "Straggler", "Synchroniser", "TimedOut", "View",
           "Work", "__version__", "current_session", "data", "run"]
