"""Batches follow the rule: each image is judged by itself, and never blamed for the machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from stateful_gpu_loader.decoders import probe
from stateful_gpu_loader.decoders.batch_rule import decode_batch_by_rule
from stateful_gpu_loader.errors import LoaderError
from tests.decoders.cuda_stub import (
    CudaStub,
    damaged,
    decode_as_stored,
    is_damaged,
    same,
    tensors,
)
from tests.decoders.variants import NO_MEMORY, WITHOUT_CAUSE, by_rule, exif, photo
from tests.images import encode


class AllOrNothing:
    """Fails for the whole batch on one bad image, as torch's operators do."""

    def __init__(self, message: str = "Failed to decode batch: 3") -> None:
        self.message = message
        self.sizes: list[int] = []

    def __call__(self, data: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        self.sizes.append(len(data))
        if any(is_damaged(each) for each in data):
            raise RuntimeError(self.message)
        return [decode_as_stored(each) for each in data]


class OneByOne(AllOrNothing):
    """Returns None for each bad image, as nvImageCodec does."""

    def __call__(self, data: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        self.sizes.append(len(data))
        return [None if is_damaged(each) else decode_as_stored(each) for each in data]


FILES = [encode(photo(40 + i, 50), exif=exif(1 + i)) for i in range(8)]
HEADERS = [probe(data) for data in FILES]


@pytest.mark.parametrize("backend", [AllOrNothing, OneByOne])
@pytest.mark.parametrize("bad", [set(), {0}, {7}, {2, 3, 5}, set(range(8))], ids=str)
def test_an_image_gets_the_same_answer_in_any_batch(
    backend: type[AllOrNothing], bad: set[int]
) -> None:
    """With other images or alone, with good ones or bad ones; orientations are applied.

    A good batch is one call.
    """
    files = [damaged(data) if i in bad else data for i, data in enumerate(FILES)]
    decode = backend()
    images = tensors(decode_batch_by_rule(decode, files, HEADERS))
    assert bad or decode.sizes == [8]
    for i, (image, header) in enumerate(zip(images, HEADERS, strict=True)):
        (alone,) = tensors(decode_batch_by_rule(backend(), [files[i]], [header]))
        if i in bad:
            assert isinstance(image, ValueError)
            assert str(image) == str(alone)
        else:
            assert same(image, by_rule(FILES[i]))
            assert same(image, alone)


def test_a_refusal_in_company_is_tried_again_alone() -> None:
    """A backend may lose an image because of its neighbours. The bytes do not decide that."""
    calls: list[int] = []

    def loses_the_second(data: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        calls.append(len(data))
        return [
            None if len(data) > 1 and i == 1 else decode_as_stored(each)
            for i, each in enumerate(data)
        ]

    images = tensors(decode_batch_by_rule(loses_the_second, FILES[:3], HEADERS[:3]))
    assert calls == [3, 1]
    assert all(isinstance(image, torch.Tensor) for image in images)


def test_torchs_own_want_of_memory_is_raised_as_it_is() -> None:
    def exhausted(data: list[torch.Tensor]) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    with pytest.raises(torch.OutOfMemoryError, match=r"^tried to allocate 2 GiB$"):
        decode_batch_by_rule(exhausted, FILES, HEADERS)


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        (
            (
                "Failed to get image info: 5",
                "Error while decoding JPEG images: Failed to decode batch: 5",
                "CUDA out of memory. Tried to allocate 2.00 GiB",
                "CUDA runtime API error cudaErrorMemoryAllocation (2)",
                *NO_MEMORY,
            ),
            torch.OutOfMemoryError,
            None,
        ),
        # torch 2.11 says no more than this when an allocation fails.
        (WITHOUT_CAUSE, LoaderError, r"does not say why: .*ops\.h"),
        (
            (
                "decode_jpegs_cuda: torchvision not compiled with nvJPEG support",
                "CUDA error: an illegal memory access was encountered",
                "CUDA driver version is insufficient for CUDA runtime version",
                "Failed to initialize nvjpeg with hardware backend: 6",
                "Failed to create nvjpeg state: 8",
                "Failed to synchronize CUDA stream: 700",
                "Failed to decode batch: 1",
                "/src/decode_jpegs_cuda.cpp, nvjpeg.cpp:12, Failed to decode batch: 7",
            ),
            LoaderError,
            r"on this GPU: .*\. Remedy: pass another decoder=",
        ),
    ],
    ids=["want of memory", "without a cause", "a broken machine"],
)
def test_faults_of_the_machine_are_no_faults_of_the_bytes(
    messages: Sequence[str], error: type[Exception], text: str | None
) -> None:
    """Decoding on the CPU instead would change pixels silently."""
    for message in messages:
        for good in ([], FILES):
            files = [*good, damaged(FILES[0])]
            headers = [probe(data) for data in [*good, FILES[0]]]
            with pytest.raises(error, match=text):
                decode_batch_by_rule(AllOrNothing(message), files, headers)


def test_what_nvjpeg_says_of_bytes_is_a_refusal() -> None:
    for status in (2, 3, 4, 6, 8, 9, 10):
        decode = AllOrNothing(f"Error while decoding JPEG images: Failed to parse: {status}\nmore")
        (answer,) = tensors(decode_batch_by_rule(decode, [damaged(FILES[0])], HEADERS[:1]))
        assert isinstance(answer, ValueError)


def test_pixels_of_another_shape_than_the_header_says_are_refused() -> None:
    images = tensors(decode_batch_by_rule(AllOrNothing(), FILES[:2], [HEADERS[0], HEADERS[0]]))
    assert isinstance(images[0], torch.Tensor)
    assert isinstance(images[1], ValueError)
    assert "its header says [3, 40, 50]" in str(images[1])

    def grey(data: list[torch.Tensor]) -> list[torch.Tensor]:
        return [decode_as_stored(each)[:1] for each in data]

    (answer,) = tensors(decode_batch_by_rule(grey, FILES[:1], HEADERS[:1]))
    assert isinstance(answer, ValueError)


@pytest.mark.parametrize("backend", [AllOrNothing, OneByOne])
def test_a_refusal_on_a_full_gpu_is_want_of_memory(
    backend: type[AllOrNothing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the backend reports. The limit may be the GPU's or torch's own."""
    stub = CudaStub(monkeypatch)
    bad = [*FILES[:3], damaged(FILES[3])]
    assert isinstance(decode_batch_by_rule(backend(), bad, HEADERS[:4])[3], ValueError)
    stub.free_bytes = 2**20
    decode_batch_by_rule(backend(), FILES, HEADERS)
    with pytest.raises(torch.OutOfMemoryError, match=r"GPU 3 .* 1048576 of \d+ bytes.*Remedy"):
        decode_batch_by_rule(backend(), bad, HEADERS[:4])
    stub.free_bytes, stub.bytes_of_torch = 2**36, 2**20
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        decode_batch_by_rule(backend(), bad, HEADERS[:4])


def test_a_bad_image_costs_few_calls() -> None:
    """One of itself if it is alone, some of a large batch; an empty batch costs none."""
    decode = AllOrNothing()
    assert decode_batch_by_rule(decode, [], []) == []
    (answer,) = tensors(decode_batch_by_rule(decode, [damaged(FILES[0])], HEADERS[:1]))
    assert decode.sizes == [1]
    assert str(answer).startswith("JPEG cannot be decoded")
    decode, files = AllOrNothing(), FILES * 32
    files[77] = damaged(files[77])
    images = tensors(decode_batch_by_rule(decode, files, HEADERS * 32))
    assert [i for i, image in enumerate(images) if isinstance(image, ValueError)] == [77]
    assert len(decode.sizes) == 1 + 2 * 8
