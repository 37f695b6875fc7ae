"""ToDtype, ToMemoryFormat and Normalize: torchvision's pixels, and their refusals."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.transforms import Normalize
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise
from tests.transforms.ragged_pictures import drawn_for, ragged

LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize("memory_format", [LAST, FIRST])
def test_an_image_is_laid_out_and_equal(memory_format: torch.memory_format) -> None:
    recipe = T.ToMemoryFormat(memory_format)
    for image in (noise(5, 7, 1), noise(5, 7)):
        for given in (image, image.contiguous(), image.to(torch.float32)):
            made = recipe.apply(given, [])
            assert torch.equal(made, given)
            assert made.unsqueeze(0).is_contiguous(memory_format=memory_format)
            batch = torch.stack([given, given])
            laid_out = recipe.apply_batch(batch, torch.empty(2, 0).numpy())
            assert torch.equal(laid_out, batch)
            assert laid_out.is_contiguous(memory_format=memory_format)


def test_the_last_one_counts_for_the_batch() -> None:
    assert T.Compose([T.Resize(8)]).memory_format is FIRST
    assert T.Compose([T.ToMemoryFormat(LAST), T.Resize(8)]).memory_format is LAST
    assert T.Compose([T.ToMemoryFormat(LAST), T.ToMemoryFormat(FIRST)]).memory_format is FIRST


@pytest.mark.parametrize(
    "recipes",
    [
        [T.ToMemoryFormat(LAST), T.Resize((16, 18)), T.Normalize([0.5], [0.5])],
        [T.Resize((16, 18)), T.Normalize([0.5], [0.5]), T.ToMemoryFormat(LAST)],
        [T.Resize((16, 18)), T.ToMemoryFormat(LAST), T.ColorJitter(0.5), T.RandomGrayscale()],
    ],
    ids=str,
)
def test_a_batch_is_laid_out_wherever_the_recipe_stands(recipes: list[T.Recipe]) -> None:
    images = ragged()
    asked = T.Compose(recipes)
    made = asked.apply_batch(images, drawn_for(asked, images))
    assert made.is_contiguous(memory_format=LAST)
    assert not made.is_contiguous()
    # A recipe that does nothing takes its place, so that the streams stay.
    plain = T.Compose([T.ToMemoryFormat(FIRST) if "Memory" in str(r) else r for r in recipes])
    usual = plain.apply_batch(images, drawn_for(plain, images))
    assert usual.is_contiguous()
    assert torch.equal(made, usual)


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def test_every_level_of_every_channel() -> None:
    """All 256 values, within 1e-6; floats bit for bit, keeping the dtype."""
    recipe = Normalize(MEAN, STD)
    image = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    expected = F.normalize(F.to_dtype(image, torch.float32, scale=True), MEAN, STD)
    torch.testing.assert_close(recipe.apply(image, []), expected, rtol=0, atol=1e-6)
    for dtype in (torch.float32, torch.float64):
        floats = as_float(decoded("coffee")).to(dtype)
        made = recipe.apply(floats, [])
        assert made.dtype is recipe.dtype_after(dtype) is dtype
        assert torch.equal(made, F.normalize(floats, MEAN, STD))


def test_into_the_batch_gives_the_same_bits() -> None:
    """The fused and the plain way have one result; the rows around stay unchanged."""
    recipe = Normalize(MEAN, STD)
    for size in ODD_SIZES:
        image, batch = noise(*size), torch.full((3, 3, *size), -7.0)
        recipe.apply_into(image, [], batch[1])
        assert torch.equal(batch[1], recipe.apply(image, []))
        assert (batch[[0, 2]] == -7).all()


def test_wrong_room_in_the_batch_and_other_integers_are_refused() -> None:
    """Nothing is silently broadcast, resized or converted. torchvision refuses integers, too."""
    bytes_ = torch.empty(3, 8, 8, dtype=torch.uint8)
    for out in (torch.empty(3, 8, 9), bytes_, torch.empty(1, 8, 8)):
        with pytest.raises(ValueError, match="has room for"):
            Normalize(MEAN, STD).apply_into(noise(8, 8), [], out)
    with pytest.raises(TypeError, match="float tensor"):
        Normalize(MEAN, STD).apply(noise(4, 4).int(), [])
