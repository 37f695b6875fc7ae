"""from_torchvision: the same recipes, the same pixels for the same numbers, refusals by name."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision import models, tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import transforms as v1
from torchvision.transforms._presets import (
    ImageClassification,
    ObjectDetection,
    OpticalFlow,
    SemanticSegmentation,
)

from stateful_gpu_loader import FolderSource, StatefulGPULoader, UnsupportedTransform
from stateful_gpu_loader import transforms as T
from tests.images import kept_photos, photograph
from tests.transforms.forced import called_with
from tests.transforms.pictures import decoded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = T.Normalize(MEAN, STD)
SCALE = T.ToDtype(torch.float32, scale=True)
BICUBIC = InterpolationMode.BICUBIC


class ClassificationPresetTrain:
    """The class of torchvision's references/classification/presets.py."""

    def __init__(self, library: Any, policy: str | None, backend: str, erase: float) -> None:
        steps = [library.PILToTensor()] if backend == "tensor" else []
        steps += [library.RandomResizedCrop(176, antialias=True), library.RandomHorizontalFlip(0.5)]
        if policy == "ra":
            steps.append(library.RandAugment(interpolation=InterpolationMode.BILINEAR))
        if policy == "ta_wide":
            steps.append(library.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR))
        if policy == "augmix":
            steps.append(library.AugMix(interpolation=InterpolationMode.BILINEAR, severity=4))
        if policy in ("imagenet", "svhn"):
            chosen = torchvision.transforms.AutoAugmentPolicy(policy)
            mode = InterpolationMode.BILINEAR
            steps.append(library.AutoAugment(policy=chosen, interpolation=mode))
        if backend == "pil":
            steps.append(library.PILToTensor())
        is_v2 = library is v2
        steps += [
            v2.ToDtype(torch.float, scale=True) if is_v2 else v1.ConvertImageDtype(torch.float),
            library.Normalize(mean=MEAN, std=STD),
        ]
        if erase:
            steps.append(library.RandomErasing(p=erase))
        if is_v2:
            steps.append(v2.ToPureTensor())
        self.transforms = library.Compose(steps)

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


LIBRARIES = pytest.mark.parametrize("library", [torchvision.transforms, v2], ids=["v1", "v2"])


@LIBRARIES
@pytest.mark.parametrize("backend", ["pil", "tensor"])
@pytest.mark.parametrize("policy", [None, "ra", "ta_wide", "augmix", "imagenet", "svhn"])
def test_the_references_training_preset(library: Any, backend: str, policy: str | None) -> None:
    converted = T.from_torchvision(ClassificationPresetTrain(library, policy, backend, 0.1))
    augmented = {
        None: [],
        "ra": [T.RandAugment(interpolation="bilinear")],
        "ta_wide": [T.TrivialAugmentWide(interpolation="bilinear")],
        "augmix": [T.AugMix(4)],
        "imagenet": [T.AutoAugment("imagenet", "bilinear")],
        "svhn": [T.AutoAugment("svhn", "bilinear")],
    }[policy]
    expected = T.Compose(
        [
            T.RandomResizedCrop(176),
            T.RandomHorizontalFlip(),
            *augmented,
            NORMALIZE,
            T.RandomErasing(0.1),
        ]
    )
    assert converted.fingerprint() == expected.fingerprint()


IMAGENET_EVAL = [T.Resize(256), T.CenterCrop(224), NORMALIZE]
EQUAL: dict[str, tuple[Any, list[T.Recipe]]] = {
    "v1, evaluation": (
        v1.Compose(
            [v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), v1.Normalize(list(MEAN), list(STD))]
        ),
        IMAGENET_EVAL,
    ),
    "a preset": (ImageClassification(crop_size=224), IMAGENET_EVAL),
    "a preset, bicubic": (
        ImageClassification(crop_size=224, resize_size=238, interpolation=BICUBIC),
        [T.Resize(238, "bicubic"), T.CenterCrop(224), NORMALIZE],
    ),
    "a preset of segmentation": (
        SemanticSegmentation(resize_size=520),
        [T.Resize(520), NORMALIZE],
    ),
    "a preset that does not resize": (SemanticSegmentation(resize_size=None), [NORMALIZE]),
    "a preset of detection": (ObjectDetection(), [SCALE]),
    "a scripted Sequential": (
        nn.Sequential(v2.CenterCrop(10), v1.ConvertImageDtype(torch.float), v1.Normalize([0], [1])),
        [T.CenterCrop(10), T.Normalize([0], [1])],
    ),
    "a list": ([v2.RandomVerticalFlip(0.2), v2.ToImage()], [T.RandomVerticalFlip(0.2)]),
    "one transform": (v2.RandomHorizontalFlip(0.1), [T.RandomHorizontalFlip(0.1)]),
    "recipes among others": (
        v2.Compose([T.CenterCrop(8), v2.Compose([T.Compose([T.Resize(4)]), v2.ToImage()])]),
        [T.CenterCrop(8), T.Resize(4)],
    ),
    "dtypes in between": (
        v2.Compose(
            [
                v2.ToImage(),
                v2.ToDtype(torch.uint8, scale=True),
                v2.RandomCrop(32, padding=[1, 2, 3, 4], fill={tv_tensors.Image: 9, "others": 0}),
                v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
                v2.Normalize(torch.tensor([0.5]), [0.5], inplace=True),
                v2.Identity(),
            ]
        ),
        [T.RandomCrop(32, (1, 2, 3, 4), fill=9), T.Normalize([0.5], [0.5])],
    ),
    "a dict of types that leaves the image": (
        v2.Compose(
            [v2.PILToTensor(), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None})]
        ),
        [],
    ),
    "no scaling is kept apart": (
        v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize([127], [60])]),
        [T.ToDtype(torch.float32), T.Normalize([127], [60])],
    ),
    "half floats are kept apart": (
        v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float16), v1.Normalize([0], [1])]),
        [T.ToDtype(torch.float16, scale=True), T.Normalize([0], [1])],
    ),
    "between scaling and Normalize": (
        v1.Compose([v1.ToTensor(), v1.RandomErasing(value="random"), v1.Normalize([0], [1])]),
        [SCALE, T.RandomErasing(value="random"), T.Normalize([0], [1])],
    ),
    "Pillow averages and takes the middle": (
        v2.Compose(
            [
                v2.Resize(9, antialias=False),
                v2.Resize(8, "nearest"),
                v2.RandomResizedCrop(7, interpolation=0, antialias=None),
                v2.ToImage(),
                v2.Resize(6, antialias=False),
                v2.Resize(5, "nearest"),
                v2.RandomRotation(3),
            ]
        ),
        [
            T.Resize(9),
            T.Resize(8, "nearest-exact"),
            T.RandomResizedCrop(7, interpolation="nearest-exact"),
            T.Resize(6, antialias=False),
            T.Resize(5, "nearest"),
            T.RandomRotation(3),
        ],
    ),
    "arrays by way of Pillow": (
        v1.Compose([v1.ToPILImage(), v1.RandomCrop(32, padding=4), v1.ToTensor()]),
        [T.RandomCrop(32, padding=4), SCALE],
    ),
    "choices": (
        v2.Compose(
            [
                v2.RandomApply([v2.ColorJitter(0.4), v2.GaussianBlur(3)], p=0.8),
                v1.RandomApply(nn.ModuleList([v1.RandomGrayscale()]), 0.3),
                v2.RandomChoice(
                    [v2.Compose([v2.Resize(9), v2.CenterCrop(8)]), v2.Identity()], [3, 1]
                ),
                v1.RandomChoice([v1.CenterCrop(8), v1.RandomCrop(8)]),
                *(
                    library.RandomOrder([library.RandomInvert(), library.CenterCrop(8)])
                    for library in (v1, v2)
                ),
                v2.RandomApply([v2.ToPureTensor()]),
                v2.ToImage(),
            ]
        ),
        [
            T.RandomApply([T.ColorJitter(0.4), T.GaussianBlur(3)], p=0.8),
            T.RandomApply([T.RandomGrayscale()], 0.3),
            T.RandomChoice([T.Compose([T.Resize(9), T.CenterCrop(8)]), T.Compose([])], [3, 1]),
            T.RandomChoice([T.CenterCrop(8), T.RandomCrop(8)]),
            *[T.RandomOrder([T.RandomInvert(), T.CenterCrop(8)])] * 2,
        ],
    ),
    "tones": (
        v2.Compose(
            [
                v2.Pad([1, 2, 3, 4], 9),
                v1.Pad((1, 2), (1, 2, 3)),
                v2.Grayscale(3),
                *(library.RandomInvert(0.1) for library in (v1, v2)),
                *(library.RandomPosterize(3, 0.2) for library in (v1, v2)),
                *(library.RandomSolarize(128, 0.3) for library in (v1, v2)),
                *(library.RandomAutocontrast(0.4) for library in (v1, v2)),
                *(library.RandomEqualize(0.6) for library in (v1, v2)),
                *(library.RandomAdjustSharpness(2, 0.7) for library in (v1, v2)),
                v2.ToImage(),
            ]
        ),
        [
            T.Pad([1, 2, 3, 4], 9),
            T.Pad((1, 2), (1, 2, 3)),
            T.Grayscale(3),
            *[T.RandomInvert(0.1)] * 2,
            *[T.RandomPosterize(3, 0.2)] * 2,
            *[T.RandomSolarize(128, 0.3)] * 2,
            *[T.RandomAutocontrast(0.4)] * 2,
            *[T.RandomEqualize(0.6)] * 2,
            *[T.RandomAdjustSharpness(2, 0.7)] * 2,
        ],
    ),
    "as for detectors and segmentation": (
        v2.Compose(
            [
                v2.JPEG((20, 90)),
                v2.JPEG(50),
                v2.RandomPhotometricDistort((0.5, 2), p=0.3),
                v2.RandomZoomOut({tv_tensors.Mask: 0, "others": (1, 2, 3)}, (1, 2), 0.4),
                v2.RandomShortestSize((480, 800), 1333),
                v2.RandomResize(260, 1040, "nearest"),
                v2.ScaleJitter((1024, 512), (0.1, 1), antialias=False),
                v2.RandomPerspective(0.3, 0.2, "nearest", [1, 2, 3]),
                v1.RandomPerspective(0.3, 0.2, InterpolationMode.NEAREST, 7),
                v2.ToImage(),
            ]
        ),
        [
            T.JPEG((20, 90)),
            T.JPEG(50),
            T.RandomPhotometricDistort((0.5, 2), p=0.3),
            T.RandomZoomOut((1, 2, 3), (1, 2), 0.4),
            T.RandomShortestSize([480, 800], 1333),
            T.RandomResize(260, 1040, "nearest-exact"),
            T.ScaleJitter((1024, 512), (0.1, 1)),
            T.RandomPerspective(0.3, 0.2, "nearest", [1, 2, 3]),
            T.RandomPerspective(0.3, 0.2, "nearest", 7),
        ],
    ),
    "many arguments, v1": (
        v1.Compose(
            [
                v1.RandomAffine(9, (0.1, 0.2), (0.5, 2), 4, InterpolationMode.BILINEAR, 7, [1, 2]),
                v1.RandomRotation((1, 5), expand=True, fill=[1, 2, 3]),
                v1.ColorJitter(0.4, (0.5, 2), 0, 0.1),
                v1.RandomGrayscale(0.2),
                v1.GaussianBlur([3, 5], 2.0),
                v1.RandomCrop((4, 5), (1, 2), True, 3, "edge"),
                v1.PILToTensor(),
                v1.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), (1, 2, 3), inplace=True),
            ]
        ),
        [
            T.RandomAffine(9, (0.1, 0.2), (0.5, 2), 4, "bilinear", 7, (1, 2)),
            T.RandomRotation((1, 5), expand=True, fill=[1, 2, 3]),
            T.ColorJitter(0.4, (0.5, 2), 0, 0.1),
            T.RandomGrayscale(0.2),
            T.GaussianBlur((3, 5), 2.0),
            T.RandomCrop((4, 5), (1, 2), True, 3, "edge"),
            T.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), (1, 2, 3)),
        ],
    ),
    "many arguments, v2": (
        v2.Compose(
            [
                v2.ToImage(),
                v2.RandomAffine(9, (0.1, 0.2), (0.5, 2), [1, 2, 3, 4], fill=None, center=[1, 2]),
                v2.RandomRotation((1, 5), "bilinear", fill={tv_tensors.Image: [1, 2, 3]}),
                v2.ColorJitter(None, 0.1, hue=(0, 0.5)),
                v2.GaussianBlur(3, (1, 5)),
                v2.RandomResizedCrop((4, 5), (0.5, 1), (1, 2), BICUBIC, True),
                v2.RandomErasing(0.3, value="random", inplace=True),
                v2.RandAugment(3, 5, 20, fill=[1, 2, 3]),
                v2.TrivialAugmentWide(20, InterpolationMode.BILINEAR),
                v2.RGB(),
            ]
        ),
        [
            T.RandomAffine(9, (0.1, 0.2), (0.5, 2), [1, 2, 3, 4], fill=None, center=[1, 2]),
            T.RandomRotation((1, 5), "bilinear", fill=[1, 2, 3]),
            T.ColorJitter(None, 0.1, hue=(0, 0.5)),
            T.GaussianBlur(3, (1, 5)),
            T.RandomResizedCrop((4, 5), (0.5, 1), (1, 2), "bicubic"),
            T.RandomErasing(0.3, value="random"),
            T.RandAugment(3, 5, 20, fill=[1, 2, 3]),
            T.TrivialAugmentWide(20, "bilinear"),
        ],
    ),
}


@pytest.mark.parametrize(("transform", "recipes"), EQUAL.values(), ids=EQUAL)
def test_converted_with_the_same_arguments(transform: Any, recipes: list[T.Recipe]) -> None:
    assert T.from_torchvision(transform).fingerprint() == T.Compose(recipes).fingerprint()


def test_all_weights_of_classification_models_have_equal_recipes() -> None:
    presets = {
        repr(preset): preset
        for name in models.list_models(module=models)
        for weights in models.get_model_weights(name)
        for preset in [weights.transforms()]
    }
    assert len(presets) > 20
    for preset in presets.values():
        T.from_torchvision(preset)


def test_what_has_no_equal_is_refused_and_named_with_its_place() -> None:
    """All in one error, whose list from_dataloader and programs read."""
    parts = {
        "transform.transforms[0]": v2.FiveCrop(8),
        "transform.transforms[2].transforms[1]": v1.Lambda(len),
        "transform.transforms[3]": v2.Resize(8, "lanczos"),
        "transform.transforms[4][0]": nn.Dropout(),
        "transform.transforms[5]": v2.RandomIoUCrop(),
    }
    five, function, resize, dropout, crop = parts.values()
    transform = v2.Compose(
        [
            five,
            v2.CenterCrop(8),
            v1.Compose([v1.RandomHorizontalFlip(), function]),
            resize,
            nn.Sequential(dropout),
            crop,
        ]
    )
    with pytest.raises(UnsupportedTransform) as caught:
        T.from_torchvision(transform)
    assert {part.place: part.transform for part in caught.value.refused} == parts
    for place in parts:
        assert f"{place}: " in str(caught.value)
    assert "transform.transforms[3]: torchvision.transforms.v2.Resize(" in str(caught.value)
    reasons = [part.reason for part in caught.value.refused]
    assert "boxes" in reasons[-1]
    assert "interpolation='lanczos'" in reasons[2]
    assert "Remedy" not in "".join(reasons)


def test_the_refusal_survives_pickling() -> None:
    with pytest.raises(UnsupportedTransform) as caught:
        T.from_torchvision(len)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.refused == caught.value.refused == [("transform", len, again.refused[0].reason)]
    assert str(again) == str(caught.value)


class Shifted(v2.CenterCrop):
    """A subclass, whose code may do anything."""


class CallsTwice:
    def __init__(self) -> None:
        self.transforms = v2.Compose([v2.CenterCrop(8)])

    def __call__(self, image: Any) -> Any:
        return [self.transforms(image), self.transforms(image)]


class AddsNoise(CallsTwice):
    def __call__(self, image: Any) -> Any:
        return self.transforms(image) + 1


def hooked(transform: nn.Module, kind: str) -> nn.Module:
    getattr(transform, f"register_forward_{kind}")(lambda *given: None)
    return transform


def with_method(name: str) -> v2.CenterCrop:
    """Return a transform that has a method of its own, where its class has another."""
    crop = v2.CenterCrop(8)
    setattr(crop, name, lambda image, *given: image)
    return crop


class Wraps(nn.Module):
    """A module that only calls the transform it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Sequential(v2.CenterCrop(8), v2.FiveCrop(4))

    def forward(self, image: Any) -> Any:
        return self.transform(image)


@pytest.mark.parametrize(
    ("transform", "places"),
    [
        (None, ["transform"]),
        (len, ["transform"]),
        (Shifted(3), ["transform"]),
        (CallsTwice(), ["transform"]),
        (AddsNoise(), ["transform"]),
        (Wraps(), ["transform.transform[1]"]),
        (OpticalFlow(), ["transform"]),
        (v2.Compose([v2.PILToTensor(), v2.Normalize([0], [1])]), ["transform.transforms[1]"]),
        (v1.Compose([v1.Normalize([0], [1]), v1.ToTensor()]), ["transform.transforms[0]"]),
        (v1.Compose([v1.ToTensor(), v1.ToPILImage()]), ["transform.transforms[1]"]),
        (v1.Compose([v1.PILToTensor(), v1.ToPILImage()]), ["transform"]),
        (v1.Compose([v1.ToPILImage("L"), v1.ToTensor()]), ["transform.transforms[0]"]),
        (
            v2.Compose([v2.PILToTensor(), v2.ToDtype({tv_tensors.Mask: torch.int64}, True)]),
            ["transform.transforms[1]"],
        ),
        (v2.RandomRotation(9, "bicubic"), ["transform"]),
        (v2.Compose([hooked(v2.CenterCrop(8), "hook")]), ["transform.transforms[0]"]),
        (hooked(v2.Compose([v2.CenterCrop(8)]), "hook"), ["transform"]),
        (hooked(v1.CenterCrop(8), "pre_hook"), ["transform"]),
        (hooked(nn.Sequential(v2.CenterCrop(8)), "pre_hook"), ["transform"]),
        (with_method("forward"), ["transform"]),
        (with_method("transform"), ["transform"]),
        (v2.Grayscale(), ["transform"]),
        (
            v2.RandomApply([v2.ToImage(), v2.FiveCrop(8)]),
            [f"transform.transforms[{i}]" for i in (0, 1)],
        ),
        (
            v2.RandomOrder([v2.RandomInvert(), v2.ToImage(), len]),
            [f"transform.transforms[{i}]" for i in (1, 2)],
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_refused(transform: Any, places: list[str]) -> None:
    with pytest.raises(UnsupportedTransform) as caught:
        T.from_torchvision(transform)
    assert [part.place for part in caught.value.refused] == places


def assert_close(made: Tensor, expected: Tensor, mean: float, share: float, scale: float) -> None:
    """Compare in levels of 255: mean difference, and share of values that differ by over 2."""
    difference = (made.double() - expected.double()).abs() * scale
    assert difference.mean() <= mean
    assert (difference > 2.01).double().mean() <= share


EXACT, A_LEVEL = (0.0, 0.0), (0.6, 0.0)
CASES: dict[str, tuple[str, dict[str, Any], tuple[float, float]]] = {
    "crop": ("RandomCrop", {"size": 200, "padding": 20, "fill": 9}, EXACT),
    "horizontal flip": ("RandomHorizontalFlip", {}, EXACT),
    "vertical flip": ("RandomVerticalFlip", {}, EXACT),
    "brightness": ("ColorJitter", {"brightness": 0.4}, EXACT),
    "blur": ("GaussianBlur", {"kernel_size": 9}, (1e-4, 0.0)),
    "resize": ("Resize", {"size": 256}, (0.01, 0.0)),
    "resize, bicubic": ("Resize", {"size": 256, "interpolation": BICUBIC}, (0.02, 0.0)),
    "resized crop": ("RandomResizedCrop", {"size": 224}, (0.3, 0.0)),
    "contrast": ("ColorJitter", {"contrast": 0.4}, A_LEVEL),
    "saturation": ("ColorJitter", {"saturation": 0.4}, A_LEVEL),
    "grayscale": ("RandomGrayscale", {"p": 0.5}, A_LEVEL),
    "invert": ("RandomInvert", {}, EXACT),
    "posterize": ("RandomPosterize", {"bits": 3}, EXACT),
    "solarize": ("RandomSolarize", {"threshold": 128}, EXACT),
    "equalize": ("RandomEqualize", {}, EXACT),
    "autocontrast": ("RandomAutocontrast", {}, A_LEVEL),
    "sharpness": ("RandomAdjustSharpness", {"sharpness_factor": 2}, (1.0, 0.05)),
    "hue": ("ColorJitter", {"hue": 0.1}, (1.0, 0.15)),
    "resize, nearest": (
        "Resize",
        {"size": 99, "interpolation": InterpolationMode.NEAREST},
        (0.2, 0.01),
    ),
    "rotation": ("RandomRotation", {"degrees": 30}, (0.05, 0.004)),
    "rotation, bilinear": (
        "RandomRotation",
        {"degrees": 30, "interpolation": InterpolationMode.BILINEAR},
        (0.8, 0.008),
    ),
    "affine": (
        "RandomAffine",
        {"degrees": 30, "translate": (0.1, 0.1), "scale": (0.5, 2)},
        (0.03, 0.002),
    ),
}


@LIBRARIES
@pytest.mark.parametrize(("name", "arguments", "limits"), CASES.values(), ids=CASES)
def test_the_same_numbers_give_pillows_pixels(
    monkeypatch: pytest.MonkeyPatch, library: Any, name: str, arguments: Any, limits: Any
) -> None:
    """The documented limits between Pillow's pixels and the recipe's, for the same numbers."""
    transform = getattr(library, name)(**arguments)
    recipes = T.from_torchvision(library.Compose([transform, library.PILToTensor()]))
    for picture in ("coffee", "rocket", "chelsea"):
        pixels = decoded(picture)
        drawn = recipes.draw(7, 0, np.arange(3), np.array([pixels.shape[1:]] * 3))
        for i in range(3):
            rows = drawn.sample(i)
            made = recipes.apply(pixels, rows)
            expected = called_with(monkeypatch, [transform], photograph(picture), rows)
            expected = torch.from_numpy(np.array(expected)).permute(2, 0, 1)
            assert_close(made, expected, *limits, scale=1.0)


@LIBRARIES
def test_a_whole_pipeline_gives_torchvisions_pixels(
    monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    """From Pillow's image to the erased box, each step with the numbers of its recipe."""
    steps = [
        library.RandomResizedCrop(96),
        library.RandomHorizontalFlip(),
        library.ColorJitter(0.4, 0.4, 0.4),
        library.ToTensor() if library is not v2 else v2.PILToTensor(),
        v1.ConvertImageDtype(torch.float32),
        library.Normalize(MEAN, STD),
        library.RandomErasing(0.9, value=(0.5, -1, 2)),
    ]
    recipes = T.from_torchvision(library.Compose(steps))
    assert [type(recipe) for recipe in recipes.recipes] == [
        *(T.RandomResizedCrop, T.RandomHorizontalFlip, T.ColorJitter, T.Normalize),
        T.RandomErasing,
    ]
    pixels = decoded("astronaut")
    drawn = recipes.draw(5, 0, np.arange(8), np.array([pixels.shape[1:]] * 8))
    for i in range(8):
        rows = drawn.sample(i)
        given = [*rows[:3], None, None, None, rows[4]]
        expected = called_with(monkeypatch, steps, photograph("astronaut"), given)
        made = recipes.apply(pixels, rows)
        assert made.dtype is expected.dtype
        assert_close(made, expected, 1.0, 0.05, scale=255 * 0.226)


@pytest.mark.parametrize(
    "preset",
    [ImageClassification(crop_size=224), ImageClassification(crop_size=224, interpolation=BICUBIC)],
    ids=["bilinear", "bicubic"],
)
def test_evaluation_gives_a_presets_pixels(preset: Any) -> None:
    recipes = T.from_torchvision(preset)
    for picture in ("coffee", "rocket", "chelsea"):
        pixels = decoded(picture)
        drawn = recipes.draw(0, 0, np.arange(1), np.array([pixels.shape[1:]]))
        made = recipes.apply(pixels, drawn.sample(0))
        assert_close(made, preset(photograph(picture)), 0.02, 0.0, scale=255 * 0.226)


def test_a_loader_takes_what_was_converted() -> None:
    """It distinguishes pipelines by their recipes, as if written by hand."""
    transform = ClassificationPresetTrain(torchvision.transforms, "ra", "pil", 0.1)
    by_hand = [
        *(T.RandomResizedCrop(176), T.RandomHorizontalFlip()),
        *(T.RandAugment(interpolation="bilinear"), NORMALIZE, T.RandomErasing(0.1)),
    ]
    loaders = [
        StatefulGPULoader(FolderSource(kept_photos()), 4, shuffle=True, seed=3, transform=recipes)
        for recipes in (T.from_torchvision(transform), by_hand)
    ]
    first, second = (loader.peek() for loader in loaders)
    assert torch.equal(first[0], second[0])
    loaders[1].load_state_dict(loaders[0].state_dict())
