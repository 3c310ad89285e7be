"""One step of elastic training, which all members commit or none."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Union

from ._library import CANCELLED, MORE, OK, check, failure
from .buffers import FORMATS, DType, buffer_of, op_of, writable_buffer_of
from .collectives import Type
from .errors import Invalid

if TYPE_CHECKING:
    from .session import Session


class Contributors(NamedTuple):
    """Whose inputs are in a committed step: so many members, so many samples."""

    members: int
    samples: int


class Step:
    """One training step. Made by Session.begin_step(), ends with commit()."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._handle = session._live()
        self._library = session._library
        self._kept: List[Any] = []
        self._types: Dict[str, DType] = {}
        #: True until it is committed, or this member is out of the job.
        self.open = True
        #: True once it was committed by every member.
        self.committed = False
        #: True if the last commit() has dealt further samples instead: add their gradients to
        #: those that you have, hand all inputs in again, and commit again.
        self.more = False
        #: True if commit() found that this member is out of the job: its loop ends.
        self.out = False

    @property
    def number(self) -> int:
        """Counts from 1 over the life of the job, whoever its members were."""
        number = ctypes.c_uint64()
        check(self._library.step_number(self._handle, number), self._handle)
        return number.value

    @property
    def samples(self) -> List[int]:
        """The numbers of the samples that this member computes, those of `more` alone; empty
        without a sampler."""
        first = ctypes.POINTER(ctypes.c_uint64)()
        count = ctypes.c_size_t()
        check(self._library.step_samples(self._handle, first, count), self._handle)
        return first[:count.value] if count.value else []

    @property
    def batch(self) -> int:
        """The batch that the step was dealt out by, of all members; the last step of an epoch may
        have fewer samples. The same on all members, even where the view changes meanwhile."""
        samples = ctypes.c_uint64()
        check(self._library.step_batch(self._handle, samples), self._handle)
        return samples.value

    def all_reduce(self, name: str, input: Any, output: Any = None,
                   op: Union[str, int] = "mean", dtype: Type = None) -> None:
        """Hands in an input, which must not change before commit() has returned. "mean" divides by
        the number of members, with a sampler by that of all samples: hand in the sum over yours.
        The commit copies the result to the output, if there is one; it may be the input."""
        source = buffer_of(input, "the input", dtype)
        to = None
        if output is not None:
            to = writable_buffer_of(output, "the output", dtype)
            if (to.count, to.dtype) != (source.count, source.dtype):
                raise Invalid(f"the output of '{name}' has another length or type than its input")
        check(self._library.step_all_reduce(self._handle, name.encode(), source.address,
                                            to.address if to else None, source.count,
                                            source.dtype, op_of(op)), self._handle)
        self._kept.append((source, to))
        self._types[name] = DType(source.dtype)

    def commit(self) -> bool:
        """Completes the step, on every member or on none. True: apply the results. False: there
        are `more` samples, or this member is out of the job and its loop ends."""
        status = self._session._commit()
        self.more = status == MORE
        self.committed = status == OK
        self.out = status == CANCELLED
        self.open = self.more
        self._kept.clear()
        if status not in (OK, MORE, CANCELLED):
            raise failure(status, self._handle)
        if self.committed and self._session.samples:
            self._session.samples_committed += self.contributors.samples
        return self.committed

    def __iter__(self) -> Iterator[List[int]]:
        """Gives the samples, and commits when their turn is over; again while there are more:
        `for samples in step: ...; step.all_reduce(...)`, then look at `committed`."""
        while self.open:
            yield self.samples
            self.commit()

    def result(self, name: str) -> memoryview:
        """A copy of a result of this step, once it is committed, as elements of its type."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        check(self._library.step_result(self._handle, name.encode(), data, size), self._handle)
        return memoryview(bytearray(ctypes.string_at(data.value, size.value))).cast(
            FORMATS[self._types[name]])

    @property
    def contributors(self) -> Contributors:
        """Whose inputs are in the committed step."""
        members, samples = ctypes.c_int(), ctypes.c_uint64()
        check(self._library.step_contributors(self._handle, members, samples), self._handle)
        return Contributors(members.value, samples.value)
