"""What DALI's readers of TFRecord and RecordIO read, in a process of its own.

A process that forks after DALI ran in it may hang, and other tests of the same process fork.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.patience import seconds

Sample = dict[str, npt.NDArray[np.generic]]

ROOT = Path(__file__).parents[2]

needs_dali = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("nvidia", "nvidia.dali")),
    reason="DALI is not installed",
)


def dali_samples(
    kind: str,
    paths: Sequence[Path],
    index_paths: Sequence[Path],
    work: Path,
    features: dict[str, str] | None = None,
) -> list[Sample]:
    """Each sample of one epoch, in order.

    Args:
        kind: ``"tfrecord"`` or ``"mxnet"``.
        work: a folder to hand the result over in.
        features: of a TFRecord: ``"string"``, ``"int64"``, ``"float32"`` by name.
    """
    task = {
        "kind": kind,
        "paths": [str(path) for path in paths],
        "index_paths": [str(path) for path in index_paths],
        "features": features or {},
        "result": str(work / "dali.npz"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.datasets.dali_records", json.dumps(task)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds(12),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    samples: list[Sample] = []
    with np.load(work / "dali.npz") as arrays:
        for key in arrays.files:
            number, _, name = key.partition("|")
            if int(number) == len(samples):
                samples.append({})
            samples[int(number)][name] = arrays[key]
    return samples


def _run(task: dict[str, object]) -> None:
    from nvidia.dali import fn, pipeline_def, tfrecord

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline() -> tuple[object, ...]:
        arguments = {"path": task["paths"], "index_path": task["index_paths"], "name": "reader"}
        if task["kind"] == "mxnet":
            return tuple(fn.readers.mxnet(**arguments))
        kinds = {
            "string": tfrecord.FixedLenFeature((), tfrecord.string, ""),
            "int64": tfrecord.VarLenFeature(tfrecord.int64, 0),
            "float32": tfrecord.VarLenFeature(tfrecord.float32, 0.0),
        }
        chosen = {name: kinds[kind] for name, kind in task["features"].items()}  # type: ignore[attr-defined]
        read = fn.readers.tfrecord(**arguments, features=chosen)
        return tuple(read[name] for name in chosen)

    names = list(task["features"]) or ["image", "label"]  # type: ignore[call-overload]
    built = pipeline()
    built.build()
    arrays = {}
    for number in range(built.reader_meta("reader")["epoch_size"]):
        for name, output in zip(names, built.run(), strict=True):
            arrays[f"{number}|{name}"] = np.array(output.at(0))
    np.savez(str(task["result"]), **arrays)


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
