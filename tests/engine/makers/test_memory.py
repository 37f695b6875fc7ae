"""Batch memory is reused only when nothing refers to it any more."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stateful_gpu_loader.engine.makers import memory as module
from stateful_gpu_loader.engine.makers.memory import PINNED, BatchMemory, PinnedMemory, empty_host
from tests.datasets.storage.processes import in_a_fork
from tests.engine.workers.fakes import HOLDERS


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_is_not_reused_while_anything_holds_it(name: str) -> None:
    memory = BatchMemory(keep=4)
    tensor = memory.empty((4, 3), torch.float32).fill_(7)
    address = tensor.data_ptr()
    held = HOLDERS[name](tensor)
    del tensor
    others = [memory.empty((4, 3), torch.float32).fill_(0) for _ in range(3)]
    assert address not in {other.data_ptr() for other in others}
    del held


def test_memory_of_another_size_is_dropped_not_stretched() -> None:
    memory = BatchMemory(keep=4)
    del_me = memory.empty((4, 3), torch.float32)
    del del_me
    larger = memory.empty((8, 3), torch.float32).fill_(1)
    smaller = memory.empty((2, 3), torch.uint8).fill_(2)
    assert larger.shape == (8, 3)
    assert (larger == 1).all()
    assert smaller.dtype == torch.uint8


def test_no_more_than_keep_buffers_wait() -> None:
    memory = BatchMemory(keep=2)
    lent = [memory.empty((16,), torch.int64) for _ in range(10)]
    del lent
    assert len(memory._free[16 * 8]) == 2


def test_a_smaller_last_batch_leaves_the_others_memory_alone() -> None:
    memory = BatchMemory(keep=2)
    address = memory.empty((16,), torch.int64).data_ptr()
    memory.empty((5,), torch.int64)
    assert memory.empty((16,), torch.int64).data_ptr() == address
    for size in range(1, 100):
        memory.empty((size,), torch.int64)
    assert len(memory._free) <= 2


def test_an_empty_shape_needs_no_memory() -> None:
    assert BatchMemory(keep=1).empty((0, 3, 8, 8), torch.float32).shape == (0, 3, 8, 8)


def test_threads_never_share_a_buffer() -> None:
    memory = BatchMemory(keep=3)

    def work(number: int) -> bool:
        return all(
            (memory.empty((64,), torch.int64).fill_(number) == number).all() for _ in range(300)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


# Page-locked memory.


BYTES = torch.uint8


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of page-locked memory, which plain memory simulates."""
    sizes: list[int] = []

    def empty_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        sizes.append(shape[0])
        return empty_host(shape, dtype)

    monkeypatch.setattr(module, "empty_pinned", empty_pinned)
    return sizes


def test_beyond_the_bound_memory_is_pageable(locked: list[int]) -> None:
    """Many batches in flight must not lock all of the machine's memory."""
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


def test_a_forked_child_never_frees_page_locked_memory(locked: list[int]) -> None:
    """Another thread could hold a lock of torch's allocator at the fork."""
    memory = PinnedMemory(4096)
    batch = memory.empty((1000,), BYTES)
    storage = weakref.ref(batch.untyped_storage())

    def is_kept() -> bool:
        nonlocal batch
        del batch
        gc.collect()
        return storage() is not None

    assert in_a_fork(is_kept) == 0
    del batch
    gc.collect()
    assert storage() is None
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

    def read(_: int) -> int:
        most = 0
        for _ in range(300):
            batch = memory.empty((1024,), BYTES)
            most = max(most, memory.num_bytes)
            del batch
        return most

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(read, range(4))) <= 2048
    gc.collect()
    assert memory.num_bytes == 0


def test_a_process_has_one_bound() -> None:
    assert 0 < PINNED.most_bytes <= 2**31
