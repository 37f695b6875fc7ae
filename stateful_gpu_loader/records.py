"""The values that travel between rooms: keys, requests, encoded samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleKey:
    """The full address of one sample in one pass.

    >>> SampleKey(seed=42, epoch=0, position=7, index=3)
    SampleKey(seed=42, epoch=0, position=7, index=3)
    """

    seed: int
    """64 bits; keys the order and every random draw."""
    epoch: int
    """The pass over the dataset, counted from 0."""
    position: int
    """Ordinal in the epoch's global order, all ranks together."""
    index: Any
    """``dataset[index]`` is the sample; an int, or whatever a user's sampler yields."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one batch is made from: n keys, compactly.

    Positions are ``start + step * i`` for ``i < len(indices)``, or those that are listed.
    """

    ordinal: int
    """Number of the request within its pass; answers are delivered in this order."""
    seed: int
    epoch: int
    start: int
    """Position of the first sample."""
    step: int
    """Distance between the positions of neighbours: the number of ranks."""
    indices: IndexArray | list[Any]
    """int64 [n]: the dataset's indices; a list of whatever a user's sampler yields."""
    end: int
    """The epoch's position once every rank delivered this request."""
    worker: int | None = None
    """Who must serve it, where workers keep state; None leaves it to the pipeline."""
    snapshot: bool = False
    """Whether the worker's state travels back with the batch."""
    listed: IndexArray | None = None
    """int64 [n]: the positions, where they are not evenly spaced."""

    @property
    def positions(self) -> IndexArray:
        """int64 [n]: positions in the epoch's global order."""
        if self.listed is not None:
            return self.listed
        return self.start + self.step * np.arange(len(self.indices), dtype=np.int64)

    def index_list(self) -> list[Any]:
        """The n indices as the dataset gets them: Python's ints, or the sampler's own objects."""
        return self.indices if isinstance(self.indices, list) else self.indices.tolist()

    def keys(self) -> list[SampleKey]:
        """The n keys, spelled out."""
        return [
            SampleKey(self.seed, self.epoch, position, index)
            for position, index in zip(self.positions.tolist(), self.index_list(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one batch of an iterable dataset is made from: the next fetch of a worker's iterator."""

    ordinal: int
    """Number of the turn within its pass; answers are delivered in this order."""
    worker: int | None
    """Whose iterator is asked; None for anybody's."""
    snapshot: bool
    """Whether the worker's state travels back with the batch."""


@dataclass(frozen=True, slots=True)
class LaneTurn:
    """What one batch of a sharded dataset is made from: the next samples of a lane."""

    ordinal: int
    """Number of the request within its pass; answers are delivered in this order."""
    seed: int
    epoch: int
    lane: int
    turn: int
    """Of the lane, counted within its lap."""
    lap: int
    """How often the lane was read to its end in this epoch."""
    num_samples: int
    """To take; a lane that has fewer left gives none."""
    cursor: str | None
    """Where the lane begins; None where whoever serves it knows."""
    start: int
    """Number of the workers' start, of all in this process, that the turn belongs to."""
    worker: int
    """Who serves the lane."""
    snapshot: bool = False
    """The cursors travel back with every batch by themselves."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """Some samples of a lane: a piece of its rest."""

    lane: int
    lap: int
    cursor: str
    skip: int
    """Samples behind the cursor that are not of this part."""
    num_samples: int


@dataclass(frozen=True, slots=True)
class RestTurn:
    """What one batch of the rests of several lanes is made from."""

    ordinal: int
    seed: int
    epoch: int
    parts: tuple[LanePart, ...]
    """None of them asks for nothing."""
    worker: None = None
    """Anybody: a part tells where it begins."""
    bad: tuple[Any, ...] = ()
    """What was met when these rests were counted, to be told with the batch."""
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a worker that keeps state is told before its first request of a pass."""

    seed: int
    epoch: int
    place: int
    """Key of ``iter(dataset)``; that of the worker's fetch i, from 1, is ``place + stride * i``."""
    stride: int
    """Iterators of all workers and ranks together."""
    state: bytes | None
    """Frozen state to go on from; None begins anew."""


@dataclass(frozen=True, slots=True)
class SampleInfo:
    """Which sample a :class:`CallableSource`'s function is asked for; as DALI names it.

    >>> SampleInfo(idx_in_epoch=17, idx_in_batch=1, iteration=4, epoch_idx=0)
    SampleInfo(idx_in_epoch=17, idx_in_batch=1, iteration=4, epoch_idx=0)
    """

    idx_in_epoch: int
    """Its position in the epoch's global order, all ranks together."""
    idx_in_batch: int
    """Its place in this rank's batch; this and the next follow the batch size."""
    iteration: int
    """The batch in the epoch, counted in whole global batches of the present size."""
    epoch_idx: int


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Which batch a :class:`CallableSource`'s function is asked for; as DALI names it."""

    iteration: int
    """The batch in the epoch, all ranks together."""
    epoch_idx: int


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """One image as its source stores it, not yet decoded."""

    data: torch.Tensor
    """uint8 [num_bytes] on the CPU: the bytes of a JPEG, PNG or WebP file."""
    target: Any
    """What goes with the image: a class as int, or boxes and masks."""
    name: str
    """Where it lies, for error messages: a path, or a file and a record."""
    size: tuple[int, int] | None = None
    """Height and width in pixels that boxes and masks in the target speak of; None is unchecked."""

    def __repr__(self) -> str:
        return f"EncodedSample({self.name!r}, {self.data.numel()} bytes, target={self.target!r})"
