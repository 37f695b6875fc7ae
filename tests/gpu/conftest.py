"""Files, backends and devices that the GPU tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stateful_gpu_loader import LoaderError
from stateful_gpu_loader.decoders.registry import make_batch_decoder
from tests.gpu.photos import write_mixed_folder
from tests.images import write_photo_folder

BACKENDS = ("torchvision", "torchcodec", "nvimgcodec", "dali")

CPU_AND_CUDA = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 JPEG files, some grey, some progressive."""
    root = tmp_path_factory.mktemp("gpu-photos")
    write_photo_folder(root, num_classes=3, per_class=8)
    return root


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images: JPEG of every kind, CMYK, PNG, WebP."""
    root = tmp_path_factory.mktemp("gpu-mixed")
    write_mixed_folder(root)
    return root


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Name of each decoder that is installed."""
    name: str = request.param
    try:
        make_batch_decoder(name, torch.device("cuda"))
    except LoaderError as error:
        pytest.skip(str(error).partition("\n")[0])
    return name


@pytest.fixture(params=CPU_AND_CUDA)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, which shows that the test itself runs, and the GPU."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _memory_as_before() -> Iterator[None]:
    """Restore settings of memory after a failing test."""
    yield
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.set_sync_debug_mode("default")
