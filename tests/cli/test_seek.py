"""The commands ``seek`` and ``which``: what they print, write and refuse."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from stateful_gpu_loader import StatefulGPULoader, WeightedSampler
from stateful_gpu_loader.tools.state_files import find_states
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "step_1.pt"
    torch.save({"model": torch.arange(3), "loader": make().state_dict()}, path)
    return path


def refusal(*arguments: object) -> str:
    """Return the sentence on stderr of a command that fails."""
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    return done.stderr


def test_a_loader_resumes_from_a_moved_file(tmp_path: Path, file: Path) -> None:
    moved, before = tmp_path / "moved.pt", file.read_bytes()
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
    done = command("seek", file, "--epoch", 2, "--samples", 8, "-o", tmp_path / "b.pt", "--json")
    assert json.loads(done.stdout) == [{"where": "loader", "epoch": 2, "position": 8, "note": ""}]


def test_a_place_inside_a_step_is_noted(tmp_path: Path, file: Path) -> None:
    done = command("seek", file, "--epoch", 0, "--position", 5, "-o", tmp_path / "a/moved.pt")
    assert done.returncode == 0
    assert done.stderr.startswith("Note: position 5 lies inside a step of 4 samples")
    assert done.stderr.endswith("Steps begin at 4 and 8\n")
    for number, position in enumerate((0, 8, 22)):
        place = ("--epoch", 0, "--position", position, "-o", tmp_path / f"{number}.pt")
        assert command("seek", file, *place).stderr == ""


def test_an_invalid_place_is_refused_and_nothing_is_written(tmp_path: Path, file: Path) -> None:
    out = tmp_path / "new.pt"
    message = refusal("seek", file, "--epoch", 0, "--position", 23, "-o", out)
    assert "has 22 samples" in message
    assert not out.exists()


def test_a_distributed_checkpoint_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP warns that there is one process
        dcp.save({"loader": make()}, checkpoint_id=tmp_path / "run/step_1")
    out = tmp_path / "new"
    for path in (tmp_path / "run/step_1", tmp_path / "run"):
        message = refusal("seek", path, "--epoch", 0, "--position", 8, "-o", out)
        assert "distributed checkpoint" in message
        assert "step_1'" in message
        assert "Remedy: load it in your program, call loader.seek(" in message
        assert not out.exists()


def test_one_of_several_loaders_is_chosen(tmp_path: Path) -> None:
    path, out = tmp_path / "both.pt", tmp_path / "new.pt"
    torch.save({"train": make().state_dict(), "val": make(shuffle=False).state_dict()}, path)
    place = ("--epoch", 0, "--position", 4, "-o", out)
    assert "'train' in both.pt, 'val' in both.pt" in refusal("seek", path, *place)
    assert "are not at 'test'" in refusal("seek", path, *place, "--where", "test")
    assert command("seek", path, *place, "--where", "val").returncode == 0
    places = {found.where: found.state["position"] for found in find_states(out)}
    assert places == {"train": 0, "val": 4}


@pytest.mark.parametrize("name", ["seek", "which"])
def test_a_state_of_torchdatas_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    path, out = tmp_path / "theirs.pt", tmp_path / "new.pt"
    torch.save({"loader": after_in_torchdata(2)}, path)
    place = ["--epoch", 1, "--position", 0]
    message = refusal(name, path, *place, *(["-o", out] if name == "seek" else []))
    assert "'loader' in" in message
    assert "is of torchdata's StatefulDataLoader" in message
    assert not out.exists()


def test_beside_a_state_of_torchdatas_ours_has_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "both.pt"
    torch.save({"old": after_in_torchdata(2), "new": make().state_dict()}, path)
    assert "--where" in refusal("which", path, "--position", 0)
    assert command("which", path, "--position", 0, "--where", "new").returncode == 0


def test_the_states_of_all_ranks_are_moved(tmp_path: Path) -> None:
    path, out = tmp_path / "ranks.pt", tmp_path / "new.pt"
    torch.save([make(num_replicas=2, rank=rank).state_dict() for rank in range(2)], path)
    assert command("seek", path, "--epoch", 0, "--position", 8, "-o", out).returncode == 0
    assert [found.state["position"] for found in find_states(out)] == [8, 8]


def test_the_samples_of_a_batch(file: Path) -> None:
    place = ("--step", 2, "--epoch", 1, "--num-replicas", 2, "--rank", 1)
    done = command("which", file, *place, "--json")
    loader = make(batch_size=2, num_replicas=2, rank=1)
    loader.seek(epoch=1, position=8)
    found = json.loads(done.stdout)
    assert [each["index"] for each in found["samples"]] == next(iter(loader))["index"].tolist()
    assert (found["epoch"], found["unknown"]) == (1, None)


def test_the_places_of_a_sample_and_the_sample_of_a_place(file: Path) -> None:
    line = command("which", file, "--position", 5, "--num-replicas", 1).stdout
    index = line.rpartition("sample ")[2].strip()
    assert line == f"epoch 0, step 1, rank 0, row 1, position 5, sample {index}\n"
    assert command("which", file, "--sample", index, "--num-replicas", 1).stdout == line


def test_bad_samples_of_any_rank_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "ranks.pt"
    states = [make(num_replicas=2, rank=rank).state_dict() for rank in range(2)]
    text = '{"total": 1, "samples": [[3, 7, 0, "ValueError: no label", true]]}'
    states[1]["bad_samples"] = text
    torch.save(states, path)
    done = command("which", path, "--sample", 3, "--num-replicas", 2)
    assert done.stdout.endswith("recorded as bad: ValueError: no label\n")


def test_a_sample_that_is_never_delivered_has_a_status_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(make(shuffle=False, drop_last=True).state_dict()))
    done = command("which", path, "--sample", 21)
    assert done.returncode == 1
    assert "not delivered: drop_last" in done.stdout
    assert "the number of ranks" in done.stderr
    assert command("which", path, "--sample", 19).returncode == 0


def test_a_sample_outside_the_dataset_is_refused(tmp_path: Path, file: Path) -> None:
    assert "22 samples. Remedy: pass 0 to 21" in refusal("which", file, "--sample", 22)
    (tmp_path / "weighted.py").write_text(FACTORY)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(make_weighted().state_dict()))
    factory = ("--factory", "weighted:make_weighted")
    done = command("which", path, "--sample", 999, *factory, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no sample 999: the stream has 22 samples" in done.stderr


def test_an_order_that_a_state_does_not_hold_comes_from_the_factory(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(make_weighted().state_dict()))
    (tmp_path / "weighted.py").write_text(FACTORY)
    assert "--factory" in refusal("which", path, "--step", 0)
    factory = ("--factory", "weighted:make_weighted")
    done = command("which", path, "--step", 0, *factory, "--json", cwd=tmp_path)
    wanted = next(iter(make_weighted()))["index"].tolist()
    assert [each["index"] for each in json.loads(done.stdout)["samples"]] == wanted
    searched = command("which", path, "--sample", wanted[0], *factory, cwd=tmp_path)
    assert "searching all 22 positions" in searched.stderr
    other = command("which", path, "--step", 0, "--factory", "weighted:make", cwd=tmp_path)
    assert "order differs" in other.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["--step", 0, "--sample", 0], ["--sample", 0, "--rank", 0]]
)
def test_contradicting_options_are_a_mistake(file: Path, arguments: list[object]) -> None:
    done = command("which", file, *arguments)
    assert done.returncode == 2
    assert "--step" in done.stderr
