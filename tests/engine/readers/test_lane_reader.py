"""From any cursor, the rest of a lane equals the rest of the lane read at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.pipeline import Stopped, never_stopped
from stateful_gpu_loader.engine.readers import sharded
from stateful_gpu_loader.engine.readers.lane_shards import LaneAddress
from stateful_gpu_loader.engine.readers.sharded import LaneReader
from stateful_gpu_loader.randomness.draw_rule import DrawRule
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.randomness.permutation import Permutation, permutations_of_seeds
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.state.lane_cursor import LaneCursor
from tests.datasets.shards import DamagedShards, Numbers

SIZES = (5, 0, 3, 8, 1)
TOTAL = sum(SIZES)


def reader_of(
    cursor: LaneCursor | None = None, *, window: int = 0, lap: int = 0, dataset: Any = None
) -> LaneReader:
    dataset = Numbers(SIZES) if dataset is None else dataset
    address = LaneAddress(seed=1, epoch=2, lane=3, shards=dataset.shards(), lap=lap)
    return LaneReader(
        dataset,
        address,
        cursor or LaneCursor(),
        window=window,
        drops_bad=False,
        rule=DrawRule("Numbers", None),
        generators=SampleGenerators(None),
    )


def rest_of(reader: LaneReader, size: int = 1) -> list[Any]:
    """Return samples and keys, until fewer than ``size`` are left."""
    found = []
    while (taken := reader.take(size, never_stopped, turns=0)) is not None:
        samples = [sample.sample for sample in taken.samples]
        found += list(zip(samples, taken.positions.tolist(), strict=True))
    return found


@pytest.mark.parametrize("window", [0, 1, 4, 100])
@pytest.mark.parametrize("size", [1, 3])
def test_from_every_cursor_the_rest_is_the_same(window: int, size: int) -> None:
    """In two laps with different keys."""
    whole = rest_of(reader_of(window=window))
    assert sorted(sample for sample, _ in whole) == Numbers(SIZES).all()
    assert [key for _, key in whole] == [(3 << 40) + i for i in range(TOTAL)]
    begin = LaneCursor(count=TOTAL, shard=len(SIZES))
    for lap, cursor, wanted in (
        (0, None, whole),
        (1, begin, rest_of(reader_of(begin, window=window, lap=1))),
    ):
        reader = reader_of(cursor, window=window, lap=lap)
        came = 0
        while (taken := reader.take(size, never_stopped, turns=7)) is not None:
            came += size
            assert taken.cursor.turns == 7
            assert rest_of(reader_of(taken.cursor, window=window, lap=lap)) == wanted[came:]
        assert reader.num_left == TOTAL % size
        assert reader.end().shard == (lap + 1) * len(SIZES)
        assert reader.take(size, never_stopped, turns=8) is None, "asked once more"
        assert reader.num_left == TOTAL % size


@pytest.mark.parametrize("window", [2, 5, 300])
def test_each_window_has_the_permutation_of_its_first_key(window: int) -> None:
    """Drawn alone or together with the next windows."""
    reader = reader_of(window=window, dataset=Numbers((700,)))
    drawn = [sample for sample, _ in rest_of(reader)]
    for start in range(0, 700, window):
        n = min(window, 700 - start)
        (seed,) = sample_seeds(1, 2, [(3 << 40) + start], Stream.SHARDS)
        order = Permutation(n, seed=seed, epoch=0)(np.arange(n))
        assert drawn[start : start + n] == (start + order).tolist()


def test_small_windows_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """When thousands of ranks share a shuffle buffer, most windows have two samples."""
    calls: list[int] = []

    def noted(n: int, seeds: list[int]) -> Any:
        calls.append(len(seeds))
        return permutations_of_seeds(n, seeds)

    monkeypatch.setattr(sharded, "permutations_of_seeds", noted)
    rest_of(reader_of(window=2, dataset=Numbers((1000,))))
    assert calls == [128] * 4


@pytest.mark.parametrize("window", [0, 6])
def test_samples_read_before_an_exception_are_kept(window: int) -> None:
    """The damage does not change how the window is cut."""
    dataset = DamagedShards({0: (3, "value")}, SIZES)
    reader = reader_of(window=window, dataset=dataset)
    with pytest.raises(ValueError, match="checksum"):
        reader.take(5, never_stopped, turns=1)
    assert reader.cursor == LaneCursor()
    rest = [sample["index"] for sample, _ in rest_of(reader)]
    assert sorted(rest) == dataset.sound()
    if window:
        assert set(rest[:6]) == {0, 1, 2, 2000, 2001, 2002}


def test_a_stopped_reader_takes_no_samples() -> None:
    """The reader is stopped between samples."""
    calls = iter([None] * 3)

    def check() -> None:
        if next(calls, 1) is not None:
            raise Stopped

    reader = reader_of()
    with pytest.raises(Stopped):
        reader.take(9, check, turns=1)
    assert reader.cursor == LaneCursor()


class OddShards(Numbers):
    """Yields the entries of ``odd`` in place of samples, or raises those that are an OSError."""

    def __init__(self, odd: dict[int, Any], *, counted: bool = False) -> None:
        super().__init__(SIZES, counted=counted)
        self.odd = odd

    def read_shard(self, shard: str, cursor: int) -> Iterator[tuple[Any, int]]:
        for sample, following in super().read_shard(shard, cursor):
            odd = self.odd.get(sample, (sample, following))
            if isinstance(odd, OSError):
                raise odd
            yield odd


ODD: dict[str, dict[int, Any]] = {
    "nothing": {},
    "a malformed sample": {2: (ValueError("malformed"), 3)},
    "the last sample malformed": {2002: (UnicodeError("malformed"), 3)},
    "all samples of a shard malformed": {
        2000 + i: (ValueError("malformed"), i + 1) for i in (1, 2)
    },
    "a cursor of another type": {i: (i, np.int64(i + 1)) for i in range(5)},
    "a cursor below zero": {3: (3, -1)},
    "a cursor too large": {3: (3, 1 << 63)},
    "no cursor": {2001: 2001},
    "three parts": {3002: (1, 2, 3)},
    "a boolean for a cursor": {0: (0, True)},
    "storage that fails": {3: OSError("out of reach")},
    "storage that is not there": {3: FileNotFoundError("no such shard")},
}


@pytest.mark.parametrize("drops_bad", [False, True])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_samples_that_are_taken_together_are_those_taken_one_by_one(
    odd: dict[int, Any], drops_bad: bool
) -> None:
    """With seeds, each sample is read alone."""

    def seen(size: int, counted: bool, is_seeded: bool) -> list[Any]:
        dataset = OddShards(odd, counted=counted)
        address = LaneAddress(seed=1, epoch=2, lane=3, shards=dataset.shards())
        rule = DrawRule("OddShards", is_seeded)
        reader = LaneReader(
            dataset,
            address,
            LaneCursor(),
            window=0,
            drops_bad=drops_bad,
            rule=rule,
            generators=SampleGenerators(dataset),
        )
        events: list[Any] = []
        for turn in range(60):
            try:
                taken = reader.take(size, never_stopped, turns=turn, is_seeded=is_seeded)
            except Exception as error:
                events.append((type(error), str(error), getattr(error, "__notes__", None)))
                error.__dict__.pop("__notes__", None)
            else:
                if taken is None:
                    return [*events, reader.num_left, reader.take_bad(), reader.end()]
                named = [(repr(sample), sample.sample) for sample in taken.samples]
                events.append((named, taken.positions.tolist(), taken.cursor, reader.take_bad()))
        return events

    for size, counted in itertools.product((1, 3, 20), (False, True)):
        with caller_generators_restored():
            one_by_one = seen(size, counted, is_seeded=True)
        assert seen(size, counted, is_seeded=False) == one_by_one, (size, counted)
