"""The ways in which an ElasticOptimizer keeps the members' models together (docs/TRAINING.md)."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .optimizer import ElasticOptimizer


class SynchronousSGD(ElasticOptimizer):
    """Gradients are averaged over the samples of all members, so that all have the same model: that
    of one process with the whole batch."""

    def __init__(self, optimizer: torch.optim.Optimizer,
                 model: Optional[torch.nn.Module] = None, *, compression: str = "none",
                 **options: Any) -> None:
        """`compression` sends gradients of float32 as "bf16" or "int8". The other options are those
        of ElasticOptimizer."""
        super().__init__(optimizer, model, compression=compression, **options)


class ModelAveraging(ElasticOptimizer):
    """Each member applies its own gradients, and its model is drawn towards the mean of all in each
    step: `v <- (1 - alpha) v + alpha mean(v)`. Models go over the network while members compute."""

    _way = "model_averaging"

    def __init__(self, optimizer: torch.optim.Optimizer,
                 model: Optional[torch.nn.Module] = None, *, alpha: float = 0.1,
                 **options: Any) -> None:
        """`alpha` is above 0 and at most 1."""
        super().__init__(optimizer, model, alpha=alpha, **options)


class PairAveraging(ElasticOptimizer):
    """Each member applies its own gradients, and its model is averaged with that of one other
    member in each step, which is chosen at random and need not wait for it."""

    _way = "pair_averaging"

    def __init__(self, optimizer: torch.optim.Optimizer,
                 model: Optional[torch.nn.Module] = None, *, seed: int = 0,
                 **options: Any) -> None:
        """`seed` is of the choice of partners."""
        super().__init__(optimizer, model, seed=seed, **options)


class Adaptive(ElasticOptimizer):
    """Begins in one of the ways and may change to another between two steps: by `switch_to()`, or
    because a policy decides so."""

    def __init__(self, optimizer: torch.optim.Optimizer,
                 model: Optional[torch.nn.Module] = None, *, begin: str = "synchronous",
                 alpha: float = 0.1, seed: int = 0, compression: str = "none",
                 **options: Any) -> None:
        """`begin` is "synchronous", "model_averaging" or "pair_averaging"; the others are those of
        the ways."""
        self._way = begin
        super().__init__(optimizer, model, alpha=alpha, seed=seed, compression=compression,
                         may_switch=True, **options)

    def switch_to(self, way: str) -> None:
        """Another way from the next step on; all members make the same call between the same two
        steps. The first synchronous step makes all models equal to their mean."""
        self._together.switch_to(way)
