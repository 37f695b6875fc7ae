"""Stand-ins for a GPU, to test the logic around it without one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision  # noqa: F401  (registers torch.ops.image)

from stateful_gpu_loader.decoders import BatchDecoder, probe
from stateful_gpu_loader.decoders.decoder import Image, as_tensor

DEVICE = torch.device("cuda", 0)


class CudaStub:
    """Streams that record when the host waits for them, and a memory gauge."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.free_bytes = 2**36
        self.bytes_of_torch = 2**36
        """Bytes that torch may take."""
        self.capability = 9, 0
        stream = SimpleNamespace(synchronize=lambda: self.events.append("wait"), cuda_stream=77)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: self.capability)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self.free_bytes, 2**37))
        monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", self._allocate)
        monkeypatch.setattr(torch.cuda, "caching_allocator_delete", lambda pointer: None)

    def _allocate(self, num_bytes: int, device: int) -> int:
        if num_bytes > self.bytes_of_torch:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return 1


def is_damaged(data: torch.Tensor) -> bool:
    return data.numpy().tobytes().endswith(b"bad")


def damaged(data: torch.Tensor) -> torch.Tensor:
    """Return bytes that only fakes refuse: a real decoder ignores bytes after a JPEG's end."""
    return torch.cat([data, torch.tensor(list(b"bad"), dtype=torch.uint8)])


def decode_as_stored(data: torch.Tensor) -> torch.Tensor:
    """Return uint8 [3, height, width] on the CPU, no orientation applied."""
    image: torch.Tensor = torch.ops.image.decode_jpeg(data, 3)
    return image


def tensors(answers: Sequence[Image | ValueError]) -> list[Any]:
    """Return the images of a batch as tensors, and errors unchanged."""
    return [each if isinstance(each, ValueError) else as_tensor(each) for each in answers]


def decode(decoder: BatchDecoder, files: Sequence[torch.Tensor]) -> list[Any]:
    """Return the images of one batch as tensors, and errors unchanged."""
    return tensors(decoder.decode_batch(files, [probe(data) for data in files]))


def same(found: Any, expected: torch.Tensor) -> bool:
    return isinstance(found, torch.Tensor) and torch.equal(found, expected)
