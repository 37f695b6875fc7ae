"""What is handed over instead of being read: datasets whose indices are the samples."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.records import EncodedSample


class HandedSample:
    """A sample that was read or made elsewhere, and where; what stands for an index."""

    __slots__ = ("name", "sample")

    def __init__(self, name: str, sample: Any) -> None:
        self.name = name
        self.sample = sample

    def __repr__(self) -> str:
        return self.name


class HandedSamples:
    """A dataset whose indices are the samples themselves; it draws nothing."""

    def __getitem__(self, index: HandedSample) -> Any:
        return index.sample


class HandedImages(Source):
    """A source whose indices are the encoded images themselves."""

    def __len__(self) -> int:
        raise TypeError("what is handed over one by one has no length")

    def read(self, index: Any) -> EncodedSample:
        sample: EncodedSample = index.sample
        return sample

    def fingerprint(self) -> str:
        raise TypeError("what is handed over one by one has no fingerprint")
