"""RandomErasing: torchvision's boxes and pixels, and noise that is the same on every device."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.randomness.philox import philox4x32
from stateful_gpu_loader.transforms.color.erasing import (
    RandomErasing,
    _quantiles,
    normal_noise,
    philox,
)
from tests.transforms.pictures import as_float, decoded, noise, rows_for


@pytest.mark.parametrize("value", [0, 7.9, (1, 254.6, 3), [0.1], "random"], ids=str)
def test_pixels_are_torchvisions(value: Any) -> None:
    """Bit for bit on uint8 and float; noise is what the float image shows."""
    recipe = RandomErasing(1.0, value=value)
    for image in (
        decoded("coffee"),
        as_float(decoded("chelsea")),
        as_float(noise(37, 53)).double(),
    ):
        for top, left, height, width, *seed in rows_for(recipe, image, 3):
            made = recipe.apply(image, [top, left, height, width, *seed])
            if value == "random":
                blank = torch.zeros(image.shape)
                box = recipe.apply(blank, [top, left, height, width, *seed])
                filling = box[:, top : top + height, left : left + width]
            else:
                filling = torch.tensor(value, dtype=torch.float32).view(-1, 1, 1)
            expected = F.erase(image, top, left, height, width, filling)
            assert torch.equal(made, expected)
            assert not torch.equal(made, image)


def test_noise_is_normal_and_of_its_seed() -> None:
    """Another box of that seed begins with the same values; another seed differs."""
    recipe, image = RandomErasing(1.0, value="random"), torch.full((3, 120, 130), 9.0)
    made = recipe.apply(image, [10, 20, 90, 80, 5, 6])[:, 10:100, 20:100]
    assert stats.kstest(made.flatten().numpy(), "norm").pvalue > 1e-3
    elsewhere = recipe.apply(image, [0, 1, 90, 80, 5, 6])[:, :90, 1:81]
    assert torch.equal(elsewhere, made)
    assert not torch.equal(recipe.apply(image, [10, 20, 90, 80, 5, 7])[:, 10:100, 20:100], made)


def boxes_by_torchvision(reference: v2.RandomErasing, image: torch.Tensor, n: int) -> np.ndarray:
    params = [reference.make_params([image]) for _ in range(n)]
    boxes = [[p["i"], p["j"], p["h"], p["w"]] if p["v"] is not None else [0] * 4 for p in params]
    return np.array(boxes)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        ((375, 500), {}),
        ((60, 200), {"scale": (0.1, 1.0), "ratio": (0.2, 9.0)}),
        ((64, 64), {"scale": (0.3, 0.9), "value": "random"}),
    ],
    ids=str,
)
def test_boxes_are_distributed_as_torchvisions(
    size: tuple[int, int], arguments: dict[str, Any]
) -> None:
    """Kolmogorov-Smirnov of top, left, height, width, area, log of the aspect ratio."""
    torch.manual_seed(1)
    image, n = torch.empty(1, *size), 4000
    ours = np.array(rows_for(RandomErasing(1.0, **arguments), image, n))[:, :4]
    theirs = boxes_by_torchvision(v2.RandomErasing(1.0, **arguments), image, n)

    def statistics(boxes: np.ndarray) -> list[np.ndarray]:
        heights, widths = boxes[:, 2], boxes[:, 3]
        return [*boxes.T, heights * widths, np.log((heights + 0.1) / (widths + 0.1))]

    for a, b in zip(statistics(ours), statistics(theirs), strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-3


@pytest.mark.fuzz
@pytest.mark.parametrize("size", [(3, 4), (2, 9), (1, 5)])
def test_every_box_of_a_tiny_image_is_as_likely_as_with_torchvision(size: tuple[int, int]) -> None:
    """Chi-square over whole boxes, where rounding decides and most attempts do not fit.

    Boxes without pixels count as none.
    """
    torch.manual_seed(2)
    image, n = torch.empty(1, *size), 6000
    arguments = {"scale": (0.02, 1.0)}
    ours = Counter(tuple(row[:4]) for row in rows_for(RandomErasing(1.0, **arguments), image, n))
    boxes = boxes_by_torchvision(v2.RandomErasing(1.0, **arguments), image, n)
    boxes[(boxes[:, 2:] == 0).any(axis=1)] = 0
    theirs = Counter(map(tuple, boxes.tolist()))
    often = [box for box in ours | theirs if ours[box] + theirs[box] >= 20]
    assert sum(ours[box] + theirs[box] for box in often) > 0.98 * 2 * n
    if len(often) > 1:
        table = np.array([[count[box] for box in often] for count in (ours, theirs)])
        assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_probability(p: float) -> None:
    """Binomial test; 0 and 1 are never and always; nothing erased is the image itself."""
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


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"p": 1.1}, ValueError, "p = 1.1"),
        ({"scale": 0.5}, TypeError, "scale=0.5"),
        ({"scale": (0.5, 1.1)}, ValueError, "within 0 and 1"),
        ({"scale": (-0.1, 0.5)}, ValueError, "within 0 and 1"),
        ({"scale": (0.5, 0.1)}, ValueError, "in order"),
        ({"ratio": (0.0, 1.0)}, ValueError, "positive"),
        ({"ratio": (1.0, math.inf)}, ValueError, "finite"),
        ({"value": None}, TypeError, "NoneType"),
        ({"value": "black"}, ValueError, "'random'"),
        ({"value": math.nan}, ValueError, "finite"),
        ({"value": ()}, ValueError, "at least one"),
        ({"inplace": True}, ValueError, "inplace = True"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RandomErasing(**arguments)


def test_a_value_for_another_number_of_channels_is_refused() -> None:
    """As torchvision refuses it."""
    recipe, row = RandomErasing(1.0, value=(1, 2)), [0, 0, 2, 2, 0, 0]
    with pytest.raises(ValueError, match="3 channels"):
        recipe.apply(noise(9, 9), row)
    with pytest.raises(ValueError, match="3 channels"):
        recipe.apply_batch(noise(9, 9).unsqueeze(0), np.array([row]))


CPU = torch.device("cpu")


def test_philox_is_numpys() -> None:
    """The one that is checked against Random123's answers; the largest words among them."""
    generator = np.random.default_rng(0)
    counter = generator.integers(0, 2**32, (1000, 4), dtype=np.uint32)
    key = generator.integers(0, 2**32, (1000, 2), dtype=np.uint32)
    counter[0], key[0] = 2**32 - 1, 2**32 - 1
    made = philox(*(torch.from_numpy(words.T.astype(np.int64)) for words in (counter, key)))
    assert np.array_equal(made.numpy().T, philox4x32(counter, key))


def test_values_are_normal() -> None:
    """Kolmogorov-Smirnov and moments of 200,000 values; none beyond the outermost part."""
    values, _ = normal_noise(np.array([[7, 8]]), np.array([200_000]), CPU)
    assert values.dtype is torch.float32
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-3
    assert abs(values.std().item() - 1) < 0.01
    assert 4 < values.abs().max() < 4.34


def test_all_halves_of_all_words_are_used() -> None:
    """Eight values of a block are uncorrelated."""
    values, _ = normal_noise(np.array([[7, 8]]), np.array([80_000]), CPU)
    correlations = np.corrcoef(values.view(-1, 8).numpy().T) - np.eye(8)
    assert np.abs(correlations).max() < 0.05


def test_values_depend_on_their_own_seed_alone() -> None:
    """On neither other seeds nor how many are drawn; both halves of a seed matter."""
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
    """A change would break every saved state; the whole table, by its checksum."""
    values, _ = normal_noise(np.array([[1, 2]]), np.array([5]), CPU)
    assert (values[:5] * 2**20).tolist() == [1171639, -2114768, 1865, 257416, 160994]
    table = (_quantiles(CPU).double() * 2**20).to(torch.int64).numpy()
    assert hashlib.sha256(table.tobytes()).hexdigest()[:16] == "6c12f7acf7f7e10e"


def test_the_table_is_the_normal_distribution() -> None:
    """Within half of 2**-20 of SciPy's quantiles."""
    expected = stats.norm.ppf((np.arange(65536) + 0.5) / 65536)
    np.testing.assert_allclose(_quantiles(CPU).numpy(), expected, rtol=0, atol=0.5001 * 2**-20)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_values() -> None:
    """Bit for bit."""
    seeds, counts = np.array([[1, 2], [3, 4]]), np.array([100_001, 99])
    there, _ = normal_noise(seeds, counts, torch.device("cuda:0"))
    assert torch.equal(there.cpu(), normal_noise(seeds, counts, CPU)[0])
