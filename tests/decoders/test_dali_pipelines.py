"""A pool of pipelines: one user at a time, none after an error, none of another process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import dali as module
from stateful_gpu_loader.decoders.dali import PipelinePool

DATA = torch.zeros(1, dtype=torch.uint8)


class Pipelines:
    """Stands in for DALI's: which were built, and which were run."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.ran: list[Any] = []
        self.meeting: threading.Barrier | None = None

    def build(self, size: int, **options: Any) -> Any:
        self.sizes.append(size)
        return object()

    def run(self, pipeline: Any, data: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.ran.append(pipeline)
        if self.meeting is not None:
            self.meeting.wait(60)
        if any(each.numel() == 0 for each in data):
            raise RuntimeError("DALI failed to decode it")
        return list(data)


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    pipelines = Pipelines()
    monkeypatch.setattr(module, "build", pipelines.build)
    monkeypatch.setattr(module, "run", pipelines.run)
    return pipelines


@pytest.fixture
def pool() -> PipelinePool:
    return PipelinePool(device_id=None, num_threads=1)


def test_a_pipeline_is_used_again(pipelines: Pipelines, pool: PipelinePool) -> None:
    for _ in range(5):
        pool.decode([DATA])
    assert pipelines.sizes == [1]


def test_a_longer_batch_gets_a_longer_pipeline(pipelines: Pipelines, pool: PipelinePool) -> None:
    for length in (1, 3, 4, 2, 5, 1, 8):
        assert len(pool.decode([DATA] * length)) == length
    assert pipelines.sizes == [1, 4, 8]


def test_two_threads_never_meet_in_one_pipeline(pipelines: Pipelines, pool: PipelinePool) -> None:
    pipelines.meeting = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(4):
            list(threads.map(lambda i: pool.decode([DATA]), range(2)))
    assert len(pipelines.sizes) == 2
    for first, second in zip(pipelines.ran[::2], pipelines.ran[1::2], strict=True):
        assert first is not second


def test_a_pipeline_is_not_used_after_an_error(pipelines: Pipelines, pool: PipelinePool) -> None:
    """DALI calls it invalid, though 2.4 would still run it on the CPU."""
    with pytest.raises(RuntimeError):
        pool.decode([DATA, DATA[:0]])
    pool.decode([DATA])
    assert pipelines.sizes == [2, 1]
    assert pipelines.ran[0] is not pipelines.ran[1]


def test_another_process_builds_its_own_and_frees_none(
    pipelines: Pipelines, pool: PipelinePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.decode([DATA])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    pool.decode([DATA])
    monkeypatch.undo()
    assert pipelines.ran[0] is not pipelines.ran[1]
    assert sorted(pool._idle) == [-1, os.getpid()]
