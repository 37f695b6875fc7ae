"""AutoAugment and AugMix: their numbers, and torchvision's results for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import AutoAugmentPolicy, v2

from stateful_gpu_loader.transforms import AugMix, AutoAugment, Recipe
from stateful_gpu_loader.transforms.auto_augment import log_gamma_quantile
from stateful_gpu_loader.transforms.policies import Operation
from tests.transforms.pictures import as_float, decoded

SPACE = v2.AutoAugment._AUGMENTATION_SPACE
NAMES = [one.name.title().replace("_", "") for one in Operation]


def numbers_of(recipe: Recipe, n: int, size: tuple[int, int] = (200, 300)) -> np.ndarray:
    given = np.random.default_rng(0).random((n, recipe.num_draws))
    return recipe.draw(given, np.full((n, 2), size)).numbers


@pytest.mark.parametrize("policy", list(AutoAugmentPolicy), ids=lambda policy: policy.value)
def test_every_pair_is_torchvisions(policy: AutoAugmentPolicy) -> None:
    """Both operations of each of 25, their magnitudes, and their probabilities."""
    recipe, size = AutoAugment(policy), (224, 331)
    sizes = np.array([size])
    for i, pair in enumerate(v2.AutoAugment(policy)._policies):
        for place, (name, chance, level) in enumerate(pair):
            line = SPACE[name][0](10, *size)
            magnitude = 0.0 if line is None else float(line[level])
            for likely, acts in ((max(chance - 1e-9, 0.0), True), (chance + 1e-9, False)):
                row = np.full((1, 5), 0.999)
                row[0, 0], row[0, 1 + place] = (i + 0.5) / 25, likely
                drawn = recipe.draw(row, sizes).numbers[0, 2 * place : 2 * place + 2]
                expected = [NAMES.index(name), magnitude] if acts and chance else [0, 0]
                assert drawn.tolist() == pytest.approx(expected, abs=0, rel=1e-6)


def recorded(reference: Any, monkeypatch: pytest.MonkeyPatch, n: int) -> list[list[float]]:
    """Return operations and magnitudes that torchvision applies to each of n images."""
    rows: list[list[float]] = []

    def record(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        rows[-1] += [NAMES.index(name), magnitude]
        return image

    monkeypatch.setattr(reference, "_apply_image_or_video_transform", record)
    for _ in range(n):
        rows.append([])
        reference(torch.empty(3, 200, 300, dtype=torch.uint8))
    return rows


def without_identities(numbers: np.ndarray) -> list[list[float]]:
    return [
        [value for pair in row.reshape(-1, 2).tolist() if pair[0] for value in pair]
        for row in numbers
    ]


def assert_alike(ours: list[list[float]], theirs: list[list[float]]) -> None:
    """Compare the number of an image's operations, which they are, and their magnitudes."""
    counts = [np.bincount([len(row) // 2 for row in rows], minlength=10) for rows in (ours, theirs)]
    table = np.array(counts)
    assert stats.chi2_contingency(table[:, table.any(axis=0)]).pvalue > 1e-4
    pairs = [
        np.array([pair for row in rows for pair in zip(row[::2], row[1::2], strict=True)])
        for rows in (ours, theirs)
    ]
    table = np.array([np.bincount(some[:, 0].astype(int), minlength=15) for some in pairs])
    assert stats.chi2_contingency(table[:, table.any(axis=0)]).pvalue > 1e-4
    for operation in set(pairs[0][:, 0]):
        one, other = (some[some[:, 0] == operation, 1] for some in pairs)
        assert stats.ks_2samp(one.round(4), other.round(4)).pvalue > 1e-4


@pytest.mark.fuzz
@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_pairs_are_distributed_as_torchvisions(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    torch.manual_seed(2)
    theirs = recorded(v2.AutoAugment(AutoAugmentPolicy(policy)), monkeypatch, 6000)
    assert_alike(without_identities(numbers_of(AutoAugment(policy), 6000)), theirs)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "arguments", [{}, {"severity": 10, "chain_depth": 2, "all_ops": False}, {"mixture_width": 1}]
)
def test_chains_are_distributed_as_torchvisions(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    torch.manual_seed(2)
    theirs = recorded(v2.AugMix(**arguments), monkeypatch, 2000)
    recipe = AugMix(**arguments)
    ours = numbers_of(recipe, 2000)[:, 1 + recipe.mixture_width :]
    assert_alike(without_identities(ours), theirs)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_weights_are_distributed_as_torchvisions(alpha: float) -> None:
    recipe = AugMix(mixture_width=3, alpha=alpha)
    ours = numbers_of(recipe, 2000)[:, :4]
    assert np.abs(ours.sum(axis=1) - 1).max() <= 3 * 2.0**-24
    torch.manual_seed(1)
    own = torch._sample_dirichlet(torch.full((2000, 2), alpha))
    chains = torch._sample_dirichlet(torch.full((2000, 3), alpha)) * own[:, 1:]
    theirs = torch.cat((own[:, :1], chains), dim=1).numpy()
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-4


@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.5, 1.0, 1.5, 30.0, 1e4])
def test_quantiles_of_the_gamma_distribution(alpha: float) -> None:
    for uniform in (1e-9, 0.01, 0.3, 0.5, 0.9, 0.999):
        exact = stats.gamma.ppf(uniform, alpha)
        if exact > 1e-280:
            found = log_gamma_quantile(alpha, uniform)
            assert found == pytest.approx(np.log(exact), abs=1e-8, rel=0)
    lowest = log_gamma_quantile(alpha, 0.0)
    assert lowest == log_gamma_quantile(alpha, 2.0**-60) < log_gamma_quantile(alpha, 2.0**-50)


def mixed_by_torchvision(
    monkeypatch: pytest.MonkeyPatch, recipe: AugMix, image: torch.Tensor, numbers: list[float]
) -> torch.Tensor:
    """Run torchvision's AugMix with these numbers."""
    width, deepest = recipe.mixture_width, recipe._deepest
    reference = v2.AugMix(mixture_width=width, chain_depth=deepest, fill=9)
    weights = torch.tensor(numbers[: 1 + width], dtype=torch.float64)
    shares = weights[1:] / (1 - weights[0])
    draws = iter([torch.stack((weights[0], 1 - weights[0]))[None], shares[None]])
    monkeypatch.setattr(reference, "_sample_dirichlet", lambda _: next(draws).float())
    steps = iter(np.array(numbers[1 + width :]).reshape(-1, 2).tolist())
    original = reference._apply_image_or_video_transform

    def apply(image: Any, _: str, __: float, **how: Any) -> Any:
        operation, magnitude = next(steps)
        return original(image, NAMES[int(operation)], magnitude, **how)

    monkeypatch.setattr(reference, "_apply_image_or_video_transform", apply)
    return reference(image)


@pytest.mark.parametrize("all_ops", [True, False])
def test_the_mixture_is_torchvisions(monkeypatch: pytest.MonkeyPatch, all_ops: bool) -> None:
    """Bytes to one level, floats to a millionth: weights are rounded in another order."""
    recipe = AugMix(all_ops=all_ops, fill=9)
    photograph = decoded("coffee")[:, :100, :120]
    for image in (photograph, as_float(photograph)):
        for numbers in numbers_of(recipe, 6, (100, 120)).tolist():
            made = recipe.apply(image, numbers)
            expected = mixed_by_torchvision(monkeypatch, recipe, image, numbers)
            assert made.dtype is expected.dtype
            difference = (made.double() - expected.double()).abs()
            assert difference.max() <= (2e-6 if made.is_floating_point() else 1)
            assert made.is_floating_point() or (difference > 0).double().mean() < 0.01


def test_bad_arguments() -> None:
    for make, arguments in (
        (AutoAugment, {"policy": "mnist"}),
        (AugMix, {"severity": 0}),
        (AugMix, {"severity": 11}),
        (AugMix, {"mixture_width": 0}),
        (AugMix, {"alpha": 0}),
        (AugMix, {"interpolation": "bicubic"}),
    ):
        with pytest.raises(ValueError, match=r"must be|is outside|not supported"):
            make(**arguments)
