"""The directory of prepared images: several writers, kills, damage, full disks, other sources."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from stateful_gpu_loader import FolderSource, PreparedSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source
from stateful_gpu_loader.datasets.prepared import SMALLEST_SEGMENT
from stateful_gpu_loader.datasets.record_store import ENTRY_BYTES, INDEX_FILE
from stateful_gpu_loader.decoders import available
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.records import EncodedSample
from tests.conformance import same, uninterrupted
from tests.datasets.storage.processes import beside_a_fork, in_a_fork
from tests.images import write_photo_folder

N = 8
HEAD = [T.Resize((40, 48))]
PIXELS = 3 * 40 * 48
"""Bytes of an image; its header adds a little."""


@pytest.fixture
def source(tmp_path: Path) -> FolderSource:
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=N // 2)
    return FolderSource(tmp_path / "photos")


def stream(dataset: Any, transform: Any = None) -> list[list[Any]]:
    loader = StatefulGPULoader(dataset, batch_size=4, shuffle=True, seed=5, transform=transform)
    return uninterrupted(loader, 1)[0]


def kept(prepared: PreparedSource) -> set[int]:
    return {index for index in range(len(prepared)) if prepared.is_kept(index)}


def num_records(path: Path) -> int:
    return path.stat().st_size // PIXELS


def fill(prepared: PreparedSource) -> None:
    for index in range(len(prepared)):
        prepared.read(index)


def inverted(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def _put_the_last_record_first(pixels: Path) -> None:
    content = pixels.read_bytes()
    size = len(content) // N
    pixels.write_bytes(content[-size:] + content[size:])


@pytest.mark.parametrize(
    ("damage", "num_damaged"),
    [
        (lambda pixels: inverted(pixels, 3000), 1),
        (lambda pixels: inverted(pixels, 1), 1),
        (lambda pixels: inverted(pixels, 32 + PIXELS + 1), 1),
        (_put_the_last_record_first, 1),
        (lambda pixels: os.truncate(pixels, 5000), N),
        (Path.unlink, N),
    ],
    ids=["a pixel", "the header", "the target", "another record", "cut", "removed"],
)
def test_a_damaged_record_is_made_anew(
    tmp_path: Path,
    source: FolderSource,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    num_damaged: int,
) -> None:
    folder = tmp_path / "kept"
    paths = [source.path(index) for index in range(N)]
    source = FolderSource.from_paths(paths, range(-N, 0))  # negative targets lie in the record
    fill(PreparedSource(source, folder, HEAD))
    damage(folder / "pixels-000000.bin")
    expected = stream(source, HEAD)
    with caplog.at_level(logging.WARNING):
        assert same(stream(PreparedSource(source, folder, HEAD)), expected)
    assert len([r for r in caplog.records if "is damaged and is made again" in r.message]) in (
        num_damaged,
        num_damaged - (num_damaged > 1),  # the first record of a cut file may be whole
    )
    caplog.clear()
    assert same(stream(PreparedSource(source, folder, HEAD)), expected)
    assert not caplog.records, "what was made anew is kept"


class Unread(Source):
    """Two images that are never read."""

    def __len__(self) -> int:
        return 2

    def read(self, index: int) -> EncodedSample:
        raise AssertionError(f"image {index} is read")

    def fingerprint(self) -> str:
        return "two"


def test_a_directory_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has all targets beside the pixels, even class numbers."""
    prepared = PreparedSource(Unread(), tmp_path, decoder="torchvision")
    (tmp_path / INDEX_FILE).write_bytes(
        bytes.fromhex(
            "000000004c6370ca000000006f000000070000005e952dd60400000006000000df7b89b9"
            "0000000057d2a0236f000000750000000d0000008c3780bc0400000006000000c02de47c"
        )
    )
    head, pixels = b"P6\n%-24b\n255\n" % b"6 4", bytes(range(73))
    (tmp_path / "pixels-000000.bin").write_bytes(
        head + pixels[:72] + b"[7, {}]" + head + pixels[1:] + b'["seven", {}]'
    )
    for index, target in enumerate((7, "seven")):
        sample, opened = prepared.read(index), prepared.open_for_loader(index)
        assert (sample.target, opened.target) == (target, target)
        assert bytes(sample.data.numpy()) == head + pixels[index : index + 72]


def test_an_original_of_another_size_does_not_take_the_place_of_a_damaged_record(
    tmp_path: Path,
) -> None:
    """The crop was drawn for the size in the index."""
    write_photo_folder(tmp_path / "photos", num_classes=1, per_class=1)
    (file,) = (tmp_path / "photos").glob("*/*")
    source = FolderSource(tmp_path / "photos")
    fill(PreparedSource(source, tmp_path / "kept"))
    inverted(tmp_path / "kept" / "pixels-000000.bin", 3000)
    with Image.open(file) as image:
        height, width = image.height, image.width
        image.resize((width + 10, height + 20)).save(file)
    with pytest.raises(
        LoaderError, match=rf"size of its original.*instead of \({height}, {width}\)"
    ):
        stream(PreparedSource(source, tmp_path / "kept"), [T.RandomResizedCrop(8)])


def test_an_entry_that_is_half_written_or_of_another_index_is_none(
    tmp_path: Path, source: FolderSource
) -> None:
    """A misplaced block of the index file gives no wrong image."""
    expected, index = stream(source, HEAD), tmp_path / "kept" / INDEX_FILE
    fill(PreparedSource(source, index.parent, HEAD))
    for offset in (0, 21, ENTRY_BYTES - 1):
        inverted(index, offset)
        again = PreparedSource(source, index.parent, HEAD)
        assert kept(again) == set(range(1, N))
        assert same(stream(again), expected)
        assert kept(again) == set(range(N))
    entries = index.read_bytes()
    with open(index, "r+b") as file:
        file.write(entries[ENTRY_BYTES:] + entries[:ENTRY_BYTES])
    again = PreparedSource(source, index.parent, HEAD)
    assert kept(again) == set()
    assert same(stream(again), expected)


def test_a_killed_filler_leaves_what_it_had_finished(tmp_path: Path, source: FolderSource) -> None:
    folder = tmp_path / "kept"
    with beside_a_fork(lambda: list(map(PreparedSource(source, folder, HEAD).read, range(6)))):
        pass
    found = PreparedSource(source, folder, HEAD)
    assert kept(found) == set(range(6))
    assert same(stream(found), stream(source, HEAD))
    assert kept(found) == set(range(N))
    assert [path.name for path in sorted(folder.glob("pixels*"))] == ["pixels-000000.bin"]
    assert num_records(folder / "pixels-000000.bin") == N, "it goes on in the same file"


def _fill_from(source: FolderSource, folder: Path, start: int, barrier: Any) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive in a forked child
    prepared = PreparedSource(source, folder, HEAD)
    barrier.wait()
    for number in range(N):
        prepared.read((start + number) % N)


def test_several_processes_fill_one_directory(tmp_path: Path, source: FolderSource) -> None:
    """They begin the directory at the same time, and each has its own file."""
    folder = tmp_path / "kept"
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    fillers = [
        context.Process(target=_fill_from, args=(source, folder, 3 * number, barrier))
        for number in range(4)
    ]
    for filler in fillers:
        filler.start()
    for filler in fillers:
        filler.join()
    assert [filler.exitcode for filler in fillers] == [0] * 4
    found = PreparedSource(source, folder, HEAD)
    assert kept(found) == set(range(N))
    assert same(stream(found), stream(source, HEAD))
    assert len(list(folder.glob("*.part"))) == len(list(folder.glob(".*"))) == 0


def test_a_forked_child_writes_to_a_file_of_its_own(tmp_path: Path, source: FolderSource) -> None:
    """The parent continues to fill the first file while the child lives."""
    folder = tmp_path / "kept"
    prepared = PreparedSource(source, folder, HEAD)
    prepared.read(0)
    with beside_a_fork(lambda: prepared.read(1)):
        prepared.read(2)
    assert [num_records(folder / f"pixels-{number:06d}.bin") for number in (0, 1)] == [2, 1]
    assert same(stream(PreparedSource(source, folder, HEAD)), stream(source, HEAD))


def test_a_full_disk_ends_the_filling_and_not_the_epoch(
    tmp_path: Path, source: FolderSource, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on file sizes simulates the disk: a record is written in part."""
    folder = tmp_path / "kept"
    record = len(PreparedSource(source, tmp_path / "other", HEAD).read(0).data)
    expected = stream(source, HEAD)

    def run() -> bool:
        torch.set_num_threads(1)
        limit = 3 * record + record // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        assert same(stream(PreparedSource(source, folder, HEAD)), expected)
        (line,) = caplog.records
        assert f"no more images are kept in {str(folder)!r}" in line.getMessage()
        return "Training goes on" in line.getMessage()

    assert in_a_fork(run) == 0
    again = PreparedSource(source, folder, HEAD)
    assert len(kept(again)) == 3
    assert same(stream(again), expected)
    assert kept(again) == set(range(N)), "with room again, the next process goes on"


def test_a_folder_without_locks_is_read_and_not_filled(
    tmp_path: Path, source: FolderSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    prepared = PreparedSource(source, tmp_path / "kept", HEAD)
    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", refuse)
        assert same(stream(prepared), stream(source, HEAD))
    assert kept(prepared) == set()


def test_max_bytes_is_kept(tmp_path: Path) -> None:
    """Several sources of one directory keep it together; the other images are decoded each time."""
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=4)
    source = FolderSource(tmp_path / "photos")
    head = [T.Resize((300, 400))]
    record = 3 * 300 * 400
    limit = 2 * SMALLEST_SEGMENT + 8 * ENTRY_BYTES
    folder = tmp_path / "kept"
    prepared = PreparedSource(source, folder, head, max_bytes=limit)
    assert same(stream(prepared), stream(source, head))
    assert len(kept(prepared)) == 2 * (SMALLEST_SEGMENT // record)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= limit + 1000  # prepared.json
    another = PreparedSource(source, folder, head, max_bytes=limit)
    assert same(stream(another), stream(source, head))
    assert kept(another) == kept(prepared)
    with pytest.raises(ValueError, match=r"max_bytes = 1000 leaves 712 bytes .* at least 1048864"):
        PreparedSource(source, tmp_path / "small", head, max_bytes=1000)


def test_another_source_recipe_or_decoder_is_refused(tmp_path: Path, source: FolderSource) -> None:
    folder = tmp_path / "kept"
    fill(PreparedSource(source, folder, HEAD, decoder="torchvision"))
    write_photo_folder(tmp_path / "other", num_classes=3, per_class=4)
    others = [{"decoder": name} for name in available() if name != "torchvision"]
    for field, arguments, changes in (
        ("source", (FolderSource(tmp_path / "other"), folder, HEAD), {}),
        ("recipes", (source, folder, [T.Resize((40, 47))]), {}),
        ("recipes", (source, folder), {}),
        *(("decoder", (source, folder, HEAD), other) for other in others),
    ):
        with pytest.raises(ValueError, match=f"was prepared with another {field}: .*Remedy"):
            PreparedSource(*arguments, **changes)
    again = PreparedSource(source, folder, HEAD)
    assert "prepared by torchvision" in again.fingerprint(), "auto takes the one it was begun with"
    assert kept(again) == set(range(N))


def test_another_layout_is_refused_and_other_versions_are_warned_of(
    tmp_path: Path, source: FolderSource
) -> None:
    """An earlier version of this package wrote the directory. Nothing else is warned of."""
    folder, path = tmp_path / "kept", tmp_path / "kept" / "prepared.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            stream(PreparedSource(source, folder, HEAD))
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "versions": ["0.1", "torch 1.0"]}))
    with pytest.warns(UserWarning, match=r"were begun by .*'torch 1\.0'.*, this is .*torch 2"):
        PreparedSource(source, folder, HEAD)
    path.write_text(json.dumps({**described, "layout": 2}))
    with pytest.raises(ValueError, match=r"another layout: 2 instead of 3.*Remedy: give another"):
        PreparedSource(source, folder, HEAD)


def test_a_damaged_description_is_refused(tmp_path: Path, source: FolderSource) -> None:
    folder = tmp_path / "kept"
    PreparedSource(source, folder, HEAD)
    for text in ("", "{", "[]", '{"source": 1}', '{"versions": []}', "\udcff"):
        (folder / "prepared.json").write_text(text, errors="surrogateescape")
        with pytest.raises(
            ValueError, match=r"not a description of prepared images: .*Remedy: rem"
        ):
            PreparedSource(source, folder, HEAD)


def test_what_cannot_be_kept_is_refused(tmp_path: Path, source: FolderSource) -> None:
    for recipe, message in (
        (T.RandomCrop(10), "RandomCrop.* draws random numbers"),
        (T.ToDtype(torch.float32, scale=True), "but uint8 is kept"),
        (T.ToMemoryFormat(torch.channels_last), "but uint8 is kept"),
    ):
        with pytest.raises(ValueError, match=message):
            PreparedSource(source, tmp_path / "kept", [recipe])
    with pytest.raises(TypeError, match=r"range is not a source of encoded images.*Remedy"):
        PreparedSource(range(3), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


class OnlyLarge(T.Resize):
    """Refuses images that are less than 100 pixels high."""

    def draw(self, uniforms: Any, sizes: Any) -> Any:
        if sizes[0, 0] < 100:
            raise ValueError(f"{sizes[0, 0]} pixels are too few")
        return super().draw(uniforms, sizes)


def test_a_size_that_recipes_refuse_is_no_bad_sample(tmp_path: Path, source: FolderSource) -> None:
    prepared = PreparedSource(source, tmp_path / "kept", [OnlyLarge((40, 48))])
    loader = StatefulGPULoader(prepared, on_bad_sample="drop")
    with pytest.raises(LoaderError, match="pixels are too few"):
        list(loader)
