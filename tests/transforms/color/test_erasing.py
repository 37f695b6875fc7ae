"""RandomErasing: torchvision's boxes and pixels, and the same noise on every device."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.randomness.philox import philox4x32
from stateful_gpu_loader.transforms.color.erasing import (
    RandomErasing,
    _quantiles,
    normal_noise,
    philox,
)
from tests.transforms.pictures import as_float, decoded, noise, rows_for


def test_what_is_erased_shows_the_noise_that_a_float_image_shows() -> None:
    recipe = RandomErasing(1.0, value="random")
    for image in (decoded("coffee"), as_float(noise(37, 53)).double()):
        for top, left, height, width, *seed in rows_for(recipe, image, 3):
            numbers = [top, left, height, width, *seed]
            shown = recipe.apply(torch.zeros(image.shape), numbers)
            filling = shown[:, top : top + height, left : left + width]
            expected = F.erase(image, top, left, height, width, filling)
            assert torch.equal(recipe.apply(image, numbers), expected)
            assert not torch.equal(expected, image)


def test_noise_is_of_its_seed() -> None:
    """Another box of that seed begins with the same values; another seed differs."""
    recipe, image = RandomErasing(1.0, value="random"), torch.full((3, 120, 130), 9.0)
    made = recipe.apply(image, [10, 20, 90, 80, 5, 6])[:, 10:100, 20:100]
    elsewhere = recipe.apply(image, [0, 1, 90, 80, 5, 6])[:, :90, 1:81]
    assert torch.equal(elsewhere, made)
    assert not torch.equal(recipe.apply(image, [10, 20, 90, 80, 5, 7])[:, 10:100, 20:100], made)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_probability(p: float) -> None:
    """Binomial test; 0 and 1 are never and always; with nothing erased the image itself returns."""
    image = noise(40, 40)
    rows = rows_for(RandomErasing(p), image, 5000)
    erased = [row for row in rows if row[2]]
    assert stats.binomtest(len(erased), len(rows), p).pvalue > 1e-3
    smallest = RandomErasing(p).draw(np.zeros((1, 25)), np.array([[40, 40]])).numbers
    assert smallest[0, 2:4].all() == (p > 0)
    for row in rows[:50]:
        assert (RandomErasing(p).apply(image, row) is image) == (not row[2])


def test_boxes_lie_inside_and_reach_every_edge() -> None:
    """The largest draw still lies inside, the smallest is the corner."""
    lowest, highest = np.full((1, 25), 0.3), np.full((1, 25), 0.3)
    lowest[:, :3], highest[:, :3] = 0.0, 1 - 2.0**-32
    recipe, size = RandomErasing(1.0), np.array([[101, 203]])
    ((top, left, *_),) = recipe.draw(lowest, size).numbers.tolist()
    assert (top, left) == (0, 0)
    ((top, left, height, width, *_),) = recipe.draw(highest, size).numbers.tolist()
    assert (top + height, left + width) == (101, 203)


def test_a_value_for_another_number_of_channels_is_refused() -> None:
    """torchvision refuses it, too."""
    recipe, row = RandomErasing(1.0, value=(1, 2)), [0, 0, 2, 2, 0, 0]
    with pytest.raises(ValueError, match="3 channels"):
        recipe.apply(noise(9, 9), row)
    with pytest.raises(ValueError, match="3 channels"):
        recipe.apply_batch(noise(9, 9).unsqueeze(0), np.array([row]))


CPU = torch.device("cpu")


def test_philox_is_numpys() -> None:
    """Up to the largest words; NumPy's is checked against Random123's answers elsewhere."""
    generator = np.random.default_rng(0)
    counter = generator.integers(0, 2**32, (1000, 4), dtype=np.uint32)
    key = generator.integers(0, 2**32, (1000, 2), dtype=np.uint32)
    counter[0], key[0] = 2**32 - 1, 2**32 - 1
    made = philox(*(torch.from_numpy(words.T.astype(np.int64)) for words in (counter, key)))
    assert np.array_equal(made.numpy().T, philox4x32(counter, key))


def test_values_are_normal_and_uncorrelated() -> None:
    """Kolmogorov-Smirnov and moments of 200,000 values, none beyond the outermost part.

    The eight values of a block are uncorrelated: all halves of all words are used.
    """
    values, _ = normal_noise(np.array([[7, 8]]), np.array([200_000]), CPU)
    assert values.dtype is torch.float32
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-3
    assert abs(values.std().item() - 1) < 0.01
    assert 4 < values.abs().max() < 4.34
    correlations = np.corrcoef(values.view(-1, 8).numpy().T) - np.eye(8)
    assert np.abs(correlations).max() < 0.05


def test_values_depend_on_their_own_seed_alone() -> None:
    """Not on other seeds nor on the number of values; both halves of a seed matter."""
    seeds = np.array([[1, 0], [0, 1], [2**32 - 1, 2**32 - 1], [1, 0]])
    counts = np.array([17, 1, 30, 5])
    values, starts = normal_noise(seeds, counts, CPU)
    parts = [values[start : start + count] for start, count in zip(starts, counts, strict=True)]
    for seed, count, part in zip(seeds, counts, parts, strict=True):
        alone, _ = normal_noise(seed[None], count[None], CPU)
        assert torch.equal(alone[:count], part)
    assert torch.equal(parts[0][:5], parts[3])
    assert not torch.equal(parts[0][:1], parts[1])
    assert not torch.equal(parts[0], parts[2][:17])


def test_golden_values() -> None:
    """A change would break every saved state; the whole table, by its checksum.

    The table is the normal distribution's, within half of 2**-20 of SciPy's quantiles.
    """
    values, _ = normal_noise(np.array([[1, 2]]), np.array([5]), CPU)
    assert (values[:5] * 2**20).tolist() == [1171639, -2114768, 1865, 257416, 160994]
    table = (_quantiles(CPU).double() * 2**20).to(torch.int64).numpy()
    assert hashlib.sha256(table.tobytes()).hexdigest()[:16] == "6c12f7acf7f7e10e"
    expected = stats.norm.ppf((np.arange(65536) + 0.5) / 65536)
    np.testing.assert_allclose(_quantiles(CPU).numpy(), expected, rtol=0, atol=0.5001 * 2**-20)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_values() -> None:
    """Bit for bit."""
    seeds, counts = np.array([[1, 2], [3, 4]]), np.array([100_001, 99])
    there, _ = normal_noise(seeds, counts, torch.device("cuda:0"))
    assert torch.equal(there.cpu(), normal_noise(seeds, counts, CPU)[0])
