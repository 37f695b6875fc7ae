"""Resize and its resampling: torchvision's pixels, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import Resize
from stateful_gpu_loader.transforms.geometry.resize import crop, resize, resized_crop, resizes_bytes
from tests.transforms.pictures import ODD_SIZES, decoded, noise, rows_for, sizes_of


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    channels=st.sampled_from([1, 3, 4]),
    new_size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_short_way_equals_torchvision(
    height: int, width: int, channels: int, new_size: tuple[int, int]
) -> None:
    """The direct call of the kernel, for any size, channels, memory layout, and box of an image."""
    # To a width of 1, torch's results by way of float differ between memory layouts.
    assume(new_size[1] > 1 or resizes_bytes())
    image = noise(height + 4, width + 3, channels)
    view = crop(image, 3, 2, height, width)
    expected = F.resize(view.clone(), list(new_size))
    assert torch.equal(resize(view, new_size, "bilinear", True), expected)
    assert torch.equal(resize(view.contiguous(), new_size, "bilinear", True), expected)
    larger = crop(image, 1, 1, height + 2, width + 1)
    cut = resized_crop(larger, (2, 1, height, width), new_size, "bilinear", True)
    assert torch.equal(cut, expected)


def test_very_long_image() -> None:
    """20000 x 20 pixels, both ways."""
    for image in (noise(20000, 20), noise(20, 20000)):
        assert torch.equal(resize(image, (224, 224), "bilinear", True), F.resize(image, [224, 224]))


def test_without_native_kernel_torchvision_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU where torchvision goes by way of float, so does the recipe."""
    monkeypatch.setattr(
        "stateful_gpu_loader.transforms.geometry.resize.resizes_bytes", lambda: False
    )
    called = []
    functional = F.resize_image

    def recorded(*args: object, **kwargs: object) -> torch.Tensor:
        called.append(args)
        return functional(*args, **kwargs)

    monkeypatch.setattr(F, "resize_image", recorded)
    image = decoded("rocket")
    assert resize(image, (64, 64), "bilinear", True).shape == (3, 64, 64)
    assert called


@pytest.mark.parametrize("by_bytes", [True, False])
def test_torchvision_is_asked_whether_it_resizes_bytes(
    monkeypatch: pytest.MonkeyPatch, by_bytes: bool
) -> None:
    """Its versions, and the bytes, differ on a CPU with AVX-512."""
    monkeypatch.setattr(
        "torchvision.transforms.v2.functional._geometry._do_native_uint8_resize_on_cpu",
        lambda interpolation: by_bytes,
    )
    assert resizes_bytes.__wrapped__() is by_bytes


def test_sizes_are_those_of_the_batch() -> None:
    """Sizes are known before an image is decoded. An unchanged size is no work."""
    images = [noise(*size) for size in ODD_SIZES]
    drawn = Resize(64).draw(torch.empty(len(images), 0).double().numpy(), sizes_of(images))
    made = [
        Resize(64).apply(image, numbers)
        for image, numbers in zip(images, drawn.numbers.tolist(), strict=True)
    ]
    assert (sizes_of(made) == drawn.sizes).all()
    image = decoded("coffee")
    (numbers,) = rows_for(Resize(tuple(image.shape[1:])), image, 1)
    assert Resize(400).apply(image, numbers) is image
