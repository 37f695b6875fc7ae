"""Batch memory is taken again only when nobody can see it any more."""

from __future__ import annotations

import threading

import numpy as np
import torch

from stateful_gpu_loader.engine.makers.memory import BatchMemory


def test_memory_is_not_reused_while_anything_holds_it() -> None:
    memory = BatchMemory(keep=4)
    holders = {
        "view": lambda tensor: tensor[1:],
        "numpy": lambda tensor: tensor.numpy(),
        "detached": lambda tensor: tensor.detach(),
        "storage": lambda tensor: tensor.untyped_storage(),
        "dlpack": lambda tensor: np.from_dlpack(tensor),
        "graph": lambda tensor: tensor * torch.ones((), requires_grad=True),
    }
    for name, hold in holders.items():
        tensor = memory.empty((4, 3), torch.float32).fill_(7)
        address = tensor.data_ptr()
        held = hold(tensor)
        del tensor
        others = [memory.empty((4, 3), torch.float32).fill_(0) for _ in range(3)]
        assert address not in {other.data_ptr() for other in others}, name
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
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            tensor = memory.empty((64,), torch.int64).fill_(number)
            if not (tensor == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
