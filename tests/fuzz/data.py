"""Datasets of the cases, of every kind that a loader takes. Each sample contains its index."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import Compose

from stateful_gpu_loader import (
    CallableSource,
    FolderSource,
    MixedDataset,
    PreparedSource,
    TarShards,
)
from stateful_gpu_loader import transforms as T
from tests.callables import FileBatches, NoisyBatches, NoisyPlaces
from tests.datasets.shards import NoisyShards
from tests.datasets.tar.tar_files import write_photo_tars
from tests.images import kept_folder, write_photo_folder
from tests.map_datasets import Caching, Indices, Jitter, Noisy, OwnGenerator
from tests.map_datasets import NoisyBatches as FetchedInBatches
from tests.user_objects import (
    CountingIterator,
    IterableWithStatefulIterator,
    OwnIterator,
    PlainIterable,
    StatefulDataset,
    StatefulIterable,
)

Options = Mapping[str, Any]
MOST = 18
"""Number of samples of the largest dataset."""


class Content(Indices):
    """Draws nothing: a sample is a function of its index."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        values = torch.arange(index, index + 3, dtype=torch.float32) / 7
        return {"index": super().__getitem__(index), "values": values, "text": f"text {index}"}


class RarelyNoisy(Indices):
    """Draws for a few of its samples only."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        draws = (random.random(), float(torch.rand(()))) if index % 5 == 3 else (0.0, 0.0)
        return {"index": super().__getitem__(index), "draws": draws}


class Unseeded:
    """A transform with a private, unseeded generator, which no sample shows."""

    def __init__(self) -> None:
        self.generator = random.Random()

    def __call__(self, sample: Any) -> Any:
        self.generator.random()
        return sample


class Composed(Indices):
    """Applies transforms within torchvision's Compose."""

    def __init__(self, length: int, *transforms: Any) -> None:
        super().__init__(length)
        self.transform = Compose(transforms)

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


class RepeatingIterator(CountingIterator):
    """Has its state on an iterator that starts again after its end, and draws."""

    def __next__(self) -> Any:
        if self.i >= self.length:
            self.i = 0
            raise StopIteration
        return super().__next__(), random.random()


class Once(PlainIterable):
    """Continues where the previous pass stopped: samples already read do not come again."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.rest = iter(self.part())

    def __iter__(self) -> Any:
        return ((index, random.random()) for index in self.rest)


@functools.cache
def photos() -> tuple[Path, ...]:
    """Write small JPEG files, and one after them that cannot be decoded."""
    paths = write_photo_folder(kept_folder() / "photos", num_classes=1, per_class=MOST + 2)
    broken = paths[0].with_name("photo_999.jpg")
    broken.write_bytes(paths[0].read_bytes()[:200])
    return *paths, broken


@functools.cache
def _tars() -> list[Path]:
    return write_photo_tars(kept_folder() / "tars", (4, 3, 6))


def _images(options: Options) -> FolderSource:
    paths = [photos()[-1 if i in options["bad"] else i] for i in range(options["n"])]
    return FolderSource.from_paths(paths, range(options["n"]))


def _prepared_images(options: Options) -> PreparedSource:
    """Prepare images in a directory that the cases fill and share, as jobs do."""
    source = _images(options)
    name = f"{options['n']} without {options['bad']}"
    return PreparedSource(source, kept_folder() / "prepared" / name, [T.Resize(48)])


def _mixture(options: Options) -> MixedDataset:
    n = options["n"]
    return MixedDataset([Noisy(n), Noisy(n // 2 + 1)], [0.7, 0.3], num_samples=n, block_length=4)


def _parts(options: Options) -> list[int]:
    """Split an iterable's samples into uneven parts for the workers."""
    n = options["n"]
    return [n // 4, n - n // 4 - n // 3, n // 3]


def _shards(options: Options) -> NoisyShards:
    counted = options["num_replicas"] > 1
    return NoisyShards([*_parts(options), 2], lanes=2, buffer=6, counted=counted)


MAPS: dict[str, Callable[[Options], Any]] = {
    "content": lambda o: Content(o["n"]),
    "noisy": lambda o: Noisy(o["n"]),
    "rarely noisy": lambda o: RarelyNoisy(o["n"]),
    "fetched in batches": lambda o: FetchedInBatches(o["n"]),
    "caching": lambda o: Caching(o["n"]),
    "own generator": lambda o: OwnGenerator(o["n"]),
    "composed": lambda o: Composed(o["n"], Jitter()),
    "composed, unseeded": lambda o: Composed(o["n"], Unseeded()),
    "stateful": lambda o: StatefulDataset(o["n"]),
    "mixture": _mixture,
    "images": _images,
    "prepared images": _prepared_images,
}
ITERABLES: dict[str, Callable[[Options], Any]] = {
    "iterable": lambda o: PlainIterable(_parts(o)),
    "stateful iterable": lambda o: StatefulIterable(_parts(o)),
    "stateful iterator": lambda o: IterableWithStatefulIterator(_parts(o)),
    "own iterator": lambda o: OwnIterator(_parts(o)),
    "once": lambda o: Once(_parts(o)),
    "called iterator": lambda o: CallableSource(RepeatingIterator(o["n"])),
    "function": lambda o: CallableSource(NoisyPlaces(o["n"], o["n"] // 2)),
    "function of batches": lambda o: CallableSource(NoisyBatches(o["n"] // 3), batch=True),
    "function of images": lambda o: CallableSource(
        FileBatches(list(photos()[: o["n"]])), batch=True, image=0
    ),
    "shards": _shards,
    "tars": lambda o: TarShards([str(path) for path in _tars()], num_lanes=2, shuffle_buffer=6),
}
DATA = {**MAPS, **ITERABLES}

PRIVATE = {"composed, unseeded": "dataset.transform.transforms[0].generator"}
"""Paths of the private generators that the loader must warn of."""
STATEFUL = {"stateful", "stateful iterable", "stateful iterator", "own iterator", "called iterator"}
"""Data whose objects have a state. After a broken-off pass, only a load may follow."""
TIED = {*STATEFUL, "iterable", "once"}
"""Data whose batches depend on the number of workers."""
FUNCTIONS = {"function", "function of batches", "function of images"}
LANES = {"shards", "tars"}
IMAGES = {"images", "prepared images", "function of images", "tars"}
"""Data that the loader decodes. A sample's second leaf is its index."""
