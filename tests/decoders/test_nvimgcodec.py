"""nvImageCodec as a decoder: engines, then CUDA, chosen by the bytes and never by load."""

from __future__ import annotations

import inspect
import pickle
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from stateful_gpu_loader.decoders import nvimgcodec as module
from stateful_gpu_loader.decoders import probe
from stateful_gpu_loader.decoders.nvimgcodec import NvimgcodecBatchDecoder, bytes_to_keep
from tests.decoders.cuda_stub import DEVICE, CudaStub, damaged, decode, same, tensors
from tests.decoders.fake_nvimgcodec import BackendKind, FakeDecoder, FakeNvimgcodec
from tests.decoders.variants import by_rule, common_jpegs
from tests.images import encode

FILES = common_jpegs()
PROGRESSIVE = [name for name in FILES if "progressive" in name]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> CudaStub:
    return CudaStub(monkeypatch)


def installed(monkeypatch: pytest.MonkeyPatch, library: FakeNvimgcodec) -> FakeNvimgcodec:
    monkeypatch.setattr(module, "_library", lambda: library)
    return library


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, stub: CudaStub) -> FakeNvimgcodec:
    return installed(monkeypatch, FakeNvimgcodec())


def by_engines(data: torch.Tensor) -> torch.Tensor:
    return by_rule(data).clamp(max=254) + 1


def stage(library: FakeNvimgcodec, kind: BackendKind) -> FakeDecoder:
    (found,) = [decoder for decoder in library.decoders if decoder.kind is kind]
    return found


def test_engines_decode_baseline_and_cuda_the_progressive(library: FakeNvimgcodec) -> None:
    """CUDA gets what an engine refuses. A batch that the engines lose is not given to CUDA.

    The neighbours of a bad image keep the pixels that they have without it.
    """
    lost, refused = [data for name, data in FILES.items() if name not in PROGRESSIVE][1:3]
    library.engines_refuse, library.lose_batches_with = [refused], [lost]
    images = decode(NvimgcodecBatchDecoder(DEVICE), list(FILES.values()))
    for (name, data), image in zip(FILES.items(), images, strict=True):
        is_for_cuda = name in PROGRESSIVE or data is refused
        assert same(image, by_rule(data) if is_for_cuda else by_engines(data)), name
    assert stage(library, BackendKind.HYBRID_CPU_GPU).calls[0][0] == len(PROGRESSIVE) + 1


def test_the_lengths_of_batches_decide_nothing(library: FakeNvimgcodec) -> None:
    decoder = NvimgcodecBatchDecoder(DEVICE)
    everything = [data for name, data in FILES.items() if "tall" not in name] * 2
    alone = [decode(NvimgcodecBatchDecoder(DEVICE), [data])[0] for data in everything]
    for size in (1, 9, 2, 20, 1, 9):
        images = decode(decoder, everything[:size])
        assert all(same(image, alone[i]) for i, image in enumerate(images))


def test_a_gpu_without_engines_decodes_all_by_rule(
    monkeypatch: pytest.MonkeyPatch, stub: CudaStub
) -> None:
    library = installed(monkeypatch, FakeNvimgcodec(engines=False))
    files = list(FILES.values())
    images = decode(NvimgcodecBatchDecoder(DEVICE), files)
    assert all(same(image, by_rule(data)) for image, data in zip(images, files, strict=True))
    assert len(stage(library, BackendKind.HW_GPU_ONLY).calls) == 1


def test_a_bad_image_is_refused_alone(library: FakeNvimgcodec) -> None:
    files = list(FILES.values())[:5]
    files[1] = damaged(files[1])
    files[2] = files[2].clone()
    headers = [probe(data) for data in files]
    files[2][:2] = 0  # an unreadable stream
    images = tensors(NvimgcodecBatchDecoder(DEVICE).decode_batch(files, headers))
    assert [i for i, image in enumerate(images) if isinstance(image, ValueError)] == [1, 2]
    assert all(isinstance(images[i], torch.Tensor) for i in (0, 3, 4))


def test_the_rule_is_left_to_us_and_the_stream_is_the_current_one(
    library: FakeNvimgcodec, stub: CudaStub
) -> None:
    """Nothing is made before the first batch."""
    decoder = NvimgcodecBatchDecoder(DEVICE)
    assert decoder.version() is not None
    assert not library.decoders
    decode(decoder, list(FILES.values()))
    decode(decoder, [FILES["jpeg 4:2:0"]])
    assert len(library.decoders) == 2
    assert len(pickle.dumps(decoder)) < 500
    decode(NvimgcodecBatchDecoder(torch.device("cuda")), [FILES["jpeg 4:2:0"]])
    assert [decoder.device_id for decoder in library.decoders] == [0, 0, 3, 3]
    for made in library.decoders:
        assert made.options == ":fancy_upsampling=1"
        for _, params, cuda_stream in made.calls:
            assert params == {"exif": False, "color": "srgb", "depth": False}
            assert cuda_stream == 77
    assert stub.events == ["wait"] * 3


def test_the_pool_keeps_the_memory_of_two_batches_of_each_decoder(
    library: FakeNvimgcodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the system takes back memory that the next batch needs."""
    kept: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "keep_freed_memory", lambda *share: kept.append(share))
    monkeypatch.setattr(module, "_DECODERS", weakref.WeakSet())
    usual, photo = encode(Image.new("RGB", (500, 375))), FILES["jpeg 4:2:0"]
    assert bytes_to_keep([probe(usual)] * 256) >= 2 * 256 * 3 * 500 * 375
    shares = [bytes_to_keep([probe(data)] * n) for data, n in ((photo, 1), (usual, 2))]
    first, second = NvimgcodecBatchDecoder(DEVICE), NvimgcodecBatchDecoder(DEVICE)
    for decoder, files in ((first, [photo]), (first, [usual] * 2), (first, [photo])):
        decode(decoder, files)
    assert kept == [(0, shares[0]), (0, shares[1])]
    decode(second, [photo])
    decode(NvimgcodecBatchDecoder(torch.device("cuda", 1)), [photo])
    assert kept[2:] == [(0, shares[0] + shares[1]), (1, shares[0])]


def test_the_real_library_has_what_is_used() -> None:
    """From 0.9 on it also decodes without a GPU, by the same names and arguments."""
    real = pytest.importorskip("nvidia.nvimgcodec", minversion="0.9")
    for kind in (BackendKind.HW_GPU_ONLY, BackendKind.HYBRID_CPU_GPU):
        assert real.Backend(getattr(real.BackendKind, kind.name)).load_hint == 1.0
    parameters = real.DecodeParams(
        apply_exif_orientation=False, color_spec=real.ColorSpec.SRGB, allow_any_depth=False
    )
    assert not parameters.apply_exif_orientation
    data = FILES["jpeg 4:2:0"]
    decoder = real.Decoder(
        device_id=real.NVIMGCODEC_DEVICE_CPU_ONLY,
        max_num_cpu_threads=1,
        backends=[real.Backend(real.BackendKind.CPU_ONLY)],
        options=module.OPTIONS,
    )
    streams = [real.CodeStream(data.numpy())]
    (image,) = decoder.decode(streams, params=parameters, cuda_stream=0)
    assert inspect.isroutine(image.to_dlpack)
    assert torch.equal(torch.asarray(np.asarray(image)).permute(2, 0, 1), by_rule(data))
