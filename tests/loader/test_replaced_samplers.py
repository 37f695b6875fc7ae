"""Programs that replace a loader's sampler after the loader was built."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from stateful_gpu_loader import LoaderError, StatefulGPULoader
from tests.conformance import copy_of, loaded, same, through_json, uninterrupted
from tests.map_datasets import Indices, Noisy
from tests.user_objects import PlainIterable

N, PER_EPOCH = 12, 3


class Forever:
    """Iterates a sampler again and again, like the samplers of timm, ultralytics and yolov5."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Endless(StatefulGPULoader[Any]):
    """One iterator for all epochs, made in ``__init__``."""

    iterator: Any

    def replace(self) -> None:
        object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.replace()
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr, arg-type]

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            yield next(self.iterator)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            for worker in self.iterator._workers:
                worker.terminate()

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class Unlocked(Endless):
    """Replaces it despite torch's lock."""

    def replace(self) -> None:
        self._DataLoader__initialized = False
        self.batch_sampler = Forever(self.batch_sampler)  # type: ignore[assignment]
        self._DataLoader__initialized = True


class Overriding(Endless):
    """Replaces it by a property of the class."""

    def replace(self) -> None:
        self.forever = Forever(self.batch_sampler)

    def __len__(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]

    @property
    def _index_sampler(self) -> Any:
        return getattr(self, "forever", None) or super()._index_sampler


KINDS: list[type[Endless]] = [Endless, Unlocked, Overriding]


def endless(kind: type[Endless], **arguments: Any) -> Any:
    return kind(Noisy(N), **{"batch_size": 4, "shuffle": True, "seed": 5, **arguments})


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_endless_loader_continues_over_epochs_and_resumes_exactly(
    kind: type[Endless], num_workers: int
) -> None:
    """A19: one iterator; each lap has all samples in another order."""
    loader = endless(kind, num_workers=num_workers)
    batches, states = [], []
    for _ in range(3):
        lap = []
        for batch in loader:
            lap.append(copy_of(batch))
            states.append(loader.state_dict())
        assert len(lap) == PER_EPOCH
        assert sorted(torch.cat([batch["index"] for batch in lap]).tolist()) == list(range(N))
        batches += lap
    assert not same(batches[0]["index"], batches[PER_EPOCH]["index"])
    for number in (0, 2, 4):
        resumed = loaded(endless(kind, num_workers=num_workers), through_json(states[number]))
        rest = [copy_of(next(resumed.iterator)) for _ in range(8 - number)]
        assert same(rest, batches[number + 1 :])


def test_an_endless_loader_without_a_seed_is_shuffled_by_the_settled_one() -> None:
    """A19: torch.manual_seed decides the order, and the state restores it."""

    def lap(loader: Any) -> list[Any]:
        return [copy_of(batch) for batch in loader]

    def loader_and_batches(seed: int) -> tuple[Any, list[Any]]:
        torch.manual_seed(seed)
        loader = endless(Endless, seed=None)
        return loader, lap(loader)

    (one, first), (again, same_first), (_, other_first) = (
        loader_and_batches(1),
        loader_and_batches(1),
        loader_and_batches(2),
    )
    assert same(same_first, first)
    assert not same(other_first, first)
    resumed = loaded(endless(Endless, seed=None), again.state_dict())
    assert same(lap(resumed), lap(one))


def test_an_iterator_that_is_reset_begins_a_new_pass() -> None:
    """A19: a subclass whose ``__iter__`` reads its own iterator."""
    loader = endless(Endless)
    next(loader.iterator)
    loader.reset()
    assert loader.state_dict()["position"] == 4
    next(loader.iterator)
    assert (loader.epoch, loader.state_dict()["position"]) == (1, 4)


class Backwards:
    """A batch sampler that does not inherit from torch's."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(i, i - 4, -1)) for i in range(N - 1, 0, -4)])

    def __len__(self) -> int:
        return PER_EPOCH


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda loader: object.__setattr__(loader, name, value)


def put_inside(name: str, value: Any) -> Callable[[Any], None]:
    return lambda loader: setattr(loader.batch_sampler, name, value)


REPLACED: dict[str, tuple[Callable[[Any], None], dict[str, Any], dict[str, Any]]] = {
    "batch_sampler": (
        put("batch_sampler", Backwards()),
        {"batch_size": 4, "shuffle": True},
        {"batch_sampler": Backwards()},
    ),
    "sampler": (
        put("sampler", range(N - 1, -1, -1)),
        {"batch_size": None},
        {"batch_size": None, "sampler": range(N - 1, -1, -1)},
    ),
    "a sampler that DataLoader does not iterate": (
        put("sampler", range(5)),
        {"batch_size": 4},
        {"batch_size": 4},
    ),
    "sampler of the batch_sampler": (
        put_inside("sampler", range(N - 1, -1, -1)),
        {"batch_size": 4},
        {"batch_size": 4, "sampler": range(N - 1, -1, -1)},
    ),
    "sampler of a batch_sampler that was given": (
        put_inside("sampler", range(N - 1, -1, -1)),
        {"batch_sampler": BatchSampler(SequentialSampler(range(N)), 4, False)},
        {"batch_size": 4, "sampler": range(N - 1, -1, -1)},
    ),
    "size of the batches": (
        put_inside("batch_size", 5),
        {"batch_size": 4},
        {"batch_size": 5},
    ),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_sampler_counts_as_one_that_was_given(name: str) -> None:
    """A19: batches equal DataLoader's, and every state resumes."""
    replace, built, like = REPLACED[name]

    def make() -> StatefulGPULoader[Any]:
        loader = StatefulGPULoader(Noisy(N), seed=5, **built)
        replace(loader)
        return loader

    torchs: DataLoader[Any] = DataLoader(Indices(N), **built)
    replace(torchs)
    expected, states = uninterrupted(make(), 2)
    if not built.get("shuffle"):
        wanted = [torch.as_tensor(batch).tolist() for batch in torchs]
        found = [torch.as_tensor(batch["index"]).tolist() for batch in expected[0]]
        assert found == wanted
    given = uninterrupted(StatefulGPULoader(Noisy(N), seed=5, **like), 2)[0]
    assert same(expected, given)
    for (epoch, step), state in states.items():
        if epoch == 2:
            continue
        resumed = loaded(make(), through_json(state))
        assert same([copy_of(batch) for batch in resumed], expected[epoch][step:])


def was_iterated(loader: StatefulGPULoader[Any]) -> None:
    next(iter(loader))


def was_loaded(loader: StatefulGPULoader[Any]) -> None:
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("before", [was_iterated, was_loaded])
def test_a_sampler_that_is_replaced_too_late_is_refused(before: Callable[[Any], None]) -> None:
    """A19: the loader's place belongs to the earlier sampler."""
    loader = StatefulGPULoader(Noisy(N), batch_size=4, shuffle=True, seed=5)
    before(loader)
    object.__setattr__(loader, "batch_sampler", Backwards())
    for use in (iter, StatefulGPULoader.state_dict):
        with pytest.raises(LoaderError, match=r"replaced by a Backwards.*batch_sampler="):
            use(loader)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("dataset", "name", "value"),
    [
        (PlainIterable([N]), "batch_sampler", Backwards()),
        (Noisy(N), "dataset", Indices(N)),
        (Noisy(N), "collate_fn", list),
    ],
)
def test_unsupported_samplers_are_refused_by_name(dataset: Any, name: str, value: Any) -> None:
    """A19: the loader never silently delivers other data."""
    loader = StatefulGPULoader(dataset, batch_size=4, seed=5)
    object.__setattr__(loader, name, value)
    with pytest.raises(LoaderError, match=f"{name} of the loader was replaced.*{name}="):
        next(iter(loader))


def test_a_property_that_returns_another_sampler_each_time_is_refused() -> None:
    """A19: nothing shows whether they are the same."""

    class Fickle(StatefulGPULoader[Any]):
        @property
        def _index_sampler(self) -> Any:
            return Forever(self.batch_sampler)

    loader = Fickle(Noisy(N), batch_size=4, seed=5)
    next(iter(loader))
    with pytest.raises(LoaderError, match="_index_sampler must always return the same object"):
        loader.state_dict()
