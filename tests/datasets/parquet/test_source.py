"""ParquetSource: rows of Parquet files by index."""

from __future__ import annotations

import errno
import io
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from stateful_gpu_loader.datasets.parquet import source as module
from stateful_gpu_loader.datasets.parquet.source import ParquetSource
from tests.conformance import same
from tests.datasets.parquet.parquet_files import hub_images, images, write_table
from tests.datasets.source_conformance import items

COUNTS = (7, 0, 5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files in row groups of 4, one file without rows."""
    first = 0
    for number, count in enumerate(COUNTS):
        columns = {
            "image": pyarrow.array(hub_images(count, first), pyarrow.struct([HUB_BYTES, HUB_PATH])),
            "label": pyarrow.array(range(first, first + count), pyarrow.int64()),
            "text": pyarrow.array([f"text {i}" for i in range(first, first + count)]).cast(
                "string"
            ),
            "meta": pyarrow.array(
                [{"score": i / 2} for i in range(first, first + count)],
                pyarrow.struct([("score", pyarrow.float64())]),
            ),
        }
        write_table(tmp_path / f"train-{number}.parquet", columns)
        first += count
    return tmp_path


HUB_BYTES, HUB_PATH = ("bytes", pyarrow.binary()), ("path", pyarrow.string())


def test_rows_of_several_files_are_one_sequence(folder: Path) -> None:
    """Including a file without rows."""
    source = ParquetSource(folder / "train-*.parquet")
    assert items(source) == list(zip(images(12), range(12), strict=True))
    assert len(source) == 12
    assert source.block_lengths().tolist() == [4, 3, 4, 1]
    assert source.read(8).name == f"{folder / 'train-2.parquet'}, row 1"
    backwards = ParquetSource([folder / "train-2.parquet", folder / "train-0.parquet"])
    assert [target for _, target in items(backwards)] == [*range(7, 12), *range(7)]


def test_samples_agree_with_pyarrow(folder: Path) -> None:
    """Sample for sample, in every order."""
    paths = [str(folder / f"train-{number}.parquet") for number in range(3)]
    rows = [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]
    source = ParquetSource(paths, target=("label", "text", "meta.score"))
    for index in np.random.default_rng(0).permutation(len(rows)).tolist():
        row, (data, target) = rows[index], source[index]
        assert data.numpy().tobytes() == row["image"]["bytes"]
        assert target == (row["label"], row["text"], row["meta"]["score"])
        assert source.record(index) == row


def test_a_record_with_a_time_that_python_lacks_is_named(tmp_path: Path) -> None:
    times = pyarrow.array([0, 1 << 60], pyarrow.timestamp("us"))
    path = write_table(tmp_path / "a.parquet", {"image": images(2), "when": times})
    source = ParquetSource(path, target="when")
    assert source.record(0)["when"].year == 1970
    assert source[1][1] == 1 << 60
    with pytest.raises(ValueError, match=r"a\.parquet'.*'row group 0, row 1'"):
        source.record(1)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, 9),
        ("label", 9),
        ("text", "text 9"),
        (["label"], (9,)),
        ({"y": "label", "score": "meta.score"}, {"y": 9, "score": 4.5}),
        ("meta", {"score": 4.5}),
    ],
)
def test_the_target_is_what_was_asked_for(folder: Path, target: Any, expected: Any) -> None:
    source = ParquetSource(folder / "train-*.parquet", target=target)
    assert source[9][1] == expected
    assert same(source[9][1], expected)


@pytest.mark.parametrize("kind", ["binary", "large_binary", "binary_view"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_any_column_of_bytes_is_an_image(tmp_path: Path, kind: str, compression: str) -> None:
    column = pyarrow.array(images(6)).cast(getattr(pyarrow, kind)())
    path = write_table(tmp_path / "a.parquet", {"jpeg": column}, compression=compression)
    source = ParquetSource(path, image="jpeg", target=None)
    assert items(source) == list(zip(images(6), range(6), strict=True))


def test_an_image_inside_structs_is_found_by_its_name(tmp_path: Path) -> None:
    rows = [{"thumb": {"bytes": data, "path": None}, "raw": data * 2} for data in images(3)]
    columns = {"photo": rows, "photo.raw.copy": images(3), "label": [1, 2, 3]}
    path = write_table(tmp_path / "a.parquet", columns)
    assert [data for data, _ in items(ParquetSource(path, image="photo.thumb"))] == images(3)
    assert [data for data, _ in items(ParquetSource(path, image="photo.raw.copy"))] == images(3)
    doubled = [data for data, _ in items(ParquetSource(path, image="photo.raw"))]
    assert doubled == [data * 2 for data in images(3)]


def test_files_that_rows_name_are_read_from_beside(tmp_path: Path) -> None:
    """Like datasets of the Hugging Face hub before their images are embedded."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"beside")
    paths = ["photos/a.jpg", str(tmp_path / "photos" / "a.jpg"), "memory://far.jpg", "absent.jpg"]
    fsspec.filesystem("memory").pipe("/far.jpg", b"far")
    rows = [{"bytes": None, "path": path} for path in paths]
    rows.append({"bytes": b"within", "path": "photos/a.jpg"})
    path = write_table(tmp_path / "a.parquet", {"image": rows, "label": list(range(5))})
    source = ParquetSource(path)
    read = [source[index][0].numpy().tobytes() for index in (0, 1, 2, 4)]
    assert read == [b"beside", b"beside", b"far", b"within"]
    with pytest.raises(FileNotFoundError, match=r"index = 3.*absent\.jpg"):
        source[3]


def test_nulls_are_named(tmp_path: Path) -> None:
    """A row without an image is a bad sample; its neighbours are good."""
    rows = [*hub_images(5), {"bytes": None, "path": None}, None]
    columns = {"image": rows, "label": [*range(6), None], "jpeg": [*images(6), None]}
    path = write_table(tmp_path / "a.parquet", columns)
    source = ParquetSource(path)
    for index in (5, 6):
        text = rf"a\.parquet', record 'row group 1, row {index}': the image in column 'image'"
        with pytest.raises(ValueError, match=f"{text}"):
            source[index]
    source = ParquetSource(path, image="jpeg")
    assert source[5][1] == 5
    with pytest.raises(ValueError, match=r"row 6'.*'jpeg'.*null"):
        source[6]
    source = ParquetSource(path, image="jpeg", target={"y": "label"})
    with pytest.raises(ValueError, match="row 6'"):
        source[6]
    columns["label"] = [None, *range(6)]
    source = ParquetSource(write_table(tmp_path / "b.parquet", columns))
    text = r"row group 0, row 0': the value in column 'label'.* null"
    with pytest.raises(ValueError, match=text):
        source[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"image": "jpeg"}, r"no column 'jpeg'.*image= .*: image \(struct.*label \(int64\)"),
        ({"target": "class"}, r"no column 'class'.*target= "),
        ({"target": ["label", "meta.x"]}, r"no column 'meta\.x'"),
        ({"target": "label.x"}, r"no column 'label\.x'"),
        ({"image": "text"}, r"'text' is of type string, and an image is bytes"),
        ({"image": "meta"}, r"'meta' is of type struct.*an image is bytes"),
    ],
)
def test_columns_that_are_not_there_are_named(
    folder: Path, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        ParquetSource(folder / "train-*.parquet", **arguments)


def test_arguments_of_another_kind_are_refused(folder: Path) -> None:
    paths = folder / "train-*.parquet"
    for target in (7, [7], {"a": 7}):
        with pytest.raises(TypeError, match="target ="):
            ParquetSource(paths, target=target)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="image = 7"):
        ParquetSource(paths, image=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cache_bytes = -1"):
        ParquetSource(paths, cache_bytes=-1)


def test_no_rows_at_all_and_missing_files_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"train-1\.parquet"):
        ParquetSource(folder / "train-1.parquet")
    with pytest.raises(FileNotFoundError, match=r"absent\.parquet"):
        ParquetSource(folder / "absent.parquet")
    (folder / "train-1.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-1\.parquet'.*Parquet"):
        ParquetSource(folder / "train-*.parquet")


def test_the_fingerprint_depends_on_content(folder: Path) -> None:
    seen = {ParquetSource(folder / "train-*.parquet").fingerprint()}
    for change in (
        {"target": "text"},
        {"target": ("label", "text")},
        {"target": {"label": "text"}},
        {"target": None},
    ):
        seen.add(ParquetSource(folder / "train-*.parquet", **change).fingerprint())
    seen.add(ParquetSource(folder / "train-0.parquet").fingerprint())
    path = folder / "train-2.parquet"
    table = pyarrow.parquet.read_table(path)
    labels = pyarrow.array([7, 8, 9, 10, 99])
    changed = table.set_column(table.schema.get_field_index("label"), "label", labels)
    pyarrow.parquet.write_table(changed, path, row_group_size=4)
    seen.add(ParquetSource(folder / "train-*.parquet").fingerprint())
    path.rename(folder / "train-3.parquet")
    seen.add(ParquetSource(folder / "train-*.parquet").fingerprint())
    assert len(seen) == 8


def test_a_file_that_was_replaced_is_noticed(folder: Path) -> None:
    """Another file is no bad sample: a policy might drop all its samples."""
    source = ParquetSource(folder / "train-*.parquet", cache_bytes=0)
    fresh = pickle.loads(pickle.dumps(source))
    assert source[0][1] == 0
    path = folder / "train-2.parquet"
    assert source[8][1] == 8
    os.utime(path, (1, 1))
    assert source[7][1] == 7, "the same content, written anew"
    shutil.copy(folder / "train-0.parquet", path)
    for reader in (source, fresh):
        with pytest.raises(OSError, match=r"train-2\.parquet") as caught:
            reader[11]
        assert caught.value.errno == errno.ESTALE
        assert reader[1][1] == 1
    content = path.read_bytes()
    for cut in (content[:-1], content[: len(content) // 2], b""):
        path.write_bytes(cut)
        with pytest.raises(OSError, match="changed since it was indexed"):
            fresh[11]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"index = 11.*train-2"):
        fresh[11]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Decoded row groups, in order."""
    decoded: list[int] = []
    original = module.read_row_group

    def read(footer: Any, number: int, columns: Any) -> Any:
        decoded.append(number)
        return original(footer, number, columns)

    monkeypatch.setattr(module, "read_row_group", read)
    return decoded


def test_row_groups_are_kept_within_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = counted(monkeypatch)
    source = ParquetSource(folder / "train-0.parquet")
    for index in (0, 6, 3, 4, 2):
        source.read(index)
    assert decoded == [0, 1]
    source = ParquetSource(folder / "train-0.parquet", cache_bytes=0)
    decoded.clear()
    for index in (0, 3, 4, 6, 2):
        source.read(index)
    assert decoded == [0, 1, 0]


def test_threads_read_each_row_group_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = counted(monkeypatch)
    source = ParquetSource(folder / "train-*.parquet")
    expected = list(zip(images(12), range(12), strict=True))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: source[i % 12], range(480)))
    assert [(data.numpy().tobytes(), target) for data, target in found] == expected * 40
    assert len(decoded) == 4


def test_no_descriptor_stays_open(folder: Path) -> None:
    source = ParquetSource(folder / "train-*.parquet")
    before = os.listdir("/proc/self/fd")
    items(source)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_every_length_of_a_row_is_kept(tmp_path: Path) -> None:
    """Decoders decide about empty images."""
    rows = [bytes(range(length)) for length in range(64)]
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"image": rows}), buffer, row_group_size=7)
    (tmp_path / "a.parquet").write_bytes(buffer.getvalue())
    source = ParquetSource(tmp_path / "a.parquet", target=None)
    assert [data for data, _ in items(source)] == rows
