"""Tars by index: the content of a sample, and changes that do not affect it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader.datasets.storage.memory import Arena
from stateful_gpu_loader.datasets.tar.source import TarSource
from tests.datasets.source_conformance import items
from tests.datasets.storage.reads import recorded_fills
from tests.datasets.tar.tar_files import sample_entries, write_tar


@pytest.fixture
def tars(tmp_path: Path) -> list[Path]:
    """Nine samples in three tars, one of them empty."""
    folder = tmp_path / "tars"
    folder.mkdir()
    lengths = ((0, 4), (4, 4), (4, 9))
    return [
        write_tar(folder / f"{number:03d}.tar", sample_entries(*ends))
        for number, ends in enumerate(lengths)
    ]


def expected(last: int) -> list[tuple[bytes, Any]]:
    entries = sample_entries(0, last)
    return [
        (image, int(label)) for (_, image), (_, label) in zip(*[iter(entries)] * 2, strict=True)
    ]


def test_one_path_several_wildcards_and_braces(tars: list[Path]) -> None:
    """A sample has a target and a name."""
    folder = tars[0].parent
    for paths in (
        tars,
        [str(path) for path in tars],
        folder / "*.tar",
        f"{folder}/{{000..002}}.tar",
        f"{folder}/00{{0,1,2}}.tar",
    ):
        source = TarSource(paths)
        assert items(source) == expected(9)
        assert source.block_lengths().tolist() == [4, 0, 5]
        assert source.block_lengths().dtype == np.int64
    sample = source.read(5)
    assert sample.data.is_contiguous()
    assert (sample.target, type(sample.target)) == (5, int)
    assert sample.name == f"{tars[2]}/0005.jpg"
    with pytest.raises(IndexError, match=r"index 9.*TarSource.*9"):
        source[9]
    assert repr(source) == "TarSource(3 tars, 9 samples)"
    assert items(TarSource(tars[0])) == expected(4)


def test_targets_of_every_form(tmp_path: Path) -> None:
    array = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }"
    array = array.ljust(80, b" ") + b"\x01\x00\x02\x00"
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("k.jpg", b"image"),
            ("k.cls", b"3"),
            ("k.json", b'{"a": 1}'),
            ("k.txt", b"text"),
            ("k.pth", b"pickled"),
            ("k.npy", array),
            ("k.bin", b"\x00\x01"),
        ],
    )
    forms: list[tuple[Any, Any]] = [
        ("cls", 3),
        ("json", {"a": 1}),
        (("cls", "txt"), (3, "text")),
        ({"y": "cls", "key": "__key__", "raw": "bin"}, {"y": 3, "key": "k", "raw": b"\x00\x01"}),
        ("none;txt", "text"),
        (None, 0),
    ]
    for target, value in forms:
        assert TarSource(path, target=target)[0][1] == value
    assert TarSource(path, target="npy")[0][1].tolist() == [1, 2]
    record = TarSource(path).record(0)
    assert list(record) == ["__key__", "jpg", "cls", "json", "txt", "pth", "npy", "bin"]
    assert record.pop("npy").tolist() == [1, 2]
    assert record["pth"] == b"pickled"
    assert record["json"] == {"a": 1}


def test_members_far_apart_are_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte between image and class is not read."""
    entries = [("k.jpg", b"image"), ("k.wav", bytes(1 << 20)), ("k.cls", b"3")]
    source = TarSource(write_tar(tmp_path / "a.tar", entries))
    fills = recorded_fills(monkeypatch)
    sample = source.read(0)
    assert (sample.data.numpy().tobytes(), sample.target) == (b"image", 3)
    assert [sum(map(len, parts)) for _, parts in fills] == [512 + 5, 512 + 1]
    assert len(source.record(0)["wav"]) == 1 << 20


def test_an_image_is_read_into_the_memory_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one read without a copy, at any place among the members of its sample."""
    bodies = {"jpg": b"image" * 300, "cls": b"3", "txt": b"a cat"}
    target = ("txt", "cls", "jpg", "__key__")
    for order in itertools.permutations(bodies):
        entries = [(f"{key}.{name}", bodies[name]) for key in "kl" for name in order]
        source = TarSource(write_tar(tmp_path / f"{'-'.join(order)}.tar", entries), target=target)
        reads = recorded_fills(monkeypatch)
        arena = Arena(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8), 3000)
        for index, key in enumerate("kl"):
            start = arena.end
            sample = source.read(index, into=arena.take)
            assert sample.target == ("a cat", 3, bodies["jpg"], key)
            assert sample.data.data_ptr() == arena.filled()[start:].data_ptr()
            assert sample.data.numpy().tobytes() == bodies["jpg"]
        assert len(reads) == 2
        assert arena.filled().numpy().tobytes() == bodies["jpg"] * 2


def test_a_tar_that_is_cut_off_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    """A memory map would end the process."""
    path = write_tar(tmp_path / "a.tar", sample_entries(0, 9))
    source = TarSource(path)
    source.read(8)
    os.truncate(path, 17_000)
    with pytest.raises(ValueError, match=r"index = 8.*'0008'.*byte 17000"):
        source.read(8)


def test_a_sample_without_image_or_target_is_named(tmp_path: Path, tars: list[Path]) -> None:
    odd = write_tar(tmp_path / "odd.tar", [("a.jpg", b""), ("b.cls", b"1"), ("c.txt", b"")])
    text = (
        r"of 12 samples in 4 tars 2 lack the image \(jpg, jpeg, png, webp\) and 2 lack the target "
        r"\(cls\)\. The first: key 'a' in '.*odd.tar' has 'jpg'\. Remedy: "
    )
    with pytest.raises(ValueError, match=text):
        TarSource([*tars, odd])
    skipping = TarSource([odd, *tars], missing="skip")
    assert items(skipping) == expected(9)
    assert skipping.block_lengths().tolist() == [0, 4, 0, 5]
    with pytest.raises(ValueError, match="3 samples in 1 tars"):
        TarSource(odd, missing="skip")
    with pytest.raises(ValueError, match="missing = 'empty'"):
        TarSource(odd, missing="empty")  # type: ignore[arg-type]


def test_tars_without_samples_are_refused(tmp_path: Path) -> None:
    """The decoder decides whether an empty image is a bad sample."""
    for entries in ([], [("README", b"no sample")]):
        with pytest.raises(ValueError, match=r"a.tar'"):
            TarSource(write_tar(tmp_path / "a.tar", entries))
    with pytest.raises(ValueError, match="names no file"):
        TarSource([])
    source = TarSource(write_tar(tmp_path / "a.tar", [("k.jpg", b""), ("k.cls", b"3")]))
    assert source[0][0].shape == (0,)


def test_the_fingerprint_is_of_the_content(tars: list[Path], tmp_path: Path) -> None:
    """Later releases compare states that are saved today."""
    source, entries = TarSource(tars), sample_entries(0, 9)
    known = "9 samples in tars, blake2b 7664412a55d74b0d75cc68cc786d3536"
    assert source.fingerprint() == known
    assert source.fingerprint() is source.fingerprint()
    one = write_tar(tmp_path / "one.tar", entries, tar_format=2)
    assert TarSource(one).fingerprint() == known
    others: list[Any] = [
        (tars[::-1], {}),
        (tars[:1], {}),
        (tars, {"target": None}),
        (tars, {"target": ("cls",)}),
        (tars, {"image": "cls", "target": None}),
    ]
    for number, changed in enumerate(
        (
            [(name, content + b"x" * (i == 2)) for i, (name, content) in enumerate(entries)],
            [(name.replace("0008", "0009"), content) for name, content in entries],
            [(name.replace("jpg", "png"), content) for name, content in entries],
            [*entries, ("0008.txt", b"")],
        )
    ):
        others.append((write_tar(tmp_path / f"other-{number}.tar", changed), {}))
    seen = {TarSource(paths, **options).fingerprint() for paths, options in others}
    assert len(seen - {known}) == len(others)
