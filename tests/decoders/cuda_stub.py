"""What stands in for a GPU where there is none: the logic around it is then tested for real."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda", 0)


class CudaStub:
    """Streams that record when the host waits for them, and a memory gauge."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.free_bytes = 2**36
        stream = SimpleNamespace(synchronize=lambda: self.events.append("wait"), cuda_stream=77)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self.free_bytes, 2**37))


def is_damaged(data: torch.Tensor) -> bool:
    """See :func:`damaged`."""
    return data.numpy().tobytes().endswith(b"bad")


def damaged(data: torch.Tensor) -> torch.Tensor:
    """Bytes that only fakes refuse: a real decoder ignores what follows a JPEG's end."""
    return torch.cat([data, torch.tensor(list(b"bad"), dtype=torch.uint8)])


def decode_as_stored(data: torch.Tensor) -> torch.Tensor:
    """uint8 [3, height, width] on the CPU, no orientation applied."""
    image: torch.Tensor = torch.ops.image.decode_jpeg(data, 3)
    return image


def same(found: Any, expected: torch.Tensor) -> bool:
    return isinstance(found, torch.Tensor) and torch.equal(found, expected)
