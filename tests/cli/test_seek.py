"""``seek`` and ``which`` on the command line: what they print, write, and refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from stateful_gpu_loader import StatefulGPULoader, WeightedSampler
from stateful_gpu_loader.cli.app import app
from stateful_gpu_loader.errors import LoaderError, NoSuchPlace
from stateful_gpu_loader.tools.state_files import NoState, find_states
from tests.cli.command import command
from tests.conformance import same
from tests.map_datasets import Noisy
from tests.tools.checkpoints import after_in_torchdata

FACTORY = """
from tests.cli.test_seek import make, make_weighted
"""


def make(**arguments: Any) -> StatefulGPULoader[Any]:
    given = {"batch_size": 4, "shuffle": True, "seed": 7, **arguments}
    return StatefulGPULoader(Noisy(22), **given)


def make_weighted() -> StatefulGPULoader[Any]:
    return make(shuffle=None, sampler=WeightedSampler([1.0] * 22, 22))


def run(*arguments: object) -> Result:
    """Run a command in this process; errors that a user sees as one sentence are raised."""
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "step_1.pt"
    torch.save({"model": torch.arange(3), "loader": make().state_dict()}, path)
    return path


def test_a_file_is_moved_and_the_loader_goes_on_from_there(tmp_path: Path, file: Path) -> None:
    moved = tmp_path / "moved.pt"
    before = file.read_bytes()
    done = command("seek", file, "--epoch", 1, "--percent", 40, "-o", moved)
    assert (done.returncode, done.stderr) == (0, "")
    assert "epoch 1, position 8" in done.stdout
    assert file.read_bytes() == before
    saved = torch.load(moved, weights_only=True)
    assert torch.equal(saved["model"], torch.arange(3))
    whole, resumed = make(), make()
    list(whole)
    resumed.load_state_dict(saved["loader"])
    assert same(list(resumed), list(whole)[2:])


def test_json_of_a_seek(tmp_path: Path, file: Path) -> None:
    done = run("seek", file, "--epoch", 2, "--samples", 8, "-o", tmp_path / "new.pt", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == [{"where": "loader", "epoch": 2, "position": 8}]


def test_a_seek_that_is_refused_writes_nothing(tmp_path: Path, file: Path) -> None:
    out = tmp_path / "new.pt"
    done = run("seek", file, "--epoch", 0, "--position", 23, "-o", out)
    assert isinstance(done.exception, LoaderError)
    assert "has 22 samples" in str(done.exception)
    assert not out.exists()


def test_one_of_several_loaders_is_chosen(tmp_path: Path) -> None:
    path, out = tmp_path / "both.pt", tmp_path / "new.pt"
    torch.save({"train": make().state_dict(), "val": make(shuffle=False).state_dict()}, path)
    place = ("--epoch", 0, "--position", 4, "-o", out)
    done = run("seek", path, *place)
    assert isinstance(done.exception, NoState)
    assert "'train' in both.pt, 'val' in both.pt" in str(done.exception)
    assert run("seek", path, *place, "--where", "val").exit_code == 0
    assert {found.where: found.state["position"] for found in find_states(out)} == {
        "train": 0,
        "val": 4,
    }
    missing = run("seek", path, *place, "--where", "test")
    assert "have no 'test' among them" in str(missing.exception)


@pytest.mark.parametrize("name", ["seek", "which"])
def test_a_state_of_torchdatas_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    path, out = tmp_path / "theirs.pt", tmp_path / "new.pt"
    torch.save({"loader": after_in_torchdata(2)}, path)
    place = ["--epoch", 1, "--position", 0]
    done = run(name, path, *place, *(["-o", out] if name == "seek" else []))
    assert isinstance(done.exception, NoSuchPlace)
    assert "'loader' in" in str(done.exception)
    assert "is one of torchdata's StatefulDataLoader, which says" in str(done.exception)
    assert not out.exists()


def test_beside_a_state_of_torchdatas_ours_has_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "both.pt"
    torch.save({"old": after_in_torchdata(2), "new": make().state_dict()}, path)
    assert isinstance(run("which", path, "--position", 0).exception, NoState)
    assert run("which", path, "--position", 0, "--where", "new").exit_code == 0


def test_the_states_of_all_ranks_are_moved(tmp_path: Path) -> None:
    path, out = tmp_path / "ranks.pt", tmp_path / "new.pt"
    torch.save([make(num_replicas=2, rank=rank).state_dict() for rank in range(2)], path)
    assert run("seek", path, "--epoch", 0, "--position", 8, "-o", out).exit_code == 0
    assert [found.state["position"] for found in find_states(out)] == [8, 8]


def test_the_samples_of_a_batch(file: Path) -> None:
    done = run("which", file, "--step", 2, "--epoch", 1, "--num-replicas", 2, "--rank", 1, "--json")
    assert done.exit_code == 0
    loader = make(batch_size=2, num_replicas=2, rank=1)
    loader.seek(epoch=1, position=8)
    found = json.loads(done.stdout)
    assert [each["index"] for each in found["samples"]] == next(iter(loader))["index"].tolist()
    assert (found["epoch"], found["unknown"]) == (1, None)


def test_the_places_of_a_sample_and_the_sample_of_a_place(file: Path) -> None:
    line = run("which", file, "--position", 5, "--num-replicas", 1).stdout
    index = line.rpartition("sample ")[2].strip()
    assert line == f"epoch 0, step 1, rank 0, row 1, position 5, sample {index}\n"
    assert run("which", file, "--sample", index, "--num-replicas", 1).stdout == line


def test_what_any_rank_has_found_to_be_bad_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ranks.pt"
    states = [make(num_replicas=2, rank=rank).state_dict() for rank in range(2)]
    text = '{"total": 1, "samples": [[3, 7, 0, "ValueError: no label", true]]}'
    states[1]["bad_samples"] = text
    torch.save(states, path)
    done = run("which", path, "--sample", 3, "--num-replicas", 2)
    assert done.stdout.endswith("recorded as bad: ValueError: no label\n")


def test_a_sample_that_is_never_delivered_has_a_status_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(make(shuffle=False, drop_last=True).state_dict()))
    done = command("which", path, "--sample", 21)
    assert done.returncode == 1
    assert "not delivered: drop_last" in done.stdout
    assert "how many ranks share them" in done.stderr
    assert run("which", path, "--sample", 19).exit_code == 0
    assert run("which", path, "--sample", 22, "--json").exit_code == 1


def test_an_order_that_a_state_does_not_hold_comes_from_the_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(make_weighted().state_dict()))
    module = f"weighted_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "--factory" in str(run("which", path, "--step", 0).exception)
    done = run("which", path, "--step", 0, "--factory", f"{module}:make_weighted", "--json")
    wanted = next(iter(make_weighted()))["index"].tolist()
    assert [each["index"] for each in json.loads(done.stdout)["samples"]] == wanted
    searched = run("which", path, "--sample", wanted[0], "--factory", f"{module}:make_weighted")
    assert "searching the 22 positions" in searched.stderr
    other = run("which", path, "--step", 0, "--factory", f"{module}:make")
    assert "order differs" in str(other.exception)


@pytest.mark.parametrize(
    "arguments", [[], ["--step", 0, "--sample", 0], ["--sample", 0, "--rank", 0]]
)
def test_contradicting_options_are_a_mistake(file: Path, arguments: list[object]) -> None:
    done = run("which", file, *arguments)
    assert done.exit_code == 2
    assert "--step" in done.stderr
