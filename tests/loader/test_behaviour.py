"""Behaviour of a drop-in replacement, besides resuming."""

from __future__ import annotations

import gc
import multiprocessing
import random
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import LoaderError, StatefulGPULoader
from tests.conformance import loaded, same
from tests.datasets.shards import identity
from tests.generators import generators
from tests.interrupts import handle_at, places_of
from tests.map_datasets import Failing, Indices, Noisy
from tests.patience import seconds


def test_the_loader_has_the_interface_of_stateful_data_loader() -> None:
    assert isinstance(StatefulGPULoader([1]), StatefulDataLoader)


def test_the_callers_generators_are_restored_when_a_sample_fails() -> None:
    loader = StatefulGPULoader(Failing(4, {2}), batch_size=4, seed=1)
    before = generators()
    with pytest.raises(KeyError):
        next(iter(loader))
    assert generators() == before


@pytest.mark.processes
@pytest.mark.parametrize(
    ("num_workers", "batch_size", "drop_last"),
    [
        (0, None, False),
        (2, None, False),
        (0, 1, True),
        (2, 4, True),
        (0, 4, False),
        (2, 10, False),
        (0, 10, True),
    ],
)
def test_unshuffled_batches_equal_those_of_data_loader(
    num_workers: int, batch_size: int | None, drop_last: bool
) -> None:
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "drop_last": drop_last,
        "num_workers": num_workers,
    }
    ours, theirs = StatefulGPULoader(Indices(10), **arguments), DataLoader(Indices(10), **arguments)
    assert len(ours) == len(theirs)
    assert same(list(ours), list(theirs))


def test_length_is_a_whole_epoch_and_is_the_iterators_too() -> None:
    loader = StatefulGPULoader(Indices(10), batch_size=4)
    batches = iter(loader)
    next(batches)
    assert len(loader) == len(batches) == 3
    assert len(StatefulGPULoader(Indices(10), batch_size=2, num_replicas=2, rank=0)) == 3


def test_worker_info_shows_the_users_dataset() -> None:
    """It shows no part of the engine."""

    class Informed(Indices):
        def __getitem__(self, index: int) -> tuple[str, int, int]:
            worker = get_worker_info()
            assert worker is not None
            assert worker.dataset is self
            return type(worker.dataset).__name__, worker.num_workers, worker.id

    names, numbers, ids = zip(
        *(batch for batch in StatefulGPULoader(Informed(4), batch_size=None, num_workers=2)),
        strict=True,
    )
    assert (set(names), set(numbers), set(ids)) == ({"Informed"}, {2}, {0, 1})


def test_worker_init_fn_runs_in_every_worker_and_sees_the_users_dataset() -> None:

    class Initialised(Indices):
        prepared = -1

        def __getitem__(self, index: int) -> int:
            return self.prepared

    def prepare(worker_id: int) -> None:
        worker = get_worker_info()
        assert worker is not None
        worker.dataset.prepared = worker_id  # type: ignore[attr-defined]

    loader = StatefulGPULoader(Initialised(4), num_workers=2, worker_init_fn=prepare)
    assert [batch.item() for batch in loader] == [0, 1, 0, 1]


def test_an_exception_of_worker_init_fn_reaches_the_user() -> None:
    def fail(worker_id: int) -> None:
        raise LookupError("no such licence")

    with pytest.raises(LookupError, match="no such licence"):
        next(iter(StatefulGPULoader(Indices(4), num_workers=1, worker_init_fn=fail)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_keeps_its_type_and_the_loader_continues(num_workers: int) -> None:
    """The state stays before the failed batch until a later batch is delivered.

    The exception names dataset index, position and epoch, and holds the worker's traceback.
    """
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 7}
    loader = StatefulGPULoader(Failing(20, {5}), num_workers=num_workers, **given)
    order = list(loader.sampler)
    at = order.index(5) // 4
    batches, delivered = iter(loader), order[: 4 * at]
    assert [i for _ in range(at) for i in next(batches).tolist()] == delivered
    with pytest.raises(KeyError, match="no sample 5") as raised:
        next(batches)
    text = "".join(traceback.format_exception(raised.value))
    text += "".join(getattr(raised.value, "__notes__", ()))
    assert f"in dataset index 5 (position {order.index(5)}, epoch 0)" in text
    assert "datasets.py" in text
    assert "in __getitem__" in text
    assert loader.state_dict()["position"] == 4 * at
    assert next(batches).tolist() == order[4 * at + 4 : 4 * at + 8]
    assert loader.state_dict()["position"] == 4 * at + 8
    retried = loaded(StatefulGPULoader(Indices(20), **given), loader.state_dict())
    assert [i for batch in retried for i in batch.tolist()] == order[4 * at + 8 :]


def test_a_first_batch_that_fails_loses_no_resumed_position() -> None:
    """The next iterator starts where the failed one should have started."""
    dataset = Failing(16, {9})
    loader = StatefulGPULoader(dataset, batch_size=4)
    loader.load_state_dict({**loader.state_dict(), "position": 8})
    with pytest.raises(KeyError):
        next(iter(loader))
    dataset.failing.clear()
    assert next(iter(loader)).tolist() == [8, 9, 10, 11]


def test_pin_memory_without_an_accelerator_warns_as_torch_does() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = StatefulGPULoader(Indices(4), pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert len(list(loader)) == 4


@pytest.mark.parametrize("length", [10, 10**9])
def test_the_state_is_small_with_fixed_keys(length: int) -> None:
    loader = StatefulGPULoader(Indices(length), batch_size=2, shuffle=True, seed=2**63)
    keys = list(loader.state_dict())
    batches = iter(loader)
    next(batches)
    assert list(loader.state_dict()) == keys
    assert len(str(loader.state_dict())) < 1000
    for value in loader.state_dict().values():
        assert value is None or type(value) in (str, int, float, bool)


def test_a_users_loop_under_autocast_or_another_device_changes_no_batch() -> None:
    """Neither in the user's thread nor in a worker."""

    class Multiplying(Indices):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(4, 4) @ torch.rand(4, 4)

    def batches() -> list[Any]:
        return list(StatefulGPULoader(Multiplying(4), batch_size=2, seed=1))

    plain = batches()
    with torch.autocast("cpu", torch.bfloat16):
        assert same(batches(), plain)
    with torch.device("meta"):
        assert same(batches(), plain)
        assert StatefulGPULoader(Indices(4), shuffle=True).state_dict()["seed"] >= 0


def test_two_inline_loaders_in_two_threads_do_not_disturb_each_other() -> None:
    """The global generators belong to the process, so requests without workers take turns."""

    class Declared(Noisy):
        draws = True

    wanted = list(StatefulGPULoader(Declared(400), batch_size=4, seed=1))
    found: list[list[Any]] = [[], []]

    def work(number: int) -> None:
        found[number].extend(StatefulGPULoader(Declared(400), batch_size=4, seed=1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(found[0], wanted)
    assert same(found[1], wanted)


def test_passes_that_begin_in_two_threads_are_all_known() -> None:
    """A pass that is missing would not move the state."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(4):
            loader = StatefulGPULoader(Indices(12), batch_size=4)
            iterators: list[Any] = [iter(loader) for _ in range(200)]
            halves = (iterators[::2], iterators[1::2])
            threads = [threading.Thread(target=deque, args=(map(next, each), 0)) for each in halves]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            passes = [iterator._current for iterator in iterators]
            assert {each.number for each in passes} == {*range(1, 201)}
            assert all(each in loader._engine.passes._passes for each in passes)
    finally:
        sys.setswitchinterval(before)


def drawing_a_seed(number: int = 0) -> StatefulGPULoader[Any]:
    generator = torch.Generator().manual_seed(number)
    return StatefulGPULoader(Indices(40), batch_size=4, shuffle=True, generator=generator)


def after(count: int) -> dict[str, Any]:
    """Return the state after some batches, with a seed of its own."""
    loader = drawing_a_seed(count)
    batches = iter(loader)
    for _ in range(count):
        next(batches)
    return loader.state_dict()


def test_a_pass_that_begins_beside_a_load_is_of_one_stream() -> None:
    state = after(2)
    streams = [
        torch.cat(list(each)).tolist()
        for each in (drawing_a_seed(), loaded(drawing_a_seed(), state))
    ]
    for place, number in places_of(partial(next, iter(drawing_a_seed())), by="line").items():
        if place.function not in ("begin", "_begin"):
            continue
        loader = drawing_a_seed()
        batches = iter(loader)
        with handle_at(number, lambda _, of=loader: of.load_state_dict(state), by="line"):  # type: ignore[misc]
            first = next(batches)
        assert torch.cat([first, *batches]).tolist() in streams, place


def test_a_state_is_saved_before_or_after_a_load_that_comes_meanwhile() -> None:
    """Each state has a seed of its own; another thread may load at any moment."""
    one, other = (after(count) for count in (1, 2))
    loader = loaded(drawing_a_seed(), one)
    for number in places_of(loader.state_dict).values():
        loader.load_state_dict(one)
        with handle_at(number, lambda _: loader.load_state_dict(other)) as handled:
            assert loader.state_dict() in (one, other), handled.where


class Drawing:
    """A sampler that draws index by index, and lets another thread run after each draw."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        for _ in range(40):
            first = random.randrange(40)
            time.sleep(0)
            yield (first + random.randrange(40)) % 40


def test_samplers_that_draw_in_two_threads_do_not_disturb_each_other() -> None:
    """This holds for their indices, and for indices that ``peek()`` draws."""

    def batches() -> list[Any]:
        loader, found = StatefulGPULoader(Indices(40), 4, sampler=Drawing(), seed=1), []
        for batch in loader:
            found.append(batch)
            if len(found) < len(loader):
                found.append(loader.peek())
        return found

    wanted, found = batches(), list[list[Any]]()
    threads = [threading.Thread(target=lambda: found.append(batches())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [same(each, wanted) for each in found] == [True] * 3


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("at", [0, 5])
def test_next_inside_next_is_refused_and_loses_nothing(num_workers: int, at: int) -> None:
    """A signal handler may run at any moment, also while the sampler draws."""
    refused: list[LoaderError] = []

    def handle(signum: int, frame: Any) -> None:
        with pytest.raises(LoaderError) as refusal:
            next(batches)
        refused.append(refusal.value)

    class Signalling(list[int]):
        def __iter__(self) -> Iterator[int]:
            for place, index in enumerate(super().__iter__()):
                if place == at:
                    signal.raise_signal(signal.SIGUSR1)
                yield index

    before = signal.signal(signal.SIGUSR1, handle)
    sampler = Signalling(range(8))
    batches = iter(StatefulGPULoader(Indices(8), 2, sampler=sampler, num_workers=num_workers))
    try:
        assert torch.cat(list(batches)).tolist() == list(range(8))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_collate_fn_receives_the_result_of_getitems_unchanged(num_workers: int) -> None:
    """torch passes it on unchanged, even a dictionary."""

    class Columns(Indices):
        def __getitems__(self, indices: list[int]) -> dict[str, list[int]]:
            return {"x": indices}

    loader = StatefulGPULoader(
        Columns(4), batch_size=2, num_workers=num_workers, collate_fn=identity
    )
    assert list(loader) == [{"x": [0, 1]}, {"x": [2, 3]}]


def test_a_break_and_an_exception_leave_no_worker_without_the_garbage_collector() -> None:
    """No cycle of frames and tracebacks keeps them alive."""

    def fail() -> None:
        batches = iter(StatefulGPULoader(Failing(8, {1}), num_workers=1))
        next(batches)
        with pytest.raises(KeyError):
            next(batches)

    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        for _ in StatefulGPULoader(Indices(100), num_workers=2):
            break
        assert set(multiprocessing.active_children()) <= before
        fail()
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transform", str),
        ("batch_transform", str),
        ("collate_fn", list),
        ("seed", 2),
        ("shuffle", False),
        ("device", "cpu"),
        ("decoder", "torchvision"),
        ("generator", torch.Generator()),
        ("num_replicas", 2),
        ("rank", 1),
        ("worker_type", "thread"),
        ("threads_per_process", 2),
        ("on_bad_sample", "drop"),
        ("max_worker_restarts", 9),
        ("on_epoch_boundary", "next_epoch"),
    ],
)
def test_arguments_in_use_cannot_be_set(name: str, value: Any) -> None:
    """No assignment is silently ignored. torch, too, refuses another ``batch_size``."""
    loader = StatefulGPULoader(Indices(6), batch_size=2, shuffle=True, seed=1)
    before = getattr(loader, name)
    with pytest.raises(ValueError, match=f"{name} cannot be set.*Remedy: build a new loader"):
        setattr(loader, name, value)
    setattr(loader, name, before)  # a subclass may set its arguments, too
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3


def test_other_workers_serve_the_next_pass() -> None:
    """Settings that torch lets be changed take effect: waiting workers are ended."""
    loader = StatefulGPULoader(
        Indices(6), batch_size=2, num_workers=1, persistent_workers=True, timeout=seconds(60)
    )
    assert len(list(loader)) == 3
    waiting = loader._engine.workers.idle
    loader.num_workers = 0
    assert loader._engine.workers.idle is None is not waiting
    assert len(list(loader)) == 3


def test_another_number_of_workers_cannot_serve_objects_that_have_a_state_in_each() -> None:
    """Each worker continues from its own state, which other workers cannot do."""

    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    loader = StatefulGPULoader(Numbers(), num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match=r"num_workers cannot be set.*Numbers"):
        loader.num_workers = 2
    loader.num_workers = 1


# A StopIteration from user code is an error of one batch, not the end of the epoch.


class StopsAt(Indices):
    """Raises, for one sample, the exception that ends iterators."""

    def __getitem__(self, index: int) -> int:
        return stop_at_five(super().__getitem__(index))


def stop_at_five(value: Any) -> Any:
    if 5 in torch.as_tensor(value):
        raise StopIteration
    return value


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": StopsAt(8)},
        {"transform": stop_at_five},
        {"collate_fn": stop_at_five},
        {"batch_transform": stop_at_five},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_a_stop_iteration_in_user_code_does_not_end_the_epoch(
    arguments: dict[str, Any], num_workers: int
) -> None:
    """Otherwise the rest of the epoch would silently be missing."""
    given = {"dataset": Indices(8), "batch_size": 2, "num_workers": num_workers, **arguments}
    batches = iter(StatefulGPULoader(**given))
    assert indices([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="StopIteration was raised where a batch was made"):
        next(batches)
    assert indices(batches) == [6, 7]


def indices(batches: Any) -> list[int]:
    return [int(index) for batch in batches for index in batch]
