"""Datasets and files with bad samples, and helpers of their tests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from stateful_gpu_loader import (
    BadSample,
    CallableSource,
    FolderSource,
    SampleInfo,
    StatefulGPULoader,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source
from stateful_gpu_loader.decoders import Decoder, ImageHeader, make_decoder
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.images import CallableMaker, ImageMaker
from stateful_gpu_loader.engine.makers.memory import BatchMemory
from stateful_gpu_loader.engine.makers.samples import SampleMaker
from stateful_gpu_loader.engine.pipeline import Answer, never_stopped
from stateful_gpu_loader.engine.schedules.positions import Division, PositionFeed
from stateful_gpu_loader.records import EncodedSample, Request
from stateful_gpu_loader.samplers import ShuffledOrder
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.epoch_progress import Address
from tests.conformance import copy_of, same
from tests.datasets.shards import PhotoShards
from tests.images import encode, photograph, write_photo_folder
from tests.map_datasets import Noisy, NoisyBatches

SEED, EPOCH = 42, 3
"""Seed and epoch of requests that are made by hand."""
N = 22
ALWAYS = 10**9
Errors = Mapping[Any, Callable[[], Exception]]
Loader = StatefulGPULoader[Any]
Photos = tuple[Path, Path]
"""Folder of sound files, and folder of the same files with some damaged."""


def undecodable(good: bytes) -> bytes:
    """Return a file with a sound header, a sound end and undecodable bytes between them."""
    return good[:-400] + b"\xff\xc0" * 199 + good[-2:]


DAMAGE: dict[int, Callable[[bytes], bytes]] = {
    1: lambda good: good[: len(good) // 2],
    4: lambda good: b"this is no photograph\n" * 20,
    6: undecodable,
    7: lambda good: b"",
    13: undecodable,
    20: lambda good: good[:100],
}
"""Damage by index: 6 and 13 fail only at the pixels, the others at the header."""
BAD = set(DAMAGE)
ERRORS: Errors = {index: partial(ValueError, f"no label {index}") for index in BAD}
OF_BYTES: Errors = {
    **ERRORS,
    4: partial(KeyError, "label"),
    6: partial(OSError, "image file is truncated"),
    7: partial(BadSample, "7.jpg", index=7, position=0, epoch=0, reason="empty"),
}
"""Errors that a plain dataset raises for malformed content."""
SYSTEM_ERROR: Callable[[], Exception] = partial(OSError, 5, "Input/output error")


@dataclass(frozen=True)
class Wrong:
    """Faults of a dataset, and the content that replaces bad samples."""

    errors: Errors = field(default_factory=dict)
    times: int = ALWAYS
    """Number of failed reads of an index before it can be read."""
    copies: Mapping[int, int] = field(default_factory=dict)
    """Index whose content each of these indices has."""
    is_damaged: bool = False
    """Whether the content is damaged: bytes, or any error of a dataset without files."""


# Datasets.


class Damaged(Noisy):
    """Raises for some indices before it draws. ``copies`` gives an index another's content."""

    def __init__(
        self,
        length: int,
        errors: Errors | None = None,
        copies: Mapping[Any, int] | None = None,
        times: int = ALWAYS,
    ) -> None:
        super().__init__(length)
        self.errors = errors or {}
        self.copies = copies or {}
        self.times = times
        self.reads: Counter[Any] = Counter()

    def __getitem__(self, index: Any) -> dict[str, Any]:
        self.fail(index)
        return super().__getitem__(self.copies.get(index, index))

    def fail(self, index: Any) -> None:
        self.reads[index] += 1
        if index in self.errors and self.reads[index] <= self.times:
            raise self.errors[index]()


class DamagedBatches(Damaged, NoisyBatches):
    """Damaged, but fetches a batch at once, with one draw for the whole batch."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        for index in indices:
            self.fail(index)
        copied = [self.copies.get(index, index) for index in indices]
        shared = torch.rand(())
        return [{"shared": shared, **Noisy.__getitem__(self, index)} for index in copied]


class FailsByDraw(Noisy):
    """Some indices fail at some draws, so other samples fail in each epoch."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        if random.random() < 0.5 and index % 3 == 0:
            raise ValueError("the crop is empty")
        return sample


class Named(Dataset[dict[str, Any]]):
    """Its indices are strings."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name == self.broken:
            raise ValueError("no such name")
        return {"name": name, "torch": torch.rand(())}


def write_photos(root: Path) -> Photos:
    """Write two folders of the same ``N`` files: one sound, one damaged as ``DAMAGE`` says."""
    folders = root / "sound", root / "damaged"
    for folder in folders:
        files = write_photo_folder(folder, num_classes=2, per_class=N // 2)
    assert len(files) == N
    for index, damage in DAMAGE.items():
        files[index].write_bytes(damage(files[index].read_bytes()))
    return folders


class Redirected(Source):
    """Another source, some of whose indices fail or return other samples.

    Targets are the indices of the returned samples.
    """

    def __init__(self, source: Source, wrong: Wrong | None = None) -> None:
        self.source = source
        self.wrong = wrong or Wrong()
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> EncodedSample:
        self.reads[index] += 1
        if index in self.wrong.errors and self.reads[index] <= self.wrong.times:
            raise self.wrong.errors[index]()
        copied = self.wrong.copies.get(index, index)
        return replace(self.source.read(copied), target=copied)

    def fingerprint(self) -> str:
        return "redirected"


class InMemory(Source):
    """Images of given sizes, some of them undecodable."""

    def __init__(self, sizes: list[tuple[int, int]], broken: set[int]) -> None:
        self.files = []
        for index, (height, width) in enumerate(sizes):
            photo = photograph("coffee").rotate(7 * index).resize((width, height))
            data = encode(photo, quality=95)
            if index in broken:
                good = bytes(data.numpy())
                data = torch.frombuffer(bytearray(undecodable(good)), dtype=torch.uint8)
            self.files.append(data)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> EncodedSample:
        return EncodedSample(self.files[index], index, f"{index}.jpg")

    def fingerprint(self) -> str:
        return "in memory"


class Counting(Decoder):
    family = "counting"

    def __init__(self) -> None:
        self.decoder = make_decoder("torchvision")
        self.calls = 0

    def version(self) -> str:
        return "1"

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        self.calls += 1
        return self.decoder.decode(data, header)


# Loaders.

modes = pytest.mark.parametrize("mode", ["replace", "drop"])
RECIPES = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]


def make(dataset: Any = None, **arguments: Any) -> Loader:
    dataset = Damaged(N, ERRORS) if dataset is None else dataset
    return StatefulGPULoader(
        dataset,
        **{"batch_size": 4, "shuffle": True, "seed": 3, "on_bad_sample": "drop"} | arguments,
    )


def make_photos(folder: Path, **arguments: Any) -> Loader:
    return make(Redirected(FolderSource(folder)), **{"transform": RECIPES} | arguments)


def delivered_with_errors(loader: Loader) -> tuple[list[Any], list[Exception]]:
    """Return all batches of one epoch, and the exceptions between them."""
    batches, found, errors = iter(loader), [], []
    while True:
        try:
            found.append(copy_of(next(batches)))
        except StopIteration:
            return found, errors
        except Exception as error:
            errors.append(error)
            assert len(errors) < 40, "it never ends"


def assert_same_run(build: Callable[..., Loader], executions: list[dict[str, Any]]) -> None:
    """Compare batches, bad-sample records and states of two epochs on all executions."""
    alone = build(num_workers=0)
    wanted = [[copy_of(batch) for batch in alone] for _ in range(2)]
    assert alone.bad_samples.total > 3
    for execution in executions:
        loader = build(**execution)
        assert same([[copy_of(batch) for batch in loader] for _ in range(2)], wanted), execution
        assert loader.bad_samples == alone.bad_samples, execution
        assert loader.state_dict() == alone.state_dict(), execution


# The kinds of loaders.


def noisy_corner(image: torch.Tensor) -> torch.Tensor:
    """A user's transform that draws."""
    return image[:, :8, :8] + torch.rand(3, 8, 8)


def _plain(kind: type[Damaged], photos: Photos, wrong: Wrong, **arguments: Any) -> Loader:
    errors = OF_BYTES if wrong.is_damaged else wrong.errors
    return make(kind(N, errors, wrong.copies, wrong.times), **arguments)


def _images(photos: Photos, wrong: Wrong, /, **arguments: Any) -> Loader:
    source = Redirected(FolderSource(photos[wrong.is_damaged]), wrong)
    return make(source, **{"transform": RECIPES, **arguments})


class Surviving(IterableDataset[dict[str, Any]]):
    """Its iterator continues after an exception."""

    def __init__(self, errors: Any) -> None:
        self.errors = errors

    def __iter__(self) -> Any:
        return map(self.give, range(N))

    def give(self, index: int) -> dict[str, Any]:
        if index in self.errors:
            raise self.errors[index]()
        return {"index": index, "drawn": torch.rand(())}


def _iterable(photos: Photos, wrong: Wrong, **arguments: Any) -> Loader:
    return make(
        Surviving(OF_BYTES if wrong.is_damaged else wrong.errors), shuffle=None, **arguments
    )


class Function:
    """Called for each place of an epoch."""

    def __init__(self, wrong: Wrong) -> None:
        self.wrong = wrong
        self.reads: Counter[int] = Counter()

    def __call__(self, info: SampleInfo) -> dict[str, Any]:
        index = info.idx_in_epoch
        errors = OF_BYTES if self.wrong.is_damaged else self.wrong.errors
        self.reads[index] += 1
        if index in errors and self.reads[index] <= self.wrong.times:
            raise errors[index]()
        return {"index": index, "drawn": random.random() + torch.rand(())}


def _calls(photos: Photos, wrong: Wrong, **arguments: Any) -> Loader:
    return make(CallableSource(Function(wrong), length=N), shuffle=None, **arguments)


def _shards(photos: Photos, wrong: Wrong, **arguments: Any) -> Loader:
    """Shards of images. Damage of shards is tested in ``test_lanes_damage.py``."""
    broken = frozenset(100 * (i >= 11) + i % 11 for i in BAD) if wrong.is_damaged else frozenset()
    shards = PhotoShards((11, 11), broken=broken)
    return make(shards, **{"transform": [T.Resize((8, 8))], **arguments})


@dataclass(frozen=True)
class Kind:
    """How to build a loader of a faulty dataset, and what its batches hold."""

    make: Callable[..., Loader]
    is_map: bool = True
    is_source: bool = False
    """Whether damaged bytes raise BadSample."""
    shares_draws: bool = False
    """Whether a sample's draws depend on the other samples of its batch."""

    def indices(self, batch: Any) -> list[int]:
        indices = batch["index"] if isinstance(batch, dict) else batch[1]
        if self.make is _shards:
            indices = indices // 100 * 11 + indices % 100
        found: list[int] = indices.tolist()
        return found


KINDS = {
    "plain": Kind(partial(_plain, Damaged)),
    "native batches": Kind(partial(_plain, DamagedBatches), shares_draws=True),
    "recipes": Kind(_images, is_source=True),
    "recipes, parts of images": Kind(partial(_images, decoder="nvimgcodec"), is_source=True),
    "callable on images": Kind(partial(_images, transform=noisy_corner), is_source=True),
    "device": Kind(partial(_images, device="cuda"), is_source=True),
    "iterable": Kind(_iterable, is_map=False, shares_draws=True),
    "shards": Kind(_shards, is_map=False, is_source=True),
    "calls": Kind(_calls, is_map=False),
}


# Makers, as a loader builds them, and their requests.


def request_of(indices: list[Any], start: int = 0, epoch: int = EPOCH) -> Request:
    """Return a request of a user-defined order."""
    return Request(
        ordinal=0, seed=SEED, epoch=epoch, start=start, step=1, indices=indices, end=len(indices)
    )


def drawing(feed: PositionFeed) -> Iterator[Request]:
    """Draw the requests one after another."""
    while (request := feed.draw()) is not None:
        feed.advance(request)
        yield request


def requests_of(
    length: int,
    batch_size: int,
    *,
    ranks: int = 1,
    rank: int = 0,
    epoch: int = EPOCH,
    seed: int = SEED,
) -> list[Request]:
    """Return a rank's requests of a shuffled epoch."""
    division = Division(batch_size=batch_size, drop_last=False, rank=rank, num_replicas=ranks)
    indices = ShuffledOrder(range(length)).of_epoch(seed, epoch)
    feed = PositionFeed(Address(epoch, 0), seed=seed, indices=indices, division=division)
    return list(drawing(feed))


def policy_for(dataset: Any, mode: str, **known: Any) -> BadSamplePolicy:
    """Return the bad-sample policy of a loader that shuffles ``dataset``."""
    return BadSamplePolicy(mode=mode, order=ShuffledOrder(dataset), **known)


def sample_maker(
    dataset: Any, policy: BadSamplePolicy | str = "raise", **arguments: Any
) -> SampleMaker:
    given = {"transform": None, "collate_fn": default_collate, "batched": True, **arguments}
    return SampleMaker(dataset, policy=_policy(dataset, policy), **given)


def image_maker(
    source: Source,
    policy: BadSamplePolicy | str = "raise",
    *,
    recipes: list[T.Recipe] = RECIPES,
    **arguments: Any,
) -> ImageMaker:
    given = {
        "decoder": make_decoder("torchvision"),
        "collate_fn": default_collate,
        "batched": True,
        **arguments,
    }
    return ImageMaker(
        source,
        recipes=T.Compose(recipes),
        allocate=BatchMemory(2).empty,
        policy=_policy(source, policy),
        **given,
    )


def callable_maker(
    source: Source, policy: BadSamplePolicy | str = "raise", transform: Any = None
) -> CallableMaker:
    return CallableMaker(
        source,
        decoder=make_decoder("torchvision"),
        transform=transform or noisy_corner,
        collate_fn=default_collate,
        batched=True,
        policy=_policy(source, policy),
    )


def _policy(dataset: Any, policy: BadSamplePolicy | str) -> BadSamplePolicy:
    return policy_for(dataset, policy) if isinstance(policy, str) else policy


def run(maker: Any, request: Request) -> tuple[Any, tuple[FoundBad, ...]]:
    """Return a request's batch, and the bad samples met while it was made."""
    answer = maker(request, never_stopped)
    if isinstance(answer, Answer):
        assert answer.bad, "an Answer that has nothing to say"
        assert (answer.worker, answer.snapshot) == (0, None)
        return answer.payload, answer.bad
    return answer, ()


def replacement_of(
    policy: BadSamplePolicy, request: Request, number: int, bad: set[Any]
) -> tuple[int, Any]:
    """Return the position and index that replace one sample of a request."""
    sound = (taken for taken in policy.candidates(request, number) if taken[1] not in bad)
    return next(sound)


def assert_found_is_of_the_order(found: tuple[Any, ...], length: int, seed: int = SEED) -> None:
    """Check that each record or exception names the position that its index has in the epoch."""
    for bad in found:
        order = ShuffledOrder(range(length)).of_epoch(seed, bad.epoch)
        assert order(np.array([bad.position % length]))[0] == bad.index


def assert_same(found: Any, wanted: Any) -> None:
    assert same(found, wanted), f"{found} is not {wanted}"
