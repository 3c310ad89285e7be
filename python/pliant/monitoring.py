"""The part of a Session that measures its steps and follows policies."""

from __future__ import annotations

import ctypes
from typing import Any, List, NamedTuple, Optional, Union

from ._library import check
from ._monitor import (AS_BEFORE, DECIDE, NEVER, DecisionsFields, MonitorCostFields,
                       MonitorOptions, PolicyFields, SignalFields)
from .errors import Invalid
from .policy import Policy, PolicyCalls, Signals, signals_from
from .synchroniser import WAYS


class Decisions(NamedTuple):
    """What the policies have decided so far."""

    decided: int  # decisions in the life of the job
    global_batch: int  # 0: none; the sampler has it already
    learning_rate_factor: float  # 1 at first
    stopped: bool
    measure_seconds: float  # of the last measurement of links


class MonitorCosts(NamedTuple):
    """What the monitor has cost this member so far, without its all-reduce."""

    steps: int
    norms_seconds: float
    signals_seconds: float
    signal_bytes: int  # handed in by the last step


class Monitoring:
    """Used by the thread that trains."""

    _library: Any
    _handle: Optional[int]

    def __init__(self) -> None:
        #: True after use_monitor().
        self.monitored = False
        self._policies: List[PolicyCalls] = []
        self._kept_policies: List[Any] = []  # what the core calls and reads

    def _live(self) -> int:
        raise NotImplementedError

    def use_monitor(self, *, noise_every: int = 10, noise_decay: float = 0,
                    straggler_factor: float = 0, straggler_steps: int = 0) -> None:
        """Has each step measured, and its `signals` agreed on by all members. Before the first
        step, on all members alike. Norms of gradients, for the noise scale, are taken in every
        `noise_every`-th step, 0: never. What is zero otherwise has its default."""
        options = MonitorOptions(ctypes.sizeof(MonitorOptions), noise_every or NEVER, noise_decay,
                                 straggler_factor, straggler_steps)
        live = self._live()
        check(self._library.use_monitor(live, options), live)
        self.monitored = True

    def add_policy(self, policy: Union[Policy, str]) -> None:
        """A policy of your own, or one that is shipped, by its text: "best_size:max=8". Before the
        first step; the same policies in the same order on all members. Where two of them decide
        the same thing differently, the first has its way."""
        if not self.monitored:
            self.use_monitor()
        live = self._live()
        if isinstance(policy, str):
            check(self._library.add_policy(live, policy.encode()), live)
            return
        if not isinstance(policy, Policy):
            raise Invalid(f"{policy!r} is no policy: give a pliant.Policy, or the text of one that "
                          "is shipped")
        names = [calls.name for calls in self._policies]
        calls = PolicyCalls(policy, names)
        decide = DECIDE(lambda _, moment, signals, decision: calls.decide(moment, signals,
                                                                          decision))
        fields = PolicyFields(ctypes.sizeof(PolicyFields), calls.name.encode(), decide, None,
                              ctypes.addressof(calls.memory), len(calls.memory))
        check(self._library.add_user_policy(live, fields), live)
        self._policies.append(calls)
        self._kept_policies.append((decide, calls))

    def record_loss(self, mean: float, samples: Optional[int] = None) -> None:
        """The mean loss over so many samples of the open step, by default all that this member has
        (1 without a sampler); several calls in a step add up."""
        if samples is None:
            step = getattr(self, "step")
            samples = len(step.samples) if getattr(self, "samples") else 1
        live = self._live()
        check(self._library.monitor_loss(live, mean, samples), live)

    @property
    def signals(self) -> Signals:
        """Those of the last committed step."""
        raw = SignalFields(size=ctypes.sizeof(SignalFields))
        live = self._live()
        check(self._library.last_signals(live, raw), live)
        return signals_from(raw)

    @property
    def monitor_costs(self) -> MonitorCosts:
        """What the monitor has cost so far."""
        raw = MonitorCostFields(size=ctypes.sizeof(MonitorCostFields))
        live = self._live()
        check(self._library.last_monitor_costs(live, raw), live)
        return MonitorCosts(raw.steps, raw.norms_seconds, raw.signals_seconds, raw.signal_bytes)

    @property
    def decisions(self) -> Decisions:
        """What the policies have decided so far."""
        raw = DecisionsFields(size=ctypes.sizeof(DecisionsFields))
        live = self._live()
        check(self._library.last_decisions(live, raw), live)
        return Decisions(raw.decided, raw.global_batch, raw.learning_rate_factor,
                         bool(raw.stopped), raw.measure_seconds)

    def take_synchronisation(self) -> Optional[str]:
        """A switch that a policy has decided, once, for Synchroniser.switch_to() before the next
        step; None if there is none."""
        number = ctypes.c_int(AS_BEFORE)
        live = self._live()
        check(self._library.take_synchronisation(live, number), live)
        return None if number.value == AS_BEFORE else WAYS[number.value]

    def _raise_from_policies(self) -> None:
        for calls in self._policies:
            if calls.error is not None:
                error, calls.error = calls.error, None
                raise error
