"""The backend "pliant" of torch.distributed, for jobs of fixed size.

`torch.distributed.init_process_group("pliant")` inside `pliant run`, after importing this package.
A ProcessGroup in Python: torch calls its methods from Python code under any name, and from C++ by
those that it knows. torch has renamed some of them, so they have both names. Operations end by the
deadline of the session, not by the timeout that torch is given.
"""

from __future__ import annotations

import collections
import threading
import uuid
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..collectives import Collectives, Work
from ..errors import Invalid, PliantError
from ..session import Session, current_session
from .completion import completion_of

# Names come again after so many operations; as many can be in flight, of messages between each two.
_NAMES = 1024
# C++ may hold a work whose Python half nobody holds any more, and would then wait in vain.
_WORKS_KEPT = 64

_OPS = [(dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.AVG, "mean"), (dist.ReduceOp.MIN, "min"),
        (dist.ReduceOp.MAX, "max"), (dist.ReduceOp.PRODUCT, "prod")]


class PliantWork(dist.Work):
    """What torch waits for: some works of ours, and what is left to do after them."""

    def __init__(self, session: Session, works: List[Work], outputs: Any,
                 finish: Optional[Callable[[], None]] = None, source: int = -1) -> None:
        super().__init__()
        self._session = session
        self._works = works
        self._outputs = outputs
        self._finish = finish
        self._source = source
        self._lock = threading.RLock()  # a future may be ready at once
        self._future: Optional[torch.futures.Future] = None

    def wait(self, timeout: Any = None) -> bool:
        """Returns when the outputs are there; raises what went wrong."""
        for work in self._works:
            work.wait()
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
        return True

    def synchronize(self) -> None:
        """The same as wait(): the host's memory has no streams."""
        self.wait()

    def is_completed(self) -> bool:
        """True if it has ended, well or not; the outputs are there then."""
        if not all(work.done() for work in self._works):
            return False
        self.exception()
        return True

    def is_success(self) -> bool:
        """True if it has completed, and well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[PliantError]:
        """What went wrong; waits."""
        try:
            self.wait()
        except PliantError as error:
            return error
        return None

    def result(self) -> Any:
        """The outputs."""
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Whom a receive was from."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        """A future with the outputs."""
        with self._lock:
            if self._future is None:
                self._future = completion_of(self._session).add(self.is_completed,
                                                                 self.result)
            return self._future


class ProcessGroupPliant(dist.ProcessGroup):
    """A group of torch, over members of the session of this process."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        """Made by torch on each member of the group. They find each other by the store."""
        super().__init__(rank, size)
        session = current_session()
        store.set(f"pliant/rank/{rank}", str(session.rank))
        if rank == 0:
            store.set("pliant/name", uuid.uuid4().hex[:16])
        ranks = [int(store.get(f"pliant/rank/{r}")) for r in range(size)]
        if sorted(set(ranks)) != sorted(ranks) or max(ranks) >= session.size:
            raise Invalid(f"the group of torch has the members {ranks} of a session of "
                          f"{session.size}: the backend \"pliant\" needs one worker for each rank, "
                          "as `pliant run -n N` starts them, and a job of fixed size")
        self._name = store.get("pliant/name").decode()
        whole = ranks == list(range(session.size))
        self._members: Collectives = session if whole else session.group(ranks)
        self._own_rank, self._own_size = rank, size
        self._torch_name = self._torch_description = "undefined"
        self._count = 0
        self._messages: Dict[Tuple[int, int, int], int] = collections.defaultdict(int)
        self._kept: Deque[PliantWork] = collections.deque(maxlen=_WORKS_KEPT)

    # ---- Names that torch asks for -----------------------------------------------------------

    def rank(self) -> int:
        """The own rank in the group."""
        return self._own_rank

    def size(self) -> int:
        """The number of members."""
        return self._own_size

    getRank, getSize = rank, size

    def name(self) -> str:
        """Of the backend."""
        return "pliant"

    getBackendName = _get_backend_name = name

    @property
    def group_name(self) -> str:
        """What torch calls this group; DeviceMesh and compiled code find it by that."""
        return self._torch_name

    @property
    def group_desc(self) -> str:
        """What torch says that this group is for."""
        return self._torch_description

    def getGroupName(self) -> str:
        """The same for torch's C++, which also sets it."""
        return self._torch_name

    def setGroupName(self, name: str) -> None:
        """Torch's C++ names the group."""
        self._torch_name = name

    def getGroupDesc(self) -> str:
        """As group_desc."""
        return self._torch_description

    def setGroupDesc(self, description: str) -> None:
        """Torch's C++ describes the group."""
        self._torch_description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def abort(self) -> None:
        """Nothing to do: operations end by themselves when a peer is lost."""

    shutdown = abort

    # ---- Reduce and broadcast ----------------------------------------------------------------

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> PliantWork:
        """In place, each tensor."""
        op = _op_of(opts)
        return self._work([work for tensor in _as_list(tensors)
                           for work in self._run("all_reduce", opts, tensor, op=op)], tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: List[torch.Tensor], opts: Any) -> PliantWork:
        """In place on the root; the others' tensors stay as they are."""
        return self._work(self._run("reduce", opts, _one(tensors), op=_op_of(opts),
                                    root=opts.rootRank), tensors)

    def broadcast(self, tensors: List[torch.Tensor], opts: Any) -> PliantWork:
        """From the root, each tensor."""
        return self._work([work for tensor in _as_list(tensors)
                           for work in self._run("broadcast", opts, tensor, root=opts.rootRank)],
                          tensors)

    # ---- Gather and scatter ------------------------------------------------------------------

    def allgather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor],
                  opts: Any = None) -> PliantWork:
        """A tensor of each member, to a list of tensors."""
        parts, source = _one(outputs), _one(inputs)
        flat = source.new_empty(self._own_size * source.numel())
        work = self._members.all_gather_async(self._next(), source, flat)
        return self._work([work], outputs, lambda: _deal(flat, parts))

    def allgather_coalesced(self, outputs: List[List[torch.Tensor]],
                            inputs: List[torch.Tensor], opts: Any = None) -> PliantWork:
        """Several of them; outputs[r] are those of member r."""
        works = [self.allgather([[of_rank[i] for of_rank in outputs]], [source])
                 for i, source in enumerate(inputs)]
        return self._together(works, outputs)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor,
                        opts: Any = None) -> PliantWork:
        """A tensor of each member, to one tensor, of which the input may be the own part."""
        place = output.data_ptr() + self._own_rank * input.numel() * input.element_size()
        source = None if input.data_ptr() == place else input
        return self._work([self._members.all_gather_async(self._next(), source, output)],
                          [output])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: List[torch.Tensor],
                                        inputs: List[torch.Tensor],
                                        opts: Any = None) -> PliantWork:
        """Several of them."""
        return self._together([self._allgather_base(*pair) for pair in zip(outputs, inputs)],
                              outputs)

    def gather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor],
               opts: Any) -> PliantWork:
        """A tensor of each member, to a list on the root."""
        source = _one(inputs)
        if self._own_rank != opts.rootRank:
            return self._work([self._members.gather_async(self._next(), source,
                                                          root=opts.rootRank)], outputs)
        flat = source.new_empty(self._own_size * source.numel())
        work = self._members.gather_async(self._next(), source, flat, root=opts.rootRank)
        return self._work([work], outputs, lambda: _deal(flat, _one(outputs)))

    def scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]],
                opts: Any) -> PliantWork:
        """A tensor to each member, out of a list on the root."""
        is_root = self._own_rank == opts.rootRank
        flat = _flat(_one(inputs)) if is_root else None
        return self._work([self._members.scatter_async(self._next(), flat, _one(outputs),
                                                       root=opts.rootRank)], outputs)

    def reduce_scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]],
                       opts: Any = None) -> PliantWork:
        """Reduces lists with a tensor for each member, and gives each its own."""
        return self._reduce_scatter_base(_one(outputs), _flat(_one(inputs)), opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor,
                             opts: Any = None) -> PliantWork:
        """The same with one tensor."""
        return self._work([self._members.reduce_scatter_async(self._next(), input, output,
                                                              op=_op_of(opts))], [output])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: List[torch.Tensor],
                                        inputs: List[torch.Tensor],
                                        opts: Any = None) -> PliantWork:
        """Several of them."""
        return self._together([self._reduce_scatter_base(output, input, opts)
                               for output, input in zip(outputs, inputs)], outputs)

    # ---- All to all --------------------------------------------------------------------------

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor,
                      output_split_sizes: Sequence[int] = (),
                      input_split_sizes: Sequence[int] = (), opts: Any = None) -> PliantWork:
        """Parts of one tensor, of equal or given lengths along its first dimension."""
        if not output_split_sizes and not input_split_sizes:
            return self._work([self._members.all_to_all_async(self._next(), input, output)],
                              [output])
        return self.alltoall(_split(output, output_split_sizes, self._own_size),
                             _split(input, input_split_sizes, self._own_size))

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                 opts: Any = None) -> PliantWork:
        """Tensors of any lengths: inputs[r] goes to member r, outputs[r] comes from it."""
        if len(outputs) != self._own_size or len(inputs) != self._own_size:
            raise Invalid(f"all_to_all needs a tensor for each of {self._own_size} members")
        name = self._next()
        works = []
        for peer in range(self._own_size):
            if peer == self._own_rank:
                outputs[peer].copy_(inputs[peer])
                continue
            if inputs[peer].numel():
                works.append(self._members.send_async(f"{name}/{self._own_rank}>{peer}",
                                                      inputs[peer], peer))
            if outputs[peer].numel():
                works.append(self._members.recv_async(f"{name}/{peer}>{self._own_rank}",
                                                      outputs[peer], peer))
        return self._work(works, outputs)

    # ---- Barrier and messages ----------------------------------------------------------------

    def barrier(self, opts: Any = None) -> PliantWork:
        """Completes when every member has called it."""
        return self._work([self._members.barrier_async(self._next())], [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """As barrier; the error names a missing rank anyway."""
        self.barrier().wait()

    def send(self, tensors: List[torch.Tensor], dst: int, tag: int = 0) -> PliantWork:
        """Starts to send one tensor."""
        name = self._message(self._own_rank, dst, tag)
        return self._work([self._members.send_async(name, _one(tensors), dst)], [])

    def recv(self, tensors: List[torch.Tensor], src: int, tag: int = 0) -> PliantWork:
        """Starts to receive one tensor."""
        name = self._message(src, self._own_rank, tag)
        return self._work([self._members.recv_async(name, _one(tensors), src)], tensors,
                          source=src)

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int = 0) -> PliantWork:
        """Not possible: messages are matched by name."""
        raise Invalid("the backend \"pliant\" cannot receive from any source; name the rank")

    # ---- How they run ------------------------------------------------------------------------

    def _next(self) -> str:
        """The name of the next operation: torch has all members issue them in one order."""
        self._count += 1
        return f"{self._name}/{self._count % _NAMES}"

    def _run(self, operation: str, opts: Any, *arguments: Any, **named: Any) -> List[Work]:
        """Starts it; or runs it to its end, which costs less, where torch says that it waits."""
        if getattr(opts, "asyncOp", True):
            return [getattr(self._members, operation + "_async")(self._next(), *arguments,
                                                                 **named)]
        getattr(self._members, operation)(self._next(), *arguments, **named)
        return []

    def _message(self, source: int, to: int, tag: int) -> str:
        self._messages[source, to, tag] += 1
        return f"{self._name}/{source}>{to}/{tag}/{self._messages[source, to, tag] % _NAMES}"

    def _work(self, works: List[Work], outputs: Any,
              finish: Optional[Callable[[], None]] = None, source: int = -1) -> PliantWork:
        made = PliantWork(self._members._session, works, outputs, finish, source)
        self._kept.append(made)
        return made

    def _together(self, works: List[PliantWork], outputs: Any) -> PliantWork:
        def finish() -> None:
            for work in works:
                work.wait()
        return self._work([one for work in works for one in work._works], outputs, finish)


def _op_of(opts: Any) -> str:
    if opts is None:
        return "sum"
    for theirs, ours in _OPS:
        if opts.reduceOp == theirs:
            return ours
    raise Invalid(f"the backend \"pliant\" does not reduce by {opts.reduceOp}; it knows SUM, AVG, "
                  "MIN, MAX and PRODUCT")


def _as_list(tensors: Any) -> List[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _one(tensors: Any) -> Any:
    if len(tensors) != 1:
        raise Invalid(f"{len(tensors)} tensors were given; the host's memory is one device, so "
                      "one is expected")
    return tensors[0]


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len({tensor.numel() for tensor in tensors}) > 1:
        raise Invalid("the tensors of the list differ in length")
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _deal(flat: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copies to a list what arrived in one piece."""
    if sum(part.numel() for part in parts) != flat.numel():
        raise Invalid(f"the list of outputs has room for {sum(p.numel() for p in parts)} elements; "
                      f"{flat.numel()} have arrived")
    at = 0
    for part in parts:
        part.copy_(flat[at:at + part.numel()].view(part.shape))
        at += part.numel()


def _split(tensor: torch.Tensor, sizes: Sequence[int], members: int) -> List[torch.Tensor]:
    return list(tensor.split(list(sizes) if sizes else tensor.shape[0] // members))


def _create(store: Any, rank: int, size: int, timeout: Any) -> ProcessGroupPliant:
    return ProcessGroupPliant(store, rank, size, timeout)


def register_backend() -> None:
    """Makes the name "pliant" known to torch.distributed; once."""
    if hasattr(dist.Backend, "PLIANT"):
        return
    try:
        dist.Backend.register_backend("pliant", _create, devices=["cpu"])
    except TypeError:  # torch 1.13 knows no devices
        dist.Backend.register_backend("pliant", _create)
