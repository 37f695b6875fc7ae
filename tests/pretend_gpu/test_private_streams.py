"""The streams of a place are private: no other place and no user works on them."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader.engine.device.place import CudaPlace
from stateful_gpu_loader.engine.device.stage import Stage
from tests.pretend_gpu.faults import with_pooled_streams
from tests.pretend_gpu.loaders import (
    EPOCHS,
    Count,
    EagerDecoder,
    PoolUser,
    decoder,
    expected_batches,
    held,
    make,
    photos,
    until_wrong,
    wrong_batches,
)

__all__ = ["decoder", "photos"]

POOL = 32
"""Number of streams that torch hands out in turn."""


def opened() -> CudaPlace:
    place = CudaPlace(torch.device("cuda"))
    place.open()
    return place


def handles(place: CudaPlace) -> list[int]:
    return [stream.cuda_stream for stream in place._streams]


def test_places_share_no_stream_with_each_other_or_with_the_user() -> None:
    places = [opened() for _ in range(20)]
    own = [handle for place in places for handle in handles(place)]
    of_user = {torch.cuda.Stream().cuda_stream for _ in range(2 * POOL)}
    of_user |= {torch.cuda.Stream(priority=-1).cuda_stream for _ in range(2 * POOL)}
    assert len(set(own)) == 40
    assert not of_user & {*own}
    assert torch.cuda.default_stream().cuda_stream not in own


def run_beside_a_user(
    photos: Path, decoder: EagerDecoder
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read batches while a user works on all streams of torch, or on the one that decodes.

    Returns:
        Number of batches and of wrong ones, and the same of the user's copies.
    """
    epochs = [expected_batches(photos, epoch=epoch) for epoch in range(EPOCHS)]
    loader = make(photos)
    next(iter(loader))
    loader.set_epoch(0)
    stage: Any = loader._engine.workers._stage
    of_user = [torch.cuda.Stream() for _ in range(POOL)]
    shared = [stream for stream in of_user if stream.cuda_stream == handles(stage.place)[0]]
    with PoolUser(shared or of_user) as user:
        batches = wrong_batches(lambda: loader, epochs, torch.cuda.default_stream())
    return batches, user.wrong()


def test_a_user_on_every_stream_of_torch_disturbs_nothing(
    photos: Path, decoder: EagerDecoder, count: Count
) -> None:
    batches, copies = run_beside_a_user(photos, decoder)
    count("batches beside a user on every stream of torch", *batches)
    count("copies of that user", *copies)
    assert batches == (12 * EPOCHS, 0)
    assert copies[0] > POOL
    assert copies[1] == 0


def test_a_shared_stream_makes_batches_and_copies_wrong(
    photos: Path, decoder: EagerDecoder, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same with two streams of torch's pool, on which the user works."""
    with_pooled_streams(monkeypatch)

    def read() -> tuple[int, int]:
        batches, copies = run_beside_a_user(photos, decoder)
        count("batches with a shared stream", *batches)
        count("copies of the user who shares it", *copies)
        return batches[0] + copies[0], batches[1] + copies[1]

    _, wrong = until_wrong(read)
    assert wrong > 0


def test_streams_of_a_deleted_place_are_reused() -> None:
    first, other = opened(), opened()
    before, of_other = handles(first), handles(other)
    del first
    gc.collect()
    next_one, one_more = opened(), opened()
    assert handles(next_one) == before
    assert not {*handles(one_more)} & {*before, *of_other}


@pytest.mark.parametrize("number", [0, 1])
def test_streams_with_queued_work_are_not_handed_out(number: int) -> None:
    place = opened()
    before = handles(place)
    with held(place._streams[number]):
        del place
        gc.collect()
        while_busy = opened()
        assert handles(while_busy) != before
    assert handles(opened()) == before


def test_a_thread_that_hangs_keeps_its_streams() -> None:
    place, hangs, go_on = opened(), threading.Event(), threading.Event()
    before = handles(place)
    stage = Stage(place)

    def hang() -> None:
        hangs.set()
        go_on.wait(60)

    stage.submit(hang)
    assert hangs.wait(60)
    stage.abandon()
    del place, stage
    gc.collect()
    following = opened()
    assert not {*handles(following)} & {*before}
    go_on.set()


def test_a_loader_for_each_epoch_takes_no_more_memory(photos: Path, decoder: EagerDecoder) -> None:
    reserved = []
    for _ in range(6):
        assert len(list(make(photos))) == 12
        gc.collect()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[1]


def test_the_streams_are_of_the_device_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETEND_GPU_COUNT", "2")
    places = [CudaPlace(torch.device("cuda", index)) for index in (1, 0, 1)]
    for place in places:
        place.open()
        for number in (0, 1):
            with place.working(number):
                place.copy_in(torch.arange(3)).record_stream(place._streams[number])
                place.mark()
    assert len({handle for place in places for handle in handles(place)}) == 6
    former = handles(places.pop(0))
    gc.collect()
    of_other_device = CudaPlace(torch.device("cuda", 0))
    of_other_device.open()
    assert handles(of_other_device) != former
