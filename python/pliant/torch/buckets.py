"""Parameters, gradients and buffers of a model as flat memory, which the core works on."""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Tuple

import torch

from ..errors import Invalid
from ..session import Session
from .memory import allocate


class Bucket:
    """Some parameters of one type and their gradients, one behind the other. `parameter.data` and
    `parameter.grad` are views of it."""

    def __init__(self, number: int, indices: List[int], parameters: List[torch.nn.Parameter],
                 session: Session, sends_parameters: bool) -> None:
        self.number = number
        self.indices = indices
        count = sum(parameters[i].numel() for i in indices)
        dtype = parameters[indices[0]].dtype
        self.flat = allocate(count, dtype, session)  # the gradients
        # Models that go over the network are registered memory too.
        self.parameters = allocate(count, dtype, session) if sends_parameters else \
            torch.empty(count, dtype=dtype)
        self.views: Dict[int, torch.Tensor] = {}
        self.places: Dict[int, torch.Tensor] = {}
        at = 0
        for i in indices:
            end = at + parameters[i].numel()
            self.views[i] = self.flat[at:end].view(parameters[i].shape)
            self.places[i] = self.parameters[at:end].view(parameters[i].shape)
            self.places[i].copy_(parameters[i].data)
            parameters[i].data = self.places[i]
            at = end
        self.missing = set(indices)
        self.version = 0  # torch's count of changes, when it was handed in
        self.earlier: Optional[torch.Tensor] = None  # of samples that were handed in before


def make_buckets(parameters: List[torch.nn.Parameter], bytes_max: int, session: Session,
                 sends_parameters: bool) -> List[Bucket]:
    """Of one type each, in the order in which a backward pass makes the gradients."""
    buckets: List[List[int]] = []
    filling: Dict[torch.dtype, Tuple[List[int], int]] = {}
    for i in reversed(range(len(parameters))):
        parameter = parameters[i]
        if parameter.numel() == 0:
            continue
        indices, size = filling.get(parameter.dtype, ([], 0))
        if not indices or size >= bytes_max:
            indices, size = [], 0
            buckets.append(indices)
        indices.append(i)
        size += parameter.numel() * parameter.element_size()
        filling[parameter.dtype] = (indices, size)
    return [Bucket(number, indices, parameters, session, sends_parameters)
            for number, indices in enumerate(buckets)]


class ModelBuffers:
    """Buffers of the model (running means, counters) of one type, which the members make equal."""

    def __init__(self, name: str, tensors: List[torch.Tensor], session: Session) -> None:
        self.name = name
        self.tensors = tensors
        self.flat = allocate(sum(t.numel() for t in tensors), tensors[0].dtype, session)
        self.is_float = tensors[0].dtype.is_floating_point

    def parts(self) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor, and its place in the flat memory."""
        at = 0
        for tensor in self.tensors:
            yield tensor, self.flat[at:at + tensor.numel()].view(tensor.shape)
            at += tensor.numel()


def make_model_buffers(model: Optional[torch.nn.Module], session: Session) -> List[ModelBuffers]:
    """Registers the model's buffers as state; newcomers get them."""
    kinds: Dict[torch.dtype, List[torch.Tensor]] = {}
    for name, buffer in model.named_buffers() if model is not None else ():
        if not buffer.numel():
            continue
        if not buffer.is_contiguous():
            raise Invalid(f"the buffer '{name}' is not contiguous")
        session.register_state(f"buffer {name}"[:200], buffer)
        kinds.setdefault(buffer.dtype, []).append(buffer)
    return [ModelBuffers(f"pliant/buffers/{number}", tensors, session)
            for number, (dtype, tensors) in enumerate(kinds.items()) if dtype != torch.bool]
