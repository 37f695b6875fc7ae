"""Arguments that torchvision refuses, or that recipes do not support, are refused when built."""

from __future__ import annotations

import inspect
import math
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode

from stateful_gpu_loader import transforms as T

NAN = math.nan


class Words(Enum):
    """A user's enum with a value of torchvision's."""

    LINEAR = "bilinear"


PER_TYPE = {tv_tensors.Image: 1}
"""Accepted by v2 in place of a number: one for each type of a sample."""

VALUES: list[tuple[Any, dict[str, list[Any]]]] = [
    (T.Resize, {"size": [(1, 2, 3), 0, None]}),
    (
        T.Resize(30),
        {
            "interpolation": ["box", InterpolationMode.LANCZOS, 5, Words.LINEAR],
            "antialias": ["warn"],
            "max_size": [30, 0],
        },
    ),
    (T.Resize((10, 20)), {"max_size": [30]}),
    (
        T.RandomResizedCrop(24),
        {
            "scale": [(1.0, 0.5), (-0.5, 0.5)],
            "ratio": [(2.0, 1.0), (0.0, 1.0), (1.0, math.inf)],
            "interpolation": ["hamming"],
        },
    ),
    (T.CenterCrop, {"size": [-1]}),
    (T.RandomCrop(4), {"padding": [(1, 2, 3), 1.5], "padding_mode": ["wrap"]}),
    (T.RandomCrop(4, fill=(1, 2, 3)), {"padding_mode": ["edge"]}),
    *((kind, {"p": [-0.1, 1.1, NAN]}) for kind in (T.RandomHorizontalFlip, T.RandomVerticalFlip)),
    (T.RandomGrayscale, {"p": [-0.1]}),
    (
        T.RandomAffine(5),
        {
            "degrees": [-5, (5, 1)],
            "translate": [(0.1, 1.1), (-0.1, 0.1)],
            "scale": [(0, 1)],
            "shear": [-1, (1, 2, 4, 3)],
            "interpolation": ["bicubic", Words.LINEAR],
            "center": [(1, 2, 3)],
        },
    ),
    (
        T.RandomRotation(5),
        {"degrees": [-5, (5, 1)], "interpolation": ["bicubic"], "center": [(1, 2, 3)]},
    ),
    (
        T.RandomErasing(),
        {
            "p": [1.1],
            "scale": [(0.5, 1.1), (-0.1, 0.5), (0.5, 0.1)],
            "ratio": [(0.0, 1.0), (1.0, math.inf)],
            "value": ["black", NAN, ()],
            "inplace": [True],
        },
    ),
    (
        T.ColorJitter(),
        {"brightness": [-0.1], "contrast": [(-0.1, 1)], "saturation": [(2, 1)], "hue": [0.6, -0.1]},
    ),
    (T.GaussianBlur(3), {"kernel_size": [4, (3, 4), 0, (3, 3, 3)], "sigma": [0, (2, 1)]}),
    (T.ToMemoryFormat, {"memory_format": [torch.preserve_format]}),
    (
        T.Normalize([0.5] * 3, [0.1] * 3),
        {"std": [[0.1, 0.0, 0.1], [0.1]], "mean": [[]], "inplace": [True]},
    ),
    (T.TrivialAugmentWide(), {"num_magnitude_bins": [1], "interpolation": ["bicubic"]}),
    (T.RandAugment(), {"num_ops": [-1], "magnitude": [31, -1]}),
    *(
        (kind, {"alpha": [0, -1.0, 1e-4, 1e5, NAN], "num_classes": [0], "labels_getter": [None]})
        for kind in (T.MixUp, T.CutMix)
    ),
]
TYPES: list[tuple[Any, dict[str, list[Any]]]] = [
    (T.Resize, {"size": [224.5, "224"]}),
    (T.RandomResizedCrop(24), {"scale": [0.5, (0.5, 0.6, 0.7)]}),
    (T.RandomCrop(4), {"fill": [PER_TYPE]}),
    (T.RandomAffine(5), {"translate": [0.1], "scale": [2], "shear": [(1, 2, 3)]}),
    (T.RandomRotation(5), {"degrees": [(1, 2, 3), "30"], "center": [3], "fill": [PER_TYPE]}),
    (T.RandomErasing(), {"scale": [0.5], "value": [None]}),
    (T.ColorJitter(), {"brightness": ["0.4", (1, 2, 3)]}),
    (T.GaussianBlur(3), {"sigma": [(1, 2, 3), "1"]}),
    (T.ToDtype, {"dtype": [PER_TYPE, "float32", float]}),
    (T.ToMemoryFormat, {"memory_format": ["channels_last"]}),
    (T.Normalize([0.5], [0.5]), {"mean": [0.5], "std": [0.5]}),
    (T.TrivialAugmentWide(), {"num_magnitude_bins": [3.5], "fill": [PER_TYPE]}),
    (T.RandAugment(), {"num_ops": [1.5]}),
    *((kind, {"num_classes": [2.5]}) for kind in (T.MixUp, T.CutMix)),
]


def _cases(table: list[tuple[Any, dict[str, list[Any]]]]) -> list[Any]:
    """Return a recipe's kind, and its arguments with another value for one of them."""
    made = []
    for recipe, wrong in table:
        kind = recipe if isinstance(recipe, type) else type(recipe)
        names = () if recipe is kind else inspect.signature(kind).parameters
        given = {name: getattr(recipe, name) for name in names}
        for name, values in wrong.items():
            made += [(kind, {**given, name: value}, name) for value in values]
    return made


@pytest.mark.parametrize(("error", "table"), [(ValueError, VALUES), (TypeError, TYPES)])
def test_wrong_arguments_are_refused(error: type[Exception], table: Any) -> None:
    for kind, arguments, name in _cases(table):
        with pytest.raises(error, match=r"\w"):
            raise AssertionError(f"{kind(**arguments)!r} was not refused for its {name}")


def test_a_refusal_names_the_argument_and_its_remedy() -> None:
    with pytest.raises(ValueError, match=r"max_size = 30 .*size = \(10, 20\).*Remedy"):
        T.Resize((10, 20), max_size=30)
    with pytest.raises(TypeError, match=r"dtype = 'float32' .*Remedy"):
        T.ToDtype("float32")  # type: ignore[arg-type]


def test_numbers_of_other_kinds_are_accepted() -> None:
    assert T.Resize(np.int64(30)).size == (30,)
    assert T.RandAugment(np.int64(2)).num_ops == 2
