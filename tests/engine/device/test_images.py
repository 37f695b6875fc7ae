"""Encoded batches describe themselves; tests/pretend_gpu tests how they are decoded."""

from __future__ import annotations

import numpy as np
import torch

from stateful_gpu_loader.engine.makers.encoded import EncodedBatch
from stateful_gpu_loader.records import Request


def test_a_batch_describes_itself() -> None:
    request = Request(0, 1, 0, 0, 1, np.arange(2), 2)
    arena = torch.zeros(1 << 20, dtype=torch.uint8)
    batch = EncodedBatch(request, (None, None), arena, (0, 0), None)
    assert batch.describe() == "a batch of 2 images (1.0 MiB as read, 0.0 MiB decoded)"
