"""Bad images of a source, really damaged: what batches hold in their place (G4, laws 1 and 6)."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import default_convert

from stateful_gpu_loader import BadSample, FolderSource
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.pipeline import never_stopped
from stateful_gpu_loader.state.bad_samples import BadSamples
from tests.engine.makers.damaged import (
    assert_found_is_of_the_order,
    assert_same,
    policy_for,
    replacement_of,
    request_of,
    requests_of,
    run,
)
from tests.engine.makers.damaged_images import (
    DAMAGE,
    MAKERS,
    NUM_PHOTOS,
    RECIPES,
    Counting,
    InMemory,
    Redirected,
    image_maker,
    write_damaged_photos,
)
from tests.generators import generators


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged_photos(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_replaced_image_is_that_of_another_position_under_its_own_key(
    photos: Path, kind: str
) -> None:
    """As if the bad file held the other's bytes: size, draws and pixels, and its target."""
    source = FolderSource(photos)
    assert len(source) == NUM_PHOTOS
    policy = policy_for(source, "replace")
    maker = MAKERS[kind](source, policy)
    met = []
    for request in requests_of(NUM_PHOTOS, 6):
        copies = {
            index: replacement_of(policy, request, number, set(DAMAGE))[1]
            for number, index in enumerate(request.index_list())
            if index in DAMAGE
        }
        wanted, none = run(MAKERS[kind](Redirected(source, copies)), request)
        batch, found = run(maker, request)
        assert none == ()
        assert_same(batch, wanted)
        met += found
    own = [bad for bad in met if bad.epoch == 3]
    assert {bad.index for bad in own} == set(DAMAGE)
    assert all(bad.always for bad in met)
    assert_found_is_of_the_order(tuple(met), NUM_PHOTOS)
    reasons = {bad.index: bad.reason for bad in met}
    assert all(reason.startswith("BadSample: ") for reason in reasons.values())
    assert "photo_002.jpg: " in reasons[2]
    assert "text, not an image" in reasons[5]
    assert "JPEG cannot be decoded" in reasons[6]
    assert "empty: 0 bytes" in reasons[11]


@pytest.mark.parametrize("kind", MAKERS)
def test_dropped_images_leave_the_others_as_they_are(photos: Path, kind: str) -> None:
    """And the batch is made as one of that many images is."""
    source = FolderSource(photos)
    sound = next(i for i in range(NUM_PHOTOS) if i not in DAMAGE)
    filled = Redirected(source, dict.fromkeys(DAMAGE, sound))
    maker = MAKERS[kind](source, policy_for(source, "drop"))
    for request in requests_of(NUM_PHOTOS, 6):
        whole, _ = run(MAKERS[kind](filled), request)
        batch, found = run(maker, request)
        indices = request.index_list()
        kept = [i for i, index in enumerate(indices) if index not in DAMAGE]
        assert [bad.index for bad in found] == [i for i in indices if i in DAMAGE]
        if kind == "recipes, own collate":
            assert_same(batch, [whole[i] for i in kept])
            continue
        images, targets = batch
        assert_same([images, targets], [whole[0][kept], whole[1][kept]])
        alike = whole[0][: len(kept)].contiguous()
        assert images.stride() == alike.stride()
        assert images.is_contiguous()
        assert not images.is_inference()


@pytest.mark.fuzz
@pytest.mark.parametrize("mode", ["replace", "drop"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_batch_depends_on_nothing_but_its_request(photos: Path, kind: str, mode: str) -> None:
    """Law 1: whatever was met before, by whatever worker, at whatever stage, and what is known."""
    source = FolderSource(photos)
    requests = [r for epoch in range(3) for r in requests_of(NUM_PHOTOS, 4, epoch=epoch)]

    def make(known: Mapping[int, str] | None = None) -> Any:
        return MAKERS[kind](source, policy_for(source, mode, known=known or {}))

    alone = [run(make(), request) for request in requests]
    in_turn, backwards = make(), make()
    assert_same([run(in_turn, request) for request in requests], alone)
    assert_same([run(backwards, request) for request in requests[::-1]], alone[::-1])
    record = BadSamples()
    for _, found in alone:
        record.add(found)
    assert record.total >= 3 * len(DAMAGE)
    assert set(record.known) == set(DAMAGE)
    resumed = make(record.known)
    assert_same([run(resumed, request) for request in requests], alone)
    half = make({index: record.known[index] for index in (2, 13)})
    assert_same([run(half, request) for request in requests], alone)


def test_threads_share_an_executor(photos: Path) -> None:
    source = FolderSource(photos)
    requests = [r for epoch in range(4) for r in requests_of(NUM_PHOTOS, 4, epoch=epoch)]
    wanted = [run(image_maker(source, "drop"), request) for request in requests]
    shared = image_maker(source, "drop")
    with ThreadPoolExecutor(3) as threads:
        assert_same(list(threads.map(partial(run, shared), requests)), wanted)


def test_the_policy_travels_to_spawned_workers(photos: Path) -> None:
    source = FolderSource(photos)
    policy = pickle.loads(pickle.dumps(policy_for(source, "replace", known={2: "truncated"})))
    maker = image_maker(source, policy)
    for request in requests_of(NUM_PHOTOS, 6):
        assert_same(run(maker, request)[0], run(image_maker(source, "replace"), request)[0])


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_one_bad_image_costs_no_second_decoding_of_the_others(photos: Path, mode: str) -> None:
    source = Redirected(FolderSource(photos))
    decoder = Counting()
    maker = image_maker(source, mode, decoder=decoder)
    for request in requests_of(NUM_PHOTOS, 7):
        decoder.calls = 0
        source.reads.clear()
        _, found = run(maker, request)
        at_decoding = sum(bad.index in (6, 13) for bad in found)
        replaced = sum(index in DAMAGE for index in request.index_list())
        made = 7 if mode == "replace" else 7 - replaced
        assert decoder.calls <= made + at_decoding
        assert sum(source.reads.values()) <= 7 + len(found)


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_a_known_bad_image_is_not_read_again(photos: Path, mode: str) -> None:
    source = Redirected(FolderSource(photos))
    maker = image_maker(source, mode)
    requests = requests_of(NUM_PHOTOS, 6) + requests_of(NUM_PHOTOS, 6, epoch=4)
    record, again = BadSamples(), BadSamples()
    for request in requests:
        record.add(run(maker, request)[1])
    assert {source.reads[index] for index in DAMAGE} == {1}
    source.reads.clear()
    known = BadSamples.from_text(record.to_text()).known
    resumed = image_maker(source, policy_for(source, mode, known=known))
    for request in requests:
        again.add(run(resumed, request)[1])
    assert not set(source.reads) & set(DAMAGE)
    assert again == record


@pytest.mark.parametrize("known", [(), (0, 1), (0, 1, 2, 3)])
def test_an_image_batch_left_empty_keeps_a_replacement(known: tuple[int, ...]) -> None:
    """At whatever stage the last one is lost; here all but two indices are undecodable."""
    source = InMemory([(20, 20)] * 4 + [(40, 30)] * 2, broken={0, 1, 2, 3})
    policy = policy_for(source, "drop", known=dict.fromkeys(known, "undecodable"))
    for recipes in (RECIPES, []):  # without recipes, the batch takes the replacement's size
        for request in requests_of(6, 1):
            (images, targets), _ = run(image_maker(source, policy, recipes=recipes), request)
            index = int(targets["index"])
            assert index in (4, 5)
            copies = {request.index_list()[0]: index}
            wanted = image_maker(Redirected(source, copies), recipes=recipes)
            assert_same([images, targets], run(wanted, request)[0])


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_where_all_images_are_bad_the_tries_are_limited(mode: str) -> None:
    source = InMemory([(20, 20)] * 12, broken=set(range(12)))
    with pytest.raises(BadSample, match=r"JPEG cannot be decoded.*and 8 other samples of the ord"):
        image_maker(source, mode)(requests_of(12, 4)[0], never_stopped)


def test_without_batches_a_drop_is_a_replacement(photos: Path) -> None:
    source = FolderSource(photos)
    kinds: dict[str, Any] = {"collate_fn": default_convert, "batched": False}
    dropping = image_maker(source, "drop", **kinds)
    replacing = image_maker(source, "replace", **kinds)
    for request in requests_of(NUM_PHOTOS, 1):
        image, _ = run(dropping, request)[0]
        assert image.shape == (3, 24, 24)
        assert_same(run(dropping, request), run(replacing, request))


def test_under_a_users_sampler_another_image_of_the_batch_takes_the_place(photos: Path) -> None:
    source = FolderSource(photos)
    request = request_of([0, 2, 6, 20], start=40)
    policy = BadSamplePolicy(mode="replace")
    batch, found = run(image_maker(source, policy), request)
    assert {(bad.index, bad.position) for bad in found} == {(2, 41), (6, 42)}
    copies = {
        index: replacement_of(policy, request, number, set(DAMAGE))[1]
        for number, index in ((1, 2), (2, 6))
    }
    assert set(copies.values()) <= {0, 20}
    wanted, _ = run(image_maker(Redirected(source, copies)), request)
    assert_same(batch, wanted)


def test_recipes_touch_no_global_generator(photos: Path) -> None:
    """Threads share them."""
    before = generators()
    source = FolderSource(photos)
    for request in requests_of(NUM_PHOTOS, 6):
        run(image_maker(source, "replace"), request)
    assert generators() == before
