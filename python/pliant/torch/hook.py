"""DistributedDataParallel's gradients through Pliant, whatever backend its group has."""

import os
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist

from ..errors import PliantError
from ..session import Session, current_session
from .completion import completion_of

# Smaller buckets gain nothing.
_SHARED_BYTES_MIN = 1 << 20
# Torch moves memory through a file in memory, for a moment; full ones end programs.
_FILES, _ROOM = "/dev/shm", 4


# torch compares these annotations, so they are types here, not text.
def comm_hook(session: Optional[Session],
              bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `ddp.register_comm_hook(session, comm_hook)`: the mean of each bucket over the session,
    None for that of the process. Buckets move to registered memory, so that the peers of this host
    reduce them where they are."""
    session = session or current_session()
    buffer = bucket.buffer()
    _settle(session, buffer)
    work = session.all_reduce_async(f"pliant/ddp/{bucket.index()}", buffer, op="mean")
    return completion_of(session).add(work.done, work.result)


def _settle(session: Session, buffer: torch.Tensor) -> None:
    """Moves a bucket that comes for the second time: DDP makes new ones after the first pass."""
    known = session._buckets
    seen = known.get(id(buffer))
    if seen is None or seen() is not buffer:
        known[id(buffer)] = weakref.ref(buffer, lambda _, key=id(buffer): known.pop(key, None))
        return
    size = buffer.numel() * buffer.element_size()
    if size < _SHARED_BYTES_MIN or session.is_registered(buffer):
        return
    files = os.statvfs(_FILES) if os.path.isdir(_FILES) else None
    if files is None or files.f_bavail * files.f_frsize < _ROOM * session.local_size * size:
        return
    try:
        _move(session, buffer, _storage_of(buffer))
    except (PliantError, RuntimeError):
        pass  # it is reduced by copies, as before


def _move(session: Session, buffer: torch.Tensor, storage: Any) -> None:
    """Gives a storage, and so all tensors that it holds, pages of registered memory: torch maps a
    file of its own in its place first, since that is memory for itself."""
    if storage.is_shared() or buffer.storage_offset() != 0:
        return
    descriptor, _ = storage._share_fd_cpu_()  # which stays the storage's
    address = storage.data_ptr()
    session._share(address, storage.nbytes())
    os.ftruncate(descriptor, 0)  # nobody maps it any more
    # Until the bucket is freed, or the session closed.
    weakref.finalize(buffer, session._unshare, address).atexit = False


def _storage_of(tensor: torch.Tensor) -> Any:
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    return tensor.storage().untyped()
