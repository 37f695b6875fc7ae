"""Faults that the controls put into the device stage."""

from __future__ import annotations

import pytest
import torch

from stateful_gpu_loader.engine.device import place as place_module
from stateful_gpu_loader.engine.device.place import CudaPlace


def without_record_stream(patch: pytest.MonkeyPatch) -> None:
    """Deliver batches without the name of the stream that reads them."""

    def receive(place: CudaPlace, mark: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
        torch.cuda.current_stream(place.device).wait_event(mark)

    patch.setattr(CudaPlace, "receive", receive)


def without_synchronize(patch: pytest.MonkeyPatch) -> None:
    """Decode and free without waiting for queued work."""
    patch.setattr(CudaPlace, "synchronize", lambda place: None)


def without_synchronize_after_augmenting(patch: pytest.MonkeyPatch) -> None:
    """Free decoded pixels while kernels may still read them."""
    synchronize = CudaPlace.synchronize

    def synchronize_before_decoding(place: CudaPlace) -> None:
        if torch.cuda.current_stream(place.device) == place._streams[0]:
            synchronize(place)

    patch.setattr(CudaPlace, "synchronize", synchronize_before_decoding)


def with_pooled_streams(patch: pytest.MonkeyPatch) -> None:
    """Take the place's streams from torch's pool."""

    def pooled(owner: object, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        return torch.cuda.Stream(device), torch.cuda.Stream(device)

    patch.setattr(place_module, "private_streams", pooled)
