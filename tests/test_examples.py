"""Examples of user objects with state: ours as scripts, torchdata's by the shape of its classes.

A2: with 0 and 2 workers, after load_state_dict the rest equals the rest.
"""

from __future__ import annotations

import importlib.util
import io
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import copy_of, same

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = ("stateful_map", "stateful_iterable")
Build = Callable[[int], StatefulGPULoader[Any]]


class MySampler(Sampler[int]):
    """The tutorial's: so many draws from a generator of its own, never set back."""

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
    """The tutorial's: noise from torch's global generator, whose state is the dataset's."""

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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", EXAMPLES)
def test_main_finds_the_rest_the_same(
    name: str, num_workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A2."""
    imported(name).main(num_workers)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3
    for line in lines:
        assert re.fullmatch(rf"{num_workers} workers tensor\(.+\) the same", line)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_script_does_so_without_workers_and_with_two(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A2."""
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert {line.partition(" ")[0] for line in lines} == {"0", "2"}
    assert all(line.endswith("the same") for line in lines)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_when_the_rest_is_another(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict is no matter of course: here nothing equals anything."""
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    imported(name).main(0)
    assert "the same" not in capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_what_it_shows(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_resume_from_every_batch(name: str, num_workers: int) -> None:
    """A2."""
    assert_rest_equals_rest(imported(name).build, num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("build", [tutorial_map, tutorial_iterable])
def test_objects_of_the_tutorial_resume_from_every_batch(build: Build, num_workers: int) -> None:
    """A2: classes as torchdata's tutorial has them."""
    assert_rest_equals_rest(build, num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("build", [tutorial_map, tutorial_iterable])
def test_the_tutorial_runs_as_it_is_written(build: Build, num_workers: int) -> None:
    """A2: the state of the third batch is loaded into the same loader, after its pass."""
    loader = build(num_workers)
    batches, state = [], {}
    for i, batch in enumerate(loader):
        batches.append(copy_of(batch))
        if i == 2:
            state = loader.state_dict()
    loader.load_state_dict(state)
    assert same(list(loader), batches[3:])
    assert len(batches) > 3


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_rest_equals_rest(build: Build, num_workers: int) -> None:
    """From every state of a pass, saved to a file and loaded into a fresh loader."""
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
    """Through a file that holds no code (A9)."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
