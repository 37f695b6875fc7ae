"""Batches of samples from a reader, made like those of any dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy, reason_of
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer, Failure, Maker, Stopped
from stateful_gpu_loader.engine.readers.reading import Reader, Reading
from stateful_gpu_loader.engine.stats import stage
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.state.bad_samples import FoundBad


class ReadyBatches:
    """Combines a reader with the maker of batches from its samples.

    Args:
        make: maker over :class:`ReadySamples` or :class:`ReadyImages`.
        policy: policy for bad samples; with "drop" a batch without good samples is dropped.
    """

    def __init__(self, reader: Reader, make: Maker, policy: BadSamplePolicy) -> None:
        self._reader = reader
        self._make = make
        self._policy = policy

    @property
    def uses_global_generators(self) -> bool:
        return self._make.uses_global_generators or self._reader.uses_global_generators

    def __call__(self, request: Any, check: Callable[[], None]) -> Answer:
        with stage("read"):
            reading = self._reader(request, check)
        made = Answer(SKIPPED)
        if reading.error is not None:
            made = Answer(Failure(reading.error))
        elif reading.samples:
            made = self._batch(request, reading, check)
        return Answer(
            made.payload,
            bad=(*reading.bad, *made.bad),
            snapshot=reading.snapshot,
            ended_at=reading.ended_at,
            num_samples=made.num_samples,
        )

    def _batch(self, of: Any, reading: Reading, check: Callable[[], None]) -> Answer:
        request = Request(
            ordinal=of.ordinal,
            seed=of.seed,
            epoch=of.epoch,
            start=int(reading.positions[0]),
            step=1,
            indices=list(reading.samples),
            end=0,
            listed=reading.positions,
        )
        answer = self._made(request, check)
        if isinstance(answer.payload, EncodedBatch) and not self._policy.is_active:
            return dataclasses.replace(answer, payload=_without_bytes(answer.payload))
        return answer

    def _made(self, request: Request, check: Callable[[], None]) -> Answer:
        try:
            made = self._make(request, check)
        except Stopped:
            raise
        except Exception as error:
            if isinstance(error, BadSample) and self._policy.mode == "drop":
                return Answer(SKIPPED, bad=all_bad(request, error))
            return Answer(Failure(error))
        num_samples = len(request.indices)
        if not isinstance(made, Answer):
            return Answer(made, num_samples=num_samples)
        if made.num_samples is not None:
            return made
        return dataclasses.replace(made, num_samples=num_samples)


def all_bad(request: Request, error: BadSample) -> tuple[FoundBad, ...]:
    """Return the records of a batch in which no sample can be used."""
    keys = request.keys()
    reason = reason_of(error)
    return tuple(FoundBad(repr(key.index), key.position, key.epoch, reason, False) for key in keys)


def _without_bytes(batch: EncodedBatch) -> EncodedBatch:
    """Drop the images from the request; the arena has their bytes."""
    names = [repr(index) for index in batch.request.index_list()]
    return dataclasses.replace(batch, request=batch.request._replace(indices=names))
