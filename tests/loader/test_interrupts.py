"""A signal handler inside ``next()``, at any line or bytecode, loses no batch (A18).

The handler raises, or it saves the state and returns.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import __file__ as PACKAGE
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.workers import processes
from stateful_gpu_loader.engine.workers.channel import Channel
from tests.conformance import copy_of, loaded, same
from tests.fake_cluster import FakeWorkers
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.interrupts import Place, handle_at, interrupt_at, places_of
from tests.makers import MAKERS
from tests.map_datasets import Noisy
from tests.stream_kinds import KINDS, LOADERS
from tests.user_objects import PlainIterable

__all__ = ["fake_gpu"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* are read again:UserWarning"),
    # The interpreter discards exceptions that are raised during garbage collection.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Make = Callable[..., StatefulGPULoader[Any]]


class Alarm(Exception):
    """Raised by a watchdog's handler."""


def batches_of(loader: Iterable[Any]) -> list[Any]:
    return [copy_of(batch) for batch in loader]


def places_of_next(make: Make, at: int, by: Literal["line", "opcode"]) -> dict[Place, int]:
    """Return the places that ``next()`` runs after ``at`` batches."""
    batches = iter(make())
    for _ in range(at):
        next(batches)
    return places_of(lambda: next(batches, None), by=by)


def assert_whole(
    make: Make,
    *,
    at: int,
    error: type[BaseException] = KeyboardInterrupt,
    by: Literal["line", "opcode"] = "line",
    most: int = 10**6,
    turn: int = 0,
    of: Callable[[Place], bool] = lambda place: True,
) -> None:
    """Interrupt ``next()`` after ``at`` batches at each place, continue, save and resume.

    Args:
        at: number of batches delivered before.
        error: exception that the handler raises.
        by: whether places are lines or bytecodes.
        most: maximum number of places, spread over all.
        turn: choice of places; each turn takes other places.
        of: filter of places.
    """
    loader = make()
    whole, following = batches_of(loader), batches_of(loader)
    end = loader.state_dict()
    places = [each for each in places_of_next(make, at, by).items() if of(each[0])]
    assert places
    if issubclass(error, Exception):
        places = [each for each in places if not _is_of_a_batch(each[0])]
    for place, number in _far_apart(places, most, turn):
        loader = make()
        batches = iter(loader)
        found = [copy_of(next(batches)) for _ in range(at)]
        raised = False
        try:
            with interrupt_at(number, error, by=by) as interrupt:
                found.append(copy_of(next(batches)))
        except error:
            raised = True
        except StopIteration:
            pass
        # With processes, the number of a place differs from run to run.
        if interrupt.where is None:
            continue
        if issubclass(error, Exception) and _is_of_a_batch(interrupt.where):
            continue
        place = interrupt.where
        state = loader.state_dict()
        rest = _rest_of(batches, error)
        expected = whole
        if raised and _is_the_return(place):
            expected = whole[:at] + whole[at + 1 :]
        assert same(found + rest, expected), place
        assert same(batches_of(loader), following), place
        assert loader.state_dict() == end, place
        resumed = loaded(make(), state)
        left = following if state["epoch"] == 1 else rest
        assert same(batches_of(resumed), left), place


def _far_apart(places: Sequence[Any], most: int, turn: int) -> Sequence[Any]:
    step = -(-len(places) // most)
    return places[turn % step :: step]


def assert_saved_whole(make: Make, *, at: int, most: int = 10**6, turn: int = 0) -> None:
    """Save inside ``next()`` after ``at`` batches, at many places, and resume from each state."""

    def started() -> tuple[StatefulGPULoader[Any], Iterator[Any]]:
        loader = make()
        batches = itertools.chain(loader, loader)
        for _ in range(at):
            next(batches)
        return loader, batches

    whole = batches_of(started()[1])
    places = places_of(partial(next, started()[1], None), by="line")
    assert places
    for number in _far_apart([*places.values()], most, turn):
        loader, batches = started()
        states: list[dict[str, Any]] = []

        def save(
            place: Place, ask: Callable[..., Any] = loader.state_dict, keep: Any = states.append
        ) -> None:
            keep(ask())

        with handle_at(number, save, by="line") as interrupt:
            next(batches, None)
        for state in states:
            resumed = loaded(make(), state)
            found = batches_of(itertools.chain(resumed, resumed))
            expected = whole, whole[1:]
            assert any(same(found[: len(one)], one) for one in expected), interrupt.where


def _rest_of(batches: Iterator[Any], error: type[BaseException]) -> list[Any]:
    """Return the rest of a pass, after an exception that may come in its turn."""
    rest: list[Any] = []
    with suppress(error):
        rest += map(copy_of, batches)
        return rest
    return [*rest, *map(copy_of, batches)]


def _is_of_a_batch(place: Place) -> bool:
    """Whether a batch is being made, received or moved, so that it fails with an Exception."""
    return bool({"execute", "receive", "_finished"} & {place.function, *place.callers})


def _is_the_return(place: Place) -> bool:
    """Whether a place lies between the delivery and the caller, where nothing can be promised."""
    return not place.callers and place.opcode.startswith("RETURN")


IMAGES: Make = partial(
    LOADERS["photographs"],
    batch_size=2,
    transform=[T.RandomResizedCrop(16), T.RandomHorizontalFlip()],
)
THREADS: Make = partial(IMAGES, num_workers=2)
DEVICE: Make = partial(THREADS, device="cuda")
PROCESSES: dict[str, Make] = {
    "map": partial(MAKERS["map"], num_workers=2),
    "persistent": partial(MAKERS["map"], num_workers=1, persistent_workers=True),
    "sampler and dataset with state": partial(
        MAKERS["sampler and dataset with state"], num_workers=2
    ),
    "plain iterable": partial(MAKERS["plain iterable"], num_workers=2),
}
QUICK = [
    "order",
    "a sampler of generator function",
    "a sampler with state, on the sampler",
    "dataset with state",
    "plain iterable",
    "shards",
]
"""Kinds of streams that the fast tests interrupt."""
PLACES = (0, 1, -1)
"""Numbers of batches before the interrupted ``next()``; -1 for all batches."""
ENOUGH = [*QUICK, "a batch sampler with state", "calls without length", "iterator with state"]


FEW: dict[str, tuple[Make, dict[str, Any]]] = {
    **{kind: (KINDS[kind], {"most": 40 if kind == "order" else 10}) for kind in QUICK},
    **{
        f"{kind}, Alarm": (KINDS[kind], {"error": Alarm, "most": 15, "turn": 1})
        for kind in ("order", "a sampler with state, on the sampler")
    },
    "threads": (THREADS, {"most": 8}),
    "threads, Alarm": (THREADS, {"error": Alarm, "most": 8}),
    "a device": (DEVICE, {"most": 6}),
    "a device, Alarm": (partial(DEVICE, num_workers=0), {"error": Alarm, "most": 6}),
    "processes": (PROCESSES["map"], {"most": 4}),
    "processes, Alarm": (PROCESSES["map"], {"error": Alarm, "most": 4}),
}
"""Loaders that the fast tests interrupt, and at how many lines."""


@pytest.mark.parametrize("name", FEW)
def test_an_interrupt_loses_and_shifts_no_sample(name: str, fake_gpu: FakeGpu) -> None:
    make, arguments = FEW[name]
    assert_whole(make, at=1, **arguments)


class SomeBad(Noisy):
    """Every third sample is bad."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 3 == 0:
            raise ValueError(f"no sample {index}")
        return super().__getitem__(index)


class BadAtTheEnd(PlainIterable):
    """Only bad samples come after its last batch."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(super().__iter__(), [BAD, BAD])


BAD = -1


def refuse_bad(sample: Any) -> Any:
    if sample == BAD:
        raise ValueError("no sample")
    return sample


DROPPING: Make = partial(StatefulGPULoader, batch_size=2, on_bad_sample="drop", seed=1)
ENDS_BADLY: Make = partial(DROPPING, BadAtTheEnd([6]), transform=refuse_bad)
SOME_BAD: Make = partial(DROPPING, SomeBad(12))


@pytest.mark.parametrize(
    ("make", "at"),
    [
        (SOME_BAD, 1),
        (partial(SOME_BAD, sampler=[3, 1, 2, 6, 9, 4, 0, 5]), 1),
        (ENDS_BADLY, 3),
    ],
)
def test_an_interrupt_records_each_bad_sample_once(make: Make, at: int) -> None:
    """Bad samples after the last batch, too."""
    loader = make()
    list(loader)
    assert loader.bad_samples.total > 0
    assert_whole(make, at=at, most=15)


MANY: dict[str, tuple[Make, dict[str, Any]]] = {
    **{
        f"{kind} at {at}": (KINDS[kind], {"at": at, "most": 40 if kind in QUICK else 12})
        for kind in KINDS
        for at in PLACES
    },
    **{
        f"{kind}, {error.__name__}": (
            KINDS[kind],
            {"at": 1, "error": error, "by": "opcode", "most": 200 if kind == "order" else 20},
        )
        for kind in ENOUGH
        for error in (KeyboardInterrupt, Alarm)
    },
    **{
        f"threads at {at}, {error.__name__}": (
            THREADS,
            {"at": at, "error": error, "by": "opcode", "most": 30},
        )
        for at in PLACES
        for error in (KeyboardInterrupt, Alarm)
    },
    **{f"a device at {at}": (DEVICE, {"at": at, "most": 10}) for at in PLACES},
    **{
        f"processes, {name} at {at}": (make, {"at": at, "most": 8})
        for name, make in PROCESSES.items()
        for at in PLACES
    },
}
"""Loaders, and the places of ``next()``: lines or bytecodes, different for each loader."""


@pytest.mark.fuzz
@pytest.mark.parametrize("name", MANY)
def test_an_interrupt_at_many_places_loses_and_shifts_no_sample(
    name: str, fake_gpu: FakeGpu
) -> None:
    make, arguments = MANY[name]
    at = arguments["at"] % (1 + len(list(make())))
    assert_whole(make, **{**arguments, "at": at}, turn=[*MANY].index(name))


@pytest.mark.fuzz
@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_saves_at_many_lines(kind: str, at: int) -> None:
    make = KINDS[kind]
    at %= 1 + len(list(make()))
    assert_saved_whole(make, at=at, most=10, turn=[*KINDS].index(kind))


def is_of_run(place: Place) -> bool:
    return place.file == "engine/run.py" and place.function in ("__next__", "_offered")


few = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.fast] * (kind in QUICK[:2])) for kind in ENOUGH],
)
"""Kinds whose places in the pass itself are all interrupted; the fast tests take a few."""


@pytest.mark.fuzz
@few
def test_an_interrupt_before_the_first_batch_is_taken_moves_no_state(kind: str) -> None:
    for error in (KeyboardInterrupt, Alarm) if kind in QUICK else (KeyboardInterrupt,):
        assert_whole(KINDS[kind], at=0, error=error, of=is_of_run)


@pytest.mark.fuzz
@few
def test_another_iterator_begins_where_the_first_was_interrupted(kind: str) -> None:
    make = KINDS[kind]
    loader = make()
    whole = batches_of(loader)
    batches = iter(make())
    for place, number in places_of(partial(next, batches), by="line").items():
        if not is_of_run(place):
            continue
        loader = make()
        with interrupt_at(number, by="line"), suppress(KeyboardInterrupt):
            next(iter(loader))
            continue
        if not _is_the_return(place):
            assert same(batches_of(loader), whole), place


@pytest.mark.parametrize(
    "kind", ["a sampler of counter", "a sampler with state, on the sampler", "dataset with state"]
)
def test_a_handler_saves_the_place_before_or_after_the_batch(kind: str) -> None:
    for at in (0, 1):
        assert_saved_whole(KINDS[kind], at=at, most=6)


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", PROCESSES)
def test_a_handler_saves_while_processes_work(kind: str) -> None:
    assert_saved_whole(PROCESSES[kind], at=0, most=4)


def returns_a_request(place: Place) -> bool:
    """Whether the order has advanced, and the request is on its way to the workers."""
    is_of_order = place.file.startswith("engine/schedules/")
    return (
        is_of_order and place.function in ("_next", "__next__", "take") and "RETURN" in place.opcode
    )


@pytest.mark.parametrize("kind", ["plain iterable", "threads"])
def test_an_alarm_as_a_request_is_returned_loses_no_batch(kind: str) -> None:
    make = THREADS if kind == "threads" else PROCESSES[kind]
    assert_whole(make, at=0, error=Alarm, by="opcode", most=6, of=returns_a_request)


@pytest.mark.parametrize("kind", ["persistent", pytest.param("a device", marks=pytest.mark.fuzz)])
def test_an_interrupt_before_a_later_pass_is_started_passes_over_no_epoch(
    kind: str, fake_gpu: FakeGpu
) -> None:
    """The pipeline has ended its last pass, and stays in that state."""
    device = partial(DEVICE, num_workers=1, persistent_workers=True)
    make = PROCESSES[kind] if kind == "persistent" else device
    loader = make()
    list(loader)
    batches = iter(loader)
    places = places_of(lambda: next(batches), by="line")
    numbers = [number for place, number in places.items() if place.function in ("_ready", "_start")]
    assert numbers
    loader = make()
    list(loader)
    second = batches_of(loader)
    for number in numbers:
        loader = make()
        list(loader)
        batches, found = iter(loader), []
        with interrupt_at(number, by="line") as interrupt, suppress(KeyboardInterrupt):
            found.append(copy_of(next(batches)))
        assert same(found + batches_of(batches), second), interrupt.where


@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
def test_an_interrupt_after_the_first_batch_is_made_moves_no_state(
    error: type[BaseException],
) -> None:
    """The pass has begun and its sampler has advanced, but nothing is delivered."""
    make = KINDS["a sampler of counter"]
    assert_whole(make, at=0, error=error, of=lambda place: place.file == "engine/stats.py")


@pytest.mark.parametrize("kind", ["shards", "a device"])
def test_no_lock_is_taken_in_a_function_of_python(
    kind: str, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler could run before ``Condition.__enter__`` returns, and the lock would stay taken."""
    enter, found = threading.Condition.__enter__, list[str]()

    def noted(self: threading.Condition) -> bool:
        found.append(sys._getframe(1).f_code.co_filename)
        return enter(self)

    monkeypatch.setattr(threading.Condition, "__enter__", noted)
    list(DEVICE() if kind == "a device" else KINDS[kind]())
    assert not [path for path in found if path.startswith(str(Path(PACKAGE).parent))]


def test_an_interrupt_inside_a_wait_is_raised_itself() -> None:
    """``Condition.wait`` has released its lock by then, so leaving the lock fails."""
    batches: Any = iter(THREADS(worker_type=FakeWorkers()))
    found = [copy_of(next(batches))]
    dispatch = batches._pipeline._dispatch
    has_arrived, is_ready = dispatch._has_arrived, dispatch.is_ready
    release = has_arrived._release_save

    def interrupted() -> None:
        release()
        has_arrived._release_save, dispatch.is_ready = release, is_ready
        raise KeyboardInterrupt

    has_arrived._release_save, dispatch.is_ready = interrupted, lambda: False
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert same(found + list(map(copy_of, batches)), batches_of(THREADS()))


@pytest.mark.parametrize(("owner", "name"), [(Channel, "end"), (processes, "have_ended")])
def test_an_interrupt_while_workers_end_leaves_no_thread_and_no_file(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = PROCESSES["map"]
    list(make())
    interrupts = [KeyboardInterrupt]
    gc.collect()  # left by other tests
    files, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    whole = getattr(owner, name)

    def interrupted(*args: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return whole(*args)

    monkeypatch.setattr(owner, name, interrupted)
    batches = iter(make())
    with suppress(KeyboardInterrupt):
        list(batches)
    assert not interrupts
    del batches
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files
    assert set(threading.enumerate()) <= threads  # threads of earlier tests may end
