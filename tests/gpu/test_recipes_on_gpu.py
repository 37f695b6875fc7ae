"""Every recipe on a batch on the GPU: the CPU's pixels, no wait, no launch per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stateful_gpu_loader import transforms as T
from tests.gpu.photos import MEAN, STD
from tests.images import PHOTOGRAPHS, photograph

SIDE = 96


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recipe, and the differences allowed between CPU and GPU."""

    recipe: T.Recipe
    share: float
    """Share of values that may differ by more than one level of 255. Coordinates rounded to a
    pixel, and hues at the edge of a sextant, may fall to either side.
    """


CASES = {
    "horizontal flip": Case(recipe=T.RandomHorizontalFlip(), share=0),
    "vertical flip": Case(recipe=T.RandomVerticalFlip(), share=0),
    "center crop": Case(recipe=T.CenterCrop(64), share=0),
    "random crop, padded": Case(recipe=T.RandomCrop(SIDE, padding=8), share=0),
    "resize": Case(recipe=T.Resize((64, 64)), share=0),
    "rotation": Case(recipe=T.RandomRotation(30), share=0.01),
    "affine": Case(recipe=T.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10), share=0.01),
    "color jitter": Case(recipe=T.ColorJitter(0.4, 0.4, 0.4, 0.1), share=0.005),
    "grayscale": Case(recipe=T.RandomGrayscale(0.5), share=0),
    "gaussian blur": Case(recipe=T.GaussianBlur(7, (0.1, 2.0)), share=0),
    "erasing": Case(recipe=T.RandomErasing(0.7), share=0),
    "erasing, noise": Case(recipe=T.RandomErasing(0.7, value="random"), share=0),
    "trivial augment": Case(recipe=T.TrivialAugmentWide(), share=0.01),
    "invert": Case(recipe=T.RandomInvert(), share=0),
    "posterize": Case(recipe=T.RandomPosterize(3), share=0),
    "solarize": Case(recipe=T.RandomSolarize(0.5), share=0),
    "autocontrast": Case(recipe=T.RandomAutocontrast(), share=0),
    "equalize": Case(recipe=T.RandomEqualize(), share=0),
    "sharpness": Case(recipe=T.RandomAdjustSharpness(2), share=0),
    "grey": Case(recipe=T.Grayscale(3), share=0),
    "pad": Case(recipe=T.Pad(4), share=0),
    "zoom out": Case(recipe=T.RandomZoomOut(9, (1.5, 1.5), p=1.0), share=0),
    "scale": Case(recipe=T.ScaleJitter((80, 80), (0.8, 0.8)), share=0),
    "perspective": Case(recipe=T.RandomPerspective(p=0.8), share=0.01),
    "photometric": Case(recipe=T.RandomPhotometricDistort(), share=0.005),
    "applied": Case(recipe=T.RandomApply([T.ColorJitter(0.4), T.RandomRotation(9)]), share=0.01),
    "ordered": Case(recipe=T.RandomOrder([T.GaussianBlur(3), T.RandomGrayscale(0.5)]), share=0),
    "chosen": Case(recipe=T.RandomChoice([T.GaussianBlur(3), T.RandomGrayscale(0.5)]), share=0),
    "auto augment": Case(recipe=T.AutoAugment(), share=0.02),
    "augmix": Case(recipe=T.AugMix(), share=0.02),
    "rand augment": Case(recipe=T.RandAugment(), share=0.02),
}
FLOATS = {
    "normalize": Case(recipe=T.Normalize(MEAN, STD), share=0),
    "to bfloat16": Case(recipe=T.ToDtype(torch.bfloat16), share=0),
    **CASES,
}
BYTES_ONLY = {"jpeg": Case(recipe=T.JPEG((5, 95)), share=0)}

GLOBAL_SETTINGS: dict[str, Callable[[], None]] = {
    "matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "cudnn tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", True),
    "cudnn benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn off": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
}


def _images(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return photographs [n, 3, SIDE, SIDE] on the CPU; floats from 0 to 1."""
    crops = [
        torch.from_numpy(np.array(photograph(PHOTOGRAPHS[i % len(PHOTOGRAPHS)])))
        .permute(2, 0, 1)[:, 8 * i : 8 * i + SIDE, 16 * i % 200 :][:, :, :SIDE]
        .contiguous()
        for i in range(n)
    ]
    batch = torch.stack(crops)
    return batch if dtype is torch.uint8 else batch.to(dtype) / 255


def _numbers(recipe: T.Recipe, n: int) -> np.ndarray:
    uniforms = np.random.default_rng(5).random((n, recipe.num_draws))
    return recipe.draw(uniforms, np.full((n, 2), SIDE, dtype=np.int64)).numbers


def _share_off(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of values that differ by over a level; refuse any other difference."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    levels = 1.0 if one.dtype is torch.uint8 else 255.0
    return float(((one.float() - other.float()).abs() * levels > 1.001).float().mean())


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*FLOATS, *BYTES_ONLY])
def test_pixels_are_what_the_cpu_makes_of_each_image(name: str) -> None:
    """Bytes if the recipe keeps them, and floats if it takes them."""
    case = FLOATS.get(name) or BYTES_ONLY[name]
    for dtype in (torch.uint8, torch.float32)[: 1 if name in BYTES_ONLY else 2]:
        if dtype is torch.uint8 and case.recipe.dtype_after(dtype) is not torch.uint8:
            continue
        images, numbers = _images(16, dtype), _numbers(case.recipe, 16)
        rows = zip(images, numbers.tolist(), strict=True)
        wanted = torch.stack([case.recipe.apply(image, row) for image, row in rows])
        batch = case.recipe.apply_batch(images.cuda(), numbers)
        assert batch.is_cuda
        assert _share_off(batch.cpu(), wanted) <= case.share


@contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _num_kernels(recipe: T.Recipe, images: torch.Tensor, numbers: np.ndarray) -> int:
    recipe.apply_batch(images, numbers)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        recipe.apply_batch(images, numbers)
        torch.cuda.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in found.events())


@pytest.mark.gpu
@pytest.mark.parametrize("case", (CASES | BYTES_ONLY).values(), ids=CASES | BYTES_ONLY)
def test_recipes_do_not_synchronize_and_launches_do_not_grow_with_the_batch(case: Case) -> None:
    images, numbers = _images(16, torch.uint8).cuda(), _numbers(case.recipe, 16)
    once = _num_kernels(case.recipe, images, numbers)  # the first call may wait for libraries
    with _no_waiting():
        case.recipe.apply_batch(images, numbers)
    twice = _num_kernels(case.recipe, images.repeat(2, 1, 1, 1), np.concatenate([numbers] * 2))
    assert twice - once < 4  # a larger sum may take two steps; samples must add no launches


@pytest.mark.gpu
def test_a_whole_pipeline_does_not_synchronize() -> None:
    recipes = T.Compose(
        [
            T.RandomResizedCrop(64),
            T.RandomHorizontalFlip(),
            T.TrivialAugmentWide(),
            T.ColorJitter(0.4, 0.4, 0.4, 0.1),
            T.Normalize(MEAN, STD),
            T.RandomErasing(0.5),
        ]
    )
    images = list(_images(16, torch.uint8).cuda().unbind(0))
    drawn = recipes.draw(1, 0, np.arange(16), np.full((16, 2), SIDE, dtype=np.int64))
    recipes.apply_batch(images, drawn)
    with _no_waiting():
        recipes.apply_batch(images, drawn)


@pytest.fixture
def _settings_restored() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.benchmark, cudnn.enabled)
    precision, dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    yield
    cudnn.allow_tf32, cudnn.benchmark, cudnn.enabled = before
    torch.set_float32_matmul_precision(precision)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(False)


@pytest.mark.fuzz
@pytest.mark.usefixtures("_settings_restored")
@pytest.mark.parametrize("change", GLOBAL_SETTINGS.values(), ids=GLOBAL_SETTINGS.keys())
def test_the_users_settings_change_no_pixel(
    change: Callable[[], None], device: torch.device
) -> None:
    """A batch is a function of the configuration, which excludes these settings."""
    calls = [
        (case.recipe, _images(4, dtype).to(device), _numbers(case.recipe, 4))
        for case in FLOATS.values()
        for dtype in (torch.uint8, torch.float32)
    ]
    before = [recipe.apply_batch(images, numbers) for recipe, images, numbers in calls]
    change()
    for (recipe, images, numbers), expected in zip(calls, before, strict=True):
        made = recipe.apply_batch(images, numbers)
        assert made.dtype is expected.dtype, recipe
        assert torch.equal(made, expected), recipe
