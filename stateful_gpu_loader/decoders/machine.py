"""Properties of this machine that affect decoding: packages, GPU models and CPU threads.

Nothing here touches CUDA.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from stateful_gpu_loader.errors import LoaderError, MissingDependency

NVIMGCODEC = (
    "nvidia-nvimgcodec-cu12",
    "nvidia-nvimgcodec-cu13",
    "nvidia-nvjpeg-cu12",
    "nvidia-nvjpeg",
)
"""Packages of nvImageCodec and of its nvJPEG, for CUDA 12 and 13."""
DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")

DRIVER = Path("/proc/driver/nvidia/gpus")


def gpu_models() -> list[str]:
    """Return the distinct GPU models of this machine, sorted; empty without a driver.

    They come from the driver's files, because asking CUDA would start it.
    """
    found = set()
    for information in DRIVER.glob("*/information"):
        for line in information.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Model":
                found.add(value.strip())
    return sorted(found)


def package_versions(*packages: str) -> list[str]:
    """Return name and version of each installed package of ``packages``.

    >>> package_versions("torchdata", "no-such-package")[0][:10]
    'torchdata '
    """
    parts = []
    for package in packages:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return parts


def describe_versions(*packages: str) -> str:
    """Return the versions of the installed ones of ``packages``, and the GPU models."""
    return ", ".join(package_versions(*packages) + gpu_models())


def host_threads() -> int:
    """Return this rank's share of CPU threads, for the CPU part of a GPU decoder's work.

    Pixels do not depend on it. torchrun sets ``LOCAL_WORLD_SIZE``.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    share = int(ranks) if ranks.isdigit() and int(ranks) else 1
    return max(1, len(os.sched_getaffinity(0)) // share)


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
    """Return the result of ``load``; explain a failed import.

    Args:
        load: imports ``module``.
        module: dotted name.
        package: name on PyPI.
        needed_for: feature that needs it, such as ``decoder='dali'``.
        extra: extra of this package that installs ``package``.
        remedy: the version to install.
        cuda_13_extra: extra for CUDA 13, if ``extra`` is for CUDA 12.

    Raises:
        MissingDependency: the package is not installed.
        LoaderError: it is installed but cannot be imported.
    """
    parents = [part for part in (module.rpartition(".")[0], module) if part]
    if any(importlib.util.find_spec(each) is None for each in parents):
        install = f"pip install 'stateful_gpu_loader[{extra}]'"
        if cuda_13_extra is not None:
            install += f" under CUDA 12, 'stateful_gpu_loader[{cuda_13_extra}]' under CUDA 13"
        raise MissingDependency(package, needed_for=needed_for, extra=extra, remedy=install)
    try:
        return load()
    # Libraries fail with ImportError, OSError, RuntimeError or AttributeError.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        instead = ", or use decoder='torchvision'" if needed_for.startswith("decoder=") else ""
        raise LoaderError(
            f"{needed_for} cannot be used: importing {module} failed with "
            f"{type(error).__name__}: {reason}. Remedy: install {remedy}{instead}"
        ) from error
