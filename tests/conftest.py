"""Settings of all tests."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from stateful_gpu_loader.randomness.global_generators import one_at_a_time
from tests import marks, prepared_processes
from tests.huge_pages import use_huge_pages

# The same examples in every run. No deadline, because no test asserts a time.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")

# On a busy machine, one in a dozen eager rendezvous of gloo fails with "connectFullMesh failed ...
# Connection closed by peer" (torch 2.15). Here ranks connect when they first have to.
os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
# When albumentations is imported, it would look for its newest version on the network.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests before pytest selects by ``-m``."""
    marks.mark(items)


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection, and make forks faster."""
    gc.collect()
    gc.freeze()
    use_huge_pages()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` without a GPU; under ``REQUIRE_CUDA=1`` they fail instead."""
    if item.get_closest_marker("trainers") is not None:
        prepared_processes.preload_trainers()
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if os.environ.get("REQUIRE_CUDA") == "1":
        pytest.fail("REQUIRE_CUDA=1, and torch sees no GPU", pytrace=False)
    pytest.skip("needs a GPU; REQUIRE_CUDA=1 makes this a failure")


@pytest.fixture(autouse=True, scope="module")
def _no_dali_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave no live DALI object to the next file: beside DALI, workers are not forked."""
    yield
    dali = sys.modules.get("stateful_gpu_loader.decoders.dali")
    idle = dali is not None and dali._POOL._idle.pop(os.getpid(), None)
    # A collection takes a third of a second, so only files that mention DALI collect.
    if idle or "dali" in request.path.read_text(encoding="utf-8").lower():
        idle = None
        gc.collect()


@pytest.fixture(autouse=True)
def _no_lock_stays_behind() -> Iterator[None]:
    """Check that no lock stays taken: loaders in other threads would wait forever."""
    yield
    assert not one_at_a_time()._is_owned()


@pytest.fixture
def spawns() -> Iterator[None]:
    """Spawn processes by default, as on macOS and Windows."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)
