"""A process that is killed at the wrong moment leaves no shared memory behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader.engine.workers.packing import remove_what_was_left_by
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Gate, requests


def left_by(pid: int | None) -> Path:
    """What torch leaves if it is killed after ``shm_open`` and before ``shm_unlink``."""
    file = Path("/dev/shm") / f"torch_{pid}_12_0"
    file.write_bytes(b"left")
    return file


@pytest.mark.parametrize("persistent", [False, True])
def test_it_is_removed_behind_a_killed_worker(make: Any, gate: Gate, persistent: bool) -> None:
    pipeline = make(persistent_workers=persistent, max_losses=0)
    pipeline.start(requests(gate.action, gate.action))
    gate.reached()
    file, ours = left_by(pipeline.workers[0].pid), left_by(os.getpid())
    try:
        fakes.kill(pipeline, 0)
        fakes.until_death(pipeline)
        pipeline.close()
        assert not file.exists()
        assert ours.exists()
    finally:
        ours.unlink()


def test_names_that_processes_share_by_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    file = left_by(os.getpid())
    try:
        monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
        remove_what_was_left_by(os.getpid())
        assert file.exists()
        monkeypatch.undo()
        remove_what_was_left_by(os.getpid())
        assert not file.exists()
    finally:
        file.unlink(missing_ok=True)
