"""Rates of ``bench_gpu`` by the CPUs' share and the batch size."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.arguments import parse
from benchmarks.bench_gpu import measure
from benchmarks.gpu.explanations import measure_decoding_by_size
from benchmarks.gpu.throughput import measure_cpu_shares

PARTS = {
    "shares of the CPUs": measure_cpu_shares,
    "decoding by batch size": measure_decoding_by_size,
}


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark and write ``gpu_sweep.json``; exit with 2 without a GPU."""
    measure("gpu_sweep", PARTS, parse(__doc__, rounds=4, given=given))


if __name__ == "__main__":
    main()
