"""Every installed GPU decoder, on a GPU, compared with torchvision on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import BATCH_DECODERS, BatchDecoder, make_batch_decoder, probe
from stateful_gpu_loader.errors import LoaderError
from tests.decoders.cuda_stub import tensors
from tests.decoders.variants import by_rule, common_jpegs
from tests.images import PHOTOGRAPHS, encode, photograph

pytestmark = pytest.mark.gpu

MEAN_LEVELS = 2.0
"""Allowed mean difference over an image, in levels of 255: chroma is upsampled differently."""

MOST_LEVELS = 4
"""Allowed difference of a pixel without chroma upsampling, in levels of 255: rounding."""

VARIANTS = common_jpegs()
PHOTOS = {name: encode(photograph(name), quality=90) for name in PHOTOGRAPHS}
FULL_CHROMA = {
    "photo 4:4:4": encode(photograph("coffee"), quality=90, subsampling=0),
    "photo grey": encode(photograph("coffee").convert("L"), quality=90),
    "photo 4:4:4 progressive": encode(photograph("coffee"), subsampling=0, progressive=True),
}


@pytest.fixture(params=BATCH_DECODERS)
def decoder(request: pytest.FixtureRequest) -> BatchDecoder:
    try:
        return make_batch_decoder(request.param, torch.device("cuda"))
    except LoaderError as error:
        pytest.skip(str(error))


def decode(decoder: BatchDecoder, files: list[torch.Tensor]) -> list[Any]:
    """Decode to the CPU for comparison, on a private stream as in the device stage."""
    with torch.cuda.stream(torch.cuda.Stream()):
        images = tensors(decoder.decode_batch(files, [probe(data) for data in files]))
        return [image if isinstance(image, ValueError) else image.cpu() for image in images]


def difference(image: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    expected = by_rule(data)
    assert image.shape == expected.shape
    return (image.int() - expected.int()).abs()


def test_photographs_agree_with_the_cpu(decoder: BatchDecoder) -> None:
    files = {**PHOTOS, **FULL_CHROMA}
    for (name, data), image in zip(
        files.items(), decode(decoder, list(files.values())), strict=True
    ):
        levels = difference(image, data)
        assert levels.float().mean() <= MEAN_LEVELS, name
        assert name not in FULL_CHROMA or levels.max() <= MOST_LEVELS, name


def test_every_variant_that_is_taken_is_decoded(decoder: BatchDecoder) -> None:
    """Grey, progressive, restart markers, eight orientations, 1 x 1, 20 x 20,000."""
    images = decode(decoder, list(VARIANTS.values()))
    for (name, data), image in zip(VARIANTS.items(), images, strict=True):
        assert isinstance(image, torch.Tensor), f"{name}: {image}"
        assert difference(image, data).float().mean() <= 2 * MEAN_LEVELS, name


def test_the_length_of_a_batch_decides_no_pixel(decoder: BatchDecoder) -> None:
    """Alone, in small and in large batches, by a decoder with any history.

    The large image keeps the GPU busy while the host continues with the small images after it.
    """
    large = encode(photograph("coffee").resize((4000, 3000)), quality=90, progressive=True)
    different = [large, *VARIANTS.values()]
    files = different * 4
    alone = [decode(decoder, [data])[0] for data in different] * 4
    for size in (2, len(files), 7):
        for start in range(0, len(files), size):
            images = decode(decoder, files[start : start + size])
            for image, expected in zip(images, alone[start : start + size], strict=True):
                assert torch.equal(image, expected)


def test_a_bad_image_costs_none_of_the_others(decoder: BatchDecoder) -> None:
    files = list(PHOTOS.values())
    healthy = decode(decoder, files)
    bad = encode(photograph("coffee"), progressive=True)
    middle = bad.numel() // 2
    bad[middle : middle + 400] = torch.tensor([0xFF, 0xC0], dtype=torch.uint8).repeat(200)
    for _ in range(2):
        answers = decode(decoder, [*files[:2], bad, *files[2:]])
        del answers[2]
        assert all(torch.equal(a, b) for a, b in zip(answers, healthy, strict=True))


def test_damaged_entropy_data_gives_the_same_answer_each_time(decoder: BatchDecoder) -> None:
    """Memory of an earlier image must not show through."""
    damaged = PHOTOS["chelsea"].clone()
    middle = damaged.numel() // 2
    damaged[middle : middle + 40] = 0x55
    (first,) = decode(decoder, [damaged])
    decode(decoder, list(PHOTOS.values()))
    *_, second = decode(decoder, [*PHOTOS.values(), damaged])
    assert isinstance(first, ValueError) == isinstance(second, ValueError)
    assert isinstance(first, ValueError) or torch.equal(first, second)


def test_decoding_waits_for_work_that_still_reads_freed_memory(decoder: BatchDecoder) -> None:
    """nvJPEG's engines write at once, into memory that torch's allocator has just got back."""
    files = list(PHOTOS.values())
    expected = decode(decoder, files)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(10):
            victims = [torch.ones(3, 512, 640, dtype=torch.uint8, device="cuda") for _ in files]
            torch.cuda._sleep(20_000_000)
            sums = [victim.sum() for victim in victims]
            del victims
            images = tensors(decoder.decode_batch(files, [probe(data) for data in files]))
            assert all(int(total) == 3 * 512 * 640 for total in sums)
            for image, other in zip(images, expected, strict=True):
                assert isinstance(image, torch.Tensor)
                assert torch.equal(image.cpu(), other)


def test_pixels_outlive_later_batches(decoder: BatchDecoder) -> None:
    files = list(PHOTOS.values())
    with torch.cuda.stream(torch.cuda.Stream()):
        headers = [probe(data) for data in files]
        kept = [tensors(decoder.decode_batch(files, headers)) for _ in range(5)]
        for images in kept:
            for image, first in zip(images, kept[0], strict=True):
                assert isinstance(image, torch.Tensor)
                assert isinstance(first, torch.Tensor)
                assert torch.equal(image, first)
    for image, data in zip(kept[-1], files, strict=True):
        assert isinstance(image, torch.Tensor)
        assert difference(image.cpu(), data).float().mean() <= MEAN_LEVELS
