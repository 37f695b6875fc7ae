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
    index: int
    """``dataset[index]`` is the sample."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one batch is made from: n keys, compactly.

    Positions are ``start + step * i`` for ``i < len(indices)``.
    """

    ordinal: int
    """Number of the request within its pass; answers are delivered in this order."""
    seed: int
    epoch: int
    start: int
    """Position of the first sample."""
    step: int
    """Distance between the positions of neighbours: the number of ranks."""
    indices: IndexArray
    """int64 [n]: the dataset's indices."""
    end: int
    """The epoch's position once every rank delivered this request."""

    @property
    def positions(self) -> IndexArray:
        """int64 [n]: positions in the epoch's global order."""
        return self.start + self.step * np.arange(len(self.indices), dtype=np.int64)

    def keys(self) -> list[SampleKey]:
        """The n keys, spelled out."""
        return [
            SampleKey(self.seed, self.epoch, position, index)
            for position, index in zip(self.positions.tolist(), self.indices.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """One image as its source stores it, not yet decoded."""

    data: torch.Tensor
    """uint8 [num_bytes] on the CPU: the bytes of a JPEG, PNG or WebP file."""
    target: Any
    """What goes with the image: a class as int, or boxes and masks."""
    name: str
    """Where it lies, for error messages: a path, or a file and a record."""

    def __repr__(self) -> str:
        return f"EncodedSample({self.name!r}, {self.data.numel()} bytes, target={self.target!r})"
