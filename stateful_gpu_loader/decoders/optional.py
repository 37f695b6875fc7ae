"""Packages that a decoder needs and that may not be there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TypeVar

from stateful_gpu_loader.errors import LoaderError, MissingDependency

T = TypeVar("T")


def load_package(
    load: Callable[[], T],
    *,
    module: str,
    package: str,
    needed_for: str,
    extra: str,
    remedy: str,
    cuda_13_extra: str | None = None,
) -> T:
    """What ``load`` imports.

    Args:
        load: imports ``module``.
        module: its dotted name.
        package: the package's name on PyPI.
        needed_for: what asks for it, as ``decoder='dali'``.
        extra: of this package, which installs the other.
        remedy: which one to install.
        cuda_13_extra: the extra for CUDA 13, where ``extra`` is the one for CUDA 12.

    Raises:
        MissingDependency: the package is not installed.
        LoaderError: it is installed and cannot be imported; the text says why.
    """
    parents = [part for part in (module.rpartition(".")[0], module) if part]
    if any(importlib.util.find_spec(each) is None for each in parents):
        install = f"pip install 'stateful_gpu_loader[{extra}]'"
        if cuda_13_extra is not None:
            install += f" under CUDA 12, 'stateful_gpu_loader[{cuda_13_extra}]' under CUDA 13"
        raise MissingDependency(package, needed_for=needed_for, extra=extra, remedy=install)
    try:
        return load()
    # Loading its libraries fails in many ways: ImportError, OSError, RuntimeError, AttributeError.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        instead = ", or use decoder='torchvision'" if needed_for.startswith("decoder=") else ""
        raise LoaderError(
            f"{needed_for} cannot be used: importing {module} failed with "
            f"{type(error).__name__}: {reason}. Remedy: install {remedy}{instead}"
        ) from error
