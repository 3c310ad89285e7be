"""Token files and the randomness of samples, as tensors and generators."""

from __future__ import annotations

from typing import Any, Tuple

import torch

from ..data import TokenFile, current_sample


class TokenDataset:
    """Files of token ids as (inputs, targets) of int64, for a loader; see pliant.data.TokenFile,
    whose arguments it takes."""

    def __init__(self, paths: Any, block: int, **options: Any) -> None:
        self.files = TokenFile(paths, block, **options)
        # torch has no unsigned types of these widths everywhere.
        self._narrow = torch.int16 if self.files.dtype == "u16" else torch.int32
        self._mask = 0xffff if self.files.dtype == "u16" else 0xffffffff

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        # A copy: tensors over read-only memory are not safe, and a window is small.
        window = bytearray(self.files[index].cast("B"))
        tokens = torch.frombuffer(window, dtype=self._narrow).to(torch.int64) & self._mask
        return tokens[:-1], tokens[1:]


def sample_generator() -> torch.Generator:
    """The generator of the sample that is being read; each call goes on where the last ended."""
    sample = current_sample()
    if "torch" not in sample.generators:
        sample.generators["torch"] = torch.Generator().manual_seed(sample.seed)
    return sample.generators["torch"]
