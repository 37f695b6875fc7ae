"""Tests marked ``gpu`` never pass silently where a GPU was demanded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import pytest_runtest_setup


def marked(*names: str) -> Any:
    return SimpleNamespace(get_closest_marker=lambda name: name if name in names else None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)


@pytest.mark.parametrize("gpu", [False], indirect=True)
def test_without_a_gpu_the_marked_skip(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUIRE_CUDA", raising=False)
    pytest_runtest_setup(marked("parametrize"))
    with pytest.raises(pytest.skip.Exception):
        pytest_runtest_setup(marked("gpu"))


@pytest.mark.parametrize("gpu", [False], indirect=True)
def test_without_a_gpu_that_is_demanded_the_marked_fail(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUIRE_CUDA", "1")
    pytest_runtest_setup(marked())
    with pytest.raises(pytest.fail.Exception, match="sees no GPU"):
        pytest_runtest_setup(marked("gpu"))


@pytest.mark.parametrize("gpu", [True], indirect=True)
def test_with_a_gpu_the_marked_run(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUIRE_CUDA", "1")
    pytest_runtest_setup(marked("gpu"))
