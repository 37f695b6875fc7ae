"""Footers and row groups of Parquet files, whole and damaged."""

from __future__ import annotations

import errno
import io
import sys
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.parquet.files import (
    Footer,
    decoding,
    iterate_rows,
    read_footer,
    read_footers,
    read_row_group,
)
from stateful_gpu_loader.errors import MissingDependency
from tests.datasets.parquet.parquet_files import hub_images, images, write_table
from tests.datasets.storage.reads import break_storage, recorded_reads

ROWS = 11


@pytest.fixture
def path(tmp_path: Path) -> str:
    columns = {"image": hub_images(ROWS), "label": list(range(ROWS))}
    return write_table(tmp_path / "a.parquet", columns, write_page_checksum=True)


def labels(footer: Footer, start: int = 0) -> list[int]:
    return [
        label
        for _, _, batch in iterate_rows(footer, start, ["label"])
        for label in batch.column("label").to_pylist()
    ]


def test_a_footer_counts_rows_without_reading_data(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a terabyte costs reads of file ends only."""
    with open(path, "rb") as file:
        content = file.read()
    big = Path(path).with_name("big.parquet")
    big.write_bytes(content[:4] + bytes(1 << 20) + content[4:])
    read = recorded_reads(monkeypatch)
    assert read_footer(str(big)).row_groups == (4, 4, 3)
    assert sum(size for _, size in read) <= 1 << 16
    assert read_footer(path).num_rows == ROWS


def test_a_long_footer_is_read_whole(tmp_path: Path) -> None:
    path = write_table(tmp_path / "wide.parquet", {f"c{i}": [i] for i in range(600)})
    footer = read_footer(path)
    assert footer.metadata.serialized_size > 1 << 16
    assert footer.num_rows == 1
    assert read_row_group(footer, 0, ["c17"]).to_pydict() == {"c17": [17]}


def test_only_the_columns_asked_for_are_read_and_at_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group by URL is one request."""
    footer, whole = read_footer(path), pyarrow.parquet.ParquetFile(path)
    read = recorded_reads(monkeypatch)
    table = read_row_group(footer, 1, ["image.bytes"])
    assert table.to_pylist() == [{"image": {"bytes": data}} for data in images(4, 4)]
    assert read_row_group(footer, 2, None) == whole.read_row_group(2)
    read_row_group(footer, 0, ["image", "label"])
    assert len(read) == 3


def test_rows_are_read_from_any_row_on(path: str) -> None:
    footer = read_footer(path)
    for start in range(ROWS + 1):
        assert labels(footer, start) == list(range(start, ROWS))
        firsts = [first for first, _, _ in iterate_rows(footer, start, ["label"])]
        assert firsts == sorted({start, *(first for first in (4, 8) if first > start)} - {ROWS})


def test_rows_are_decoded_a_few_at_a_time(tmp_path: Path) -> None:
    """A row group of 20 MB is never decoded as a whole."""
    columns = {"image": [bytes(1 << 20)] * 20}
    path = write_table(
        tmp_path / "a.parquet", columns, 20, compression="none", use_dictionary=False
    )
    sizes = [batch.num_rows for _, _, batch in iterate_rows(read_footer(path), 0, ["image"])]
    assert sum(sizes) == 20
    assert max(sizes) <= 8


def test_every_truncation_is_named(path: str) -> None:
    content = Path(path).read_bytes()
    for size in range(len(content)):
        Path(path).write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"a\.parquet'"):
            read_footer(path)


def test_what_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    for end, text in (
        (b"", r"byte 96.*b'xxxx'.*Parquet"),
        ((1000).to_bytes(4, "little") + b"PAR1", r"1000.*108"),
        ((90).to_bytes(4, "little") + b"PAR1", "byte 10: its footer cannot be decoded"),
        ((90).to_bytes(4, "little") + b"PARE", "encrypted"),
    ):
        file.write_bytes(b"x" * 100 + end)
        with pytest.raises(ValueError, match=text):
            read_footer(str(file))
    with pytest.raises(FileNotFoundError):
        read_footer(str(tmp_path / "absent.parquet"))


def test_a_damaged_row_group_is_named_and_the_others_are_read(path: str) -> None:
    """The page's checksum is compared if the writer left one."""
    footer = read_footer(path)
    column = footer.metadata.row_group(1).column(0)
    content = bytearray(Path(path).read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size - 3] ^= 1
    Path(path).write_bytes(content)
    assert read_row_group(footer, 0, ["label"]).num_rows == 4
    for columns in (["image"], None):
        with pytest.raises(ValueError, match="'row group 1'"):
            read_row_group(footer, 1, columns)
    assert read_row_group(footer, 2, None).num_rows == 3
    rows = iterate_rows(footer, 0, ["image.bytes"])
    assert next(rows)[:2] == (0, 0)
    with pytest.raises(ValueError, match=r"a\.parquet'.*'row group 1'"):
        next(rows)


def test_a_damaged_footer_is_refused_or_read(path: str) -> None:
    """Changed anywhere, it does not end the process, as pyarrow's metadata would."""
    content = Path(path).read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    reasons = []
    for at in range(len(content) - 8 - length, len(content) - 8, 2):
        Path(path).write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        try:
            footer = read_footer(path)
            list(iterate_rows(footer, 0, ["label"]))
            read_row_group(footer, 0, None)
        except ValueError as error:
            reasons.append(str(error))
    assert any("histogram size mismatch" in reason for reason in reasons)
    assert all("Remedy: fetch" in reason for reason in reasons)


def test_a_want_of_memory_names_the_file_and_is_no_damage() -> None:
    with (
        pytest.raises(MemoryError, match=r"'a'.*'row group 1': .* size 7"),
        decoding("a", "row group 1", "a column"),
    ):
        raise pyarrow.ArrowMemoryError("malloc of size 7 failed")


def test_storage_that_fails_keeps_its_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection is retried, and makes no sample bad."""
    footer = read_footer(path)
    break_storage(monkeypatch)
    for read in (lambda: read_row_group(footer, 0, None), lambda: labels(footer)):
        with pytest.raises(OSError, match="lost") as caught:
            read()
        assert caught.value.errno == errno.EIO


def test_urls_are_read(path: str) -> None:
    fsspec.filesystem("memory").pipe("/a.parquet", Path(path).read_bytes())
    local = read_footer(path)
    for footer in read_footers([f"file://{path}", "memory://a.parquet"]):
        assert footer.digest == local.digest
        assert read_row_group(footer, 1, None) == read_row_group(local, 1, None)
        assert labels(footer, 5) == list(range(5, ROWS))


def test_the_package_is_asked_for_where_it_is_missing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"stateful_gpu_loader\[parquet\]"):
        read_footer(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_changed_bytes_give_a_named_error_or_rows(tmp_path: Path, data: st.DataObject) -> None:
    """With checksums of pages: no changed value is ever delivered."""
    buffer = io.BytesIO()
    table = pyarrow.table({"image": images(ROWS), "label": list(range(ROWS))})
    pyarrow.parquet.write_table(table, buffer, row_group_size=4, write_page_checksum=True)
    content = bytearray(buffer.getvalue())
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    footer = read_footer(str(path))
    end = len(content) - footer.metadata.serialized_size - 8
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(4, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    for number in range(3):
        try:
            found = read_row_group(footer, number, ["image", "label"])
        except ValueError:
            continue
        assert found.to_pylist() == table.slice(4 * number, 4).to_pylist()
