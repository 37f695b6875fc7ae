"""TrivialAugmentWide and RandAugment: torchvision's results; batches of all automatic policies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from stateful_gpu_loader.randomness.philox import Stream, uniforms
from stateful_gpu_loader.transforms import (
    AugMix,
    AutoAugment,
    RandAugment,
    Recipe,
    TrivialAugmentWide,
)
from stateful_gpu_loader.transforms.policies import Operation
from tests.transforms.pictures import as_float, decoded, sizes_of

NAMES = list(v2.TrivialAugmentWide._AUGMENTATION_SPACE)
HAS_FMA = torch.backends.cpu.get_cpu_capability() != "DEFAULT"


@pytest.mark.parametrize("num_bins", [2, 10, 31])
@pytest.mark.parametrize("size", [(224, 224), (331, 100), (63, 1000)])
def test_every_magnitude_is_torchvisions(num_bins: int, size: tuple[int, int]) -> None:
    """Each bin of each operation, as float32; the last bit where torch has FMA."""
    for bin_ in range(num_bins):
        trivial, rand = TrivialAugmentWide(num_bins), RandAugment(1, bin_, num_bins)
        for operation, name in enumerate(NAMES):
            chosen, positive = (operation + 0.5) / 14, 0.75
            sizes = np.array([size])
            row = [[chosen, (bin_ + 0.5) / num_bins, positive]]
            ours = [
                (TrivialAugmentWide, trivial.draw(np.array(row), sizes)),
                (RandAugment, rand.draw(np.array([[chosen, positive]]), sizes)),
            ]
            for kind, drawn in ours:
                space = getattr(v2, kind.__name__)._AUGMENTATION_SPACE
                line = space[name][0](num_bins, *size)
                expected = 0.0 if line is None else float(line[bin_])
                assert drawn.numbers[0, 0] == operation
                tolerance = 0.0 if HAS_FMA else 1e-6
                assert drawn.numbers[0, 1] == pytest.approx(expected, abs=0, rel=tolerance)


def test_only_directions_are_turned_about() -> None:
    """By the last uniform of an operation."""
    for operation, name in enumerate(NAMES):
        row = np.array([[(operation + 0.5) / 14, 0.75, 0.25], [(operation + 0.5) / 14, 0.75, 0.5]])
        one, other = TrivialAugmentWide().draw(row, np.array([[9, 9]] * 2)).numbers[:, 1]
        assert one == (-other if v2.TrivialAugmentWide._AUGMENTATION_SPACE[name][1] else other)


POLICIES = [
    TrivialAugmentWide(),
    TrivialAugmentWide(11, "bilinear", (1, 2, 3)),
    RandAugment(),
    RandAugment(3, 20, interpolation="bilinear", fill=9),
    RandAugment(0),
    AutoAugment(),
    AutoAugment("cifar10", "bilinear", (1, 2, 3)),
    AugMix(),
    AugMix(5, 2, 1, 0.3, False, "nearest", 7),
]


@pytest.mark.parametrize("recipe", POLICIES, ids=repr)
def test_a_batch_is_its_images_one_by_one(recipe: Recipe) -> None:
    """Bit for bit, through all operations, on bytes and floats."""
    n = 60
    images = torch.stack([decoded("coffee")[:, i : i + 40, i : i + 40] for i in range(n)])
    drawn = recipe.draw(
        uniforms(1, 2, np.arange(n), Stream.RECIPES, recipe.num_draws), sizes_of(list(images))
    )
    assert np.array_equal(drawn.sizes, sizes_of(list(images)))
    for batch in (images, as_float(images[:30]).contiguous()):
        before, numbers = batch.clone(), drawn.numbers[: len(batch)]
        made = recipe.apply_batch(batch, numbers)
        alone = [recipe.apply(*row) for row in zip(batch, numbers.tolist(), strict=True)]
        assert torch.equal(made, torch.stack(alone))
        assert torch.equal(batch, before)


def test_operations_follow_each_other() -> None:
    """The second works on the result of the first."""
    image = decoded("coffee")[:, :50, :60]
    brightened = v2.functional.adjust_brightness(image, 1.3)
    numbers = [Operation.BRIGHTNESS, 0.3, Operation.EQUALIZE, 0.0]
    made = RandAugment().apply(image, numbers)
    assert torch.equal(made, v2.functional.equalize(brightened))
