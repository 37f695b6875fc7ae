"""A DALI pipeline on a GPU as a loader: outputs stay there, and the resume is exact."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader.integrations.dali import DALILoader
from tests.conformance import assert_exact_resume

dali = pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.gpu


def rotated(folder: Path, **options: Any) -> Any:
    @dali.pipeline_def(batch_size=5, num_threads=2, device_id=0, seed=12)
    def pipeline() -> Any:
        jpegs, labels = dali.fn.readers.file(file_root=str(folder), random_shuffle=True)
        images = dali.fn.decoders.image(jpegs, device="mixed")
        angles = dali.fn.random.uniform(range=(-30.0, 30.0))
        images = dali.fn.rotate(images, angle=angles, fill_value=0, keep_size=True)
        return dali.fn.resize(images, size=(64, 64)), labels

    return pipeline(**options)


def test_outputs_of_a_gpu_resume_after_every_batch(photos: Path) -> None:
    make = partial(DALILoader, partial(rotated, photos), ["images", "labels"])
    assert_exact_resume(make)


def test_delivered_outputs_are_never_written_again(photos: Path) -> None:
    batches = list(DALILoader(partial(rotated, photos), ["images", "labels"]))
    assert all(batch["images"].is_cuda for batch in batches)
    again = list(DALILoader(partial(rotated, photos), ["images", "labels"]))
    for batch, other in zip(batches, again, strict=True):
        assert torch.equal(batch["images"], other["images"])
