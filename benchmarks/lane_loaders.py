"""Loaders of the lanes' benchmark: trivial shards, and tars, for this loader and peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.transforms import v2

from benchmarks.photograph_loaders import crop_and_flip, recipes, to_float
from stateful_gpu_loader import ShardedDataset, StatefulGPULoader
from stateful_gpu_loader.datasets.tar.shards import TarRecords, TarShards

BATCH_SIZE = 64
TRIVIAL, RECORDS, IMAGES = "trivial", "records", "images"
WORKS = {
    TRIVIAL: "trivial samples",
    RECORDS: "tars, not decoded",
    IMAGES: "tars, decoded and cropped",
}
OURS, TORCHDATA, WEBDATASET = "ours", "torchdata", "webdataset"
LABELS = {
    OURS: "StatefulGPULoader",
    TORCHDATA: "StatefulDataLoader",
    WEBDATASET: "webdataset in torch's DataLoader",
}
PEER = {TRIVIAL: TORCHDATA, RECORDS: WEBDATASET, IMAGES: WEBDATASET}
"""Peer that reads the same."""

_NUM_LANES = 64


class CountedShards(ShardedDataset):
    """Numbers in shards, which cost nothing.

    >>> list(CountedShards(num_shards=2, samples_a_shard=3))
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, num_shards: int, samples_a_shard: int, num_lanes: int = _NUM_LANES) -> None:
        self._names = [f"{number:05d}" for number in range(num_shards)]
        self._length = samples_a_shard
        self.num_lanes = num_lanes

    def shards(self) -> Sequence[str]:
        return self._names

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[int, int]]:
        first = int(shard) * self._length
        for number in range(cursor, self._length):
            yield first + number, number + 1


class CountedStream(IterableDataset[int]):
    """A plain iterable dataset of numbers, divided among the workers.

    >>> list(CountedStream(4))
    [0, 1, 2, 3]
    """

    def __init__(self, n: int) -> None:
        self._n = n

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(first, self._n, step))


@dataclass(frozen=True, kw_only=True)
class Pass:
    work: str
    paths: Sequence[str]
    """Paths of tars; for trivial samples only their number matters."""
    samples_a_shard: int
    num_workers: int

    def loader(self, who: str) -> Any:
        """Return a new loader, ours or the peer's."""
        if who == OURS:
            return self._ours()
        if who == TORCHDATA:
            stream = CountedStream(len(self.paths) * self.samples_a_shard)
            return StatefulDataLoader(stream, BATCH_SIZE, num_workers=self.num_workers)
        return self._webdataset()

    def _ours(self) -> Any:
        if self.work == TRIVIAL:
            shards = CountedShards(len(self.paths), self.samples_a_shard)
            return StatefulGPULoader(shards, BATCH_SIZE, num_workers=self.num_workers, seed=42)
        if self.work == RECORDS:
            return StatefulGPULoader(
                TarRecords(self.paths),
                BATCH_SIZE,
                num_workers=self.num_workers,
                collate_fn=list,
                seed=42,
            )
        return StatefulGPULoader(
            TarShards(self.paths, image="jpg"),
            BATCH_SIZE,
            num_workers=self.num_workers,
            seed=42,
            transform=recipes(),
        )

    def _webdataset(self) -> Any:
        import webdataset

        dataset = webdataset.WebDataset(list(self.paths), shardshuffle=False)
        if self.work == IMAGES:
            dataset = dataset.to_tuple("jpg", "cls").map(_Decoded())
            return DataLoader(dataset, BATCH_SIZE, num_workers=self.num_workers)
        return DataLoader(
            dataset.map(_with_number), BATCH_SIZE, num_workers=self.num_workers, collate_fn=list
        )


def _with_number(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "cls": int(sample["cls"])}


class _Decoded:
    """Decodes as a user of webdataset would, with torchvision's decoder and transforms."""

    def __init__(self) -> None:
        self._transform = v2.Compose([*crop_and_flip(), *to_float()])

    def __call__(self, sample: tuple[bytes, bytes]) -> tuple[Any, int]:
        data, label = sample
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        image = torchvision.io.decode_jpeg(encoded, torchvision.io.ImageReadMode.RGB)
        return self._transform(image), int(label)
