"""Ray Train with two workers, one that is killed, and other numbers of workers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.1"  # before Ray Train is imported

from tests.ray_clusters import FILTERS, ray
from tests.trainer_data import photos, tars
from tests.trainers_apart.ray_runs import (
    KINDS,
    NUM_IMAGES,
    of_ranks,
    steps_in,
    trained,
    trainer_of,
    what_prepare_makes,
)

pytestmark = FILTERS


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="ray")  # its sockets' paths have to be short
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
def undisturbed(folder: Path, data: dict[str, Any]) -> Any:
    """Two workers, two epochs of four steps, and a checkpoint behind every second one."""
    return trained("undisturbed", folder, data, 2)


@pytest.mark.parametrize("with_actors", [False, True], ids=["no workers", "actors"])
def test_a_killed_worker_changes_no_step(
    folder: Path, data: dict[str, Any], undisturbed: Any, with_actors: bool
) -> None:
    """SIGKILL in the fourth step: Ray starts all workers again behind the second.

    What each worker was given, in the steps that were made twice, too, and the weights; also where
    the loaders have workers of their own, as actors.
    """
    name = "killed beside actors" if with_actors else "killed"
    result = trained(name, folder, data, 2, kill_at=3, with_actors=with_actors)
    assert (folder / name / "killed").exists()
    steps, expected = steps_in(folder / name), steps_in(folder / "undisturbed")
    assert sorted(steps) == sorted(expected) == list(range(8))
    assert [len(steps[step][0]) for step in range(8)] == [1, 1, 2, 1, 1, 1, 1, 1]
    for step, ranks in steps.items():
        for rank, times in ranks.items():
            assert times == expected[step][rank] * len(times)
    assert result.return_value == undisturbed.return_value


@pytest.mark.parametrize("with_actors", [False, True], ids=["no workers", "actors"])
def test_one_worker_goes_on_for_two_and_two_for_one(
    folder: Path, data: dict[str, Any], undisturbed: Any, with_actors: bool
) -> None:
    """2 -> 1 -> 2 workers at one global batch; of lanes, each sample comes once an epoch."""
    assert undisturbed.checkpoint is not None
    two = {
        metrics["step"]: checkpoint for checkpoint, metrics in undisturbed.best_checkpoints or []
    }
    given = {"with_actors": with_actors}
    names = [f"{name} {with_actors}" for name in ("one worker", "two again")]
    one = trained(names[0], folder, data, 1, checkpoint=two[2], **given)
    back = {metrics["step"]: checkpoint for checkpoint, metrics in one.best_checkpoints or []}
    trained(names[1], folder, data, 2, checkpoint=back[4], **given)
    expected = steps_in(folder / "undisturbed")
    single, double = (steps_in(folder / name) for name in names)
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


def test_what_prepare_data_loader_makes(folder: Path, data: dict[str, Any]) -> None:
    """Ray's own rebuild leaves a divided loader alone, and loses one that is not."""
    config = {"data": data}
    found = trainer_of(what_prepare_makes, config, 2, folder / "ray", "prepare").fit().return_value
    for kind in KINDS:
        assert found[f"{kind} untouched"]
        assert found[f"{kind} inside"]
        assert found[f"{kind} same"]
    assert found["subclass untouched"]
    # With move_to_device, Ray reads one batch ahead; behind the last, the loader has ended.
    assert found["ahead"] == [(2, 1), (3, 2), (4, 3)]
    assert found["behind the last"] == (1, 0)
    # Undivided loaders become torch's, without a state; with one worker they stay.
    assert found["undivided"] == ("DataLoader", "DistributedSampler")
    assert found["undivided is a plain loader"]
    assert not found["undivided has a state"]
    assert found["undivided photographs"].startswith("RuntimeError: stack expects")
    assert found["undivided lanes untouched"]
