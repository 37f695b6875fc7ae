"""A full GPU gives an error with the sizes, and no batch is lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stateful_gpu_loader import transforms as T
from tests.conformance import same
from tests.gpu.photos import make_loader

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]

LARGE = [T.RandomResizedCrop(1024), T.Normalize([0.5] * 3, [0.5] * 3)]
"""Batches of 72 MiB, more than the allocator has free."""

_NEARLY_NOTHING = 1e-5
"""Fraction of the GPU's memory: 1.4 MB of 141 GB."""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_is_made_once_its_memory_is_free(photos: Path, num_workers: int) -> None:
    """With torch's own limit, so that only torch's allocator runs out of memory."""
    expected = [[part.cpu() for part in batch] for batch in make_loader(photos, transform=LARGE)]
    loader = make_loader(photos, transform=LARGE, num_workers=num_workers)
    batches = iter(loader)
    held = [next(batches)]  # any memory that is freed would be used for the next batch
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(_NEARLY_NOTHING)
    refused: Exception | None = None
    while refused is None and len(held) < len(expected):
        state = loader.state_dict()
        try:
            held.append(next(batches))
        except torch.OutOfMemoryError as error:
            refused = error
    assert refused is not None, "there was room after all"
    assert loader.state_dict() == state, "the state moved without a batch"
    assert re.search(r"a batch of 6 images \(\S+ MiB as read, \S+ MiB decoded\)", str(refused))
    assert "in flight" in str(refused)
    assert "Remedy" in str(refused)
    with pytest.raises(torch.OutOfMemoryError):
        next(batches)
    torch.cuda.set_per_process_memory_fraction(1.0)
    held += list(batches)
    assert same([[part.cpu() for part in batch] for batch in held], expected)


def test_memory_filled_by_another_process(photos: Path, backend: str) -> None:
    """The decoder's library runs out of memory, too. Whatever it reports, no batch is lost."""
    command = [sys.executable, "-m", "tests.gpu.full_memory", str(photos), backend]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "the same", done.stdout


def test_out_of_memory_in_the_model_is_not_the_loaders(photos: Path) -> None:
    """The caller's own error passes through unchanged."""
    batches = iter(make_loader(photos, num_workers=2))
    next(batches)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    assert "the loader made" not in str(raised.value)
    assert len(list(batches)) == 3
