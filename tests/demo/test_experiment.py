"""A real process, killed with SIGKILL and resumed on other workers, gives the same run."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from examples.demo import command
from examples.demo.comparison import compare
from examples.demo.events import Event, Step
from examples.demo.experiment import Plan, Runs, TrainingRun, run_experiment
from examples.demo.report import OURS, exit_status, table, verdict
from examples.demo.supervision import attempt
from examples.demo.training import Job
from stateful_gpu_loader import LoaderError

PLAN = Plan(
    files_per_class=11,
    num_epochs=2,
    checkpoint_every=3,
    kill_at=(5,),
    workers={OURS: (2, 0)},
)
"""Eight steps; killed in the second epoch, resumed from a checkpoint of the first."""


def late(run: str, event: Event) -> None:
    """Delay the kill. A process that went on would train further steps meanwhile."""
    if "killed" in run and isinstance(event, Step) and event.step == PLAN.kill_at[0]:
        time.sleep(0.5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    return run_experiment(PLAN, tmp_path_factory.mktemp("experiment"), late)


def status(runs: dict[str, Runs]) -> int:
    return exit_status({name: compare(pair) for name, pair in runs.items()})


def test_a_killed_run_resumed_on_other_workers_is_the_undisturbed_run(
    runs: dict[str, Runs],
) -> None:
    comparison = compare(runs[OURS])
    assert comparison.returncodes == (-9, 0)
    assert comparison.workers == (2, 0)
    assert comparison.resumed_at == (3,)
    assert comparison.batches >= PLAN.num_steps + 3, "batches 3, 4 and 5 are made again"
    assert comparison.again == comparison.batches - PLAN.num_steps
    assert comparison.differing == frozenset()
    assert comparison.equal_weights
    assert status(runs) == 0
    assert verdict(comparison).startswith("EXACT")


def test_epochs_and_batches_are_all_different(runs: dict[str, Runs]) -> None:
    """Otherwise the compared values could be equal by chance."""
    steps = runs[OURS].undisturbed.steps
    assert len({step.pixels for step in steps}) == PLAN.num_steps
    assert len({step.loss for step in steps}) == PLAN.num_steps
    assert len({step.labels for step in steps}) == PLAN.num_steps


def test_the_command_writes_pictures_and_a_report_without_paths(
    runs: dict[str, Runs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "run_experiment", lambda *arguments: runs)
    assert command.run_demo(tmp_path, PLAN) == 0
    for name in ("resume.png", "contact_sheet.png", "loss_curves.png"):
        header = (tmp_path / name).read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", header[16:])
        assert 1500 < width < 2000, name
        assert 400 < height < 2500, name
    text = (tmp_path / "report.json").read_text()
    assert json.loads(text)["exact"] is True
    assert json.loads(text)["loaders"][OURS]["returncodes"] == [-9, 0]
    assert str(tmp_path.parent) not in text
    assert str(Path.home()) not in text
    printed = capsys.readouterr().out
    assert table({OURS: compare(runs[OURS])}) in printed
    assert "EXACT" in printed


def test_a_training_that_fails_by_itself_is_reported_with_its_last_words(tmp_path: Path) -> None:
    job = Job(
        loader=OURS,
        photographs=str(tmp_path / "nowhere"),
        folder=str(tmp_path),
        num_workers=0,
        num_epochs=1,
        checkpoint_every=1,
        kept_step=0,
        kept_batch="kept.pt",
    )
    with pytest.raises(LoaderError, match=r"(?s)returncode = 1.*FileNotFoundError"):
        attempt(job, kill_at=0)


def test_a_kill_hits_its_step_however_late_it_comes(runs: dict[str, Runs]) -> None:
    killed = runs[OURS].killed.attempts[0]
    assert (killed.returncode, killed.killed_at) == (-9, PLAN.kill_at[0])
    last = killed.events[-1]
    assert isinstance(last, Step)
    assert last.step == PLAN.kill_at[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kill_at": (10,)}, "one number of workers more than kills"),
        ({"kill_at": (10, 53)}, "kill before step 53"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(
    arguments: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(**arguments)  # type: ignore[arg-type]


def test_a_run_without_an_end_has_no_weights() -> None:
    assert TrainingRun(attempts=(), kept=()).weights is None
