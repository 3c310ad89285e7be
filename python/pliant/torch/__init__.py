"""Pliant for PyTorch, 1.13 and later: elastic training loops, and torch.distributed over Pliant.

    import pliant.torch as pliant
    optimizer = pliant.SynchronousSGD(torch.optim.AdamW(model.parameters()), model)
    for inputs, targets in pliant.ElasticLoader(dataset, batch_size=64):
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()

Importing it registers the backend "pliant" of torch.distributed. docs/PYTHON.md is the tour.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pliant.torch needs PyTorch 1.13 or later, which cannot be imported here "
        f"({error}); the package pliant itself does without") from error

from ..errors import Invalid, PliantError
from ..launch import run
from ..policy import Decision, Policy, Signals
from ..session import Session, current_session
from .hook import comm_hook
from .loader import ElasticLoader
from .memory import allocate
from .optimizer import ElasticOptimizer, NonFinite
from .process_group import ProcessGroupPliant, register_backend
from .tokens import TokenDataset, sample_generator
from .ways import Adaptive, ModelAveraging, PairAveraging, SynchronousSGD

register_backend()

__all__ = ["Adaptive", "Decision", "ElasticLoader", "ElasticOptimizer", "Invalid",
           "ModelAveraging", "NonFinite", "PairAveraging", "PliantError", "Policy",
           "ProcessGroupPliant", "Session", "Signals", "SynchronousSGD", "TokenDataset", "allocate",
           "comm_hook", "current_session", "run", "sample_generator"]
