"""DALI's decoder for GPUs, with CPU pipelines in place of the GPU's."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import dali as module
from stateful_gpu_loader.decoders.dali import DaliBatchDecoder
from tests.decoders.cuda_stub import DEVICE, CudaStub, decode, is_damaged, same
from tests.decoders.variants import by_rule, common_jpegs

pytest.importorskip("nvidia.dali")

FILES = list(common_jpegs().values())


class PoolOfTheCpu(module.PipelinePool):
    """Builds pipelines on the CPU; overwrites its last batch as DALI may on a GPU."""

    made: list[tuple[int | None, int]]
    stub: CudaStub

    def __init__(self, *, device_id: int | None, num_threads: int) -> None:
        self.made.append((device_id, num_threads))
        self._last: list[torch.Tensor] = []
        super().__init__(device_id=None, num_threads=1)

    def decode(self, data: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.stub.events.append("decode")
        for image in self._last:
            image.zero_()
        if any(is_damaged(each) for each in data):
            raise RuntimeError("DALI failed to decode it")
        self._last = super().decode(data)
        return self._last


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> CudaStub:
    stub = CudaStub(monkeypatch)
    PoolOfTheCpu.made, PoolOfTheCpu.stub = [], stub
    monkeypatch.setattr(module, "PipelinePool", PoolOfTheCpu)
    return stub


def test_pixels_are_copied_out_before_dali_writes_again(stub: CudaStub) -> None:
    """The host waits before decoding, and for the copies."""
    decoder = DaliBatchDecoder(DEVICE)
    turns = [decode(decoder, FILES[turn:]) for turn in range(3)]
    assert stub.events == ["wait", "decode", "wait"] * 3
    for turn, images in enumerate(turns):
        assert all(map(same, images, map(by_rule, FILES[turn:])))


def test_pipelines_are_made_at_the_first_batch_for_the_device(
    stub: CudaStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "host_threads", lambda: 5)
    given, current = DaliBatchDecoder(DEVICE), DaliBatchDecoder(torch.device("cuda"))
    assert PoolOfTheCpu.made == []
    for decoder in (given, current, given):
        decode(decoder, FILES[:1])
    assert PoolOfTheCpu.made == [(0, 5), (3, 5)]
    assert len(pickle.dumps(given)) < 300


def test_a_gpus_pipeline_leaves_nothing_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any other hw_decoder_load, pixels would depend on the batch size."""
    asked: dict[str, Any] = {}
    dali = module.require_dali()

    def image(encoded: Any, **options: Any) -> Any:
        asked.update(options)
        return encoded

    monkeypatch.setattr(dali.fn.decoders, "image", image)
    monkeypatch.setattr(dali.Pipeline, "build", lambda self: None)
    module.build(8, device_id=0, num_threads=2)
    assert asked.pop("output_type") == dali.types.RGB
    assert asked == {
        "device": "mixed",
        "adjust_orientation": False,
        "use_fast_idct": False,
        "hw_decoder_load": 0.0,
        "jpeg_fancy_upsampling": True,
    }
