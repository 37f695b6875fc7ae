"""Batches of an iterable dataset: one iterator in each worker, asked batch by batch.

Each fetch runs under generators keyed by (seed, epoch, worker, number of the fetch), so that
reading again what was read before gives the same samples, a shuffle buffer's included (A7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import IterDataPipe, get_worker_info

from stateful_gpu_loader.engine.executors.datapipes import prepare_datapipe
from stateful_gpu_loader.engine.executors.user_objects import load_user_state, state_of
from stateful_gpu_loader.engine.pipeline import NOTHING, Answer
from stateful_gpu_loader.frozen import freeze, thaw
from stateful_gpu_loader.randomness import Stream, sample_seeds, seed_global_generators
from stateful_gpu_loader.records import Turn, WorkerStart
from stateful_gpu_loader.user_states import worker_state


class IterableExecutor:
    """Fetches as torch's DataLoader does; the state is torchdata's, or the number of fetches.

    Args:
        dataset: iterable.
        batch_size: None gives samples as they come.
        drop_last: leaves out a worker's last batch if it is not full.
        transform: a callable on one sample, or None.
        collate_fn: makes the batch from a list of samples, or converts one sample.
    """

    uses_global_generators = True

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        drop_last: bool,
        transform: Callable[[Any], Any] | None,
        collate_fn: Callable[[Any], Any],
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._transform = transform
        self._collate_fn = collate_fn
        self._start: WorkerStart | None = None
        self._iterator: Iterator[Any] | None = None
        self._fetches = 0
        self._samples = 0
        self._exhausted = False
        self._ended = False
        self._loaded: bytes | None = None

    def begin(self, start: WorkerStart) -> None:
        """torchdata's order: the dataset's state, ``iter()``, the iterator's state."""
        self._start = start
        self._iterator = None
        self._fetches = self._samples = 0
        self._exhausted = self._ended = False
        state = worker_state() if start.state is None else thaw(start.state)
        load_user_state("dataset", self._dataset, state["dataset"])
        self._loaded = start.state if state["ended"] else None
        if state["ended"]:
            self._ended = True
            return
        if isinstance(self._dataset, IterDataPipe):
            prepare_datapipe(self._dataset, start)
        self._seed()
        self._iterator = iter(self._dataset)
        load_user_state("iterator", self._iterator, state["iterator"])
        if state["dataset"] is None and state["iterator"] is None:
            self._read_again(state["samples"])
        self._fetches, self._samples = state["fetches"], state["samples"]

    def __call__(self, request: Turn, check: Callable[[], None]) -> Any:
        if self._start is None:
            raise TypeError("an iterable's executor is told first where it begins")
        if not self._ended:
            self._fetches += 1
            self._seed()
            samples = self._fetch(self._batch_size or 1)
            if samples and not self._is_dropped(samples):
                return self._collate_fn(samples if self._batch_size else samples[0])
            self._ended = True
        worker = get_worker_info()
        return Answer(NOTHING, worker=worker.id if worker else 0, snapshot=self.snapshot())

    def snapshot(self) -> bytes:
        """The frozen state; of a worker with nothing left, what its dataset keeps."""
        if self._loaded is not None:
            return self._loaded  # nothing of it was used, and a dataset may tell it only then
        ended = self._ended or self._exhausted
        # torchdata stores a dataset that is its own iterator once.
        is_iterator = self._iterator is self._dataset
        state = worker_state(
            dataset=state_of(self._dataset) if ended or not is_iterator else None,
            iterator=None if ended else state_of(self._iterator),
            fetches=self._fetches,
            samples=self._samples,
            ended=ended,
        )
        return freeze(state, type(self._dataset).__name__)

    def _fetch(self, count: int) -> list[Any]:
        samples: list[Any] = []
        while len(samples) < count and not self._exhausted and self._iterator is not None:
            try:
                sample = next(self._iterator)
            except StopIteration:
                self._exhausted = True
            else:
                self._samples += 1
                samples.append(sample if self._transform is None else self._transform(sample))
        return samples

    def _is_dropped(self, samples: list[Any]) -> bool:
        return self._drop_last and len(samples) < (self._batch_size or 1)

    def _read_again(self, count: int) -> None:
        """Fast-forward an iterator without state, fetch by fetch, as it was read before."""
        while self._samples < count:
            self._fetches += 1
            self._seed()
            before = self._samples
            self._fetch(min(self._batch_size or 1, count - self._samples))
            if self._samples == before:
                break

    def _seed(self) -> None:
        start = self._start
        if start is not None:
            place = np.array([start.place + start.stride * self._fetches], dtype=np.int64)
            seed_global_generators(sample_seeds(start.seed, start.epoch, place, Stream.ITERABLE)[0])
