"""DALI's dynamic readers and RNGs register in a Checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stateful_gpu_loader.checkpoint import Checkpoint
from tests.prepared_processes import run_script


@pytest.mark.dali
def test_dynamic_readers_and_rngs_resume_in_another_object(tmp_path: Path) -> None:
    """In a separate process, which may hold DALI's threads."""
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    for label in range(12):
        (tmp_path / "files" / f"{label:02d}").mkdir(parents=True)
        (tmp_path / "files" / f"{label:02d}" / "0.jpg").write_bytes(bytes([label]))
    files = str(tmp_path / "files")
    done = run_script("tests.checkpoint.dali_objects", files, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all hold\n"


@pytest.mark.dali
@pytest.mark.parametrize(("backend", "streams"), [("cpu", {}), ("gpu", {"cuda_stream": 77})])
def test_reader_on_a_gpu_is_asked_on_its_stream(
    monkeypatch: pytest.MonkeyPatch, backend: str, streams: dict[str, int]
) -> None:
    """DALI's own Checkpoint does so. An object without a stream is asked without one."""
    asked: list[dict[str, Any]] = []

    class Reader:
        _backend = backend

        def get_state(self, **given: Any) -> object:
            asked.append(given)
            return SimpleNamespace(__str__=None)

        def set_state(self, state: str) -> None:
            pytest.fail("nothing is restored")

    Reader.__module__ = "nvidia.dali.experimental.dynamic.readers"
    current = SimpleNamespace(current=lambda: SimpleNamespace(cuda_stream=77))
    monkeypatch.setitem(
        sys.modules,
        "nvidia.dali.experimental.dynamic._eval_context",
        SimpleNamespace(EvalContext=current),
    )
    checkpoint = Checkpoint()
    checkpoint.register(Reader(), "reader")
    checkpoint.collect()
    assert asked == [streams]
    assert checkpoint.get_state("reader").startswith("namespace(")
