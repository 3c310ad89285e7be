"""Samples: their randomness, files of tokens, and the learning rate of a batch. Without torch.

docs/DATA.md has the rules behind them.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import random
import sys
import threading
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Union

from ._library import check, library
from .errors import Invalid
from .session import Session, current_session

__all__ = ["LearningRate", "TokenFile", "current_sample", "reading_sample", "sample_random",
           "sample_seed", "write_tokens"]


# ---- Randomness ------------------------------------------------------------------------------

def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """The seed of whatever is drawn for a sample: by the job's seed, the epoch of the data and the
    sample alone, so that it does not depend on who computes it."""
    return library().sample_seed(seed, epoch, sample)


class CurrentSample:
    """The sample that this thread reads."""

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        self.epoch, self.index = epoch, index
        self.seed = sample_seed(seed, epoch, index)
        #: Generators that were made for it, by kind.
        self.generators: dict = {}


_reading = threading.local()


@contextlib.contextmanager
def reading_sample(seed: int, epoch: int, index: int) -> Iterator[CurrentSample]:
    """For loaders: what is read inside is this sample."""
    before = getattr(_reading, "sample", None)
    _reading.sample = CurrentSample(seed, epoch, index)
    try:
        yield _reading.sample
    finally:
        _reading.sample = before


def current_sample() -> CurrentSample:
    """The sample that a loader reads on this thread: for datasets and their transforms."""
    sample = getattr(_reading, "sample", None)
    if sample is None:
        raise Invalid("no sample is being read: this is for what a loader calls, such as "
                      "__getitem__ of a dataset")
    return sample


def sample_random() -> random.Random:
    """Random numbers of the sample that is being read; each call goes on where the last ended."""
    sample = current_sample()
    if "random" not in sample.generators:
        sample.generators["random"] = random.Random(sample.seed)
    return sample.generators["random"]


# ---- Tokens ----------------------------------------------------------------------------------

_CODES = {"u16": "H", "u32": "I"}


def _code_of(dtype: str) -> str:
    if dtype not in _CODES:
        raise Invalid(f"token ids are \"u16\" or \"u32\", not {dtype!r}")
    return _CODES[dtype]


class _File(NamedTuple):
    path: str
    tokens: memoryview
    first_sample: int


class TokenFile:
    """Files of token ids (raw, little-endian, no header) as one dataset, mapped into memory.

    Sample i is a window of block + 1 tokens, as a memoryview of the mapped file: the first `block`
    are a model's input, the last `block` its targets. Windows begin every `block` tokens and stay
    inside their file. pliant.torch.TokenDataset gives them as tensors.
    """

    def __init__(self, paths: Union[str, "os.PathLike[str]", Sequence[Any]], block: int, *,
                 dtype: str = "u16", vocabulary: Optional[int] = None) -> None:
        """With `vocabulary`, a sample with a token that is not below it is refused."""
        code = _code_of(dtype)
        if block < 1:
            raise Invalid(f"a block has at least one token, not {block}")
        names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not names:
            raise Invalid("there are no token files; name at least one")
        self.block, self.dtype, self.vocabulary = block, dtype, vocabulary
        self._files: List[_File] = []
        self._samples = 0
        for name in names:
            tokens = self._map(os.fspath(name), code, dtype)
            self._files.append(_File(os.fspath(name), tokens, self._samples))
            self._samples += (len(tokens) - 1) // block

    def _map(self, path: str, code: str, dtype: str) -> memoryview:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise Invalid(f"cannot read the token file {path}: {error.strerror}") from error
        width = array.array(code).itemsize
        if size % width:
            raise Invalid(f"{path} has {size} bytes, which is no whole number of {dtype} tokens; "
                          "is it of another type, or cut short?")
        if size // width < self.block + 1:
            raise Invalid(f"{path} has {size // width} tokens, fewer than one sample of "
                          f"{self.block + 1} (a block of {self.block} and the token after it)")
        return memoryview(data).cast(code)

    @property
    def tokens(self) -> int:
        """Of all files."""
        return sum(len(file.tokens) for file in self._files)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> memoryview:
        if not 0 <= index < self._samples:
            raise IndexError(f"there is no sample {index}: the token files have {self._samples}")
        file = next(file for file in reversed(self._files) if file.first_sample <= index)
        first = (index - file.first_sample) * self.block
        window = file.tokens[first:first + self.block + 1]
        if self.vocabulary is not None and max(window) >= self.vocabulary:
            place = next(i for i, token in enumerate(window) if token >= self.vocabulary)
            raise Invalid(f"{file.path} has token {window[place]} at position {first + place}, but "
                          f"the vocabulary has {self.vocabulary}")
        return window


def write_tokens(path: Union[str, "os.PathLike[str]"], tokens: Iterable[int],
                 dtype: str = "u16") -> int:
    """Writes a token file, which has its name only once it is complete; returns the number of
    tokens."""
    try:
        numbers = array.array(_code_of(dtype), tokens)
    except (OverflowError, TypeError) as error:
        raise Invalid(f"a token does not fit into {dtype}: {error}") from error
    if sys.byteorder == "big":
        numbers.byteswap()
    partial = os.fspath(path) + ".partial"
    try:
        with open(partial, "wb") as file:
            numbers.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return len(numbers)


# ---- The learning rate -----------------------------------------------------------------------

class LearningRate:
    """What the learning rate is multiplied by, where batches are not those it was chosen for.

        rate = pliant.data.LearningRate("linear", base_batch=64, optimizer=optimizer)
        for batch in loader:
            ...
            rate.apply()         # sets the rates of the optimizer's groups
            optimizer.step()
    """

    def __init__(self, rule: str, base_batch: int, *, warm_up_steps: int = 0, optimizer: Any = None,
                 session: Optional[Session] = None) -> None:
        """`rule` is "none", "linear" (SGD) or "sqrt" (Adam and the like). A factor that grows gets
        there in `warm_up_steps` steps, one that falls at once. Before the first step: newcomers
        get what it remembers. The rates of the optimizer are those for `base_batch`."""
        if base_batch < 1 or warm_up_steps < 0:
            raise Invalid(f"base_batch is {base_batch}, warm_up_steps {warm_up_steps}: a batch has "
                          "at least one sample, and a warm-up no fewer than zero steps")
        self.session = session or current_session()
        self._rule, self._base_batch, self._warm_up_steps = rule, base_batch, warm_up_steps
        self._optimizer = optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups] if optimizer else []
        self._factor(None, 1, base_batch)  # the rule is checked here, not in the first step
        self._memory = bytearray(24)  # pliant_learning_rate
        self.session.register_state("learning rate", self._memory)

    def factor(self) -> float:
        """Of the step that is open, or was committed last; the same on all members."""
        step = self.session.step
        if step is None:
            return 1.0
        state = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        return self._factor(ctypes.addressof(state), step.number, step.batch)

    def apply(self) -> float:
        """Sets the rates of the optimizer by the factor, which it returns."""
        factor = self.factor()
        if self._optimizer is None:
            raise Invalid("there is no optimizer whose rates could be set; give one to "
                          "LearningRate, or use factor()")
        for group, rate in zip(self._optimizer.param_groups, self._rates):
            group["lr"] = rate * factor
        return factor

    def _factor(self, state: Optional[int], step: int, batch: int) -> float:
        factor = ctypes.c_double()
        check(library().learning_rate_factor(self._rule.encode(), self._base_batch,
                                             self._warm_up_steps, step, batch, state, factor))
        return factor.value
