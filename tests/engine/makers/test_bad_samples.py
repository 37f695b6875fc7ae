"""Bad samples in each maker: properties that no run of a loader shows."""

from __future__ import annotations

import pickle
import random
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, default_collate, default_convert

from stateful_gpu_loader import BadSample, FolderSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.makers.bad_sample_policy import MAX_TRIES, BadSamplePolicy
from stateful_gpu_loader.engine.pipeline import Stopped, never_stopped
from stateful_gpu_loader.engine.workers.inline import InlinePipeline
from stateful_gpu_loader.state.bad_samples import BadSamples
from tests.damaged import (
    BAD,
    EPOCH,
    OF_BYTES,
    RECIPES,
    SYSTEM_ERROR,
    Counting,
    Damaged,
    DamagedBatches,
    FailsByDraw,
    InMemory,
    N,
    Named,
    Redirected,
    Wrong,
    assert_found_is_of_the_order,
    assert_same,
    callable_maker,
    image_maker,
    modes,
    policy_for,
    replacement_of,
    request_of,
    requests_of,
    run,
    sample_maker,
    write_photos,
)
from tests.generators import generators
from tests.map_datasets import OwnGenerator, add_noise

kinds = pytest.mark.parametrize("kind", [Damaged, DamagedBatches])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))[1]


def as_it_is(samples: list[Any]) -> list[Any]:
    return samples


def keyed_mix(samples: list[dict[str, Any]]) -> Any:
    """A collate function that draws."""
    return [default_collate(samples), random.random(), torch.rand(())]


PLAIN: dict[str, Any] = {
    "plain": lambda folder, mode, **known: _plain(Damaged(N, OF_BYTES), mode, **known),
    "native": lambda folder, mode, **known: _plain(DamagedBatches(N, OF_BYTES), mode, **known),
    "by draw": lambda folder, mode, **known: _plain(FailsByDraw(N), mode, **known),
}
IMAGES: dict[str, Any] = {
    "recipes": image_maker,
    "recipes, own collate": partial(image_maker, collate_fn=as_it_is),
    "callable": callable_maker,
}


def _plain(dataset: Any, mode: str, **known: Any) -> Any:
    policy = policy_for(dataset, mode, **known)
    return sample_maker(dataset, policy, transform=add_noise, collate_fn=keyed_mix)


def _of_images(make: Any, folder: Path, mode: str, **known: Any) -> Any:
    source = FolderSource(folder)
    return make(source, policy_for(source, mode, **known))


ANY = {**PLAIN, **{name: partial(_of_images, make) for name, make in IMAGES.items()}}


@modes
@pytest.mark.parametrize(
    "name", [*PLAIN, *(pytest.param(name, marks=pytest.mark.fuzz) for name in IMAGES)]
)
def test_a_batch_depends_on_nothing_but_its_request(photos: Path, name: str, mode: str) -> None:
    """Earlier requests, the worker, the stage and known bad samples make no difference."""
    requests = [r for epoch in range(3) for r in requests_of(N, 4, epoch=epoch)]
    make = partial(ANY[name], photos, mode)
    alone = [run(make(), request) for request in requests]
    in_turn, backwards = make(), make()
    if name in PLAIN:
        backwards = pickle.loads(pickle.dumps(backwards))  # as when it is sent to a worker
    assert_same([run(in_turn, request) for request in requests], alone)
    assert_same([run(backwards, request) for request in requests[::-1]], alone[::-1])
    record = BadSamples()
    for _, found in alone:
        record.add(found)
    assert record.total > 4
    some = {index: record.known[index] for index in (4, 13) if index in record.known}
    for known in (dict(record.known), some):
        resumed = make(known=known)
        assert_same([run(resumed, request) for request in requests], alone)


def test_threads_share_a_maker(photos: Path) -> None:
    """With recipes that use no global generator."""
    before = generators()
    source = FolderSource(photos)
    requests = [r for epoch in range(4) for r in requests_of(N, 4, epoch=epoch)]
    wanted = [run(image_maker(source, "drop"), request) for request in requests]
    shared = image_maker(source, "drop")
    with ThreadPoolExecutor(3) as threads:
        assert_same(list(threads.map(partial(run, shared), requests)), wanted)
    assert generators() == before


@pytest.mark.parametrize("name", ANY)
def test_the_generators_are_put_back_around_a_maker(photos: Path, name: str) -> None:
    """In the user's thread, with and without bad samples."""
    pipeline = InlinePipeline(ANY[name](photos, "drop"))
    pipeline.start(iter(requests_of(N, 11)))
    before = generators()
    for _ in range(2):
        next(pipeline)
        assert generators() == before


# Replacements.


@kinds
def test_a_batch_left_empty_keeps_a_replacement_of_its_first(kind: type[Damaged]) -> None:
    request = requests_of(N, 5)[1]
    errors = dict.fromkeys(request.index_list(), ValueError)
    dataset = kind(N, errors)
    policy = policy_for(dataset, "drop")
    batch, found = run(sample_maker(dataset, policy), request)
    (index,) = batch["index"].tolist()
    assert index == replacement_of(policy, request, 0, set(errors))[1]
    assert {bad.index for bad in found} == set(errors)
    replaced, _ = run(sample_maker(dataset, "replace"), request)
    assert_same(batch["random"][0], replaced["random"][0])


def test_dropping_from_native_batches_asks_for_the_sound_ones_alone() -> None:
    """All at once and again, because samples may share draws. Known bad samples are not requested.

    Each position keeps its transform's draws.
    """
    asked: list[list[int]] = []

    class Asked(DamagedBatches):
        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            asked.append(indices)
            return super().__getitems__(indices)

    request = request_of([1, 0, 2, 4, 3])
    maker = sample_maker(Asked(N, OF_BYTES), "drop", transform=add_noise)
    wanted, _ = run(sample_maker(DamagedBatches(N)), request_of([0, 2, 3]))
    whole, _ = run(sample_maker(DamagedBatches(N), transform=add_noise), request)
    wanted |= {key: whole[key][[1, 2, 4]] for key in ("noise", "choice")}
    for alone in ([1, 0, 2, 4, 3], [0, 2, 3]):
        batch, found = run(maker, request)
        assert_same(batch, wanted)
        assert [bad.index for bad in found] == [1, 4]
        first = [alone] if 1 in alone else []
        assert asked == [*first, *([index] for index in alone), [0, 2, 3]]
        asked.clear()


def test_without_batches_drop_is_a_replacement(photos: Path) -> None:
    """No batch is smaller than one sample."""
    alone: dict[str, Any] = {"collate_fn": default_convert, "batched": False}
    source = Redirected(FolderSource(photos))
    for make, dataset in ((sample_maker, Damaged(N, OF_BYTES)), (image_maker, source)):
        dropping, replacing = make(dataset, "drop", **alone), make(dataset, "replace", **alone)
        for request in requests_of(N, 1):
            sample, found = run(dropping, request)
            assert_same((sample, found), run(replacing, request))
            assert bool(found) == (request.index_list()[0] in BAD)
            index = sample["index"] if isinstance(sample, dict) else sample[1]
            assert index not in BAD


@pytest.mark.parametrize("known", [(), (0, 1), (0, 1, 2, 3)])
def test_an_image_batch_left_empty_keeps_a_replacement(known: tuple[int, ...]) -> None:
    """At whichever stage the last sample is lost; here all but two indices are undecodable."""
    source = InMemory([(20, 20)] * 4 + [(40, 30)] * 2, broken={0, 1, 2, 3})
    policy = policy_for(source, "drop", known=dict.fromkeys(known, "undecodable"))
    for recipes in (RECIPES, []):  # without recipes, the replacement decides the batch's size
        for request in requests_of(6, 1):
            (images, targets), _ = run(image_maker(source, policy, recipes=recipes), request)
            index = int(targets)
            assert index in (4, 5)
            wrong = Wrong(copies={request.index_list()[0]: index})
            wanted = image_maker(Redirected(source, wrong), recipes=recipes)
            assert_same([images, targets], run(wanted, request)[0])


@modes
@pytest.mark.parametrize(("length", "tried"), [(N, MAX_TRIES), (4, 3), (1, 0)])
def test_where_all_are_bad_the_tries_are_limited(mode: str, length: int, tried: int) -> None:
    dataset = Damaged(length, dict.fromkeys(range(length), lambda: ValueError("no label")))
    request = requests_of(length, 3)[0]
    with pytest.raises(BadSample) as caught:
        sample_maker(dataset, mode)(request, never_stopped)
    assert re.search(rf"ValueError: no label.*\b{tried} other", str(caught.value))
    first = request.index_list()[0]
    assert (caught.value.index, caught.value.position, caught.value.epoch) == (first, 0, EPOCH)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_replacements_that_are_bad_themselves_are_recorded() -> None:
    errors = dict.fromkeys(range(0, N, 2), ValueError)
    maker = sample_maker(Damaged(N, errors), "replace")
    more = 0
    for request in requests_of(N, 5):
        batch, found = run(maker, request)
        assert all(index % 2 for index in batch["index"].tolist())
        bad = [index for index in request.index_list() if index in errors]
        assert len(found) >= len(bad)
        assert_found_is_of_the_order(found, N)
        more += len(found) - len(bad)
    assert more


def test_a_subset_replaces_from_itself() -> None:
    """No sample comes from outside the order."""
    subset = Subset(Damaged(100, {10: ValueError, 12: ValueError}), range(10, 20))
    for request in requests_of(10, 5):
        batch, found = run(sample_maker(subset, "replace"), request)
        assert set(batch["index"].tolist()) <= set(range(10, 20)) - {10, 12}
        assert {bad.index for bad in found} <= {0, 2}


@modes
def test_under_a_users_sampler_another_sample_of_the_batch_takes_the_place(mode: str) -> None:
    """The indices are names, one of which comes twice."""
    request = request_of(["a", "b", "c", "b", "e"], start=10)
    policy = BadSamplePolicy(mode=mode)
    batch, found = run(sample_maker(Named("b"), policy), request)
    assert [(bad.index, bad.position) for bad in found] == [("b", 11), ("b", 13)]
    assert all(bad.always and bad.epoch == EPOCH for bad in found)
    if mode == "drop":
        assert batch["name"] == ["a", "c", "e"]
        return
    others = [replacement_of(policy, request, number, {"b"})[1] for number in (1, 3)]
    assert batch["name"] == ["a", others[0], "c", others[1], "e"]
    sound, _ = run(sample_maker(Named(), BadSamplePolicy(mode=mode)), request)
    assert_same(batch["torch"], sound["torch"])  # each position keeps its draws
    record = BadSamples()
    record.add(found)
    assert not record.known
    assert BadSamples.from_text(record.to_text()) == record


def test_a_sample_is_not_tried_in_its_own_place() -> None:
    """A user's sampler may yield it at several positions."""
    policy = BadSamplePolicy(mode="replace")
    batch, found = run(sample_maker(Named("b"), policy), request_of([*"bbbbbb", "a"]))
    assert batch["name"] == ["a"] * 7
    assert [bad.position for bad in found] == list(range(6))


@modes
def test_a_batch_without_another_sample_is_named(mode: str) -> None:
    maker = sample_maker(Named("b"), BadSamplePolicy(mode=mode))
    lack = r"ValueError: no such name.*\b0 other"
    with pytest.raises(BadSample, match=lack) as caught:
        maker(request_of(["b", "b"], start=10), never_stopped)
    assert (caught.value.index, caught.value.position) == ("b", 10)


def test_indices_that_cannot_be_hashed_or_compared_do_no_harm() -> None:
    class Slices(Dataset[Any]):
        def __getitem__(self, asked: Any) -> Any:
            if int(np.sum(asked)) == 5:
                raise ValueError("five")
            return int(np.sum(asked))

    for indices in ([[1, 1], [2, 3], [4, 4]], [np.array([1, 1]), np.array([2, 3]), [8]]):
        policy = BadSamplePolicy(mode="replace")
        batch, found = run(sample_maker(Slices(), policy), request_of(indices))
        assert batch.tolist() in ([2, 2, 8], [2, 8, 8])
        assert [type(bad.index) for bad in found] == [str]


# Errors that depend on draws.


class Draws(Dataset[int]):
    def __init__(self, draw: Callable[[], Any], error: Callable[[], Exception]) -> None:
        self.draw = draw
        self.error = error

    def __len__(self) -> int:
        return 9

    def __getitem__(self, asked: int) -> int:
        if asked == 4:
            self.draw()
            raise self.error()
        return asked


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.rand(()), lambda: random.seed(5)]
)
def test_draws_from_any_generator_count(draw: Callable[[], Any]) -> None:
    """Except for a BadSample, which blames the content."""

    def kinds_of(draw: Callable[[], Any], error: Any = ValueError) -> set[bool]:
        maker = sample_maker(Draws(draw, error), "replace")
        return {bad.always for r in requests_of(9, 4) for bad in run(maker, r)[1]}

    assert kinds_of(draw) == {False}
    assert kinds_of(lambda: torch.zeros(3)) == {True}
    assert kinds_of(draw, OF_BYTES[7]) == {True}


def test_draws_that_fail_for_every_sample_make_no_sample_bad() -> None:
    """A replacement has the bad sample's draws, so the failure is recognised and raised."""

    class Unlucky(Damaged):
        def __getitem__(self, index: int) -> dict[str, Any]:
            sample = super().__getitem__(index)
            if random.random() < 0.5:
                raise ValueError("the crop is empty")
            return sample

    with pytest.raises(BadSample, match=r"the crop is empty.* 8 "):
        sample_maker(Unlucky(N), "replace")(requests_of(N, N)[0], never_stopped)


def test_a_failure_with_a_private_generator_may_not_recur() -> None:
    class Private(OwnGenerator):
        def __getitem__(self, index: int) -> tuple[int, float]:
            drawn = super().__getitem__(index)
            if drawn[1] < 0.5 and index % 3 == 0:
                raise ValueError("unlucky")
            return drawn

    maker = sample_maker(Private(30), "replace")
    fresh = [run(sample_maker(Private(30), "replace"), r) for r in requests_of(30, 5)]
    assert_same([run(maker, request) for request in requests_of(30, 5)], fresh)
    assert {bad.always for _, found in fresh for bad in found} == {False}


# Retries, and raised errors.


def test_a_system_error_in_a_batch_with_replacements_is_retried() -> None:
    class FlakyLater(DamagedBatches):
        calls = 0

        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            self.calls += len(indices) > 1
            if self.calls in (2, 3):
                raise SYSTEM_ERROR()
            return super().__getitems__(indices)

    request = requests_of(9, 4)[0]
    errors = {request.index_list()[1]: ValueError}
    batch, _ = run(sample_maker(FlakyLater(9, errors), "drop"), request)
    assert_same(batch, run(sample_maker(DamagedBatches(9, errors), "drop"), request)[0])


def test_a_replacement_that_the_system_fails_to_read_is_raised_too() -> None:
    """Otherwise the stream would depend on failures of the storage."""
    request = requests_of(N, 5)[0]
    dataset = Damaged(N)
    policy = policy_for(dataset, "replace")
    _, candidate = replacement_of(policy, request, 0, set())
    dataset.errors = {request.index_list()[0]: ValueError, candidate: SYSTEM_ERROR}
    with pytest.raises(OSError, match="Input/output error"):
        sample_maker(dataset, policy)(request, never_stopped)


@pytest.mark.parametrize("error", [TypeError, Stopped])
@kinds
def test_bugs_are_raised_at_once(kind: type[Damaged], error: type[Exception]) -> None:
    dataset = kind(4, {2: error})
    (request,) = requests_of(4, 4)
    with pytest.raises(error) as caught:
        sample_maker(dataset, "drop")(request, never_stopped)
    assert dataset.reads[2] == 1
    if kind is Damaged and error is not Stopped and sys.version_info >= (3, 11):
        place = f"in dataset index 2 (position {request.index_list().index(2)}"
        assert place in str(caught.value.__notes__)


@pytest.mark.parametrize("name", ["plain", "native batches", "images"])
def test_an_abandoned_request_is_left_at_once(photos: Path, name: str) -> None:
    calls, decoder = [], Counting()

    def check() -> None:
        calls.append(1)
        if (decoder.calls if name == "images" else len(calls)) == 2:
            raise Stopped

    maker: Any = {
        "plain": sample_maker(Damaged(N, OF_BYTES), "drop"),
        "native batches": sample_maker(DamagedBatches(N, OF_BYTES), "drop"),
        "images": image_maker(FolderSource(photos), "drop", decoder=decoder),
    }[name]
    with pytest.raises(Stopped):
        maker(request_of([1, 0, 2, 3, 5]), check)
    assert decoder.calls == (2 if name == "images" else 0)
    assert name == "images" or len(calls) == 2


def refuses(sample: Any) -> Any:
    if not isinstance(sample, dict) or sample["index"] in (3, 8):
        raise ValueError("a box outside of the image")
    return sample


@kinds
def test_a_transform_that_fails_makes_its_sample_bad(kind: type[Damaged]) -> None:
    maker = sample_maker(kind(N), "drop", transform=refuses)
    for request in requests_of(N, 5):
        batch, found = run(maker, request)
        kept = [index for index in request.index_list() if index not in (3, 8)]
        assert batch["index"].tolist() == kept
        assert {bad.index for bad in found} == set(request.index_list()) & {3, 8}


class AllOrNothing(DamagedBatches):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        if len(indices) > 1:
            raise ValueError("too much at once")
        return super().__getitems__(indices)


@modes
def test_errors_not_caused_by_a_sample_are_raised(photos: Path, mode: str) -> None:
    """Errors of a batch of sound samples, of a collate function, and of an image's transform."""
    source = FolderSource(photos)
    for maker, message in (
        (sample_maker(AllOrNothing(9), mode), "too much at once"),
        (sample_maker(Damaged(9, {2: ValueError}), mode, collate_fn=refuses), "a box outside"),
        (image_maker(source, mode, collate_fn=refuses), "a box outside"),
        (callable_maker(source, mode, refuses), "a box outside"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            maker(request_of([0, 2, 3]), never_stopped)
        assert not isinstance(caught.value, BadSample)


# Images.


@modes
def test_one_bad_image_costs_no_second_decoding_of_the_others(photos: Path, mode: str) -> None:
    source = Redirected(FolderSource(photos))
    decoder = Counting()
    maker = image_maker(source, mode, decoder=decoder)
    for request in requests_of(N, 7):
        decoder.calls = 0
        source.reads.clear()
        _, found = run(maker, request)
        at_decoding = sum(bad.index in (6, 13) for bad in found)
        size = len(request.index_list())
        replaced = sum(index in BAD for index in request.index_list())
        assert decoder.calls <= size - (mode == "drop") * replaced + at_decoding
        assert sum(source.reads.values()) <= size + len(found)


@pytest.mark.parametrize("known", [(), (1,), (1, 3)])
@modes
@pytest.mark.parametrize("recipes", [[], [T.RandomCrop(24)]])
def test_a_huge_size_in_a_damaged_header_makes_a_bad_sample(
    recipes: list[T.Recipe], mode: str, known: tuple[int, ...]
) -> None:
    """The recipes would refuse that size, unless the sample is already known to be bad."""
    sizes = [(32, 32), (16, 60), (32, 32), (20, 20), (32, 32), (32, 32), (32, 32)]
    source = InMemory(sizes, broken={1, 3})
    (request,) = requests_of(7, 7)
    policy = policy_for(source, mode, known=dict.fromkeys(known, "undecodable"))
    (images, targets), found = run(image_maker(source, policy, recipes=recipes), request)
    indices = targets.tolist()
    assert {bad.index for bad in found} == {1, 3}
    assert len(images) == len(indices) == (7 if mode == "replace" else 5)
    if mode == "drop":
        assert indices == [index for index in request.index_list() if index not in (1, 3)]
        return
    wrong = Wrong(copies=dict(zip(request.index_list(), indices, strict=True)))
    redirected = image_maker(Redirected(source, wrong), recipes=recipes)
    assert_same([images, targets], run(redirected, request)[0])


@modes
def test_sound_images_of_different_sizes_are_refused(mode: str) -> None:
    source = InMemory([(32, 32), (32, 32), (32, 40), (32, 32)], broken={1})
    (request,) = requests_of(4, 4)
    with pytest.raises(ValueError, match="differ") as caught:
        image_maker(source, mode, recipes=[])(request, never_stopped)
    assert not isinstance(caught.value, BadSample)
    with pytest.raises(ValueError, match=r"RandomCrop .*36x36"):
        image_maker(source, mode, recipes=[T.RandomCrop(36)])(request, never_stopped)


def test_a_replacement_of_another_size_is_refused_by_name() -> None:
    """When the recipes fix no size, and only the damaged image had the batch's size."""
    source = InMemory([(32, 32), (40, 40)], broken={0})
    (images, _), _ = run(image_maker(source, "replace", recipes=[]), request_of([0, 1]))
    assert images.shape == (2, 3, 40, 40)
    source = InMemory([(32, 32), (32, 32), (40, 40)], broken={0})
    own = BadSamplePolicy(mode="replace")
    with pytest.raises(ValueError, match="differ"):
        image_maker(source, own, recipes=[])(request_of([0, 1, 2]), never_stopped)


def test_images_left_out_leave_a_batch_like_any_other(photos: Path) -> None:
    """Its memory layout is that of a batch of as many images."""
    source = FolderSource(photos)
    for request in requests_of(N, 6):
        (images, _), _ = run(image_maker(source, "drop"), request)
        assert images.is_contiguous()
        assert not images.is_inference()
