"""Two minutes that show whether a change has made the loader slower: ratios to torch's DataLoader.

The first measurements show what the loader itself costs: batches of plain numbers, small and large,
without workers and with two processes. Then come photographs with two workers, decoded in each pass
and prepared. The last measurements are CPU times of whole processes: importing the package beside
torch, torchvision and torchdata, and the commands ``--help`` and ``inspect`` beside torch alone.
``python -m benchmarks.compare EARLIER.json LATER.json`` compares two results.
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

import torch
from torch.utils.data import DataLoader

from benchmarks import photograph_loaders as loaders
from benchmarks.arguments import parse
from benchmarks.datasets import Numbers
from benchmarks.harness import (
    COMPILED,
    ROOT,
    Contestant,
    measured,
    quieten_peers,
    seconds_a_batch,
)
from benchmarks.photograph_loaders import Pass
from benchmarks.photographs import photograph_folder
from benchmarks.results import compared
from stateful_gpu_loader import PreparedSource, StatefulGPULoader

_NUMBERS = {(1, 0): 2000, (16, 0): 1000, (256, 0): 200, (16, 2): 1000}
"""Timed batches by batch size and number of worker processes."""
_EVERYTHING = "torch, torchvision, torchdata.stateful_dataloader"
_WARM_UP, _SPARE = 4, 8
_OURS, _TORCH = "ours", "torch"


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``quick.json``."""
    arguments = parse(__doc__, rounds=7, given=given)
    quieten_peers()
    timed, num_images, batch_size = (4, 8, 4) if arguments.quick else (8, 64, 32)
    photos = photograph_folder(num_images, arguments.data)
    work = Pass(folder=photos, batch_size=batch_size, timed=timed, spare=_SPARE)
    pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {}
    for (size, workers), count in _NUMBERS.items():
        batches = timed if arguments.quick else count
        pairs[f"numbers, {size} a batch, {workers} workers"] = (
            functools.partial(_numbers, StatefulGPULoader, size, workers, batches),
            functools.partial(_numbers, DataLoader, size, workers, batches),
        )
    with tempfile.TemporaryDirectory() as folder:
        kept = PreparedSource(loaders.source_of(work), Path(folder, "kept"))
        prepared = functools.partial(loaders.ours_of, kept, work)
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
        state = Path(folder, "state.pt")
        torch.save({"loader": StatefulGPULoader(Numbers(64), 4, seed=1).state_dict()}, state)
        starts = {
            "import": (["-c", "from stateful_gpu_loader import *"], _EVERYTHING),
            "--help": (["-m", "stateful_gpu_loader", "--help"], "torch"),
            "inspect": (["-m", "stateful_gpu_loader", "inspect", str(state)], "torch"),
        }
        in_batches = list(pairs)
        for name, (ours, theirs) in starts.items():
            pairs[name] = (
                functools.partial(_cpu_seconds, *ours),
                functools.partial(_cpu_seconds, "-c", f"import {theirs}"),
            )
        measurements = []
        for unit, names in {"ms a batch": in_batches, "CPU s": list(starts)}.items():
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


def _cpu_seconds(*arguments: str) -> float:
    """CPU time of a Python process with these arguments, from its start to its end."""
    environment = os.environ | COMPILED
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(
            f"python {' '.join(arguments)}: ended with {process.returncode}. Remedy: run it by "
            "itself, and install what is missing"
        )
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
