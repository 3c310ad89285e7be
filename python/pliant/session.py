"""A Session: this process's membership in a job, and the steps of elastic training.

Any thread may make any call, several at once; steps belong to the one that trains.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._library import NEWEST, Options, check, library
from .buffers import FORMATS, DType, buffer_of, dtype_of, op_of, writable_buffer_of
from .collectives import Collectives, Group, Type
from .errors import Cancelled, Invalid
from .monitoring import Monitoring
from .step import Step
from .synchroniser import Synchroniser

_COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
                "reduce_scatter", "all_to_all", "barrier", "send", "recv")


class View(NamedTuple):
    """Where this process stands; a rank means nothing without the epoch."""

    epoch: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    hosts: int


class _Value(NamedTuple):
    """A small value that all members keep equal, as text in registered memory."""

    name: str
    memory: Any
    get: Callable[[], Any]
    set: Callable[[Any], None]


class Snapshot:
    """A copy of the registered state on its way to the host's store."""

    def __init__(self, session: "Session", handle: int) -> None:
        self._session, self._handle = session, handle

    def wait(self) -> None:
        """Returns when it is complete, or raises why it failed."""
        check(library().snapshot_wait(self._handle), self._session._handle)

    def done(self) -> bool:
        """True if wait() would return at once."""
        finished = ctypes.c_int()
        check(library().snapshot_test(self._handle, finished))
        return finished.value != 0

    def __del__(self) -> None:
        if self._session._is_ours():
            library().snapshot_destroy(self._handle)


class Session(Collectives, Monitoring):
    """Membership in the job that `pliant run` has started, or alone as rank 0 of 1.

    Its operations are those over all members. `with pliant.Session() as session:` closes it at the
    end; so does the end of the program.
    """

    def __init__(self, *, coordinator: Optional[str] = None, job: Optional[str] = None,
                 token: Optional[str] = None, peer: Optional[str] = None,
                 host: Optional[str] = None, address: Optional[str] = None,
                 transport: Optional[str] = None, strategy: Optional[str] = None,
                 timeout_seconds: float = 0, join_timeout_seconds: float = 0,
                 heap_bytes_max: int = 0, connections: int = 0, store_window: int = 0) -> None:
        """Joins the job, and returns when all members are there. What is not given comes from the
        environment. `coordinator=""` is a session alone, whatever launched us."""
        Monitoring.__init__(self)
        self._handle: Optional[int] = None
        self._pid = os.getpid()
        self._library = library()
        self._session = self
        texts = dict(coordinator=coordinator, job=job, token=token, peer=peer, host=host,
                     address=address, transport=transport, strategy=strategy)
        numbers = dict(timeout_seconds=timeout_seconds, join_timeout_seconds=join_timeout_seconds,
                       heap_bytes_max=heap_bytes_max, connections=connections,
                       store_window=store_window)
        given = {name: text.encode() for name, text in texts.items() if text is not None}
        given.update((name, number) for name, number in numbers.items() if number)
        handle = ctypes.c_void_p()
        if given:
            options = Options()
            check(self._library.options_init(options, ctypes.sizeof(options)))
            for name, value in given.items():
                setattr(options, name, value)
            check(self._library.session_open_with(options, handle))
        else:
            check(self._library.session_open(handle))
        self._handle = handle.value
        self._closing = False
        self._lock = threading.RLock()
        self._views: Dict[int, weakref.ref] = {}  # memory that is seen by somebody, by address
        self._lent: Dict[str, Tuple[int, memoryview]] = {}  # shared results, with addresses
        self._registered: List[Any] = []
        self._values: List[_Value] = []
        self._on_close: List[Callable[[], None]] = []
        self._together: Optional[Synchroniser] = None
        self._completion: Any = None  # of pliant.torch
        self._buckets: Dict[int, Any] = {}  # of DDP
        #: The number of samples of an epoch, if use_sampler() was called; otherwise 0.
        self.samples = 0
        #: Samples in all committed steps of the job, whoever its members were.
        self.samples_committed = 0
        #: The open step, or the last one; None before the first.
        self.step: Optional[Step] = None
        #: What a loader calls in a step in which this member has no samples; it ends the step.
        self.idle: Optional[Callable[[Step], Any]] = None
        _open_sessions.add(self)

    # ---- Its life ----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closing or self._handle is None

    def close(self) -> None:
        """Leaves the job; operations in flight end with Cancelled. Registered memory that somebody
        still sees keeps the session until that is gone, at most until the program ends."""
        if self._closing or self._handle is None or not self._is_ours():
            return
        for call in reversed(self._on_close):
            call()
        self._closing = True
        if self._together is not None:
            self._together._kept.clear()
        self.idle = None
        for _, view in self._lent.values():
            try:
                view.release()
            except BufferError:
                pass  # an array was made out of it, and keeps the session
        self._lent.clear()
        self._leave_if_unseen()

    def on_close(self, call: Callable[[], None]) -> None:
        """Has `call` run when the session is about to be closed, the last one first."""
        self._on_close.append(call)

    def _await_works(self, finished: ctypes.c_uint64, seconds: float) -> None:
        """Waits for a work that is not counted yet, and counts it; see pliant_await_works."""
        live = self._live()
        check(self._library.await_works(live, finished, seconds), live)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._is_ours():
            self._leave()

    def _is_ours(self) -> bool:
        """False in a forked child, which has no part in the job."""
        return os.getpid() == self._pid

    def _live(self) -> int:
        if self._handle is None or self._closing:
            raise Cancelled("the session is closed")
        return self._handle

    def _leave_if_unseen(self) -> None:
        with self._lock:
            if self._closing and not self._views:
                self._leave()

    def _leave(self) -> None:
        handle, self._handle = self._handle, None
        if self._together is not None:
            self._together._end()
        if handle is not None:
            self._library.session_close(handle)
        self._registered.clear()
        self._values.clear()

    # ---- Where it stands ---------------------------------------------------------------------

    def _number(self, function: Any, kind: Any = ctypes.c_int) -> int:
        number = kind()
        live = self._live()
        check(function(live, number), live)
        return number.value

    @property
    def rank(self) -> int:
        """The own position among all members; begin_step() and commit() may change it."""
        return self._number(self._library.rank)

    @property
    def size(self) -> int:
        """The number of members."""
        return self._number(self._library.size)

    @property
    def local_rank(self) -> int:
        """The own position among the members of this host."""
        return self._number(self._library.local_rank)

    @property
    def local_size(self) -> int:
        """The number of members on this host."""
        return self._number(self._library.local_size)

    @property
    def host_count(self) -> int:
        """The number of hosts."""
        return self._number(self._library.host_count)

    @property
    def epoch(self) -> int:
        """The number of the view, which only grows and begins at 1."""
        return self._number(self._library.epoch, ctypes.c_uint32)

    @property
    def view(self) -> View:
        """All of these at once."""
        return View(self.epoch, self.rank, self.size, self.local_rank, self.local_size,
                    self.host_count)

    def group(self, ranks: Sequence[int]) -> Group:
        """The members with these ranks, in this order; the caller is one of them. Purely local:
        every member of the group makes the same call."""
        return Group(self, ranks)

    # ---- Memory ------------------------------------------------------------------------------

    def allocate(self, count: int, dtype: Union[str, int] = "u8") -> memoryview:
        """Zeroed memory that the peers of this host can reach: operations on it make no copy. It
        is given back when nobody sees it any more. Types that Python has no format for (f16, bf16,
        f8) are seen as unsigned numbers."""
        kind = dtype_of(dtype)
        memory = ctypes.c_void_p()
        live = self._live()
        check(self._library.allocate(live, max(1, count * kind.size), memory), live)
        assert memory.value is not None
        view = self._seen(memory.value, count * kind.size, self._release)
        return memoryview(view).cast("B").cast(FORMATS[kind])

    def share(self, buffer: Any) -> None:
        """Makes memory of the caller's own registered memory, where it is: whole pages that were
        mapped for it alone, as mmap gives them. It stays mapped until unshare()."""
        memory = writable_buffer_of(buffer, "the buffer", "u8")
        self._share(memory.address, memory.count)

    def unshare(self, buffer: Any) -> None:
        """Makes such memory private again, with what it holds."""
        live = self._live()
        check(self._library.unshare(live, buffer_of(buffer, "the buffer", "u8").address), live)

    def is_registered(self, buffer: Any) -> bool:
        """True if operations on all of it make no copy: memory of allocate() or share()."""
        memory = buffer_of(buffer, "the buffer", "u8")
        found = ctypes.c_int()
        live = self._live()
        check(self._library.is_registered(live, memory.address, memory.count, found), live)
        return found.value != 0

    def _share(self, address: int, size: int) -> None:
        live = self._live()
        check(self._library.share(live, address, size), live)

    def _unshare(self, address: int) -> None:
        """The same at the end of the memory's life; after that of the session there is nothing to
        do."""
        with self._lock:
            if self._handle is not None and self._is_ours():
                self._library.unshare(self._handle, address)

    def _seen(self, address: int, size: int, end: Callable[[int], None]) -> Any:
        """Memory of the core that counts as seen while the returned object, or anything that was
        made out of it, lives."""
        memory = (ctypes.c_ubyte * size).from_address(address)

        def gone(_: Any, session: "weakref.ref[Session]" = weakref.ref(self)) -> None:
            owner = session()
            if owner is not None and owner._is_ours():
                owner._unseen(address, end)

        memory.session = self  # keeps it open while the memory is seen
        self._views[address] = weakref.ref(memory, gone)
        return memory

    def _unseen(self, address: int, end: Callable[[int], None]) -> None:
        with self._lock:
            self._views.pop(address, None)
            if self._handle is not None:
                end(address)
        self._leave_if_unseen()

    def _release(self, address: int) -> None:
        self._library.release(self._handle, address)

    def _revoke(self, name: str) -> None:
        """Makes a shared result that is about to change unreadable, instead of wrong."""
        lent = self._lent.get(name)
        if lent is None:
            return
        address, view = lent
        try:
            view.release()
        except BufferError:
            pass
        if address in self._views:
            raise Invalid(f"the result of '{name}' is still seen by something that was made out of "
                          "it; drop that, or make it out of a copy")
        del self._lent[name]

    # ---- Operations over the world alone -----------------------------------------------------

    def all_reduce_shared(self, name: str, input: Any, op: Union[str, int] = "sum",
                          dtype: Type = None) -> memoryview:
        """An all-reduce whose result the ranks of a host share: read-only, and unreadable when the
        name is used again, which fails while an array made out of it lives. The input stays
        intact."""
        source = buffer_of(input, "the input", dtype)
        self._revoke(name)
        result = ctypes.c_void_p()
        live = self._live()
        check(self._library.all_reduce_shared(live, name.encode(), source.address, source.count,
                                              source.dtype, op_of(op), result), live)
        kind = DType(source.dtype)
        if result.value is None:
            return memoryview(b"").cast(FORMATS[kind])
        memory = self._seen(result.value, source.count * kind.size, lambda _: None)
        view = memoryview(memory).toreadonly().cast("B").cast(FORMATS[kind])
        self._lent[name] = (result.value, view)
        return view

    def consensus(self, name: str, data: Any) -> bool:
        """True if every member gave the same bytes."""
        bytes_of = buffer_of(data, "the data", "u8")
        same = ctypes.c_int()
        live = self._live()
        check(self._library.consensus(live, name.encode(), bytes_of.address, bytes_of.count,
                                      same), live)
        return same.value != 0

    def set_strategy(self, strategy: str) -> None:
        """Switches the strategy of later operations; every member makes the same call."""
        live = self._live()
        check(self._library.set_strategy(live, strategy.encode()), live)

    @property
    def strategy(self) -> str:
        """The name of the strategy in use."""
        return self._text(self._library.strategy)

    def measure_links(self) -> None:
        """Measures latency and bandwidth between the hosts anew; every member calls it."""
        live = self._live()
        check(self._library.measure_links(live), live)

    def explain(self, collective: str, size_bytes: int) -> str:
        """What an operation of this many bytes would do now, and why."""
        if collective not in _COLLECTIVES:
            raise Invalid(f"{collective!r} is no collective; there are {', '.join(_COLLECTIVES)}")
        return self._text(self._library.explain, _COLLECTIVES.index(collective), size_bytes)

    def _text(self, function: Any, *arguments: Any) -> str:
        live = self._live()
        needed = ctypes.c_size_t()
        check(function(live, *arguments, None, 0, needed), live)
        text = ctypes.create_string_buffer(needed.value)
        check(function(live, *arguments, text, needed.value, None), live)
        return text.value.decode()

    # ---- Elastic training --------------------------------------------------------------------

    def register_state(self, name: str, memory: Any, dtype: Type = None) -> None:
        """Memory that all members keep equal: model, optimizer, counters. Before the first step;
        the same names, sizes and types on all members. A job begins with the state of rank 0, and
        newcomers get that of the members. The session keeps the object."""
        data = writable_buffer_of(memory, f"the state '{name}'", dtype)
        if data.count == 0:
            raise Invalid(f"the state '{name}' is empty")
        live = self._live()
        check(self._library.register_state(live, name.encode(), data.address, data.count,
                                           data.dtype), live)
        self._registered.append(data.owner)

    def register_value(self, name: str, get: Callable[[], Any], set: Callable[[Any], None],
                       bytes_max: int = 4096) -> None:
        """A small value that all members keep equal: numbers, text, lists and dictionaries of
        them. `get` is asked for it before each step and each snapshot; `set` is given that of the
        others where it differs. As JSON it has at most `bytes_max` bytes."""
        memory = bytearray(bytes_max)
        self.register_state(name, memory)
        self._values.append(_Value(name, memory, get, set))

    def use_sampler(self, samples: int, global_batch: int = 0, *, batch_per_member: int = 0,
                    seed: int = 0, epochs: int = 1, shuffle: bool = True,
                    keep_global_batch: bool = False) -> None:
        """Deals out the numbers of samples, `global_batch` a step over all members, so that each
        sample of an epoch is in exactly one committed step. Before the first step; equal on all
        members. Zero epochs: for ever. With `keep_global_batch` the samples of lost members are
        dealt out again in the same step (Step.more), not in a later one. `batch_per_member`
        instead of `global_batch` has the batch follow the number of members."""
        if min(samples, global_batch, batch_per_member, seed, epochs) < 0:
            raise Invalid("samples, batches, seed and epochs are not below zero")
        if (global_batch == 0) == (batch_per_member == 0):
            raise Invalid("a sampler has a global_batch or a batch_per_member: give one of them")
        live = self._live()
        check(self._library.use_sampler(live, samples, global_batch or batch_per_member, seed,
                                        epochs, int(shuffle)), live)
        if batch_per_member:
            check(self._library.batch_per_member(live, batch_per_member), live)
        if keep_global_batch:
            check(self._library.keep_global_batch(live), live)
        self.samples = samples
        self.register_value("samples committed", lambda: self.samples_committed,
                            self._set_samples_committed, 32)

    def set_global_batch(self, samples: int) -> None:
        """From the next step on. All members make the same call between the same two steps, as a
        policy does; newcomers take the members' batch."""
        if samples < 1:
            raise Invalid(f"a global batch has at least one sample, not {samples}")
        live = self._live()
        check(self._library.set_global_batch(live, samples), live)

    @property
    def global_batch(self) -> int:
        """The samples of the next step, of all members together; 0 without a sampler."""
        return self._number(self._library.global_batch, ctypes.c_uint64)

    @property
    def data_position(self) -> Tuple[int, int]:
        """The epoch of the data, from 0, and the samples of it that are in committed steps."""
        epoch, consumed = ctypes.c_uint64(), ctypes.c_uint64()
        live = self._live()
        check(self._library.data_position(live, epoch, consumed), live)
        return epoch.value, consumed.value

    @property
    def data_epoch(self) -> int:
        """The epoch of the data, from 0."""
        return self.data_position[0]

    def upcoming_samples(self, steps_ahead: int = 1) -> Tuple[int, List[int]]:
        """The epoch and samples of this member in the k-th step after the open one (after the last
        one, if none is open), provided that nothing changes until then: for reading ahead."""
        epoch, count = ctypes.c_uint64(), ctypes.c_size_t()
        first = ctypes.POINTER(ctypes.c_uint64)()
        live = self._live()
        check(self._library.upcoming_samples(live, steps_ahead, epoch, first, count), live)
        return epoch.value, first[:count.value] if count.value else []

    def _set_samples_committed(self, samples: int) -> None:
        self.samples_committed = samples

    def begin_step(self) -> Optional[Step]:
        """Opens the next step; None if there is none for this member any more: it was asked to
        leave, or all samples are consumed. The state must be that after the last committed step.
        The view may change here."""
        live = self._live()
        if self.step is not None and self.step.out:
            return None
        texts = self._write_values()
        begun = ctypes.c_int()
        check(self._library.begin_step(live, begun), live)
        self._raise_from_policies()
        if not begun.value:
            return None
        self._read_values(texts)
        self.step = Step(self)
        if self._together is not None:
            self._together._begin()
        return self.step

    def _commit(self) -> int:
        """Ends the open step, as a status."""
        live = self._live()
        status = self._library.commit_step(live) if self._together is None else \
            self._together._commit()
        self._raise_from_policies()
        return status

    def steps(self) -> Iterator[Step]:
        """Step after step: `for step in session.steps(): ...; step.commit()`."""
        while True:
            step = self.begin_step()
            if step is None:
                return
            yield step
            if step.open:
                raise Invalid(f"step {step.number} was not committed")

    def synchronise(self, buckets: Sequence[Tuple[str, Any, Any]], way: str = "synchronous",
                    **options: Any) -> Synchroniser:
        """Has the models of all members kept together from the first step on: by averaging
        gradients, models, or models of two. Once, before the first step; see Synchroniser."""
        if self._together is not None:
            raise Invalid("the models of this session are kept together already")
        self._together = Synchroniser(self, buckets, way, **options)
        return self._together

    def propose_size(self, members: int) -> None:
        """Asks for another number of members; the job follows as soon as it can."""
        live = self._live()
        check(self._library.propose_size(live, members), live)

    def _write_values(self) -> List[bytes]:
        texts = []
        for value in self._values:
            text = json.dumps(value.get(), separators=(",", ":")).encode()
            if len(text) > len(value.memory):
                raise Invalid(f"the value '{value.name}' has {len(text)} bytes as JSON, more than "
                              f"the {len(value.memory)} that it was registered with")
            texts.append(text.ljust(len(value.memory)))
            value.memory[:] = texts[-1]
        return texts

    def _read_values(self, written: Sequence[bytes]) -> None:
        for value, text in zip(self._values, written):
            if value.memory != text:
                value.set(json.loads(bytes(value.memory)))

    # ---- Stores ------------------------------------------------------------------------------

    def save(self, name: str, version: int, data: Any) -> None:
        """Keeps a copy of the bytes as that version of the name, for any peer to fetch."""
        source = buffer_of(data, "the data", "u8")
        live = self._live()
        check(self._library.save(live, name.encode(), version, source.address, source.count),
              live)

    def request(self, peer: int, name: str, version: Optional[int] = None) -> bytes:
        """What the member of this rank has saved, the newest version by default."""
        value = ctypes.c_void_p()
        live = self._live()
        check(self._library.request(live, peer, name.encode(),
                                    NEWEST if version is None else version, value), live)
        try:
            return ctypes.string_at(self._library.value_data(value),
                                    self._library.value_size(value))
        finally:
            self._library.value_destroy(value)

    def snapshot_state(self, step: int) -> Snapshot:
        """Copies the registered state, which the host's agent then keeps (docs/STORE.md). All
        members of the host make the same call."""
        self._write_values()
        handle = ctypes.c_void_p()
        live = self._live()
        check(self._library.snapshot_state(live, step, handle), live)
        assert handle.value is not None
        return Snapshot(self, handle.value)

    def restore_state(self, step: Optional[int] = None) -> int:
        """Fills the registered state from the snapshot of this step, or from the newest; returns
        its step. Invalid, and nothing is changed, if there is none or if it does not fit."""
        texts = self._write_values()
        restored = ctypes.c_uint64()
        live = self._live()
        check(self._library.restore_state(live, NEWEST if step is None else step, restored), live)
        self._read_values(texts)
        return restored.value


_open_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()
_current: Optional[Session] = None


def current_session() -> Session:
    """The session of this process: the one that is open, or a new one."""
    global _current
    if _current is None or _current.closed or not _current._is_ours():
        ours = [session for session in _open_sessions
                if not session.closed and session._is_ours()]
        _current = ours[0] if ours else Session()
    return _current


@atexit.register
def _close_all() -> None:
    """Nothing reads registered memory after this, so it need not be waited for."""
    for session in list(_open_sessions):
        if session._is_ours():
            session.close()
            session._leave()
