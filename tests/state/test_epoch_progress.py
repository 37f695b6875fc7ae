"""The epoch that an iterator takes, and the state meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest

from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.state.bad_samples import BadSamples, FoundBad
from stateful_gpu_loader.state.epoch_progress import HISTORY, Address, Pass, Passes
from tests.interrupts import Place, handle_at, places_of


def deliver(passes: Passes, current: Pass, position: int) -> None:
    passes.offer(current, "batch", Address(current.start.epoch, position))
    take(current)


def take(current: Pass) -> None:
    assert current.offered is not None
    current.offered.content.pop()


def end(passes: Passes, current: Pass) -> None:
    passes.end(current, Address(current.start.epoch + 1, 0))


def test_a_pass_resumed_at_the_end_can_be_one_of_the_next_epoch() -> None:
    passes = Passes()
    passes.load(Address(3, 10), BadSamples())
    assert passes.begin(is_over=lambda place: place.position > 9).start == Address(4, 0)
    passes.load(Address(3, 9), BadSamples())
    assert passes.begin(is_over=lambda place: place.position > 9).start == Address(3, 9)


def test_a_requested_epoch_is_taken_once() -> None:
    passes = Passes()
    passes.request_epoch(7)
    assert passes.address() == Address(7, 0)
    current = passes.begin()
    deliver(passes, current, 2)
    assert passes.address() == Address(7, 2)
    end(passes, current)
    assert passes.address() == Address(8, 0)


def test_an_epoch_requested_during_a_pass_is_for_the_next() -> None:
    passes = Passes()
    current = passes.begin()
    deliver(passes, current, 2)
    passes.request_epoch(5)
    deliver(passes, current, 4)
    assert passes.address() == Address(0, 4)
    assert passes.begin().start == Address(5, 0)
    end(passes, current)
    assert passes.address() == Address(5, 0)


@pytest.mark.parametrize("requested", [0, 3])
def test_a_resumed_pass_keeps_its_epoch_and_warns_of_another_alone(requested: int) -> None:
    passes = Passes()
    passes.load(Address(3, 4), BadSamples())
    passes.request_epoch(requested)
    assert passes.address() == Address(3, 4)
    warns = pytest.warns(UserWarning, match=r"set_epoch\(0\).* epoch 3")
    with nullcontext() if requested == 3 else warns:
        current = passes.begin()
    assert current.start == Address(3, 4)
    end(passes, current)
    assert passes.begin().start == Address(4, 0)


def test_a_load_abandons_older_passes() -> None:
    passes = Passes()
    old = passes.begin()
    deliver(passes, old, 4)
    passes.load(Address(9, 8), BadSamples())
    deliver(passes, old, 6)
    assert passes.address() == Address(9, 8)
    end(passes, old)
    assert passes.address() == Address(9, 8)
    assert passes.begin().start == Address(9, 8)


def test_the_state_follows_the_pass_that_began_last() -> None:
    passes = Passes()
    first = passes.begin()
    deliver(passes, first, 4)
    second = passes.begin()
    deliver(passes, second, 2)
    deliver(passes, first, 6)
    assert passes.address() == Address(1, 2)
    end(passes, first)
    assert passes.address() == Address(1, 2)


def test_a_pass_that_began_earlier_does_not_take_the_state_back() -> None:
    passes = Passes()
    failed_at_first, later = passes.begin(), passes.begin()
    deliver(passes, later, 12)
    deliver(passes, failed_at_first, 8)
    assert passes.address() == Address(0, 12)


def test_history_reaches_over_epochs_and_not_beyond_what_was_delivered() -> None:
    passes = Passes()
    current = passes.begin()
    deliver(passes, current, 4)
    deliver(passes, current, 8)
    end(passes, current)
    following = passes.begin()
    deliver(passes, following, 4)
    assert [passes.address(k) for k in range(4)] == [
        Address(1, 4),
        Address(1, 0),
        Address(0, 4),
        Address(0, 0),
    ]
    for batches_ago in (4, -1):
        with pytest.raises(ValueError, match=r"3.*16"):
            passes.address(batches_ago)


def test_history_is_bounded_and_forgotten_by_a_load() -> None:
    passes = Passes()
    current = passes.begin()
    for end in range(1, 40):
        deliver(passes, current, end)
    assert passes.address(HISTORY) == Address(0, 39 - HISTORY)
    with pytest.raises(ValueError, match="17"):
        passes.address(HISTORY + 1)
    passes.load(Address(0, 5), BadSamples())
    with pytest.raises(ValueError, match=r"\b0\b"):
        passes.address(1)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("has_moved", [True, False])
def test_history_outlives_a_pass_that_had_to_go_back(times: int, has_moved: bool) -> None:
    passes = Passes()
    current = passes.begin()
    for end_ in (4, 8):
        deliver(passes, current, end_)
    if not has_moved:
        end(passes, current)
        current = passes.begin()
    for _ in range(times):
        passes.go_back(current)
        current = passes.begin()
    there = Address(0, 8) if has_moved else Address(1, 0)
    assert [passes.address(k) for k in range(3)] == [there, Address(0, 4), Address(0, 0)]
    deliver(passes, current, 12)
    assert [passes.address(k) for k in range(1, 4)] == [there, Address(0, 4), Address(0, 0)]
    passes.load(Address(0, 5), BadSamples())
    with pytest.raises(ValueError, match=r"\b0\b"):
        passes.address(1)


def test_an_earlier_state_lies_before_all_batches_that_failed_after_it() -> None:
    """Loading it tries all of them again, also after the pass had to go back."""
    passes = Passes()
    current = passes.begin()
    deliver(passes, current, 4)
    for place in (8, 12):
        passes.offer_failure(current, ValueError(), Address(0, place))
        take(current)
    passes.go_back(current)
    current = passes.begin()
    deliver(passes, current, 16)
    places = [Address(0, 16), Address(0, 4), Address(0, 0)]
    assert [passes.address(k) for k in range(3)] == places
    passes.offer_failure(current, ValueError(), Address(0, 20))
    take(current)
    deliver(passes, current, 24)
    assert [passes.address(k) for k in range(4)] == [Address(0, 24), *places]


BAD = (FoundBad(3, 0, 0, "no label"),)


def test_bad_samples_and_the_last_request_follow_from_what_was_taken() -> None:
    passes = Passes()
    current = passes.begin()
    for _ in range(2):
        passes.offer(current, "batch", Address(0, 8), request="first", bad=BAD, found_bad=BAD)
        assert (passes.bad_samples.total, passes.last) == (0, None)
    take(current)
    assert passes.bad_samples.total == 1
    assert passes.last is not None
    assert (passes.last.request, passes.last.bad) == ("first", BAD)
    passes.end(current, Address(1, 0), found_bad=BAD)
    assert passes.bad_samples.total == 2
    for epoch in (1, 2):
        current = passes.begin()
        passes.offer(current, "batch", Address(epoch, 8), found_bad=BAD)
        take(current)
        passes.end(current, Address(epoch + 1, 0))
        assert passes.bad_samples.total == 2 + epoch
    assert passes.bad_samples.samples == BAD
    assert passes.twin(passes.seed).bad_samples == passes.bad_samples


def test_bad_samples_of_another_pass_are_counted_too() -> None:
    passes = Passes()
    first, second = passes.begin(), passes.begin()
    for total, current in enumerate((first, second, first, second), start=1):
        passes.offer(current, "batch", Address(0, 8 * total), request=total, found_bad=BAD)
        take(current)
        assert passes.last is not None
        assert passes.last.request == total
        assert passes.bad_samples.total == total


def test_a_pass_of_before_a_load_adds_nothing_to_the_record() -> None:
    passes = Passes()
    stale = passes.begin()
    passes.load(Address(0, 0), BadSamples())
    passes.offer(stale, "batch", Address(0, 8), request="stale", found_bad=BAD)
    take(stale)
    assert passes.bad_samples.total == 0
    assert passes.last is not None
    assert passes.last.request == "stale"


def test_the_record_outlives_a_pass_that_had_to_go_back() -> None:
    passes = Passes()
    current = passes.begin()
    passes.offer(current, "batch", Address(0, 8), found_bad=BAD)
    take(current)
    for times in (1, 2):
        passes.go_back(current)
        assert passes.bad_samples.total == times
        current = passes.begin()
        passes.offer(current, "batch", Address(0, 8 + times), found_bad=BAD)
        take(current)


def moments(call: Callable[[], object]) -> list[int]:
    """Return the lines before which another thread or a signal handler can run.

    None runs between a comparison and a store of its result.
    """
    places = places_of(call, by="line").items()
    return [number for place, number in places if not place.source.startswith(STORES)]


STORES = ("self._passes = passes", "self._base = noted", "self._base = back")


def load(passes: Passes) -> None:
    passes.load(Address(3, 8), BadSamples(), passes.seed.loaded(2, is_drawn=False))


def test_a_pass_that_begins_beside_a_load_has_the_seed_of_its_place() -> None:
    for number in moments(Passes().begin):
        passes = Passes(SettledSeed(1, None))
        with handle_at(number, partial(at_once, load, passes), by="line") as handled:
            current = passes.begin()
        pair = current.seed.value, current.start, current.generation
        assert pair in ((1, Address(0, 0), 0), (2, Address(3, 8), 1)), handled.where
        assert passes.begin().seed.value == 2


@pytest.mark.parametrize(
    "change", [Passes.go_back, partial(Passes.note_start, place=Address(0, 2))]
)
def test_a_load_is_not_lost_beside_another_change(change: Callable[..., None]) -> None:
    passes = Passes()
    current = passes.begin()
    for number in moments(partial(change, passes, current)):
        passes = Passes()
        current = passes.begin()
        with handle_at(number, partial(at_once, load, passes), by="line") as handled:
            change(passes, current)
        assert passes.begin().start == Address(3, 8), handled.where


def test_passes_that_begin_at_the_same_moment_are_all_known() -> None:
    for number in moments(Passes().begin):
        passes, found = Passes(), list[Pass]()

        def begin(passes: Passes, found: list[Pass] = found) -> None:
            found.append(passes.begin())

        with handle_at(number, partial(at_once, begin, passes), by="line") as handled:
            begin(passes)
        assert {each.number for each in found} == {1, 2}, handled.where
        assert all(each in passes._passes for each in found), handled.where


def at_once(act: Callable[[Passes], None], passes: Passes, place: Place) -> None:
    act(passes)
