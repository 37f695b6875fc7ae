"""Part of the GPU benchmark: images a second of the loaders, their peers and the ceiling."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu import loaders
from benchmarks.gpu import results as names
from benchmarks.gpu.decoding import DecodingAlone, read_batches
from benchmarks.gpu.results import GpuResults
from benchmarks.harness import Contestant, alternate
from benchmarks.photograph_loaders import SIZE, Pass, dali
from benchmarks.results import is_installed

WARM_UP_BATCHES, TIMED_BATCHES = 8, 40
SPARE_BATCHES = 48
"""Number of batches at the end of the pass: readers may be this far ahead and stay busy."""
_TIMED_OF_THE_SLOW = 12
_THREADS_OF_PROCESS, _FEW_READERS = 4, 4
_CPU_SHARES = (0.0, 0.15, 0.3, 0.45, 0.6)

Start = Callable[[], Iterator[Any]]


def measure_throughput(work: Pass, results: GpuResults) -> None:
    """Measure images a second of all contestants in alternating rounds.

    There are no warm-up rounds: each contestant was started before, to check that it takes part,
    and delivers some batches in each round before the clock starts.
    """
    passes = _passes(work, results)
    contestants = [
        Contestant(name, label, functools.partial(images_a_second, start, work.batch_size, timed))
        for name, (label, start, timed) in passes.items()
        if _takes_part(name, start, work, results)
    ]
    encoded = read_batches(work.files[: 4 * work.batch_size], work.batch_size)
    for backend in results.backends:
        alone = DecodingAlone(backend, encoded)
        contestants.append(
            Contestant(
                names.decoding(backend),
                f"decoding alone, {backend}",
                functools.partial(
                    alone.images_a_second, warm_up=WARM_UP_BATCHES, timed=TIMED_BATCHES
                ),
            )
        )
    arguments = results.arguments
    values = alternate(
        contestants,
        rounds=arguments.rounds,
        title="gpu",
        warm_up_rounds=0,
    )
    for contestant in contestants:
        results.note(contestant.name, contestant.label, "images/s", values[contestant.name])


def measure_cpu_shares(work: Pass, results: GpuResults) -> None:
    """Measure the loader's rate when the workers' cores decode a share of the images."""
    for backend in results.backends:
        found = {}
        for share in _CPU_SHARES:
            start = functools.partial(_started, work, backend, share)
            found[share] = round(images_a_second(start, work.batch_size, TIMED_BATCHES))
        results.details.setdefault("images/s by cpu_share", {})[backend] = found


def _started(work: Pass, backend: str, cpu_share: float) -> Iterator[Any]:
    return iter(loaders.ours(work, decoder=backend, cpu_share=cpu_share))


def images_a_second(start: Start, batch_size: int, timed: int) -> float:
    """Return the rate in the middle of a pass; the device is idle at both ends of the clock."""
    batches = start()
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(timed):
        batch = next(batches)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    del batch, batches
    gc.collect()
    return timed * batch_size / seconds


def _passes(work: Pass, results: GpuResults) -> dict[str, tuple[str, Start, int]]:
    """Return label, start and number of timed batches of each loader."""
    auto = results.backends[0] if results.backends else "auto"
    passes: dict[str, tuple[str, Start, int]] = {
        names.ours(backend): (
            f"StatefulGPULoader, {backend}",
            lambda backend=backend: iter(loaders.ours(work, decoder=backend)),
            TIMED_BATCHES,
        )
        for backend in results.backends
    }
    if results.backends:
        jittered = functools.partial(loaders.ours, work, decoder=auto, recipes=loaders.JITTERED)
        passes[names.JITTERED] = (
            f"StatefulGPULoader, {auto}, ColorJitter",
            lambda: iter(jittered()),
            TIMED_BATCHES,
        )
        for name, what, changes in (
            (
                names.IN_PROCESSES,
                f"readers in processes of {_THREADS_OF_PROCESS} threads",
                {"worker_type": "process", "threads_per_process": _THREADS_OF_PROCESS},
            ),
            (names.FEW_READERS, f"{_FEW_READERS} readers", {"num_workers": _FEW_READERS}),
        ):
            changed = functools.partial(loaders.ours, work, decoder=auto, **changes)
            passes[name] = (
                f"StatefulGPULoader, {auto}, {what}",
                lambda changed=changed: iter(changed()),
                TIMED_BATCHES,
            )
        passes[names.WITH_STATE] = (
            f"StatefulGPULoader, {auto}, state every step",
            lambda: loaders.state_at_every_step(loaders.ours(work, decoder=auto)),
            TIMED_BATCHES,
        )
    peers: dict[str, tuple[str, Start, int]] = {
        names.ONE_BY_ONE: (
            "torchvision on the GPU, v2 image by image",
            functools.partial(loaders.torchvision_one_by_one, work),
            _TIMED_OF_THE_SLOW,
        ),
        names.TORCH: (
            "torch DataLoader, torchvision on the CPU",
            functools.partial(loaders.torch_on_cpu, work),
            TIMED_BATCHES,
        ),
    }
    if not is_installed("nvidia.dali"):
        results.missing["DALI's own pipeline"] = "nvidia.dali is not installed"
    else:
        peers[names.DALI] = (
            "DALI, GPU pipeline",
            functools.partial(dali, work, on_gpu=True),
            TIMED_BATCHES,
        )
    return {**passes, **peers}


def _takes_part(name: str, start: Start, work: Pass, results: GpuResults) -> bool:
    """Whether a contestant makes the requested batches; if not, it is listed as missing."""
    try:
        batches = start()
        images, targets = next(batches)
        del batches
    except Exception as error:
        results.missing[name] = f"{type(error).__name__}: {str(error)[:300]}"
        return False
    shape = (work.batch_size, 3, SIZE, SIZE)
    is_right = (
        tuple(images.shape) == shape
        and images.dtype in (loaders.DTYPE, torch.float16)
        and 0.5 < images.float().std() < 2.5
        and images.device.type == targets.device.type == "cuda"
        and tuple(targets.shape) == shape[:1]
    )
    if not is_right:
        results.missing[name] = f"it gives {images.dtype} {list(images.shape)} on {images.device}"
    return is_right
