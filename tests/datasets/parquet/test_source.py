"""ParquetSource: rows of Parquet files by index."""

from __future__ import annotations

import errno
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
from tests.datasets.storage.processes import open_descriptors

COUNTS = (7, 0, 5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files in row groups of 4, one file without rows."""
    first = 0
    struct = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    meta = pyarrow.struct([("score", pyarrow.float64())])
    for number, count in enumerate(COUNTS):
        rows = range(first, first + count)
        columns = {
            "image": pyarrow.array(hub_images(count, first), struct),
            "label": pyarrow.array(rows, pyarrow.int64()),
            "text": pyarrow.array([f"text {i}" for i in rows], pyarrow.string()),
            "meta": pyarrow.array([{"score": i / 2} for i in rows], meta),
        }
        write_table(tmp_path / f"train-{number}.parquet", columns)
        first += count
    return tmp_path


def test_rows_of_several_files_are_one_sequence(folder: Path) -> None:
    """Including a file without rows. No descriptor stays open."""
    source = ParquetSource(folder / "train-*.parquet")
    before = open_descriptors()
    assert items(source) == list(zip(images(12), range(12), strict=True))
    assert open_descriptors() == before
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


def test_the_target_is_what_was_asked_for(folder: Path) -> None:
    for target, expected in (
        (None, 9),
        ("label", 9),
        ("text", "text 9"),
        (["label"], (9,)),
        ({"y": "label", "score": "meta.score"}, {"y": 9, "score": 4.5}),
        ("meta", {"score": 4.5}),
    ):
        found = ParquetSource(folder / "train-*.parquet", target=target)[9][1]
        assert found == expected
        assert same(found, expected)


@pytest.mark.parametrize(
    ("kind", "compression"),
    [("binary", "none"), ("large_binary", "snappy"), ("binary_view", "zstd"), ("binary", "gzip")],
)
def test_any_column_of_bytes_is_an_image(tmp_path: Path, kind: str, compression: str) -> None:
    """All lengths are kept: decoders decide about empty images."""
    rows = [bytes(range(length)) for length in range(64)]
    columns = {"jpeg": pyarrow.array(rows).cast(getattr(pyarrow, kind)())}
    path = write_table(tmp_path / "a.parquet", columns, 7, compression=compression)
    source = ParquetSource(path, image="jpeg", target=None)
    assert items(source) == list(zip(rows, range(64), strict=True))


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
    ("arguments", "error", "text"),
    [
        (
            {"image": "jpeg"},
            ValueError,
            r"no column 'jpeg'.*image= .*: image \(struct.*label \(int64",
        ),
        ({"target": "class"}, ValueError, r"no column 'class'.*target= "),
        ({"target": ["label", "meta.x"]}, ValueError, r"no column 'meta\.x'"),
        ({"target": "label.x"}, ValueError, r"no column 'label\.x'"),
        ({"image": "text"}, ValueError, r"'text' is of type string; an image is bytes"),
        ({"image": "meta"}, ValueError, r"'meta' is of type struct.*an image is bytes"),
        *(({"target": target}, TypeError, "target =") for target in (7, [7], {"a": 7})),
        ({"image": 7}, TypeError, "image = 7"),
        ({"cache_bytes": -1}, ValueError, "cache_bytes = -1"),
    ],
)
def test_arguments_that_fit_no_column_are_named(
    folder: Path, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ParquetSource(folder / "train-*.parquet", **arguments)


def test_no_rows_at_all_and_missing_files_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"train-1\.parquet"):
        ParquetSource(folder / "train-1.parquet")
    with pytest.raises(FileNotFoundError, match=r"absent\.parquet"):
        ParquetSource(folder / "absent.parquet")
    (folder / "train-1.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-1\.parquet'.*Parquet"):
        ParquetSource(folder / "train-*.parquet")


def test_the_fingerprint_depends_on_content(folder: Path) -> None:
    targets = ("label", "text", ("label", "text"), {"label": "text"}, None)

    def fingerprint(paths: str = "train-*.parquet", target: Any = "label") -> str:
        return ParquetSource(folder / paths, target=target).fingerprint()

    seen = {fingerprint(target=target) for target in targets} | {fingerprint("train-0.parquet")}
    path = folder / "train-2.parquet"
    table = pyarrow.parquet.read_table(path)
    labels = pyarrow.array([7, 8, 9, 10, 99])
    changed = table.set_column(table.schema.get_field_index("label"), "label", labels)
    pyarrow.parquet.write_table(changed, path, row_group_size=4)
    seen.add(fingerprint())
    path.rename(folder / "train-3.parquet")
    seen.add(fingerprint())
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
        found = list(pool.map(lambda i: source[i % 12], range(240)))
    assert [(data.numpy().tobytes(), target) for data, target in found] == expected * 20
    assert len(decoded) == 4
