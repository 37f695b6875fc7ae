"""What a drop-in must do besides resuming: laws 7 and 8, A1, A8, A10, G3."""

from __future__ import annotations

import gc
import json
import multiprocessing
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import (
    DistributedShuffledSampler,
    ShuffledSampler,
    StatefulGPULoader,
    StateMismatch,
)
from tests.conformance import same
from tests.datasets import Failing, Indices, Noisy


def generators() -> tuple[Any, ...]:
    numpy_state = np.random.get_state(legacy=False)
    return random.getstate(), str(numpy_state), torch.get_rng_state().tolist()


def test_it_is_a_stateful_data_loader() -> None:
    """A1."""
    assert isinstance(StatefulGPULoader([1]), StatefulDataLoader)


def test_construction_and_state_have_no_side_effects() -> None:
    """A10: no worker, no draw, no order, no call to the dataset but its length."""

    class Untouchable(Indices):
        def __getitem__(self, index: int) -> int:
            raise AssertionError("read")

    before, children = generators(), multiprocessing.active_children()
    loader = StatefulGPULoader(Untouchable(10**12), shuffle=True, num_workers=2)
    iterator = iter(loader)
    states = [loader.state_dict() for _ in range(3)]
    assert states[0] == states[1] == states[2]
    assert states[0] is not states[1]
    assert generators() == before
    assert multiprocessing.active_children() == children
    assert not any("stateful" in thread.name for thread in threading.enumerate())
    del iterator


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_callers_generators_are_drawn_from_once_in_a_life(num_workers: int) -> None:
    """Law 7: as much as torch's DataLoader for its first pass, and nothing ever again."""
    torch.manual_seed(11)
    torch.empty((), dtype=torch.int64).random_()
    once = generators()
    torch.manual_seed(11)
    loader = StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True, num_workers=num_workers)
    asked = loader.state_dict()["seed"]
    for _ in range(3):
        list(loader)
    assert generators()[2] == once[2]
    assert loader.state_dict()["seed"] == asked


def test_a_resumed_or_seeded_loader_draws_nothing_from_the_caller() -> None:
    """Law 7: or else a resumed run's dropout would differ from the uninterrupted run's."""
    state = StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True).state_dict()
    before = generators()
    resumed = StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True)
    resumed.load_state_dict(state)
    list(resumed)
    list(StatefulGPULoader(Noisy(12), batch_size=4, shuffle=True, seed=3))
    assert generators() == before


def test_the_callers_generators_are_restored_when_a_sample_fails() -> None:
    loader = StatefulGPULoader(Failing(4, {2}), batch_size=4, seed=1)
    before = generators()
    with pytest.raises(KeyError):
        next(iter(loader))
    assert generators() == before


def test_seed_none_is_settled_from_the_generator_given() -> None:
    def settled(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        loader = StatefulGPULoader(Indices(9), shuffle=True, generator=generator)
        value: int = loader.state_dict()["seed"]
        return value

    assert settled(1) == settled(1)
    assert settled(1) != settled(2)


def test_seed_none_is_zero_with_several_ranks() -> None:
    for rank in range(2):
        loader = StatefulGPULoader(Indices(9), shuffle=True, num_replicas=2, rank=rank)
        assert loader.state_dict()["seed"] == 0


def test_default_samplers_are_what_trainers_ask_for() -> None:
    """DESIGN.md, Engine: trainers ask with isinstance."""
    assert isinstance(StatefulGPULoader(Indices(9), shuffle=True).sampler, RandomSampler)
    ranked = StatefulGPULoader(Indices(9), shuffle=True, num_replicas=2, rank=1).sampler
    assert isinstance(ranked, DistributedSampler)
    assert (ranked.num_replicas, ranked.rank) == (2, 1)


def test_sampler_and_batch_sampler_yield_plain_indices_of_the_order() -> None:
    """Law 8."""
    loader = StatefulGPULoader(Indices(9), batch_size=4, shuffle=True, seed=2)
    order = [index for batch in loader for index in batch.tolist()]
    assert list(loader.sampler) == order
    loader = StatefulGPULoader(Indices(9), batch_size=4, shuffle=True, seed=2)
    assert [index for batch in loader.batch_sampler for index in batch] == order


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 10, None])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_unshuffled_batches_equal_those_of_data_loader(
    num_workers: int, batch_size: int | None, drop_last: bool
) -> None:
    """A1."""
    if batch_size is None and drop_last:
        pytest.skip("excluded by torch itself")
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


def test_our_samplers_may_be_given_and_keep_the_state_a_position() -> None:
    sampler = ShuffledSampler(Indices(10), seed=4)
    given = StatefulGPULoader(Indices(10), batch_size=4, sampler=sampler, seed=4)
    own = StatefulGPULoader(Indices(10), batch_size=4, shuffle=True, seed=4)
    assert same(list(given), list(own))
    assert given.state_dict()["position"] == 0
    assert given.state_dict()["user"] is None


def test_a_given_distributed_sampler_of_ours_is_not_sharded_again() -> None:
    samplers = [DistributedShuffledSampler(Indices(10), 2, rank, seed=4) for rank in range(2)]
    seen = [
        index
        for sampler in samplers
        for batch in StatefulGPULoader(Indices(10), batch_size=2, sampler=sampler, seed=4)
        for index in batch.tolist()
    ]
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seed": 5}, "seed=5 contradicts the sampler, which has 4"),
        ({"num_replicas": 2, "rank": 1}, "num_replicas=2 contradicts the sampler, which has 1"),
    ],
)
def test_arguments_that_contradict_a_given_sampler_are_refused(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        StatefulGPULoader(Indices(8), sampler=ShuffledSampler(Indices(8), seed=4), **arguments)


def test_a_given_samplers_seed_is_the_loaders() -> None:
    sampler = ShuffledSampler(Indices(10), seed=4)
    loader = StatefulGPULoader(Indices(10), batch_size=10, sampler=sampler)
    order = list(ShuffledSampler(Indices(10), seed=4))
    assert next(iter(loader)).tolist() == order
    assert loader.state_dict()["seed"] == 4


def test_a_position_loaded_into_the_sampler_is_not_dropped_in_silence() -> None:
    sampler = ShuffledSampler(Indices(10), seed=4)
    sampler.load_state_dict({"seed": 4, "epoch": 1, "position": 5})
    with pytest.raises(ValueError, match="load the loader's state into the loader"):
        next(iter(StatefulGPULoader(Indices(10), sampler=sampler)))


def test_a_subclass_of_our_sampler_yields_what_it_likes() -> None:
    class Reversed(ShuffledSampler):
        def __iter__(self) -> Any:
            return iter([7, 5, 3])

    loader = StatefulGPULoader(Indices(8), sampler=Reversed(Indices(8)))
    assert [batch.item() for batch in loader] == [7, 5, 3]


def test_an_empty_batch_sampler_yields_nothing() -> None:
    """ENGINE.md, pitfall 6: falsy is not None."""
    assert list(StatefulGPULoader(Indices(4), batch_sampler=[])) == []


def test_the_loaders_sampler_yields_the_order_of_the_current_pass() -> None:
    loader = StatefulGPULoader(Indices(9), batch_size=9, shuffle=True)
    for _ in range(3):
        batches = iter(loader)
        delivered = next(batches).tolist()
        assert list(loader.sampler) == delivered
        list(batches)


def test_a_rebuilt_loader_takes_the_state_of_the_original() -> None:
    """Law 8: trainers rebuild a loader from its public attributes, its sampler among them."""
    loader = StatefulGPULoader(Indices(9), batch_size=4, shuffle=True, seed=3)
    rebuilt = StatefulGPULoader(
        loader.dataset, batch_size=loader.batch_size, sampler=loader.sampler, seed=loader.seed
    )
    batches = iter(loader)
    next(batches)
    rebuilt.load_state_dict(loader.state_dict())
    assert same(list(rebuilt), list(batches))


def test_integers_of_numpy_are_integers() -> None:
    loader = StatefulGPULoader(
        Indices(9), shuffle=True, seed=np.int64(3), num_replicas=np.int64(1), rank=np.int64(0)
    )
    loader.set_epoch(np.int64(2))
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 2
    loader.sampler.set_epoch(np.int64(4))
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 4


def test_set_epoch_of_the_loader_and_of_its_sampler_mean_the_same() -> None:
    def order(set_epoch: Callable[[StatefulGPULoader[Any]], None]) -> list[int]:
        loader = StatefulGPULoader(Indices(20), batch_size=20, shuffle=True, seed=1)
        set_epoch(loader)
        assert loader.state_dict()["epoch"] == 6
        batch: list[int] = next(iter(loader)).tolist()
        return batch

    of_sampler = order(lambda loader: loader.sampler.set_epoch(6))
    assert order(lambda loader: loader.set_epoch(6)) == of_sampler
    ranked = StatefulGPULoader(Indices(8), num_replicas=1, rank=0, seed=1)
    ranked.sampler.set_epoch(3)
    assert ranked.state_dict()["epoch"] == 3


@pytest.mark.parametrize("epoch", [-1, 2**32 - 1, 1.0, True, None])
def test_a_wrong_epoch_is_refused(epoch: Any) -> None:
    loader = StatefulGPULoader(Indices(3), shuffle=True)
    for set_epoch in (loader.set_epoch, loader.sampler.set_epoch):
        with pytest.raises(ValueError, match="epoch = "):
            set_epoch(epoch)
    assert loader.state_dict()["epoch"] == 0


def test_workers_are_seeded_anew_for_every_pass() -> None:
    """A1: else what worker_init_fn derives from its seed would repeat in every epoch."""

    class Seeded(Indices):
        def __getitem__(self, index: int) -> int:
            worker = get_worker_info()
            assert worker is not None
            return worker.seed % 2**62

    def seeds(loader: StatefulGPULoader[Any]) -> list[Any]:
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    one, other = (seeds(StatefulGPULoader(Seeded(4), num_workers=2, seed=seed)) for seed in (1, 1))
    assert one == other
    assert one[0] != one[1]


def test_worker_info_shows_the_users_dataset() -> None:
    """A1, DESIGN.md: nothing of the engine shows."""

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
    """A1."""

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
def test_an_exception_keeps_its_type_and_the_loader_goes_on(num_workers: int) -> None:
    """G3: the state stays before the failed batch until a later one is delivered."""
    loader = StatefulGPULoader(Failing(16, {5}), batch_size=4, num_workers=num_workers)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="no sample 5"):
        next(batches)
    assert loader.state_dict()["position"] == 4
    assert next(batches).tolist() == [8, 9, 10, 11]
    assert loader.state_dict()["position"] == 12
    retried = StatefulGPULoader(Indices(16), batch_size=4)
    retried.load_state_dict(loader.state_dict())
    assert next(iter(retried)).tolist() == [12, 13, 14, 15]


def test_a_first_batch_that_fails_loses_no_resumed_position() -> None:
    """Nothing is lost: the next iterator begins where the failed one was to begin."""
    dataset = Failing(16, {9})
    loader = StatefulGPULoader(dataset, batch_size=4)
    loader.load_state_dict({**loader.state_dict(), "position": 8})
    with pytest.raises(KeyError):
        next(iter(loader))
    dataset.failing.clear()
    assert next(iter(loader)).tolist() == [8, 9, 10, 11]


def test_an_early_break_leaves_no_worker_behind() -> None:
    """A8."""
    before = set(multiprocessing.active_children())
    for _ in StatefulGPULoader(Indices(100), num_workers=2):
        break
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


def test_pin_memory_without_an_accelerator_warns_as_torch_does() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = StatefulGPULoader(Indices(4), pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert len(list(loader)) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": 1.5}, TypeError, "seed=1.5 must be an int"),
        ({"seed": True}, TypeError, "must be an int"),
        ({"seed": 2**64}, ValueError, "must fit in 64 bits"),
        ({"rank": 0}, ValueError, "rank = 0 needs num_replicas"),
        ({"num_replicas": 2}, ValueError, "rank = None must be an int"),
        ({"num_replicas": 2, "rank": 2}, ValueError, "rank = 2 must be an int"),
        ({"num_replicas": 0, "rank": 0}, ValueError, "num_replicas = 0 must be"),
        ({"num_replicas": "all"}, ValueError, "num_replicas = 'all' must be"),
        ({"num_replicas": "auto", "rank": 1}, ValueError, "leave out rank = 1"),
        ({"worker_type": "fibre"}, ValueError, "worker_type='fibre' must be one of"),
        ({"on_epoch_boundary": "skip"}, ValueError, "on_epoch_boundary='skip' must be one of"),
        ({"shuffle": "yes"}, TypeError, "shuffle = 'yes'"),
        ({"transform": 7}, TypeError, "7 of type int, which is not callable"),
        ({"transform": [min, None]}, TypeError, "None of type NoneType"),
        ({"num_workers": 1, "worker_type": "thread"}, ValueError, "Indices is no Source"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor"),
        ({"persistent_workers": True}, ValueError, "persistent_workers"),
        ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context"),
        ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.5}, ValueError, "batch_size"),
        ({"num_workers": 1, "prefetch_factor": 0}, ValueError, "prefetch_factor = 0 must be"),
        ({"decoder": "photoshop"}, ValueError, "decoder='photoshop' must be one of"),
        ({"sampler": [0], "shuffle": True}, ValueError, "mutually exclusive"),
        ({"sampler": [0], "num_replicas": 2, "rank": 0}, ValueError, "num_replicas=2 needs"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Bad input: as torch does, or better."""
    with pytest.raises(error, match=text):
        StatefulGPULoader(Indices(8), **arguments)


def test_a_state_of_another_loader_changes_nothing() -> None:
    """B7: validation is complete before anything is changed."""
    good = StatefulGPULoader(Indices(20), batch_size=4, shuffle=True, seed=1)
    state = {**good.state_dict(), "position": 8}
    others: dict[str, StatefulGPULoader[Any]] = {
        "length": StatefulGPULoader(Indices(21), batch_size=4, shuffle=True, seed=1),
        "order": StatefulGPULoader(Indices(20), batch_size=4, seed=1),
        "drop_last": StatefulGPULoader(
            Indices(20), batch_size=4, shuffle=True, seed=1, drop_last=True
        ),
        "transform": StatefulGPULoader(
            Indices(20), batch_size=4, shuffle=True, seed=1, transform=float
        ),
        "seed": StatefulGPULoader(Indices(20), batch_size=4, shuffle=True, seed=2),
    }
    for field, loader in others.items():
        batches = iter(loader)
        next(batches)
        before = loader.state_dict()
        with pytest.raises(StateMismatch, match="Remedy") as caught:
            loader.load_state_dict(state)
        assert caught.value.field == field
        assert loader.state_dict() == before
        next(batches)
        if field != "length":
            loader.load_state_dict(
                state, accept={"order", "shuffle", "drop_last", "transform", "seed"}
            )
            assert loader.state_dict()["position"] == 8


def test_a_position_outside_the_epoch_is_refused() -> None:
    loader = StatefulGPULoader(Indices(20))
    with pytest.raises(StateMismatch, match="position differs: the state has 21"):
        loader.load_state_dict({**loader.state_dict(), "position": 21})


@pytest.mark.parametrize("field", ["index_digest", "ahead", "bad_samples", "user"])
def test_what_this_loader_cannot_honour_is_refused_not_dropped(field: str) -> None:
    loader = StatefulGPULoader(Indices(20))
    with pytest.raises(StateMismatch, match=f"{field} differs"):
        loader.load_state_dict({**loader.state_dict(), field: "something"})


@pytest.mark.parametrize("accept", ["transform", {"everything"}, {"length"}])
def test_accept_names_known_fields_only(accept: Any) -> None:
    loader = StatefulGPULoader(Indices(20))
    with pytest.raises(ValueError, match="must be a collection of names among"):
        loader.load_state_dict(loader.state_dict(), accept=accept)


def test_an_accepted_seed_keeps_the_loaders_own() -> None:
    state = StatefulGPULoader(Indices(20), shuffle=True, seed=1).state_dict()
    loader = StatefulGPULoader(Indices(20), shuffle=True, seed=2)
    loader.load_state_dict(state, accept={"seed"})
    assert loader.state_dict()["seed"] == 2


def test_a_seed_of_none_takes_that_of_the_state() -> None:
    state = StatefulGPULoader(Indices(20), shuffle=True, seed=1).state_dict()
    loader = StatefulGPULoader(Indices(20), shuffle=True)
    loader.load_state_dict(state)
    assert loader.state_dict() == state


@pytest.mark.parametrize("length", [10, 10**9])
def test_the_state_is_small_and_of_one_set_of_keys(length: int) -> None:
    """A9: law 3."""
    loader = StatefulGPULoader(Indices(length), batch_size=2, shuffle=True, seed=2**63)
    keys = list(loader.state_dict())
    batches = iter(loader)
    next(batches)
    assert list(loader.state_dict()) == keys
    assert len(str(loader.state_dict())) < 1000
    for value in loader.state_dict().values():
        assert value is None or type(value) in (str, int, float, bool)


def test_an_iterable_dataset_and_a_users_sampler_iterate_as_in_the_parent() -> None:
    """A1: until they have streams of their own, they keep torchdata's."""

    class Counting(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(10))

    iterable = StatefulGPULoader(Counting(), batch_size=4)
    assert [batch.tolist() for batch in iterable] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    sampled = StatefulGPULoader(Indices(10), batch_size=2, sampler=[5, 3, 1])
    batches = iter(sampled)
    assert next(batches).tolist() == [5, 3]
    state = sampled.state_dict()
    resumed = StatefulGPULoader(Indices(10), batch_size=2, sampler=[5, 3, 1])
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [[1]]


@pytest.mark.parametrize("saved_by", ["order", "sampler"])
def test_states_of_the_two_kinds_of_loader_are_not_mistaken(saved_by: str) -> None:
    """B7: one counts positions, the other has torchdata's iterator."""
    own = StatefulGPULoader(Indices(4))
    inherited = StatefulGPULoader(Indices(4), sampler=[3, 1, 0, 2])
    saving, loading = (own, inherited) if saved_by == "order" else (inherited, own)
    batches = iter(saving)
    next(batches)
    with pytest.raises(StateMismatch, match="order differs"):
        loading.load_state_dict(saving.state_dict())


def test_a_users_loop_under_autocast_or_another_device_changes_no_batch() -> None:
    """Law 1: inline as in a worker."""

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
    """Law 1: the global generators are one process's, so inline requests take turns."""
    wanted = list(StatefulGPULoader(Noisy(400), batch_size=4, seed=1))
    found: list[list[Any]] = [[], []]

    def work(number: int) -> None:
        found[number].extend(StatefulGPULoader(Noisy(400), batch_size=4, seed=1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(found[0], wanted)
    assert same(found[1], wanted)


def test_an_interrupted_sample_is_read_again() -> None:
    """A KeyboardInterrupt loses nothing."""

    class Interrupted(Indices):
        interrupted = False

        def __getitem__(self, index: int) -> int:
            if index == 2 and not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return index

    batches = iter(StatefulGPULoader(Interrupted(6), batch_size=2))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[2, 3], [4, 5]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_getitems_returns_reaches_collate_fn_as_it_is(num_workers: int) -> None:
    """A1: torch passes it on, a dictionary too."""

    class Columns(Indices):
        def __getitems__(self, indices: list[int]) -> dict[str, list[int]]:
            return {"x": indices}

    loader = StatefulGPULoader(
        Columns(4), batch_size=2, num_workers=num_workers, collate_fn=_unchanged
    )
    assert list(loader) == [{"x": [0, 1]}, {"x": [2, 3]}]


def test_a_dataset_that_grows_keeps_the_order_of_a_pass_that_has_begun() -> None:
    dataset = Indices(100)
    loader = StatefulGPULoader(dataset, batch_size=1, shuffle=True, seed=1)
    batches = iter(loader)
    seen = [next(batches).item() for _ in range(3)]
    dataset.length = 150
    seen += [batch.item() for batch in batches]
    assert sorted(seen) == list(range(100))
    loader.load_state_dict(loader.state_dict())
    assert len(list(loader)) == 150


def test_an_exception_leaves_no_worker_alive_without_the_garbage_collector() -> None:
    """A8: no cycle of frames and tracebacks keeps them."""

    def fail() -> None:
        batches = iter(StatefulGPULoader(Failing(8, {1}), num_workers=1))
        next(batches)
        with pytest.raises(KeyError):
            next(batches)

    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        fail()
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


def _unchanged(samples: Any) -> Any:
    return samples


def test_no_warning_reaches_the_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(StatefulGPULoader(Indices(10), batch_size=2, num_workers=2))
