"""Every decoder of the CPU in a loader: exact in threads and processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import DECODERS, available
from tests.conformance import assert_exact_resume, refusal
from tests.images import write_photo_folder

EXECUTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process"},
)
decoders = pytest.mark.parametrize("decoder", DECODERS)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=2, per_class=6)
    return root


def make(root: Path, decoder: str, **changes: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        FolderSource(root),
        **{
            "batch_size": 4,
            "shuffle": True,
            "seed": 7,
            "decoder": decoder,
            "transform": [T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
            **changes,
        },
    )


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:DALI is live in this process:RuntimeWarning")
@decoders
def test_every_place_resumes_exactly(photos: Path, decoder: str) -> None:
    """DALI, too: it holds no state of ours, and is built anew in each thread and process."""
    if decoder not in available():
        pytest.skip(f"{decoder} cannot be used here")
    assert_exact_resume(partial(make, photos, decoder), other=EXECUTIONS)


@pytest.mark.processes
@decoders
def test_auto_takes_the_decoder_of_the_state(photos: Path, decoder: str) -> None:
    """In workers that inherit nothing and build their own."""
    if decoder not in available():
        pytest.skip(f"{decoder} cannot be used here")
    loader = make(photos, decoder)
    batches = iter(loader)
    next(batches)
    resumed = make(photos, "auto", num_workers=1, multiprocessing_context="forkserver")
    resumed.load_state_dict(loader.state_dict())
    for (images, _), (wanted, _) in zip(resumed, batches, strict=True):
        assert torch.equal(images, wanted)


def test_another_decoder_is_a_mismatch(photos: Path) -> None:
    """Families are told apart, though their pixels may agree."""
    state = make(photos, "torchvision").state_dict()
    if "dali" in available():
        refused = refusal(make(photos, "dali"), state, "decoder")
        assert (refused.saved, refused.present) == ("torchvision", "dali")
