"""A GPU that the CPU plays: work is queued, done late, and must be waited for.

What it makes is the CPU's own; when it is there, and to whom it belongs, is checked as on a GPU.
"""

from __future__ import annotations

import ctypes
import math
import queue
import random
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader.decoders import ImageHeader, JpegHeader, make_decoder
from stateful_gpu_loader.errors import LoaderError

GARBAGE = 171


class FakePlace:
    """A device with two streams, each with a thread that does its work some time later.

    ``copy_in`` gives memory that is filled late, unless the stage itself goes on with it.
    """

    def __init__(self, device: torch.device | None = None, *, present: bool = True) -> None:
        self.asked_for = device
        self.device = torch.device("cpu")
        self.is_open = False
        self.present = present
        self.num_streams = 2
        self.received: list[int] = []
        self.times_freed = 0
        self.torn: list[str] = []
        """What was still to be read when its memory was given to somebody else."""
        self.late_by = 0.0
        """Seconds after which queued bytes are read, at least."""
        self._hosts: list[Any] = []
        self._leases: list[weakref.ref[Any]] = []
        self.user_threads: set[int] = set()
        self.stage_threads: set[int] = set()
        self._streams = [_Stream() for _ in range(4)]
        self._current = threading.local()

    def open(self) -> None:
        if not self.present:
            raise LoaderError("device='cuda' cannot be used: no GPU. Remedy: device=None")
        self.user_threads.add(threading.get_ident())
        if not self.is_open:
            self.is_open = True
            for stream in self._streams:
                threading.Thread(target=stream.serve, daemon=True).start()

    @contextmanager
    def working(self, stream: int) -> Iterator[None]:
        assert self.is_open
        self.stage_threads.add(threading.get_ident())
        assert not self.stage_threads & self.user_threads
        self._current.stream = self._streams[stream]
        yield

    @property
    def is_settled(self) -> bool:
        """Whether the host has waited for all that was queued on the thread's stream."""
        return self._stream().is_settled

    def settle(self) -> None:
        self.mark().wait()
        self._stream().is_settled = True

    def are_read(self, pixels: Sequence[torch.Tensor]) -> None:
        """Notes it if the thread that read them frees them, and has not waited for that."""
        for each in pixels:
            weakref.finalize(each, self._check_reader)

    def _check_reader(self) -> None:
        if self._stream() is self._streams[1] and not self.is_settled:
            self.torn.append("pixels of a batch")

    def mark(self) -> threading.Event:
        reached = threading.Event()
        self.queue(reached.set)
        return reached

    def queue(self, work: Callable[[], None]) -> None:
        """Have this done, after all that was queued on the stream before, and not at once."""
        stream = self._stream()
        stream.is_settled = False
        stream.work.put(work)

    def _stream(self) -> _Stream:
        found: _Stream = getattr(self._current, "stream", self._streams[0])
        return found

    def receive(self, mark: threading.Event, tensors: list[torch.Tensor]) -> None:
        assert threading.get_ident() in self.user_threads | self.stage_threads
        assert mark.wait(20)
        strided = [tensor for tensor in tensors if tensor.layout is torch.strided]
        self.received += [tensor.data_ptr() for tensor in strided]

    def free_cached(self) -> None:
        self.times_freed += 1

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.clone()
        if source.dtype == torch.uint8:
            return source  # pixels, on which the CPU goes on by itself
        late = torch.full_like(source, GARBAGE) if source.dtype != torch.bool else source
        self.queue(lambda: late.copy_(source))  # type: ignore[arg-type, return-value]
        return late

    def empty_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that is overwritten as soon as nobody holds it, as if it were used again."""
        base = np.full(max(1, math.prod(shape)) * dtype.itemsize, GARBAGE, dtype=np.uint8)
        lease = base[:]
        # No weakref.finalize: at exit Python iterates over all, beside threads that add some.
        self._leases.append(weakref.ref(lease, lambda _: base.fill(GARBAGE)))
        self._hosts.append(base)  # never given back to the system: a late reader may come
        return torch.from_numpy(lease).view(dtype)[: math.prod(shape)].view(shape)

    def read_late(self, data: Sequence[torch.Tensor]) -> None:
        """Queue a second reading of these bytes, as a GPU's copy engine makes it."""
        ours = [(base.ctypes.data, base.ctypes.data + base.nbytes) for base in self._hosts]
        wanted = [
            (each.data_ptr(), bytes(each.numpy()))
            for each in data
            if any(start <= each.data_ptr() < end for start, end in ours)
        ]

        def read() -> None:
            time.sleep(self.late_by)
            if any(ctypes.string_at(place, len(bytes_)) != bytes_ for place, bytes_ in wanted):
                self.torn.append("bytes of a batch")

        self.queue(read)


class _Stream:
    """Work in order, and a thread that does it."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.is_settled = True

    def serve(self) -> None:
        delays = random.Random(0)
        while True:
            one = self.work.get()
            time.sleep(delays.random() / 500)
            one()


class FakeDecoder:
    """Decodes in several threads, in any order, each image late; darker than the CPU does.

    It takes 8-bit JPEGs that are not CMYK, and refuses, by their bytes, one in ``refuses_one_in``
    of them. ``failures`` are raised by the coming calls, one each.
    """

    family = "fake-cuda"
    acts_on_exif = False

    def __init__(self, place: FakePlace | None = None, *, refuses_one_in: int = 4) -> None:
        self.cpu = make_decoder("torchvision")
        self.place = place
        self.failures: list[Exception] = []
        self.num_calls = 0
        self._refuses_one_in = refuses_one_in

    def version(self) -> str:
        return "1"

    @staticmethod
    def takes(header: ImageHeader, data: torch.Tensor) -> bool:
        """A function, as of the real ones: it is sent to workers."""
        return isinstance(header, JpegHeader) and header.components != 4

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        assert self.place is None or self.place.is_settled, "memory may still be in use"
        self.num_calls += 1
        if self.failures:
            raise self.failures.pop(0)
        found: list[Any] = [None] * len(data)
        order = list(range(len(data)))
        random.Random(len(data)).shuffle(order)

        def decode(i: int) -> None:
            time.sleep(random.Random(i).random() / 2000)
            found[i] = self._decode(data[i], headers[i])

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(decode, order))
        if self.place is not None:
            self.place.read_late(data)
            self.place.are_read([each for each in found if isinstance(each, torch.Tensor)])
        return found

    def _decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor | ValueError:
        if zlib.crc32(data.numpy().tobytes()) % self._refuses_one_in == 0:
            return ValueError("the fake GPU does not like these bytes")
        try:
            return self.cpu.decode(data, header) // 2
        except ValueError as error:
            return error


class FakeGpu:
    """Places and decoders that loaders of ``device="cuda"`` are given in a test."""

    def __init__(self) -> None:
        self.places: list[FakePlace] = []
        self.present = True
        self.generator = torch.Generator()
        self.decoder = FakeDecoder()

    def open_place(self, device: torch.device) -> FakePlace:
        place = FakePlace(device, present=self.present)
        self.places.append(place)
        self.decoder.place = place
        return place

    @contextmanager
    def surroundings(self, device: torch.device, keyed: int | None) -> Iterator[None]:
        assert device == torch.device("cpu"), "the place's own, once it is open"
        state = self.generator.get_state()
        if keyed is not None:
            self.generator.manual_seed(keyed)
        yield
        self.generator.set_state(state)

    def make_batch_decoder(
        self, name: str, device: torch.device, prefer: str | None = None
    ) -> FakeDecoder:
        return self.decoder


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """``device="cuda"`` reaches a device that the CPU plays."""
    gpu = FakeGpu()
    monkeypatch.setattr("stateful_gpu_loader.engine.workers.worker_pool.open_place", gpu.open_place)
    monkeypatch.setattr(
        "stateful_gpu_loader.engine.plan.make_batch_decoder", gpu.make_batch_decoder
    )
    surroundings = "stateful_gpu_loader.engine.batch_transform.isolated_gpu"
    monkeypatch.setattr(surroundings, gpu.surroundings)
    yield gpu
    assert not [torn for place in gpu.places for torn in place.torn]
