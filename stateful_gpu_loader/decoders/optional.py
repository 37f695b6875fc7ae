"""Packages that a decoder needs and that may not be there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TypeVar

from stateful_gpu_loader.errors import LoaderError, MissingDependency

T = TypeVar("T")


def load_package(
    load: Callable[[], T], *, module: str, package: str, name: str, extra: str, remedy: str
) -> T:
    """What ``load`` imports.

    Args:
        load: imports ``module``.
        module: its dotted name.
        package: the package's name on PyPI.
        name: of the decoder.
        extra: of this package, which installs the other.
        remedy: which one to install.

    Raises:
        MissingDependency: the package is not installed.
        LoaderError: it is installed and cannot be imported; the text says why.
    """
    parents = [part for part in (module.rpartition(".")[0], module) if part]
    if any(importlib.util.find_spec(each) is None for each in parents):
        raise MissingDependency(package, needed_for=f"decoder={name!r}", extra=extra)
    try:
        return load()
    # Loading its libraries fails in many ways: ImportError, OSError, RuntimeError, AttributeError.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise LoaderError(
            f"decoder={name!r} cannot be used: importing {module} failed with "
            f"{type(error).__name__}: {reason}. Remedy: install {remedy}, or use "
            "decoder='torchvision'"
        ) from error
