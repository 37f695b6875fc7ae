"""What DALI's webdataset reader reads, in a process of its own.

A process that forks after DALI ran in it may hang, and other tests of the same process fork.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.patience import seconds

ROOT = Path(__file__).parents[3]


def dali_samples(
    paths: Sequence[Path], extensions: Sequence[str], index_paths: Sequence[Path] = ()
) -> list[tuple[bytes, ...]]:
    """The components of each sample that has all of them, in order, over one epoch."""
    task = {
        "paths": [str(path) for path in paths],
        "ext": list(extensions),
        "index_paths": [str(path) for path in index_paths],
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.datasets.tar.tar_dali", json.dumps(task)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds(12),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    samples = json.loads(done.stdout.splitlines()[-1])
    return [tuple(bytes.fromhex(part) for part in sample) for sample in samples]


def _run(task: dict[str, list[str]]) -> None:
    from nvidia.dali import fn, pipeline_def

    given = {key: value for key, value in task.items() if value}

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        read = fn.readers.webdataset(
            **given,
            name="reader",
            missing_component_behavior="skip",
            case_sensitive_extensions=False,
        )
        return tuple(read)

    built = pipeline()
    built.build()
    samples = [
        [bytes(output.at(0)).hex() for output in built.run()]
        for _ in range(built.reader_meta("reader")["epoch_size"])
    ]
    print(json.dumps(samples))


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
