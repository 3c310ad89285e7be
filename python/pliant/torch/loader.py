"""ElasticLoader: batches of a dataset, so that each sample is in exactly one committed step."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Callable, Iterator, List, Optional

from torch.utils.data import default_collate

from ..data import reading_sample, sample_seed
from ..errors import Invalid
from ..prefetch import Prefetcher
from ..session import Session, current_session
from ..step import Step
from .tokens import sample_generator


class ElasticLoader:
    """This member's part of each global batch; one batch is one elastic step.

    Without `epochs` each `for` over the loader is one pass over the dataset. With `epochs` one
    `for` is all of them. A worker that joins late gets nothing from the passes that are over, and
    goes on in the middle of the one that the others are in. Ends early for a member that was asked
    to leave.
    """

    def __init__(self, dataset: Any, batch_size: Optional[int] = None, *,
                 batch_size_per_member: Optional[int] = None, epochs: Optional[int] = None,
                 shuffle: bool = True, seed: int = 0, keep_global_batch: bool = False,
                 collate_fn: Callable[[List[Any]], Any] = default_collate, num_prefetch: int = 2,
                 threads: int = 1, session: Optional[Session] = None) -> None:
        """`dataset` is anything with a length and an index. `batch_size` is that of all members
        together, whatever their number; `batch_size_per_member` instead has it grow and shrink
        with them (pliant.data.LearningRate). `keep_global_batch` has the samples of members that
        are lost in a step computed by the others in the same step, as a further batch; otherwise
        they come in a later one.

        While a step is computed, `threads` read the next `num_prefetch` batches. With one thread,
        no two samples are read at once; with none or without batches to read ahead, all is read by
        the thread that trains. If `dataset.__getitem__` takes a `generator`, it gets one that
        depends on nothing but seed, epoch and sample; so does `sample_generator()`."""
        self.session = session or current_session()
        self.dataset = dataset
        self.epochs = epochs
        self.seed = seed
        self._check(batch_size, batch_size_per_member)
        if epochs is not None and epochs < 1:
            raise Invalid(f"epochs is {epochs}; leave it out for one pass a loop")
        if num_prefetch < 0 or threads < 0:
            raise Invalid(f"num_prefetch is {num_prefetch}, threads {threads}; neither is below "
                          "zero")
        self._takes_generator = _takes_generator(dataset)
        self._passes = 0
        self.session.use_sampler(len(dataset), batch_size or 0, seed=seed, epochs=epochs or 0,
                                 shuffle=shuffle, keep_global_batch=keep_global_batch,
                                 batch_per_member=batch_size_per_member or 0)
        self._num_prefetch = num_prefetch if threads else 0
        #: Reads the batches; its counts say how often they had been guessed.
        self.prefetcher = Prefetcher(self._read, collate_fn, batches=num_prefetch, threads=threads)
        self.session.on_close(self.prefetcher.close)

    def _check(self, batch_size: Optional[int], batch_size_per_member: Optional[int]) -> None:
        if (batch_size is None) == (batch_size_per_member is None):
            raise Invalid("a loader has a batch_size or a batch_size_per_member: give one of them")
        given = batch_size if batch_size is not None else batch_size_per_member
        name = "batch_size" if batch_size is not None else "batch_size_per_member"
        assert given is not None
        if given < 1:
            raise Invalid(f"{name} is {given}; at least one sample is needed")
        if len(self.dataset) == 0:
            raise Invalid("the dataset is empty")
        if len(self.dataset) < given:
            warnings.warn(f"the dataset has {len(self.dataset)} samples, fewer than one batch: "
                          f"{name} is {given}; each step is a whole epoch", stacklevel=3)

    @property
    def epoch(self) -> int:
        """The pass that the job is in, from 0."""
        return self.session.samples_committed // self.session.samples

    @property
    def batch_size(self) -> int:
        """Of all members together, as they are now."""
        return self.session.global_batch

    def seed_of(self, index: int) -> int:
        """The seed of what is drawn for a sample in this epoch."""
        return sample_seed(self.seed, self.session.data_epoch, index)

    def __len__(self) -> int:
        """Batches of one `for`, if no member is lost in a step and the batch stays as it is."""
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
                yield self._load(samples)
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

    def _load(self, samples: List[int]) -> Any:
        batch = self.prefetcher.take(self.session.data_epoch, samples)
        self.prefetcher.expect([self.session.upcoming_samples(ahead + 1)
                                for ahead in range(self._num_prefetch)])
        return batch

    def _read(self, epoch: int, index: int) -> Any:
        with reading_sample(self.seed, epoch, index):
            if self._takes_generator:
                return self.dataset.__getitem__(index, generator=sample_generator())
            return self.dataset[index]


def _takes_generator(dataset: Any) -> bool:
    try:
        return "generator" in inspect.signature(type(dataset).__getitem__).parameters
    except (AttributeError, TypeError, ValueError):
        return False  # not written in Python
