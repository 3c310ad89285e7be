"""Signals that all members agree on, and policies that decide by them how a job goes on.

    class GrowWhenNoisy(pliant.Policy):
        def after_step(self, now):
            if now.noise is not None and now.noise.scale > 2 * now.batch:
                return pliant.Decision(members=now.members + 1,
                                       reason="the noise scale is twice the batch")

    session.use_monitor()
    session.add_policy(GrowWhenNoisy())
"""

from __future__ import annotations

import ctypes
import json
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from ._monitor import DecisionFields, SignalFields
from .errors import Invalid
from .synchroniser import WAYS, number_of


class GradientNoise(NamedTuple):
    """The noise of gradients, as means over the last steps (docs/MONITORS.md)."""

    scale: float  # the batch at which noise and gradient are equal
    variance: float  # of the gradient of one sample, summed over all elements
    squared_norm: float  # of the true gradient


class Straggler(NamedTuple):
    """A member that takes much longer than the others, step after step."""

    rank: int
    slowdown: float  # its compute time over the median of all


class NonFiniteSignal(NamedTuple):
    """A gradient, or the loss (None), that was not finite on a member."""

    rank: int
    tensor: Optional[int]


class MemberSignals(NamedTuple):
    """One member in one step."""

    host: int
    slot: int
    incarnation: int
    compute_seconds: float
    wait_seconds: float


class LinkSignals(NamedTuple):
    """The way from one host to another, as the last measurement found it."""

    from_host: int
    to_host: int
    latency_seconds: float
    bytes_per_second: float


class Signals(NamedTuple):
    """The last committed step: every member has the same bits. Times are those of the step before,
    and 0 in the first step of a view."""

    step: int  # 0 before the first
    data_epoch: int
    samples_committed: int  # since the job began
    batch: int  # samples in this step, of all members
    reduced_bytes: int  # that each member handed in
    view: int
    members: int
    hosts: int
    members_lost: int  # since the step before, without having been asked to leave
    step_seconds: float  # from commit to commit, of the slowest member
    samples_per_second: float
    compute_seconds: float  # of the slowest member
    wait_seconds: float  # of the fastest: the network's part
    change_seconds: float  # what the last change of the view cost; 0: there was none yet
    loss: float  # mean over all samples; not a number if nobody told it
    synchronisation: str
    topology: str
    noise: Optional[GradientNoise]  # None: not known (yet), or there is one member
    straggler: Optional[Straggler]
    nonfinite: Optional[NonFiniteSignal]
    by_rank: Tuple[MemberSignals, ...]
    links: Tuple[LinkSignals, ...]


class Decision(NamedTuple):
    """What is to change; nothing by default. A reason is needed with anything."""

    members: Optional[int] = None
    global_batch: Optional[int] = None
    learning_rate_factor: Optional[float] = None  # of the rate that the job began with
    synchronisation: Optional[str] = None
    topology: Optional[str] = None
    measure_links: bool = False  # before the next step
    stop: bool = False  # the training is complete
    reason: str = ""


class Policy:
    """Decides by the signals alone: every member runs its own copy and must decide alike. So it
    reads no clock and draws no random numbers, and all that it remembers from call to call is in
    `state`: numbers, text, lists and dictionaries of them, which newcomers are given. Each hook
    returns a Decision, or None."""

    #: How long the state may be, as JSON.
    state_bytes_max = 1024
    #: For messages; that of the class by default.
    name = ""
    state: Dict[str, Any]

    def __new__(cls, *_: Any, **__: Any) -> "Policy":
        made = super().__new__(cls)
        made.state = {}
        return made

    def before_train(self, now: Signals) -> Optional[Decision]:
        """Once in the life of the job."""

    def before_epoch(self, now: Signals) -> Optional[Decision]:
        """Before each epoch of the data."""

    def before_step(self, now: Signals) -> Optional[Decision]:
        """Before each step; the signals are those of the last committed one."""

    def after_step(self, now: Signals) -> Optional[Decision]:
        """After each committed step."""

    def after_epoch(self, now: Signals) -> Optional[Decision]:
        """After each epoch of the data."""

    def after_train(self, now: Signals) -> Optional[Decision]:
        """When all samples are consumed, or a policy has stopped the training."""


MOMENTS = ("before_train", "before_epoch", "before_step", "after_step", "after_epoch",
           "after_train")


def signals_from(raw: SignalFields) -> Signals:
    """Out of the C ABI's."""
    plain = {name: getattr(raw, name) for name in Signals._fields if name in SignalFields.NUMBERS}
    noise = GradientNoise(raw.noise_scale, raw.noise_variance, raw.noise_squared_norm)
    tensor = None if raw.nonfinite_tensor < 0 else raw.nonfinite_tensor
    return Signals(
        **plain, synchronisation=WAYS[raw.synchronisation], topology=raw.topology.decode(),
        noise=noise if raw.noise_known else None,
        straggler=None if raw.straggler_rank < 0 else Straggler(raw.straggler_rank,
                                                                raw.straggler_slowdown),
        nonfinite=None if raw.nonfinite_rank < 0 else NonFiniteSignal(raw.nonfinite_rank, tensor),
        by_rank=tuple(MemberSignals(member.host, member.slot, member.incarnation,
                                    member.compute_seconds, member.wait_seconds)
                      for member in raw.by_rank[:raw.by_rank_count]),
        links=tuple(LinkSignals(link.from_host, link.to_host, link.latency_seconds,
                                link.bytes_per_second) for link in raw.links[:raw.link_count]))


def write_decision(decision: Decision, policy: str, to: DecisionFields) -> None:
    """Into the C ABI's."""
    if decision == Decision(reason=decision.reason):
        return
    if not decision.reason:
        raise Invalid(f"the policy {policy} gave no reason for {decision}")
    to.members = decision.members or 0
    to.global_batch = decision.global_batch or 0
    to.learning_rate_factor = decision.learning_rate_factor or 0
    if decision.synchronisation is not None:
        to.synchronisation = number_of(decision.synchronisation, WAYS,
                                       "way of keeping models together")
    to.measure_links, to.stop = int(decision.measure_links), int(decision.stop)
    to.topology = (decision.topology or "").encode()
    to.reason = decision.reason.encode()[:255]


class PolicyCalls:
    """A policy as the core calls it. What goes wrong in it is kept for who made the core's call."""

    def __init__(self, policy: Policy, taken: Sequence[str]) -> None:
        """Its name is none of those that are taken."""
        self.policy = policy
        self.name = name = policy.name or type(policy).__name__
        while self.name in taken:
            self.name = f"{name} {len(taken) + 1}"
            taken = [*taken, name]
        self.error: Optional[BaseException] = None
        self.memory = ctypes.create_string_buffer(policy.state_bytes_max)
        self._write_state()

    def decide(self, moment: int, signals: Any, decision: Any) -> None:
        """Asks the policy's hook of this moment."""
        hook = MOMENTS[moment]
        if self.error is not None or getattr(type(self.policy), hook) is getattr(Policy, hook):
            return
        try:
            self.policy.state = json.loads(self.memory.value)
            wanted = getattr(self.policy, hook)(signals_from(signals.contents))
            self._write_state()
            if wanted is not None:
                write_decision(wanted, self.name, decision.contents)
        except BaseException as error:  # nothing may pass through the core
            self.error = error

    def _write_state(self) -> None:
        text = json.dumps(self.policy.state, separators=(",", ":")).encode()
        if len(text) >= len(self.memory):
            raise Invalid(f"the state of the policy {self.name} has {len(text)} bytes as JSON, "
                          f"more than its state_bytes_max of {len(self.memory)}")
        self.memory.raw = text.ljust(len(self.memory), b"\0")
