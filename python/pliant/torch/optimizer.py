"""ElasticOptimizer: any torch optimizer, in an elastic job that keeps its models together.

Its ways of doing so are classes of their own, in ways.py.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Union

import torch

from ..errors import Invalid
from ..policy import Policy, Signals
from ..session import Session, current_session
from ..step import Step
from ..synchroniser import StepReport
from .buckets import Bucket, make_buckets, make_model_buffers
from .memory import allocate
from .optimizer_state import OptimizerState

_NOBODY = 2**63 - 1


class NonFinite(NamedTuple):
    """A gradient that is not finite: the first tensor of the first rank that has one."""

    step: int
    rank: int
    tensor: str


class ElasticOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: `step()` commits an elastic step and applies it if it was committed.

    Parameters and gradients lie in flat memory (`parameter.data` and `parameter.grad` are views of
    it), and what members exchange goes over the network while they compute. Parameters, the
    optimizer's state and, if the model is given, its buffers are registered, so that newcomers get
    them. Steps are begun by an ElasticLoader, or by `for step in session.steps()`.

    Use the same names in the same order on all members: a worker whose model differs cannot join,
    and is told which tensor it is.
    """

    _way = "synchronous"

    def __init__(self, optimizer: torch.optim.Optimizer,
                 model: Optional[torch.nn.Module] = None, *, session: Optional[Session] = None,
                 loss: str = "mean", bucket_bytes: int = 4 << 20,
                 on_nonfinite: Union[str, Callable[[NonFinite], str]] = "raise",
                 policies: Sequence[Union[Policy, str]] = (), **ways: Any) -> None:
        """`model` gives the tensors their names and has its buffers looked after. `loss` says
        whether the loss is the "mean" or the "sum" over the samples of a batch. `on_nonfinite`
        decides what becomes of a step with an infinite gradient or NaN, "raise", "skip" or
        "apply", or is a function that does; all members are told of the same NonFinite. `policies`
        decide how the job goes on, as Session.add_policy() takes them. Further options are those of
        a Synchroniser."""
        if loss not in ("mean", "sum"):
            raise Invalid(f"loss is {loss!r}; it is \"mean\" or \"sum\"")
        if not callable(on_nonfinite) and on_nonfinite not in ("raise", "skip", "apply"):
            raise Invalid(f"on_nonfinite is {on_nonfinite!r}; it is \"raise\", \"skip\", \"apply\" "
                          "or a function")
        self.optimizer = optimizer
        self.session = session or current_session()
        self._loss = loss
        self._on_nonfinite = on_nonfinite
        self._names = _names_of(optimizer, model)
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]
                            if p.requires_grad]
        if not self._parameters:
            raise Invalid("the optimizer has no parameter that needs a gradient")
        may_differ = self._way != "synchronous" or bool(ways.get("may_switch"))
        self._register_shapes()
        self._state = OptimizerState(self.session, optimizer,
                                     list(zip(self._names, self._parameters)), may_differ)
        self._buckets = make_buckets(self._parameters, bucket_bytes, self.session, may_differ)
        self._bucket_of = {i: bucket for bucket in self._buckets for i in bucket.indices}
        self._memory = [parameter.data_ptr() for parameter in self._parameters]
        flat: List[Any] = [(f"parameters {bucket.number}", bucket.parameters, bucket.flat)
                           for bucket in self._buckets]
        self._together = self.session.synchronise(flat + self._state.buckets, self._way, **ways)
        self._buffers = make_model_buffers(model, self.session)
        for policy in policies:
            self.session.add_policy(policy)
        self._rate_factor = 1.0  # of the learning rates; newcomers get it with them
        self.session.register_value("learning rate factor", lambda: self._rate_factor,
                                    lambda factor: setattr(self, "_rate_factor", factor), 64)
        self._nonfinite = allocate(1, torch.int64, self.session)
        self._synchronizing = True
        self._synchronized = False  # committed and not yet applied
        self._handed_in = 0  # buckets of the open step
        self._earlier_samples = 0  # of the open step, if it has got more
        self._begin_anew(0)
        self._hooks = [self._hook(i) for i in self._bucket_of]
        self._attach()
        self.session.idle = self._sit_out
        self.session.on_close(self._detach)

    # ---- What an optimizer has ---------------------------------------------------------------

    @property
    def param_groups(self) -> List[Dict[str, Any]]:  # type: ignore[override]
        """Those of the optimizer inside."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the optimizer inside."""
        return self.optimizer.state

    @property
    def defaults(self) -> Dict[str, Any]:  # type: ignore[override]
        """Those of the optimizer inside."""
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __getstate__(self) -> Any:
        raise Invalid(f"{type(self).__name__} belongs to a session and cannot be copied; save its "
                      "state_dict()")

    def state_dict(self, *arguments: Any, **options: Any) -> Dict[str, Any]:
        """That of the optimizer inside."""
        return self.optimizer.state_dict(*arguments, **options)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Before the first step, or equally on all members."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Not possible: what members keep equal is registered before the first step."""
        raise Invalid("add all groups of parameters before the optimizer is wrapped")

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clears the gradients, which stay where they are. Those of samples that were handed in
        before a step got more are kept elsewhere."""
        for bucket in self._buckets:
            bucket.flat.zero_()
        self._attach()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For all but the last backward pass of a step that has several."""
        self._synchronizing = False
        try:
            yield
        finally:
            self._synchronizing = True

    def step(self, closure: None = None) -> bool:  # type: ignore[override]
        """Completes the open step and applies it. False if it was not applied: there are more
        samples to come in it, it was skipped, or this member is out of the job."""
        if closure is not None:
            raise Invalid("a closure would be run by each member alone; none can be given")
        if not self._synchronized and not self.synchronize():
            return False
        self._synchronized = False
        self.optimizer.step()
        self._together.applied()
        self._follow_policies()
        return True

    @property
    def synchronisation(self) -> str:
        """How models are kept together now: "synchronous", "model_averaging", "pair_averaging"."""
        return self._together.way

    @property
    def signals(self) -> Signals:
        """What all members have measured and agreed on in the last committed step; needs a policy
        or session.use_monitor()."""
        return self.session.signals

    def record_loss(self, loss: Union[float, torch.Tensor]) -> None:
        """The mean loss of the batch, before step(), for the signals. Does nothing without a
        monitor."""
        if self.session.monitored:
            self.session.record_loss(float(loss.detach() if isinstance(loss, torch.Tensor)
                                           else loss))

    @property
    def last_step(self) -> StepReport:
        """What the last step exchanged, and how long that was not hidden."""
        return self._together.last_step

    def synchronize(self) -> bool:
        """Completes the open step without applying it, so that the gradients are those that will be
        applied; for what works on these, as clipping does. True: call step() next."""
        step = self._open_step()
        if step is None:
            raise Invalid("there is no open step: take batches from an ElasticLoader, or write "
                          "`for step in session.steps()`")
        self._check_memory()
        self._check_unchanged()
        while self._handed_in < len(self._buckets):
            self._hand_in(step, self._buckets[self._handed_in])
        self._hand_in_buffers(step)
        step.all_reduce("pliant/nonfinite", self._nonfinite, self._nonfinite, op="min")
        samples = len(step.samples)
        committed = step.commit()
        nonfinite = int(self._nonfinite[0])
        self._begin_anew(samples if step.more else 0)
        if not committed:
            return False
        for buffers in self._buffers:
            for tensor, part in buffers.parts():
                tensor.copy_(part)
        self._synchronized = nonfinite == _NOBODY or self._applies(step, nonfinite)
        if not self._synchronized:
            self._follow_policies()
        return self._synchronized

    def _follow_policies(self) -> None:
        """What they have decided about the next step, as far as it is the optimizer's."""
        if not self.session.monitored:
            return
        way = self.session.take_synchronisation()
        if way is not None:
            self._together.switch_to(way)
        factor = self.session.decisions.learning_rate_factor
        if factor != self._rate_factor:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * (factor / self._rate_factor)
            self._rate_factor = factor

    # ---- Gradients ---------------------------------------------------------------------------

    def _register_shapes(self) -> None:
        """A byte of state for each tensor, so that a model that differs is refused by its name."""
        for name, parameter in zip(self._names, self._parameters):
            shape = "x".join(map(str, parameter.shape)) or "1"
            self.session.register_state(f"{name} ({shape})"[:200], bytearray(1))

    def _hook(self, index: int) -> Any:
        """Has `_ready` called when the gradient of a parameter is complete."""
        parameter = self._parameters[index]
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            return parameter.register_post_accumulate_grad_hook(lambda _: self._ready(index))
        # Older torch: the node that adds to the gradient has hooks, and lives while we keep it.
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        return node.register_hook(lambda *_: self._ready(index)), node

    def _attach(self) -> None:
        for bucket in self._buckets:
            for i, view in bucket.views.items():
                self._parameters[i].grad = view

    def _detach(self) -> None:
        """The session ends, and its memory with it; parameters and gradients stay as copies."""
        for hook in self._hooks:
            (hook[0] if isinstance(hook, tuple) else hook).remove()
        for bucket in self._buckets:
            for i, view in bucket.views.items():
                if self._parameters[i].grad is view:
                    self._parameters[i].grad = view.clone()
            for i, place in bucket.places.items():
                if self._parameters[i].data_ptr() == place.data_ptr():
                    self._parameters[i].data = place.clone()
        self._hooks, self._buckets, self._bucket_of, self._buffers = [], [], {}, []
        del self._nonfinite

    def _open_step(self) -> Optional[Step]:
        step = self.session.step
        return step if step is not None and step.open else None

    def _ready(self, index: int) -> None:
        step = self._open_step()
        if step is None or not self._synchronizing:
            return
        bucket = self._bucket_of[index]
        if bucket.number < self._handed_in:
            raise Invalid(f"'{self._names[index]}' got a second gradient in step {step.number}; "
                          "run all but the last backward() of a step in no_sync()")
        bucket.missing.discard(index)
        while (self._handed_in < len(self._buckets)
               and not self._buckets[self._handed_in].missing):
            self._hand_in(step, self._buckets[self._handed_in])

    def _hand_in(self, step: Step, bucket: Bucket) -> None:
        """Has a bucket reduced. What has no gradient on this member counts as zeros."""
        for i, view in bucket.views.items():
            gradient = self._parameters[i].grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
            elif gradient.layout is not torch.strided:
                raise Invalid(f"the gradient of '{self._names[i]}' is sparse; only dense ones can "
                              "be reduced")
            else:
                view.copy_(gradient)
            self._parameters[i].grad = view
        weight = self._weight(step)
        if weight == 0:
            bucket.flat.zero_()
        else:
            self._look_for_nonfinite(bucket)
            if weight != 1:
                bucket.flat.mul_(weight)
        if bucket.earlier is not None:
            bucket.flat.add_(bucket.earlier)
        self._together.ready(bucket.number)
        bucket.version = bucket.flat._version
        self._handed_in += 1

    def _weight(self, step: Step) -> int:
        """The mean of a step with samples is over all of them, of all members."""
        if not self.session.samples:
            return 1
        count = len(step.samples)
        return count if self._loss == "mean" or count == 0 else 1

    def _hand_in_buffers(self, step: Step) -> None:
        weight = self._earlier_samples + len(step.samples) if self.session.samples else 1
        for buffers in self._buffers:
            for tensor, part in buffers.parts():
                part.copy_(tensor)
            if buffers.is_float:
                buffers.flat.mul_(weight)
            step.all_reduce(buffers.name, buffers.flat, buffers.flat,
                            op="mean" if buffers.is_float else "max")

    def _begin_anew(self, samples: int) -> None:
        """For the next step; or for more samples of this one, after so many, to which they are
        added."""
        self._handed_in = 0
        self._earlier_samples = self._earlier_samples + samples if samples else 0
        if not samples:
            self._nonfinite[0] = _NOBODY
        for bucket in self._buckets:
            bucket.missing = set(bucket.indices)
            bucket.earlier = None
            if samples:
                bucket.earlier = bucket.flat.clone()
                bucket.flat.zero_()

    def _sit_out(self, step: Step) -> None:
        """Takes part in a step without samples."""
        self.zero_grad()
        self.step()

    def _check_memory(self) -> None:
        for name, parameter, address in zip(self._names, self._parameters, self._memory):
            if parameter.data_ptr() != address:
                raise Invalid(f"'{name}' has moved since it was registered: convert or load the "
                              "model before its optimizer is wrapped")

    def _check_unchanged(self) -> None:
        for bucket in self._buckets[:self._handed_in]:
            if bucket.flat._version != bucket.version:
                names = ", ".join(self._names[i] for i in sorted(bucket.indices)[:3])
                raise Invalid(f"a gradient was changed after the backward pass, while it was being "
                              f"reduced (one of {names}); call synchronize(), change it, and then "
                              "step()")

    # ---- Gradients that are not finite -------------------------------------------------------

    def _look_for_nonfinite(self, bucket: Bucket) -> None:
        """Notes the first tensor. A sum costs one pass; it is not finite if any element is not."""
        kind = bucket.flat.dtype
        wide = kind if kind == torch.float64 else torch.float32
        if math.isfinite(float(bucket.flat.sum(dtype=wide))):
            return
        for i, view in sorted(bucket.views.items()):
            if not bool(torch.isfinite(view).all()):
                found = self.session.rank << 32 | i
                self._nonfinite[0] = min(int(self._nonfinite[0]), found)
                return

    def _applies(self, step: Step, nonfinite: int) -> bool:
        """What all members decide about the same gradient."""
        found = NonFinite(step.number, nonfinite >> 32, self._names[nonfinite & 0xffffffff])
        decision = self._on_nonfinite
        if callable(decision):
            decision = decision(found)
        if decision == "raise":
            raise FloatingPointError(
                f"step {found.step}: the gradient of '{found.tensor}' on rank {found.rank} is not "
                "finite; nothing was applied")
        if decision not in ("skip", "apply"):
            raise Invalid(f"on_nonfinite decided {decision!r}; it is \"raise\", \"skip\" or "
                          "\"apply\"")
        return decision == "apply"


def _names_of(optimizer: torch.optim.Optimizer, model: Optional[torch.nn.Module]) -> List[str]:
    known = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
    names = []
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter.requires_grad:
                names.append(known.get(id(parameter), f"parameter {number}.{place}"))
    return names
