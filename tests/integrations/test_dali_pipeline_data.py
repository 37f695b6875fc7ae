"""Data that a state of a DALI pipeline belongs to: moved data is the same, other data is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.dali import DALILoader
from stateful_gpu_loader.integrations.dali_pipeline.description import SMALL, Operator, contents_of
from tests.conformance import copy_of, differing, same
from tests.integrations.dali_readers import (
    READERS,
    Arguments,
    after_two_batches,
    assert_refused,
    loader,
    numbers,
)

pytest.importorskip("nvidia.dali")


def test_files_that_no_reader_reads_do_not_count(
    tmp_path: Path, datasets: dict[str, Arguments]
) -> None:
    root = tmp_path / "images"
    shutil.copytree(datasets["coco"]["file_root"], root)
    reading = {**datasets["coco"], "file_root": str(root)}
    state = after_two_batches(loader(numbers(), "coco", reading))
    (root / "readme.txt").touch()
    loader(numbers(), "coco", reading).load_state_dict(state)


@pytest.mark.dali
@pytest.mark.parametrize(
    ("added", "reading", "is_read"),
    [
        (".DS_Store", {}, False),
        ("photos/Thumbs.db", {}, False),
        ("photos/folder.jpg/0.jpg", {}, False),
        ("photos/0.jpg.part", {}, False),
        ("photos/0.png", {"file_filters": ["*.jpg"]}, False),
        ("photos/0.JPG", {"file_filters": "*.jpg", "case_sensitive_filter": True}, False),
        ("other/0.jpg", {"dir_filters": ["p*"]}, False),
        ("photos/._0.jpg", {}, True),
        ("photos/0.WEBP", {}, True),
        (".hidden/0.jpg", {}, True),
        ("photos/.DS_Store", {"file_filters": ["*"]}, True),
        ("photos/0.jpg", {"file_filters": ["[^a].jpg", "*_*"]}, True),
    ],
)
def test_the_files_that_count_are_those_that_dali_reads(
    tmp_path: Path, datasets: dict[str, Arguments], added: str, reading: Arguments, is_read: bool
) -> None:
    """A stray file would prevent every resume. DALI reads hidden files, too."""
    from nvidia.dali import fn, pipeline_def

    root = _photographs(tmp_path, datasets)
    reading = {"file_root": str(root), **reading}

    def of_dali() -> int:
        made = pipeline_def(lambda: tuple(fn.readers.file(**reading)))
        pipeline = made(batch_size=1, num_threads=1, device_id=None)
        pipeline.build()
        (meta,) = pipeline.reader_meta().values()
        return int(meta["epoch_size"])

    def of_ours() -> dict[str, str]:
        return contents_of(Operator("reader", "readers.File", (), reading))

    before = of_dali(), of_ours()
    (root / added).parent.mkdir(exist_ok=True)
    shutil.copy(next(root.glob("photos/*.jpg")), root / added)
    assert of_dali() - before[0] == is_read
    assert (of_ours() != before[1]) == is_read


def test_an_empty_folder_counts(tmp_path: Path) -> None:
    """DALI counts it in its labels."""
    reader = Operator("reader", "readers.File", (), {"file_root": str(tmp_path)})
    before = contents_of(reader)
    (tmp_path / "empty").mkdir()
    assert contents_of(reader) != before


def test_a_folder_of_arrays_is_those_that_fit_the_filter(tmp_path: Path) -> None:
    def found(**reading: str) -> str:
        arguments = {"file_root": str(tmp_path), **reading}
        return contents_of(Operator("reader", "readers.Numpy", (), arguments))["file_root"]

    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.npy").touch()
    before, others = found(), found(file_filter="*.bin")
    for name in ("b.NPY", "b.txt", "class/b.txt"):
        (tmp_path / name).touch()
    assert found() == before
    assert found(file_filter="*.bin") == others
    for name in ("b.npy", "class/b.npy"):
        (tmp_path / name).touch()
        assert found() != before
        before = found()


def test_other_data_of_the_same_length_may_be_accepted(
    tmp_path: Path,
    datasets: dict[str, Arguments],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By name, with a warning. More data is refused, because positions are then other samples."""
    root = _photographs(tmp_path, datasets)
    reading = {"file_root": str(root)}
    run = loader(numbers(), "file", reading)
    state = after_two_batches(run)
    rest = [copy_of(batch) for batch in run]
    first = min(root.glob("photos/*.jpg"))
    first.rename(first.with_stem("+"))
    resumed = loader(numbers(), "file", reading)
    with pytest.raises(StateMismatch, match=r"accept=\{'reader\.file_root'\}"):
        resumed.load_state_dict(state)
    resumed.load_state_dict(state, accept={"reader.file_root"})
    assert "accepted another reader.file_root: '11 files" in caplog.text
    assert same(list(resumed), rest)
    shutil.copy(next(root.glob("photos/*.jpg")), root / "photos" / "more.jpg")
    with pytest.raises(StateMismatch, check=differing("reader.epoch_size")):
        loader(numbers(), "file", reading).load_state_dict(state, accept={"reader.file_root"})


def test_large_files_count_by_their_sizes(tmp_path: Path) -> None:
    path = tmp_path / "images.rec"
    found = []
    for content in (
        b"a" * SMALL,
        b"b" * SMALL,
        b"a" * (SMALL + 1),
        b"b" * (SMALL + 1),
        b"a" * 2**21,
    ):
        path.write_bytes(content)
        found.append(contents_of(Operator("reader", "readers.MXNet", (), {"path": str(path)})))
    assert found[0] != found[1]
    assert found[2] == found[3] != found[4]


def test_other_files_of_the_same_number_are_refused(datasets: dict[str, Arguments]) -> None:
    files = datasets["file"]["files"]
    state = after_two_batches(loader(numbers(), "file", datasets["file"]))
    assert_refused(
        loader(numbers(), "file", {**datasets["file"], "files": files[::-1]}), state, "reader.files"
    )


@pytest.mark.parametrize("reader", ["file", "numpy"])
def test_a_renamed_file_is_refused(
    tmp_path: Path, datasets: dict[str, Arguments], reader: str
) -> None:
    """The order of a folder is that of its names; the number of files is unchanged."""
    if reader == "file":
        original = Path(datasets["file"]["files"][0]).parents[1]
    else:
        original = Path(datasets["numpy"]["file_root"])
    root = tmp_path / "moved"
    shutil.copytree(original, root)
    state = after_two_batches(loader(numbers(), reader, {"file_root": str(original)}))
    moved = loader(numbers(), reader, {"file_root": str(root)})
    moved.load_state_dict(state)
    some = next(path for path in sorted(root.rglob("*")) if path.is_file())
    some.rename(some.with_stem("zzz"))
    assert_refused(loader(numbers(), reader, {"file_root": str(root)}), state, "reader.file_root")


def test_another_list_in_a_file_is_refused(tmp_path: Path, datasets: dict[str, Arguments]) -> None:
    files = datasets["file"]["files"]
    file = tmp_path / "list.txt"

    def listed(order: list[str]) -> DALILoader:
        file.write_text("".join(f"{name} {files.index(name)}\n" for name in order))
        reading = {"file_list": str(file), "file_root": "/"}
        return loader(numbers(), "file", reading)

    state = after_two_batches(listed(files))
    listed(files).load_state_dict(state)
    assert_refused(listed(files[::-1]), state, "reader.file_list")


@pytest.mark.dali
@pytest.mark.parametrize("reader", sorted(set(READERS) - {"file", "numpy"}))
def test_other_data_at_the_same_path_is_refused(
    tmp_path: Path, datasets: dict[str, Arguments], reader: str
) -> None:
    """By the sizes and small contents of files. Moved data is the same data."""
    moved = tmp_path / "moved"
    shutil.copytree(_root(datasets), moved)
    arguments = {
        name: _replaced(value, str(_root(datasets)), str(moved))
        for name, value in datasets[reader].items()
    }
    state = after_two_batches(loader(numbers(), reader, datasets[reader]))
    loader(numbers(), reader, arguments).load_state_dict(state)
    name = {"coco": "annotations_file", "webdataset": "paths"}.get(reader, "path")
    changed = arguments[name] if isinstance(arguments[name], str) else arguments[name][0]
    path = Path(changed)
    if path.is_dir():
        path /= "data.mdb"
    # After its end, where no reader looks.
    path.write_bytes(path.read_bytes() + (b" " if reader == "coco" else bytes(1024)))
    with pytest.raises(StateMismatch, check=differing(f"reader.{name}")):
        loader(numbers(), reader, arguments).load_state_dict(state)


def _photographs(folder: Path, datasets: dict[str, Arguments]) -> Path:
    """Write a class folder of copies."""
    root = folder / "root"
    shutil.copytree(Path(datasets["file"]["files"][0]).parent, root / "photos")
    return root


def _root(datasets: dict[str, Arguments]) -> Path:
    return Path(datasets["caffe"]["path"]).parent


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    return value.replace(old, new) if isinstance(value, str) else value
