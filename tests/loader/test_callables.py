"""CallableSource, sample by sample: exact from every batch, wherever an epoch ends."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from torch.utils.data import default_collate

from stateful_gpu_loader import (
    LoaderError,
    SampleInfo,
    start_workers,
)
from tests.callables import BATCH, NoisyPlaces, Places, make, places_of
from tests.conformance import assert_same_rest, copy_of, loaded, same, through_json, uninterrupted

WORKERS: tuple[dict[str, Any], ...] = (
    {},
    {"num_workers": 1},
    {"num_workers": 2, "prefetch_factor": 1},
    {"num_workers": 3, "prefetch_factor": 4, "persistent_workers": True},
)


def expected_places(lengths: tuple[int, ...], epochs: int, drop_last: bool) -> list[list[Any]]:
    """Return the expected arguments of the function, batch by batch."""
    found = []
    for epoch, length in zip(range(epochs), itertools.cycle(lengths), strict=False):
        batches = [
            [SampleInfo(place, place - start, start // BATCH, epoch) for place in range(start, end)]
            for start in range(0, length, BATCH)
            if (end := min(start + BATCH, length)) - start == BATCH or not drop_last
        ]
        found.append([default_collate([*map(Places(*lengths), batch)]) for batch in batches])
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lengths", "drop_last"),
    [((8,), False), ((10,), True), ((0, 5, 0), True), ((9, 1, 12), False)],
)
def test_an_epoch_ends_at_the_same_place_on_all_workers(
    lengths: tuple[int, ...], drop_last: bool
) -> None:
    """At the end of a batch, within a batch, and at zero; the lengths of epochs come in turn.

    Batches that workers made beyond the end are not delivered.
    """
    epochs = len(lengths) + 1
    wanted = expected_places(lengths, epochs, drop_last)
    for workers in WORKERS:
        loader = make(Places(*lengths), drop_last=drop_last, **workers)
        assert same([list(loader) for _ in range(epochs)], wanted), workers
        assert loader.state_dict()["epoch"] == epochs
        assert loader.state_dict()["position"] == 0


def test_every_sample_has_other_draws_in_each_epoch_and_with_each_seed() -> None:
    drawn = [
        draw
        for seed in (1, 2)
        for loader in [make(NoisyPlaces(10), seed=seed)] * 2  # two epochs of each
        for batch in loader
        for draw in zip(batch["random"], batch["numpy"][:, 0], batch["torch"][:, 0], strict=True)
    ]
    assert len(drawn) == 40
    assert [len(set(map(float, draws))) for draws in zip(*drawn, strict=True)] == [40] * 3


class Ending(Places):
    """Ends its epoch at one place, and raises at later places."""

    def __call__(self, info: SampleInfo) -> Any:
        if info.idx_in_epoch > self.length_of(info.epoch_idx):
            raise IndexError("nobody may ask for this")
        return super().__call__(info)


@pytest.mark.processes
@pytest.mark.parametrize("length", [8, 10])
def test_errors_after_the_end_are_ignored(length: int) -> None:
    """Workers that are ahead meet these errors, but the epoch ends before they count."""
    for workers in WORKERS[2:]:
        loader = make(Ending(length), **workers)
        assert [places_of(list(loader)) for _ in range(2)] == [[*range(length)]] * 2


def test_the_constructor_and_state_dict_do_not_call_the_function() -> None:
    calls: list[SampleInfo] = []

    def function(info: SampleInfo) -> int:
        calls.append(info)
        return info.idx_in_epoch

    loader = make(function)
    state = loader.state_dict()
    make(function).load_state_dict(state)
    iter(loader)
    assert not calls


def test_another_batch_size_continues_with_the_same_samples() -> None:
    """Places and draws are the same; the iteration counts batches of the new size."""
    expected, states = uninterrupted(make(NoisyPlaces(22)), 1)
    whole = _by_sample(expected[0])
    for delivered in (1, 3, 5):
        for size in (1, 3, 2 * BATCH, 50):
            resumed = make(NoisyPlaces(22), batch_size=size, num_workers=2 * (size == 3))
            resumed.load_state_dict(states[0, delivered])
            batches = [copy_of(batch) for batch in resumed]
            assert same(_by_sample(batches), whole[delivered * BATCH :])
            if delivered * BATCH % size == 0:
                first = delivered * BATCH // size
                found = [set(batch["iteration"].tolist()) for batch in batches]
                assert found == [{first + i} for i in range(len(batches))]
                assert batches[0]["in_batch"].tolist() == [*range(len(batches[0]["in_batch"]))]


def _by_sample(batches: list[Any]) -> list[Any]:
    """Return each sample by itself, without the fields that depend on the batch size."""
    return [
        {key: batch[key][i] for key in ("place", "epoch", "random", "numpy", "torch")}
        for batch in batches
        for i in range(len(batch["place"]))
    ]


@pytest.mark.processes
def test_a_declared_length_ends_the_epoch_and_is_the_loaders() -> None:
    """No StopIteration is needed, and no sample after the end is requested."""

    def function(info: SampleInfo) -> int:
        assert info.idx_in_epoch < 10
        return info.idx_in_epoch

    for workers in WORKERS:
        loader = make(function, source={"length": 10}, **workers)
        assert len(loader) == 3
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(make(function, source={"length": 10}, drop_last=True)) == 2
    with pytest.raises(TypeError, match="length"):
        len(make(function))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_end_before_the_declared_length_is_an_error(num_workers: int) -> None:
    """Otherwise ranks would silently diverge."""
    loader = make(Places(9), source={"length": 12}, num_workers=num_workers)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises((LoaderError, ValueError, RuntimeError), match=r"12.*Remedy"):
        next(batches)


@pytest.mark.processes
def test_out_of_order_every_sample_comes_once() -> None:
    """An end that one worker meets early does not cut other workers' batches."""
    arguments = {"num_workers": 3, "in_order": False}
    loader = make(Places(22), **arguments)
    delivered, states = [], [loader.state_dict()]
    for batch in loader:
        delivered.append(copy_of(batch))
        states.append(loader.state_dict())
    assert sorted(places_of(delivered)) == list(range(22))
    for count, state in enumerate(states[:-1]):
        resumed = loaded(make(Places(22), **arguments), through_json(state))
        rest = [copy_of(batch) for batch in resumed]
        assert sorted(places_of(delivered[:count] + rest)) == list(range(22)), count
    assert sorted(places_of(list(loader))) == list(range(22)), "the epoch after"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_idle_workers_and_broken_passes_leave_no_stale_batch(num_workers: int) -> None:
    """After start_workers, a break, another epoch, and set_epoch."""
    loader = make(NoisyPlaces(10, 6), num_workers=num_workers)
    expected = [[copy_of(b) for b in make(NoisyPlaces(10, 6))]]
    other = make(NoisyPlaces(10, 6))
    other.set_epoch(1)
    expected.append([copy_of(batch) for batch in other])
    start_workers(loader)
    for batch in loader:
        assert same(copy_of(batch), expected[0][0])
        break
    assert same([copy_of(batch) for batch in loader], expected[1])
    loader.set_epoch(0)
    assert same([copy_of(batch) for batch in loader], expected[0])


@pytest.mark.processes
@pytest.mark.parametrize("length", [24, 22])
def test_ranks_together_make_the_batches_of_one(length: int) -> None:
    """They also resume from the state of one rank, and of a single process."""
    source = {"length": length}
    build = partial(make, NoisyPlaces(length), source=source)
    expected, states = uninterrupted(build(batch_size=8), 1)
    ranks = [uninterrupted(build(num_replicas=2, rank=rank), 1) for rank in range(2)]
    assert ranks[0][1] == ranks[1][1]
    whole = length // 8
    _assert_interleaved([found[0] for found, _ in ranks], expected[0][:whole], range(whole))
    assert {len(found[0]) for found, _ in ranks} == {len(expected[0])}
    everything = sorted({place for found, _ in ranks for place in places_of(found[0])})
    assert everything == list(range(length)), "what fills the last batch up is of the order"
    for delivered in range(whole):
        rests = []
        for rank in range(2):
            loader = build(num_replicas=2, rank=rank, num_workers=2 * (delivered == 1))
            loader.load_state_dict(through_json(states[0, delivered]))
            rests.append([copy_of(batch) for batch in loader])
        wanted = expected[0][delivered:whole]
        _assert_interleaved(rests, wanted, range(delivered, whole))
        alone = loaded(build(batch_size=8), ranks[1][1][0, delivered])
        assert_same_rest(alone, expected, (0, delivered), 1)


def _assert_interleaved(ranks: list[list[Any]], wanted: list[Any], iterations: range) -> None:
    assert len(iterations) == len(wanted)
    for batch, iteration, *parts in zip(wanted, iterations, *ranks, strict=False):
        for rank, part in enumerate(parts):
            assert part["iteration"].tolist() == [iteration] * BATCH
            assert part["in_batch"].tolist() == [0, 1, 2, 3]
            for key in ("place", "epoch", "random", "numpy", "torch"):
                assert same(part[key], batch[key][rank :: len(parts)]), key
