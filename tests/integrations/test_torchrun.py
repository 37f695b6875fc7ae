"""An elastic job of torchrun that is killed with SIGKILL and resumes in another size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from stateful_gpu_loader import FolderSource, TarShards
from tests.images import write_photo_folder
from tests.integrations.torchrun.train import (
    EPOCHS,
    GLOBAL_BATCH,
    loss_of,
    make_loader,
    make_model,
)
from tests.patience import seconds
from tests.trainer_data import samples_of, tars

ROOT = Path(__file__).parents[2]
NUM_PHOTOS = 60
Samples = list[tuple[int, str]]


def torchrun(folder: Path, launch: int, size: int, deaths: dict[str, Any]) -> int:
    """Start processes, again after each death but the last; return the exit status."""
    restarts = max(0, len(deaths) - 1)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={size}", f"--max-restarts={restarts}"]
    command += ["--module", "tests.integrations.torchrun.train"]
    command += [str(folder), str(launch), json.dumps(deaths)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        # Otherwise restarted processes look for dead ones (pytorch issue 135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as agent:
        try:
            _, errors = agent.communicate(timeout=seconds(60))
        except subprocess.TimeoutExpired:
            agent.terminate()  # It ends its workers.
            raise
    assert agent.returncode == 0 or "SIGKILL" in errors or "-9" in errors, errors
    return agent.returncode


def uninterrupted(folder: Path, names: dict[str, list[str]]) -> tuple[list[Samples], Any]:
    """Samples of each step of one process, and the final weights."""
    loader = make_loader(FolderSource.from_paths(names["photos"]))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    steps = []
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch[0]).backward()
            optimizer.step()
            steps.append(sorted(samples_of(batch)))
    return steps, model.state_dict()


def records(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return for each step the batches of the ranks, from the attempt that completed it."""
    of_attempts: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for path in sorted((folder / "seen").iterdir()):
        step, attempt, rank, _, size = path.stem.split("-")
        found = json.loads(path.read_text())
        of_attempts.setdefault(int(step), {}).setdefault(attempt, []).append(
            {**found, "rank": int(rank), "size": int(size), "attempt": attempt}
        )
    return {step: attempts[max(attempts)] for step, attempts in of_attempts.items()}


def test_killed_jobs_resume_in_another_size(tmp_path: Path) -> None:
    """4 processes, one of which is killed; then 2, of which first one and, after torchrun's
    restart, both are killed; then 3. The batches equal those of one process, with each sample
    of the lanes.
    """
    paths = write_photo_folder(tmp_path / "photos", num_classes=1, per_class=NUM_PHOTOS)
    shards = tars(tmp_path / "tars", (5,) * 12)
    names = {"photos": [str(path) for path in paths], "tars": list(map(str, shards.paths))}
    (tmp_path / "data.json").write_text(json.dumps(names))
    (tmp_path / "seen").mkdir()
    wanted, weights = uninterrupted(tmp_path, names)
    assert torchrun(tmp_path, 0, 4, {"0": {"step": 2, "ranks": [1]}}) != 0
    of_two = {"0": {"step": 3, "ranks": [0]}, "1": {"step": 6, "ranks": [0, 1]}}
    assert torchrun(tmp_path, 1, 2, of_two) != 0
    assert torchrun(tmp_path, 2, 3, {}) == 0

    found = records(tmp_path)
    attempts = [found[step][0]["attempt"] for step in sorted(found)]
    assert attempts == ["0.0"] * 2 + ["1.0"] + ["1.1"] * 3 + ["2.0"] * 4
    for step, ranks in found.items():
        assert sorted(rank["rank"] for rank in ranks) == list(range(ranks[0]["size"])), step
    assert len(wanted) == EPOCHS * NUM_PHOTOS // GLOBAL_BATCH
    assert [in_order(found[step], "photographs") for step in sorted(found)] == wanted
    of_lanes = [sample for step in found for sample in in_order(found[step], "tars")]
    whole = [
        sample
        for batch in make_loader(TarShards(shards.paths, num_lanes=12))
        for sample in samples_of(batch)
    ]
    assert sorted(of_lanes) == sorted(whole)
    assert len({number for number, _ in whole}) == 60
    last = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["model"]
    for name, value in weights.items():
        assert torch.allclose(last[name], value, atol=1e-6), name


def in_order(ranks: list[dict[str, Any]], data: str) -> Samples:
    return sorted((number, pixels) for rank in ranks for number, pixels in rank[data])
