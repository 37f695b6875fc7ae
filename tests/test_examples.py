"""The examples run as scripts, print what they promise, and report broken guarantees.

Examples of user objects with state also run with torchdata's own classes. With 0 and 2 workers, a
resumed pass must deliver the rest.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, same
from tests.patience import seconds

FOLDER = Path(__file__).parent.parent / "examples"

ANGLES = ["13.1024", "-9.7800", "-26.1646", "-25.4199", "-9.6380", "16.9450", "-29.3992", "26.0642"]
"""Angles of the fourth batch in DALI's notebook of dynamic mode."""


@dataclass(frozen=True)
class Example:
    """Output and files of a script that runs without arguments."""

    prints: tuple[str, ...]
    """Patterns of the output. Each line matches one of them, and each pattern matches some line."""
    pictures: tuple[str, ...] = ()
    """Files that it writes into the current folder."""
    own_process: bool = False
    """Whether it leaves threads that would break forks of other tests."""


EXAMPLES = {
    "caffe_lmdb": Example(
        prints=(
            r"caffe: 36 images, \(9, 3, 224, 224\) torch.float32 in lmdb_caffe.png",
            r"caffe2: 36 images, \(9, 3, 224, 224\) torch.float32 in lmdb_caffe2.png",
            r"caffe: labels \[[\d, ]+\] the same",
            r"caffe2: labels \[[\d, ]+\] the same",
        ),
        pictures=("lmdb_caffe.png", "lmdb_caffe2.png"),
    ),
    "dali_dynamic": Example(
        prints=(
            r"Saved checkpoint to ndd_checkpoint_0000.json",
            r"labels \((original|restored)\):  \[[\d, ]+\]",
            rf"angles \(original\):  {re.escape(str(ANGLES))}",
            rf"angles \(restored\):  {re.escape(str(ANGLES))}",
            r"rest of the epoch: 4 and 4 batches",
            r"batch [4567]: labels, angles and pixels the same",
        ),
        pictures=("dali_original.png", "dali_restored.png"),
        own_process=True,
    ),
    "dali_pipeline": Example(
        prints=(
            r"Saved checkpoint to pipeline_0000.json",
            r"labels \((original|restored)\):  \[[\d, ]+\]",
            r"angles \((original|restored)\):  \[[-\d., ]+\]",
            r"rest of the epoch: 4 and 4 batches of 7",
            r"batch [4567]: labels, angles and pixels the same",
        ),
        pictures=("pipeline_original.png", "pipeline_restored.png"),
        own_process=True,
    ),
    "parallel_callable": Example(
        prints=(
            r"training: \(4, 3, 256, 256\) torch.uint8 in training.png",
            r"validation: \(4, 3, 256, 256\) torch.uint8 in validation.png",
            r"(training|validation): epoch 0, batch [123], labels \[[\d, ]+\]",
            r"training: epoch 1, labels \[[\d, ]+\] the same",
        ),
        pictures=("training.png", "validation.png"),
    ),
    "ray_cluster": Example(
        prints=(
            r"both nodes were lost before step 6, and workers were replaced [1-9]\d* times",
            r"18 losses the same",
            r"4 weights the same",
        ),
        own_process=True,
    ),
    "rotation": Example(
        prints=(
            r"Saved checkpoint to checkpoint_0000.json",
            r"labels \((original|restored)\):  \[[\d, ]+\]",
            r"angles \((original|restored)\):  \[[-\d., ]+\]",
            r"brightness \((original|restored)\):  \[[\d., ]+\]",
            r"rest of the epoch: 4 and 4 batches",
            r"batch [4567]: labels, angles, brightness and pixels the same",
        ),
        pictures=("rotation_original.png", "rotation_restored.png"),
    ),
    "stateful_iterable": Example(prints=(r"0 workers .+ the same", r"2 workers .+ the same")),
    "stateful_map": Example(prints=(r"0 workers .+ the same", r"2 workers .+ the same")),
}
WITH_STATE = ("stateful_map", "stateful_iterable")
Build = Callable[[int], StatefulGPULoader[Any]]


class MySampler(Sampler[int]):
    """The tutorial's: draws from a private generator that is never reset."""

    def __init__(self, high: int, seed: int, limit: int) -> None:
        self.high, self.seed, self.limit = high, seed, limit
        self.g = torch.Generator().manual_seed(seed)
        self.i = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.i, self.limit):
            self.i += 1
            yield int(torch.randint(self.high, (1,), generator=self.g))

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "rng": self.g.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]
        self.g.set_state(state_dict["rng"])


class NoisyRange(Dataset[float]):
    """The tutorial's: noise from torch's global generator, whose state is the dataset's state."""

    def __init__(self, high: int, mean: float, std: float) -> None:
        self.high, self.mean, self.std = high, torch.tensor([float(mean)]), float(std)

    def __len__(self) -> int:
        return self.high

    def __getitem__(self, index: int) -> float:
        if not 0 <= index < self.high:
            raise IndexError(index)
        return index + torch.normal(self.mean, self.std).item()

    def state_dict(self) -> dict[str, Any]:
        return {"rng": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        torch.set_rng_state(state_dict["rng"])


class MyIterableDataset(IterableDataset[torch.Tensor]):
    """The tutorial's: one permutation, of which each worker takes its share."""

    def __init__(self, high: int, seed: int) -> None:
        self.high, self.seed = high, seed
        self.g = torch.Generator()
        self.i = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        share = torch.randperm(self.high, generator=self.g.manual_seed(self.seed))[number::workers]
        for index in range(self.i, len(share)):
            self.i += 1
            yield share[index]
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.i = state_dict["i"]


def tutorial_map(num_workers: int) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        NoisyRange(5, 1, 1),
        sampler=MySampler(5, 1, 10),
        batch_size=2,
        drop_last=False,
        num_workers=num_workers,
    )


def tutorial_iterable(num_workers: int) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        MyIterableDataset(12, 0), batch_size=2, drop_last=False, num_workers=num_workers
    )


def test_every_example_has_a_row() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(EXAMPLES)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_script_prints_what_it_promises(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A resumed run delivers what the uninterrupted run delivered."""
    example, output = EXAMPLES[name], tmp_path
    if example.own_process:
        output = tmp_path / "new" / "folder"
        command = [sys.executable, str(FOLDER / f"{name}.py"), "--output", str(output)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
            capture_output=True,
            text=True,
            timeout=seconds(24),
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
    else:
        lines = _run_here(name, tmp_path, monkeypatch, capsys)
    for line in lines:
        assert any(re.fullmatch(pattern, line) for pattern in example.prints), line
    for pattern in example.prints:
        assert any(re.fullmatch(pattern, line) for line in lines), pattern
    for picture in example.pictures:
        assert (output / picture).read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in output.glob("*")} == set(example.pictures)


@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name in EXAMPLES if not EXAMPLES[name].own_process])
def test_an_example_says_when_the_rest_is_another(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its verdict can be negative: here no two values are equal."""
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    output = ["--output", "new/folder"] if EXAMPLES[name].pictures else []
    lines = _run_here(name, tmp_path, monkeypatch, capsys, *output)
    assert any(line.endswith("ANOTHER") for line in lines)
    assert not any(line.endswith("the same") for line in lines)
    if output:
        found = {path.name for path in (tmp_path / "new/folder").iterdir()}
        assert found == set(EXAMPLES[name].pictures)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_its_head_says_what_is_safer(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    head = text.split('"""')[1]
    assert "Safer here:" in head
    assert len(text.splitlines()) < (150 if name not in WITH_STATE else 75)


def test_the_table_of_examples_names_every_file() -> None:
    table = (FOLDER.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(\.\./examples/(\w+)\.py\)", table)
    assert sorted(linked) == sorted(EXAMPLES)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", WITH_STATE)
def test_examples_resume_from_every_batch(name: str, num_workers: int) -> None:
    assert_rest_equals_rest(imported(name).build, num_workers)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("build", [tutorial_map, tutorial_iterable])
def test_objects_of_the_tutorial_resume_from_every_batch(build: Build, num_workers: int) -> None:
    assert_rest_equals_rest(build, num_workers)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("build", [tutorial_map, tutorial_iterable])
def test_the_tutorial_runs_as_it_is_written(build: Build, num_workers: int) -> None:
    """The state of the third batch is loaded into the same loader, after its pass."""
    loader = build(num_workers)
    batches, state = [], {}
    for i, batch in enumerate(loader):
        batches.append(copy_of(batch))
        if i == 2:
            state = loader.state_dict()
    loader.load_state_dict(state)
    assert same(list(loader), batches[3:])
    assert len(batches) > 3


def _run_here(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
) -> list[str]:
    """Run a script in a folder; return the lines that it prints."""
    path = str(FOLDER / f"{name}.py")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [path, *arguments])
    runpy.run_path(path, run_name="__main__")
    return capsys.readouterr().out.splitlines()


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_rest_equals_rest(build: Build, num_workers: int) -> None:
    """Save every state of a pass to a file, load it into a fresh loader, and compare the rest."""
    loader = build(num_workers)
    batches, states = [], [saved_and_loaded(loader.state_dict())]
    for batch in loader:
        batches.append(copy_of(batch))
        states.append(saved_and_loaded(loader.state_dict()))
    assert len(batches) >= 5
    for delivered, state in enumerate(states):
        resumed = build(num_workers)
        resumed.load_state_dict(state)
        assert same(list(resumed), batches[delivered:]), f"resumed behind batch {delivered}"


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state after a round trip through a file that holds no code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
