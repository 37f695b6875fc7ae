"""Sources inside torch's dataset wrappers: a split of a source is a source."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.sources.source import Source


def as_source(dataset: Any) -> Source | None:
    """The source that a dataset is: itself, a Subset of one, or a ConcatDataset of several.

    So ``random_split(FolderSource(root), [0.9, 0.1])`` is decoded like the whole.

    >>> as_source([1, 2, 3]) is None
    True
    """
    if isinstance(dataset, Source):
        return dataset
    if type(dataset) is Subset:
        whole = as_source(dataset.dataset)
        return None if whole is None else SubsetSource(whole, dataset.indices)
    if type(dataset) is ConcatDataset:
        parts = [as_source(part) for part in dataset.datasets]
        sources = [part for part in parts if part is not None]
        return ConcatSource(sources) if sources and len(sources) == len(parts) else None
    return None


class SubsetSource(Source):
    """Some samples of a source, by their indices in it."""

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        self._source = source
        self._indices = np.asarray(indices, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, index: int) -> EncodedSample:
        return self._source.read(int(self._indices[index]))

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self._indices.astype("<i8").tobytes(), digest_size=16)
        return f"{len(self)} of ({self._source.fingerprint()}), blake2b {digest.hexdigest()}"


class ConcatSource(Source):
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = list(sources)
        self._ends = np.cumsum([len(source) for source in self._sources]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, index: int) -> EncodedSample:
        number = bisect.bisect_right(self._ends, index)
        start = self._ends[number - 1] if number else 0
        return self._sources[number].read(index - start)

    def fingerprint(self) -> str:
        return " + ".join(f"({source.fingerprint()})" for source in self._sources)
