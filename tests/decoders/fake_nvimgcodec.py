"""The names of ``nvidia.nvimgcodec`` that the package uses, implemented with CPU pixels.

``tests/decoders/test_nvimgcodec.py`` compares the names and arguments with the real module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.decoders.cuda_stub import decode_as_stored, is_damaged


class BackendKind(Enum):
    CPU_ONLY = 1
    GPU_ONLY = 2
    HYBRID_CPU_GPU = 3
    HW_GPU_ONLY = 4


class Image:
    """Interleaved pixels that another library reads by DLPack."""

    def __init__(self, pixels: torch.Tensor) -> None:
        self._pixels = pixels.permute(1, 2, 0).contiguous()

    def to_dlpack(self, cuda_stream: int) -> Any:
        assert cuda_stream == 77, "another stream than the current one"
        return self._pixels.__dlpack__()


class FakeNvimgcodec:
    """Stands for the module. ``refuses`` holds what each kind of backend cannot decode.

    Damaged images are always refused. Engines return pixels one level brighter, so that a test sees
    which backend decoded.
    """

    BackendKind = BackendKind
    ColorSpec = SimpleNamespace(SRGB="srgb")

    def __init__(self, *, engines: bool = True) -> None:
        self.has_engines = engines
        self.decoders: list[FakeDecoder] = []
        self.engines_refuse: list[torch.Tensor] = []
        self.lose_batches_with: list[torch.Tensor] = []

    def CodeStream(self, array: npt.NDArray[np.uint8]) -> torch.Tensor:  # noqa: N802
        if array[:2].tolist() != [0xFF, 0xD8]:
            raise RuntimeError("Failed to get image info")
        return torch.from_numpy(array)

    def Backend(self, backend_kind: BackendKind) -> BackendKind:  # noqa: N802
        return backend_kind

    def DecodeParams(  # noqa: N802
        self, *, apply_exif_orientation: bool, color_spec: str, allow_any_depth: bool
    ) -> dict[str, Any]:
        return {"exif": apply_exif_orientation, "color": color_spec, "depth": allow_any_depth}

    def Decoder(self, **options: Any) -> FakeDecoder:  # noqa: N802
        self.decoders.append(FakeDecoder(self, **options))
        return self.decoders[-1]


class FakeDecoder:
    def __init__(
        self,
        library: FakeNvimgcodec,
        device_id: int,
        max_num_cpu_threads: int,
        backends: Sequence[BackendKind],
        options: str,
    ) -> None:
        assert len(backends) == 1, "several backends share a batch out by its length"
        self.library = library
        self.device_id = device_id
        self.kind = backends[0]
        self.options = options
        self.calls: list[tuple[int, dict[str, Any], int]] = []

    def decode(
        self, srcs: Sequence[torch.Tensor], *, params: dict[str, Any], cuda_stream: int
    ) -> list[Image | None]:
        self.calls.append((len(srcs), params, cuda_stream))
        lost = len(srcs) > 1 and any(_among(each, self.library.lose_batches_with) for each in srcs)
        return [None if lost else self._decode(each) for each in srcs]

    def _decode(self, data: torch.Tensor) -> Image | None:
        if is_damaged(data):
            return None
        pixels = decode_as_stored(data)
        if self.kind is not BackendKind.HW_GPU_ONLY:
            return Image(pixels)
        if not self.library.has_engines or _among(data, self.library.engines_refuse):
            return None
        return Image(pixels.clamp(max=254) + 1)


def _among(data: torch.Tensor, files: list[torch.Tensor]) -> bool:
    return any(torch.equal(data, each) for each in files)
