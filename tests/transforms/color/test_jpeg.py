"""JPEG: torchvision's on a CPU, and the same bytes from integers on any device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import JPEG
from stateful_gpu_loader.transforms.color.jpeg import compressed
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
QUALITIES = [1, 2, 10, 37, 49, 50, 51, 75, 90, 99, 100]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "size", [*ODD_SIZES[:6], (8, 8), (9, 17), (16, 16), (15, 33), (2, 4), (6, 6), (64, 50)], ids=str
)
def test_whole_numbers_give_libjpegs_bytes(size: tuple[int, int], channels: int) -> None:
    """Every quality beside the others, in one batch; odd edges and tiny chroma included."""
    images = torch.stack([noise(*size, channels, seed=i) for i in range(len(QUALITIES))])
    made = compressed(images, np.array(QUALITIES))
    for image, quality, one in zip(images, QUALITIES, made, strict=True):
        assert torch.equal(one, F.jpeg(image.contiguous(), quality)), quality


@pytest.mark.parametrize("name", ["coffee", "chelsea"])
def test_photographs(name: str) -> None:
    image = decoded(name, (100, 50, 351, 303))
    images, numbers = torch.stack([image] * len(QUALITIES)), np.array(QUALITIES)
    before, made = images.clone(), compressed(images, numbers)
    assert torch.equal(made, JPEG((1, 100)).apply_batch(images, numbers[:, None]))
    assert torch.equal(images, before)
    for quality, one in zip(QUALITIES, made, strict=True):
        expected = F.jpeg(image.contiguous(), quality)
        assert torch.equal(one, expected)
        assert torch.equal(JPEG(quality).apply(image, [quality]), expected)


def test_on_a_device_nothing_is_read_back() -> None:
    """On a device without memory, where reading any value raises."""
    images = torch.empty(2, 3, 20, 30, dtype=torch.uint8, device="meta")
    assert JPEG(50).apply_batch(images, np.array([[3], [50]])).is_meta
    assert JPEG(50).apply(images[0], [50]).is_meta


def test_qualities_are_all_as_likely_both_ends_included() -> None:
    recipe = JPEG((5, 8))
    given = np.random.default_rng(0).random((4000, 1))
    counts = np.bincount(recipe.draw(given, np.ones((4000, 2), np.int64)).numbers[:, 0])
    assert counts[:5].sum() == 0
    assert counts[5:].min() > 900
    torch.manual_seed(0)
    theirs = {v2.JPEG((5, 8)).make_params([])["quality"] for _ in range(200)}
    assert theirs == {5, 6, 7, 8}


def test_bad_arguments() -> None:
    for quality in (0, 101, (9, 5), (1, 2, 3)):
        with pytest.raises(ValueError, match="quality"):
            JPEG(quality)
    with pytest.raises(TypeError, match="quality"):
        JPEG(7.5)  # type: ignore[arg-type]
    for image in (as_float(noise(8, 8)), noise(8, 8, 2)):
        with pytest.raises(TypeError, match="Remedy: put it before Normalize"):
            JPEG(9).apply(image, [9])
