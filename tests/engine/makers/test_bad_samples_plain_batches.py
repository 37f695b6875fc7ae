"""Bad samples of datasets of any kind: what batches hold in their place (G4, laws 1 and 6)."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, default_collate, default_convert

from stateful_gpu_loader import BadSample
from stateful_gpu_loader.engine.makers.bad_sample_policy import MAX_TRIES, BadSamplePolicy
from stateful_gpu_loader.engine.pipeline import never_stopped
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.state.bad_samples import BadSamples, FoundBad
from tests.engine.makers.damaged import (
    EPOCH,
    KINDS,
    Damaged,
    DamagedBatches,
    FailsByDraw,
    Named,
    assert_found_is_of_the_order,
    assert_same,
    maker_of,
    policy_for,
    replacement_of,
    request_of,
    requests_of,
    run,
)
from tests.map_datasets import add_noise

LENGTH = 23
ERRORS: dict[Any, Callable[[], Exception]] = {
    3: partial(ValueError, "no label"),
    8: partial(KeyError, "label"),
    9: partial(OSError, "image file is truncated"),
    17: partial(BadSample, "17.jpg", index=17, position=0, epoch=0, reason="empty"),
}


def keyed_mix(samples: list[dict[str, Any]]) -> Any:
    """A collate function that draws."""
    return [default_collate(samples), random.random(), torch.rand(())]


@pytest.mark.parametrize("transform", [None, add_noise])
@pytest.mark.parametrize("collate_fn", [default_collate, keyed_mix])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replaced_sample_is_that_of_another_position_under_its_own_key(
    kind: type[Damaged], collate_fn: Any, transform: Any
) -> None:
    """As if the bad index held the other's content: nothing else in the batch changes."""
    dataset = kind(LENGTH, ERRORS)
    policy = policy_for(dataset, "replace")
    maker = maker_of(dataset, policy, collate_fn=collate_fn, transform=transform)
    for request in requests_of(LENGTH, 5):
        copies = {}
        for number, index in enumerate(request.index_list()):
            if index in ERRORS:
                copies[index] = replacement_of(policy, request, number, set(ERRORS))[1]
        repaired = kind(LENGTH, copies=copies)
        wanted, none = run(maker_of(repaired, collate_fn=collate_fn, transform=transform), request)
        batch, found = run(maker, request)
        assert_same(batch, wanted)
        assert none == ()
        bad = [index for index in request.index_list() if index in ERRORS]
        assert [sample.index for sample in found if sample.position in request.positions] == bad
        assert {sample.index for sample in found} <= set(ERRORS)
        assert_found_is_of_the_order(found, LENGTH)


@pytest.mark.parametrize("transform", [None, add_noise])
def test_dropped_samples_leave_the_others_as_they_are(transform: Any) -> None:
    dataset = Damaged(LENGTH, ERRORS)
    maker = maker_of(dataset, "drop", transform=transform, collate_fn=default_convert)
    sound = maker_of(Damaged(LENGTH), transform=transform, collate_fn=default_convert)
    total = 0
    for request in requests_of(LENGTH, 5):
        batch, found = run(maker, request)
        samples, _ = run(sound, request)
        assert_same(batch, [sample for sample in samples if sample["index"] not in ERRORS])
        assert [bad.index for bad in found] == [i for i in request.index_list() if i in ERRORS]
        assert_found_is_of_the_order(found, LENGTH)
        total += len(batch)
    assert total == LENGTH - len(ERRORS)


def test_dropping_from_native_batches_asks_for_the_sound_ones_alone() -> None:
    dataset = DamagedBatches(LENGTH, ERRORS)
    maker = maker_of(dataset, "drop", transform=add_noise, collate_fn=default_convert)
    for request in requests_of(LENGTH, 5):
        indices = request.index_list()
        batch, found = run(maker, request)
        sound = [index for index in indices if index not in ERRORS]
        assert [sample["index"] for sample in batch] == sound
        assert [bad.index for bad in found] == [index for index in indices if index in ERRORS]
        if indices[0] in sound:
            alone = Request(0, request.seed, request.epoch, request.start, 1, sound, 0)
            wanted, _ = run(maker_of(DamagedBatches(LENGTH), collate_fn=default_convert), alone)
            assert_same(
                [{**s, "noise": 0, "choice": 0} for s in batch],
                [{**s, "noise": 0, "choice": 0} for s in wanted],
            )


@pytest.mark.parametrize("mode", ["replace", "drop"])
@pytest.mark.parametrize("kind", [*KINDS, FailsByDraw])
def test_a_batch_depends_on_nothing_but_its_request(kind: Any, mode: str) -> None:
    """Law 1: whatever was met before, in whatever order, by whatever worker, and what is known."""
    requests = [r for epoch in range(3) for r in requests_of(LENGTH, 4, epoch=epoch)]

    def make(known: dict[int, str] | None = None) -> Any:
        dataset = kind(LENGTH) if kind is FailsByDraw else kind(LENGTH, ERRORS)
        policy = policy_for(dataset, mode, known=known or {})
        return maker_of(dataset, policy, transform=add_noise)

    alone = [run(make(), request) for request in requests]
    in_turn, backwards = make(), pickle.loads(pickle.dumps(make()))
    assert_same([run(in_turn, request) for request in requests], alone)
    assert_same([run(backwards, request) for request in requests[::-1]], alone[::-1])
    record = BadSamples()
    for _, found in alone:
        record.add(found)
    assert record.total > 8
    resumed = make(dict(record.known))
    assert_same([run(resumed, request) for request in requests], alone)


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_the_stream_is_the_same_on_any_number_of_ranks(mode: str) -> None:
    """B3: of the samples of an epoch, and of the record's total."""
    dataset = Damaged(24, ERRORS)
    delivered = []
    for ranks in (1, 2, 3):
        samples: dict[int, Any] = {}
        met: list[FoundBad] = []
        for rank in range(ranks):
            maker = maker_of(dataset, mode, collate_fn=default_convert)
            for request in requests_of(24, 12 // ranks, ranks=ranks, rank=rank):
                batch, found = run(maker, request)
                met += found
                if mode == "drop":
                    samples.update({sample["index"]: sample for sample in batch})
                else:
                    samples.update(zip(request.positions.tolist(), batch, strict=True))
        delivered.append((dict(sorted(samples.items())), sorted(met, key=lambda bad: bad.position)))
    assert len(delivered[0][0]) == (20 if mode == "drop" else 24)
    for samples, met in delivered[1:]:
        assert_same(samples, delivered[0][0])
        assert met == delivered[0][1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_a_known_bad_sample_is_not_read_again(kind: type[Damaged], mode: str) -> None:
    """After a resume, and in one worker's life."""
    dataset = kind(LENGTH, ERRORS)
    requests = requests_of(LENGTH, 5) + requests_of(LENGTH, 5, epoch=EPOCH + 1)
    maker = maker_of(dataset, mode)
    record = BadSamples()
    for request in requests:
        record.add(run(maker, request)[1])
    alone = 1 if kind is DamagedBatches else 0  # each is met first in a whole batch
    assert all(dataset.reads[index] <= 1 + alone for index in ERRORS)
    assert set(record.known) == set(ERRORS)

    resumed = kind(LENGTH, ERRORS)
    known = BadSamples.from_text(record.to_text()).known
    maker = maker_of(resumed, policy_for(resumed, mode, known=known))
    again = BadSamples()
    for request in requests:
        again.add(run(maker, request)[1])
    assert not set(resumed.reads) & set(ERRORS)
    assert again == record


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_left_empty_keeps_a_replacement_of_its_first(kind: type[Damaged]) -> None:
    request = requests_of(LENGTH, 5)[1]
    errors = dict.fromkeys(request.index_list(), ValueError)
    dataset = kind(LENGTH, errors)
    policy = policy_for(dataset, "drop")
    batch, found = run(maker_of(dataset, policy), request)
    (index,) = batch["index"].tolist()
    assert index == replacement_of(policy, request, 0, set(errors))[1]
    assert {bad.index for bad in found} == set(errors)
    replaced, _ = run(maker_of(dataset, "replace"), request)
    assert_same(batch["random"][0], replaced["random"][0])


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_without_batches_a_drop_is_a_replacement(mode: str) -> None:
    """``batch_size=None`` delivers one sample a time; there is no smaller one."""
    dataset = Damaged(LENGTH, ERRORS)
    maker = maker_of(dataset, mode, collate_fn=default_convert, batched=False)
    delivered = [run(maker, request)[0] for request in requests_of(LENGTH, 1)]
    assert len(delivered) == LENGTH
    replaced = maker_of(dataset, "replace", collate_fn=default_convert, batched=False)
    assert_same(delivered, [run(replaced, request)[0] for request in requests_of(LENGTH, 1)])


@pytest.mark.parametrize("mode", ["replace", "drop"])
@pytest.mark.parametrize(("length", "tried"), [(LENGTH, MAX_TRIES), (4, 3), (1, 0)])
def test_where_all_are_bad_the_tries_are_limited(mode: str, length: int, tried: int) -> None:
    dataset = Damaged(length, dict.fromkeys(range(length), lambda: ValueError("no label")))
    maker = maker_of(dataset, mode)
    request = requests_of(length, 3)[0]
    first = request.index_list()[0]
    with pytest.raises(BadSample) as caught:
        maker(request, never_stopped)
    assert f"ValueError: no label; and {tried} other samples of the order" in str(caught.value)
    assert (caught.value.index, caught.value.position, caught.value.epoch) == (first, 0, EPOCH)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_replacements_that_are_bad_themselves_are_recorded() -> None:
    errors = dict.fromkeys(range(0, LENGTH, 2), ValueError)
    dataset = Damaged(LENGTH, errors)
    policy = policy_for(dataset, "replace")
    more = 0
    for request in requests_of(LENGTH, 5):
        batch, found = run(maker_of(dataset, policy), request)
        assert all(index % 2 for index in batch["index"].tolist())
        bad = [index for index in request.index_list() if index in errors]
        assert len(found) >= len(bad)
        assert_found_is_of_the_order(found, LENGTH)
        more += len(found) - len(bad)
    assert more


def test_a_subset_replaces_from_itself() -> None:
    """No sample outside the order ever appears."""
    whole = Damaged(100, {10: ValueError, 12: ValueError})
    subset = Subset(whole, range(10, 20))
    maker = maker_of(subset, "replace")
    for request in requests_of(10, 5):
        batch, found = run(maker, request)
        assert set(batch["index"].tolist()) <= set(range(10, 20)) - {10, 12}
        assert {bad.index for bad in found} <= {0, 2}


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_under_a_users_sampler_another_sample_of_the_batch_takes_the_place(mode: str) -> None:
    """Names as indices, one of which comes twice."""
    request = request_of(["a", "b", "c", "b", "e"], start=10)
    policy = BadSamplePolicy(mode=mode)
    batch, found = run(maker_of(Named("b"), policy), request)
    assert [(bad.index, bad.position) for bad in found] == [("b", 11), ("b", 13)]
    assert all(bad.always and bad.epoch == EPOCH for bad in found)
    if mode == "drop":
        assert batch["name"] == ["a", "c", "e"]
        return
    others = [replacement_of(policy, request, number, {"b"})[1] for number in (1, 3)]
    assert batch["name"] == ["a", others[0], "c", others[1], "e"]
    sound, _ = run(maker_of(Named(), BadSamplePolicy(mode=mode)), request)
    assert_same(batch["torch"], sound["torch"])  # each place keeps its draws
    record = BadSamples()
    record.add(found)
    assert not record.known
    assert BadSamples.from_text(record.to_text()) == record


def test_a_sample_is_not_tried_in_its_own_place() -> None:
    """Under a user's sampler it may come at several positions."""
    batch, found = run(
        maker_of(Named("b"), BadSamplePolicy(mode="replace")), request_of([*"bbbbbb", "a"])
    )
    assert batch["name"] == ["a"] * 7
    assert [bad.position for bad in found] == list(range(6))


def test_a_batch_without_another_sample_names_its_lack() -> None:
    with pytest.raises(BadSample, match="ValueError: no such name; and 0 other samples of the b"):
        maker_of(Named("b"), BadSamplePolicy(mode="drop"))(request_of(["b", "b"]), never_stopped)


def test_indices_that_cannot_be_hashed_or_compared_do_no_harm() -> None:
    class Slices(Dataset[Any]):
        def __getitem__(self, asked: Any) -> Any:
            if int(np.sum(asked)) == 5:
                raise ValueError("five")
            return int(np.sum(asked))

    for indices in ([[1, 1], [2, 3], [4, 4]], [np.array([1, 1]), np.array([2, 3]), [8]]):
        policy = BadSamplePolicy(mode="replace")
        batch, found = run(maker_of(Slices(), policy), request_of(indices))
        assert batch.tolist() in ([2, 2, 8], [2, 8, 8])
        assert [type(bad.index) for bad in found] == [str]


def test_the_generators_are_the_callers_again_only_around_the_executor() -> None:
    """The next sample draws as if nothing bad had come before it."""
    errors = {request_of(list(range(9))).index_list()[4]: ValueError}
    request = request_of(list(range(9)))
    drawn, _ = run(maker_of(Damaged(9, errors), BadSamplePolicy(mode="drop")), request)
    sound, _ = run(maker_of(Damaged(9)), request)
    kept = [i for i in range(9) if i != 4]
    assert_same(drawn["torch"], sound["torch"][kept])
    assert_same(drawn["random"], sound["random"][kept])
