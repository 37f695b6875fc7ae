"""A short run of chaos, and the verdict on wrong streams; docs/robustness.md."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.streams import prepare
from tests.chaos.supervisor import Supervisor
from tests.chaos.verdict import undisturbed, verdict_on

BATCHES = 40


@pytest.mark.fuzz
@pytest.mark.parametrize("stream", ["photos", "tars"])
def test_chaos_leaves_the_stream_unchanged(tmp_path: Path, stream: str) -> None:
    prepare(tmp_path)
    supervisor = Supervisor(stream, tmp_path, random.Random(7))
    supervisor.play(10)
    verdict = verdict_on(stream, tmp_path, supervisor.logs)
    assert supervisor.fault is None
    assert not verdict.differences
    assert verdict.compared
    assert supervisor.done


@pytest.mark.ray
def test_chaos_in_a_ray_cluster_leaves_the_stream_unchanged(tmp_path: Path) -> None:
    from tests.chaos.ray_nodes import NodeSupervisor

    prepare(tmp_path)
    supervisor = NodeSupervisor("tars", tmp_path, random.Random(7))
    supervisor.play(30)
    verdict = verdict_on("tars", tmp_path, supervisor.logs)
    assert supervisor.fault is None
    assert not verdict.differences
    assert verdict.compared


@pytest.mark.fuzz
def test_job_that_fails_is_a_fault_with_its_last_words(tmp_path: Path) -> None:
    supervisor = Supervisor("photos", tmp_path, random.Random(7))  # without photographs
    supervisor.play(10)
    assert "FileNotFoundError" in str(supervisor.fault)


def test_verdict_tells_what_is_wrong_with_a_stream(tmp_path: Path) -> None:
    right = [{"batch": told} for told in islice(undisturbed("noisy", tmp_path), BATCHES)]
    first, last = [{"resumed": 0}, *right[:12]], [{"resumed": 10}, *right[10:]]
    assert differences(tmp_path, first, last) == ()
    assert differences(tmp_path, first[:5], last)  # some are missing
    assert differences(tmp_path, first, [last[0], *last[3:]])  # the beginning is missing
    assert differences(tmp_path, first, [*last[:5], *last[6:]])  # one is missing
    other = json.loads(json.dumps(last))
    other[7]["batch"][3] = other[8]["batch"][3]
    assert differences(tmp_path, first, other)  # one has other content
    other = json.loads(json.dumps(first))
    other[12]["batch"][3] = other[11]["batch"][3]
    assert differences(tmp_path, other, last)  # although it came again


def test_verdict_tells_what_grows(tmp_path: Path) -> None:
    told = [{"used": {"threads": 7, "resident MiB": 500 + n}} for n in range(20)]
    log = written(tmp_path / "log", told)
    verdict = verdict_on("noisy", tmp_path, [log])
    assert verdict.judged == 1
    assert verdict.grown == {}
    for n, line in enumerate(told):
        line["used"] = {"threads": 7 + n // 5, "resident MiB": 500 + 3 * n}
    assert set(verdict_on("noisy", tmp_path, [written(log, told)]).grown) == {
        "threads",
        "resident MiB",
    }


def differences(folder: Path, *lives: list[Any]) -> tuple[str, ...]:
    logs = [written(folder / f"{number}.log", life) for number, life in enumerate(lives)]
    return verdict_on("noisy", folder, logs).differences


def written(path: Path, lines: list[Any]) -> Path:
    """Write a log whose last line is cut off by a kill."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"batch": [')
    return path
