"""Common behaviour of TFRecordSource and RecordIOSource: files, indices, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.datasets.record_files import MAGIC
from tests.datasets.record_kinds import KINDS, Kind
from tests.datasets.source_conformance import items

IMAGES = [bytes([i]) * (40 + 3 * i) for i in range(11)]
SEVERAL_PARTS = b"abcd" + 2 * MAGIC + b"a record of several parts"


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def paths(kind: Kind, tmp_path: Path) -> list[Path]:
    """Four files with 11 records, one file empty, each with its index beside it."""
    folder, first, found = tmp_path / "data", 0, []
    folder.mkdir()
    for name, count in (("a", 5), ("b", 0), ("c", 1), ("d", 5)):
        path = folder / f"{name}.records"
        kind.write(path, IMAGES[first : first + count], first, path.with_suffix(".idx"))
        found.append(path)
        first += count
    return found


def indices(paths: list[Path]) -> list[Path]:
    return [path.with_suffix(".idx") for path in paths]


def expected(first: int = 0, last: int = 11) -> list[tuple[bytes, int]]:
    return [(IMAGES[i], i) for i in range(first, last)]


def test_records_come_file_by_file(kind: Kind, paths: list[Path]) -> None:
    source = kind.source(paths)
    assert items(source) == expected()
    assert len(source) == 11
    assert source.block_lengths().tolist() == [5, 0, 1, 5]
    assert source.block_lengths().dtype == np.int64
    assert items(kind.source(paths[0])) == expected(0, 5)
    assert items(kind.source(str(paths[0].parent / "{c,d}.records"))) == expected(5)
    assert items(kind.source(str(paths[0].parent / "*.records"))) == expected()


def test_indices_that_were_given_read_the_same(kind: Kind, paths: list[Path]) -> None:
    built = kind.source(paths)
    for given in (indices(paths), [f"file://{path}" for path in indices(paths)]):
        source = kind.source(paths, index_paths=given)
        assert items(source) == expected()
        assert source.fingerprint() == built.fingerprint()
        assert repr(source) == repr(built)


def test_a_sample_names_its_file_and_record(kind: Kind, paths: list[Path]) -> None:
    """An index beyond the end is refused."""
    source = kind.source(paths)
    assert source.read(5).name == f"{paths[2]}, record 0"
    assert source.read(7).name == f"{paths[3]}, record 1"
    assert source[-1][1] == 10
    for read in (source.read, source.record):
        for index in (11, -1):
            with pytest.raises(IndexError, match=rf"index = {index}.*0.*10"):
                read(index)


def test_a_file_that_is_replaced_while_it_is_open_is_noticed(kind: Kind, paths: list[Path]) -> None:
    source = kind.source(paths[0])
    kind.write(paths[0], [image + b"more" * i for i, image in enumerate(IMAGES[5:10])])
    with pytest.raises(ValueError, match=r"a.records', record 1, byte \d+"):
        source.read(1)
    kind.write(paths[0], IMAGES[:2])
    with pytest.raises(ValueError, match=r"a.records', record 4, byte \d+.*byte \d+"):
        source.read(4)


def test_an_index_of_another_file_is_refused(kind: Kind, paths: list[Path]) -> None:
    """An outdated or foreign index is refused when the source is made, or when a record is read.

    So is an index that leaves records out: an error is better than a silently smaller epoch.
    """
    index = paths[0].with_suffix(".idx")
    for images, text in (
        (IMAGES[:6], r"(its index ends|index says|begins with)"),
        (IMAGES[:3], r"(its index ends|before its end)"),
        ([IMAGES[i] for i in (2, 1, 0, 4, 3)], r"(index says|begins with|checksum of its length)"),
    ):
        kind.write(paths[0], images)
        with pytest.raises(ValueError, match=text):
            kind.source(paths[0], index_paths=index)
    kind.write(paths[0], IMAGES[:5])
    lines = index.read_text().splitlines(keepends=True)
    for left_out in range(5):
        index.write_text("".join(lines[:left_out] + lines[left_out + 1 :]))
        with pytest.raises(ValueError, match=r"Remedy: .*index"):
            kind.source(paths[0], index_paths=index)


def test_files_and_indices_that_cannot_be_are_named(kind: Kind, paths: list[Path]) -> None:
    first, empty, *_ = paths
    absent = first.with_stem("absent")
    for given, index, error, text in (
        ([first, absent], None, FileNotFoundError, r"absent.records"),
        (empty, None, ValueError, r"b.records"),
        (empty, indices(paths)[1], ValueError, r"b.records"),
        ([first, first], None, ValueError, "given twice"),
        (paths, indices(paths)[:3], ValueError, r"4 files and 3 indices\. Remedy: give one for ea"),
        (first, absent.with_suffix(".idx"), FileNotFoundError, r"absent.idx"),
    ):
        with pytest.raises(error, match=text):
            kind.source(given, index_paths=index)
    name = kind.shards.__name__  # type: ignore[attr-defined]
    for ending in (".gz", ".zst"):
        with pytest.raises(ValueError, match=rf"{ending}'.*compressed.*{name}"):
            kind.source([first, f"{empty}{ending}"])


def test_a_file_cut_at_every_byte_is_named_or_a_right_prefix(kind: Kind, tmp_path: Path) -> None:
    whole, images = tmp_path / "whole", [IMAGES[0], SEVERAL_PARTS, IMAGES[2]]
    places = kind.write(whole, images)
    content, cut = whole.read_bytes(), tmp_path / "cut"
    opened = kind.source(whole, cache_dir=tmp_path)
    ends = [0, *(offset + size for offset, size in places)]
    for size in range(len(content)):
        cut.write_bytes(content[:size])
        last = max(i for i, end in enumerate(ends) if end <= size)
        if size in ends[1:]:
            found = [data for data, _ in items(kind.source(cut, cache_dir=tmp_path))]
            assert found == images[:last]
        elif size:
            text = f"cut', record {last}, byte {ends[last]}: the file is cut off"
            with pytest.raises(ValueError, match=text):
                kind.source(cut, cache_dir=tmp_path)
        whole.write_bytes(content[:size])
        assert [opened[index][1] for index in range(last)] == [*range(last)]
        with pytest.raises(ValueError, match=f"record {last}, byte {ends[last]}"):
            opened.read(last)


def test_one_damaged_record_leaves_the_others(kind: Kind, paths: list[Path]) -> None:
    source = kind.source(paths)
    content = bytearray(paths[0].read_bytes())
    places = kind.write(paths[0], IMAGES[:5])
    content[places[2][0] + 1] ^= 0xFF
    paths[0].write_bytes(content)
    text = rf"a.records', record 2, byte {places[2][0]}: .*Remedy"
    with pytest.raises(ValueError, match=text):
        source.read(2)
    assert [source[i][1] for i in (1, 3)] == [1, 3]
    with pytest.raises(ValueError, match=text):
        kind.source(paths)


def test_the_fingerprint_depends_on_content(kind: Kind, paths: list[Path]) -> None:
    seen = {
        kind.source(paths).fingerprint(),
        kind.source(paths[::-1]).fingerprint(),
        kind.source(paths[:3]).fingerprint(),
        kind.source(paths, target=None).fingerprint(),
    }
    kind.write(paths[3], [*IMAGES[6:10], IMAGES[10] + b"...."], 6)
    seen.add(kind.source(paths).fingerprint())
    paths[3].rename(paths[3].with_stem("e"))
    seen.add(kind.source([*paths[:3], paths[3].with_stem("e")]).fingerprint())
    assert len(seen) == 6
