"""The same numbers on every machine: threads and the rounding of torchvision's matrix products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one intra-op thread unless a test sets two; restore the caller's number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _products_rounded_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round torchvision's batched matrix product, by which it places pixels, step by step.

    The CPU's BLAS may fuse its steps. This package rounds each step, and is compared with
    torchvision doing so.
    """
    monkeypatch.setattr(torch.Tensor, "bmm", _rounded_bmm, raising=False)


def _rounded_bmm(points: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Multiply [b, n, 3] by [b, 3, m], each product and each sum rounded, in order."""
    terms = points.unsqueeze(-1) * matrices.unsqueeze(1)
    return (terms[:, :, 0] + terms[:, :, 1]) + terms[:, :, 2]
