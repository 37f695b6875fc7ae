"""Several loaders, threads and GPUs, and other kinds of batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.randomness.permutation import Permutation
from tests.pretend_gpu.faults import without_record_stream
from tests.pretend_gpu.loaders import (
    EPOCHS,
    Count,
    EagerDecoder,
    Epoch,
    decoder,
    expected_batches,
    make,
    photos,
    until_wrong,
    wrong_batches,
)

__all__ = ["decoder", "photos"]


@pytest.mark.parametrize("own_streams", [False, True], ids=["one stream", "own streams"])
def test_two_loaders_in_two_threads(
    photos: Path, decoder: EagerDecoder, count: Count, own_streams: bool
) -> None:
    def read(seed: int) -> tuple[int, int]:
        epochs = [expected_batches(photos, epoch=epoch, seed=seed) for epoch in range(EPOCHS)]
        stream = torch.cuda.Stream() if own_streams else torch.cuda.default_stream()
        return wrong_batches(lambda: make(photos, seed=seed), epochs, stream)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(read, [1, 2]))
    count("batches of two loaders", 24 * EPOCHS, sum(wrong for _, wrong in found))
    assert found == [(12 * EPOCHS, 0)] * 2


def test_two_gpus(
    photos: Path, decoder: EagerDecoder, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader on each, while only the first device is current."""
    monkeypatch.setenv("PRETEND_GPU_COUNT", "2")
    epochs = [expected_batches(photos, epoch=epoch) for epoch in range(EPOCHS)]

    def read(index: int) -> tuple[int, int]:
        loader = make(photos, device=f"cuda:{index}")
        return wrong_batches(lambda: loader, epochs, torch.cuda.Stream(index))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(read, [0, 1]))
    count("batches of two GPUs", 24 * EPOCHS, sum(wrong for _, wrong in found))
    assert found == [(12 * EPOCHS, 0)] * 2
    assert torch.cuda.current_device() == 0


def test_inference_mode(photos: Path, decoder: EagerDecoder, count: Count) -> None:
    epochs = [expected_batches(photos, epoch=epoch) for epoch in range(EPOCHS)]
    with torch.inference_mode():
        compared, wrong = wrong_batches(lambda: make(photos), epochs, torch.cuda.Stream())
    count("batches in inference mode", compared, wrong)
    assert (compared, wrong) == (12 * EPOCHS, 0)


class Rows:
    """A map-style dataset of long rows."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"row": torch.full((4000,), index, dtype=torch.int32), "index": index}


def moved(**changes: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Rows(), batch_size=4, shuffle=True, seed=3, device="cuda", collate_fn=pairs, **changes
    )


def pairs(samples: list[dict[str, Any]]) -> list[torch.Tensor]:
    rows = torch.stack([sample["row"] for sample in samples])
    return [rows, torch.tensor([sample["index"] for sample in samples])]


def expected_rows(epoch: int) -> Epoch:
    order = torch.from_numpy(Permutation(48, seed=3, epoch=epoch)(np.arange(48)))
    return [
        [part.int().view(4, 1).expand(4, 4000), part.to(torch.int64)] for part in order.split(4)
    ]


@pytest.mark.parametrize("changes", [{}, {"num_workers": 2, "prefetch_factor": 3}], ids=str)
def test_batches_that_are_only_moved(count: Count, changes: dict[str, Any]) -> None:
    epochs = [expected_rows(epoch) for epoch in range(EPOCHS)]
    compared, wrong = wrong_batches(lambda: moved(**changes), epochs, torch.cuda.Stream())
    count("batches that are only moved", compared, wrong)
    assert (compared, wrong) == (12 * EPOCHS, 0)


def test_moved_batches_without_record_stream_are_wrong(
    count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    without_record_stream(monkeypatch)
    epochs = [expected_rows(epoch) for epoch in range(EPOCHS)]
    compared, wrong = until_wrong(
        lambda: wrong_batches(lambda: moved(num_workers=2), epochs, torch.cuda.Stream())
    )
    count("batches that are only moved, without record stream", compared, wrong)
    assert wrong > 0


class Sparse:
    """A map-style dataset of sparse tensors, whose memory torch cannot record."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.eye(3).to_sparse() * index


def test_sparse_tensors_are_moved() -> None:
    loader = StatefulGPULoader(Sparse(), batch_size=None, device="cuda")
    found = [batch.cpu().to_dense() for batch in loader]
    assert [float(each.sum()) for each in found] == [0, 3, 6]
