"""Only regular files are opened, and no more of them is read than was requested."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from stateful_gpu_loader.checkpoint.files import NotRegular, TooLarge, read_regular
from stateful_gpu_loader.errors import CheckpointError
from stateful_gpu_loader.integrations.dali_pipeline.own_checkpoint import read as read_dalis


@pytest.fixture(autouse=True)
def _guard() -> Iterator[None]:
    """End a test that waits for a writer that never comes."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it waits for ever")

    former = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(path))


@pytest.mark.parametrize(
    ("make", "error", "kind"),
    [
        (os.mkfifo, NotRegular, "a named pipe"),
        (os.mkdir, NotRegular, "a folder"),
        (lambda path: path.symlink_to("/dev/zero"), NotRegular, "a device"),
        (make_socket, OSError, "No such device"),
    ],
)
def test_another_kind_of_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None], error: type[Exception], kind: str
) -> None:
    make(tmp_path / "file")
    for read in (partial(read_regular, most=100), read_dalis):
        with pytest.raises(error, match=kind):
            read(tmp_path / "file")


def test_a_file_of_the_greatest_size_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_regular(tmp_path / "file", 3) == b"abc"
    with pytest.raises(TooLarge, match=r"3.*2"):
        read_regular(tmp_path / "file", 2)
    monkeypatch.setattr("stateful_gpu_loader.checkpoint.files.size_of", lambda file: 2)
    with pytest.raises(TooLarge):
        read_regular(tmp_path / "file", 2)  # the file has grown while it was read


@pytest.mark.trainers
def test_a_pipe_is_no_state_of_a_trainer(tmp_path: Path) -> None:
    trainers = pytest.importorskip("stateful_gpu_loader.integrations.transformers")
    os.mkfifo(tmp_path / "trainer_state.json")
    with pytest.raises(CheckpointError, match="not a regular file but a named pipe"):
        trainers._global_step(str(tmp_path))
