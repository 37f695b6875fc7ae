"""Fabric in one process: interrupted at every kind of moment, with and without the adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.integrations.fabric import setup_dataloaders
from tests.integrations.lightning_fabric.training import (
    END,
    NoisyImages,
    adapted,
    built_in,
    interrupted_and_resumed,
    one_process,
    train,
)
from tests.trainer_data import image_loader, photos, samples_of, tars

# The loader's justified warning about an iterable without a state.
pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")

MOMENTS = {
    "in the first epoch": (0, 2),
    "at the first epoch's last batch": (0, 6),
    "after the first epoch": (0, END),
    "in a later epoch": (1, 3),
    "at a later epoch's last batch": (1, 6),
    "after a later epoch": (1, END),
}
WORKERS = {"shuffled": 0, "in order": 0, "lanes": 2, "iterable": 2}
"""Number of workers for each kind of loader."""
STOPS = {"lanes": list(MOMENTS.values())[::2], "iterable": list(MOMENTS.values())[1::2]}
"""Moments of loaders with workers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("photographs")


@pytest.fixture(scope="module")
def make(folder: Path) -> Callable[..., StatefulGPULoader[Any]]:
    dataset = {
        "shuffled": photos(folder, 22),
        "in order": photos(folder, 22),
        "lanes": tars(folder / "tars"),
        "iterable": NoisyImages(24),
    }

    def make_kind(kind: str, **arguments: Any) -> StatefulGPULoader[Any]:
        if kind == "iterable":
            return StatefulGPULoader(dataset[kind], batch_size=4, seed=11, **arguments)
        return image_loader(dataset[kind], shuffle=kind != "in order", **arguments)

    return make_kind


@pytest.mark.parametrize("kind", WORKERS)
def test_resumed_run_consumes_the_batches_of_an_uninterrupted_one(
    kind: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    """Samples, pixels and final weights, interrupted mid-epoch and at boundaries."""
    build = lambda: make(kind, num_workers=WORKERS[kind])  # noqa: E731
    uninterrupted = train(one_process(), adapted, build())
    assert [len(uninterrupted.steps(epoch)) for epoch in range(3)] == [6, 6, 6]
    for stop in STOPS.get(kind, MOMENTS.values()):
        resumed = interrupted_and_resumed(one_process, adapted, build, tmp_path / "state", stop)
        assert resumed == uninterrupted, stop


@pytest.mark.parametrize("kind", WORKERS)
def test_uninterrupted_run_is_that_of_fabric_alone(kind: str, make: Callable[..., Any]) -> None:
    """The adapter changes nothing but the resume."""
    with_adapter = train(one_process(), adapted, make(kind))
    assert with_adapter == train(one_process(), built_in, make(kind))
    loader = make(kind)
    assert [samples for _, samples in with_adapter.batches] == [
        samples_of(batch) for _ in range(3) for batch in loader
    ]


@pytest.mark.parametrize("kind", ["shuffled", "lanes", "iterable"])
def test_built_in_way_is_exact_in_the_first_epoch(
    kind: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    """Fabric and the loader count alike in the first epoch. Fabric sets epochs only on samplers;
    without such a sampler, later epochs are exact, too.
    """
    build = lambda: make(kind)  # noqa: E731
    uninterrupted = train(one_process(), built_in, build())
    for stop in STOPS.get(kind, [(0, 2), (0, 6)]):
        resumed = interrupted_and_resumed(one_process, built_in, build, tmp_path / "state", stop)
        assert resumed == uninterrupted, stop


def test_built_in_way_goes_back_to_the_epochs_of_a_new_process(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    """The resumed pass is exact, with a warning; the next pass is of Fabric's epoch 1."""
    path, uninterrupted = tmp_path / "state", train(one_process(), built_in, make("shuffled"))
    before = train(one_process(), built_in, make("shuffled"), save_to=path, stop=(1, 3))
    with pytest.warns(UserWarning, match="set_epoch\\(0\\) after load_state_dict\\(\\) of epoch 1"):
        after = train(one_process(), built_in, make("shuffled"), resume_from=path)
    assert before.batches + after.batches[:3] == uninterrupted.batches[:12]
    assert after.steps(2) == uninterrupted.steps(1)


@pytest.mark.parametrize(("first", "second"), [(built_in, adapted), (adapted, built_in)])
def test_checkpoint_loads_with_and_without_the_adapter(
    first: Any, second: Any, make: Callable[..., Any], tmp_path: Path
) -> None:
    """In one process both save the loader's own state."""
    path, uninterrupted = tmp_path / "state", train(one_process(), built_in, make("lanes"))
    before = train(one_process(), first, make("lanes"), save_to=path, stop=(1, 3))
    after = train(one_process(), second, make("lanes"), resume_from=path)
    assert before.batches + after.batches == uninterrupted.batches
    assert after.weights == uninterrupted.weights


def test_steps_of_several_batches_end_where_they_did(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    """An epoch of 6 batches has steps of four and two batches, also when it is resumed."""
    arguments = {"accumulate": 4}
    build = lambda: make("shuffled")  # noqa: E731
    uninterrupted = train(one_process(), adapted, build(), **arguments)
    assert uninterrupted.weights != train(one_process(), adapted, build()).weights
    for stop in [(0, 4), (1, 4), (1, 6), (1, END)]:
        path = tmp_path / "state"
        resumed = interrupted_and_resumed(one_process, adapted, build, path, stop, **arguments)
        assert resumed == uninterrupted, stop


def test_broken_pass_counts_as_an_epoch(make: Callable[..., Any]) -> None:
    """Fabric's rule, for samplers of this package and of torch."""
    for kind in ("shuffled", "torch's"):
        seen = []
        for set_up in (built_in, adapted):
            loader = make("shuffled") if kind == "shuffled" else _of_torch(make)
            batches = set_up(one_process(), loader)
            for _ in batches:
                break
            seen.append([samples_of(batch) for batch in batches])
        assert seen[0] == seen[1], kind


def test_several_loaders_each_have_their_state(make: Callable[..., Any], tmp_path: Path) -> None:
    """Training and validation loader in one dictionary, saved during validation."""
    fabric = one_process()
    train_batches, valid_batches = setup_dataloaders(fabric, make("shuffled"), make("in order"))
    list(train_batches)
    iterator = iter(valid_batches)
    next(iterator)
    fabric.save(tmp_path / "state", {"train": train_batches, "valid": valid_batches})
    rest = [samples_of(batch) for batch in iterator]
    following = [samples_of(batch) for batch in train_batches]

    train_batches, valid_batches = setup_dataloaders(fabric, make("shuffled"), make("in order"))
    fabric.load(tmp_path / "state", {"train": train_batches, "valid": valid_batches})
    assert [samples_of(batch) for batch in valid_batches] == rest
    assert [samples_of(batch) for batch in train_batches] == following


def test_checkpoint_is_of_plain_values(make: Callable[..., Any], tmp_path: Path) -> None:
    """It loads under ``weights_only=True``."""
    train(one_process(), adapted, make("lanes"), save_to=tmp_path / "state", stop=(1, 3))
    saved = torch.load(tmp_path / "state", weights_only=True)
    assert saved["loader"]["epoch"] == 1


def test_batches_move_unless_they_are_to_stay(make: Callable[..., Any]) -> None:
    """Moves like ``fabric.setup_dataloaders(move_to_device=)``; has the loader's attributes."""

    class Elsewhere:
        world_size, strategy = 1, None

        def to_device(self, batch: Any) -> Any:
            return [part.to("meta") for part in batch]

    loader = make("shuffled")
    for moves, device in ((True, "meta"), (False, "cpu")):
        batches = setup_dataloaders(Elsewhere(), loader, move_to_device=moves)
        assert {part.device.type for part in next(iter(batches))} == {device}
    assert (len(batches), batches.batch_size, batches.dataset) == (6, 4, loader.dataset)
    assert not hasattr(batches, "_parts")


def test_epoch_can_be_chosen(make: Callable[..., Any]) -> None:
    """``set_epoch`` before a pass, for samplers of this package and of torch."""
    builds = {
        "ours": lambda: make("shuffled"),
        "torch's": lambda: _of_torch(make),
        "batches of torch's": lambda: _of_torch(make, in_batches=True),
    }
    for kind, build in builds.items():
        batches = setup_dataloaders(one_process(), build())
        epochs = [[samples_of(batch) for batch in batches] for _ in range(3)]
        assert len({number for number, _ in (epoch[0][0] for epoch in epochs)}) > 1, kind
        batches = setup_dataloaders(one_process(), build())
        batches.set_epoch(2)
        assert [samples_of(batch) for batch in batches] == epochs[2], kind


def test_empty_rest_of_an_epoch_can_be_skipped(make: Callable[..., Any]) -> None:
    """``on_epoch_boundary="next_epoch"`` gives no warning of another epoch."""
    batches = setup_dataloaders(one_process(), make("shuffled"))
    epochs = [[samples_of(batch) for batch in batches] for _ in range(3)]
    batches = setup_dataloaders(one_process(), make("shuffled"))
    for number, _ in enumerate(batches, start=1):
        if number == 6:
            state = batches.state_dict()
    resumed = make("shuffled", on_epoch_boundary="next_epoch")
    batches = setup_dataloaders(one_process(), resumed)
    batches.load_state_dict(state)
    assert [[samples_of(batch) for batch in batches] for _ in range(2)] == epochs[1:]


def _of_torch(make: Callable[..., Any], in_batches: bool = False) -> StatefulGPULoader[Any]:
    """Return a loader with torch's own sampler, whose epoch must be set."""
    dataset, transform = make("shuffled").dataset, make("shuffled").transform
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=5)
    given: dict[str, Any] = {"batch_size": 4, "sampler": sampler}
    if in_batches:
        given = {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)}
    return StatefulGPULoader(dataset, seed=11, transform=transform, **given)
