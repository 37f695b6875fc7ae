"""Requests run with one intra-op thread; all other code keeps its threads."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch

from stateful_gpu_loader.engine.isolation import isolated, limit_this_thread


def test_inline_requests_run_with_one_thread_and_the_setting_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert isolated(torch.get_num_threads, draws=False) == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("draws", [False, True])
def test_neither_autocast_nor_a_default_device_reaches_a_request(draws: bool) -> None:
    def product() -> torch.Tensor:
        return torch.ones(2, 2) @ torch.ones(2, 2)

    for mode in (torch.autocast("cpu", torch.bfloat16), torch.device("meta"), nullcontext()):
        with mode:
            made, usual = isolated(product, draws=draws), product()
            assert (made.dtype, made.device.type) == (torch.float32, "cpu")
            assert usual.dtype == product().dtype
            assert usual.device == product().device


def test_an_interrupt_of_a_request_leaves_no_trace() -> None:
    before = torch.get_num_threads(), torch.get_rng_state().tolist()

    def interrupted() -> None:
        torch.rand(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isolated(interrupted, draws=True)
    assert (torch.get_num_threads(), torch.get_rng_state().tolist()) == before


def test_a_limited_thread_leaves_the_others_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []

        def limited() -> None:
            limit_this_thread()
            torch.rand(300, 300).sum()
            seen.append(torch.get_num_threads())

        def unlimited() -> None:
            torch.rand(300, 300).sum()
            seen.append(torch.get_num_threads())

        for target in (limited, unlimited):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        assert seen == [1, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
