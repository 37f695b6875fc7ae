"""Batches are right, however late the device and the user's stream are.

The controls show that the same load finds each fault: a batch whose reader is not recorded, a
decoder that does not wait, a shared stream.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pretend_gpu.faults import (
    without_record_stream,
    without_synchronize,
    without_synchronize_after_augmenting,
)
from tests.pretend_gpu.loaders import (
    EPOCHS,
    Count,
    EagerDecoder,
    damage,
    decoder,
    expected_batches,
    expected_with_replacements,
    is_same,
    make,
    photos,
    until_wrong,
    wrong_batches,
)

__all__ = ["decoder", "photos"]


@pytest.mark.parametrize(
    ("own_stream", "changes"),
    [
        (False, {"num_workers": 0, "prefetch_factor": None}),
        (True, {"num_workers": 1, "prefetch_factor": 1}),
        (False, {"num_workers": 2, "prefetch_factor": 2, "cpu_share": 0.5}),
        (True, {"num_workers": 3, "prefetch_factor": 8}),
        (False, {"num_workers": 2, "prefetch_factor": 4, "worker_type": "process"}),
        (
            True,
            {"num_workers": 1, "prefetch_factor": 3, "cpu_share": 0.3, "worker_type": "process"},
        ),
    ],
    ids=str,
)
def test_no_batch_is_wrong(
    photos: Path, decoder: EagerDecoder, count: Count, own_stream: bool, changes: dict[str, Any]
) -> None:
    stream = torch.cuda.Stream() if own_stream else None
    share = changes.get("cpu_share", 0.0)
    epochs = [expected_batches(photos, epoch=epoch, cpu_share=share) for epoch in range(EPOCHS)]
    compared, wrong = wrong_batches(lambda: make(photos, **changes), epochs, stream)
    count("batches of one loader", compared, wrong)
    assert (compared, wrong) == (12 * EPOCHS, 0)
    assert decoder.num_images > 0


def test_kept_batches_are_never_written_again(
    photos: Path, decoder: EagerDecoder, count: Count
) -> None:
    loader = make(photos, prefetch_factor=4)
    kept = [batch for _ in range(3) for batch in loader]
    torch.cuda.synchronize()
    expected = [batch for epoch in range(3) for batch in expected_batches(photos, epoch=epoch)]
    pairs = zip(kept, expected, strict=True)
    wrong = sum(not is_same([part.cpu() for part in batch], other) for batch, other in pairs)
    count("batches that are kept", len(kept), wrong)
    assert wrong == 0


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_bad_samples_are_replaced(
    photos: Path, decoder: EagerDecoder, count: Count, worker_type: str
) -> None:
    """Some are found by their header, before the device, others when no decoder accepts them."""
    damaged = damage(photos)
    epochs = expected_with_replacements(photos, EPOCHS)
    changes = {"on_bad_sample": "replace", "worker_type": worker_type, "prefetch_factor": 3}
    loader = make(photos, **changes)
    compared, wrong = wrong_batches(lambda: loader, epochs)
    count("batches with replaced samples", compared, wrong)
    assert (compared, wrong) == (12 * EPOCHS, 0)
    assert len(loader.bad_samples) == len(damaged)


@pytest.mark.parametrize(
    "fault",
    [
        without_record_stream,
        without_synchronize,
        without_synchronize_after_augmenting,
    ],
)
def test_a_fault_makes_batches_wrong(
    photos: Path,
    decoder: EagerDecoder,
    count: Count,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """The control: this load finds a stage that does not wait or does not record the reader."""
    fault(monkeypatch)
    epochs = [expected_batches(photos, epoch=epoch) for epoch in range(EPOCHS)]
    compared, wrong = until_wrong(
        lambda: wrong_batches(lambda: make(photos), epochs, torch.cuda.Stream())
    )
    count("batches " + fault.__name__.replace("_", " "), compared, wrong)
    assert wrong > 0
