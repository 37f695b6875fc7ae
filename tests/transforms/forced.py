"""torchvision's own transforms, made to use the numbers that were drawn for a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

Params = Callable[[Any, list[float]], Any]
"""Makes the result of v1's ``get_params`` or v2's ``make_params`` from the recipe's numbers."""


def _box(_: Any, numbers: list[float]) -> tuple[int, ...]:
    return tuple(map(int, numbers[:4]))


def _boxed(_: Any, numbers: list[float]) -> dict[str, int]:
    return dict(zip(("top", "left", "height", "width"), map(int, numbers), strict=True))


def _cropped(transform: Any, numbers: list[float]) -> tuple[int, ...]:
    *_, top, left = map(int, numbers)
    return top, left, *transform.size


def _cropped_by_v2(transform: Any, numbers: list[float]) -> dict[str, Any]:
    *padding, top, left = map(int, numbers)
    height, width = transform.size
    size = {"top": top, "left": left, "height": height, "width": width}
    return {"needs_crop": True, "needs_pad": any(padding), "padding": padding, **size}


def _jittered(transform: Any, numbers: list[float]) -> tuple[Any, ...]:
    names = ("brightness", "contrast", "saturation", "hue")
    factors = [
        None if getattr(transform, name) is None else factor
        for name, factor in zip(names, numbers[4:], strict=True)
    ]
    return torch.tensor(numbers[:4], dtype=torch.int64), *factors


def _jittered_by_v2(transform: Any, numbers: list[float]) -> dict[str, Any]:
    order, *factors = _jittered(transform, numbers)
    names = ("brightness", "contrast", "saturation", "hue")
    named = {f"{name}_factor": factor for name, factor in zip(names, factors, strict=True)}
    return {"fn_idx": order, **named}


def _affine(_: Any, numbers: list[float]) -> tuple[Any, ...]:
    angle, x, y, scale, *shear = numbers
    return angle, (int(x), int(y)), scale, tuple(shear)


def _affine_by_v2(_: Any, numbers: list[float]) -> dict[str, Any]:
    names = ("angle", "translate", "scale", "shear")
    return dict(zip(names, _affine(_, numbers), strict=True))


def _erased(transform: Any, numbers: list[float]) -> tuple[Any, ...]:
    top, left, height, width, *_ = map(int, numbers)
    value = torch.tensor(transform.value, dtype=torch.float32).view(-1, 1, 1)
    return top, left, height, width, value


def _erased_by_v2(transform: Any, numbers: list[float]) -> dict[str, Any]:
    return dict(zip("ijhwv", _erased(transform, numbers), strict=True))


_PARAMS: dict[str, tuple[Params, Params]] = {
    "ColorJitter": (_jittered, _jittered_by_v2),
    "GaussianBlur": (lambda _, sigma: sigma[0], lambda _, sigma: {"sigma": sigma * 2}),
    "RandomAffine": (_affine, _affine_by_v2),
    "RandomCrop": (_cropped, _cropped_by_v2),
    "RandomErasing": (_erased, _erased_by_v2),
    "RandomResizedCrop": (_box, _boxed),
    "RandomRotation": (lambda _, angle: angle[0], lambda _, angle: {"angle": angle[0]}),
}
"""Parameters for v1, and for v2."""

_WITH_A_CHANCE = {
    "RandomErasing": lambda numbers: numbers[2] > 0,
    "RandomGrayscale": lambda numbers: numbers[0] == 1,
    "RandomHorizontalFlip": lambda numbers: numbers[0] == 1,
    "RandomVerticalFlip": lambda numbers: numbers[0] == 1,
    **dict.fromkeys(
        (
            *("RandomInvert", "RandomPosterize", "RandomSolarize", "RandomAutocontrast"),
            *("RandomEqualize", "RandomAdjustSharpness"),
        ),
        lambda numbers: numbers[0] == 1,
    ),
}
"""Transforms that first compare ``torch.rand(1)`` with p, and whether they act."""


def called_with(
    monkeypatch: pytest.MonkeyPatch, transforms: Sequence[Any], image: Any, rows: Sequence[Any]
) -> Any:
    """Call transforms in a row, each with one row's numbers; None for one that draws nothing."""
    for transform, numbers in zip(transforms, rows, strict=True):
        name = type(transform).__name__
        if numbers is None:
            image = transform(image)
            continue
        with monkeypatch.context() as patch:
            if name in _WITH_A_CHANCE:
                chance = 0.0 if _WITH_A_CHANCE[name](numbers) else 1.0
                patch.setattr(torch, "rand", lambda *_, chance=chance, **__: torch.tensor([chance]))
            if name in _PARAMS:
                by_v1, by_v2 = _PARAMS[name]
                if isinstance(transform, v2.Transform):
                    made = by_v2(transform, numbers)
                    patch.setattr(transform, "make_params", lambda *_, made=made: made)
                else:
                    made = by_v1(transform, numbers)
                    patch.setattr(transform, "get_params", lambda *_, made=made, **__: made)
            image = transform(image)
    return image
