"""Machine of a GPU check: ``python -m benchmarks.gpu.environment FOLDER``.

The report is written to a file, because drivers and libraries also print.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import results
from stateful_gpu_loader import LoaderError
from stateful_gpu_loader.decoders.registry import BATCH_DECODERS, make_batch_decoder

_QUERY = "name,driver_version,memory.total,memory.used,clocks.max.sm,clocks.max.memory"


def environment() -> dict[str, Any]:
    """Return GPU, driver, libraries and decoders; a failed query returns its reason."""
    return {
        "machine": results.machine(),
        "versions": results.versions(),
        "cuda": torch.version.cuda,
        "gpus": _tried(_gpus),
        "nvidia-smi": _tried(_nvidia_smi),
        "decoders": {name: _tried(lambda name=name: _decoder(name)) for name in BATCH_DECODERS},
        "nvJPEG": _tried(_nvjpeg_libraries),
        "photographs": _tried(_photographs),
        "kernels": _tried(_kernels),
    }


def _gpus() -> list[dict[str, Any]]:
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_gib": round(properties.total_memory / 2**30, 1),
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _nvidia_smi() -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.splitlines()


def _decoder(name: str) -> str:
    try:
        decoder = make_batch_decoder(name, torch.device("cuda"))
    except LoaderError as error:
        return f"not available: {str(error).partition('Remedy')[0].strip()}"
    return f"{decoder.family}, {decoder.version()}"


def _nvjpeg_libraries() -> list[str]:
    """Return the nvJPEG files that this process has loaded, without their folders."""
    import torchvision  # noqa: F401  (loads its own)

    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sorted({line.rpartition("/")[2] for line in lines if "nvjpeg" in line})


def _photographs() -> str:
    """Return the originals of the tests' and benchmarks' files."""
    from tests.images import PHOTOGRAPHS, photograph

    return ", ".join(f"{name} {photograph(name).size}" for name in PHOTOGRAPHS)


def _kernels() -> dict[str, str]:
    from benchmarks.gpu.kernels_in_use import kernels_in_use

    return kernels_in_use(torch.device("cuda"))


def _tried(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


if __name__ == "__main__":
    text = json.dumps(environment(), indent=1)
    Path(sys.argv[1], "environment.json").write_text(text + "\n", encoding="utf-8")
    print(text)
