"""What of this machine decides how images are decoded: packages, GPU models and CPU threads.

All of it is asked without touching CUDA.
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
"""Packages of nvImageCodec and of the nvJPEG under it, for CUDA 12 and 13."""
DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")

DRIVER = Path("/proc/driver/nvidia/gpus")


def gpu_models() -> list[str]:
    """The models of the GPUs of this machine, sorted, each once; empty where no driver tells.

    Read from the driver's files: asking CUDA would start it, and a version that says more
    after the first batch than before would look like a change.
    """
    found = set()
    for information in DRIVER.glob("*/information"):
        for line in information.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Model":
                found.add(value.strip())
    return sorted(found)


def package_versions(*packages: str) -> list[str]:
    """Name and version of each of ``packages`` that is installed.

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
    """The versions of those of ``packages`` that are installed, and the GPU models."""
    return ", ".join(package_versions(*packages) + gpu_models())


def host_threads() -> int:
    """Threads for the part of decoding that a GPU's decoder does on the CPU: this rank's share.

    Pixels do not depend on it. ``LOCAL_WORLD_SIZE`` is what torchrun sets.
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
