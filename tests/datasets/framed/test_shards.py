"""TFRecordShards and RecordIOShards: read from any cursor on, damage and all."""

from __future__ import annotations

import bz2
import gc
import gzip
import lzma
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.datasets.record_kinds import KINDS, Kind, items, rest

IMAGES = [bytes([i]) * (40 + 3 * i) for i in range(9)]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def path(kind: Kind, tmp_path: Path) -> Path:
    """Nine records, labels 0 to 8."""
    kind.write(tmp_path / "a.records", IMAGES)
    return tmp_path / "a.records"


def compressed(path: Path, ending: str) -> Path:
    other = path.with_name(path.name + ending)
    other.write_bytes(COMPRESSIONS[ending](path.read_bytes()))
    return other


def test_samples_are_those_of_the_source(kind: Kind, path: Path) -> None:
    kind.write(path.with_stem("b"), IMAGES[::-1])
    paths = [path, path.with_stem("b")]
    shards = kind.shards(paths)
    assert shards.shards() == ["a.records", "b.records"]
    read = [(data.numpy().tobytes(), target) for data, target in shards]
    assert read == items(kind.source(paths))


def test_the_rest_from_every_cursor_is_the_rest(kind: Kind, path: Path) -> None:
    """A cursor is where the next record begins."""
    places = kind.write(path, IMAGES)
    shards = kind.shards(path)
    whole = rest(shards, "a.records")
    assert [after for _, _, after in whole] == [offset + size for offset, size in places]
    for number, (_, _, after) in enumerate(whole):
        assert rest(shards, "a.records", after) == whole[number + 1 :]


@pytest.mark.parametrize("ending", sorted(COMPRESSIONS))
def test_compressed_shards_count_records(kind: Kind, path: Path, ending: str) -> None:
    """By the ending of the name."""
    plain = [(data, target) for data, target, _ in rest(kind.shards(path), "a.records")]
    other = compressed(path, ending)
    shards = kind.shards(other)
    whole = rest(shards, other.name)
    assert [(data, target) for data, target, _ in whole] == plain
    assert [after for _, _, after in whole] == list(range(1, 10))
    for cursor in range(10):
        assert rest(shards, other.name, cursor) == whole[cursor:]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_urls_are_streamed(kind: Kind, path: Path, tmp_path: Path, ending: str) -> None:
    """A plain one from the byte of its cursor on."""
    file = compressed(path, ending) if ending else path
    expected = rest(kind.shards(file), file.name)
    url = f"memory://{tmp_path.name}/{file.name}"
    with fsspec.open(url, "wb") as target:
        target.write(file.read_bytes())
    for address in (url, f"file://{file}"):
        shards = kind.shards(address)
        assert shards.shards() == [file.name]
        for cursor in (0, expected[3][2], expected[-1][2]):
            left = [each for each in expected if each[2] > cursor]
            assert rest(shards, file.name, cursor) == left


def test_without_a_target_a_sample_says_where_it_lies(kind: Kind, path: Path) -> None:
    """The same after a resume, where earlier records were not counted."""
    places = kind.write(path, IMAGES)
    shards = kind.shards(path, target=None)
    starts = [offset for offset, _ in places]
    assert [target for _, target, _ in rest(shards, "a.records")] == starts
    assert [target for _, target, _ in rest(shards, "a.records", starts[4])] == starts[4:]
    other = compressed(path, ".gz")
    numbers = [target for _, target, _ in rest(kind.shards(other, target=None), other.name, 4)]
    assert numbers == [4, 5, 6, 7, 8]


def test_a_sample_names_its_file_and_place(kind: Kind, path: Path) -> None:
    places = kind.write(path, IMAGES)
    cursor = places[3][0]
    sample, _ = next(kind.shards(path).read_shard("a.records", cursor))
    assert sample.name == f"{path}, byte {cursor}"
    other = compressed(path, ".gz")
    sample, _ = next(kind.shards(other).read_shard(other.name, 3))
    assert sample.name == f"{other}, record 3"


@pytest.mark.parametrize("ending", ["", *sorted(COMPRESSIONS)])
def test_a_file_cut_at_every_byte_gives_a_right_prefix(
    kind: Kind, tmp_path: Path, ending: str
) -> None:
    """What was whole comes, then the damage by name; a cut between records shows in nothing."""
    path = tmp_path / "a.records"
    places = kind.write(path, IMAGES[:3])
    ends = [0, *(offset + size for offset, size in places)]
    file = compressed(path, ending) if ending else path
    content, shards = file.read_bytes(), kind.shards(file)
    whole = rest(shards, file.name)
    for size in range(len(content)):
        file.write_bytes(content[:size])
        found, text = read_until_damage(kind, file)
        assert found == whole[: len(found)]
        if not ending:
            assert len(found) == max(i for i, end in enumerate(ends) if end <= size)
        if size and (ending or size not in ends):
            place = rf"{re.escape(file.name)}', record {len(found)}, byte {ends[len(found)]}: "
            assert re.search(place, text), (size, text)


@given(st.data())
def test_changed_bytes_give_a_valueerror_or_a_right_prefix(data: st.DataObject) -> None:
    """With checksums, nothing wrong comes, whatever was changed and however it is compressed."""
    kind, ending = KINDS["tfrecord"], data.draw(st.sampled_from(["", *sorted(COMPRESSIONS)]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.records")
        kind.write(path, IMAGES[:3])
        file = compressed(path, ending) if ending else path
        content = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        file.write_bytes(content)
        found, text = read_until_damage(kind, file)
    assert file.name in text
    assert [(image, target) for image, target, _ in found] == [
        (IMAGES[i], i) for i in range(len(found))
    ]


def read_until_damage(kind: Kind, file: Path) -> tuple[list[tuple[bytes, Any, int]], str]:
    """What comes, and the text of the ValueError, or the file's name if none is raised."""
    found = []
    try:
        for sample, after in kind.shards(file).read_shard(file.name, 0):
            found.append((sample.data.numpy().tobytes(), sample.target, after))
    except ValueError as raised:
        return found, str(raised)
    return found, file.name


def test_damage_in_the_middle_leaves_what_came_before(kind: Kind, path: Path) -> None:
    places = kind.write(path, IMAGES)
    content = bytearray(path.read_bytes())
    content[places[4][0] + 1] ^= 0xFF
    path.write_bytes(content)
    shards = kind.shards(path)
    for first in (0, 2):
        stream = shards.read_shard("a.records", places[first][0])
        assert [next(stream)[0].target for _ in range(4 - first)] == list(range(first, 4))
        with pytest.raises(ValueError, match=rf"a.records'.*, byte {places[4][0]}: .*Remedy"):
            next(stream)


def test_a_cursor_that_does_not_fit_is_named(kind: Kind, path: Path) -> None:
    """The shard was replaced since the state was saved."""
    shards = kind.shards(path)
    size = path.stat().st_size
    with pytest.raises(ValueError, match=rf"has {size} bytes, and byte {size + 4} was to be read"):
        rest(shards, "a.records", size + 4)
    with pytest.raises(ValueError, match=r"a.records', byte 4: .*(magic|checksum)"):
        rest(shards, "a.records", 4)
    other = compressed(path, ".gz")
    with pytest.raises(ValueError, match="has 9 records, and record 11 was to be read"):
        rest(kind.shards(other), other.name, 11)


def test_a_shard_that_vanished_is_named(kind: Kind, path: Path) -> None:
    shards = kind.shards(path)
    path.unlink()
    for cursor in (0, 4):
        with pytest.raises(FileNotFoundError, match=r"a.records"):
            rest(shards, "a.records", cursor)


def test_an_empty_shard_has_no_samples(kind: Kind, path: Path) -> None:
    path.write_bytes(b"")
    assert rest(kind.shards(path), "a.records") == []
    other = compressed(path, ".gz")
    assert rest(kind.shards(other), other.name) == []


@pytest.mark.fuzz
@pytest.mark.parametrize("ending", ["", *sorted(COMPRESSIONS)])
def test_a_stream_that_is_left_early_keeps_no_descriptor(
    kind: Kind, path: Path, ending: str
) -> None:
    file = compressed(path, ending) if ending else path
    shards = kind.shards(file)
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    streams = [shards.read_shard(file.name, 0) for _ in range(5)]
    for stream in streams:
        next(stream)
    for stream in streams:
        stream.close()
    rest(shards, file.name)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_pickled_dataset_reads_on(kind: Kind, path: Path) -> None:
    """A spawned worker."""
    shards = pickle.loads(pickle.dumps(kind.shards(path)))
    assert rest(shards, "a.records") == rest(kind.shards(path), "a.records")


def test_counts_are_by_name_or_in_order(kind: Kind, path: Path) -> None:
    paths = [path, path.with_stem("b")]
    assert kind.shards(paths).num_samples("a.records") is None
    for counts in ([9, 4], {"b.records": 4, "a.records": 9}):
        shards = kind.shards(paths, counts=counts)
        assert [shards.num_samples(name) for name in shards.shards()] == [9, 4]


@pytest.mark.parametrize(
    ("counts", "error", "text"),
    [
        ([9], ValueError, "2 shards and 1 counts"),
        ({"a.records": 9}, ValueError, "counts has no 'b.records', one of 1 shards"),
        ([9, -1], ValueError, r"counts\['b.records'\] is -1"),
        ([9, 1.5], TypeError, "float"),
    ],
)
def test_counts_that_do_not_fit_are_refused(
    kind: Kind, path: Path, counts: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kind.shards([path, path.with_stem("b")], counts=counts)


def test_the_fingerprint_is_of_names_and_choice(kind: Kind, path: Path) -> None:
    """Equal wherever the shards lie."""
    paths = [path, path.with_stem("b")]
    elsewhere = [Path("/elsewhere") / each.name for each in paths]
    first = kind.shards(paths).fingerprint()
    assert kind.shards(elsewhere).fingerprint() == first
    others = {kind.shards(paths[::-1]).fingerprint(), kind.shards(paths, target=None).fingerprint()}
    assert len(others - {first}) == 2
