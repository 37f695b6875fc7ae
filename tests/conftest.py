"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# The same examples in every run; no deadline, because nothing here asserts a time.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")

# On a busy machine one of a dozen eager rendezvous of gloo fails with "connectFullMesh failed ...
# Connection closed by peer" (torch 2.15): its ranks connect when they first have to instead.
os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is marked ``needs_cuda`` skips without a GPU, and fails under ``REQUIRE_CUDA=1``."""
    if item.get_closest_marker("needs_cuda") is None or torch.cuda.is_available():
        return
    if os.environ.get("REQUIRE_CUDA") == "1":
        pytest.fail("REQUIRE_CUDA=1, and torch sees no GPU", pytrace=False)
    pytest.skip("needs a GPU; REQUIRE_CUDA=1 makes this a failure")


@pytest.fixture(autouse=True, scope="module")
def _no_dali_stays_behind() -> Iterator[None]:
    """Beside DALI workers are not forked: what one file leaves would change how others run."""
    yield
    dali_decoder = sys.modules.get("stateful_gpu_loader.decoders.dali_decoder")
    if dali_decoder is not None:
        dali_decoder._POOL._idle.pop(os.getpid(), None)
        gc.collect()
