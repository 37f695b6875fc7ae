"""Page-locked memory: up to a bound, and counted as long as anything refers to it."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from stateful_gpu_loader.engine.makers import memory as module
from stateful_gpu_loader.engine.makers.memory import PINNED, PinnedMemory, empty_host

BYTES = torch.uint8


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what was page-locked; plain memory plays it."""
    sizes: list[int] = []

    def empty_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        sizes.append(shape[0])
        return empty_host(shape, dtype)

    monkeypatch.setattr(module, "empty_pinned", empty_pinned)
    return sizes


def test_beyond_the_bound_memory_is_pageable(locked: list[int]) -> None:
    """Many batches in flight must not take the machine's memory away."""
    memory = PinnedMemory(4096)
    batches = [memory.empty((1000,), BYTES) for _ in range(6)]
    assert [batch.shape for batch in batches] == [(1000,)] * 6
    assert locked == [1000] * 4
    assert memory.num_bytes == 4096, "torch rounds up to a power of two"
    del batches[1]
    gc.collect()
    batches.append(memory.empty((1000,), BYTES))
    assert locked == [1000] * 5
    assert memory.empty((0,), BYTES).shape == (0,)
    assert memory.num_bytes == 4096


def test_memory_is_in_use_as_long_as_anything_shows_it(locked: list[int]) -> None:
    memory = PinnedMemory(4096)
    batch = memory.empty((8, 8), torch.float32)
    parts = batch.view(64)[10:].split(20)
    array = parts[1].numpy()
    for shown in ("batch", "parts", "array"):
        assert memory.num_bytes == 256, shown
        if shown == "batch":
            del batch
        elif shown == "parts":
            del parts
        gc.collect()
    del array
    gc.collect()
    assert memory.num_bytes == 0


def test_memory_that_cannot_be_locked_is_pageable_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(module, "empty_pinned", refuse)
    memory = PinnedMemory(4096)
    assert memory.empty((3,), BYTES).shape == (3,)
    assert memory.num_bytes == 0


def test_readers_in_several_threads_keep_to_the_bound(locked: list[int]) -> None:
    memory = PinnedMemory(2048)
    most: list[int] = []

    def read() -> None:
        for _ in range(300):
            batch = memory.empty((1024,), BYTES)
            most.append(memory.num_bytes)
            del batch

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert max(most) <= 2048
    assert memory.num_bytes == 0


def test_a_process_has_one_bound() -> None:
    assert 0 < PINNED.most_bytes <= 2**31
