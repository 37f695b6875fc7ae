"""torchvision's and torchcodec's GPU decoders, with operators that stand in for nvJPEG."""

from __future__ import annotations

import importlib.util
import pickle
import re

import pytest
import torch

from stateful_gpu_loader.decoders import (
    BatchDecoder,
    make_batch_decoder,
    make_decoder,
    probe,
    torchvision,
)
from stateful_gpu_loader.errors import LoaderError
from tests.decoders.cuda_stub import DEVICE, CudaStub, decode, decode_as_stored, is_damaged, same
from tests.decoders.variants import by_rule, common_jpegs

NAMES = ("torchvision", "torchcodec")
COMMON = common_jpegs()
FOR_CUDA = ["jpeg progressive", "jpeg grey progressive", "jpeg tall"]
"""Variants of these that no engine of an H100 takes."""
FOR_ENGINES = {name: data for name, data in COMMON.items() if name not in FOR_CUDA}


class Operator:
    """``decode_jpegs_cuda``: all or nothing, as stored; records its arguments."""

    def __init__(self, stub: CudaStub) -> None:
        self.events = stub.events
        self.calls: list[tuple[list[torch.Tensor], int, torch.device]] = []
        self.message = "Error while decoding JPEG images: Failed to decode batch: 3"

    def __call__(
        self, data: list[torch.Tensor], mode: int, device: torch.device
    ) -> list[torch.Tensor]:
        self.events.append("decode")
        self.calls.append((data, mode, device))
        if any(is_damaged(each) for each in data):
            raise RuntimeError(self.message)
        return [decode_as_stored(each) for each in data]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> CudaStub:
    return CudaStub(monkeypatch)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch, stub: CudaStub) -> Operator:
    fake = Operator(stub)
    for name in NAMES:
        if importlib.util.find_spec(name) is not None:
            make_batch_decoder(name, DEVICE)  # registers the real operator
    monkeypatch.setattr(torchvision, "_DEVICES", set())
    monkeypatch.setattr(torch.ops.image, "decode_jpegs_cuda", fake)
    if importlib.util.find_spec("torchcodec") is not None:
        monkeypatch.setattr(torch.ops.torchcodec_ns, "decode_jpegs_cuda", fake)
    return fake


@pytest.fixture(params=NAMES)
def decoder(request: pytest.FixtureRequest) -> BatchDecoder:
    pytest.importorskip(request.param)
    return make_batch_decoder(request.param, DEVICE)


def test_every_common_variant_shows_the_pixels_of_the_rule(
    decoder: BatchDecoder, operator: Operator
) -> None:
    """The operator gets RGB and the device; a pickled decoder decodes the same."""
    assert decoder.family == f"{decoder.cpu.family}-cuda"
    images = decode(pickle.loads(pickle.dumps(decoder)), list(COMMON.values()))
    assert len(operator.calls) == (1 if decoder.family == "torchvision-cuda" else 1 + len(FOR_CUDA))
    assert {(mode, device) for _, mode, device in operator.calls} == {(3, DEVICE)}
    for (name, data), image in zip(COMMON.items(), images, strict=True):
        assert same(image, by_rule(data)), name


@pytest.mark.parametrize("capability", [(9, 0), (8, 9)], ids=["with engines", "without"])
def test_torchcodec_gets_images_for_cuda_one_a_call_and_no_exif(
    operator: Operator, stub: CudaStub, capability: tuple[int, int]
) -> None:
    """It may mix the coefficients of two images in one call (seen with 0.17 on an H100).

    It would apply the orientation by its own reading, and the package again.
    """
    pytest.importorskip("torchcodec")
    stub.capability = capability
    decode(make_batch_decoder("torchcodec", DEVICE), list(COMMON.values()))
    calls = sorted((data for data, _, _ in operator.calls), key=len)
    assert not any(b"Exif" in data.numpy().tobytes() for call in calls for data in call)
    assert b"Exif" in COMMON["jpeg orientation 6"].numpy().tobytes()
    if capability == (9, 0):
        *single, largest = calls
        assert [len(call) for call in single] == [1] * len(FOR_CUDA)
        expected = [probe(data).without_exif().stored_size for data in FOR_ENGINES.values()]
        assert [probe(data).stored_size for data in largest] == expected
    else:
        assert [len(call) for call in calls] == [1] * len(COMMON)


def test_the_host_waits_for_the_stream_before_nvjpeg_writes(
    decoder: BatchDecoder, operator: Operator
) -> None:
    """The engines ignore the stream's order."""
    decode(decoder, [*COMMON.values()][:2])
    assert operator.events == ["wait", "decode"]


def test_torchvision_on_two_gpus_of_a_process_warns_once(
    operator: Operator, recwarn: pytest.WarningsRecorder
) -> None:
    """It rebuilds its one decoder for another device, so the operator always gets an index."""
    first, second, current = (
        make_batch_decoder("torchvision", torch.device(name))
        for name in ("cuda:0", "cuda:1", "cuda")
    )
    for decoder in (first, first):
        decode(decoder, [COMMON["jpeg grey"]])
    assert not recwarn
    for decoder in (second, first, second):
        decode(decoder, [COMMON["jpeg grey"]])
    (warning,) = recwarn
    text = r"has decoded on cuda:0 in this process, and now decodes on cuda:1.*decoder='torchcodec'"
    assert re.search(text, str(warning.message))
    decode(current, [COMMON["jpeg grey"]])
    assert operator.calls[-1][2] == torch.device("cuda", 3)


def test_a_torchcodec_that_decodes_on_the_cpu_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class CpuOnly:
        """The namespace of a torchcodec before 0.17."""

    pytest.importorskip("torchcodec")
    make_decoder("torchcodec")
    monkeypatch.setattr(torch.ops, "torchcodec_ns", CpuOnly())
    with pytest.raises(
        LoaderError, match=r"decodes no images on GPUs\. Remedy: install torchcodec"
    ):
        make_batch_decoder("torchcodec", DEVICE)
    assert make_batch_decoder("auto", DEVICE).family == "torchvision-cuda"
