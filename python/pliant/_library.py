"""libpliant: where it is, and the C ABI (capi/pliant.h) as ctypes needs it.

ctypes releases the interpreter's lock during each call. Nothing else knows of C types.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import List, Optional

from ._monitor import CALLS as _MONITOR_CALLS
from .errors import CLASSES, LibraryNotFound, PliantError

#: The version of this package, and of the C ABI that it speaks: the first two numbers must agree.
VERSION = "0.1.0"
SONAME = "libpliant.so.0"
OK, CANCELLED, MORE = 0, 4, 7
NEWEST = 2**64 - 1


class Options(ctypes.Structure):
    """pliant_options."""

    _fields_ = [("size", c_size_t)] + [
        (name, c_char_p) for name in ("coordinator", "job", "token", "peer", "host", "address",
                                      "transport", "strategy")
    ] + [("timeout_seconds", c_double), ("join_timeout_seconds", c_double),
         ("heap_bytes_max", c_size_t), ("connections", c_int), ("store_window", c_int)]


class Bucket(ctypes.Structure):
    """pliant_bucket."""

    _fields_ = [("name", c_char_p), ("parameters", c_void_p), ("gradients", c_void_p),
                ("count", c_size_t), ("dtype", c_int)]


class SynchroniserOptions(ctypes.Structure):
    """pliant_synchroniser_options."""

    _fields_ = [("size", c_size_t), ("synchronisation", c_int), ("compression", c_int),
                ("alpha", c_double), ("seed", c_uint64), ("may_switch", c_int),
                ("share_results", c_int)]


class SynchroniserReport(ctypes.Structure):
    """pliant_synchroniser_report."""

    _fields_ = [("size", c_size_t), ("pulled_from", c_int), ("pulled_version", c_uint64),
                ("pulls_missed", c_uint64), ("exposed_seconds", c_double),
                ("reduced_bytes", c_uint64)]


# What an operation takes after session, group and name. Each has an _async form as well.
_OPERATIONS = {
    "all_reduce": [c_void_p, c_void_p, c_size_t, c_int, c_int],
    "reduce": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int],
    "broadcast": [c_void_p, c_size_t, c_int, c_int],
    "all_gather": [c_void_p, c_void_p, c_size_t, c_int],
    "all_gather_v": [c_void_p, c_void_p, POINTER(c_size_t), c_int],
    "gather": [c_void_p, c_void_p, c_size_t, c_int, c_int],
    "gather_v": [c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int],
    "scatter": [c_void_p, c_void_p, c_size_t, c_int, c_int],
    "scatter_v": [c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int],
    "reduce_scatter": [c_void_p, c_void_p, c_size_t, c_int, c_int],
    "reduce_scatter_v": [c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int],
    "all_to_all": [c_void_p, c_void_p, c_size_t, c_int],
    "barrier": [],
    "send": [c_void_p, c_size_t, c_int, c_int],
    "recv": [c_void_p, c_size_t, c_int, c_int],
}

_CALLS = {
    **_MONITOR_CALLS,
    "session_open": [POINTER(c_void_p)],
    "session_open_with": [POINTER(Options), POINTER(c_void_p)],
    "options_init": [POINTER(Options), c_size_t],
    "session_close": [c_void_p],
    "rank": [c_void_p, POINTER(c_int)],
    "size": [c_void_p, POINTER(c_int)],
    "local_rank": [c_void_p, POINTER(c_int)],
    "local_size": [c_void_p, POINTER(c_int)],
    "host_count": [c_void_p, POINTER(c_int)],
    "epoch": [c_void_p, POINTER(c_uint32)],
    "allocate": [c_void_p, c_size_t, POINTER(c_void_p)],
    "release": [c_void_p, c_void_p],
    "group_create": [c_void_p, POINTER(c_int), c_int, POINTER(c_void_p)],
    "group_destroy": [c_void_p],
    "group_rank": [c_void_p, POINTER(c_int)],
    "group_size": [c_void_p, POINTER(c_int)],
    "all_reduce_shared": [c_void_p, c_char_p, c_void_p, c_size_t, c_int, c_int,
                          POINTER(c_void_p)],
    "consensus": [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_int)],
    "register_state": [c_void_p, c_char_p, c_void_p, c_size_t, c_int],
    "use_sampler": [c_void_p, c_uint64, c_uint64, c_uint64, c_uint64, c_int],
    "keep_global_batch": [c_void_p],
    "batch_per_member": [c_void_p, c_uint64],
    "set_global_batch": [c_void_p, c_uint64],
    "global_batch": [c_void_p, POINTER(c_uint64)],
    "step_batch": [c_void_p, POINTER(c_uint64)],
    "data_position": [c_void_p, POINTER(c_uint64), POINTER(c_uint64)],
    "upcoming_samples": [c_void_p, c_size_t, POINTER(c_uint64), POINTER(POINTER(c_uint64)),
                         POINTER(c_size_t)],
    "begin_step": [c_void_p, POINTER(c_int)],
    "step_number": [c_void_p, POINTER(c_uint64)],
    "step_samples": [c_void_p, POINTER(POINTER(c_uint64)), POINTER(c_size_t)],
    "step_all_reduce": [c_void_p, c_char_p, c_void_p, c_void_p, c_size_t, c_int, c_int],
    "commit_step": [c_void_p],
    "step_result": [c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t)],
    "step_contributors": [c_void_p, POINTER(c_int), POINTER(c_uint64)],
    "propose_size": [c_void_p, c_int],
    "synchroniser_options_init": [POINTER(SynchroniserOptions), c_size_t],
    "synchroniser_create": [c_void_p, POINTER(Bucket), c_size_t, POINTER(SynchroniserOptions),
                            POINTER(c_void_p)],
    "synchroniser_destroy": [c_void_p],
    "synchroniser_begin": [c_void_p],
    "synchroniser_ready": [c_void_p, c_size_t],
    "synchroniser_commit": [c_void_p],
    "synchroniser_applied": [c_void_p],
    "synchroniser_switch_to": [c_void_p, c_int],
    "synchroniser_synchronisation": [c_void_p, POINTER(c_int)],
    "synchroniser_last_step": [c_void_p, POINTER(SynchroniserReport)],
    "work_wait": [c_void_p],
    "work_test": [c_void_p, POINTER(c_int)],
    "work_destroy": [c_void_p],
    "share": [c_void_p, c_void_p, c_size_t],
    "unshare": [c_void_p, c_void_p],
    "is_registered": [c_void_p, c_void_p, c_size_t, POINTER(c_int)],
    "await_works": [c_void_p, POINTER(c_uint64), c_double],
    "set_strategy": [c_void_p, c_char_p],
    "strategy": [c_void_p, c_char_p, c_size_t, POINTER(c_size_t)],
    "measure_links": [c_void_p],
    "explain": [c_void_p, c_int, c_size_t, c_char_p, c_size_t, POINTER(c_size_t)],
    "save": [c_void_p, c_char_p, c_uint64, c_void_p, c_size_t],
    "request": [c_void_p, c_int, c_char_p, c_uint64, POINTER(c_void_p)],
    "value_destroy": [c_void_p],
    "snapshot_state": [c_void_p, c_uint64, POINTER(c_void_p)],
    "snapshot_wait": [c_void_p],
    "snapshot_test": [c_void_p, POINTER(c_int)],
    "snapshot_destroy": [c_void_p],
    "restore_state": [c_void_p, c_uint64, POINTER(c_uint64)],
    "learning_rate_factor": [c_char_p, c_uint64, c_uint64, c_uint64, c_uint64, c_void_p,
                             POINTER(c_double)],
}

_OTHERS = {  # what returns no status
    "version": (c_char_p, []),
    "last_error": (c_char_p, []),
    "last_error_peer": (c_int, []),
    "sample_seed": (c_uint64, [c_uint64, c_uint64, c_uint64]),
    "value_data": (c_void_p, [c_void_p]),
    "value_size": (c_size_t, [c_void_p]),
}


def candidates() -> List[str]:
    """Where libpliant is looked for, in this order."""
    chosen = os.environ.get("PLIANT_LIBRARY")
    if chosen:
        return [os.path.join(chosen, "libpliant.so") if os.path.isdir(chosen) else chosen]
    package = pathlib.Path(__file__).resolve().parent
    found = [str(package / SONAME)]
    root = package.parent.parent
    if (root / "capi" / "pliant.h").exists():
        found.append(str(root / "build" / "release" / "libpliant.so"))
    return found + [SONAME]


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """libpliant with all declarations; its functions lose their prefix: `library().rank`."""
    tried = []
    for path in candidates():
        try:
            found = ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"  {path}: {error}")
            continue
        _declare(found, path)
        return found
    raise LibraryNotFound(
        "libpliant was not found:\n" + "\n".join(tried) + "\nBuild it (make), install it "
        "(make install), or say where it is: PLIANT_LIBRARY=/path/to/libpliant.so")


def _declare(found: ctypes.CDLL, path: str) -> None:
    def declare(name: str, result: object, arguments: list) -> None:
        try:
            function = getattr(found, "pliant_" + name)
        except AttributeError:
            raise LibraryNotFound(f"{path} has no pliant_{name}: it is no libpliant, or one that "
                                  f"is older than this package ({VERSION})") from None
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)

    declare("version", *_OTHERS["version"])
    version = found.version().decode()
    if version.split(".")[:2] != VERSION.split(".")[:2]:
        raise LibraryNotFound(f"{path} is version {version}; this package is {VERSION} and needs "
                              "a library of the same first two numbers")
    for name, (result, arguments) in _OTHERS.items():
        declare(name, result, arguments)
    for name, arguments in _CALLS.items():
        declare(name, c_int, arguments)
    for name, arguments in _OPERATIONS.items():
        common = [c_void_p, c_void_p, c_char_p, *arguments]
        declare(name, c_int, common)
        declare(name + "_async", c_int, [*common, POINTER(c_void_p)])


def failure(status: int, session: Optional[int] = None) -> PliantError:
    """The exception for the last call of this thread, which returned this status."""
    found = library()
    message = found.last_error().decode(errors="replace")
    peer = found.last_error_peer()
    epoch = c_uint32()
    known = session is not None and found.epoch(session, epoch) == OK
    return CLASSES.get(status, PliantError)(message, None if peer < 0 else peer,
                                            epoch.value if known else None)


def check(status: int, session: Optional[int] = None) -> None:
    """Raises what the status says."""
    if status != OK:
        raise failure(status, session)
