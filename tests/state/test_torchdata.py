"""States that torchdata did not write raise only a mismatch, which names the field."""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.generator_state import generator_from_text, generator_to_text
from stateful_gpu_loader.state.torchdata import TorchdataState, is_torchdata_state, shuffled_indices
from tests.conformance import differing
from tests.map_datasets import Indices
from tests.torchdata_objects import LENGTH, Counting, IteratorSampler, IteratorStream


def example(**changes: Any) -> dict[str, Any]:
    options = {"dataset": Indices(LENGTH), "batch_size": 3, "shuffle": True, **changes}
    loader = StatefulDataLoader(**options)
    batches = iter(loader)
    next(batches)
    state: dict[str, Any] = copy.deepcopy(loader.state_dict())
    return state


@pytest.fixture(scope="module")
def examples() -> list[dict[str, Any]]:
    stream = {"dataset": IteratorStream(7), "shuffle": None}
    return [
        example(),
        example(num_workers=2),
        example(batch_size=None),
        example(sampler=IteratorSampler(), shuffle=None),
        example(**stream),
        example(**stream, num_workers=2),
        example(dataset=Counting(LENGTH), shuffle=None, num_workers=2),
    ]


def test_a_state_survives_every_way_of_saving_it(examples: list[dict[str, Any]]) -> None:
    for state in examples[:3]:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        before = TorchdataState.from_dict(state)
        assert before.permutation is not None
        for loaded in (torch.load(file, weights_only=True), pickle.loads(pickle.dumps(state))):
            after = TorchdataState.from_dict(loaded)
            assert after.permutation is not None
            assert torch.equal(before.permutation, after.permutation)
            assert (before.batches, before.samples) == (after.batches, after.samples)
    for state in examples[4:]:
        read = TorchdataState.from_dict(json.loads(json.dumps(state)))
        before = TorchdataState.from_dict(state)
        assert [worker.iterator for worker in read.workers] == [
            worker.iterator for worker in before.workers
        ]


Path = tuple[str, ...]
JUNK: list[Any] = [
    None, True, False, -1, 0, 7, 2**63, 10**30, 1.5, float("nan"), "", "x", b"x", (), [], [1], {},
    {"x": 1}, {1: 2}, {"worker_0": None}, torch.zeros(0), torch.zeros(3, dtype=torch.uint8),
    torch.zeros(5056, dtype=torch.uint8), torch.full((5056,), 255, dtype=torch.uint8), object(),
]  # fmt: skip


def test_only_a_mismatch_comes_out_of_a_torn_state(examples: list[dict[str, Any]]) -> None:
    refused = 0
    for state in examples:
        for path in paths(state):
            for damaged in [without(state, path), *(replaced(state, path, junk) for junk in JUNK)]:
                is_torchdata_state(damaged)
                try:
                    TorchdataState.from_dict(damaged)
                except StateMismatch:
                    refused += 1
    assert refused > 1000


def test_values_that_are_not_dictionaries_are_not_states() -> None:
    for junk in JUNK:
        assert not is_torchdata_state(junk)
        with pytest.raises(StateMismatch):
            TorchdataState.from_dict(junk)
    assert not is_torchdata_state({"format": "stateful_gpu_loader", "version": 1})


def test_one_key_of_torchdatas_is_enough_to_know_a_torn_state(
    examples: list[dict[str, Any]],
) -> None:
    for state in examples[:2]:
        private = [key for key in state if "yielded" in key or "snapshot" in key]
        assert len(private) == 2
        assert all(is_torchdata_state({key: state[key]}) for key in private)


@pytest.mark.parametrize(
    "users",
    [
        {"samples_yielded": "three", "mine": 0},
        {"sampler_state": {"place": 3}},
        {"yielded": 3, "generator": torch.zeros(3), "mine": 0},
        {"yielded": 3, "generator": (3, (0,) * 625, None)},
    ],
)
def test_a_users_state_is_not_taken_for_torchdatas(
    users: Any, examples: list[dict[str, Any]]
) -> None:
    state = TorchdataState.from_dict({**examples[0], "_sampler_iter_state": users})
    assert state.index_iterator is users
    for own in (state.samples, state.sampler, state.sampler_iterator, state.permutation):
        assert own is None


UNUSED = ("_base_seed", "_shared_seed", "_IterableDataset_len_called")
"""Keys of torchdata's that do not describe the place."""


def test_a_missing_key_is_named_by_its_path(examples: list[dict[str, Any]]) -> None:
    users = ("dataset_iter_state.", "dataset_state.", "_sampler_iter_state.")
    for state in examples:
        for path in paths(state):
            name = ".".join(path)
            if any(part in name for part in users) or path[-1] in UNUSED:
                continue
            with pytest.raises(StateMismatch) as caught:
                TorchdataState.from_dict(without(state, path))
            if path[-1].startswith("worker_") and path[-1] != "worker_id":
                name = ".".join(path[:-1])
            assert caught.value.field == name


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("_iterator_finished", 1),
        ("_steps_since_snapshot", -1),
        ("_steps_since_snapshot", True),
        ("_snapshot._snapshot_step", 2**63),
        ("_snapshot._last_yielded_worker_id", 2),
        ("_snapshot._main_snapshot._num_workers", 0),
        ("_snapshot._main_snapshot._sampler_iter_yielded", 1.0),
        ("_snapshot._main_snapshot._sampler_iter_state.samples_yielded", -1),
        ("_snapshot._main_snapshot._sampler_iter_state.sampler_iter_state.yielded", None),
        (
            "_snapshot._main_snapshot._sampler_iter_state.sampler_iter_state.generator",
            torch.zeros(5056, dtype=torch.uint8),
        ),
        ("_snapshot._worker_snapshots.worker_1.worker_id", 0),
        ("_snapshot._worker_snapshots.worker_1.fetcher_state", {}),
    ],
)
def test_a_wrong_value_is_named_by_its_path(
    path: str, value: Any, examples: list[dict[str, Any]]
) -> None:
    with pytest.raises(StateMismatch) as caught:
        TorchdataState.from_dict(replaced(examples[1], tuple(path.split(".")), value))
    assert caught.value.field == path


def test_another_number_of_workers_than_snapshots_is_refused(
    examples: list[dict[str, Any]],
) -> None:
    for wrong in (1, 3, 2**62):
        path = ("_snapshot", "_main_snapshot", "_num_workers")
        with pytest.raises(StateMismatch, check=differing("_snapshot._worker_snapshots")):
            TorchdataState.from_dict(replaced(examples[1], path, wrong))


def paths(state: Any) -> Iterator[Path]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield (key,)
            yield from ((key, *path) for path in paths(value))


def without(state: dict[str, Any], path: Path) -> dict[str, Any]:
    damaged = copy.deepcopy(state)
    del parent(damaged, path)[path[-1]]
    return damaged


def replaced(state: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    damaged = copy.deepcopy(state)
    parent(damaged, path)[path[-1]] = value
    return damaged


def parent(state: dict[str, Any], path: Path) -> dict[str, Any]:
    for key in path[:-1]:
        state = state[key]
    return state


# The generator's state.


def used_generators() -> Iterator[torch.Generator]:
    for seed in (0, 1, 2**32, -1, 2**63):
        yield torch.Generator().manual_seed(seed)
    for draws in (1, 2, 623, 624, 625, 1247, 1248, 1249, 5000):
        generator = torch.Generator().manual_seed(draws)
        torch.randperm(draws, generator=generator)
        yield generator
    torch.randn(3, generator=generator)  # leaves a number in the cache
    yield generator


def test_a_generators_state_comes_back_from_text_bit_for_bit() -> None:
    for generator in used_generators():
        state = generator.get_state()
        text = generator_to_text(state)
        assert text.isascii()
        assert json.dumps(text) == f'"{text}"'
        assert len(text) <= (27 if torch.equal(state, reseeded(generator)) else 3200)
        read = generator_from_text(text)
        assert torch.equal(read, state)
        assert shuffled_indices(read, 1000).tolist() == shuffled_indices(state, 1000).tolist()


def reseeded(generator: torch.Generator) -> torch.Tensor:
    return torch.Generator().manual_seed(generator.initial_seed()).get_state()


def test_the_text_of_a_generator_is_the_same_for_ever() -> None:
    assert generator_to_text(torch.Generator().manual_seed(42).get_state()) == "mt19937_ee508d56_Dg"


def test_an_altered_text_is_refused() -> None:
    draw = random.Random(0)
    for generator in used_generators():
        text = generator_to_text(generator.get_state())
        for _ in range(8):
            at = draw.randrange(len(text))
            other = text[:at] + draw.choice('0aZ~!"é\n') + text[at + 1 :]
            for altered in (other, text[:at], text + text[at:], f" {text}"):
                if altered != text:
                    with pytest.raises(StateMismatch, check=differing("generator")):
                        generator_from_text(altered)
    for junk in [*JUNK, "mt19937_00000000_", "mt19937_ee508d56_", "mt19937"]:
        with pytest.raises(StateMismatch):
            generator_from_text(junk)


def test_invalid_generator_states_are_refused() -> None:
    state = torch.Generator().manual_seed(1).get_state()
    wrong = [
        *JUNK,
        state[:-1],
        torch.cat([state, state[:1]]),
        state.to(torch.int16),
        state.view(torch.int8),
        state.reshape(2, -1),
        state.to("meta"),
    ]
    # torch accepts each of these, and for some reads beyond its words, or raises RuntimeError.
    left, seeded, following, word = 8, 12, 16, 28
    for changes in (
        {left: 0},
        {left: 9},
        {seeded: 0},
        {following: 9},
        {word: 1},
        {left: 0, 16: 113, 17: 2},
    ):
        altered = state.clone()
        for at, value in changes.items():
            altered[at] = value
        wrong.append(altered)
    for junk in wrong:
        with pytest.raises(StateMismatch):
            shuffled_indices(junk, 3)
        with pytest.raises(StateMismatch):
            generator_to_text(junk)


def test_an_order_is_drawn_as_torch_draws_it_and_leaves_the_callers_generators_alone() -> None:
    before = torch.get_rng_state()
    state = torch.Generator().manual_seed(7).get_state()
    kept = state.clone()
    for n in (0, 1, 2, 1000, 70000):
        wanted = torch.randperm(n, generator=torch.Generator().manual_seed(7))
        order = shuffled_indices(state, n)
        assert order.dtype == "int64"
        assert order.tolist() == wanted.tolist()
    with torch.device("meta"):
        assert shuffled_indices(state, 70000).tolist() == wanted.tolist()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(state, kept)
    with pytest.raises(ValueError, match="n = -1"):
        shuffled_indices(state, -1)
