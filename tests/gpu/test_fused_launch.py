"""The fused launch equals the torch path on the same GPU, and torchvision's floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.transforms.batches import ragged
from tests.gpu.photos import MEAN, STD
from tests.images import PHOTOGRAPHS, photograph

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FORMATS = (torch.contiguous_format, torch.channels_last)

GEOMETRY = {
    "random resized crop": [T.RandomResizedCrop(96)],
    "crop and flips": [T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "resize and center crop": [T.Resize(120), T.CenterCrop(96)],
    "crop alone": [T.RandomCrop((80, 100))],
    "without antialiasing": [T.RandomResizedCrop(96, antialias=False)],
    "enlarged": [T.CenterCrop(50), T.Resize((200, 333))],
}


def _images(device: torch.device, n: int = 12) -> list[torch.Tensor]:
    """Return uint8 [3, H, W] on the device, of many sizes; every second is a view of HWC memory."""
    generator = np.random.default_rng(0)
    images = []
    for number in range(n):
        photo = photograph(PHOTOGRAPHS[number % len(PHOTOGRAPHS)])
        height, width = (int(side) for side in generator.integers(128, 301, size=2))
        pixels = torch.from_numpy(np.array(photo.crop((0, 0, width, height)))).permute(2, 0, 1)
        images.append((pixels if number % 2 else pixels.contiguous()).to(device))
    return images


def _drawn(recipes: T.Compose, images: list[torch.Tensor]) -> T.PipelineDraw:
    sizes = np.array([image.shape[1:] for image in images], dtype=np.int64)
    return recipes.draw(3, 0, np.arange(len(images)), sizes)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8 if tensor.dtype is torch.uint8 else torch.int16)


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, *DTYPES], ids=str)
@pytest.mark.parametrize("geometry", GEOMETRY.values(), ids=GEOMETRY.keys())
def test_the_launch_equals_the_torch_path(
    geometry: list[T.Recipe],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values differ by at most one level of 255 before normalising, and nearly all are equal."""
    tail = [] if dtype is torch.uint8 else [T.Normalize(MEAN, STD), T.ToDtype(dtype)]
    recipes = T.Compose([*geometry, *tail, T.ToMemoryFormat(memory_format)])
    images = _images(torch.device("cuda"))
    drawn = _drawn(recipes, images)
    fused = recipes.apply_batch(images, drawn)
    monkeypatch.setattr(ragged, "_kernels", lambda device: None)
    plain = recipes.apply_batch(images, drawn)
    assert fused.dtype is plain.dtype is dtype
    assert fused.shape == plain.shape
    assert fused.is_contiguous(memory_format=memory_format)
    level = 1.0 if dtype is torch.uint8 else 1 / (255 * min(STD))
    rounding = {torch.float16: 2**-9, torch.bfloat16: 2**-6}.get(dtype, 1e-5)
    difference = (fused.float() - plain.float()).abs()
    assert difference.max() <= level + rounding
    assert (_bits(fused) == _bits(plain)).float().mean() >= 0.995


@pytest.mark.gpu
def test_the_launch_is_used_where_there_is_triton() -> None:
    assert ragged._kernels(torch.device("cuda", torch.cuda.current_device())) is not None


def test_errors_against_torchvision_stay_under_a_level(device: torch.device) -> None:
    """At most 1/255 of full range before normalising, against unrounded float32."""
    recipes = T.Compose([T.RandomResizedCrop(96), T.RandomHorizontalFlip()])
    images = _images(device)
    drawn = _drawn(recipes, images)
    batch = recipes.apply_batch(images, drawn)
    errors = []
    for i, image in enumerate(images):
        (top, left, height, width), (is_flipped,) = drawn.sample(i)
        crop = image[:, top : top + height, left : left + width].float()
        wanted = F.resize(crop, [96, 96], antialias=True)
        wanted = F.horizontal_flip(wanted) if is_flipped else wanted
        errors.append((batch[i].float() - wanted).abs())
    everything = torch.cat([error.flatten() for error in errors])
    assert everything.max() <= 0.51  # rounding, which is half a level, and float32
    assert everything.mean() <= 0.27
