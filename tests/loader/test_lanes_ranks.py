"""Lanes on several ranks, and on a changed number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader, gather_state_dict, merge_state_dicts
from tests.conformance import copy_of, refusal, same, through_json
from tests.datasets.shards import UNEVEN, DamagedShards, Loader, NoisyShards, Numbers, indices_of
from tests.rank_processes import on_ranks

State = dict[str, Any]


def make(dataset: Any, ranks: int, rank: int, **arguments: Any) -> Loader:
    arguments = {"batch_size": 3, "seed": 3, "shuffle": True, **arguments}
    return StatefulGPULoader(dataset, num_replicas=ranks, rank=rank, **arguments)


class Ranks:
    """One epoch of all ranks, from the beginning or from a shared state."""

    def __init__(
        self, dataset: Any, ranks: int, states: State | list[State] | None = None, **arguments: Any
    ) -> None:
        self.batches: list[list[Any]] = []
        self._states: list[list[State]] = []
        self.lengths: list[int] = []
        for rank in range(ranks):
            loader = make(dataset, ranks, rank, **arguments)
            if states is not None:
                loader.load_state_dict(
                    through_json(states if isinstance(states, dict) else states[rank])
                )
            self.lengths.append(len(loader) if dataset.counted else -1)
            batches, after = [], [loader.state_dict()]
            for batch in loader:
                batches.append(copy_of(batch))
                after.append(loader.state_dict())
            self.batches.append(batches)
            self._states.append([*after, loader.state_dict()])

    @property
    def steps(self) -> int:
        return max(map(len, self.batches))

    def states(self, step: int) -> list[State]:
        """Return all ranks' states; a rank without a batch at this step has ended its epoch."""
        return [states[min(step, len(states) - 1)] for states in self._states]

    def came(self, step: int | None = None) -> list[int]:
        """Return all samples of the first ``step`` steps."""
        return [i for batches in self.batches for i in indices_of(batches[:step])]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "shuffle", "counted"),
    [(1, True, False), (2, False, False), (2, True, True), (4, False, True), (4, True, False)],
)
def test_another_number_of_ranks_at_every_step(ranks: int, shuffle: bool, counted: bool) -> None:
    """Every sample of the epoch comes, exactly once unless ranks have to repeat lanes."""
    dataset = Numbers(lanes=4, buffer=12, counted=counted)
    before = Ranks(dataset, ranks, shuffle=shuffle)
    for step in range(before.steps + 1):
        merged = merge_state_dicts(before.states(step))
        for others, size in ((1, 3), (2, 2), (4, 5)):
            after = Ranks(dataset, others, merged, shuffle=shuffle, batch_size=size)
            came = before.came(step) + after.came()
            assert set(came) == set(dataset.all()), (step, others)
            if not counted or ranks == others == 1:
                assert sorted(came) == dataset.all(), (step, others)
            if counted:
                assert len({len(batches) for batches in after.batches}) == 1, (step, others)


@pytest.mark.ranks
@pytest.mark.parametrize(("lanes", "counted"), [(4, True), (16, False)])
def test_the_same_ranks_resume_exactly(lanes: int, counted: bool) -> None:
    """Each rank continues from its own or the merged state, also with more lanes than shards."""
    sizes = UNEVEN if not counted else (9, 5, 8, 7, 2, 6, 9, 3) * 2
    dataset = NoisyShards(sizes, lanes=lanes, buffer=12, counted=counted)
    run = Ranks(dataset, 4)
    for step in range(run.steps + 1):
        states = run.states(step)
        for given in (states, merge_state_dicts(states)):
            rest = Ranks(dataset, 4, given)
            wanted = [batches[step:] for batches in run.batches]
            ended = [state["epoch"] == 1 for state in states]
            for rank in range(4):
                if isinstance(given, list) and ended[rank]:
                    continue  # it begins the next epoch
                assert same(rest.batches[rank], wanted[rank]), (step, rank)


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_deliver_as_many_batches(drop_last: bool) -> None:
    """If the numbers of samples are known. Each epoch has its own length."""
    dataset = Numbers((9, 5, 8, 7, 2, 6, 9, 3), lanes=4, counted=True)
    loaders = [make(dataset, 2, rank, drop_last=drop_last) for rank in range(2)]
    for _ in range(4):
        lengths = [len(loader) for loader in loaders]
        epochs = [indices_of_all(loader) for loader in loaders]
        assert [len(batches) for batches in epochs] == lengths
        assert lengths[0] == lengths[1]
        came = [i for batches in epochs for batch in batches for i in batch]
        if not drop_last:
            assert set(came) == set(dataset.all())
        else:
            assert {len(batch) for batches in epochs for batch in batches} == {3}


def indices_of_all(loader: Loader) -> list[list[int]]:
    return [indices_of([batch]) for batch in loader]


@pytest.mark.ranks
@pytest.mark.parametrize(("drop_last", "num_workers"), [(False, 0), (True, 2)])
def test_a_small_rank_reads_its_lanes_again(drop_last: bool, num_workers: int) -> None:
    """Several laps are exact at every step, and each lap has other draws."""
    dataset = NoisyShards((30, 2, 0, 3), lanes=4, counted=True)
    arguments = {"batch_size": 2, "shuffle": False, "drop_last": drop_last}
    run = Ranks(dataset, 2, num_workers=num_workers, **arguments)
    assert [len(batches) for batches in run.batches] == [15, 15]
    small = indices_of(run.batches[1])
    assert set(small) == {1000, 1001, 3000, 3001} | ({3002} - {3002 * drop_last})
    drawn = [tuple(row) for batch in run.batches[1] for row in batch["numpy"].tolist()]
    assert len(set(drawn)) == len(drawn)
    for step in range(0, 16, 1 if num_workers == 0 else 5):
        for given in (run.states(step), merge_state_dicts(run.states(step))):
            rest = Ranks(dataset, 2, given, **arguments)
            if step < 15:
                assert same(rest.batches, [batches[step:] for batches in run.batches]), step
                later = Ranks(dataset, 2, rest.states(1), **arguments)
                assert later.states(0) == run.states(step + 1)


@pytest.mark.parametrize("shuffle", [True, False])
def test_drops_do_not_change_the_number_of_batches(shuffle: bool) -> None:
    """A rank makes up for lost samples, also from a merged state.

    Without shuffling, both ranks have lost samples, and both read their lanes again at the end.
    """
    dataset = DamagedShards(
        {0: (2, "value"), 3: (1, "missing")}, (9, 9, 9, 9, 9, 9), lanes=2, counted=True
    )
    run = Ranks(dataset, 2, on_bad_sample="drop", shuffle=shuffle)
    assert [len(batches) for batches in run.batches] == run.lengths == [9, 9]
    for step in range(9):
        for given in (run.states(step), merge_state_dicts(run.states(step))):
            rest = Ranks(dataset, 2, given, on_bad_sample="drop", shuffle=shuffle)
            assert same(rest.batches, [batches[step:] for batches in run.batches]), step


def test_ranks_that_do_not_divide_the_lanes_are_refused() -> None:
    """The error names numbers that work."""
    dataset = Numbers(lanes=12)
    with pytest.raises(ValueError, match="5 ranks cannot share the 12 lanes") as refused:
        make(dataset, 5, 0)
    assert "use 1, 2, 3, 4, 6, 12 ranks" in str(refused.value)
    assert "a multiple of 5" in str(refused.value)


def test_a_rank_without_a_batch_is_refused_on_every_rank() -> None:
    """It could not deliver as many batches as the others: all ranks raise at once, none waits."""
    dataset = Numbers((9, 0, 9, 0), lanes=4, counted=True)
    for rank in range(2):
        loader = make(dataset, 2, rank, shuffle=False)
        with pytest.raises(ValueError, match="rank 1 of 2 has 0 samples"):
            next(iter(loader))
    dataset = Numbers((9, 2, 9, 0), lanes=4, counted=True)
    with pytest.raises(ValueError, match=r"no batch of 3 \(drop_last\)"):
        next(iter(make(dataset, 2, 0, shuffle=False, drop_last=True)))
    assert len(list(make(dataset, 2, 1, shuffle=False))) == 6


def test_a_rank_of_damaged_shards_alone_ends_in_an_error() -> None:
    dataset = DamagedShards({1: (0, "value")}, (9, 9), lanes=2, counted=True)
    loader = make(dataset, 2, 1, shuffle=False, on_bad_sample="drop")
    with pytest.raises(ValueError, match="rank 1 has no batch in its lanes in epoch 0"):
        next(iter(loader))


def test_own_states_of_another_batch_size_are_refused_where_ranks_end_together() -> None:
    """A single rank cannot know how many batches the others have left."""
    run = Ranks(Numbers(lanes=4, counted=True), 2)
    loader = make(Numbers(lanes=4, counted=True), 2, 0, batch_size=6)
    refusal(loader, run.states(1)[0], "global_batch_size")
    loader.load_state_dict(merge_state_dicts(run.states(1)))
    free = make(Numbers(lanes=4), 2, 0, batch_size=6)
    free.load_state_dict(Ranks(Numbers(lanes=4), 2).states(1)[0])


def serve_rank(rank: int) -> tuple[list[int], dict[str, Any]]:
    """Return the samples of a rank's first two batches, and the merged state after them."""
    dataset = Numbers(lanes=4, buffer=12)
    loader = StatefulGPULoader(dataset, batch_size=3, seed=3, shuffle=True, num_replicas="auto")
    batches = iter(loader)
    came = indices_of([next(batches), next(batches)])
    return came, gather_state_dict(loader.state_dict())


def test_gathered_from_real_ranks() -> None:
    """Each rank has the same merged state, and a single process continues from it."""
    (ours, merged), (theirs, merged_there) = on_ranks(serve_rank, 2)
    assert merged == merged_there
    dataset = Numbers(lanes=4, buffer=12)
    rest = Ranks(dataset, 1, merged)
    assert sorted(ours + theirs + rest.came()) == dataset.all()
