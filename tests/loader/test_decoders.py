"""Every CPU decoder in a loader: exact in threads and processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import CocoSource, FolderSource, StatefulGPULoader, ragged_collate
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import DECODERS, available, nvimgcodec
from tests.conformance import assert_exact_resume, refusal, same
from tests.damaged import write_photos
from tests.datasets.coco.coco_files import write_coco
from tests.images import kept_photos

EXECUTIONS: tuple[dict[str, Any], ...] = (
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process"},
)
decoders = pytest.mark.parametrize("decoder", DECODERS)


@pytest.fixture
def photos() -> Path:
    return kept_photos()


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
    """DALI too: it holds no state of the loader, and is built again in each thread and process."""
    if decoder not in available():
        pytest.skip(f"{decoder} cannot be used here")
    assert_exact_resume(partial(make, photos, decoder), other=EXECUTIONS)


@pytest.mark.processes
@decoders
def test_auto_takes_the_decoder_of_the_state(photos: Path, decoder: str) -> None:
    """Also in workers that inherit nothing and build their own decoders."""
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
    """Decoder families are distinguished even if their pixels may be equal."""
    state = make(photos, "torchvision").state_dict()
    if "dali" in available():
        refused = refusal(make(photos, "dali"), state, "decoder")
        assert (refused.saved, refused.present) == ("torchvision", "dali")


with_nvimgcodec = pytest.mark.skipif(
    "nvimgcodec" not in available(), reason="nvImageCodec cannot be used here"
)
TRANSFORMS: dict[str, list[T.Recipe]] = {
    "random resized crop": [T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
    "random crop": [T.RandomVerticalFlip(), T.RandomCrop(50), T.Normalize([0.5] * 3, [0.5] * 3)],
    "center crop, resized": [T.CenterCrop(60), T.Resize(32)],
    "no crop": [T.Resize((32, 40))],
}


@with_nvimgcodec
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_parts_of_images_change_nothing(tmp_path: Path, transform: list[T.Recipe]) -> None:
    """Batches, draws and the record of damaged files are the same as with whole images."""
    _, damaged = write_photos(tmp_path)
    for mode in ("replace", "drop"):
        loaders = [
            make(damaged, decoder, on_bad_sample=mode, transform=transform)
            for decoder in ("torchvision", "nvimgcodec")
        ]
        for of_whole, of_parts in zip(*loaders, strict=True):
            assert same(of_parts, of_whole)
            assert same(loaders[1].draws(), loaders[0].draws())
        records = [loader.bad_samples.samples for loader in loaders]
        assert records[0] == records[1] != ()


@pytest.mark.parametrize(
    "less",
    [pytest.param({"decoder": "nvimgcodec"}, marks=with_nvimgcodec), {"scaled_decoding": True}],
    ids=str,
)
def test_boxes_and_masks_go_with_less_than_whole_images(
    tmp_path: Path, less: dict[str, Any]
) -> None:
    """Boxes and masks are equal. Pixels of parts are equal; pixels of scaled images differ."""
    source = CocoSource(*write_coco(tmp_path), masks=True)
    recipes = [T.RandomResizedCrop(8), T.RandomHorizontalFlip()]
    given = {"batch_size": 2, "seed": 1, "collate_fn": ragged_collate, "transform": recipes}
    of_less = StatefulGPULoader(source, **less, **given)
    of_whole = StatefulGPULoader(source, decoder="torchvision", **given)
    for (images, targets), (whole, wanted) in zip(of_less, of_whole, strict=True):
        assert same(targets, wanted)
        assert [image.shape for image in images] == [image.shape for image in whole]
        assert "decoder" not in less or same(images, whole)


@with_nvimgcodec
def test_only_the_part_is_decoded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other tests would also pass with whole images."""
    parts: list[Any] = []
    decode = nvimgcodec._decode_part

    def note(data: torch.Tensor, header: Any, box: Any) -> Any:
        parts.append((box, decode(data, header, box)))
        return parts[-1][1]

    monkeypatch.setattr(nvimgcodec, "_decode_part", note)
    loader = make(photos, "nvimgcodec")
    drawn = []
    for _ in loader:
        crop = loader.draws()[0]
        drawn += zip(
            *(crop[side].tolist() for side in ("top", "left", "height", "width")), strict=True
        )
    assert [box for box, _ in parts] == drawn
    assert [image.shape[1:] for _, image in parts if image is not None] == [
        box[2:] for box, image in parts if image is not None
    ]
    assert sum(image is not None for _, image in parts) >= 8


@with_nvimgcodec
def test_nvimgcodec_of_a_gpu_is_another_decoder(photos: Path) -> None:
    """It has the same name but other pixels."""
    loader = make(photos, "nvimgcodec")
    state = loader.state_dict()
    assert '"nvimgcodec-cpu"' in state["fingerprint"]
    of_gpu = {**state, "fingerprint": state["fingerprint"].replace("nvimgcodec-cpu", "nvimgcodec")}
    for decoder in ("auto", "nvimgcodec"):
        refused = refusal(make(photos, decoder), of_gpu, "decoder")
        assert refused.saved == "nvimgcodec"
