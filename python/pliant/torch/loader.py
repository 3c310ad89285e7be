"""ElasticLoader: batches of a dataset, so that each sample is in exactly one committed step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, List, Optional

from torch.utils.data import default_collate

from ..errors import Invalid
from ..session import Session, current_session
from ..step import Step


class ElasticLoader:
    """This member's part of each global batch; one batch is one elastic step.

    Without `epochs` each `for` over the loader is one pass over the dataset. With `epochs` one
    `for` is all of them. A worker that joins late gets nothing from the passes that are over, and
    goes on in the middle of the one that the others are in. Ends early for a member that was asked
    to leave.
    """

    def __init__(self, dataset: Any, batch_size: int, *, epochs: Optional[int] = None,
                 shuffle: bool = True, seed: int = 0, keep_global_batch: bool = False,
                 collate: Callable[[List[Any]], Any] = default_collate, threads: int = 0,
                 session: Optional[Session] = None) -> None:
        """`batch_size` is that of all members together, whatever their number, and `dataset`
        anything with a length and an index. `keep_global_batch` has the samples of members that
        are lost in a step computed by the others in the same step, as a further batch; otherwise
        they come in a later one. `threads` read the samples of a batch side by side."""
        self.session = session or current_session()
        self.dataset = dataset
        self.batch_size = batch_size
        self.epochs = epochs
        if batch_size < 1:
            raise Invalid(f"batch_size is {batch_size}; at least one sample is needed")
        if len(dataset) < batch_size:
            raise Invalid(f"the dataset has {len(dataset)} samples, fewer than one batch of "
                          f"{batch_size}")
        if epochs is not None and epochs < 1:
            raise Invalid(f"epochs is {epochs}; leave it out for one pass a loop")
        self._collate = collate
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._passes = 0
        self.session.use_sampler(len(dataset), batch_size, seed=seed, epochs=epochs or 0,
                                 shuffle=shuffle, keep_global_batch=keep_global_batch)

    @property
    def epoch(self) -> int:
        """The pass that the job is in, from 0."""
        return self.session.samples_committed // self.session.samples

    def __len__(self) -> int:
        """Batches of one `for`, if no member is lost in a step."""
        return -(-self.session.samples // self.batch_size) * (self.epochs or 1)

    def __iter__(self) -> Iterator[Any]:
        passes = self._passes
        self._passes += 1
        while self.epochs is not None or self.epoch == passes:
            step = self._open_step()
            # Whoever has just joined learns only now where the others are.
            if step is None or (self.epochs is None and self.epoch != passes):
                return
            samples = step.samples
            if samples:
                yield self._batch(samples)
                if step.open and not step.more:
                    raise Invalid(f"step {step.number} was not committed: each batch is a step; "
                                  "call SynchronousSGD.step() once for each")
            else:
                self._sit_out(step)
            if step.out:
                return

    def _open_step(self) -> Optional[Step]:
        step = self.session.step
        return step if step is not None and step.open else self.session.begin_step()

    def _sit_out(self, step: Step) -> None:
        """There are more members than samples; the others need our part all the same."""
        if self.session.idle is None:
            raise Invalid(f"step {step.number} has no samples for this member, and there is no "
                          "SynchronousSGD that could take part without")
        self.session.idle(step)

    def _batch(self, samples: List[int]) -> Any:
        reading = self._pool.map if self._pool else map
        return self._collate(list(reading(self.dataset.__getitem__, samples)))
