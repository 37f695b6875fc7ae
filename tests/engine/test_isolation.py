"""One intra-op thread where a request runs, and nowhere else."""

from __future__ import annotations

import threading

import torch

from stateful_gpu_loader.engine.isolation import isolated, limit_this_thread


def test_inline_requests_run_with_one_thread_and_the_setting_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with isolated(draws=False):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


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
