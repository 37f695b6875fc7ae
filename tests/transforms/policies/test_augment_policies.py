"""TrivialAugmentWide and RandAugment: torchvision's results; batches of all automatic policies."""

from __future__ import annotations

import itertools

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


@pytest.mark.parametrize(
    ("num_bins", "size"), [(2, (224, 224)), (10, (331, 100)), (31, (63, 1000))]
)
def test_every_magnitude_is_torchvisions(num_bins: int, size: tuple[int, int]) -> None:
    """Each bin of each operation, as float32; the last bit where torch has FMA.

    The last uniform of an operation turns about what has a direction.
    """
    places, n = (np.arange(len(NAMES)) + 0.5) / len(NAMES), len(NAMES)
    sizes, tolerance = np.array([size] * n), 0.0 if HAS_FMA else 1e-6
    for bin_, positive in itertools.product(range(num_bins), (0.75, 0.25, 0.5)):
        turns = np.full(n, positive)
        trivial = np.stack((places, np.full(n, (bin_ + 0.5) / num_bins), turns), axis=1)
        for recipe, given in (
            (TrivialAugmentWide(num_bins), trivial),
            (RandAugment(1, bin_, num_bins), np.stack((places, turns), axis=1)),
        ):
            space = getattr(v2, type(recipe).__name__)._AUGMENTATION_SPACE
            for operation, drawn in enumerate(recipe.draw(given, sizes).numbers):
                make_line, is_signed = space[NAMES[operation]]
                line = make_line(num_bins, *size)
                expected = 0.0 if line is None else float(line[bin_])
                expected = -expected if is_signed and positive < 0.5 else expected
                assert drawn[0] == operation
                assert drawn[1] == pytest.approx(expected, abs=0, rel=tolerance)


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
    n = 30
    images = torch.stack([decoded("coffee")[:, i : i + 40, i : i + 40] for i in range(n)])
    drawn = recipe.draw(
        uniforms(1, 2, np.arange(n), Stream.RECIPES, recipe.num_draws), sizes_of(list(images))
    )
    assert np.array_equal(drawn.sizes, sizes_of(list(images)))
    for batch in (images, as_float(images[:10]).contiguous()):
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
