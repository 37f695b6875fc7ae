"""The comparison of the fused launch's blocks, compiled and not run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmarks


def test_what_a_block_costs_is_read_from_its_machine_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Twice the columns are twice the work of a source column, and no less of a pixel."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from benchmarks.gpu.launch_compiled import compiled
    from stateful_gpu_loader.transforms.batches.kernels import BLOCK

    rows, columns = BLOCK
    chosen, narrow = compiled(rows, columns), compiled(rows, columns // 2)
    assert chosen.a_tap == pytest.approx(2 * narrow.a_tap, rel=0.1)
    assert chosen.instructions_a_pixel() < narrow.instructions_a_pixel()
    assert chosen.registers <= 128, "16 warps on a multiprocessor at least"
