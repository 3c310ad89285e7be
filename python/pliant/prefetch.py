"""Reading samples before they are due, with threads; a wrong guess is thrown away."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

_PATIENCE_SECONDS = 10


class _Batch:
    """The samples of a step while they are read, by whoever has time."""

    def __init__(self, epoch: int, samples: Sequence[int]) -> None:
        self.epoch = epoch
        self.samples = tuple(samples)
        self.items: List[Any] = [None] * len(samples)
        self.next = 0  # that nobody has taken
        self.missing = len(samples)
        self.failed: Optional[Tuple[int, BaseException]] = None  # the first of the samples
        self.result: Any = None
        self.complete = threading.Event()

    def fail(self, place: int, error: BaseException) -> None:
        if self.failed is None or place < self.failed[0]:
            self.failed = (place, error)


class Prefetcher:
    """Gives batches of samples, which threads of its own may have read before.

    `read(epoch, sample)` gives a sample and `finish(samples)` makes a batch of them. With one
    thread, samples are never read by two threads at once, but not always by the same.
    """

    def __init__(self, read: Callable[[int, int], Any], finish: Callable[[List[Any]], Any], *,
                 batches: int = 2, threads: int = 1) -> None:
        self._read, self._finish = read, finish
        self._batches = batches
        self._thread_count = threads
        self._threads: List[threading.Thread] = []
        self._changed = threading.Condition()  # guards what follows, and the batches' counts
        self._guesses: List[_Batch] = []  # the nearest first
        self._urgent: Optional[_Batch] = None  # somebody waits for it
        self._closed = False
        self._turn: Any = threading.Lock() if threads <= 1 else contextlib.nullcontext()
        #: Batches that had been read or begun before they were due, that had not, and guesses that
        #: were wrong.
        self.guessed, self.read_now, self.thrown_away = 0, 0, 0

    def expect(self, upcoming: Sequence[Tuple[int, Sequence[int]]]) -> None:
        """These are the next batches, (epoch, samples), the nearest first. Earlier guesses that
        are not among them are thrown away."""
        if self._closed or self._thread_count < 1:
            return
        with self._changed:
            known = {(guess.epoch, guess.samples): guess for guess in self._guesses}
            self._guesses = [known.pop((epoch, tuple(samples)), None) or _Batch(epoch, samples)
                             for epoch, samples in upcoming[:self._batches] if samples]
            self.thrown_away += len(known)
            self._changed.notify_all()
        while self._guesses and len(self._threads) < self._thread_count:
            thread = threading.Thread(target=self._work, name="pliant-loader", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take(self, epoch: int, samples: Sequence[int]) -> Any:
        """The batch of these samples. The caller reads what nobody has begun to read; what reading
        a sample raises is raised here."""
        with self._changed:
            batch = next((guess for guess in self._guesses
                          if (guess.epoch, guess.samples) == (epoch, tuple(samples))), None)
            if batch is None:
                self.read_now += 1
                batch = _Batch(epoch, samples)
            else:
                self.guessed += 1
                self._guesses.remove(batch)
            self._urgent = batch
            self._changed.notify_all()
        try:
            while True:
                with self._changed:
                    place = self._claim_from(batch)
                if place is None:
                    break
                self._read_one(batch, place)
            batch.complete.wait()
        finally:
            with self._changed:
                self._urgent = None
                self._changed.notify_all()
        if batch.failed is not None:
            raise batch.failed[1]
        return batch.result

    def close(self) -> None:
        """Ends the threads, each after the sample that it reads. One that hangs in it is left: it
        does not keep the program from ending."""
        with self._changed:
            self._closed = True
            self.thrown_away += len(self._guesses)
            self._guesses.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_PATIENCE_SECONDS)
        self._threads.clear()

    @staticmethod
    def _claim_from(batch: _Batch) -> Optional[int]:
        if batch.next == len(batch.samples):
            return None
        batch.next += 1
        return batch.next - 1

    def _claim(self) -> Optional[Tuple[_Batch, int]]:
        """What is to be read next: first of all what is waited for."""
        candidates = list(self._guesses)
        if self._urgent is not None:
            if self._thread_count == 1:
                return None  # it is the caller's turn
            candidates.insert(0, self._urgent)
        for batch in candidates:
            place = self._claim_from(batch)
            if place is not None:
                return batch, place
        return None

    def _work(self) -> None:
        while True:
            with self._changed:
                claimed = None
                while not self._closed and claimed is None:
                    claimed = self._claim()
                    if claimed is None:
                        self._changed.wait()
            if self._closed or claimed is None:
                return
            self._read_one(*claimed)
            del claimed  # a batch that was given away is not kept by a thread that waits

    def _read_one(self, batch: _Batch, place: int) -> None:
        try:
            with self._turn:
                batch.items[place] = self._read(batch.epoch, batch.samples[place])
        except BaseException as error:  # pylint: disable=broad-except
            with self._changed:
                batch.fail(place, error)
        with self._changed:
            batch.missing -= 1
            if batch.missing > 0:
                return
        try:
            if batch.failed is None:
                batch.result = self._finish(batch.items)
        except BaseException as error:  # pylint: disable=broad-except
            batch.fail(0, error)
        batch.items = []
        batch.complete.set()
