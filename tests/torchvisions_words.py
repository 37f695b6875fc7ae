"""Arguments in the form that every supported torchvision takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchvision.transforms import AutoAugmentPolicy, InterpolationMode


def in_torchvisions_words(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments whose interpolation and policy are enums instead of names.

    torchvision before 0.27 takes no interpolation by name, and no version takes a policy by name.

    >>> in_torchvisions_words({"size": 8, "interpolation": "bicubic"})
    {'size': 8, 'interpolation': <InterpolationMode.BICUBIC: 'bicubic'>}
    """
    enums = {"interpolation": InterpolationMode, "policy": AutoAugmentPolicy}
    return {
        name: enums[name](value) if name in enums and isinstance(value, str) else value
        for name, value in arguments.items()
    }
