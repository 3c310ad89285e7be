"""Tensors in registered memory."""

from __future__ import annotations

from typing import Optional, Sequence, Union

import torch

from ..session import Session, current_session


def allocate(shape: Union[int, Sequence[int]], dtype: torch.dtype = torch.float32,
             session: Optional[Session] = None) -> torch.Tensor:
    """A tensor of zeros that the peers of this host can reach: operations on it make no copy. Its
    memory is given back when no tensor uses it any more."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    element = torch.empty((), dtype=dtype).element_size()
    memory = (session or current_session()).allocate(count * element)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
