"""The collective operations over the world or a group, and works that are under way.

Every member of the group makes the same call with the same name, type, operator, root and counts.
Buffers are whatever `buffers` understands. A call returns its output; the forms that end in _async
return a Work at once, which keeps the buffers and has the output as its result.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Union

from ._library import OK, check, failure, library
from .buffers import NOTHING, Buffer, DType, buffer_of, op_of, writable_buffer_of
from .errors import Invalid, PliantError

if TYPE_CHECKING:
    from .session import Session

Type = Union[str, int, None]


class Work:
    """An operation that was started. Any thread may wait for it, any number of times.

    The buffers are its own until it has finished; a work that is dropped is waited for, so that
    nobody frees them too early.
    """

    def __init__(self, session: "Session", handle: int, result: Any, kept: Any) -> None:
        self._session = session
        self._library = session._library
        self._handle: Optional[int] = handle
        self._result = result
        self._kept = kept
        self._error: Optional[PliantError] = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """True if it has finished; never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._handle is None:
                return True
            finished = ctypes.c_int()
            check(self._library.work_test(self._handle, finished))
            return finished.value != 0
        finally:
            self._lock.release()

    def wait(self) -> None:
        """Returns when it has finished, or raises why it failed."""
        with self._lock:
            self._finish()
        if self._error is not None:
            raise self._error

    def result(self) -> Any:
        """The output, once it has finished."""
        self.wait()
        return self._result

    def _finish(self) -> None:
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        status = self._library.work_destroy(handle)
        if status != OK:
            self._error = failure(status, self._session._handle)
        self._kept = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._session._is_ours():
            self._finish()


class Call(NamedTuple):
    """An operation that is ready to run: its function, what follows the name, its output, and the
    memory that must stay."""

    function: str
    name: str
    arguments: tuple
    result: Any
    kept: tuple


class Collectives:
    """The operations. A Session is one of these over the world, a Group over some members."""

    _library: Any
    _session: "Session"
    _group: Optional[int] = None  # null is the world

    @property
    def rank(self) -> int:
        """The own position among the members."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """The number of members."""
        raise NotImplementedError

    # ---- Running them ------------------------------------------------------------------------

    def _run(self, call: Call) -> Any:
        session = self._session._live()
        status = getattr(self._library, call.function)(session, self._group, call.name.encode(),
                                                       *call.arguments)
        if status != OK:
            raise failure(status, session)
        return call.result

    def _start(self, call: Call) -> Work:
        session = self._session._live()
        handle = ctypes.c_void_p()
        status = getattr(self._library, call.function + "_async")(
            session, self._group, call.name.encode(), *call.arguments, handle)
        if status != OK:
            raise failure(status, session)
        assert handle.value is not None
        return Work(self._session, handle.value, call.result, (call.kept, self))

    # ---- All reduce, reduce, broadcast -------------------------------------------------------

    def all_reduce(self, name: str, input: Any, output: Any = None, op: Union[str, int] = "sum",
                   dtype: Type = None) -> Any:
        """Reduces over all members, the result to every one; without an output in place."""
        return self._run(self._all_reduce(name, input, output, op, dtype))

    def all_reduce_async(self, name: str, input: Any, output: Any = None,
                         op: Union[str, int] = "sum", dtype: Type = None) -> Work:
        """Starts all_reduce."""
        return self._start(self._all_reduce(name, input, output, op, dtype))

    def _all_reduce(self, name: str, input: Any, output: Any, op: Union[str, int],
                    dtype: Type) -> Call:
        if output is None:
            to = writable_buffer_of(input, "the input, which is reduced in place,", dtype)
            return Call("all_reduce", name, (to.address, to.address, to.count, to.dtype,
                                             op_of(op)), input, (to,))
        source, to = _pair(input, output, dtype)
        _fits(to, source.count)
        return Call("all_reduce", name, (source.address, to.address, source.count, source.dtype,
                                         op_of(op)), output, (source, to))

    def reduce(self, name: str, input: Any, output: Any = None, op: Union[str, int] = "sum",
               root: int = 0, dtype: Type = None) -> Any:
        """Reduces over all members, the result to the root; without an output in place there."""
        return self._run(self._reduce(name, input, output, op, root, dtype))

    def reduce_async(self, name: str, input: Any, output: Any = None,
                     op: Union[str, int] = "sum", root: int = 0, dtype: Type = None) -> Work:
        """Starts reduce."""
        return self._start(self._reduce(name, input, output, op, root, dtype))

    def _reduce(self, name: str, input: Any, output: Any, op: Union[str, int], root: int,
                dtype: Type) -> Call:
        source, to = buffer_of(input, "the input", dtype), NOTHING
        if output is not None:
            source, to = _pair(input, output, dtype)
            _fits(to, source.count)
        elif self.rank == root:
            output, to = input, writable_buffer_of(input, "the input, which is reduced in place,",
                                                   dtype)
        return Call("reduce", name, (source.address, to.address, source.count, source.dtype,
                                     op_of(op), root), output, (source, to))

    def broadcast(self, name: str, buffer: Any, root: int = 0, dtype: Type = None) -> Any:
        """Copies the root's buffer into everybody's."""
        return self._run(self._broadcast(name, buffer, root, dtype))

    def broadcast_async(self, name: str, buffer: Any, root: int = 0, dtype: Type = None) -> Work:
        """Starts broadcast."""
        return self._start(self._broadcast(name, buffer, root, dtype))

    def _broadcast(self, name: str, buffer: Any, root: int, dtype: Type) -> Call:
        describe = buffer_of if self.rank == root else writable_buffer_of
        data = describe(buffer, "the buffer", dtype)
        return Call("broadcast", name, (data.address, data.count, data.dtype, root), buffer,
                    (data,))

    # ---- Gather, scatter and their kin -------------------------------------------------------

    def all_gather(self, name: str, input: Any, output: Any,
                   counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Any:
        """Concatenates all blocks on every member. Without an input the own block stands in its
        place of the output; `counts` are the blocks' lengths if they differ."""
        return self._run(self._all_gather(name, input, output, counts, dtype))

    def all_gather_async(self, name: str, input: Any, output: Any,
                         counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Work:
        """Starts all_gather."""
        return self._start(self._all_gather(name, input, output, counts, dtype))

    def _all_gather(self, name: str, input: Any, output: Any,
                    counts: Optional[Sequence[int]], dtype: Type) -> Call:
        source, to = _pair(input, output, dtype)
        form, count = self._blocks(to, counts, "the output")
        if source.owner is not None:
            _fits(source, count[self.rank] if counts is not None else count, "the input")
        return Call("all_gather" + form, name, (source.address, to.address, count, to.dtype),
                    output, (source, to))

    def gather(self, name: str, input: Any, output: Any = None, root: int = 0,
               counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Any:
        """Concatenates all blocks on the root; the others need no output."""
        return self._run(self._gather(name, input, output, root, counts, dtype))

    def gather_async(self, name: str, input: Any, output: Any = None, root: int = 0,
                     counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Work:
        """Starts gather."""
        return self._start(self._gather(name, input, output, root, counts, dtype))

    def _gather(self, name: str, input: Any, output: Any, root: int,
                counts: Optional[Sequence[int]], dtype: Type) -> Call:
        if self.rank == root:
            call = self._all_gather(name, input, _needed(output, "output", "gather"), counts,
                                    dtype)
            return call._replace(function=call.function[len("all_"):],
                                 arguments=(*call.arguments, root))
        source = buffer_of(input, "the input", dtype)
        form, count = self._own_block(source, counts, "the input")
        return Call("gather" + form, name, (source.address, None, count, source.dtype, root),
                    None, (source,))

    def scatter(self, name: str, input: Any, output: Any, root: int = 0,
                counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Any:
        """Gives each member its block of the root's input; the others need no input."""
        return self._run(self._scatter(name, input, output, root, counts, dtype))

    def scatter_async(self, name: str, input: Any, output: Any, root: int = 0,
                      counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Work:
        """Starts scatter."""
        return self._start(self._scatter(name, input, output, root, counts, dtype))

    def _scatter(self, name: str, input: Any, output: Any, root: int,
                 counts: Optional[Sequence[int]], dtype: Type) -> Call:
        if self.rank == root:
            source, to = _pair(_needed(input, "input", "scatter"), output, dtype)
            self._blocks(source, counts, "the input")
        else:
            source, to = NOTHING, writable_buffer_of(output, "the output", dtype)
        form, count = self._own_block(to, counts, "the output")
        if self.rank == root and not form:
            _fits(source, count * self.size, "the input")
        return Call("scatter" + form, name, (source.address, to.address, count, to.dtype, root),
                    output, (source, to))

    def reduce_scatter(self, name: str, input: Any, output: Any, op: Union[str, int] = "sum",
                       counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Any:
        """Reduces inputs that have a block for each member, and gives each its block."""
        return self._run(self._reduce_scatter(name, input, output, op, counts, dtype))

    def reduce_scatter_async(self, name: str, input: Any, output: Any,
                             op: Union[str, int] = "sum",
                             counts: Optional[Sequence[int]] = None, dtype: Type = None) -> Work:
        """Starts reduce_scatter."""
        return self._start(self._reduce_scatter(name, input, output, op, counts, dtype))

    def _reduce_scatter(self, name: str, input: Any, output: Any, op: Union[str, int],
                        counts: Optional[Sequence[int]], dtype: Type) -> Call:
        source, to = _pair(input, output, dtype)
        form, count = self._blocks(source, counts, "the input")
        self._own_block(to, counts, "the output")
        if not form:
            _fits(to, count)
        return Call("reduce_scatter" + form, name,
                    (source.address, to.address, count, to.dtype, op_of(op)), output,
                    (source, to))

    def all_to_all(self, name: str, input: Any, output: Any, dtype: Type = None) -> Any:
        """Block r of the input goes to member r; block r of the output comes from member r."""
        return self._run(self._all_to_all(name, input, output, dtype))

    def all_to_all_async(self, name: str, input: Any, output: Any, dtype: Type = None) -> Work:
        """Starts all_to_all."""
        return self._start(self._all_to_all(name, input, output, dtype))

    def _all_to_all(self, name: str, input: Any, output: Any, dtype: Type) -> Call:
        source, to = _pair(input, output, dtype)
        _, count = self._blocks(source, None, "the input")
        _fits(to, source.count)
        return Call("all_to_all", name, (source.address, to.address, count, to.dtype), output,
                    (source, to))

    # ---- Barrier and messages ----------------------------------------------------------------

    def barrier(self, name: str = "barrier") -> None:
        """Returns when every member has called it."""
        self._run(Call("barrier", name, (), None, ()))

    def barrier_async(self, name: str = "barrier") -> Work:
        """Starts barrier."""
        return self._start(Call("barrier", name, (), None, ()))

    def send(self, name: str, input: Any, peer: int, dtype: Type = None) -> None:
        """Sends a message, which the peer receives under the same name."""
        self._run(self._send(name, input, peer, dtype))

    def send_async(self, name: str, input: Any, peer: int, dtype: Type = None) -> Work:
        """Starts send."""
        return self._start(self._send(name, input, peer, dtype))

    def _send(self, name: str, input: Any, peer: int, dtype: Type) -> Call:
        source = buffer_of(input, "the input", dtype)
        return Call("send", name, (source.address, source.count, source.dtype, peer), None,
                    (source,))

    def recv(self, name: str, output: Any, peer: int, dtype: Type = None) -> Any:
        """Receives a message of just the output's length."""
        return self._run(self._recv(name, output, peer, dtype))

    def recv_async(self, name: str, output: Any, peer: int, dtype: Type = None) -> Work:
        """Starts recv."""
        return self._start(self._recv(name, output, peer, dtype))

    def _recv(self, name: str, output: Any, peer: int, dtype: Type) -> Call:
        to = writable_buffer_of(output, "the output", dtype)
        return Call("recv", name, (to.address, to.count, to.dtype, peer), output, (to,))

    # ---- Lengths -----------------------------------------------------------------------------

    def _blocks(self, whole: Buffer, counts: Optional[Sequence[int]], what: str) -> tuple:
        """The form of the call and the count to pass, for a buffer with a block a member."""
        if counts is None:
            if whole.count % self.size:
                raise Invalid(f"{what} has {whole.count} elements, which {self.size} members "
                              "cannot share evenly; give counts")
            return "", whole.count // self.size
        if sum(counts) != whole.count:
            raise Invalid(f"{what} has {whole.count} elements, the counts {list(counts)} ask for "
                          f"{sum(counts)}")
        return "_v", self._counts(counts)

    def _own_block(self, block: Buffer, counts: Optional[Sequence[int]], what: str) -> tuple:
        """The same for a buffer that is the own block."""
        if counts is None:
            return "", block.count
        array = self._counts(counts)
        _fits(block, counts[self.rank], what)
        return "_v", array

    def _counts(self, counts: Sequence[int]) -> Any:
        if len(counts) != self.size or min(counts) < 0:
            raise Invalid(f"counts {list(counts)}: one for each of {self.size} members is needed, "
                          "none below zero")
        return (ctypes.c_size_t * len(counts))(*counts)


class Group(Collectives):
    """Some members, in an order of their own. Made by Session.group(); holds for one view."""

    def __init__(self, session: "Session", ranks: Sequence[int]) -> None:
        self._session = session
        self._library = session._library
        handle = ctypes.c_void_p()
        live = session._live()
        check(self._library.group_create(live, (ctypes.c_int * len(ranks))(*ranks), len(ranks),
                                         handle), live)
        self._group = handle.value
        place = ctypes.c_int()
        check(self._library.group_rank(self._group, place), live)
        self._rank, self._size = place.value, len(ranks)

    @property
    def rank(self) -> int:
        """The own position in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of its members."""
        return self._size

    def __del__(self) -> None:
        if self._group is not None and self._session._is_ours():
            library().group_destroy(self._group)


def _needed(value: Any, what: str, call: str) -> Any:
    if value is None:
        raise Invalid(f"the root of {call} needs an {what}")
    return value


def _pair(input: Any, output: Any, dtype: Type) -> tuple:
    """Input and output, of one type. No input means in place."""
    to = writable_buffer_of(output, "the output", dtype)
    if input is None:
        return NOTHING, to
    source = buffer_of(input, "the input", dtype)
    if source.dtype != to.dtype:
        raise Invalid(f"the input is {DType(source.dtype).name.lower()}, the output "
                      f"{DType(to.dtype).name.lower()}")
    return source, to


def _fits(buffer: Buffer, count: int, what: str = "the output") -> None:
    if buffer.count != count:
        raise Invalid(f"{what} has {buffer.count} elements; {count} are needed")
