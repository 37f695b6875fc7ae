"""Two minutes that show whether a change made the loader slower: ratios to torch's DataLoader.

It measures the loader's own cost with trivial numbers, in small and large batches, inline and in
two processes. It measures photographs with two workers, decoded each time and prepared, and the CPU
time of importing the package, relative to torch, torchvision and torchdata. Compare a result with
an earlier one by ``python -m benchmarks.compare EARLIER.json LATER.json``.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import parse
from benchmarks.datasets import Numbers
from benchmarks.harness import Contestant, measured, quieten_peers, seconds_a_batch
from benchmarks.photograph_loaders import Pass
from benchmarks.photographs import photograph_folder
from benchmarks.processes import ROOT
from benchmarks.results import compared
from stateful_gpu_loader import StatefulGPULoader

_NUMBERS = {(1, 0): 2000, (16, 0): 1000, (256, 0): 200, (16, 2): 1000}
"""Number of timed batches by batch size and number of worker processes."""
_IMPORT = "import"
_WARM_UP, _SPARE = 4, 8
_OURS, _TORCH = "ours", "torch"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=7, given=given)
    quieten_peers()
    timed, num_images, batch_size = (4, 8, 4) if arguments.quick else (8, 64, 32)
    work = Pass(
        folder=photograph_folder(num_images, arguments.data),
        batch_size=batch_size,
        num_batches=_WARM_UP + timed + _SPARE,
        num_workers=2,
    )
    pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {}
    for (size, workers), count in _NUMBERS.items():
        batches = timed if arguments.quick else count
        pairs[f"numbers, {size} a batch, {workers} workers"] = (
            functools.partial(_numbers, StatefulGPULoader, size, workers, batches),
            functools.partial(_numbers, DataLoader, size, workers, batches),
        )
    with tempfile.TemporaryDirectory() as folder:
        prepared = functools.partial(loaders.ours_prepared, work, Path(folder))
        for _ in prepared():
            pass
        photographs = functools.partial(
            _milliseconds, timed, functools.partial(loaders.torch_with_pillow, work)
        )
        for name, start in {
            "photographs": functools.partial(loaders.ours, work, decoder="auto"),
            "photographs, prepared": prepared,
        }.items():
            pairs[name] = functools.partial(_milliseconds, timed, start), photographs
        pairs[_IMPORT] = (
            functools.partial(_import_seconds, "stateful_gpu_loader"),
            functools.partial(_import_seconds, "torch, torchvision, torchdata.stateful_dataloader"),
        )
        measurements = []
        numbers = [name for name in pairs if name != _IMPORT]
        for unit, names in {"ms a batch": numbers, "CPU s": [_IMPORT]}.items():
            contestants = [
                Contestant(name=f"{who} {name}", label=f"{who}, {name}", measure=measure)
                for name in names
                for who, measure in zip((_OURS, _TORCH), pairs[name], strict=True)
            ]
            measurements += measured(contestants, arguments, title="quick", unit=unit)
    arguments.report(
        "quick",
        settings={},
        measurements=measurements,
        comparisons=compared(
            measurements, [(f"{_OURS} {name}", f"{_TORCH} {name}") for name in pairs]
        ),
    )


def _numbers(loader: Any, batch_size: int, num_workers: int, timed: int) -> float:
    dataset = Numbers(batch_size * (_WARM_UP + timed + _SPARE))
    batches = iter(loader(dataset, batch_size, shuffle=True, num_workers=num_workers))
    return seconds_a_batch(batches, warm_up=_WARM_UP, timed=timed) * 1e3


def _milliseconds(timed: int, start: Callable[[], Iterator[Any]]) -> float:
    return seconds_a_batch(start(), warm_up=_WARM_UP, timed=timed) * 1e3


def _import_seconds(modules: str) -> float:
    """Return the CPU time of a Python process that imports the modules and ends."""
    # A start without compiled files would measure Python's compiler.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {modules}"], env=environment, cwd=ROOT
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"import {modules}: ended with {process.returncode}. Remedy: install it")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
