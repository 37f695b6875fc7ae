"""Pointwise: folded, Normalize and ToDtype give the same bits as one by one."""

from __future__ import annotations

import pytest
import torch

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.transforms.batches.placement import Pointwise

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BYTES = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)

CHAINS: list[list[T.Recipe]] = [
    [T.Normalize(MEAN, STD)],
    [T.ToDtype(torch.float32, scale=True)],
    [T.ToDtype(torch.float32)],
    [T.ToDtype(torch.float16, scale=True)],
    [T.ToDtype(torch.bfloat16, scale=True)],
    [T.ToDtype(torch.bfloat16)],
    [T.ToDtype(torch.uint8, scale=True), T.Normalize([0.5], [0.25])],
    [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)],
    [T.Normalize(MEAN, STD), T.ToDtype(torch.float16)],
    [T.Normalize(MEAN, STD), T.ToDtype(torch.bfloat16, scale=True)],
    [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD), T.Normalize([0.1], [2.0])],
]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_folded_is_one_after_the_other(chain: list[T.Recipe]) -> None:
    """Every value of a byte, bit for bit."""
    expected, folded = BYTES, Pointwise()
    for recipe in chain:
        expected = recipe.apply(expected, [])
        after = recipe.pointwise(folded)
        assert after is not None
        folded = after
    made = folded.apply(BYTES.unsqueeze(0).to(torch.float32))
    assert made.dtype is expected.dtype is folded.dtype
    assert torch.equal(made[0], expected)


@pytest.mark.parametrize(
    ("recipe", "before"),
    [
        (T.Normalize(MEAN, STD), torch.float16),
        (T.Normalize(MEAN, STD), torch.bfloat16),
        (T.ToDtype(torch.float32), torch.float16),
        (T.ToDtype(torch.uint8, scale=True), torch.float32),
        (T.ToDtype(torch.int32), torch.uint8),
        (T.ToDtype(torch.float64), torch.uint8),
        (T.RandomHorizontalFlip(), torch.uint8),
    ],
    ids=str,
)
def test_what_is_not_computed_in_float32_does_not_fold(
    recipe: T.Recipe, before: torch.dtype
) -> None:
    assert recipe.pointwise(Pointwise().cast(before)) is None


def test_numbers_for_other_channels_do_not_fit() -> None:
    """Normalize of three numbers makes three channels of one."""
    assert Pointwise().then("-", [1.0, 2.0, 3.0]).fits(3)
    assert not Pointwise().then("-", [1.0, 2.0, 3.0]).fits(1)
    assert Pointwise().then("*", [1.0]).fits(4)
