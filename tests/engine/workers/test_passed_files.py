"""Files that travel beside a pickle."""

from __future__ import annotations

import os
import pickle
from multiprocessing import resource_sharer
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader.engine.workers.channel import (
    MOST_FILES,
    OpenFile,
    close_all,
    pickled,
    received,
)
from tests.engine.workers.fakes import fds
from tests.patience import seconds


def opened(path: Path) -> OpenFile:
    path.write_bytes(path.name.encode())
    return OpenFile(os.open(path, os.O_RDONLY))


def read(file: Any) -> bytes:
    descriptor = file.detach()
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def test_files_are_taken_by_number(tmp_path: Path) -> None:
    before = fds()
    sent = [opened(tmp_path / name) for name in ("one", "other")]
    content, files = pickled({"again": [*sent, sent[0]]})
    with received(files):
        found = pickle.loads(content)["again"]
        assert [read(file) for file in found[:2]] == [b"one", b"other"]
        assert found[2] is found[0]
    del sent, found
    assert fds() == before


def test_files_that_nobody_takes_are_closed(tmp_path: Path) -> None:
    before = fds()
    content, files = pickled([opened(tmp_path / name) for name in "ab"])
    with received(files):
        assert read(pickle.loads(content)[1]) == b"b"
    assert files == []
    assert fds() == before


def test_what_cannot_be_pickled_leaves_no_file_open(tmp_path: Path) -> None:
    before, popen = fds(), get_spawning_popen()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickled([opened(tmp_path / "a"), lambda: 0])
    assert fds() == before
    assert get_spawning_popen() is popen


def test_messages_within_one_another_keep_their_own_files(tmp_path: Path) -> None:
    outer, files = pickled(opened(tmp_path / "outer"))
    inner, inner_files = pickled(opened(tmp_path / "inner"))
    with received(files):
        with received(inner_files):
            assert read(pickle.loads(inner)) == b"inner"
        assert read(pickle.loads(outer)) == b"outer"


def test_shared_tensors_travel_beside_the_pickle() -> None:
    tensor = torch.arange(6).share_memory_()
    content, files = pickled(tensor)
    assert len(files) == 1
    with received(files):
        found = pickle.loads(content)
    found[0] = 7
    assert tensor[0] == 7


def test_more_files_than_a_message_carries_are_asked_for() -> None:
    sent = [OpenFile(os.dup(0)) for _ in range(MOST_FILES + 2)]
    try:
        content, files = pickled(sent)
    finally:
        resource_sharer.stop(timeout=seconds(5))
    assert len(files) == MOST_FILES
    close_all(files)
    assert bytes(content).count(b"resource_sharer") == 1
