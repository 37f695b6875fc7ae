"""CallReader: calls a user's function for each sample or batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stateful_gpu_loader.datasets.callable import CallableSource, check_alike
from stateful_gpu_loader.engine.makers.bad_sample_policy import (
    BadSamplePolicy,
    is_bad,
    reason_of,
    retried,
)
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.pipeline import add_note
from stateful_gpu_loader.engine.readers.reading import Reading, ReadySample
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.randomness.philox import SeedBlock, Stream
from stateful_gpu_loader.records import BatchInfo, Request, SampleInfo, SampleKey
from stateful_gpu_loader.state.bad_samples import FoundBad

MOST_IMAGES = 2**20
"""Number of keys reserved for the images of one call."""


class CallReader:
    """Calls the user's function with generators seeded from the position.

    StopIteration is reported as the position at which the epoch ends.

    Args:
        source: holds the function.
        batch_size: number of samples in a whole batch of this rank; 1 if a call makes a batch.
        drop_last: whether an incomplete last batch is dropped.
        stacks: whether the samples are stacked unchanged.
    """

    uses_global_generators = True

    def __init__(
        self,
        source: CallableSource,
        *,
        policy: BadSamplePolicy,
        batch_size: int,
        drop_last: bool,
        stacks: bool,
    ) -> None:
        self._source = source
        self._policy = policy
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._stacks = stacks
        self._seeds = SeedBlock(Stream.ITERABLE)
        self._generators = SampleGenerators(source)

    def __call__(self, request: Request, check: Callable[[], None]) -> Reading:
        samples: list[ReadySample] = []
        positions: list[int] = []
        found: list[FoundBad] = []
        ended_at = None
        for place, key in enumerate(request.keys()):
            check()
            info = self._info(request, key, place)
            try:
                made = self._made(info, key)
            except StopIteration:
                self._check_end(info)
                ended_at = key.index
                break
            except Exception as error:
                if self._policy.mode != "drop" or not is_bad(error):
                    raise add_note(error, f"in {info}")  # noqa: B904 - it is the same error
                reason = reason_of(error)
                found.append(FoundBad(self._name(key), key.position, key.epoch, reason, False))
                continue
            samples += made
            if self._source.batch and self._source.image is not None:
                first = key.position * MOST_IMAGES
                positions += range(first, first + len(made))
            else:
                positions.append(key.position)
        if ended_at is not None and self._drop_last:
            samples, positions = [], []
        return Reading(
            samples=samples,
            positions=np.array(positions, dtype=np.int64),
            error=self._stacking_error(samples),
            bad=tuple(found),
            ended_at=ended_at,
        )

    def _stacking_error(self, samples: list[ReadySample]) -> TypeError | None:
        """Return the reason why the samples of a batch cannot be stacked, or None."""
        if self._stacks and samples:
            try:
                check_alike([sample.sample for sample in samples], samples)
            except TypeError as error:
                return error
        return None

    def _name(self, key: SampleKey) -> str:
        """Return a name for the record of bad samples."""
        return f"{'batch' if self._source.batch else 'sample'} {key.index}"

    def _info(self, request: Request, key: SampleKey, place: int) -> SampleInfo | BatchInfo:
        if self._source.batch:
            return BatchInfo(iteration=key.index, epoch_idx=key.epoch)
        return SampleInfo(
            idx_in_epoch=key.index,
            idx_in_batch=place,
            iteration=request.start // (self._batch_size * request.step),
            epoch_idx=key.epoch,
        )

    def _made(self, info: SampleInfo | BatchInfo, key: SampleKey) -> list[ReadySample]:
        """Return the result of one call: a sample, a whole batch, or each image of a batch."""
        seed = self._seeds.at(key.seed, key.epoch, key.position)

        def call() -> Any:
            self._generators.seed(seed)
            return self._source(info)

        output = retried(call, is_bad=is_bad) if self._policy.is_active else call()
        if self._source.image is None:
            return [ReadySample(output, self._name(key))]
        images = self._source.images(output, info)
        if len(images) > MOST_IMAGES:
            raise ValueError(f"{info} has {len(images)} images, more than {MOST_IMAGES}")
        name = self._name(key)
        return [
            ReadySample(image, f"{name}, image {i}" if self._source.batch else name)
            for i, image in enumerate(images)
        ]

    def _check_end(self, info: SampleInfo | BatchInfo) -> None:
        length = self._source.length
        if length is not None:
            raise LoaderError(
                f"the function raised StopIteration for {info}, but length={length} was declared. "
                "Remedy: declare the length that every epoch has, or leave it out"
            )
