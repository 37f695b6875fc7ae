"""ToMemoryFormat: strides change, pixels do not."""

from __future__ import annotations

import pytest
import torch

from stateful_gpu_loader import transforms as T
from tests.transforms.pictures import noise
from tests.transforms.ragged_pictures import drawn_for, ragged

LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize("memory_format", [LAST, FIRST])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_laid_out_and_equal(memory_format: torch.memory_format, channels: int) -> None:
    image = noise(5, 7, channels)
    recipe = T.ToMemoryFormat(memory_format)
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
    # In the place of the recipe one that does nothing, so that the streams stay.
    plain = T.Compose([T.ToMemoryFormat(FIRST) if "Memory" in str(r) else r for r in recipes])
    usual = plain.apply_batch(images, drawn_for(plain, images))
    assert usual.is_contiguous()
    assert torch.equal(made, usual)


def test_fingerprint_names_the_format() -> None:
    assert T.ToMemoryFormat(LAST).fingerprint() == (
        "ToMemoryFormat(memory_format=torch.channels_last)"
    )


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="channels_last"):
        T.ToMemoryFormat("channels_last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be one of"):
        T.ToMemoryFormat(torch.preserve_format)
