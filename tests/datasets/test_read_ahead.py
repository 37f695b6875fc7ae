"""What sources have fetched for a batch is what they read for it, and changes no sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Subset

from stateful_gpu_loader import FolderSource, PreparedSource, StatefulGPULoader, TarSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.source import Source, read_ahead
from stateful_gpu_loader.datasets.storage import open_files
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles, Range
from stateful_gpu_loader.datasets.wrapped import as_source
from tests.conformance import same
from tests.datasets.record_files import photos
from tests.datasets.record_kinds import RECORDIO, TFRECORD, Kind
from tests.datasets.tar.tar_files import write_photo_tars
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.images import write_photo_folder

__all__ = ["fake_gpu"]


def tars(folder: Path) -> TarSource:
    return TarSource(write_photo_tars(folder / "tars", lengths=(5, 4)), target=("cls", "txt"))


def records(kind: Kind) -> Callable[[Path], Source]:
    def write(folder: Path) -> Source:
        images = photos(folder / "photos", 9)
        kind.write(folder / "a.records", images[:5])
        kind.write(folder / "b.records", images[5:], first=5)
        source: Source = kind.source([folder / "a.records", folder / "b.records"])
        return source

    return write


def prepared(folder: Path) -> Source:
    write_photo_folder(folder / "photos", num_classes=3, per_class=3)
    source = PreparedSource(FolderSource(folder / "photos"), folder / "kept", [T.Resize((20, 20))])
    for index in range(9):
        source.read(index)
    return source


def subset(folder: Path) -> Source:
    return as_source(Subset(tars(folder), [8, 7, 6, 5, 4, 3, 2, 1, 0]))


def concatenated(folder: Path) -> Source:
    one, other = Subset(tars(folder), range(4)), records(TFRECORD)(folder)
    return as_source(ConcatDataset([one, other]))


SOURCES = {
    "tar": tars,
    "tfrecord": records(TFRECORD),
    "recordio": records(RECORDIO),
    "prepared": prepared,
    "subset": subset,
    "concatenated": concatenated,
}


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """The ranges that files were asked to fetch ahead."""
    ranges: list[Range] = []
    real = OpenFiles.fetch_ahead

    def fetch(files: OpenFiles, given: Iterable[Range]) -> None:
        every = list(given)
        ranges.extend(every)
        real(files, every)

    monkeypatch.setattr(OpenFiles, "fetch_ahead", fetch)
    return ranges


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges that the system was told of."""
    ranges: list[tuple[int, int]] = []

    def advise(descriptor: int, offset: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        assert os.fstat(descriptor).st_size >= offset + size
        ranges.append((offset, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return ranges


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_fetched_is_what_is_read(
    name: str, tmp_path: Path, fetched: list[Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[name](tmp_path)
    read: list[Range] = []
    fill = OpenFiles.fill

    def noted(files: OpenFiles, path: str, offset: int, parts: Sequence[memoryview]) -> None:
        read.append((path, offset, sum(map(len, parts))))
        fill(files, path, offset, parts)

    monkeypatch.setattr(OpenFiles, "fill", noted)
    indices = [7, 0, 3, 8, 4]
    read_ahead(source, indices)
    assert not read
    for index in indices:
        source.read(index)
    assert sorted(fetched) == sorted(read)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(1 << 20))
    return str(path)


def test_ranges_that_lie_apart_are_fetched_together(
    file: str, advised: list[tuple[int, int]]
) -> None:
    far = open_files._APART + 1000
    OpenFiles().fetch_ahead([(file, far, 10), (file, 0, 10), (file, 2 * far, 10)])
    assert advised == [(0, 10), (far, 10), (2 * far, 10)]


def test_ranges_that_follow_each_other_are_left_to_the_system(
    file: str, advised: list[tuple[int, int]]
) -> None:
    OpenFiles().fetch_ahead([(file, 1000 * number, 1000) for number in range(64)])
    OpenFiles().fetch_ahead([])
    assert not advised


def test_what_cannot_be_fetched_is_passed_over(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it says what is wrong."""
    OpenFiles().fetch_ahead([("memory://a.bin", 0, 1), ("memory://b.bin", 0, 1)])
    OpenFiles().fetch_ahead([(str(tmp_path / "absent"), 0, 1), (file, 0, 1)])
    read_ahead(tars(tmp_path), [1, 99])
    monkeypatch.delattr(os, "posix_fadvise")
    OpenFiles().fetch_ahead([(file, 0, 1), (file, 1 << 19, 1)])


def _epoch(folder: Path, **changes: Any) -> Iterator[Any]:
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        tars(folder),
        batch_size=3,
        shuffle=True,
        seed=7,
        transform=[T.RandomResizedCrop(8)],
        **changes,
    )
    return iter(loader)


@pytest.mark.parametrize("changes", [{}, {"num_workers": 2}, {"device": "cuda"}])
def test_a_loader_asks_once_a_batch_and_delivers_the_same(
    changes: dict[str, Any],
    tmp_path: Path,
    fetched: list[Range],
    fake_gpu: FakeGpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_it = list(_epoch(tmp_path, **changes))
    assert len(fetched) == len(set(fetched)) == 9
    monkeypatch.setattr(TarSource, "_read_ahead", lambda self, indices: None)
    without_it = list(_epoch(tmp_path, **changes))
    assert len(fetched) == 9
    assert all(same(*pair) for pair in zip(with_it, without_it, strict=True))
