"""Ray Train with two workers, one of which is killed, and with other numbers of workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"  # before Ray Train is imported

from tests.patience import seconds
from tests.ray_clusters import FILTERS, ray
from tests.trainer_data import photos, tars

# isort: split
from tests.integrations.ray_train_jobs import (
    KINDS,
    NUM_IMAGES,
    of_ranks,
    prepared_loaders,
    steps_in,
    trained,
    trainer_of,
)

pytestmark = FILTERS


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="ray")  # its sockets' paths must be short
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    files = tmp_path_factory.mktemp("files")
    return {"photographs": photos(files, NUM_IMAGES), "lanes": tars(files / "lanes", (8, 8, 8, 8))}


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, data: dict[str, Any]) -> Any:
    """Two workers, two epochs of four steps, and a checkpoint after every second one."""
    return trained("uninterrupted", folder, data, 2)


def test_a_killed_worker_changes_no_step(
    folder: Path, data: dict[str, Any], uninterrupted: Any
) -> None:
    """SIGKILL in the fourth step: Ray restarts all workers after the second.

    The batches of each worker are compared, also in repeated steps, and the weights. The loaders
    have actors as workers; those of the uninterrupted run have none.
    """
    name = "killed"
    result = trained(name, folder, data, 2, kill_at=3, with_actors=True)
    assert (folder / name / "killed").exists()
    steps, expected = steps_in(folder / name), steps_in(folder / "uninterrupted")
    assert sorted(steps) == sorted(expected) == list(range(8))
    assert [len(steps[step][0]) for step in range(8)] == [1, 1, 2, 1, 1, 1, 1, 1]
    for step, ranks in steps.items():
        for rank, times in ranks.items():
            assert times == expected[step][rank] * len(times)
    assert result.return_value == uninterrupted.return_value


def test_one_worker_resumes_two_and_two_resume_one(
    folder: Path, data: dict[str, Any], uninterrupted: Any
) -> None:
    """2 -> 1 -> 2 workers at one global batch. Each sample of the lanes comes once an epoch."""
    assert uninterrupted.checkpoint is not None
    two = {
        metrics["step"]: checkpoint for checkpoint, metrics in uninterrupted.best_checkpoints or []
    }
    one = trained("one worker", folder, data, 1, checkpoint=two[2])
    back = {metrics["step"]: checkpoint for checkpoint, metrics in one.best_checkpoints or []}
    trained("two again", folder, data, 2, checkpoint=back[4])
    expected = steps_in(folder / "uninterrupted")
    single, double = steps_in(folder / "one worker"), steps_in(folder / "two again")
    assert (sorted(single), sorted(double)) == ([2, 3, 4, 5, 6, 7], [4, 5, 6, 7])
    for step in range(2, 8):
        wanted = of_ranks(expected, step, "photographs")
        assert of_ranks(single, step, "photographs") == wanted
        if step >= 4:
            assert of_ranks(double, step, "photographs") == wanted
    runs = [expected, expected, single, single, double, double, double, double]
    lanes = [of_ranks(run, step, "lanes") for step, run in enumerate(runs)]
    for epoch in (lanes[:4], lanes[4:]):
        numbers = [number for batch in epoch for number, _ in batch]
        assert sorted(numbers) == list(range(NUM_IMAGES))


def test_batches_of_prepare_data_loader(folder: Path, data: dict[str, Any]) -> None:
    """Ray's own rebuild leaves a divided loader alone, and replaces an undivided one."""
    config = {"data": data}
    found = trainer_of(prepared_loaders, config, 2, folder / "ray", "prepare").fit().return_value
    for kind in KINDS:
        assert found[f"{kind} untouched"]
        assert found[f"{kind} same"]
    # With move_to_device, Ray reads one batch ahead; after the last, the loader has ended.
    assert found["ahead"] == [(2, 1), (3, 2), (4, 3)]
    assert found["after the last"] == (1, 0)
    # An undivided loader becomes torch's, without a state.
    assert found["undivided"] == ("DataLoader", "DistributedSampler")
    assert not found["undivided has a state"]


def test_the_example_finds_a_killed_worker_without_effect(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "trainers" / "ray_train.py"
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=seconds(40),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Ray itself reports the worker that died.
    assert [line for line in done.stdout.splitlines() if "raylet" not in line] == [
        "a worker was killed in step 12: True",
        "18 batches of both workers the same",
    ]
