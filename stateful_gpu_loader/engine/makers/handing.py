"""Batches of samples that were read or made elsewhere, put together as any dataset's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from stateful_gpu_loader.engine.makers.bad_sample_errors import reason_of
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch
from stateful_gpu_loader.engine.makers.handed import HandedSample
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer, Executor, Failure, Stopped
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import IndexArray, Request
from stateful_gpu_loader.state.bad_samples import FoundBad


class HandedBatches:
    """Lets an executor make a batch of :class:`HandedSample`.

    Args:
        make: reads its samples from :class:`HandedSamples` or :class:`HandedImages`.
        policy: what is done about bad samples; a batch of which none can be used is left out.
    """

    def __init__(self, make: Executor, policy: BadSamplePolicy) -> None:
        self._make = make
        self._policy = policy
        self.uses_global_generators = make.uses_global_generators

    def __call__(
        self,
        of: Any,
        samples: list[HandedSample],
        positions: IndexArray,
        check: Callable[[], None],
    ) -> Answer:
        """The batch, or why there is none.

        Args:
            of: the request that the samples are for.
            positions: int64 [n]: the keys of the n samples.
        """
        request = Request(
            ordinal=of.ordinal,
            seed=of.seed,
            epoch=of.epoch,
            start=int(positions[0]),
            step=1,
            indices=list(samples),
            end=0,
            listed=positions,
        )
        said = self._made(request, check)
        if isinstance(said.payload, EncodedBatch) and not self._policy.is_active:
            return dataclasses.replace(said, payload=_without_bytes(said.payload))
        return said

    def _made(self, request: Request, check: Callable[[], None]) -> Answer:
        try:
            said = self._make(request, check)
        except Stopped:
            raise
        except Exception as error:
            if isinstance(error, BadSample) and self._policy.mode == "drop":
                return Answer(SKIPPED, bad=_all_bad(request, error))
            return Answer(Failure(error))
        return said if isinstance(said, Answer) else Answer(said)


class DeviceSteps(Protocol):
    """What a device does with a batch of encoded images, in two steps."""

    def decode(self, batch: EncodedBatch) -> Any: ...

    def augment(self, batch: Any) -> Any: ...


class HandedSteps:
    """The steps of such batches; one of which no image can be used is left out.

    Args:
        steps: of batches of encoded images.
        policy: what is done about bad samples.
    """

    def __init__(self, steps: DeviceSteps, policy: BadSamplePolicy) -> None:
        self._steps = steps
        self._policy = policy

    def decode(self, batch: EncodedBatch) -> Any:
        try:
            return self._steps.decode(batch)
        except BadSample as error:
            if self._policy.mode != "drop":
                raise
            return Answer(SKIPPED, bad=_all_bad(batch.request, error))

    def augment(self, batch: Any) -> Any:
        return batch if isinstance(batch, Answer) else self._steps.augment(batch)


def _all_bad(request: Request, error: BadSample) -> tuple[FoundBad, ...]:
    """The record of a batch of which no sample can be used."""
    keys = request.keys()
    reason = reason_of(error)
    return tuple(FoundBad(repr(key.index), key.position, key.epoch, reason, False) for key in keys)


def _without_bytes(batch: EncodedBatch) -> EncodedBatch:
    """The images' bytes travel once, in the arena."""
    names = [repr(index) for index in batch.request.index_list()]
    return dataclasses.replace(batch, request=dataclasses.replace(batch.request, indices=names))
