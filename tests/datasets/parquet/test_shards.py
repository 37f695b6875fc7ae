"""ParquetShards: Parquet files row by row, from a cursor."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from stateful_gpu_loader.datasets.parquet.source import ParquetShards, ParquetSource
from tests.datasets.parquet.parquet_files import hub_images, images, write_table
from tests.datasets.storage.reads import break_storage, recorded_reads

COUNTS = (11, 0, 6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    first = 0
    for number, count in enumerate(COUNTS):
        image = pyarrow.array(
            hub_images(count, first),
            pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]),
        )
        label = pyarrow.array(range(first, first + count), pyarrow.int64())
        write_table(tmp_path / f"{number}.parquet", {"image": image, "label": label})
        first += count
    return tmp_path


def read(shards: ParquetShards, shard: str, cursor: int = 0) -> list[tuple[bytes, Any, int]]:
    return [
        (sample.data.numpy().tobytes(), sample.target, after)
        for sample, after in shards.read_shard(shard, cursor)
    ]


def test_a_cursor_is_the_number_of_a_row(folder: Path) -> None:
    """Shards are named after their files; one of them has no rows."""
    shards = ParquetShards(folder / "*.parquet")
    assert list(shards.shards()) == ["0.parquet", "1.parquet", "2.parquet"]
    for shard, count in zip(shards.shards(), COUNTS, strict=True):
        assert [after for _, _, after in read(shards, shard)] == list(range(1, count + 1))
        with pytest.raises(ValueError, match=f"has {count} rows, and the cursor is {count + 1}"):
            read(shards, shard, count + 1)
    with pytest.raises(ValueError, match=r"'3\.parquet'.*0\.parquet, 1\.parquet"):
        read(shards, "3.parquet")


@pytest.mark.parametrize("target", ["label", None, {"y": "label"}])
def test_samples_are_those_of_the_source(folder: Path, target: Any) -> None:
    """Without a target, each sample is identified by its row."""
    shards = ParquetShards(folder / "*.parquet", target=target)
    source = ParquetSource(folder / "*.parquet", target=target)
    found = list(shards)
    assert [bytes(data) for data, _ in found] == [bytes(source[i][0]) for i in range(17)]
    if target is None:
        assert [number for _, number in found] == [*range(11), *range(6)]
    else:
        assert [number for _, number in found] == [source[i][1] for i in range(17)]
    sample, _ = next(iter(shards.read_shard("2.parquet", 5)))
    assert sample.name == f"{folder / '2.parquet'}, row 5"


def test_row_groups_before_the_cursor_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume at the end of a file costs no more than a resume at its start."""
    columns = {"image": [os.urandom(1 << 15) for _ in range(12)], "label": list(range(12))}
    path = write_table(tmp_path / "a.parquet", columns)
    reads = recorded_reads(monkeypatch)
    assert len(read(ParquetShards(path), "a.parquet", 9)) == 3
    first = pyarrow.parquet.read_metadata(path).row_group(2).column(0).dictionary_page_offset
    assert first > 8 << 15
    assert min(offset for offset, _ in reads) == first


def test_counts_are_known_from_the_footers_or_not_at_all(folder: Path) -> None:
    shards = ParquetShards(folder / "*.parquet")
    assert [shards.num_samples(shard) for shard in shards.shards()] == list(COUNTS)
    unknown = ParquetShards([folder / "0.parquet", folder / "absent.parquet"], count_rows=False)
    assert [unknown.num_samples(shard) for shard in unknown.shards()] == [None, None]
    assert unknown.fingerprint()


def test_the_fingerprint_depends_on_content_and_not_on_place(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    for arguments in ({}, {"count_rows": False}):
        one = ParquetShards(folder / "*.parquet", **arguments)
        assert ParquetShards(moved / "*.parquet", **arguments).fingerprint() == one.fingerprint()
    before = ParquetShards(moved / "*.parquet").fingerprint()
    seen = {before, ParquetShards(moved / "*.parquet", target=None).fingerprint()}
    seen.add(ParquetShards(moved / "*.parquet", count_rows=False).fingerprint())
    seen.add(ParquetShards(moved / "0.parquet").fingerprint())
    write_table(moved / "2.parquet", {"image": images(6), "label": list(range(6))})
    seen.add(ParquetShards(moved / "*.parquet").fingerprint())
    assert len(seen) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: write_table(path, {"jpeg": images(3), "label": [1, 2, 3]}),
    ],
    ids=["cut", "empty", "another column"],
)
def test_a_damaged_shard_is_named(folder: Path, damage: Callable[[Path], None]) -> None:
    """The other shards are read."""
    shards = ParquetShards(folder / "*.parquet")
    damage(folder / "0.parquet")
    with pytest.raises(ValueError, match=r"0\.parquet'"):
        read(shards, "0.parquet")
    assert len(read(shards, "2.parquet")) == 6


def test_damage_within_a_shard_comes_after_the_rows_before_it(tmp_path: Path) -> None:
    columns = {"image": images(12), "label": list(range(12))}
    path = Path(write_table(tmp_path / "a.parquet", columns, write_page_checksum=True))
    column = pyarrow.parquet.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size - 2] ^= 1
    path.write_bytes(content)
    shards, found = ParquetShards(path), []
    with pytest.raises(ValueError, match=r"a\.parquet'.*'row group 1'.*row 4"):
        found.extend(sample.target for sample, _ in shards.read_shard("a.parquet", 0))
    assert found == [0, 1, 2, 3]
    assert [target for _, target, _ in read(shards, "a.parquet", 8)] == [8, 9, 10, 11]


def test_a_null_image_is_named(tmp_path: Path) -> None:
    columns = {"image": [*images(5), None, *images(1)], "label": list(range(7))}
    path = write_table(tmp_path / "a.parquet", columns)
    rows = list(ParquetShards(path).read_shard("a.parquet", 3))
    assert [cursor for _, cursor in rows] == [4, 5, 6, 7]
    bad = rows[2][0]
    assert isinstance(bad, ValueError)
    assert "row group 1, row 5': the image in column 'image' is null" in str(bad)
    assert rows[3][0].target == 6


def test_storage_that_fails_keeps_its_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        read(ParquetShards(folder / "absent.parquet"), "absent.parquet")
    rows = ParquetShards(folder / "*.parquet").read_shard("0.parquet", 0)
    assert [next(rows)[1] for _ in range(4)] == [1, 2, 3, 4]
    break_storage(monkeypatch)
    with pytest.raises(OSError, match="lost") as caught:
        next(rows)
    assert caught.value.errno == errno.EIO
