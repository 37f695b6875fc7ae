"""Each recipe's pixels are torchvision's, for the numbers that were drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import transforms as T
from tests.torchvisions_words import in_torchvisions_words
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise, sizes_of

PHOTOGRAPHS = [
    decoded("coffee")[:, :250, :233],
    decoded("rocket").contiguous()[:, :150, :201],
    as_float(decoded("chelsea")[:, :150, :200]),
    as_float(noise(37, 53)).double(),
]
ODD = [noise(*size) for size in ODD_SIZES]
JITTER = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)

ByTorchvision = Callable[[Any, Tensor, list[Any]], Tensor]
"""Result of a torchvision transform for an image and the recipe's numbers."""


def of(reference: Any, *names: str) -> dict[str, Any]:
    """Return arguments of a torchvision transform; ``fill`` is the number for images."""
    given = {name: getattr(reference, name) for name in names if name != "fill"}
    return given | ({"fill": reference._fill["others"]} if "fill" in names else {})


def affine(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    angle, x, y, scale, *shear = numbers
    how = of(reference, "interpolation", "fill", "center")
    return F.affine(image, angle, [int(x), int(y)], scale, shear, **how)


def rotated(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    how = of(reference, "interpolation", "expand", "center", "fill")
    return F.rotate(image, numbers[0], **how)


def cropped(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    *padding, top, left = numbers
    assert padding == reference.make_params([image])["padding"]
    if any(padding):
        image = F.pad(image, padding, **of(reference, "fill", "padding_mode"))
    height, width = reference.size
    assert 0 <= top <= image.shape[1] - height
    assert 0 <= left <= image.shape[2] - width
    return F.crop(image, top, left, height, width)


def resized_crop(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    top, left, height, width = numbers
    assert 0 <= top <= image.shape[1] - height < image.shape[1]
    assert 0 <= left <= image.shape[2] - width < image.shape[2]
    how = of(reference, "interpolation", "antialias")
    return F.resized_crop(image, *numbers, reference.size, **how)


def jittered(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    for operation in map(int, numbers[:4]):
        if getattr(reference, T.ColorJitter.number_names[4 + operation]) is not None:
            image = JITTER[operation](image, numbers[4 + operation])
    return image


def erased(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    *box, _, _ = numbers
    return F.erase(image, *box, torch.tensor(reference.value, dtype=torch.float32).view(-1, 1, 1))


def grey(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    return F.rgb_to_grayscale(image, num_output_channels=3) if numbers[0] else image


def normalized(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    floats = image if image.is_floating_point() else F.to_dtype(image, torch.float32, scale=True)
    return F.normalize(floats, reference.mean, reference.std)


def as_it_is(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    return reference(image)


def by_chance(function: Callable[[Any, Tensor], Tensor]) -> ByTorchvision:
    return lambda reference, image, numbers: function(reference, image) if numbers[0] else image


def resized(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    return F.resize(image, numbers, **of(reference, "interpolation", "antialias"))


def in_perspective(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    acts, *corners = numbers
    if not acts:
        return image
    height, width = image.shape[1:]
    before = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    after = np.array(corners).reshape(4, 2).tolist()
    return F.perspective(image, before, after, **of(reference, "interpolation", "fill"))


def distorted(reference: Any, image: Tensor, numbers: list[Any]) -> Tensor:
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    params = {
        name: factor if acts else None
        for name, acts, factor in zip(names, numbers[:8:2], numbers[1:8:2], strict=True)
    }
    params["contrast_before"] = bool(numbers[8])
    params["channel_permutation"] = [int(channel) for channel in numbers[9:]]
    if image.shape[0] == 1:
        params["channel_permutation"] = None
    made: Tensor = reference.transform(image, params)
    return made


@dataclass(frozen=True)
class Case:
    """A kind of recipe, and torchvision's pixels for its numbers."""

    kind: str
    expected: ByTorchvision
    arguments: Sequence[dict[str, Any]]
    images: Sequence[Tensor] = (*PHOTOGRAPHS, *ODD)
    level: int = 0
    """Levels by which one in ten thousand bytes may differ."""
    atol: float = 0.0
    """Allowed difference of floats."""
    share: float = 0.0
    """Share of pixels that may differ by anything: coordinates that round to another pixel."""


CASES = [
    Case(
        "RandomAffine",
        affine,
        [
            {"degrees": 30},
            {"degrees": 0, "translate": (0.3, 0.1), "interpolation": "bilinear"},
            {"degrees": (-90, 90), "scale": (0.3, 2.0), "fill": (124, 116, 104)},
            {"degrees": 5, "shear": 20, "interpolation": "bilinear", "fill": None},
            {"degrees": 5, "shear": (1, 2, -30, 30), "center": (3, 50), "fill": 7},
        ],
    ),
    Case(
        "RandomRotation",
        rotated,
        [
            {"degrees": 30},
            {"degrees": (-10, 200), "interpolation": "bilinear"},
            {"degrees": 45, "interpolation": "bilinear", "fill": (124, 116, 104)},
            {"degrees": 45, "expand": True, "fill": None},
            {"degrees": [90, 90], "expand": True},
            {"degrees": [180, 180]},
            {"degrees": 180, "center": (10, 20), "fill": 7},
        ],
    ),
    Case("CenterCrop", as_it_is, [{"size": size} for size in (1, 4, 224, (2, 300))]),
    Case(
        "RandomCrop",
        cropped,
        [
            {"size": (30, 40)},
            {"size": 37, "padding": 8},
            {"size": 37, "padding": (3, 0)},
            {"size": 37, "padding": [1, 2, 3, 4], "fill": (124, 116, 104)},
            {"size": 37, "padding": 0, "fill": 5},
            {"size": 300, "pad_if_needed": True},
            {"size": 300, "pad_if_needed": True, "fill": (124, 116, 104)},
            {"size": (60, 40), "padding": 5, "pad_if_needed": True, "padding_mode": "edge"},
            {"size": 37, "padding": 9, "padding_mode": "reflect"},
            {"size": 37, "padding": 9, "padding_mode": "symmetric", "fill": [7]},
            {"size": 37, "padding": (-3, 5)},
        ],
        images=PHOTOGRAPHS,
    ),
    Case(
        "RandomResizedCrop",
        resized_crop,
        [
            {"size": (96, 64)},
            {"size": 32, "interpolation": "bicubic"},
            {"size": 32, "interpolation": "nearest"},
            {"size": (96, 64), "antialias": False},
        ],
    ),
    Case("RandomHorizontalFlip", by_chance(lambda _, image: F.horizontal_flip(image)), [{}]),
    Case("RandomVerticalFlip", by_chance(lambda _, image: F.vertical_flip(image)), [{}]),
    Case(
        "Resize",
        as_it_is,
        [
            {"size": 256},
            {"size": [100]},
            {"size": (192, 256)},
            {"size": 100, "max_size": 120},
            {"size": None, "max_size": 200},
            {"size": 128, "interpolation": "nearest"},
            {"size": 128, "interpolation": InterpolationMode.NEAREST_EXACT},
            {"size": 128, "interpolation": "bicubic"},
            {"size": 128, "interpolation": 2, "antialias": False},
            {"size": 128, "interpolation": InterpolationMode.BICUBIC, "antialias": None},
        ],
    ),
    Case(
        "GaussianBlur",
        lambda reference, image, sigma: F.gaussian_blur(image, reference.kernel_size, sigma * 2),
        [
            {"kernel_size": 3},
            {"kernel_size": [1]},
            {"kernel_size": (5, 9), "sigma": (0.1, 5)},
            {"kernel_size": (1, 3), "sigma": 1},
            {"kernel_size": 23, "sigma": [2.5]},
        ],
        images=[*PHOTOGRAPHS, noise(12, 23)],
    ),
    Case(
        "ColorJitter",
        jittered,
        [
            {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
            {"hue": 0.1},
            {},
            *({name: 0.4} for name in T.ColorJitter.number_names[4:]),
        ],
        images=[*PHOTOGRAPHS, *ODD, *(image[:1] for image in ODD)],
        level=1,
        atol=2e-6,
    ),
    Case("RandomGrayscale", grey, [{"p": 0.5}], atol=1e-15),
    Case("RandomInvert", by_chance(lambda _, image: F.invert(image)), [{}]),
    Case(
        "RandomPosterize",
        by_chance(lambda reference, image: F.posterize(image, reference.bits)),
        [{"bits": bits} for bits in (0, 1, 4, 8)],
    ),
    Case(
        "RandomSolarize",
        by_chance(lambda reference, image: F.solarize(image, reference.threshold)),
        [{"threshold": threshold} for threshold in (0, 0.3, 1.0)],
    ),
    Case(
        "RandomSolarize",
        by_chance(lambda reference, image: F.solarize(image, reference.threshold)),
        [{"threshold": threshold} for threshold in (100.5, 128, 255)],
        images=[*PHOTOGRAPHS[:2], *ODD],
    ),
    Case("RandomAutocontrast", by_chance(lambda _, image: F.autocontrast(image)), [{}]),
    Case("RandomEqualize", by_chance(lambda _, image: F.equalize(image)), [{}]),
    Case(
        "RandomAdjustSharpness",
        by_chance(lambda reference, image: F.adjust_sharpness(image, reference.sharpness_factor)),
        [{"sharpness_factor": factor} for factor in (0, 0.5, 1, 2.5)],
        level=1,
        atol=2e-6,
    ),
    Case("Grayscale", as_it_is, [{"num_output_channels": 3}], atol=1e-15),
    Case(
        "Pad",
        as_it_is,
        [
            {"padding": 8},
            {"padding": (3, 0), "fill": 9},
            {"padding": [1, 2, 3, 4], "fill": (124, 116, 104)},
            {"padding": 9, "padding_mode": "edge"},
            {"padding": 9, "padding_mode": "reflect"},
            {"padding": 9, "padding_mode": "symmetric", "fill": [7]},
            {"padding": (-3, 5)},
        ],
        images=PHOTOGRAPHS,
    ),
    Case(
        "RandomZoomOut",
        lambda reference, image, numbers: F.pad(image, numbers, reference._fill["others"]),
        [{"p": 0.9}, {"fill": (124, 116, 104), "side_range": (1.5, 2.0), "p": 1.0}],
    ),
    *(
        Case(kind, resized, arguments, images=PHOTOGRAPHS)
        for kind, arguments in {
            "RandomResize": [
                {"min_size": 20, "max_size": 300},
                {"min_size": 90, "max_size": 91, "interpolation": "bicubic"},
            ],
            "RandomShortestSize": [
                {"min_size": [80, 160], "max_size": 200},
                {"min_size": 100, "antialias": False},
            ],
            "ScaleJitter": [{"target_size": (100, 80)}, {"target_size": (64, 64)}],
        }.items()
    ),
    Case(
        "RandomPerspective",
        in_perspective,
        [
            {"p": 0.9},
            {
                "distortion_scale": 0.9,
                "interpolation": "nearest",
                "fill": (124, 116, 104),
                "p": 1.0,
            },
            {"distortion_scale": 0.2, "fill": None, "p": 1.0},
        ],
        images=[*PHOTOGRAPHS, *ODD[3:6]],
        share=2e-3,
    ),
    Case(
        "RandomPhotometricDistort",
        distorted,
        [{}, {"p": 1.0, "brightness": (0.5, 2), "hue": (-0.5, 0.5)}],
        level=1,
        atol=2e-6,
    ),
    Case(
        "RandomErasing",
        erased,
        [{"p": 0.9, "value": value} for value in (0, 7.9, (1, 254.6, 3), [0.1])],
    ),
    Case(
        "Normalize",
        normalized,
        [
            {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
            {"mean": [0.5], "std": [0.25]},
        ],
        atol=1e-6,
    ),
    Case(
        "ToDtype",
        as_it_is,
        [
            {"dtype": dtype, "scale": scale}
            for scale in (False, True)
            for dtype in (
                *(torch.uint8, torch.int16),
                *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
            )
        ],
    ),
]


def assert_close(made: Tensor, expected: Tensor, case: Case) -> None:
    assert made.dtype is expected.dtype
    if case.share:
        tolerance = 1e-3 if made.is_floating_point() else 1
        differs = (made.double() - expected.double()).abs() > tolerance
        assert differs.double().mean() <= case.share
    elif made.is_floating_point():
        torch.testing.assert_close(made, expected, rtol=0, atol=case.atol)
    else:
        difference = (made.int() - expected.int()).abs()
        assert difference.max() <= case.level
        assert made.numel() < 10_000 or (difference > 0).float().mean() <= 1e-4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_pixels_are_torchvisions(case: Case) -> None:
    """Bit for bit unless the case says otherwise; sizes and dtypes are as announced."""
    for arguments in case.arguments:
        recipe = getattr(T, case.kind)(**arguments)
        reference = getattr(v2, case.kind)(**in_torchvisions_words(arguments))
        for image in case.images:
            n = 3 if recipe.num_draws else 1
            uniforms = np.random.default_rng(0).random((n, recipe.num_draws))
            try:
                drawn = recipe.draw(uniforms, sizes_of([image] * n))
            except ValueError:
                with pytest.raises(RuntimeError):  # torchvision raises when it makes the pixels
                    reference(image)
                continue
            for numbers, size in zip(drawn.numbers.tolist(), drawn.sizes.tolist(), strict=True):
                made = recipe.apply(image, numbers)
                assert_close(made, case.expected(reference, image, numbers), case)
                assert list(made.shape[1:]) == size
                assert made.dtype is recipe.dtype_after(image.dtype)
