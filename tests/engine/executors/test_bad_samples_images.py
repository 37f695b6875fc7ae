"""Bad images of a source: real damaged files, replaced or left out, exactly (G4, laws 1 and 6)."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, default_convert

from stateful_gpu_loader import BadSample, FolderSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.bad_samples import BadSamples
from stateful_gpu_loader.decoders import Decoder, ImageHeader, make_decoder, probe
from stateful_gpu_loader.engine.executors.images import CallableExecutor, RecipeExecutor
from stateful_gpu_loader.engine.executors.memory import BatchMemory
from stateful_gpu_loader.engine.executors.policy import BadSamplePolicy
from stateful_gpu_loader.engine.pipeline import Stopped, never_stopped
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.samplers import ShuffledOrder
from stateful_gpu_loader.sources import Source
from tests.engine.executors.damaged import (
    assert_found_is_of_the_order,
    assert_same,
    policy_for,
    replacement_of,
    request_of,
    requests_of,
    run,
)
from tests.images import encode, photograph, write_photo_folder

RECIPES = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]


def undecodable(good: bytes) -> bytes:
    """A sound header and a sound end, and between them what no decoder reads."""
    return good[:-400] + b"\xff\xc0" * 199 + good[-2:]


DAMAGE: dict[int, Callable[[bytes], bytes]] = {
    2: lambda good: good[: len(good) // 2],
    5: lambda good: b"this is no photograph\n" * 20,
    6: undecodable,
    11: lambda good: b"",
    13: undecodable,
}
LENGTH = 21


class Redirected(Source):
    """Another source in which some indices hold the samples of others; counts what is read."""

    def __init__(self, source: Source, copies: Mapping[int, int] | None = None) -> None:
        self.source = source
        self.copies = copies or {}
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> EncodedSample:
        self.reads[index] += 1
        return self.source.read(self.copies.get(index, index))

    def fingerprint(self) -> str:
        return "redirected"


class InMemory(Source):
    """Images of given sizes, some of which cannot be decoded."""

    def __init__(self, sizes: list[tuple[int, int]], broken: set[int]) -> None:
        self.files = []
        for index, (height, width) in enumerate(sizes):
            photo = photograph("coffee").rotate(7 * index).resize((width, height))
            data = encode(photo, quality=95)
            if index in broken:
                good = bytes(data.numpy())
                data = torch.frombuffer(bytearray(undecodable(good)), dtype=torch.uint8)
            self.files.append(data)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> EncodedSample:
        return EncodedSample(self.files[index], {"index": torch.tensor(index)}, f"{index}.jpg")

    def fingerprint(self) -> str:
        return "in memory"


class Counting(Decoder):
    """Counts what it decodes."""

    family = "counting"

    def __init__(self) -> None:
        self.decoder = make_decoder("torchvision")
        self.calls = 0

    def version(self) -> str:
        return "1"

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        self.calls += 1
        return self.decoder.decode(data, header)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good files, and with damaged ones among them."""
    root = tmp_path_factory.mktemp("photos")
    files = write_photo_folder(root, num_classes=3, per_class=7)
    for index, damage in DAMAGE.items():
        files[index].write_bytes(damage(files[index].read_bytes()))
    return root


def recipe_executor(
    source: Source,
    policy: BadSamplePolicy | str | None = None,
    *,
    recipes: list[T.Recipe] = RECIPES,
    collate_fn: Callable[[Any], Any] = default_collate,
    batched: bool = True,
    decoder: Decoder | None = None,
) -> RecipeExecutor:
    """An executor as a loader makes it."""
    if isinstance(policy, str):
        policy = policy_for(source, policy)
    return RecipeExecutor(
        source,
        decoder=decoder or make_decoder("torchvision"),
        recipes=T.Compose(recipes),
        collate_fn=collate_fn,
        batched=batched,
        allocate=BatchMemory(2).empty,
        policy=policy,
    )


def callable_executor(
    source: Source, policy: BadSamplePolicy | None = None, transform: Any = None
) -> CallableExecutor:
    """The same, with a callable of the user's that draws."""
    return CallableExecutor(
        source,
        decoder=make_decoder("torchvision"),
        transform=transform or noisy_corner,
        collate_fn=default_collate,
        batched=True,
        policy=policy,
    )


def noisy_corner(image: torch.Tensor) -> torch.Tensor:
    return image[:, :8, :8] + torch.rand(3, 8, 8)


def identity(samples: list[Any]) -> list[Any]:
    return samples


MAKERS: dict[str, Any] = {
    "recipes": recipe_executor,
    "recipes, own collate": partial(recipe_executor, collate_fn=identity),
    "callable": callable_executor,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_replaced_image_is_that_of_another_position_under_its_own_key(
    photos: Path, maker: str
) -> None:
    """As if the bad file held the other's bytes: size, draws and pixels, and its target."""
    source = FolderSource(photos)
    assert len(source) == LENGTH
    policy = policy_for(source, "replace")
    executor = MAKERS[maker](source, policy)
    met = []
    for request in requests_of(LENGTH, 6):
        copies = {
            index: replacement_of(policy, request, number, set(DAMAGE))[1]
            for number, index in enumerate(request.index_list())
            if index in DAMAGE
        }
        wanted, none = run(MAKERS[maker](Redirected(source, copies)), request)
        batch, found = run(executor, request)
        assert none == ()
        assert_same(batch, wanted)
        met += found
    own = [bad for bad in met if bad.epoch == 3]
    assert {bad.index for bad in own} == set(DAMAGE)
    assert all(bad.always for bad in met)
    assert_found_is_of_the_order(tuple(met), LENGTH)
    reasons = {bad.index: bad.reason for bad in met}
    assert all(reason.startswith("BadSample: ") for reason in reasons.values())
    assert "photo_002.jpg: " in reasons[2]
    assert "text, not an image" in reasons[5]
    assert "JPEG cannot be decoded" in reasons[6]
    assert "empty: 0 bytes" in reasons[11]


@pytest.mark.parametrize("maker", MAKERS)
def test_dropped_images_leave_the_others_as_they_are(photos: Path, maker: str) -> None:
    """And the batch is made as one of that many images is."""
    source = FolderSource(photos)
    sound = next(i for i in range(LENGTH) if i not in DAMAGE)
    filled = Redirected(source, dict.fromkeys(DAMAGE, sound))
    executor = MAKERS[maker](source, policy_for(source, "drop"))
    for request in requests_of(LENGTH, 6):
        whole, _ = run(MAKERS[maker](filled), request)
        batch, found = run(executor, request)
        indices = request.index_list()
        kept = [i for i, index in enumerate(indices) if index not in DAMAGE]
        assert [bad.index for bad in found] == [i for i in indices if i in DAMAGE]
        if maker == "recipes, own collate":
            assert_same(batch, [whole[i] for i in kept])
            continue
        images, targets = batch
        assert_same([images, targets], [whole[0][kept], whole[1][kept]])
        alike = whole[0][: len(kept)].contiguous()
        assert images.stride() == alike.stride()
        assert images.is_contiguous()
        assert not images.is_inference()


@pytest.mark.parametrize("mode", ["replace", "drop"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_batch_depends_on_nothing_but_its_request(photos: Path, maker: str, mode: str) -> None:
    """Law 1: whatever was met before, by whatever worker, at whatever stage, and what is known."""
    source = FolderSource(photos)
    requests = [r for epoch in range(3) for r in requests_of(LENGTH, 4, epoch=epoch)]

    def make(known: Mapping[int, str] | None = None) -> Any:
        return MAKERS[maker](source, policy_for(source, mode, known=known or {}))

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
    requests = [r for epoch in range(4) for r in requests_of(LENGTH, 4, epoch=epoch)]
    wanted = [run(recipe_executor(source, "drop"), request) for request in requests]
    shared = recipe_executor(source, "drop")
    with ThreadPoolExecutor(3) as threads:
        assert_same(list(threads.map(partial(run, shared), requests)), wanted)


def test_the_policy_travels_to_spawned_workers(photos: Path) -> None:
    source = FolderSource(photos)
    policy = pickle.loads(pickle.dumps(policy_for(source, "replace", known={2: "truncated"})))
    executor = recipe_executor(source, policy)
    for request in requests_of(LENGTH, 6):
        assert_same(run(executor, request)[0], run(recipe_executor(source, "replace"), request)[0])


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_one_bad_image_costs_no_second_decoding_of_the_others(photos: Path, mode: str) -> None:
    source = Redirected(FolderSource(photos))
    decoder = Counting()
    executor = recipe_executor(source, mode, decoder=decoder)
    for request in requests_of(LENGTH, 7):
        decoder.calls = 0
        source.reads.clear()
        _, found = run(executor, request)
        at_decoding = sum(bad.index in (6, 13) for bad in found)
        replaced = sum(index in DAMAGE for index in request.index_list())
        made = 7 if mode == "replace" else 7 - replaced
        assert decoder.calls <= made + at_decoding
        assert sum(source.reads.values()) <= 7 + len(found)


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_a_known_bad_image_is_not_read_again(photos: Path, mode: str) -> None:
    source = Redirected(FolderSource(photos))
    executor = recipe_executor(source, mode)
    requests = requests_of(LENGTH, 6) + requests_of(LENGTH, 6, epoch=4)
    record, again = BadSamples(), BadSamples()
    for request in requests:
        record.add(run(executor, request)[1])
    assert {source.reads[index] for index in DAMAGE} == {1}
    source.reads.clear()
    known = BadSamples.from_text(record.to_text()).known
    resumed = recipe_executor(source, policy_for(source, mode, known=known))
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
            (images, targets), _ = run(recipe_executor(source, policy, recipes=recipes), request)
            index = int(targets["index"])
            assert index in (4, 5)
            copies = {request.index_list()[0]: index}
            wanted = recipe_executor(Redirected(source, copies), recipes=recipes)
            assert_same([images, targets], run(wanted, request)[0])


@pytest.mark.parametrize("known", [(), (1,), (1, 3)])
@pytest.mark.parametrize("mode", ["replace", "drop"])
@pytest.mark.parametrize("recipes", [[], [T.RandomCrop(24)]])
def test_the_size_that_a_damaged_header_claims_is_no_reason_to_stop(
    recipes: list[T.Recipe], mode: str, known: tuple[int, ...]
) -> None:
    """Law 1: the recipes would refuse it, unless it had been known to be bad."""
    sizes = [(32, 32), (16, 60), (32, 32), (20, 20), (32, 32), (32, 32), (32, 32)]
    source = InMemory(sizes, broken={1, 3})
    record = {index: f"{index}.jpg: undecodable" for index in known}
    (request,) = requests_of(7, 7)
    policy = policy_for(source, mode, known=record)
    (images, targets), found = run(recipe_executor(source, policy, recipes=recipes), request)
    indices = targets["index"].tolist()
    if mode == "drop":
        assert indices == [index for index in request.index_list() if index not in (1, 3)]
    assert {bad.index for bad in found} == {1, 3}
    assert len(images) == len(indices) == (7 if mode == "replace" else 5)
    if mode == "replace":
        copies = dict(zip(request.index_list(), indices, strict=True))
        redirected = recipe_executor(Redirected(source, copies), recipes=recipes)
        assert_same([images, targets], run(redirected, request)[0])


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_sound_images_of_different_sizes_are_refused_as_ever(mode: str) -> None:
    source = InMemory([(32, 32), (32, 32), (32, 40), (32, 32)], broken={1})
    (request,) = requests_of(4, 4)
    with pytest.raises(ValueError, match="images of one batch differ in size") as caught:
        recipe_executor(source, mode, recipes=[])(request, never_stopped)
    assert not isinstance(caught.value, BadSample)
    with pytest.raises(ValueError, match="RandomCrop needs 36x36 pixels"):
        recipe_executor(source, mode, recipes=[T.RandomCrop(36)])(request, never_stopped)


def test_a_replacement_of_another_size_is_refused_by_name() -> None:
    """Where the recipes fix no size, and only the damaged image had the batch's."""
    source = InMemory([(32, 32), (40, 40)], broken={0})
    request = request_of([0, 1], start=0)
    order = ShuffledOrder(range(2))
    policy = BadSamplePolicy(mode="replace", order=order)
    (images, _), _ = run(recipe_executor(source, policy, recipes=[]), request)
    assert images.shape == (2, 3, 40, 40)
    source = InMemory([(32, 32), (32, 32), (40, 40)], broken={0})
    own = BadSamplePolicy(mode="replace")
    with pytest.raises(ValueError, match="images of one batch differ in size"):
        recipe_executor(source, own, recipes=[])(request_of([0, 1, 2]), never_stopped)


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_where_all_images_are_bad_the_tries_are_limited(mode: str) -> None:
    source = InMemory([(20, 20)] * 12, broken=set(range(12)))
    with pytest.raises(BadSample, match=r"JPEG cannot be decoded.*and 8 other samples of the ord"):
        recipe_executor(source, mode)(requests_of(12, 4)[0], never_stopped)


def test_without_batches_a_drop_is_a_replacement(photos: Path) -> None:
    source = FolderSource(photos)
    kinds: dict[str, Any] = {"collate_fn": default_convert, "batched": False}
    dropping = recipe_executor(source, "drop", **kinds)
    replacing = recipe_executor(source, "replace", **kinds)
    for request in requests_of(LENGTH, 1):
        image, _ = run(dropping, request)[0]
        assert image.shape == (3, 24, 24)
        assert_same(run(dropping, request), run(replacing, request))


def test_under_a_users_sampler_another_image_of_the_batch_takes_the_place(photos: Path) -> None:
    source = FolderSource(photos)
    request = request_of([0, 2, 6, 20], start=40)
    policy = BadSamplePolicy(mode="replace")
    batch, found = run(recipe_executor(source, policy), request)
    assert {(bad.index, bad.position) for bad in found} == {(2, 41), (6, 42)}
    copies = {
        index: replacement_of(policy, request, number, set(DAMAGE))[1]
        for number, index in ((1, 2), (2, 6))
    }
    assert set(copies.values()) <= {0, 20}
    wanted, _ = run(recipe_executor(Redirected(source, copies)), request)
    assert_same(batch, wanted)


class Weather(Redirected):
    """A storage that fails for some reads of one index."""

    def __init__(self, source: Source, index: int, failures: int, error: Any) -> None:
        super().__init__(source)
        self.index = index
        self.failures = failures
        self.error = error

    def read(self, index: int) -> EncodedSample:
        sample = super().read(index)
        if index == self.index and self.reads[index] <= self.failures:
            raise self.error
        return sample


ERRORS = [OSError(5, "Input/output error, sample index = 0"), OSError("connection lost")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("mode", ["replace", "drop"])
@pytest.mark.parametrize("maker", MAKERS)
def test_an_error_of_the_storage_is_tried_again_and_then_raised(
    photos: Path, maker: str, mode: str, error: OSError
) -> None:
    """A source tells damage from failure itself: each of its OSErrors is the storage's."""
    source = FolderSource(photos)
    request = request_of([0, 1, 3, 4])
    wanted, _ = run(MAKERS[maker](source), request)
    flaky = Weather(source, 3, 2, error)
    batch, found = run(MAKERS[maker](flaky, policy_for(flaky, mode)), request)
    assert_same(batch, wanted)
    assert found == ()
    assert flaky.reads[3] == 3
    lasting = Weather(source, 3, 99, error)
    with pytest.raises(OSError, match=r"Input/output|connection") as caught:
        MAKERS[maker](lasting, policy_for(lasting, mode))(request, never_stopped)
    assert caught.value is error
    assert lasting.reads[3] == 3
    raising = Weather(source, 3, 1, error)
    with pytest.raises(OSError, match=r"Input/output|connection"):
        MAKERS[maker](raising, policy_for(raising, "raise"))(request, never_stopped)
    assert raising.reads[3] == 1


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_what_the_transform_of_an_image_raises_is_raised(photos: Path, mode: str) -> None:
    """It has sound pixels before it: no byte is to blame."""

    def refuses(image: torch.Tensor) -> torch.Tensor:
        raise ValueError("a bug")

    source = FolderSource(photos)
    with pytest.raises(ValueError, match="a bug"):
        callable_executor(source, policy_for(source, mode), refuses)(
            request_of([0, 1]), never_stopped
        )


def test_recipes_touch_no_global_generator(photos: Path) -> None:
    """Threads share them."""
    states = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    source = FolderSource(photos)
    for request in requests_of(LENGTH, 6):
        run(recipe_executor(source, "replace"), request)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tobytes() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_an_abandoned_request_is_left_at_once(photos: Path) -> None:
    decoder = Counting()

    def check() -> None:
        if decoder.calls == 2:
            raise Stopped

    with pytest.raises(Stopped):
        recipe_executor(FolderSource(photos), "drop", decoder=decoder)(
            request_of([0, 1, 3, 4, 7]), check
        )
    assert decoder.calls == 2


def test_the_damage_is_what_it_is_meant_to_be(photos: Path) -> None:
    """Some fail at the header, and some only at the pixels."""
    source = FolderSource(photos)
    for index in DAMAGE:
        data = source.read(index).data
        if index in (6, 13):
            with pytest.raises(ValueError, match="cannot be decoded"):
                make_decoder("torchvision").decode(data, probe(data))
        else:
            with pytest.raises(ValueError, match=r"\w"):
                probe(data)
