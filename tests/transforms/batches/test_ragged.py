"""Resampling ragged batches with torch gives aten's numbers, whatever else is in the batch."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from stateful_gpu_loader.transforms import batches
from stateful_gpu_loader.transforms.batches import ragged
from stateful_gpu_loader.transforms.batches.placement import Placement, Pointwise
from stateful_gpu_loader.transforms.batches.ragged import resample
from tests.images import PHOTOGRAPHS
from tests.transforms.pictures import ODD_SIZES, decoded, noise, sizes_of
from tests.transforms.ragged_pictures import laid_out
from tests.transforms.ragged_pictures import ragged as ragged_images


def resized(images: list[Tensor], size: tuple[int, int], antialias: bool) -> Placement:
    placement = Placement.of(sizes_of(images)).resize(np.array([size] * len(images)), antialias)
    assert placement is not None
    return placement


def aten(image: Tensor, size: tuple[int, int], antialias: bool) -> Tensor:
    pixels = image.unsqueeze(0).to(torch.float32).contiguous()
    return interpolate(
        pixels, size=size, mode="bilinear", align_corners=False, antialias=antialias
    )[0]


@pytest.mark.fuzz
@pytest.mark.parametrize("antialias", [True, False])
def test_error_against_aten(monkeypatch: pytest.MonkeyPatch, antialias: bool) -> None:
    """Photographs, up and down; unrounded, and rounded to bytes.

    Measured, in levels of 255: at most 9e-5, on average 4e-6, 58% to 84% of the sums bit for bit; 0
    to 3 of 10,000 bytes differ, by 1, where a sum is a half. Without antialiasing aten's own sums
    differ by 3e-3 between one thread and two.
    """
    images = [decoded(name) for name in PHOTOGRAPHS] + [noise(1, 1), noise(1000, 20)]
    for size in [(224, 224), (96, 180), (700, 650)]:
        placement = resized(images, size, antialias)
        rounded = resample(images, placement, Pointwise())
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "round_", lambda values: values)
            sums = ragged.resample_with_torch(images, placement)
        exact = torch.stack([aten(image, size, antialias) for image in images])
        error = (sums - exact).abs()
        assert error.max() <= 2e-4
        assert error.mean() <= 1e-5
        levels = (rounded.int() - exact.round().int()).abs()
        assert levels.max() <= 1
        assert (levels > 0).float().mean() <= 1e-3


@pytest.mark.fuzz
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (3, 200), (224, 224)], ids=str)
def test_odd_images(antialias: bool, size: tuple[int, int]) -> None:
    """One pixel to many and many to one."""
    images = [noise(*shape, seed=i) for i, shape in enumerate(ODD_SIZES)]
    made = resample(images, resized(images, size, antialias), Pointwise())
    exact = torch.stack([aten(image, size, antialias) for image in images])
    levels = (made.int() - exact.round().int()).abs()
    assert levels.max() <= 1
    assert (levels > 0).float().mean() <= 1e-3


@pytest.mark.parametrize("antialias", [True, False])
def test_same_size_is_a_copy(antialias: bool) -> None:
    """torchvision leaves an image of the right size alone."""
    (image,) = ragged_images([(300, 401)])
    made = resample([image], resized([image], (300, 401), antialias), Pointwise())
    assert torch.equal(made[0], image)


def test_pixels_do_not_depend_on_the_batch_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, among others, in another order, and in portions of little padding; bit for bit."""
    images = ragged_images([(61, 47), (400, 30), (75, 75), (5, 700), (61, 47)])
    placement = resized(images, (32, 40), True)
    whole = resample(images, placement, Pointwise())
    for i, image in enumerate(images):
        alone = resample([image], resized([image], (32, 40), True), Pointwise())
        assert torch.equal(alone[0], whole[i])
    backwards = resample(images[::-1], resized(images[::-1], (32, 40), True), Pointwise())
    assert torch.equal(backwards.flip(0), whole)
    for size, portions in (
        (75 * 75, [[0], [1], [2], [3], [4]]),
        (400 * 47, [[0, 1], [2], [3], [4]]),
    ):
        monkeypatch.setattr(ragged, "_PACKED_BYTES", 2 * size)
        assert [members.tolist() for members in ragged.portions(placement)] == portions
        assert torch.equal(resample(images, placement, Pointwise()), whole)


def test_memory_layout_and_default_dtype_change_no_pixel() -> None:
    """Planar, interleaved, rows with a pitch, bytes in between; a setting of the process."""
    image = noise(50, 70)
    placement, steps = resized([image], (20, 31), True), Pointwise().then("-", [3.0])
    expected = resample([image], placement, steps)
    for layout in range(4):
        view = laid_out(image, layout)
        assert torch.equal(view, image)
        assert torch.equal(resample([view], placement, steps), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(resample([image], placement, steps), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_numbers_of_channels(channels: int) -> None:
    image = noise(50, 70, channels)
    made = resample([image], resized([image], (20, 31), True), Pointwise())
    assert (made[0].int() - aten(image, (20, 31), True).round().int()).abs().max() <= 1


def test_without_a_working_triton_torch_resamples(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel that does not start here, and no triton at all: logged, not raised."""
    find = ragged._kernels.__wrapped__
    assert find(torch.device("cpu")) is None
    assert "torch resamples" in caplog.text
    caplog.clear()
    name = "stateful_gpu_loader.transforms.batches.kernels"
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(batches, "kernels", raising=False)
    assert find(torch.device("cpu")) is None
    assert f"import of {name} halted" in caplog.text


def test_memory_that_runs_out_is_no_reason_to_change_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine decides which code resamples, never its load."""

    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    pytest.importorskip("triton")
    monkeypatch.setattr(ragged, "launch", full)
    with pytest.raises(torch.OutOfMemoryError):
        ragged._kernels.__wrapped__(torch.device("cpu"))
