"""The state of a torch optimizer as elastic state: newcomers get it, bit for bit.

torch makes up most of it in the first step, and replaces some of it later. So its shape is learnt
from a step of a copy; memory of that shape is registered; and whatever the optimizer makes is moved
there before the next step begins. Numbers (learning rates, counters) travel as a value.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Tuple

import torch

from ..errors import Invalid
from ..session import Session


class OptimizerState:
    """Belongs to an ElasticOptimizer; used by the thread that trains."""

    def __init__(self, session: Session, optimizer: torch.optim.Optimizer,
                 parameters: List[Tuple[str, torch.nn.Parameter]], may_differ: bool) -> None:
        """Where models may differ between members, so may this; it goes with the model then, as
        `buckets`."""
        self._optimizer = optimizer
        self._parameters = [parameter for _, parameter in parameters]
        self._tensors: Dict[Tuple[int, str], torch.Tensor] = {}
        self._numbers: List[Tuple[int, str]] = []
        #: Names and memory for a Synchroniser.
        self.buckets: List[Tuple[str, torch.Tensor, None]] = []
        for (index, key), value in _shape_of_state(optimizer, self._parameters):
            if isinstance(value, torch.Tensor):
                memory = torch.zeros_like(value, memory_format=torch.contiguous_format)
                self._tensors[index, key] = memory
                name = f"{index}: {key} of {parameters[index][0]}"[:100]
                if may_differ:
                    self.buckets.append((name, memory, None))
                else:
                    session.register_state(name, memory)
            else:
                self._numbers.append((index, key))
        groups = len(optimizer.param_groups)
        session.register_value("optimizer", self._get, self._set,
                               4096 * groups + 64 * len(self._numbers))

    def _get(self) -> Dict[str, Any]:
        """Everything that is no tensor; the tensors are moved to where they are registered."""
        state = self._optimizer.state
        made = False
        for (index, key), memory in self._tensors.items():
            value = state.get(self._parameters[index], {}).get(key)
            if value is None:
                continue
            made = True
            if value.data_ptr() != memory.data_ptr():
                memory.copy_(value)
                state[self._parameters[index]][key] = memory
        numbers = [state.get(self._parameters[index], {}).get(key)
                   for index, key in self._numbers]
        return {"made": made or any(number is not None for number in numbers),
                "numbers": numbers,
                "groups": [_plain(group) for group in self._optimizer.param_groups]}

    def _set(self, value: Dict[str, Any]) -> None:
        """Takes what others have, whose tensors have arrived already."""
        for group, theirs in zip(self._optimizer.param_groups, value["groups"]):
            for key, number in theirs.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(number)
                else:
                    group[key] = tuple(number) if isinstance(group.get(key), tuple) else number
        if not value["made"]:
            return
        state = self._optimizer.state
        for (index, key), memory in self._tensors.items():
            state[self._parameters[index]][key] = memory
        for (index, key), number in zip(self._numbers, value["numbers"]):
            if number is not None:
                state[self._parameters[index]][key] = number


def _plain(group: Dict[str, Any]) -> Dict[str, Any]:
    """The numbers of a group of parameters."""
    found = {}
    for key, value in group.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            found[key] = value.item()
        elif isinstance(value, (bool, int, float, str, type(None))) or (
                isinstance(value, tuple) and all(isinstance(x, (int, float)) for x in value)):
            found[key] = value
    return found


def _shape_of_state(optimizer: torch.optim.Optimizer, parameters: List[torch.nn.Parameter]
                    ) -> List[Tuple[Tuple[int, str], Any]]:
    """What the optimizer remembers of each parameter, by its index and key, after a step of a copy
    with gradients of zero."""
    name = type(optimizer).__name__
    trial = copy.deepcopy(optimizer)
    copies = [parameter for group in trial.param_groups for parameter in group["params"]
              if parameter.requires_grad]
    for parameter in copies:
        parameter.grad = torch.zeros_like(parameter)
    try:
        type(trial).step(trial)  # a scheduler may have put another one into the instance
    except Exception as error:
        raise Invalid(f"{name} cannot be made elastic: a step without a closure fails "
                      f"({error})") from error
    found = []
    for index, parameter in enumerate(copies):
        for key, value in sorted(trial.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor) and value.numel() or isinstance(
                    value, (bool, int, float)):
                found.append(((index, key), value))
            elif value is not None and not isinstance(value, torch.Tensor):
                raise Invalid(f"{name} cannot be made elastic: its state '{key}' is a "
                              f"{type(value).__name__}, neither a tensor nor a number")
    assert len(copies) == len(parameters)
    return found
