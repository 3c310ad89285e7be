"""The structs of capi/pliant_monitor.h, as ctypes needs them."""

from __future__ import annotations

import ctypes
from ctypes import (CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_int, c_size_t, c_uint16,
                    c_uint32, c_uint64, c_void_p)

NEVER = 2**64 - 1
AS_BEFORE = -1


class MonitorOptions(ctypes.Structure):
    """pliant_monitor_options."""

    _fields_ = [("size", c_size_t), ("noise_every", c_uint64), ("noise_decay", c_double),
                ("straggler_factor", c_double), ("straggler_steps", c_int)]


class MemberFields(ctypes.Structure):
    """pliant_member_signals."""

    _fields_ = [("host", c_uint32), ("slot", c_uint16), ("incarnation", c_uint16),
                ("compute_seconds", c_double), ("wait_seconds", c_double)]


class LinkFields(ctypes.Structure):
    """pliant_link_signals."""

    _fields_ = [("from_host", c_uint32), ("to_host", c_uint32), ("latency_seconds", c_double),
                ("bytes_per_second", c_double)]


class SignalFields(ctypes.Structure):
    """pliant_signals."""

    _fields_ = [("size", c_size_t), ("step", c_uint64), ("data_epoch", c_uint64),
                ("samples_committed", c_uint64), ("batch", c_uint64),
                ("reduced_bytes", c_uint64), ("view", c_uint32), ("members", c_int),
                ("hosts", c_int), ("members_lost", c_int), ("step_seconds", c_double),
                ("samples_per_second", c_double), ("compute_seconds", c_double),
                ("wait_seconds", c_double), ("change_seconds", c_double), ("loss", c_double),
                ("synchronisation", c_int), ("topology", c_char_p), ("noise_known", c_int),
                ("noise_scale", c_double), ("noise_variance", c_double),
                ("noise_squared_norm", c_double), ("straggler_rank", c_int),
                ("straggler_slowdown", c_double), ("nonfinite_rank", c_int),
                ("nonfinite_tensor", c_int), ("by_rank", POINTER(MemberFields)),
                ("by_rank_count", c_size_t), ("links", POINTER(LinkFields)),
                ("link_count", c_size_t)]
    #: Those that are passed on as they are.
    NUMBERS = frozenset(name for name, _ in _fields_[1:16])


class MonitorCostFields(ctypes.Structure):
    """pliant_monitor_costs."""

    _fields_ = [("size", c_size_t), ("steps", c_uint64), ("norms_seconds", c_double),
                ("signals_seconds", c_double), ("signal_bytes", c_uint64)]


class DecisionFields(ctypes.Structure):
    """pliant_decision."""

    _fields_ = [("size", c_size_t), ("members", c_int), ("global_batch", c_uint64),
                ("learning_rate_factor", c_double), ("synchronisation", c_int),
                ("measure_links", c_int), ("stop", c_int), ("topology", c_char * 1024),
                ("reason", c_char * 256)]


class DecisionsFields(ctypes.Structure):
    """pliant_decisions."""

    _fields_ = [("size", c_size_t), ("decided", c_uint64), ("global_batch", c_uint64),
                ("learning_rate_factor", c_double), ("stopped", c_int),
                ("measure_seconds", c_double)]


DECIDE = CFUNCTYPE(None, c_void_p, c_int, POINTER(SignalFields), POINTER(DecisionFields))


class PolicyFields(ctypes.Structure):
    """pliant_policy."""

    _fields_ = [("size", c_size_t), ("name", c_char_p), ("decide", DECIDE),
                ("context", c_void_p), ("state", c_void_p), ("state_bytes", c_size_t)]


CALLS = {
    "use_monitor": [c_void_p, POINTER(MonitorOptions)],
    "monitor_loss": [c_void_p, c_double, c_uint64],
    "last_signals": [c_void_p, POINTER(SignalFields)],
    "last_monitor_costs": [c_void_p, POINTER(MonitorCostFields)],
    "add_policy": [c_void_p, c_char_p],
    "add_user_policy": [c_void_p, POINTER(PolicyFields)],
    "last_decisions": [c_void_p, POINTER(DecisionsFields)],
    "take_synchronisation": [c_void_p, POINTER(c_int)],
}
