"""save, load and keep: which file is loaded, which are passed over, and which are removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.checkpoint import Checkpoint, document
from stateful_gpu_loader.errors import CheckpointError, CheckpointNotFound, LoaderError
from tests.checkpoint.counters import PATTERN, Counter, collected, fill, loaded
from tests.checkpoint.test_document_damage import forged


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_foreign(path: Path) -> None:
    path.write_text('{"version": 2, "states": {}}')


def write_in_future(path: Path) -> None:
    path.write_bytes(forged('"anything": 1', version=99))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "missing")


def make_enormous(path: Path) -> None:
    os.truncate(path, 1 << 40)


def make_enormous_and_foreign(path: Path) -> None:
    path.write_text("{")
    make_enormous(path)


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "truncated: 9 bytes are missing"),
    (flip, "altered: its checksum does not fit"),
    (empty, "empty"),
    (make_foreign, "not a checkpoint of stateful_gpu_loader: JSON of another format"),
    (write_in_future, "of version 99"),
    (make_folder, "is not a regular file"),
    (make_pipe, "is not a regular file"),
    (make_dangling, "there is no file"),
    (make_enormous, "bytes follow its end"),
    (make_enormous_and_foreign, "not a checkpoint of stateful_gpu_loader"),
]


def test_files_are_numbered_from_zero_and_the_newest_is_loaded(tmp_path: Path) -> None:
    files = fill(tmp_path / "new" / "folder", 5, 6, 7)
    assert [file.name for file in files] == ["run_0000.json", "run_0001.json", "run_0002.json"]
    checkpoint = Checkpoint()
    assert checkpoint.load(tmp_path / "new" / "folder" / PATTERN) == str(files[2])
    assert checkpoint.get_state("counter")["count"] == 7
    assert [loaded(file) for file in files] == [5, 6, 7]


def test_numbers_continue_after_the_highest_and_fill_no_gap(tmp_path: Path) -> None:
    files = fill(tmp_path, 1, 2, 3)
    files[0].unlink()
    empty(files[2])
    (tmp_path / "run_0007.json").write_text("taken")
    (tmp_path / "run_9.json").write_text("of another pattern")
    assert fill(tmp_path, 4)[0].name == "run_0008.json"


def test_numbers_grow_beyond_their_width(tmp_path: Path) -> None:
    (tmp_path / "run_9999.json").touch()
    assert fill(tmp_path, 4)[0].name == "run_10000.json"
    assert loaded(tmp_path / PATTERN) == 4


def test_path_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert collected(counter=3).save(PATTERN) == "run_0000.json"
    assert collected(counter=4).save("last.json") == "last.json"
    assert loaded(PATTERN) == 3
    assert loaded("last.json") == 4
    collected(counter=5).save(PATTERN, keep=1)
    assert sorted(os.listdir()) == ["last.json", "run_0001.json"]


@pytest.mark.parametrize(
    ("damage", "reason"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES]
)
def test_a_damaged_file_is_refused_passed_over_and_not_counted(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    """The error has its name and the reason; the checkpoint is unchanged, its number taken."""
    files = fill(tmp_path, 0, 1, 2, 3)
    damage(files[3])
    checkpoint = collected(counter=9)
    with pytest.raises(CheckpointError, match=reason) as caught:
        checkpoint.load(files[3])
    assert str(files[3]) in str(caught.value)
    assert "Remedy: " in str(caught.value)
    assert checkpoint.get_state("counter")["count"] == 9
    assert checkpoint.is_complete
    assert not checkpoint.is_loaded

    with pytest.warns(UserWarning, match=reason) as warned:
        assert checkpoint.load(tmp_path / PATTERN) == str(files[2])
    assert len(warned) == 1
    assert str(warned[0].message).startswith(f"{files[3]} is passed over for {files[2]}: ")
    assert warned[0].filename == __file__
    assert checkpoint.get_state("counter")["count"] == 2

    assert collected(counter=4).save(tmp_path / PATTERN, keep=2) == str(tmp_path / "run_0004.json")
    assert files[2].exists(), "the newest two whole ones stay"
    assert os.path.lexists(files[3])
    assert not files[1].exists()
    assert not files[0].exists()


def test_all_damaged_files_are_listed_where_none_is_whole(tmp_path: Path) -> None:
    files = fill(tmp_path, *range(len(DAMAGES)))
    for file, (damage, _) in zip(files, DAMAGES, strict=True):
        damage(file)
    checkpoint = Checkpoint()
    with pytest.raises(CheckpointError, match=r"\b10\b") as caught:
        checkpoint.load(tmp_path / PATTERN)
    assert not isinstance(caught.value, FileNotFoundError)
    for file, (_, reason) in zip(files, DAMAGES, strict=True):
        assert any(
            str(file) in line and reason in line for line in str(caught.value).splitlines()
        ), reason
    assert not checkpoint.is_loaded


@pytest.mark.parametrize("path", [PATTERN, "last.json", f"missing/{PATTERN}", "missing/last.json"])
def test_no_file_at_all_is_file_not_found(tmp_path: Path, path: str) -> None:
    """A first run can begin without a file."""
    (tmp_path / "run_12.json").write_text("of another pattern")
    with pytest.raises(FileNotFoundError, match="Remedy: ") as caught:
        Checkpoint().load(tmp_path / path)
    assert type(caught.value) is CheckpointNotFound
    assert isinstance(caught.value, LoaderError)
    assert str(tmp_path / path) in str(caught.value)


def test_unreadable_file_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fill(tmp_path, 1, 2)
    original = open

    def refuse(path: Any, *given: Any, **named: Any) -> Any:
        if str(path) == str(files[1]):
            raise PermissionError(13, "Permission denied", path)
        return original(path, *given, **named)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.warns(UserWarning, match="Permission denied"):
        assert loaded(tmp_path / PATTERN) == 1


def test_keep_removes_older_files_than_the_newest(tmp_path: Path) -> None:
    checkpoint, counter = Checkpoint(), Counter()
    checkpoint.register(counter, "counter")
    others = [tmp_path / name for name in ("run_9.json", "run_0001.txt", "x_0001.json")]
    for other in others:
        other.write_text('{"format": "stateful_gpu_loader checkpoint"')
    for count in range(5):
        counter.count = count
        checkpoint.collect()
        checkpoint.save(tmp_path / PATTERN, keep=2)
        found = set(os.listdir(tmp_path)) - {other.name for other in others}
        assert found == {f"run_{n:04d}.json" for n in (count - 1, count) if n >= 0}
    assert all(other.exists() for other in others)


def test_keep_notices_damage_to_files_it_wrote_itself(tmp_path: Path) -> None:
    checkpoint = collected(counter=1)
    files = [Path(checkpoint.save(tmp_path / PATTERN, keep=2)) for _ in range(2)]
    flip(files[1])
    os.utime(files[1])
    checkpoint.save(tmp_path / PATTERN, keep=2)
    assert files[0].exists()


def test_keep_reads_no_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 1, 2)
    checkpoint = collected(counter=3)
    read: list[Any] = []
    original = document.from_text
    monkeypatch.setattr(document, "from_text", lambda text: read.append(text) or original(text))
    for _ in range(4):
        checkpoint.save(tmp_path / PATTERN, keep=3)
    assert len(read) == 2


def test_keep_leaves_other_programs_files_of_such_names(tmp_path: Path) -> None:
    """Labels, too, may be called 0.json."""
    for number in range(3):
        (tmp_path / f"{number}.json").write_text('{"label": 3}')
    (tmp_path / "3.json").mkdir()
    (tmp_path / "4.json").touch()
    for _ in range(3):
        collected(counter=3).save(tmp_path / "{seq}.json", keep=1)
    assert sorted(os.listdir(tmp_path)) == [f"{number}.json" for number in (0, 1, 2, 3, 4, 7)]


def test_old_file_that_cannot_be_removed_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fill(tmp_path, 1, 2)
    original = os.unlink

    def unlink(path: str) -> None:
        if path == str(files[0]):
            raise PermissionError(13, "Permission denied", path)
        original(path)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.warns(UserWarning, match=r"run_0000\.json.*Permission denied"):
        written = collected(counter=3).save(tmp_path / PATTERN, keep=1)
    assert loaded(tmp_path / PATTERN) == 3
    assert sorted(os.listdir(tmp_path)) == ["run_0000.json", os.path.basename(written)]


@pytest.mark.parametrize("keep", [0, -1, True, 1.0, "3"])
def test_keep_is_one_or_more_and_needs_numbers(tmp_path: Path, keep: Any) -> None:
    checkpoint = collected(counter=1)
    with pytest.raises(CheckpointError, match=r"keep ="):
        checkpoint.save(tmp_path / PATTERN, keep=keep)
    with pytest.raises(CheckpointError, match="is a single file"):
        checkpoint.save(tmp_path / "last.json", keep=1)
    assert not os.listdir(tmp_path)


def test_nothing_is_written_where_there_are_no_states(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    checkpoint.register(Counter(), "counter")
    for path in ("new/" + PATTERN, "last.json"):
        with pytest.raises(CheckpointError, match=r"collect\(\)"):
            checkpoint.save(tmp_path / path)
    assert not os.listdir(tmp_path)


def test_loaded_states_are_saved_unchanged(tmp_path: Path) -> None:
    """Nothing is collected."""
    fill(tmp_path, 5)
    checkpoint, counter = Checkpoint(), Counter()
    checkpoint.load(tmp_path / PATTERN)
    checkpoint.register(counter, "counter")
    counter.count = 8
    checkpoint.save(tmp_path / PATTERN)
    assert loaded(tmp_path / PATTERN) == 5
