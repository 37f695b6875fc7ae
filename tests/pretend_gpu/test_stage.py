"""The stage's waits for the device, one by one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.device.place import CudaPlace
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.pipeline import never_stopped
from tests.device_loaders import request_of, steps_of
from tests.pretend_gpu.loaders import EagerDecoder, decoder, held, photos

__all__ = ["decoder", "photos"]


@pytest.fixture
def place() -> CudaPlace:
    place = CudaPlace(torch.device("cuda"))
    place.open()
    return place


def test_a_batch_is_taken_while_the_device_still_makes_it(place: CudaPlace) -> None:
    """The host does not wait; the consumer's stream does."""
    consumer, stage = torch.cuda.Stream(), Stage(place)
    target = torch.zeros(5, dtype=torch.int64).pin_memory()
    with held(place._streams[0]):
        task = stage.submit(lambda: place.copy_in(torch.arange(5)))
        assert task.wait(60)
        with torch.cuda.stream(consumer):
            batch = task.take(place)
            target.copy_(batch, non_blocking=True)
        assert not consumer.query()
        assert target.tolist() == [0] * 5
    consumer.synchronize()
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_the_last_step_reads_what_the_first_one_queued(place: CudaPlace) -> None:
    stage, has_queued = Stage(place), threading.Event()

    def last(pixels: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_like(pixels).copy_(pixels, non_blocking=True)
        has_queued.set()
        return copy

    with held(place._streams[0]):
        task = stage.submit(lambda: place.copy_in(torch.arange(5)), last)
        assert has_queued.wait(60)
        keep_busy(torch.cuda.Stream())
        assert not task.is_done
    assert task.wait(60)
    assert task.take(place).cpu().tolist() == [0, 1, 2, 3, 4]


def keep_busy(stream: torch.cuda.Stream) -> None:
    """Queue more work on a stream than any other has, and wait for it."""
    source = torch.zeros(1).pin_memory()
    with torch.cuda.stream(stream):
        for _ in range(50):
            source.to("cuda", non_blocking=True)
    stream.synchronize()


def test_the_work_of_a_last_step_that_raises_is_waited_for(place: CudaPlace) -> None:
    """Dropping the error frees the pixels, which the device may still read."""
    stage, source = Stage(place), torch.zeros(5).pin_memory()

    def fail(pixels: torch.Tensor) -> None:
        for _ in range(50):
            source.copy_(pixels, non_blocking=True)
        raise KeyError("label")

    task = stage.submit(lambda: place.copy_in(torch.ones(5)), fail)
    assert task.wait(60)
    assert place._streams[1].query(), "nothing is queued any more"
    with pytest.raises(KeyError, match="label"):
        task.take(place)


def test_the_bytes_are_no_longer_read_when_a_batch_is_decoded(
    place: CudaPlace, photos: Path, decoder: EagerDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their memory may be overwritten by another batch as soon as this one is dropped."""
    monkeypatch.setattr(decoder, "refuses", lambda data: False)
    read, steps = steps_of(photos, place, decoder, T.Compose([]))
    batch = read(request_of(16), never_stopped)
    with place.working(0):
        steps.decode(batch)
        assert place._streams[0].query(), "nothing is queued any more"
    assert decoder.num_images > 10
