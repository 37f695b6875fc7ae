"""Values that parts of the package exchange: keys, requests, encoded samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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
    """Seed of the order and of every random draw, 64 bits."""
    epoch: int
    """Number of the pass over the dataset, counted from 0."""
    position: int
    """Position in the epoch's global order, all ranks together."""
    index: Any
    """Index of the sample in the dataset: an int, or any object that a user's sampler yields."""


class Request(NamedTuple):
    """The n keys that one batch is made from, in a compact form.

    The positions are ``start + step * i`` for ``i < len(indices)``, or the ones in ``listed``.
    """

    ordinal: int
    """Number of the request within its pass; answers are delivered in this order."""
    seed: int
    epoch: int
    start: int
    """Position of the first sample."""
    step: int
    """Distance between neighbouring positions: the number of ranks."""
    indices: IndexArray | list[Any]
    """Indices of the samples, int64 [n], or a list of the objects that a user's sampler yields."""
    end: int
    """Position in the epoch after every rank has delivered this request."""
    worker: int | None = None
    """Worker that must execute the request, if workers keep state; None for any worker."""
    snapshot: bool = False
    """Whether the worker's state is sent back with the batch."""
    listed: IndexArray | None = None
    """Positions of the samples if they are not evenly spaced, int64 [n]; otherwise None."""

    @property
    def positions(self) -> IndexArray:
        """Positions of the samples in the epoch's global order, int64 [n]."""
        if self.listed is not None:
            return self.listed
        return self.start + self.step * np.arange(len(self.indices), dtype=np.int64)

    def index_list(self) -> list[Any]:
        """Return the n indices that the dataset gets: ints, or the sampler's objects."""
        return self.indices if isinstance(self.indices, list) else self.indices.tolist()

    def keys(self) -> list[SampleKey]:
        """Return the n keys."""
        return [
            SampleKey(self.seed, self.epoch, position, index)
            for position, index in zip(self.positions.tolist(), self.index_list(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request for one batch of an iterable dataset: the next fetch of a worker's iterator."""

    ordinal: int
    """Number of the turn within its pass; answers are delivered in this order."""
    worker: int | None
    """Worker whose iterator is read; None for any worker."""
    snapshot: bool
    """Whether the worker's state is sent back with the batch."""


class LaneTurn(NamedTuple):
    """A request for one batch of a sharded dataset: the next samples of a lane."""

    ordinal: int
    """Number of the request within its pass; answers are delivered in this order."""
    seed: int
    epoch: int
    lane: int
    turn: int
    """Number of the lane's turn within its lap."""
    lap: int
    """Number of times that the lane was already read to its end in this epoch."""
    num_samples: int
    """Number of samples to read; a lane with fewer samples left yields no batch."""
    cursor: str | None
    """Cursor from which the lane is read; None if the worker has it open already."""
    start: int
    """Number of the start of workers, counted in this process, that the turn belongs to."""
    worker: int
    """Worker that reads the lane."""
    snapshot: bool = False
    """Always False, because the cursors are sent back with every batch."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """Part of the last samples of a lane, which do not fill a batch."""

    lane: int
    lap: int
    cursor: str
    skip: int
    """Number of samples after the cursor that precede this part."""
    num_samples: int


@dataclass(frozen=True, slots=True)
class RestTurn:
    """A request for one batch of the last samples of several lanes."""

    ordinal: int
    seed: int
    epoch: int
    parts: tuple[LanePart, ...]
    """Parts of the lanes; without parts the request yields no batch."""
    worker: None = None
    """None for any worker, because each part says where it begins."""
    bad: tuple[Any, ...] = ()
    """Bad samples found while the last samples were counted; they are recorded with the batch."""
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """Sent to a worker with state at the beginning of a pass, before its first request."""

    seed: int
    epoch: int
    place: int
    """Position that seeds ``iter(dataset)``; fetch i of the worker, counted from 1, is seeded from
    ``place + stride * i``."""
    stride: int
    """Number of iterators of all workers and ranks together."""
    state: bytes | None
    """Serialized state to resume from; None to begin from the start."""


@dataclass(frozen=True, slots=True)
class SampleInfo:
    """The sample that a :class:`CallableSource` asks its function for; fields as in DALI.

    >>> SampleInfo(idx_in_epoch=17, idx_in_batch=1, iteration=4, epoch_idx=0)
    SampleInfo(idx_in_epoch=17, idx_in_batch=1, iteration=4, epoch_idx=0)
    """

    idx_in_epoch: int
    """Position of the sample in the epoch's global order, all ranks together."""
    idx_in_batch: int
    """Place of the sample in this rank's batch; like ``iteration`` it depends on the batch size."""
    iteration: int
    """Number of the batch in the epoch, counted in whole global batches of the present size."""
    epoch_idx: int


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """The batch that a :class:`CallableSource` asks its function for; fields as in DALI."""

    iteration: int
    """Number of the batch in the epoch, all ranks together."""
    epoch_idx: int


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """An encoded image and its target, as a source returns them."""

    data: torch.Tensor
    """Bytes of a JPEG, PNG, WebP or PPM file, uint8 [num_bytes] on the CPU."""
    target: Any
    """Target of the image: a class as int, or boxes and masks."""
    name: str
    """Storage place of the image, for error messages: a path, or a file and a record."""
    size: tuple[int, int] | None = None
    """Height and width in pixels that boxes and masks refer to; None skips the check."""

    def __repr__(self) -> str:
        return f"EncodedSample({self.name!r}, {self.data.numel()} bytes, target={self.target!r})"
