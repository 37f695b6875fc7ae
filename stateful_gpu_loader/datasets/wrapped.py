"""Sources inside torch's dataset wrappers: a split of a source is a source."""

from __future__ import annotations

import bisect
import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset

from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.datasets.source import OwnImage, Size, Source, read_into, reads_as
from stateful_gpu_loader.datasets.storage.memory import Memory
from stateful_gpu_loader.records import EncodedSample


def as_source(dataset: Any) -> Source | None:
    """Return a source itself, or one for a Subset, concatenation or mixture of sources; else None.

    >>> as_source([1, 2, 3]) is None
    True
    """
    if isinstance(dataset, Source):
        return dataset
    if type(dataset) is Subset:
        whole = as_source(dataset.dataset)
        return None if whole is None else SubsetSource(whole, dataset.indices)
    if type(dataset) in (ConcatDataset, MixedDataset):
        parts = [as_source(part) for part in dataset.datasets]
        sources = [part for part in parts if part is not None]
        return ConcatSource(sources) if sources and len(sources) == len(parts) else None
    return None


class _View(Source):
    """Samples of other sources, chosen by a subclass in :meth:`_part`."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = list(sources)
        self.has_spatial_targets = any(source.has_spatial_targets for source in sources)
        self.suits_processes = all(source.suits_processes for source in sources)
        self.num_recipes_before = max(source.num_recipes_before for source in sources)
        self.makes_pixels = all(source.makes_pixels for source in sources)

    @abstractmethod
    def _part(self, index: int) -> tuple[Source, int]:
        """Return the source of a sample, and the sample's index in it."""

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        source, own = self._part(index)
        return read_into(source, own, into)

    def open_for_loader(self, index: int) -> EncodedSample | OwnImage:
        if not reads_as(self, _View):
            return self.read(index)
        source, own = self._part(index)
        return source.open_for_loader(own)

    def read_target_alone(self, index: int) -> Any:
        if not reads_as(self, _View):
            return self.read(index).target
        source, own = self._part(index)
        return source.read_target_alone(own)

    def _pixel_size(self) -> Size | None:
        sizes = {source._pixel_size() for source in self._sources}
        return sizes.pop() if len(sizes) == 1 and reads_as(self, _View) else None

    @property
    def is_remote(self) -> bool:
        return any(source.is_remote for source in self._sources)

    def move_target(
        self, index: int, target: Any, motion: npt.NDArray[np.float64], size: Size
    ) -> Any:
        source, own = self._part(index)
        if not source.has_spatial_targets:
            return target
        return source.move_target(own, target, motion, size)


class SubsetSource(_View):
    """Some samples of a source, by their indices in it."""

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        super().__init__([source])
        found, length = np.asarray(indices), len(source)
        if len(found) and found.dtype.kind not in "iu":
            raise TypeError(
                f"the indices of a Subset of {type(source).__name__} are {found.dtype}, not "
                "integers. Remedy: for a mask, numpy.flatnonzero(mask)"
            )
        given = found.astype(np.int64)
        outside = given[(given < -length) | (given >= length)]
        if len(outside):
            raise IndexError(
                f"index {outside[0]} of a Subset of {type(source).__name__} is out of range for "
                f"{length} samples. Remedy: use -{length} <= index < {length}"
            )
        self._indices = np.where(given < 0, given + length, given)

    def __len__(self) -> int:
        return len(self._indices)

    def _object_counts(self) -> npt.NDArray[np.int64] | None:
        counts = self._sources[0]._object_counts()
        return None if counts is None else counts[self._indices]

    def expect(self, indices: npt.NDArray[np.int64], *, anew: bool = False) -> None:
        self._sources[0].expect(self._indices[indices], anew=anew)

    def _read_pixels(self, indices: npt.NDArray[np.int64]) -> tuple[torch.Tensor, list[Any]]:
        return self._sources[0]._read_pixels(self._indices[indices])

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self._indices.astype("<i8").tobytes(), digest_size=16)
        return f"{len(self)} of ({self._sources[0].fingerprint()}), blake2b {digest.hexdigest()}"

    def _part(self, index: int) -> tuple[Source, int]:
        return self._sources[0], int(self._indices[index])


class ConcatSource(_View):
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__(sources)
        self._ends = np.cumsum([len(source) for source in self._sources]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _object_counts(self) -> npt.NDArray[np.int64] | None:
        parts = [source._object_counts() for source in self._sources]
        known = [counts for counts in parts if counts is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    def expect(self, indices: npt.NDArray[np.int64], *, anew: bool = False) -> None:
        for source, places, own in self._divided(indices):
            if source.is_remote and (anew or len(places)):
                source.expect(own, anew=anew)

    def _read_pixels(self, indices: npt.NDArray[np.int64]) -> tuple[torch.Tensor, list[Any]]:
        height, width = self._pixel_size() or (0, 0)
        pixels = np.empty((len(indices), 3, height, width), dtype=np.uint8)
        targets: list[Any] = [None] * len(indices)
        for source, places, own in self._divided(indices):
            if len(places):
                found, found_targets = source._read_pixels(own)
                pixels[places] = found.numpy()
                for place, target in zip(places.tolist(), found_targets, strict=True):
                    targets[place] = target
        return torch.from_numpy(pixels), targets

    def _divided(
        self, indices: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Source, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield each source, the places of its samples in ``indices``, and their indices in it."""
        starts = np.array([0, *self._ends], dtype=np.int64)
        numbers = np.searchsorted(starts, indices, side="right") - 1
        for number, source in enumerate(self._sources):
            places = np.flatnonzero(numbers == number)
            yield source, places, indices[places] - starts[number]

    def fingerprint(self) -> str:
        return " + ".join(f"({source.fingerprint()})" for source in self._sources)

    def _part(self, index: int) -> tuple[Source, int]:
        number = bisect.bisect_right(self._ends, index)
        return self._sources[number], index - (self._ends[number - 1] if number else 0)
