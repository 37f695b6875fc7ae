"""Checks that bring the arguments of torchvision.transforms.v2 into one canonical form.

Arguments that v2 accepts but recipes do not support raise an error when the recipe is built.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torchvision.transforms import InterpolationMode

Interpolation: TypeAlias = "str | InterpolationMode | int"
Fill: TypeAlias = "float | Sequence[float] | None"

_PILLOW_CONSTANTS = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}


def as_size(size: Any) -> tuple[int, int]:
    """Return (height, width) in pixels, from an int or a sequence of one or two.

    Raises:
        TypeError: the sides are not whole numbers.
        ValueError: there are more or fewer sides, or a side is below 1.

    >>> as_size(224), as_size([224]), as_size((192, 256))
    ((224, 224), (224, 224), (192, 256))
    """
    sides = size if isinstance(size, Sequence) and not isinstance(size, str) else (size,)
    if len(sides) not in (1, 2):
        raise ValueError(
            f"{size = } has {len(sides)} sides. Remedy: pass an int, or (height, width)"
        )
    height, width = as_side("size", sides[0]), as_side("size", sides[-1])
    return height, width


def as_side(name: str, value: Any) -> int:
    """Return a whole number of pixels, at least 1."""
    try:
        side = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} has {value!r} of type {type(value).__name__}. Remedy: pass whole pixels"
        ) from None
    if side < 1:
        raise ValueError(f"{name} has {side}. Remedy: pass at least 1 pixel")
    return side


def as_probability(p: float) -> float:
    """Return a probability as a float.

    Raises:
        ValueError: p is not within 0 and 1.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{p = } is not a probability. Remedy: pass 0 <= p <= 1")
    return float(p)


def as_range(name: str, value: Any) -> tuple[float, float]:
    """Return (lowest, highest) as floats.

    Raises:
        TypeError: the value is not a sequence of two numbers.
        ValueError: the numbers are not finite or not in order.

    >>> as_range("scale", [1, 2])
    (1.0, 2.0)
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise TypeError(f"{name}={value!r} must be a sequence of two numbers, (lowest, highest)")
    lowest, highest = float(value[0]), float(value[1])
    if not (math.isfinite(lowest) and math.isfinite(highest) and lowest <= highest):
        raise ValueError(f"{name}={value!r} must be finite and in order: (lowest, highest)")
    return lowest, highest


def as_symmetric_range(name: str, value: Any) -> tuple[float, float]:
    """Return :func:`as_range` of a value, where one number d means (-d, d).

    Raises:
        TypeError: the value is neither a number nor a sequence of two.
        ValueError: a single number is negative, or two are not finite or not in order.

    >>> as_symmetric_range("degrees", 30), as_symmetric_range("degrees", (0, 90))
    ((-30.0, 30.0), (0.0, 90.0))
    """
    if not isinstance(value, (int, float)):
        return as_range(name, value)
    if value < 0:
        raise ValueError(f"{name} = {value!r} must not be negative. Remedy: pass (lowest, highest)")
    return as_range(name, (-value, value))


def as_center(center: Any) -> tuple[float, float] | None:
    """Return (x, y) in pixels as floats, or None for the image's center.

    Raises:
        TypeError: the center is not a sequence.
        ValueError: the center does not have two numbers.

    >>> as_center([16, 8])
    (16.0, 8.0)
    """
    if center is None:
        return None
    if not isinstance(center, Sequence):
        raise TypeError(f"{center = } must be a sequence of two numbers, (x, y)")
    if len(center) != 2:
        raise ValueError(f"{center = } must have two numbers, (x, y)")
    return float(center[0]), float(center[1])


def as_interpolation(value: Interpolation, supported: Collection[str]) -> str:
    """Return an interpolation's name, from the name, torchvision's enum or Pillow's constant.

    Raises:
        ValueError: it is unknown, or for PIL images only.

    >>> from torchvision.transforms import InterpolationMode
    >>> as_interpolation(InterpolationMode.BICUBIC, ["bilinear", "bicubic"])
    'bicubic'
    """
    from torchvision.transforms import InterpolationMode

    name = value.value if isinstance(value, InterpolationMode) else value
    name = _PILLOW_CONSTANTS.get(name, name) if isinstance(name, int) else name
    if name not in supported:
        raise ValueError(
            f"interpolation={value!r} is not supported for tensor images on every device. "
            f"Remedy: pass one of {', '.join(map(repr, supported))}"
        )
    return str(name)


def as_antialias(value: bool | None) -> bool:
    """Return whether to antialias; None means False, as in v2 for tensors.

    Raises:
        ValueError: the value is not True, False or None.
    """
    if value not in (True, False, None):
        raise ValueError(f"antialias={value!r} must be True, False or None")
    return bool(value)


def as_fill(fill: Any) -> float | tuple[float, ...] | None:
    """Return one value for all channels, a tuple with a value for each, or None.

    Raises:
        TypeError: the fill is something else, such as v2's dict of types.

    >>> as_fill(0), as_fill([124, 116, 104]), as_fill(None)
    (0.0, (124.0, 116.0, 104.0), None)
    """
    if fill is None:
        return None
    if isinstance(fill, (int, float)):
        return float(fill)
    if isinstance(fill, (list, tuple)):
        return tuple(float(value) for value in fill)
    raise TypeError(
        f"{fill = } of type {type(fill).__name__} is not supported. Remedy: pass one number for "
        "the image, or one number for each channel"
    )
