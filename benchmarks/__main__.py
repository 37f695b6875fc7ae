"""All benchmarks, then the tables and the picture: ``python -m benchmarks``.

Each runs in its own Python process, so that none inherits another's threads and memory. Benchmarks
that need a GPU are run by ``python -m benchmarks.gpu_check``.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks import results, table
from benchmarks.arguments import parse_options

BENCHMARKS = (
    "throughput",
    "cores",
    "sizes",
    "prepared",
    "converted",
    "state",
    "cold",
    "overhead",
    "faults",
    "executors",
    "sources",
    "lanes",
    "locality",
    "checkpoint",
    "scale",
    "ray",
    "object_storage",
)


def main() -> None:
    """Run everything; a smoke run does not change committed results, documents and pictures."""
    arguments = parse_options(__doc__, given=None)
    options = ["--output", str(arguments.output), "--data", str(arguments.data)]
    if arguments.rounds is not None:
        options += ["--rounds", str(arguments.rounds)]
    if arguments.quick:
        options += ["--quick"]
    for benchmark in BENCHMARKS:
        print(f"== {benchmark}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.bench_{benchmark}", *options]
        subprocess.run(command, check=True)
    if arguments.output == results.FOLDER:
        table.main([])
    else:
        table.main(
            [
                f"--results={arguments.output}",
                f"--document={arguments.output / 'benchmarks.md'}",
                f"--readme={arguments.output / 'README.md'}",
                f"--pictures={arguments.output}",
            ]
        )


if __name__ == "__main__":
    main()
