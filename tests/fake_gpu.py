"""A GPU simulated by the CPU: loaders run on it without a GPU or a compiler.

Its work is done at once. ``tests/pretend_gpu`` tests the order of queued work and the lifetime of
memory on torch's own allocator and streams.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import ImageHeader, JpegHeader, make_decoder
from stateful_gpu_loader.errors import LoaderError


class FakePlace:
    """The CPU as a device. Checks that the user's and the stage's threads keep to their parts."""

    def __init__(self, device: torch.device | None = None, *, present: bool = True) -> None:
        self.asked_for = device
        self.device = torch.device("cpu")
        self.is_open = False
        self.present = present
        self.received: list[int] = []
        """Addresses of the delivered tensors."""
        self.times_freed = 0
        self.user_threads: set[int] = set()
        self.stage_threads: set[int] = set()

    def open(self) -> None:
        if not self.present:
            raise LoaderError("device='cuda' cannot be used: no GPU. Remedy: device=None")
        self.user_threads.add(threading.get_ident())
        self.is_open = True

    @contextmanager
    def working(self, stream: int) -> Iterator[None]:
        assert self.is_open
        self.stage_threads.add(threading.get_ident())
        assert not self.stage_threads & self.user_threads
        yield

    def synchronize(self) -> None:
        """Return at once, because no work is queued."""

    def mark(self) -> None:
        """Return no mark, because no work is queued."""

    def receive(self, mark: None, tensors: list[torch.Tensor]) -> None:
        assert threading.get_ident() in self.user_threads | self.stage_threads
        strided = [tensor for tensor in tensors if tensor.layout is torch.strided]
        self.received += [tensor.data_ptr() for tensor in strided]

    def free_cached(self) -> None:
        self.times_freed += 1

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def empty_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)


class FakeDecoder:
    """Decodes in several threads, in any order, each image late, and darker than the CPU.

    It takes 8-bit JPEGs except CMYK, and refuses one in ``refuses_one_in`` of them, by their bytes.
    The next calls raise ``failures``, one each.
    """

    family = "fake-cuda"
    acts_on_exif = False

    def __init__(self, *, refuses_one_in: int = 4) -> None:
        self.cpu = make_decoder("torchvision")
        self.failures: list[Exception] = []
        self.num_calls = 0
        self._refuses_one_in = refuses_one_in

    def version(self) -> str:
        return "1"

    @staticmethod
    def takes(header: ImageHeader, data: torch.Tensor) -> bool:
        """A function of its arguments, like those of real decoders: it is sent to workers."""
        return isinstance(header, JpegHeader) and header.components != 4

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
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
        return found

    def _decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor | ValueError:
        if zlib.crc32(data.numpy().tobytes()) % self._refuses_one_in == 0:
            return ValueError("the fake GPU does not like these bytes")
        try:
            return self.cpu.decode(data, header) // 2
        except ValueError as error:
            return error


class FakeGpu:
    """Places and decoders of loaders with ``device="cuda"`` in a test."""

    def __init__(self) -> None:
        self.places: list[FakePlace] = []
        self.present = True
        self.generator = torch.Generator()
        self.decoder = FakeDecoder()

    def open_place(self, device: torch.device) -> FakePlace:
        place = FakePlace(device, present=self.present)
        self.places.append(place)
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
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Make ``device="cuda"`` a device simulated by the CPU."""
    gpu = FakeGpu()
    monkeypatch.setattr("stateful_gpu_loader.engine.workers.worker_pool.CudaPlace", gpu.open_place)
    monkeypatch.setattr(
        "stateful_gpu_loader.engine.plan.make_batch_decoder", gpu.make_batch_decoder
    )
    surroundings = "stateful_gpu_loader.engine.batch_transform.isolated_gpu"
    monkeypatch.setattr(surroundings, gpu.surroundings)
    return gpu
