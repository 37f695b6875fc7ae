"""CudaPlace without a GPU, and its choice of device; see also tests/pretend_gpu."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from stateful_gpu_loader import FolderSource, LoaderError, StatefulGPULoader
from stateful_gpu_loader.engine.device import place as place_module
from stateful_gpu_loader.engine.device.place import CudaPlace
from tests.images import write_photo_folder

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_a_gpu_that_is_not_there_is_named_at_the_first_batch(tmp_path: Any) -> None:
    write_photo_folder(tmp_path, num_classes=1, per_class=2)
    loader = StatefulGPULoader(FolderSource(tmp_path), device="cuda:1", num_workers=2)
    state = loader.state_dict()
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(LoaderError, match=r"device='cuda:1' .*device=None"):
            next(iterator)
    assert loader.state_dict() == state
    assert not torch.cuda.is_initialized()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Simulate a GPU of index 3, and note the calls to it."""
    log: list[Any] = []

    def streams(owner: CudaPlace, device: torch.device) -> tuple[str, str]:
        log.append(f"streams of {device}")
        return "decoding", "augmenting"

    for name, replacement in {
        "init": lambda: log.append("init"),
        "current_device": lambda: 3,
        "get_device_properties": lambda index: index,
        "device": lambda device: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(place_module, "private_streams", streams)
    return log


def test_the_current_device_is_that_of_the_thread_that_opens(log: list[Any]) -> None:
    place = CudaPlace(torch.device("cuda"))
    assert log == [], "nothing before it is opened"
    place.open()
    place.open()
    assert place.device == torch.device("cuda", 3)
    assert log == ["init", "streams of cuda:3"], "two private streams for its life"


def test_streams_that_cannot_be_created_are_reported(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(owner: CudaPlace, device: torch.device) -> Any:
        raise RuntimeError("CUDA's driver, libcuda.so.1, has no cuStreamCreate")

    monkeypatch.setattr(place_module, "private_streams", refuse)
    with pytest.raises(LoaderError, match=r"device='cuda:3' .* cuStreamCreate"):
        CudaPlace(torch.device("cuda")).open()


def test_where_no_memory_can_be_locked_plain_memory_does(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy from plain memory is slower, but the batch is the same."""
    place = CudaPlace(torch.device("cuda"))
    place.open()
    real = torch.empty

    def refuse(*arguments: Any, pin_memory: bool = False, **others: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return real(*arguments, **others)

    monkeypatch.setattr(torch, "empty", refuse)
    assert place.empty_host((3,), torch.uint8).shape == (3,)


def test_an_allocator_that_reuses_memory_in_stream_order_is_refused(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvJPEG's hardware engine does not keep stream order."""
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(LoaderError, match=r"cudaMallocAsync.*PYTORCH_CUDA_ALLOC_CONF"):
        CudaPlace(torch.device("cuda")).open()
