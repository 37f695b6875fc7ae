"""The interface between readers and makers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.records import EncodedSample, IndexArray
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.lane_cursor import LaneProgress


class ReadySample:
    """A sample with its name, used in place of a dataset index.

    Args:
        sample: the sample.
        name: its origin as text; with ``cursor``, the shard that it was read from.
        cursor: the sample's place in its shard.
    """

    __slots__ = ("_cursor", "_name", "sample")

    def __init__(self, sample: Any, name: str, cursor: int | None = None) -> None:
        self.sample = sample
        self._name = name
        self._cursor = cursor

    def __repr__(self) -> str:
        return self._name if self._cursor is None else place_in_shard(self._name, self._cursor)


def place_in_shard(shard: str, cursor: int) -> str:
    """Return a name for the sample, or the rest, at a cursor of a shard."""
    return f"shard {shard!r}, cursor {cursor}"


class ReadySamples:
    """A dataset whose indices are the samples themselves."""

    def __getitem__(self, index: ReadySample) -> Any:
        return index.sample


class ReadyImages(Source):
    """A source whose indices are the encoded images themselves."""

    def __len__(self) -> int:
        raise TypeError("samples that are handed over one by one have no length")

    def read(self, index: Any) -> EncodedSample:
        sample: EncodedSample = index.sample
        return sample

    def fingerprint(self) -> str:
        raise TypeError("samples that are handed over one by one have no fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything that was read for one request."""

    samples: list[ReadySample] = field(default_factory=list)
    """Samples of the batch; empty if the batch is dropped."""
    positions: IndexArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Keys of the samples, int64 [n]."""
    error: Exception | None = None
    """Reason why the samples make no batch, or None."""
    bad: tuple[FoundBad, ...] = ()
    """Samples that could not be used."""
    snapshot: LaneProgress | None = None
    """State of the reader after this request, if it has a state."""
    ended_at: int | None = None
    """Position at which the epoch was found to end."""


class Reader(Protocol):
    """Reads the samples of requests without ``dataset[index]``."""

    @property
    def uses_global_generators(self) -> bool:
        """Whether the reader leaves the process's global generators changed."""
        ...

    def __call__(self, request: Any, check: Callable[[], None]) -> Reading:
        """Read the samples; ``check`` is called between them and may raise."""
        ...
