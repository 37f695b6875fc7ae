"""TFRecordShards and RecordIOShards: read from any cursor, also from damaged files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import TFRecordShards
from tests.datasets.compression import COMPRESS
from tests.datasets.record_files import MAGIC, tfrecord_frame
from tests.datasets.record_kinds import KINDS, Kind, rest
from tests.datasets.source_conformance import items

IMAGES = [bytes([i]) * (40 + 3 * i) for i in range(9)]


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
    other.write_bytes(COMPRESS[ending](path.read_bytes()))
    return other


def test_samples_are_those_of_the_source(kind: Kind, path: Path) -> None:
    """An empty shard has none."""
    kind.write(path.with_stem("b"), IMAGES[::-1])
    paths = [path, path.with_stem("b")]
    shards = kind.shards(paths)
    assert shards.shards() == ["a.records", "b.records"]
    read = [(data.numpy().tobytes(), target) for data, target in shards]
    assert read == items(kind.source(paths))
    path.write_bytes(b"")
    for empty in (path, compressed(path, ".gz")):
        assert rest(kind.shards(empty), empty.name) == []


def test_without_a_target_a_sample_says_where_it_lies(kind: Kind, path: Path) -> None:
    """A resume names the same place, although it did not count the earlier records."""
    places = kind.write(path, IMAGES)
    shards = kind.shards(path, target=None)
    starts = [offset for offset, _ in places]
    assert [after for _, _, after in rest(shards, "a.records")] == [sum(each) for each in places]
    assert [target for _, target, _ in rest(shards, "a.records")] == starts
    assert [target for _, target, _ in rest(shards, "a.records", starts[4])] == starts[4:]
    sample, _ = next(kind.shards(path).read_shard("a.records", starts[3]))
    assert sample.name == f"{path}, byte {starts[3]}"
    other = compressed(path, ".gz")
    found = rest(kind.shards(other, target=None), other.name, 4)
    assert [each[1:] for each in found] == [(4, 5), (5, 6), (6, 7), (7, 8), (8, 9)]
    sample, _ = next(kind.shards(other).read_shard(other.name, 3))
    assert sample.name == f"{other}, record 3"


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_file_cut_at_every_byte_gives_a_right_prefix(
    kind: Kind, tmp_path: Path, ending: str
) -> None:
    """Whole records come first, then the damage is named. A cut between records is not noticed."""
    path = tmp_path / "a.records"
    images = [IMAGES[0], b"abcd" + 2 * MAGIC + b"a record of several parts", IMAGES[2]]
    places = kind.write(path, images)
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
            assert re.search(place + ("" if ending else "the file is cut off"), text), (size, text)


def read_until_damage(kind: Kind, file: Path) -> tuple[list[tuple[bytes, Any, int]], str]:
    """Return the samples, and the text of the ValueError, or the file's name if none is raised."""
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
        with pytest.raises(ValueError, match=rf"a.records'.*byte {places[4][0]}"):
            next(stream)


def test_a_cursor_that_does_not_fit_is_named(kind: Kind, path: Path) -> None:
    """The shard was replaced after the state was saved."""
    shards = kind.shards(path)
    size = path.stat().st_size
    with pytest.raises(ValueError, match=rf"byte {size + 4}.*byte {size}"):
        rest(shards, "a.records", size + 4)
    with pytest.raises(ValueError, match=r"a.records', byte 4: .*(magic|checksum)"):
        rest(shards, "a.records", 4)
    other = compressed(path, ".gz")
    with pytest.raises(ValueError, match=r"record 11.*9"):
        rest(kind.shards(other), other.name, 11)


def test_the_fingerprint_is_of_names_and_choice(kind: Kind, path: Path) -> None:
    paths = [path, path.with_stem("b")]
    elsewhere = [Path("/elsewhere") / each.name for each in paths]
    first = kind.shards(paths).fingerprint()
    assert kind.shards(elsewhere).fingerprint() == first
    others = {kind.shards(paths[::-1]).fingerprint(), kind.shards(paths, target=None).fingerprint()}
    assert len(others - {first}) == 2


def test_a_malformed_record_has_the_same_reason_wherever_reading_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(tfrecord_frame(b"\xff") for _ in range(3)))
    shards = TFRecordShards(str(path))
    whole = list(shards.read_shard(path.name, 0))
    (reason, after), *_ = shards.read_shard(path.name, whole[0][1])
    assert isinstance(reason, ValueError)
    assert (str(reason), after) == (str(whole[1][0]), whole[1][1])
