"""The device stage on a GPU: images a second compared with the ceiling and peers, and its phases.

Every contestant makes the same batches from the same files: a random crop resized to 224x224,
flipped with probability 1/2, normalised to bfloat16 on the GPU, and shuffled. Batches have 256
images, and there are sixteen workers, either processes or threads. Contestants that are not
installed, or fail when they are tried, are listed. The JSON is written after each part, so that an
interrupted run keeps its results. ``bench_gpu_sweep`` measures the settings of the decoders.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.arguments import Arguments, parse
from benchmarks.gpu.decoding import usable_backends
from benchmarks.gpu.explanations import (
    measure_launch,
    measure_phases,
    measure_reading,
    measure_training,
)
from benchmarks.gpu.kernels_in_use import kernels_in_use, no_result
from benchmarks.gpu.loaders import DEVICE
from benchmarks.gpu.results import GpuResults
from benchmarks.gpu.throughput import (
    SPARE_BATCHES,
    TIMED_BATCHES,
    WARM_UP_BATCHES,
    measure_throughput,
)
from benchmarks.harness import quieten_peers
from benchmarks.photograph_loaders import Pass
from benchmarks.photographs import photograph_folder

BATCH_SIZE, NUM_WORKERS = 256, 16

PARTS = {
    "the launch": measure_launch,
    "reading": measure_reading,
    "training": measure_training,
    "phases": measure_phases,
    "throughput": measure_throughput,
}
"""Quick explanatory parts come first, because a run may be interrupted."""

Part = Callable[[Pass, GpuResults], None]


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``gpu.json``; exit with 2 without a GPU."""
    measure("gpu", PARTS, parse(__doc__, rounds=4, given=given))


def measure(name: str, parts: Mapping[str, Part], arguments: Arguments) -> None:
    """Measure parts with every available backend, and write ``<name>.json`` after each.

    Raises:
        SystemExit: with 2 without a GPU, with 1 if Triton's kernels do not run.
    """
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU, and torch sees none", file=sys.stderr)
        raise SystemExit(2)
    quieten_peers()
    work = _work(arguments)
    results = GpuResults(arguments, work, name)
    results.details["kernels"] = kernels_in_use(DEVICE)
    if (why := no_result(results.details["kernels"])) is not None:
        results.notes.append(why)
        results.write()
        print("\n".join(results.lines()))
        raise SystemExit(1)
    found = usable_backends(work.files[:8])
    results.missing.update({name: wrong for name, wrong in found.items() if wrong is not None})
    results.backends += [name for name, wrong in found.items() if wrong is None]
    results.write()
    for title, part in parts.items():
        started = time.perf_counter()
        try:
            part(work, results)
        except Exception as error:
            # A failed part is reported; the other parts are still measured.
            results.notes.append(f"{title} failed: {type(error).__name__}: {str(error)[:500]}")
        seconds = results.details.setdefault("seconds of each part", {})
        seconds[title] = round(time.perf_counter() - started, 1)
        results.write()
        print(f"{title}: {seconds[title]} s", flush=True)
    print("\n".join(results.lines()))


def _work(arguments: Arguments) -> Pass:
    return Pass(
        folder=photograph_folder(128 if arguments.quick else 1024, arguments.data),
        batch_size=32 if arguments.quick else BATCH_SIZE,
        timed=TIMED_BATCHES,
        num_workers=NUM_WORKERS,
        warm_up=WARM_UP_BATCHES,
        spare=SPARE_BATCHES,
    )


if __name__ == "__main__":
    main()
