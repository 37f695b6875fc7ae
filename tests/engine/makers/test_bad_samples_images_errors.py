"""Which errors make an image a bad sample, which are tried again, and which are raised (G3, G4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import BadSample, FolderSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source
from stateful_gpu_loader.decoders import make_decoder, probe
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.pipeline import Stopped, never_stopped
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.samplers import ShuffledOrder
from tests.engine.makers.damaged import assert_same, policy_for, request_of, requests_of, run
from tests.engine.makers.damaged_images import (
    DAMAGE,
    MAKERS,
    Counting,
    InMemory,
    Redirected,
    callable_maker,
    image_maker,
    write_damaged_photos,
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged_photos(tmp_path_factory.mktemp("photos"))


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
    (images, targets), found = run(image_maker(source, policy, recipes=recipes), request)
    indices = targets["index"].tolist()
    if mode == "drop":
        assert indices == [index for index in request.index_list() if index not in (1, 3)]
    assert {bad.index for bad in found} == {1, 3}
    assert len(images) == len(indices) == (7 if mode == "replace" else 5)
    if mode == "replace":
        copies = dict(zip(request.index_list(), indices, strict=True))
        redirected = image_maker(Redirected(source, copies), recipes=recipes)
        assert_same([images, targets], run(redirected, request)[0])


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_sound_images_of_different_sizes_are_refused_as_ever(mode: str) -> None:
    source = InMemory([(32, 32), (32, 32), (32, 40), (32, 32)], broken={1})
    (request,) = requests_of(4, 4)
    with pytest.raises(ValueError, match="images of one batch differ in size") as caught:
        image_maker(source, mode, recipes=[])(request, never_stopped)
    assert not isinstance(caught.value, BadSample)
    with pytest.raises(ValueError, match="RandomCrop needs 36x36 pixels"):
        image_maker(source, mode, recipes=[T.RandomCrop(36)])(request, never_stopped)


def test_a_replacement_of_another_size_is_refused_by_name() -> None:
    """Where the recipes fix no size, and only the damaged image had the batch's."""
    source = InMemory([(32, 32), (40, 40)], broken={0})
    request = request_of([0, 1], start=0)
    order = ShuffledOrder(range(2))
    policy = BadSamplePolicy(mode="replace", order=order)
    (images, _), _ = run(image_maker(source, policy, recipes=[]), request)
    assert images.shape == (2, 3, 40, 40)
    source = InMemory([(32, 32), (32, 32), (40, 40)], broken={0})
    own = BadSamplePolicy(mode="replace")
    with pytest.raises(ValueError, match="images of one batch differ in size"):
        image_maker(source, own, recipes=[])(request_of([0, 1, 2]), never_stopped)


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
        callable_maker(source, policy_for(source, mode), refuses)(request_of([0, 1]), never_stopped)


def test_an_abandoned_request_is_left_at_once(photos: Path) -> None:
    decoder = Counting()

    def check() -> None:
        if decoder.calls == 2:
            raise Stopped

    with pytest.raises(Stopped):
        image_maker(FolderSource(photos), "drop", decoder=decoder)(
            request_of([0, 1, 3, 4, 7]), check
        )
    assert decoder.calls == 2
