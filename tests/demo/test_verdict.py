"""The demo's verdict from the processes' reports: exact, another run, or not shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo import command
from examples.demo.comparison import compare
from examples.demo.events import Event, Finished, Saved, Started, Step
from examples.demo.experiment import Plan, Runs, TrainingRun
from examples.demo.report import OURS, exit_status, verdict
from examples.demo.supervision import Attempt

STEPS = [
    Step(epoch=0, step=step, labels=f"l{step}", pixels=f"p{step}", loss=float(step).hex())
    for step in range(6)
]
FINISHED = Finished(weights="w")


def attempt(*events: Event, returncode: int = 0) -> Attempt:
    killed_at = 3 if returncode else None
    return Attempt(num_workers=2, killed_at=killed_at, returncode=returncode, events=events)


KILLED = attempt(*STEPS[:4], Saved(step=2, state_bytes=9), returncode=-9)
RESUMED = attempt(Started(step=2, seconds=0.1), *STEPS[2:], FINISHED)


def runs(*attempts: Attempt) -> dict[str, Runs]:
    undisturbed = TrainingRun(attempts=(attempt(*STEPS, FINISHED),), kept=())
    return {OURS: Runs(undisturbed=undisturbed, killed=TrainingRun(attempts=attempts, kept=()))}


OTHER_WEIGHTS = attempt(*STEPS[2:], Finished(weights="other"))
CASES = {
    "exact": ((KILLED, RESUMED), "EXACT"),
    **{
        f"other {name}": (
            (KILLED, attempt(*STEPS[2:5], replace(STEPS[5], **{name: "0x0"}), FINISHED)),
            "NOT EXACT: 1 batches differ",
        )
        for name in ("pixels", "labels", "loss")
    },
    "other weights": ((KILLED, OTHER_WEIGHTS), "NOT EXACT"),
    "a step that never came": ((KILLED, attempt(*STEPS[5:], FINISHED)), "NOT EXACT"),
    "never ended": ((KILLED, attempt(*STEPS[2:])), "NOT EXACT"),
    **{
        f"ended with {code}": ((replace(KILLED, returncode=code), RESUMED), "NOT SHOWN")
        for code in (0, 1, -15)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_exit_status_is_zero_only_for_an_exact_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts, said = CASES[name]
    found, wanted = runs(*attempts), 0 if said == "EXACT" else 1
    assert exit_status({OURS: compare(found[OURS])}) == wanted
    assert verdict(compare(found[OURS])).startswith(said)
    monkeypatch.setattr(command, "run_experiment", lambda *arguments: found)
    monkeypatch.setattr(command, "write_pictures", lambda *arguments: [])
    assert command.run_demo(tmp_path, Plan()) == wanted
    assert said in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["exact"] is (wanted == 0)
