"""The text that identifies a recipe: equal texts give equal pixels (law 4)."""

from __future__ import annotations

import inspect

_PACKAGE = __name__.partition(".")[0]


def fingerprint_of(step: object) -> str:
    """The class and its constructor's arguments, which are attributes of the same names.

    >>> from stateful_gpu_loader.transforms.mixing.mixup import MixUp
    >>> fingerprint_of(MixUp(num_classes=10))
    "MixUp(alpha=1.0, num_classes=10, labels_getter='default')"
    """
    cls = type(step)
    # A user's own class of the same name is another step.
    prefix = "" if cls.__module__.startswith(f"{_PACKAGE}.") else f"{cls.__module__}."
    arguments = inspect.signature(cls).parameters
    described = ", ".join(f"{name}={getattr(step, name)!r}" for name in arguments)
    return f"{prefix}{cls.__qualname__}({described})"
