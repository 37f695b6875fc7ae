"""Which errors make a sample a bad one, which are tried again, and which are raised (G3, G4)."""

from __future__ import annotations

import gzip
import io
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from stateful_gpu_loader import BadSample
from stateful_gpu_loader.engine.pipeline import Stopped, never_stopped
from stateful_gpu_loader.state.bad_samples import BadSamples
from tests.engine.makers.damaged import (
    KINDS,
    Damaged,
    DamagedBatches,
    FailsByDraw,
    assert_same,
    maker_of,
    policy_for,
    replacement_of,
    requests_of,
    run,
)
from tests.images import encode, photograph
from tests.map_datasets import OwnGenerator

LENGTH = 23


def test_what_draws_decided_is_read_again_in_every_epoch() -> None:
    """Law 1: the index is not to blame, and other draws may spare it."""
    dataset = FailsByDraw(LENGTH)
    maker = maker_of(dataset, "replace")
    found = [bad for r in requests_of(LENGTH, 5) for bad in run(maker, r)[1]]
    assert found
    assert not any(bad.always for bad in found)
    record = BadSamples()
    record.add(found)
    assert not record.known


@pytest.mark.parametrize("index", [4, 5])
def test_draws_from_any_generator_count(index: int) -> None:
    class Draws(Dataset[int]):
        def __init__(self, draw: Callable[[], Any]) -> None:
            self.draw = draw

        def __len__(self) -> int:
            return 9

        def __getitem__(self, asked: int) -> int:
            if asked == index:
                self.draw()
                raise ValueError
            return asked

    def kinds_of(draw: Callable[[], Any]) -> set[bool]:
        maker = maker_of(Draws(draw), "replace")
        return {bad.always for r in requests_of(9, 4) for bad in run(maker, r)[1]}

    for draw in (random.random, np.random.rand, lambda: torch.rand(()), lambda: random.seed(5)):
        assert kinds_of(draw) == {False}, draw
    assert kinds_of(lambda: torch.zeros(3)) == {True}


def test_draws_that_fail_for_every_sample_are_no_samples_fault() -> None:
    """A replacement draws what the bad sample would have drawn, so this is seen and raised."""

    class Unlucky(Damaged):
        def __getitem__(self, index: int) -> dict[str, Any]:
            sample = super().__getitem__(index)
            if random.random() < 0.5:
                raise ValueError("the crop is empty")
            return sample

    maker = maker_of(Unlucky(LENGTH), "replace")
    with pytest.raises(BadSample, match="the crop is empty; and 8 other samples"):
        maker(requests_of(LENGTH, LENGTH)[0], never_stopped)


def test_of_a_private_generator_nothing_is_known() -> None:
    class Private(OwnGenerator):
        def __getitem__(self, index: int) -> tuple[int, float]:
            drawn = super().__getitem__(index)
            if drawn[1] < 0.5 and index % 3 == 0:
                raise ValueError("unlucky")
            return drawn

    maker = maker_of(Private(30), "replace")
    fresh = [run(maker_of(Private(30), "replace"), r) for r in requests_of(30, 5)]
    in_turn = [run(maker, request) for request in requests_of(30, 5)]
    assert_same(in_turn, fresh)
    assert {bad.always for _, found in fresh for bad in found} == {False}


class Flaky(Damaged):
    """The system fails for some reads of an index, after the sample has drawn."""

    def __init__(self, length: int, failures: int, error: Callable[[], Exception]) -> None:
        super().__init__(length)
        self.failures = failures
        self.error = error

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        if index % 4 == 0 and self.reads[index] <= self.failures:
            raise self.error()
        return sample


class FlakyBatches(Flaky):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


SYSTEM_ERRORS = [partial(OSError, 5, "Input/output error"), partial(TimeoutError, "timed out")]


@pytest.mark.parametrize("error", SYSTEM_ERRORS)
@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_an_error_of_the_system_is_tried_again_under_the_same_draws(
    mode: str, error: Callable[[], Exception]
) -> None:
    dataset = Flaky(LENGTH, 2, error)
    for request in requests_of(LENGTH, 5):
        wanted, _ = run(maker_of(Damaged(LENGTH)), request)
        batch, found = run(maker_of(dataset, mode), request)
        assert_same(batch, wanted)
        assert found == ()
    assert all(dataset.reads[index] == (3 if index % 4 == 0 else 1) for index in range(LENGTH))


@pytest.mark.parametrize("kind", [Flaky, FlakyBatches])
@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_an_error_of_the_system_that_stays_is_raised_as_it_is(mode: str, kind: Any) -> None:
    dataset = kind(4, 99, SYSTEM_ERRORS[0])
    maker = maker_of(dataset, mode)
    (request,) = requests_of(4, 4)
    for attempts in (3, 6):
        with pytest.raises(OSError, match="Input/output error") as caught:
            maker(request, never_stopped)
        assert type(caught.value) is OSError
        assert dataset.reads[0] == attempts
    dataset.failures = 0
    assert run(maker, request)[1] == ()


def test_an_error_of_the_system_in_a_batch_that_was_mended_is_tried_again() -> None:
    class FlakyLater(DamagedBatches):
        calls = 0

        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            self.calls += len(indices) > 1
            if self.calls in (2, 3):
                raise OSError(5, "Input/output error")
            return super().__getitems__(indices)

    request = requests_of(9, 4)[0]
    errors = {request.index_list()[1]: ValueError}
    batch, _ = run(maker_of(FlakyLater(9, errors), "drop"), request)
    assert_same(batch, run(maker_of(DamagedBatches(9, errors), "drop"), request)[0])


def test_a_replacement_that_the_system_fails_to_read_is_raised_too() -> None:
    """Another one in its stead would make the stream depend on the storage's weather."""
    request = requests_of(LENGTH, 5)[0]
    dataset = Damaged(LENGTH)
    policy = policy_for(dataset, "replace")
    first = request.index_list()[0]
    _, candidate = replacement_of(policy, request, 0, set())
    dataset.errors = {first: ValueError, candidate: SYSTEM_ERRORS[0]}
    with pytest.raises(OSError, match="Input/output error"):
        maker_of(dataset, policy)(request, never_stopped)


@pytest.mark.parametrize("error", [TypeError, AttributeError, MemoryError, RecursionError, Stopped])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_bugs_are_raised(mode: str, kind: type[Damaged], error: type[Exception]) -> None:
    dataset = kind(4, {2: error})
    (request,) = requests_of(4, 4)
    with pytest.raises(error) as caught:
        maker_of(dataset, mode)(request, never_stopped)
    assert dataset.reads[2] == 1
    if kind is Damaged and error is not Stopped and sys.version_info >= (3, 11):
        assert f"in dataset index 2 (position {request.index_list().index(2)}" in str(
            caught.value.__notes__
        )


def test_under_raise_nothing_is_tried_again() -> None:
    for error in (SYSTEM_ERRORS[0], lambda: ValueError("no label")):
        dataset = Damaged(4, {2: error})
        (request,) = requests_of(4, 4)
        with pytest.raises((OSError, ValueError), match=r"error|label"):
            maker_of(dataset, "raise")(request, never_stopped)
        assert dataset.reads[2] == 1


def test_an_abandoned_request_is_left_at_once() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        maker_of(Damaged(LENGTH), "replace")(requests_of(LENGTH, 9)[0], check)
    assert len(calls) == 3


class Photos(Dataset[Any]):
    """As torchvision's ImageFolder reads them: with Pillow."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index]) as image:
            pixels = np.array(image.convert("RGB").resize((8, 8)))
        return torch.from_numpy(pixels), index


def test_pillows_truncated_and_foreign_files_are_bad(tmp_path: Path) -> None:
    good = bytes(encode(photograph("coffee").resize((64, 48))).numpy())
    contents = dict.fromkeys(range(9), good) | {2: good[:700], 4: b"no photograph", 7: b""}
    files = [tmp_path / f"{i}.jpg" for i in contents]
    for file, content in zip(files, contents.values(), strict=True):
        file.write_bytes(content)
    dataset = Photos(files)
    (request,) = requests_of(9, 9)
    (_, indices), found = run(maker_of(dataset, "drop"), request)
    assert sorted(indices.tolist()) == [0, 1, 3, 5, 6, 8]
    reasons = {bad.index: bad.reason for bad in found}
    assert set(reasons) == {2, 4, 7}
    assert reasons[2].startswith("OSError: image file is truncated")
    assert reasons[4].startswith("UnidentifiedImageError: cannot identify image file")
    assert all(bad.always for bad in found)
    files[5].unlink()
    with pytest.raises(FileNotFoundError):
        maker_of(dataset, "drop")(request, never_stopped)


def test_truncated_gzip_of_a_dataset_is_bad() -> None:
    class Zipped(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            data = gzip.compress(bytes([index]) * 100)
            if index == 1:
                data = data[: len(data) // 2]
            if index == 2:
                data = b"no gzip"
            return gzip.GzipFile(fileobj=io.BytesIO(data)).read()[0]

    (request,) = requests_of(4, 4)
    batch, found = run(maker_of(Zipped(), "drop"), request)
    assert sorted(batch.tolist()) == [0, 3]
    assert {bad.reason.partition(":")[0] for bad in found} == {"EOFError", "BadGzipFile"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_that_fails_makes_its_sample_bad(kind: type[Damaged]) -> None:
    def refuses(sample: dict[str, Any]) -> Any:
        if sample["index"] in (3, 8):
            raise ValueError("box outside of the image")
        return sample

    dataset = kind(LENGTH)
    maker = maker_of(dataset, "drop", transform=refuses)
    for request in requests_of(LENGTH, 5):
        batch, found = run(maker, request)
        kept = [index for index in request.index_list() if index not in (3, 8)]
        assert batch["index"].tolist() == kept
        assert {bad.index for bad in found} == set(request.index_list()) & {3, 8}


def test_a_native_batch_that_fails_for_no_sample_of_its_own_is_raised() -> None:
    class AllOrNothing(DamagedBatches):
        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            if len(indices) > 1:
                raise ValueError("too much at once")
            return super().__getitems__(indices)

    with pytest.raises(ValueError, match="too much at once"):
        maker_of(AllOrNothing(9), "replace")(requests_of(9, 4)[0], never_stopped)


def test_a_collate_function_that_fails_is_raised() -> None:
    def refuses(samples: list[Any]) -> Any:
        raise ValueError("ragged")

    with pytest.raises(ValueError, match="ragged"):
        maker_of(Damaged(9, {1: ValueError}), "replace", collate_fn=refuses)(
            requests_of(9, 9)[0], never_stopped
        )
