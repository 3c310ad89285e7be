"""How the members of a job keep their models together, on flat buffers; see docs/TRAINING.md."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

from ._library import Bucket, SynchroniserOptions, SynchroniserReport, check
from .buffers import writable_buffer_of
from .errors import Invalid

if TYPE_CHECKING:
    from .session import Session

#: Gradients are averaged; models are drawn towards their mean; models are averaged with that of one
#: other member.
WAYS = ("synchronous", "model_averaging", "pair_averaging")
COMPRESSIONS = ("none", "bf16", "int8")


class StepReport(NamedTuple):
    """What the last step was."""

    pulled_from: Optional[int]  # the rank whose model was averaged with; None: none, or it is gone
    pulled_version: int  # the step at whose end that model was published; 0: none
    pulls_missed: int  # steps in which the chosen member had none, or was lost; of all steps
    exposed_seconds: float  # in the commit, for others and the network
    reduced_bytes: int  # that this member has handed in


def number_of(name: str, names: Sequence[str], what: str) -> int:
    """The number of a name in the C ABI."""
    if name not in names:
        raise Invalid(f"{name!r} is no {what}; there are {', '.join(names)}")
    return names.index(name)


class Synchroniser:
    """Made by Session.synchronise(); used by the thread that trains. Steps begin and end with it:
    `commit()` of a step draws the models together, and leaves in the gradients what the optimizer
    is to apply; call `applied()` after that."""

    def __init__(self, session: "Session", buckets: Sequence[Tuple[str, Any, Any]], way: str, *,
                 alpha: float = 0.1, compression: str = "none", seed: int = 0,
                 may_switch: bool = False) -> None:
        """A bucket is a name, parameters and gradients (with a sampler their sum over the samples),
        both of one floating-point type; without gradients (None) it is state that goes with the
        model, such as momentum. `alpha` is of model averaging, `seed` of the choice of partners,
        `may_switch` says that a synchronous job may leave that way."""
        self._session = session
        self._library = session._library
        self._handle: Optional[int] = None
        self._kept: List[Any] = []
        options = SynchroniserOptions()
        check(self._library.synchroniser_options_init(options, ctypes.sizeof(options)))
        options.synchronisation = number_of(way, WAYS, "way of keeping models together")
        options.compression = number_of(compression, COMPRESSIONS, "compression")
        options.alpha, options.seed, options.may_switch = alpha, seed, int(may_switch)
        array = (Bucket * len(buckets))(*(self._bucket(*bucket) for bucket in buckets))
        handle = ctypes.c_void_p()
        live = session._live()
        check(self._library.synchroniser_create(live, array, len(buckets), options, handle), live)
        self._handle = handle.value

    def _bucket(self, name: str, parameters: Any, gradients: Any) -> Bucket:
        memory = writable_buffer_of(parameters, f"the parameters of '{name}'")
        self._kept.append(memory)
        address = None
        if gradients is not None:
            added = writable_buffer_of(gradients, f"the gradients of '{name}'")
            self._kept.append(added)
            if (added.count, added.dtype) != (memory.count, memory.dtype):
                raise Invalid(f"parameters and gradients of '{name}' differ in length or type")
            address = added.address
        return Bucket(name.encode(), memory.address, address, memory.count, memory.dtype)

    def _live(self) -> int:
        self._session._live()
        assert self._handle is not None
        return self._handle

    def _begin(self) -> None:
        check(self._library.synchroniser_begin(self._live()), self._session._handle)

    def _commit(self) -> int:
        return self._library.synchroniser_commit(self._live())

    def _end(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.synchroniser_destroy(handle)

    def ready(self, bucket: int) -> None:
        """The gradients of this bucket are complete and stay as they are until the commit. In any
        order; the commit hands in what was not announced."""
        check(self._library.synchroniser_ready(self._live(), bucket), self._session._handle)

    def applied(self) -> None:
        """The optimizer has run: pair averaging publishes the model."""
        check(self._library.synchroniser_applied(self._live()), self._session._handle)

    def switch_to(self, way: str) -> None:
        """Another way from the next step on; all members make the same call between the same two
        steps. Where models differ and must not from there on, that step averages them."""
        number = number_of(way, WAYS, "way of keeping models together")
        check(self._library.synchroniser_switch_to(self._live(), number), self._session._handle)

    @property
    def way(self) -> str:
        """That of the present step, or of the next; a newcomer learns that of the others in its
        first step."""
        number = ctypes.c_int()
        check(self._library.synchroniser_synchronisation(self._live(), number),
              self._session._handle)
        return WAYS[number.value]

    @property
    def last_step(self) -> StepReport:
        """What the last step was."""
        found = SynchroniserReport(size=ctypes.sizeof(SynchroniserReport))
        check(self._library.synchroniser_last_step(self._live(), found), self._session._handle)
        return StepReport(None if found.pulled_from < 0 else found.pulled_from,
                          found.pulled_version, found.pulls_missed, found.exposed_seconds,
                          found.reduced_bytes)
