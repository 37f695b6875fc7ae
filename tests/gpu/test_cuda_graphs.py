"""A model's CUDA graphs beside a loader that works ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conformance import same, uninterrupted
from tests.gpu.photos import make_loader

pytestmark = pytest.mark.gpu


def test_a_graph_is_captured_and_replayed_while_batches_are_made(
    photos: Path, backend: str
) -> None:
    """Each capture allocates, and so do the readers and the stage. Neither may break the other.

    Threads of nvImageCodec and DALI would break a capture in global mode (docs/gpu.md).
    """
    mode = "global" if backend in ("torchcodec", "torchvision") else "thread_local"
    given = {"decoder": backend, "batch_size": 2}
    (expected,), _ = uninterrupted(make_loader(photos, **given), 1)
    weights = torch.rand(64, 64, device="cuda")
    torch.tanh(weights @ weights).sum()  # outside a capture, cuBLAS may allocate its workspace
    found, sums = [], []
    for batch in make_loader(photos, num_workers=2, prefetch_factor=8, **given):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            product = weights
            for _ in range(50):
                product = torch.tanh(product @ weights)
            total = product.sum()
        graph.replay()
        sums.append(total.item())
        found.append([part.clone() for part in batch])
    assert same(found, expected)
    assert sums == sums[:1] * len(sums)
