"""Bytes that a source reads into a batch's arena equal those of its ``read``."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from stateful_gpu_loader import FolderSource, PreparedSource, StatefulGPULoader
from stateful_gpu_loader.datasets.source import Source, read_into
from stateful_gpu_loader.datasets.storage.memory import (
    LARGEST_GUESS,
    Arena,
    Bytes,
    Memory,
    new_memory,
)
from stateful_gpu_loader.datasets.wrapped import SubsetSource, as_source
from stateful_gpu_loader.decoders import make_decoder
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedMaker
from stateful_gpu_loader.engine.makers.images import opened
from stateful_gpu_loader.records import EncodedSample, Request, SampleKey
from stateful_gpu_loader.transforms import CenterCrop, Compose, Resize
from tests.images import encode, photograph, write_photo_folder

CONTENTS = [b"abc", b"", b"de" * 700, b"f"]


class Reversed(FolderSource):
    def read(self, index: int) -> EncodedSample:
        sample = super().read(index)
        return dataclasses.replace(sample, data=sample.data.flip(0))


class Doubled:
    def read(self, index: int) -> EncodedSample:
        sample: EncodedSample = super().read(index)  # type: ignore[misc]
        return dataclasses.replace(sample, data=sample.data.repeat(2))


class DoubledFolder(Doubled, FolderSource):
    """The mixin's ``read`` precedes the folder's."""


def noted(read: Callable[..., EncodedSample]) -> Callable[..., EncodedSample]:
    @functools.wraps(read)
    def noting(self: Any, index: int) -> EncodedSample:
        sample = read(self, index)
        return dataclasses.replace(sample, name=f"noted {sample.name}")

    return noting


class Decorated(FolderSource):
    """Has a decorated ``read``, which looks like the folder's but takes only an index."""

    read = noted(FolderSource.read)


class Renamed(FolderSource):
    """Reads like a folder."""


class Passing(FolderSource):
    """A user's ``read`` that takes memory like the folder's."""

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        sample = super().read(index, into)
        return dataclasses.replace(sample, target=-index)


class Replacing(FolderSource):
    """A user's ``read`` that calls the folder's, and returns other bytes."""

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        sample = super().read(index, into)
        return dataclasses.replace(sample, data=sample.data.repeat(2).flip(0))


class PassingSubset(SubsetSource):
    """A subset with a user's ``read``."""

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        return dataclasses.replace(super().read(index, into), target=-1)


KINDS: dict[str, Callable[[list[str]], Any]] = {
    **{
        kind.__name__: kind.from_paths
        for kind in (FolderSource, Renamed, Reversed, DoubledFolder, Decorated, Passing, Replacing)
    },
    "subset": lambda paths: as_source(Subset(Reversed.from_paths(paths), [2, 0, 3])),
    "a user's subset": lambda paths: PassingSubset(Reversed.from_paths(paths), [2, 0, 3]),
    "concatenation": lambda paths: as_source(
        ConcatDataset([FolderSource.from_paths(paths), Reversed.from_paths(paths)])
    ),
}


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    for number, content in enumerate(CONTENTS):
        (tmp_path / f"{number}.jpg").write_bytes(content)
    found: Source = KINDS[request.param](sorted(map(str, tmp_path.glob("*.jpg"))))
    return found


@pytest.mark.parametrize("expected", [0, 10_000])
def test_an_arena_holds_what_is_read(source: Source, expected: int) -> None:
    arena = Arena(lambda num_bytes: torch.full((num_bytes,), 7, dtype=torch.uint8), expected)
    alone = [source.read(index) for index in range(len(source))]
    for index, sample in enumerate(alone):
        start = arena.end
        into = read_into(source, index, arena.take)
        assert (into.target, into.name) == (sample.target, sample.name)
        arena.keep(start, into.data)
        assert into.data.tolist() == sample.data.tolist() == arena.filled()[start:].tolist()
        found = source.open_for_loader(index)
        assert isinstance(found, EncodedSample)
        assert (found.data.tolist(), found.target) == (sample.data.tolist(), sample.target)
        assert source.read_target_alone(index) == sample.target
    assert torch.equal(arena.filled(), torch.cat([sample.data for sample in alone]))


def noting_memory() -> tuple[list[int], Callable[..., torch.Tensor]]:
    """Return the sizes that are asked for, and the function that allocates them."""
    asked: list[int] = []

    def allocate(size: Any, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        memory = torch.empty(size, dtype=dtype)
        asked.append(memory.numel())
        return memory

    return asked, allocate


def encoded_maker(source: Source, allocate: Callable[..., torch.Tensor]) -> EncodedMaker:
    """Return a maker of batches for a device that decodes all images."""
    return EncodedMaker(
        source,
        takes=lambda header, data: True,
        decoder=make_decoder("torchvision"),
        recipes=Compose([Resize((8, 8))]),
        allocate=allocate,
        policy=BadSamplePolicy(mode="raise"),
    )


def test_memory_for_all_reads_is_allocated_at_the_first() -> None:
    """An arena that started empty would be allocated eight times for 256 reads.

    One unusual read does not decide for all.
    """
    asked, allocate = noting_memory()
    arena = Arena(allocate, 0, 256)
    for _ in range(256):
        arena.take(1000)
    assert asked == [0, 288_000]
    assert len(arena.filled()) == 256_000
    asked.clear()
    Arena(allocate, 0, 1 << 20).take(1000)
    Arena(allocate, 0, 2).take(LARGEST_GUESS)
    assert asked == [0, LARGEST_GUESS, 0, LARGEST_GUESS]


@pytest.mark.parametrize("kind", [FolderSource, Renamed, Passing])
def test_a_folder_is_read_without_a_copy(tmp_path: Path, kind: type[FolderSource]) -> None:
    """Unless ``read`` is replaced, at any time."""
    (tmp_path / "a.jpg").write_bytes(b"abc")
    source = kind.from_paths([str(tmp_path / "a.jpg")])
    asked: list[int] = []

    def memory(num_bytes: int) -> Bytes:
        asked.append(num_bytes)
        return new_memory(num_bytes)

    read_into(source, 0, memory)
    assert asked == [3]
    sample = source.read(0)
    source.read = lambda index: sample  # type: ignore[method-assign]
    assert read_into(source, 0, memory) is sample
    assert asked == [3]


def test_the_header_is_that_of_the_bytes_that_read_returned(tmp_path: Path) -> None:
    """Not of the bytes in the memory that it was given."""
    other = encode(photograph("coffee").resize((64, 48)))

    class Other(FolderSource):
        def read(self, index: int, into: Memory | None = None) -> EncodedSample:
            return dataclasses.replace(super().read(index, into), data=other)

    write_photo_folder(tmp_path, num_classes=1, per_class=1)
    arena = Arena(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8), 0)
    image = opened(Other(tmp_path), SampleKey(0, 0, 0, 0), arena)
    assert (image.header.height, image.header.width) == (48, 64)
    arena.keep(0, image.sample.data)
    assert torch.equal(arena.filled(), other)


@dataclasses.dataclass
class Reader:
    """An unhashable ``read``."""

    read: Callable[[int], EncodedSample]

    def __call__(self, index: int) -> EncodedSample:
        return self.read(index)


@pytest.mark.parametrize("replaced", [Reader, lambda read: lambda index, into=7: read(index)])
def test_what_replaces_read_is_asked_for_an_index_alone_and_not_kept(
    tmp_path: Path, replaced: Callable[..., Any]
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"abc")
    source = FolderSource.from_paths([str(tmp_path / "a.jpg")])
    expected, held = source.read(0), weakref.ref(source)
    source.read = replaced(source.read)  # type: ignore[method-assign]
    found = read_into(source, 0, new_memory)
    assert found.data.tolist() == expected.data.tolist()
    del source
    gc.collect()
    assert held() is None


def test_a_mock_of_read_is_asked(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, num_classes=1, per_class=2)
    source = FolderSource(tmp_path)
    read = source.read
    source.read = create_autospec(read, side_effect=read)  # type: ignore[method-assign]
    loader = StatefulGPULoader(source, batch_size=2, seed=1, transform=[CenterCrop(8)])
    assert next(iter(loader))[0].shape == (2, 3, 8, 8)


class Dark(PreparedSource):
    """Its pixels differ from those of a PreparedSource."""

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        sample = super().read(index, into)
        return dataclasses.replace(sample, data=sample.data // 2, target="dark")


def test_a_source_that_reads_otherwise_makes_no_pixels_past_its_read(tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "photos", 1)
    folder = FolderSource(tmp_path / "photos")
    dark = Dark(folder, tmp_path / "kept")
    assigned = PreparedSource(folder, tmp_path / "kept")
    assigned.read = dark.read  # type: ignore[method-assign]
    for source in (dark, assigned, as_source(Subset(dark, [0])), as_source(ConcatDataset([dark]))):
        assert source is not None
        for _ in range(2):
            opened = source.open_for_loader(0)
            assert isinstance(opened, EncodedSample)
            assert torch.equal(opened.data, dark.read(0).data)
            assert source.read_target_alone(0) == "dark"


def test_a_file_that_is_cut_off_while_it_is_read_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every image of the batch directly follows the one before it."""
    write_photo_folder(tmp_path, 3)
    source = FolderSource(tmp_path)
    request = Request(0, 42, 0, 0, 1, np.arange(3), 3)
    execute = encoded_maker(source, noting_memory()[1])
    actual = os.fstat

    def longer(descriptor: int) -> SimpleNamespace:
        return SimpleNamespace(st_size=actual(descriptor).st_size + 5)

    monkeypatch.setattr("stateful_gpu_loader.datasets.storage.open_files.os.fstat", longer)
    batch = execute(request, lambda: None)
    found = batch.arena.split(batch.lengths)
    monkeypatch.undo()
    assert [data.tolist() for data in found] == [source.read(i).data.tolist() for i in range(3)]


def test_a_batch_that_is_a_little_larger_than_the_last_is_not_copied(tmp_path: Path) -> None:
    """A short arena would be allocated again, at twice the size."""
    write_photo_folder(tmp_path, 3)
    source = FolderSource(tmp_path)
    sizes = [source.read(index).data.numel() for index in range(3)]
    smaller, larger = np.argsort(sizes)[:2].tolist()
    asked, allocate = noting_memory()
    execute = encoded_maker(source, allocate)
    often = [smaller] * 20
    execute(Request(0, 42, 0, 0, 1, np.array(often), 20), lambda: None)
    asked.clear()
    batch = execute(Request(1, 42, 0, 20, 1, np.array([*often[1:], larger]), 40), lambda: None)
    assert batch.arena.numel() > 20 * sizes[smaller]
    (arena,) = asked
    assert arena > batch.arena.numel()
