"""What of this machine decides a GPU decoder's pixels or speed; asked without touching CUDA."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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

    Read from the driver's files: asking CUDA would start it (law 7), and a version that says more
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
