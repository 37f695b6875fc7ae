"""DALI's real decoder on the CPU."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from stateful_gpu_loader.decoders import JpegHeader, dali, probe
from stateful_gpu_loader.decoders.batch_rule import decode_batch_by_rule, is_common_jpeg
from stateful_gpu_loader.decoders.dali import DaliDecoder, PipelinePool
from tests.decoders.cuda_stub import same, tensors
from tests.decoders.variants import by_rule, common_jpegs, photo, pillow_variants
from tests.images import PHOTOGRAPHS, encode, photograph
from tests.patience import seconds

pytest.importorskip("nvidia.dali")

PHOTOS = [encode(photograph(name), quality=90) for name in PHOTOGRAPHS]
COMMON = common_jpegs()


@pytest.fixture
def decoder() -> DaliDecoder:
    return DaliDecoder()


def decode(decoder: DaliDecoder, data: torch.Tensor) -> torch.Tensor:
    return decoder.decode(data, probe(data))


def decode_all(files: list[torch.Tensor]) -> list[Any]:
    """Decode in one run of DALI; the decoder itself takes one image at a time."""
    return tensors(decode_batch_by_rule(dali._POOL.decode, files, [probe(data) for data in files]))


def two_frames(data: torch.Tensor) -> torch.Tensor:
    """Return a progressive file with a second frame header in the middle."""
    changed = encode(photograph("coffee"), progressive=True)
    middle = changed.numel() // 2
    changed[middle : middle + 100] = torch.tensor([0xFF, 0xC0], dtype=torch.uint8).repeat(50)
    return changed


def missing_table(data: torch.Tensor) -> torch.Tensor:
    """Return a file whose first scan names a missing Huffman table."""
    position = data.numpy().tobytes().index(b"\xff\xda")
    changed = data.clone()
    changed[position + 6] = 0x33
    return changed


def test_photographs_agree_with_torchvision(decoder: DaliDecoder) -> None:
    """Within one level of rounding; bit for bit with the wheels that are installed here."""
    for data in (*PHOTOS, encode(photo(1, 1))):
        assert (decode(decoder, data).int() - by_rule(data).int()).abs().max() <= 1


@pytest.mark.parametrize("sampling", ["CSS_440", "CSS_422", "CSS_420", "CSS_444"])
def test_every_subsampling_that_is_taken_agrees_with_torchvision(
    decoder: DaliDecoder, sampling: str
) -> None:
    """A lossless rotation of a 4:2:2 photograph gives 4:4:0. Pillow does not write it."""
    codec = pytest.importorskip("nvidia.nvimgcodec", minversion="0.9")
    encoder = codec.Encoder(device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY)
    parameters = codec.EncodeParams(
        quality_value=90, chroma_subsampling=getattr(codec.ChromaSubsampling, sampling)
    )
    pixels = by_rule(PHOTOS[2]).permute(1, 2, 0).contiguous().numpy()
    stream = encoder.encode(codec.as_image(pixels), codec="jpeg", params=parameters)
    data = torch.frombuffer(bytearray(memoryview(stream)), dtype=torch.uint8)
    header = probe(data)
    assert is_common_jpeg(header)
    assert isinstance(header, JpegHeader)
    assert header.subsampling.replace(":", "") == sampling.removeprefix("CSS_")
    # DALI equals Pillow bit for bit; torchvision 0.23 upsamples the chroma of 4:4:0 differently.
    levels = 2 if sampling == "CSS_440" else 1
    assert (decode(decoder, data).int() - by_rule(data).int()).abs().max() <= levels


def test_batches_of_changing_lengths_give_what_single_images_give(decoder: DaliDecoder) -> None:
    """Every common variant: 1 x 1 pixels and 20,000; grey, progressive and turned images."""
    files = [*PHOTOS, *COMMON.values()]
    alone = [decode(decoder, data) for data in files]
    for size in (1, 6, 2, 6, len(files), 5, 1):
        assert all(map(same, decode_all(files[:size]), alone))


def test_delivered_pixels_outlive_later_batches_and_their_pipeline() -> None:
    """DALI's other executors write the next batch over the last one's pixels."""
    pool = PipelinePool(device_id=None, num_threads=1)
    kept = [
        (image, data)
        for turn in range(6)
        for image, data in zip(pool.decode(PHOTOS[turn:]), PHOTOS[turn:], strict=True)
    ]
    del pool
    decode_all(PHOTOS)
    assert all(same(image, by_rule(data)) for image, data in kept)


@pytest.mark.parametrize("make", [two_frames, missing_table])
def test_a_bad_file_costs_none_of_the_others_and_is_refused_each_time(
    decoder: DaliDecoder, make: Any
) -> None:
    """One bad file breaks a pipeline permanently."""
    files = [make(data) if i in (1, 4) else data for i, data in enumerate(PHOTOS)]
    for _ in range(3):
        images = decode_all(files)
        assert [i for i, image in enumerate(images) if isinstance(image, ValueError)] == [1, 4]
        assert all(same(images[i], by_rule(PHOTOS[i])) for i in (0, 2, 3, 5))
        with pytest.raises(ValueError, match=r"^JPEG cannot be decoded: DALI failed to decode it$"):
            decode(decoder, files[1])
        assert same(decode(decoder, PHOTOS[1]), by_rule(PHOTOS[1]))


def test_what_dali_is_not_given_is_decoded_by_torchvision(
    decoder: DaliDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_at_all(pool: PipelinePool, data: Any) -> Any:
        raise AssertionError("DALI was asked")

    monkeypatch.setattr(PipelinePool, "decode", none_at_all)
    for name in ("jpeg cmyk", "jpeg rgb", "png rgba", "webp animated"):
        data = pillow_variants()[name]
        assert same(decode(decoder, data), by_rule(data))
    with pytest.raises(AssertionError, match="DALI was asked"):
        decode(decoder, PHOTOS[0])


def test_the_machines_faults_are_not_the_files(
    decoder: DaliDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI reports both in one long text."""
    report = "Critical error in pipeline:\nError in CPU operator\nstd::bad_alloc\n"

    class Exhausted:
        def feed_input(self, name: str, data: Any) -> None:
            raise RuntimeError(report)

    monkeypatch.setattr(
        "stateful_gpu_loader.decoders.dali.build", lambda *sizes, **options: Exhausted()
    )
    monkeypatch.setattr(
        "stateful_gpu_loader.decoders.dali._POOL", PipelinePool(device_id=None, num_threads=1)
    )
    with pytest.raises(torch.OutOfMemoryError):
        decode_all(PHOTOS)
    with pytest.raises(RuntimeError, match="bad_alloc"):
        decode(decoder, PHOTOS[0])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batch sizes of the pipelines that were built."""
    sizes: list[int] = []
    build = dali.build

    def counted(size: int, **options: Any) -> Any:
        sizes.append(size)
        return build(size, **options)

    monkeypatch.setattr(dali, "build", counted)
    return sizes


def test_a_pipeline_is_used_again_until_it_is_too_short_or_failed(built: list[int]) -> None:
    """DALI calls a pipeline invalid after an error, though 2.4 would still run it on the CPU."""
    pool = PipelinePool(device_id=None, num_threads=1)
    for length in (1, 1, 3, 4, 2, 5, 1):
        assert len(pool.decode(PHOTOS[:length])) == length
    assert built == [1, 4, 8]
    with pytest.raises(RuntimeError):
        pool.decode([PHOTOS[0], missing_table(PHOTOS[1])])
    pool.decode(PHOTOS[:1])
    assert built == [1, 4, 8, 1]


def test_threads_share_no_pipeline(decoder: DaliDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    run, running = dali.run, set[int]()

    def run_alone(pipeline: Any, data: Any) -> Any:
        assert id(pipeline) not in running
        running.add(id(pipeline))
        try:
            return run(pipeline, data)
        finally:
            running.remove(id(pipeline))

    monkeypatch.setattr(dali, "run", run_alone)
    expected = [by_rule(data) for data in PHOTOS]
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda i: decode(decoder, PHOTOS[i % 6]), range(48)))
    assert all(same(image, expected[i % 6]) for i, image in enumerate(images))


def test_another_process_builds_its_own_and_frees_none(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline inherited by a fork would hang, when it runs and when it is freed."""
    pool = PipelinePool(device_id=None, num_threads=1)
    pool.decode(PHOTOS[:1])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    pool.decode(PHOTOS[:1])
    monkeypatch.undo()
    assert built == [1, 1]
    assert sorted(pool._idle) == [-1, os.getpid()]


class Photos(Dataset[torch.Tensor]):
    def __init__(self, decoder: DaliDecoder) -> None:
        self.decoder = decoder

    def __len__(self) -> int:
        return len(PHOTOS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(self.decoder, PHOTOS[index])


@pytest.mark.dali
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_decode_after_the_parent_did(decoder: DaliDecoder, method: str) -> None:
    """A pipeline inherited by a fork would hang, because its threads are missing."""
    decode(decoder, PHOTOS[0])
    loader = DataLoader(
        Photos(decoder),
        batch_size=None,
        num_workers=1,
        timeout=seconds(12),
        multiprocessing_context=multiprocessing.get_context(method),
    )
    for image, data in zip(loader, PHOTOS, strict=True):
        assert same(image, by_rule(data))


def test_a_fork_ends_though_it_inherited_pipelines(decoder: DaliDecoder) -> None:
    """A decoder holds no state."""
    decode(decoder, PHOTOS[0])
    assert len(pickle.dumps(decoder)) < 300
    assert decoder.version() == dali.require_dali().__version__
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join(seconds(6))
    assert child.exitcode == 0
