"""A GPU whose memory is full: reported, and no batch is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.pretend_gpu.loaders import (
    EagerDecoder,
    LateReader,
    decoder,
    expected_batches,
    make,
    photos,
)

__all__ = ["decoder", "photos"]


def take_all_that_is_free() -> torch.Tensor:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.empty(torch.cuda.mem_get_info()[0], dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize(("num_workers", "delivered"), [(0, 0), (2, 5)])
def test_a_batch_is_made_once_its_memory_is_free(
    photos: Path,
    decoder: EagerDecoder,
    count: Callable[[str, int, int], None],
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    delivered: int,
) -> None:
    monkeypatch.setenv("PRETEND_GPU_MEGABYTES", "64")
    decoder.working_memory = 12 << 20
    reader, loader = LateReader(), make(photos, num_workers=num_workers)
    for epoch in range(4):
        batches = iter(loader)
        reader.read(batches, delivered)
        if epoch % 2:
            held = take_all_that_is_free()
            while True:
                state = loader.state_dict()
                try:
                    assert reader.read(batches, 1) == 1, "there was room after all"
                except torch.OutOfMemoryError:
                    break
            assert loader.state_dict() == state, "the state moved without a batch"
            with pytest.raises(torch.OutOfMemoryError, match=r" 4 images "):
                reader.read(batches, 1)
            del held
        reader.read(batches)
    expected = [batch for epoch in range(4) for batch in expected_batches(photos, epoch=epoch)]
    wrong = reader.wrong(expected)
    count("batches around a full memory", len(expected), wrong)
    assert wrong == 0
