"""Memory on a GPU is safe whatever the consumer's stream does with it.

The consumer's stream is kept busy, so that it reads a batch long after the host has freed it and
the loader has gone on decoding.
"""

from __future__ import annotations

import gc
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders.registry import make_batch_decoder
from stateful_gpu_loader.engine.device.place import CudaPlace
from tests.gpu.photos import expected_batches, make_loader

pytestmark = pytest.mark.gpu

CYCLES = 4_000_000
"""About 2 ms of GPU time, queued before a batch is read."""
PASSES = 60
LAG = 6
"""Number of batches that the host may be ahead of the consumer's stream."""


def _wrong_values(
    loader: StatefulGPULoader[Any],
    expected: list[list[torch.Tensor]],
    stream: torch.cuda.Stream,
    *,
    passes: int = PASSES,
    lag: int | None = LAG,
) -> tuple[int, int]:
    """Return the number of wrong values, and of batches in reused memory."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    addresses: list[int] = []
    pending: deque[torch.cuda.Event] = deque()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(passes):
            loader.set_epoch(0)
            number = 0
            for batch in loader:
                torch.cuda._sleep(CYCLES)
                images, targets = batch[0].clone(), batch[1].clone()
                addresses.append(batch[0].data_ptr())
                batch.clear()  # from here on only the consumer's stream uses the batch
                wrong += (images != expected[number][0]).sum() + (
                    targets != expected[number][1]
                ).sum()
                number += 1
                event = torch.cuda.Event()
                event.record(stream)
                pending.append(event)
                if lag is not None and len(pending) > lag:
                    pending.popleft().synchronize()
            assert number == len(expected)
    stream.synchronize()
    return int(wrong.item()), len(addresses) - len(set(addresses))


def _expected(root: Path, backend: str, **arguments: Any) -> list[list[torch.Tensor]]:
    device = torch.device("cuda")
    decoder = make_batch_decoder(backend, device)
    return expected_batches(root, decoder, device=device, **arguments)


@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "own stream"])
def test_a_busy_stream_reads_what_was_decoded(photos: Path, backend: str, own_stream: bool) -> None:
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    loader = make_loader(photos, decoder=backend, num_workers=2, prefetch_factor=4)
    wrong, reused = _wrong_values(loader, _expected(photos, backend), stream)
    assert wrong == 0
    assert reused > 0, "no memory was taken again: the test has shown nothing"


def test_reused_memory_blocks_are_safe_when_memory_is_full(photos: Path, backend: str) -> None:
    """With room for a few batches, and a host that never waits for the consumer's stream."""
    recipes: list[T.Recipe] = [T.RandomResizedCrop(512), T.Normalize([0.5] * 3, [0.5] * 3)]
    expected = _expected(photos, backend, recipes=recipes)
    loader = make_loader(photos, decoder=backend, num_workers=2, transform=recipes)
    torch.cuda.empty_cache()
    batch_bytes = expected[0][0].numel() * expected[0][0].element_size()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    room = torch.cuda.memory_reserved() + 16 * batch_bytes + 2**28
    torch.cuda.set_per_process_memory_fraction(min(1.0, room / total))
    wrong, reused = _wrong_values(loader, expected, torch.cuda.Stream(), passes=20, lag=None)
    assert wrong == 0
    assert reused > 0, "no memory was taken again: the test has shown nothing"


def test_without_the_record_of_the_consumers_stream_it_would_fail(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: this load detects a stage that does not record the consumer's stream."""

    def forget(place: CudaPlace, mark: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
        torch.cuda.current_stream(place.device).wait_event(mark)

    monkeypatch.setattr(CudaPlace, "receive", forget)
    loader = make_loader(photos, decoder="torchvision", num_workers=2, prefetch_factor=4)
    wrong, _ = _wrong_values(loader, _expected(photos, "torchvision"), torch.cuda.Stream())
    assert wrong > 0


def test_the_streams_of_a_place_are_its_own() -> None:
    """They are not from torch's pool, and do not wait for the default stream."""
    places = [CudaPlace(torch.device("cuda")) for _ in range(20)]
    for place in places:
        place.open()
    own = {stream.cuda_stream for place in places for stream in place._streams}
    assert len(own) == 40
    assert not own & {torch.cuda.Stream().cuda_stream for _ in range(64)}

    def copies() -> list[torch.Tensor]:
        found = []
        for place in places:
            for number in (0, 1):
                with place.working(number):
                    found.append(place.copy_in(torch.arange(3)))
                    place.synchronize()
        return found

    copies()  # an allocation may wait for the device; the second run needs none
    torch.cuda.synchronize()
    torch.cuda._sleep(500 * CYCLES)  # a second
    found = copies()
    assert not torch.cuda.default_stream().query()
    assert all(copy.tolist() == [0, 1, 2] for copy in found)


def test_a_loader_for_each_epoch_takes_no_more_memory(photos: Path) -> None:
    reserved = []
    for _ in range(6):
        assert len(list(make_loader(photos, decoder="torchvision", num_workers=2))) == 4
        gc.collect()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[1]


def test_delivered_batches_are_never_written_again(photos: Path, backend: str) -> None:
    """Three epochs are kept at once; each batch has separate memory."""
    loader = make_loader(photos, decoder=backend, num_workers=2, prefetch_factor=4)
    kept, copies = [], []
    for _ in range(3):
        for batch in loader:
            kept.append(batch)
            copies.append([tensor.cpu() for tensor in batch])
    for batch, copy in zip(kept, copies, strict=True):
        assert all(torch.equal(one.cpu(), other) for one, other in zip(batch, copy, strict=True))
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for batch in kept for tensor in batch
    )
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
