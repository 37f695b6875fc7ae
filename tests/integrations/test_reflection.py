"""Loaders that frameworks rebuild from public attributes, by their own functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, default_collate

from stateful_gpu_loader import FolderSource, LoaderError, StatefulGPULoader
from tests.trainer_data import RECIPES, Seen, image_loader, photos, seen, tars

fabric = pytest.importorskip("lightning.fabric.utilities.data", reason="needs lightning")
lightning = pytest.importorskip("lightning.pytorch.utilities.data", reason="needs lightning")
states = pytest.importorskip("lightning.pytorch.trainer.states", reason="needs lightning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    return photos(tmp_path_factory.mktemp("photos"))


class Explicit(StatefulGPULoader[Any]):
    """Takes its known arguments by name."""

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, **kwargs: Any):
        super().__init__(dataset, batch_size, shuffle, **kwargs)


class Labelled(StatefulGPULoader[Any]):
    """Has an additional argument, kept as an attribute."""

    def __init__(self, dataset: Any, *args: Any, label: str = "", **kwargs: Any):
        self.label = label
        super().__init__(dataset, *args, **kwargs)


class Passing(StatefulGPULoader[Any]):
    """Passes all arguments on."""

    def __init__(self, dataset: Any, **kwargs: Any):
        super().__init__(dataset, **kwargs)


class Closed(StatefulGPULoader[Any]):
    """Has none of the loader's arguments."""

    def __init__(self, dataset: Any, side: int = 16):
        self.side = side
        super().__init__(dataset, batch_size=4, shuffle=True, seed=11, transform=RECIPES)


def start_worker(worker: int) -> None:
    torch.manual_seed(worker)


def same_batch(batch: Any) -> Any:
    return batch


def collate(samples: list[Any]) -> Any:
    return default_collate(samples)


GIVEN: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "transform": RECIPES}
NOTHING_DEFAULT: dict[str, Any] = {
    **GIVEN,
    "num_workers": 1,
    "collate_fn": collate,
    "drop_last": True,
    "timeout": 60,
    "worker_init_fn": start_worker,
    "multiprocessing_context": "fork",
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "persistent_workers": True,
    "in_order": False,
    "snapshot_every_n_steps": 2,
    "device": "cpu",
    "decoder": "torchvision",
    "batch_transform": same_batch,
    "worker_type": "process",
    "on_bad_sample": "drop",
    "max_worker_restarts": 5,
    "on_epoch_boundary": "next_epoch",
}
KINDS: dict[str, Callable[[Any], StatefulGPULoader[Any]]] = {
    "plain": lambda data: StatefulGPULoader(data, **GIVEN),
    "nothing default": lambda data: StatefulGPULoader(data, **NOTHING_DEFAULT),
    "in order": lambda data: StatefulGPULoader(data, **{**GIVEN, "shuffle": False}),
    "one of one rank": lambda data: StatefulGPULoader(data, rank=0, num_replicas=1, **GIVEN),
    "divided": lambda data: StatefulGPULoader(data, num_replicas="auto", **GIVEN),
    "explicit": lambda data: Explicit(data, **GIVEN),
    "labelled": lambda data: Labelled(data, label="mine", **GIVEN),
    "passing": lambda data: Passing(data, **GIVEN),
}
DERIVED = "explicit", "labelled", "passing"


@contextmanager
def recorded() -> Iterator[None]:
    """Record how loaders are built, as Lightning does around the user's hooks."""
    with (
        fabric._replace_dunder_methods(DataLoader, "dataset"),
        fabric._replace_dunder_methods(BatchSampler),
    ):
        yield


def by_fabric(loader: Any) -> Any:
    return fabric._update_dataloader(loader, loader.sampler)


def by_lightning(loader: Any) -> Any:
    return lightning._update_dataloader(loader, loader.sampler)


def for_predictions(loader: Any) -> Any:
    return lightning._update_dataloader(loader, loader.sampler, states.RunningStage.PREDICTING)


def two_epochs(loader: Any) -> list[list[Seen]]:
    return [[seen(batch) for batch in loader] for _ in range(2)]


def assert_behaves_as(rebuilt: Any, original: Any) -> None:
    """Compare type, arguments, batches and states; resume each from the other's state.

    Args:
        rebuilt: a rebuilt loader like ``original``.
        original: as the user built it.
    """
    assert type(rebuilt) is type(original)
    for name in [*NOTHING_DEFAULT, "dataset", "rank", "num_replicas"]:
        if name != "shuffle":  # the sampler that is passed on implies it
            assert getattr(rebuilt, name) == getattr(original, name), name
    assert vars(rebuilt).get("label") == vars(original).get("label")
    for loader in (rebuilt, original):
        next(iter(loader))
    state = rebuilt.state_dict()
    assert state == original.state_dict()
    rebuilt.load_state_dict(state)
    original.load_state_dict(state)
    assert two_epochs(rebuilt) == two_epochs(original)


@pytest.mark.trainers
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rebuild", "is_recorded"),
    [(by_fabric, False), (by_lightning, True)],
    ids=["given to Fabric", "built in a hook of Lightning's"],
)
def test_rebuilt_by_lightning(
    data: FolderSource, rebuild: Callable[[Any], Any], is_recorded: bool, kind: str
) -> None:
    """Lightning replaces the sampler of a loader of this class or a subclass in this way."""
    original = KINDS[kind](data)
    with recorded() if is_recorded else nullcontext():
        another = KINDS[kind](data)
    assert_behaves_as(rebuild(another), original)


def test_rebuilt_with_lanes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An iterable dataset keeps its own order."""
    shards = tars(tmp_path_factory.mktemp("shards"))
    for rebuild in (by_fabric, by_lightning, for_predictions):
        assert_behaves_as(rebuild(image_loader(shards)), image_loader(shards))


@pytest.mark.parametrize(
    "kind",
    ["plain", "in order", *DERIVED],
)
def test_rebuilt_for_predictions(data: FolderSource, kind: str) -> None:
    """The batch sampler is wrapped to record the indices. The batches stay the same, and their
    state is that of a user's batch sampler.
    """
    rebuilt = for_predictions(KINDS[kind](data))
    batches = two_epochs(KINDS[kind](data))
    assert type(rebuilt) is type(KINDS[kind](data))
    assert two_epochs(rebuilt) == batches
    started = for_predictions(KINDS[kind](data))
    next(iter(started))
    resumed = for_predictions(KINDS[kind](data))
    resumed.load_state_dict(started.state_dict())
    assert two_epochs(resumed) == [batches[0][1:], batches[1]]


def test_a_divided_loader_is_refused_for_predictions(data: FolderSource) -> None:
    """The wrapped sampler would not be divided, and nothing is ignored. Lightning itself divides
    an undivided loader.
    """
    with pytest.raises(ValueError, match="num_replicas"):
        for_predictions(KINDS["divided"](data))


@pytest.mark.parametrize("rebuild", [by_fabric, by_lightning])
def test_a_class_without_the_loaders_arguments_is_refused(
    data: FolderSource, rebuild: Callable[[Any], Any]
) -> None:
    """Lightning itself refuses any such DataLoader."""
    with pytest.raises(Exception, match="doesn't expose all its attributes"):
        rebuild(Closed(data))


def test_seeds_that_are_not_given(data: FolderSource) -> None:
    """Rebuilding does not draw the seed of ``seed=None``."""
    unseeded = {**GIVEN, "seed": None}
    torch.manual_seed(5)
    expected = two_epochs(StatefulGPULoader(data, **unseeded))
    torch.manual_seed(5)
    rebuilt = by_lightning(StatefulGPULoader(data, **unseeded))
    assert rebuilt.seed is None
    assert two_epochs(rebuilt) == expected


class _Named:
    """A mixin unrelated to loading."""


class _Mixed(_Named, StatefulGPULoader[Any]):
    def __init__(self, dataset: Any, **arguments: Any) -> None:
        super().__init__(dataset, **arguments)


def test_a_subclass_with_a_mixin_names_the_loaders_arguments(data: FolderSource) -> None:
    """Its seed and its transform are not lost."""
    assert {"seed", "transform"} <= set(inspect.signature(_Mixed).parameters)
    expected = two_epochs(_Mixed(data, **GIVEN))
    assert two_epochs(by_lightning(_Mixed(data, **GIVEN))) == expected


def test_reading_all_attributes_has_no_effect(data: FolderSource) -> None:
    """Debuggers and mocks do so."""
    assert dict(inspect.getmembers(StatefulGPULoader(data)))["dataset"] is data


REBUILDS = """
def update(dataloader, batch_sampler):
    names = [name for name in dataloader.__dict__ if not name.startswith("_")]
    names = set(names) - {"batch_size", "sampler", "drop_last", "batch_sampler", "dataset_kind"}
    arguments = {name: getattr(dataloader, name) for name in names}
    return type(dataloader)(**arguments, batch_sampler=batch_sampler)
"""


def test_ignites_deterministic_engine_is_refused_by_name() -> None:
    """F: it would resume by torch's generators, which do not decide the batches."""
    module: dict[str, Any] = {"__name__": "ignite.engine.deterministic"}
    exec(REBUILDS, module)
    loader = StatefulGPULoader(range(10), batch_size=4, seed=1)
    with pytest.raises(LoaderError, match=r"DeterministicEngine.*ignite\.engine\.Engine"):
        module["update"](loader, loader.batch_sampler)
    assert {name: getattr(loader, name) for name in vars(loader)}["batch_size"] == 4
