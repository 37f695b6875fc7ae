"""Builds the pretend GPU's two libraries, with the headers that come with torch's wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
CUDA_MAJOR = 13
"""Version of CUDA whose declarations ``runtime.cpp`` repeats."""


class Unavailable(Exception):
    """The pretend GPU cannot be built here; the text names what is missing."""


def environment(folder: Path) -> dict[str, str]:
    """Return the variables under which a new process sees the GPU that was built in ``folder``."""
    added = {"LD_PRELOAD": folder / "libpretend_gpu.so", "LD_LIBRARY_PATH": folder}
    return {
        name: os.pathsep.join(filter(None, [str(path), os.environ.get(name)]))
        for name, path in added.items()
    }


def build(folder: Path) -> None:
    """Compile both libraries into ``folder``, in about two seconds.

    Raises:
        Unavailable: there is no compiler, no header, or a torch for another CUDA.
    """
    includes = [f"-I{path}" for path in _include_folders()]
    flags = ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", *includes]
    runtime = ["-std=c++17", str(SOURCES / "runtime.cpp"), "-o", str(folder / "libpretend_gpu.so")]
    driver = ["-Wl,-soname,libcuda.so.1", str(SOURCES / "driver.c")]
    _run(_compiler("g++", "clang++"), *flags, *runtime, "-ldl")
    _run(_compiler("gcc", "clang"), *flags, *driver, "-o", str(folder / "libcuda.so.1"))
    # An unloadable file, so that torch does not count the GPUs of this machine.
    (folder / "libnvidia-ml.so.1").touch()


def _include_folders() -> list[Path]:
    version = torch.version.cuda
    if version is None:
        raise Unavailable("torch is built without CUDA")
    if int(version.partition(".")[0]) != CUDA_MAJOR:
        raise Unavailable(f"torch is for CUDA {version}, the pretend GPU for CUDA {CUDA_MAJOR}")
    runtime = _folder_with("cuda_runtime_api.h", "torch's wheels for CUDA")
    found = re.search(
        r"#define\s+CUDART_VERSION\s+(\d+)", (runtime / "cuda_runtime_api.h").read_text("utf-8")
    )
    if found is None or int(found[1]) // 1000 != CUDA_MAJOR:
        raise Unavailable(f"{runtime} has no headers of CUDA {CUDA_MAJOR}")
    return [runtime, _folder_with("crt/host_defines.h", "nvidia-cuda-crt")]


def _folder_with(header: str, package: str) -> Path:
    for root in map(Path, sys.path):
        for path in sorted(root.glob(f"nvidia/*/include/{header}")):
            return path.parents[header.count("/")]
    raise Unavailable(f"no {header} below nvidia/*/include: {package} brings it")


def _compiler(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise Unavailable(f"no compiler: {' or '.join(names)}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
