"""docs/recipes.md: the script for several GPUs, under torchrun on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.documents import ROOT, blocks_of
from tests.images import write_photo_folder
from tests.patience import seconds
from tests.prepared_processes import run_script
from tests.rank_processes import free_port


@pytest.mark.ranks
def test_the_script_for_several_gpus_goes_on_in_another_size(tmp_path: Path) -> None:
    found = run_on(tmp_path / "resumed", [(2, 1), (1, 2)])
    alone = run_on(tmp_path / "alone", [])
    assert found["loader"] == alone["loader"]
    assert found["loader"]["epoch"] == 2
    for name, weights in alone["model"].items():
        torch.testing.assert_close(found["model"][name], weights, rtol=1e-4, atol=1e-6)


def run_on(folder: Path, runs: list[tuple[int, int]]) -> dict[str, Any]:
    """Run the script for each pair (processes, epochs); return its checkpoint.

    Without a pair, one process trains two epochs without torchrun.
    """
    write_photo_folder(folder / "photos", num_classes=2, per_class=8)
    blocks = blocks_of(ROOT / "docs" / "recipes.md")
    (script,) = [block.code for block in blocks if "DistributedDataParallel" in block.code]
    (folder / "several_gpus.py").write_text(script, encoding="utf-8")
    for num_processes, num_epochs in runs:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={num_processes}", "several_gpus.py"]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "EPOCHS": str(num_epochs),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=seconds(60))
    if not runs:
        environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "EPOCHS": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        before = f"import os\nos.environ |= {environment}"
        done = run_script(folder / "several_gpus.py", folder=folder, before=before)
        assert done.returncode == 0, done.stderr
    checkpoint: dict[str, Any] = torch.load(folder / "several.pt", weights_only=True)
    return checkpoint
