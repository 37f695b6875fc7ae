"""The commands ``inspect`` and ``diff``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.cli.command import command
from tests.tools.checkpoints import after, after_in_torchdata


@pytest.fixture
def files(tmp_path: Path) -> Path:
    torch.save({"train": after(1), "old": after_in_torchdata(1)}, tmp_path / "a.pt")
    torch.save({"train": after(3)}, tmp_path / "b.pt")
    return tmp_path


def test_inspect_shows_each_state_under_a_heading(files: Path) -> None:
    done = command("inspect", files / "a.pt")
    assert (done.returncode, done.stderr) == (0, "")
    assert "train (torch.save file)" in done.stdout
    for line in ("position 2 samples", "share of the epoch 20.0% of 10 samples", "epoch unknown"):
        assert line in done.words


def test_inspect_wraps_no_line_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    flips = T.Compose([T.RandomHorizontalFlip(), T.RandomVerticalFlip()] * 5)
    loader = StatefulGPULoader([0, 1], transform=flips, seed=1)
    torch.save(loader.state_dict(), tmp_path / "a.pt")
    (line,) = (each for each in command("inspect", tmp_path).stdout.splitlines() if "Flip" in each)
    assert line.count("Flip") == 10


def test_unreadable_files_are_in_the_json(files: Path) -> None:
    (files / "cut.pt").write_bytes((files / "a.pt").read_bytes()[:-200])
    torch.save({"loader": after(1) | {"position": -1}}, files / "damaged.pt")
    done = command("inspect", files, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    places = {(Path(each["path"]).name, each["where"]) for each in found["states"]}
    assert places == {("a.pt", "train"), ("a.pt", "old"), ("b.pt", "train")}
    assert [(each["position"], each["epoch"]) for each in found["states"]][:2] == [
        (2, 0),
        (1, None),
    ]
    missed = {Path(each["path"]).name: each for each in found["unreadable"]}
    assert (missed["cut.pt"]["where"], missed["damaged.pt"]["where"]) == ("", "loader")
    assert "position differs" in missed["damaged.pt"]["reason"]
    assert [line.partition("Error: ")[0] for line in done.stderr.splitlines()] == ["", ""]


def test_json_without_a_state_is_status_2_all_the_same(files: Path) -> None:
    (files / "b.pt").write_bytes((files / "b.pt").read_bytes()[:-200])
    done = command("inspect", files / "b.pt", "--json")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert (found["states"], len(found["unreadable"])) == ([], 1)


def test_inspect_shows_the_order_and_the_rank_in_words(tmp_path: Path) -> None:
    state = {"dp_rank_1": after(1), "world_size": 2}
    torch.save(state, tmp_path / "titan.pt")
    text = command("inspect", tmp_path / "titan.pt").words
    assert "ranks data-parallel rank 1 of 2, counted from 0" in text
    assert "order shuffled (feistel-1)" in text
    assert "batches delivered 1 " in text


def test_diff_says_what_differs_and_how_far_apart(files: Path) -> None:
    torch.save({"train": after(3, shuffle=False)}, files / "c.pt")
    torch.save({"train": after(3, drop_last=True)}, files / "d.pt")
    both = "order: shuffled (feistel-1) -> the dataset's own (sequential)"
    for other, status, says in (
        ("b.pt", 0, "the same loader at the same place"),
        ("c.pt", 1, both),
        ("d.pt", 1, "with accept={'drop_last'} it accepts the fingerprint"),
        ("a.pt", 1, "a.pt has a state there"),
    ):
        done = command("diff", files / "b.pt", files / other)
        assert done.returncode == status
        assert says in done.words
    torch.save({"train": after(1)}, files / "e.pt")
    assert command("diff", files / "a.pt", files / "e.pt").returncode == 1, "one state is the same"
    apart = ("diff", files / "a.pt", files / "b.pt", "--where", "train")
    assert "4 samples or 2 batches ahead" in command(*apart).words
    torch.save({"train": after(2)}, files / "f.pt")
    assert "2 samples or 1 batch behind" in command("diff", files / "b.pt", files / "f.pt").words
    done = command(*apart, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)[0]["comparison"]["batches_apart"] == 2


def test_diff_shows_only_the_parts_of_a_transform_that_differ(tmp_path: Path) -> None:
    for size in (24, 32):
        steps = [T.RandomResizedCrop(size), T.ColorJitter(0.4, 0.4, 0.4), T.RandomHorizontalFlip()]
        loader = StatefulGPULoader([0, 1], transform=T.Compose(steps), seed=1)
        torch.save(loader.state_dict(), tmp_path / f"{size}.pt")
    done = command("diff", tmp_path / "24.pt", tmp_path / "32.pt")
    (line,) = [line for line in done.stdout.splitlines() if "transform: " in line]
    before, _, now = line.partition(" -> ")
    assert before.strip() == "transform: Compose([RandomResizedCrop(size=(24, 24), ...), ...])"
    assert now.startswith("Compose([RandomResizedCrop(size=(32, 32), ...), ...])")


def test_a_file_without_a_state_is_status_2(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    done = command("inspect", tmp_path / "empty")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: no state of a loader in")
    assert len(done.stderr.splitlines()) == 1


NAME = "a\x1b[2J\nepoch 9\u202e.pt"
"""A name that clears a terminal, begins a line and reverses the text direction."""


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    torch.save({NAME: after(1)}, tmp_path / "run" / NAME)
    (tmp_path / "run/b\x1b[2J.pt").write_bytes(b"PK")
    done = command("inspect", tmp_path / "run")
    assert done.returncode == 0
    for text in (done.stdout, done.stderr):
        assert not {"\x1b", "\u202e"} & set(text)
    assert not [line for line in done.stdout.splitlines() if line.startswith("epoch 9")]
    assert done.stdout.count("a\\x1b[2J\\nepoch 9\\u202e.pt") == 2
    assert done.stderr.count("b\\x1b[2J.pt") == 1


def test_undecodable_names_are_printed(tmp_path: Path) -> None:
    torch.save({"loader": after(1)}, tmp_path / "a.pt")
    os.rename(tmp_path / "a.pt", bytes(tmp_path) + b"/\xff.pt")
    done = command("inspect", tmp_path)
    assert done.returncode == 0
    assert "\\udcff.pt" in done.stdout
