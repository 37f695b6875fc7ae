"""Numbers are distributed as torchvision's, over thousands of draws of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

from stateful_gpu_loader import transforms as T
from tests.torchvisions_words import in_torchvisions_words
from tests.transforms.pictures import rows_for

Numbers = npt.NDArray[np.float64]
LEAST_PROBABILITY = 1e-4
OPERATIONS = list(v2.TrivialAugmentWide._AUGMENTATION_SPACE)


def by_keys(*keys: str) -> Callable[[dict[str, Any]], list[float]]:
    """Return the numbers of torchvision's parameters, in the recipe's order."""
    return lambda params: [float(n) for key in keys for n in np.ravel(params[key])]


def crop(params: dict[str, Any]) -> list[float]:
    return [0, 0, 0, 0, params["top"], params["left"]]


def erased(params: dict[str, Any]) -> list[float]:
    """Return the box. A box without pixels counts as none."""
    box = [params[side] for side in "ijhw"]
    return box if params["v"] is not None and box[2] * box[3] else [0] * 4


def shape(boxes: Numbers) -> Sequence[Numbers]:
    """Return the area and the logarithm of the aspect ratio."""
    heights, widths = boxes[:, 2], boxes[:, 3]
    return heights * widths, np.log((heights + 0.1) / (widths + 0.1))


@dataclass(frozen=True)
class Case:
    """A recipe, and the place of the numbers in torchvision's."""

    kind: str
    arguments: dict[str, Any]
    read: Callable[[dict[str, Any]], list[float]]
    size: tuple[int, int] = (45, 60)
    more: Callable[[Numbers], Sequence[Numbers]] = lambda numbers: ()
    """Further statistics of the numbers."""
    together: tuple[int, ...] = ()
    """Columns whose combinations are compared too."""

    def ours(self, n: int) -> Numbers:
        recipe = getattr(T, self.kind)(**self.arguments)
        if isinstance(recipe, T.BatchRecipe):
            uniforms = np.random.default_rng(0).random((n, recipe.num_draws))
            return np.array([recipe.draw(row, 64, self.size) for row in uniforms])
        return np.array(rows_for(recipe, torch.empty(1, *self.size), n))

    def theirs(self, n: int) -> Numbers:
        torch.manual_seed(3)
        reference = getattr(v2, self.kind)(**in_torchvisions_words(self.arguments))
        image = torch.empty(1, *self.size)
        return np.array([self.read(reference.make_params([image])) for _ in range(n)])


def by_keys_of_edge(params: dict[str, Any]) -> list[float]:
    """Return height and width, of which torchvision draws the shorter."""
    (shorter,) = params["size"]
    return [shorter, int(shorter * 60 / 45)]


def photometric(params: dict[str, Any]) -> list[float]:
    """Return pairs of whether and by what, and whether contrast comes first."""
    numbers: list[float] = []
    for name in ("brightness", "contrast", "saturation", "hue"):
        factor = params[f"{name}_factor"]
        numbers += [0.0, 0.0] if factor is None else [1.0, factor]
    return [*numbers, float(params["contrast_before"])]


def corners(params: dict[str, Any]) -> list[float]:
    """Return the corners' new places, which the test puts in place of the coefficients."""
    return [1.0, *np.ravel(params["coefficients"]).tolist()]


BOX = by_keys("top", "left", "height", "width")
AFFINE = by_keys("angle", "translate", "scale", "shear")
JITTER = by_keys("fn_idx", *(f"{name}_factor" for name in T.ColorJitter.number_names[4:]))
WHOLE_BOX = (0, 1, 2, 3)

CASES = {
    "affine": Case(
        "RandomAffine",
        {
            "degrees": (-20, 70),
            "translate": (0.02, 0.3),
            "scale": (0.5, 3),
            "shear": (1, 2, 3, 9),
        },
        AFFINE,
    ),
    "affine, wide": Case(
        "RandomAffine", {"degrees": 10, "translate": (1.0, 0.0), "shear": 30}, AFFINE
    ),
    "rotation": Case("RandomRotation", {"degrees": (-20, 70)}, by_keys("angle")),
    "blur": Case(
        "GaussianBlur", {"kernel_size": 3, "sigma": (0.2, 3)}, lambda params: params["sigma"][:1]
    ),
    "jitter": Case(
        "ColorJitter",
        dict(zip(T.ColorJitter.number_names[4:], (0.4, 0.4, 0.4, 0.1), strict=True)),
        JITTER,
        together=(0, 1, 2, 3),
    ),
    "zoom out": Case("RandomZoomOut", {"p": 1.0, "side_range": (1.1, 3)}, by_keys("padding")),
    "random resize": Case("RandomResize", {"min_size": 20, "max_size": 33}, by_keys_of_edge),
    "shortest size": Case(
        "RandomShortestSize",
        {"min_size": [20, 30, 60], "max_size": 70},
        by_keys("size"),
        together=(0, 1),
    ),
    "scale jitter": Case("ScaleJitter", {"target_size": (90, 40)}, by_keys("size")),
    "perspective": Case("RandomPerspective", {"p": 1.0}, corners),
    "photometric": Case("RandomPhotometricDistort", {}, photometric),
    "crop": Case("RandomCrop", {"size": 4}, crop, size=(6, 7), together=(4, 5)),
    **{
        f"resized crop {size} {arguments}": Case(
            "RandomResizedCrop",
            {"size": 8, **arguments},
            BOX,
            size=size,
            more=shape,
            together=WHOLE_BOX if max(size) < 10 else (),
        )
        for size, arguments in (
            ((333, 77), {}),
            ((240, 320), {"scale": (0.5, 1.0), "ratio": (0.5, 2.0)}),
            ((240, 320), {"scale": (0.9, 1.3)}),
            ((3, 4), {}),
        )
    },
    **{
        f"erasing {size} {arguments}": Case(
            "RandomErasing",
            {"p": 1.0, **arguments},
            erased,
            size=size,
            more=shape,
            together=WHOLE_BOX if max(size) < 10 else (),
        )
        for size, arguments in (
            ((60, 200), {"scale": (0.1, 1.0), "ratio": (0.2, 9.0)}),
            ((375, 500), {"scale": (0.3, 0.9), "value": "random"}),
            ((2, 9), {"scale": (0.02, 1.0)}),
        )
    },
    **{
        f"mixup {alpha}": Case("MixUp", {"alpha": alpha, "num_classes": 5}, by_keys("lam"))
        for alpha in (0.2, 1.0, 4.0)
    },
    **{
        f"cutmix {alpha}": Case(
            "CutMix",
            {"alpha": alpha, "num_classes": 5},
            by_keys("box", "lam_adjusted"),
            size=(120, 200),
        )
        for alpha in (0.3, 1.0)
    },
}


def assert_same_counts(ours: Numbers, theirs: Numbers) -> None:
    """Compare counts of whole rows by chi-square; rare ones are counted together."""
    _, rows = np.unique(np.concatenate((ours, theirs)), axis=0, return_inverse=True)
    rows = rows.reshape(-1)
    counts = [np.bincount(part, minlength=rows.max() + 1) for part in np.split(rows, [len(ours)])]
    table = np.stack(counts)
    rare = table.sum(axis=0) < 20
    assert table[:, rare].sum() < 0.03 * len(rows)
    table = np.column_stack((table[:, ~rare], table[:, rare].sum(axis=1)))
    table = table[:, table.any(axis=0)]
    assert table.shape[1] == 1 or stats.chi2_contingency(table).pvalue > LEAST_PROBABILITY


def assert_same_column(one: Numbers, other: Numbers) -> None:
    if len(np.unique(np.concatenate((one, other)))) < 15:
        assert_same_counts(one[:, None], other[:, None])
    else:
        assert stats.ks_2samp(one, other).pvalue > LEAST_PROBABILITY


@pytest.mark.fuzz
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_numbers_are_distributed_as_torchvisions(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """Kolmogorov-Smirnov of each number; chi-square of those with few values."""
    solved = "torchvision.transforms.v2._geometry._get_perspective_coeffs"
    monkeypatch.setattr(solved, lambda _, corners: corners)
    theirs = case.theirs(4000)
    ours = case.ours(4000)[:, : theirs.shape[1]]
    columns = [[*numbers.T, *case.more(numbers)] for numbers in (ours, theirs)]
    for one, other in zip(*columns, strict=True):
        assert_same_column(one, other)
    if case.together:
        chosen = list(case.together)
        assert_same_counts(ours[:, chosen], theirs[:, chosen])


def policies_draws(
    monkeypatch: pytest.MonkeyPatch, reference: v2.Transform, size: tuple[int, int], n: int
) -> Numbers:
    """Return the operations and magnitudes that torchvision's own ``forward`` asks for."""
    calls: list[float] = []

    def record(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        calls.extend((OPERATIONS.index(name), magnitude))
        return image

    monkeypatch.setattr(reference, "_apply_image_or_video_transform", record)
    image = torch.empty(3, *size, dtype=torch.uint8)
    for _ in range(n):
        reference(image)
    return np.array(calls).reshape(n, -1)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("kind", "arguments"), [("TrivialAugmentWide", ()), ("RandAugment", (2, 14))]
)
def test_operations_and_magnitudes_are_distributed_as_torchvisions(
    monkeypatch: pytest.MonkeyPatch, kind: str, arguments: tuple[int, ...]
) -> None:
    """Operations and their pairs by chi-square, each one's magnitudes by Kolmogorov-Smirnov."""
    torch.manual_seed(2)
    n, size = 8000, (200, 300)
    theirs = policies_draws(monkeypatch, getattr(v2, kind)(*arguments), size, n)
    ours = np.array(rows_for(getattr(T, kind)(*arguments), torch.empty(1, *size), n))
    assert_same_counts(ours[:, 0::2], theirs[:, 0::2])
    for column in range(0, ours.shape[1], 2):
        for operation in range(len(OPERATIONS)):
            one, other = (
                numbers[numbers[:, column] == operation, column + 1] for numbers in (ours, theirs)
            )
            assert stats.ks_2samp(one, other).pvalue > LEAST_PROBABILITY
