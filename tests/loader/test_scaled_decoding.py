"""scaled_decoding=True: exact like any decoder, and refused where it would change nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from stateful_gpu_loader import FolderSource, PreparedSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import make_decoder, probe
from stateful_gpu_loader.decoders.scaled import ScaledDecoder
from tests.conformance import assert_exact_resume, refusal, same
from tests.damaged import write_photos
from tests.fake_gpu import fake_gpu
from tests.images import kept_photos, photograph
from tests.map_datasets import Indices

__all__ = ["fake_gpu"]

RECIPES = [T.RandomResizedCrop(24, scale=(0.3, 1)), T.RandomHorizontalFlip()]
EXECUTIONS: tuple[dict[str, Any], ...] = (
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process"},
)


@pytest.fixture
def photos() -> Path:
    return kept_photos()


def make(root: Path, *, scaled_decoding: Any = True, **changes: Any) -> StatefulGPULoader[Any]:
    arguments = {"batch_size": 4, "shuffle": True, "seed": 7, "transform": RECIPES, **changes}
    return StatefulGPULoader(FolderSource(root), scaled_decoding=scaled_decoding, **arguments)


@pytest.mark.processes
def test_every_place_resumes_exactly_on_any_workers(photos: Path) -> None:
    assert_exact_resume(partial(make, photos), other=EXECUTIONS)


def test_the_batch_size_changes_no_pixel(photos: Path) -> None:
    """Each image is scaled by its own header and draws."""
    expected = torch.cat([images for images, _ in make(photos)])
    for batch_size in (1, 5):
        images = torch.cat([images for images, _ in make(photos, batch_size=batch_size)])
        assert torch.equal(images, expected)


def test_the_crops_and_flips_are_those_of_whole_images(photos: Path) -> None:
    """The pixels are close."""
    scaled, whole = make(photos), make(photos, scaled_decoding=False, decoder="torchvision")
    differences = []
    for (images, targets), (wanted, wanted_targets) in zip(scaled, whole, strict=True):
        assert same(targets, wanted_targets)
        assert same(scaled.draws(), whole.draws())
        differences.append((images.float() - wanted.float()).abs().mean())
    assert 0 < max(differences) < 8


def test_damaged_files_are_those_of_the_whole_decode(tmp_path: Path) -> None:
    _, damaged = write_photos(tmp_path)
    records = []
    for scaled_decoding in (False, True):
        loader = make(damaged, scaled_decoding=scaled_decoding, on_bad_sample="replace")
        indices = [targets.tolist() for _, targets in loader]
        records.append((indices, loader.bad_samples.samples))
    assert records[0] == records[1]
    assert records[0][1]


@pytest.mark.parametrize("decoder", ["auto", "torchvision"])
def test_it_is_part_of_the_decoder_in_a_state(photos: Path, decoder: str) -> None:
    scaled, whole = (
        make(photos, scaled_decoding=value, decoder=decoder) for value in (True, False)
    )
    for saved, present in ((scaled, whole), (whole, scaled)):
        refused = refusal(present, saved.state_dict(), "decoder")
        assert "scaled_decoding=True" in (refused.saved + refused.present)
    with pytest.raises(ValueError, match="scaled_decoding"):
        scaled.scaled_decoding = False


def test_auto_takes_the_decoder_of_the_state(photos: Path) -> None:
    loader = make(photos, decoder="torchvision")
    batches = iter(loader)
    next(batches)
    resumed = make(photos)
    resumed.load_state_dict(loader.state_dict())
    assert same(list(resumed), list(batches))


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"scaled_decoding": 1}, TypeError, "must be True or False"),
        ({"transform": torch.neg}, ValueError, "what size .*neg needs.*Remedy: recipes"),
        ({"device": "cuda"}, ValueError, "'cuda' decodes.*Remedy: device=None"),
    ],
)
def test_it_is_refused_where_nothing_would_be_scaled(
    photos: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make(photos, **changes)


def test_datasets_that_are_decoded_already_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Indices is not a source.*Remedy"):
        StatefulGPULoader(Indices(8), scaled_decoding=True)
    prepared = PreparedSource(FolderSource(photos), tmp_path)
    with pytest.raises(ValueError, match=r"PreparedSource returns pixels.*Remedy"):
        StatefulGPULoader(prepared, scaled_decoding=True, transform=RECIPES)


def test_prepared_images_are_filled_at_the_smaller_scale(tmp_path: Path) -> None:
    photograph("astronaut").save(tmp_path / "photo.jpg")
    source = FolderSource.from_paths([tmp_path / "photo.jpg"], [0])
    head = [T.Resize(64)]
    prepared = PreparedSource(source, tmp_path / "kept", head, scaled_decoding=True)
    (expected, _) = next(iter(StatefulGPULoader(source, transform=head, scaled_decoding=True)))
    (whole, _) = next(iter(StatefulGPULoader(source, transform=head)))
    for _ in range(2):
        (found, _) = next(iter(StatefulGPULoader(prepared)))
        assert torch.equal(found, expected)
    assert not torch.equal(found, whole)
    with pytest.raises(ValueError, match="another decoder"):
        PreparedSource(source, tmp_path / "kept", head)


def test_large_photographs_are_decoded_small(tmp_path: Path) -> None:
    """An eighth of 2000 x 1500 is enough for a crop to 128 pixels."""
    path = tmp_path / "large.jpg"
    photograph("china").resize((2000, 1500), Image.Resampling.BICUBIC).save(path, quality=90)
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    header = probe(data)
    decoder = ScaledDecoder(make_decoder("torchvision"))
    assert decoder.decode_part(data, header, (0, 0, 1500, 2000), (128, 128)).shape == (3, 188, 250)
