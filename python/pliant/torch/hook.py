"""DistributedDataParallel's gradients through Pliant, whatever backend its group has."""

from typing import Optional

import torch
import torch.distributed as dist

from ..session import Session, current_session
from .completion import completion_of


# torch compares these annotations, so they are types here, not text.
def comm_hook(session: Optional[Session],
              bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `ddp.register_comm_hook(session, comm_hook)`: the mean of each bucket over the session,
    None for that of the process."""
    session = session or current_session()
    work = session.all_reduce_async(f"pliant/ddp/{bucket.index()}", bucket.buffer(), op="mean")
    return completion_of(session).add(work.done, work.result)
