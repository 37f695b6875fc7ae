"""from_torchvision on timm's transforms: stand-ins, and timm itself where it is installed."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms import transforms as v1

from stateful_gpu_loader import UnsupportedTransform
from stateful_gpu_loader import transforms as T

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = T.Normalize(torch.tensor(MEAN).tolist(), torch.tensor(STD).tolist())
BILINEAR, BICUBIC = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
HAS_TIMM = importlib.util.find_spec("timm") is not None


def stand_in(name: str, module: str = "transforms", **attributes: Any) -> Any:
    """Return an object with the class name, module and attributes of one of timm's (1.0.31)."""
    kind = type(name, (), {"__module__": f"timm.data.{module}", "__call__": lambda self, x: x})
    made = kind()
    vars(made).update(attributes)
    return made


def resized_crop(interpolation: Any, size: Any = (224, 224)) -> Any:
    return stand_in(
        "RandomResizedCropAndInterpolation",
        size=size,
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        interpolation=interpolation,
    )


def erasing(**changes: Any) -> Any:
    attributes = {
        "probability": 0.25,
        "min_area": 0.02,
        "max_area": 1 / 3,
        "log_aspect_ratio": (math.log(0.3), -math.log(0.3)),
        "min_count": 1,
        "max_count": 1,
        "num_splits": 0,
        "mode": "const",
        "rand_color": False,
        "per_pixel": False,
        "device": "cpu",
    }
    return stand_in("RandomErasing", "random_erasing", **attributes | changes)


def normalized() -> list[Any]:
    to_tensor = stand_in("MaybeToTensor")
    return [to_tensor, v1.Normalize(mean=torch.tensor(MEAN), std=torch.tensor(STD))]


def training(interpolation: Any, *after: Any) -> Any:
    """Return ``create_transform(224, is_training=True)``."""
    jitter = v1.ColorJitter(0.4, 0.4, 0.4)
    return v1.Compose(
        [resized_crop(interpolation), v1.RandomHorizontalFlip(0.5), jitter, *normalized(), *after]
    )


def evaluation(*last: Any) -> Any:
    """Return ``create_transform(224, interpolation="bicubic")``."""
    return v1.Compose([v1.Resize(256, interpolation=BICUBIC), v1.CenterCrop(224), *last])


JITTERED = [T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4), NORMALIZE]


def assert_equal(transform: Any, recipes: list[T.Recipe]) -> None:
    assert T.from_torchvision(transform).fingerprint() == T.Compose(recipes).fingerprint()


def test_training() -> None:
    assert_equal(training(BILINEAR), [T.RandomResizedCrop(224), *JITTERED])


def test_a_drawn_interpolation() -> None:
    """``create_transform(224, is_training=True, interpolation="random")``, train.py's default."""
    crops = [T.RandomResizedCrop(224), T.RandomResizedCrop(224, interpolation="bicubic")]
    assert_equal(training((BILINEAR, BICUBIC)), [T.RandomChoice(crops), *JITTERED])


def test_evaluation() -> None:
    smaller = [T.Resize(256, "bicubic"), T.CenterCrop(224)]
    assert_equal(evaluation(*normalized()), [*smaller, NORMALIZE])
    for last in (stand_in("MaybePILToTensor"), stand_in("ToNumpy")):
        assert_equal(evaluation(last), smaller)
    unscaled = stand_in("ToTensor", dtype=torch.float32)
    assert_equal(evaluation(unscaled), [*smaller, T.ToDtype(torch.float32)])
    padded = stand_in("CenterCropOrPad", size=(224, 224), fill=0, padding_mode="constant")
    assert_equal(v1.Compose([padded, *normalized()]), [T.CenterCrop(224), NORMALIZE])


@pytest.mark.parametrize(("mode", "value"), [("const", 0.0), ("pixel", "random")])
def test_erasing(mode: str, value: Any) -> None:
    transform = training(BILINEAR, erasing(mode=mode, per_pixel=mode == "pixel"))
    erased = T.from_torchvision(transform).recipes[-1]
    assert isinstance(erased, T.RandomErasing)
    assert (erased.p, erased.value) == (0.25, value)
    assert erased.scale == (0.02, 1 / 3)
    assert erased.ratio == pytest.approx((0.3, 1 / 0.3), rel=1e-15)


@pytest.mark.parametrize(
    "part",
    [
        erasing(max_count=3),
        erasing(mode="rand", rand_color=True),
        stand_in("RandAugment", "auto_augment", ops=[], num_layers=2, choice_weights=None),
        stand_in("AutoAugment", "auto_augment", policy=[]),
        stand_in("AugMixAugment", "auto_augment", ops=[]),
        stand_in("ResizeKeepRatio", size=(224, 224)),
        stand_in("CenterCropOrPad", size=(8, 8), fill=(1, 0, 0), padding_mode="constant"),
        stand_in("CenterCropOrPad", size=(8, 8), fill=0, padding_mode="reflect"),
        stand_in("RandomCropOrPad", size=(8, 8), fill=0, padding_mode="reflect"),
        stand_in("TrimBorder", border_size=3),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_has_no_equal_is_refused(part: Any) -> None:
    with pytest.raises(UnsupportedTransform) as caught:
        T.from_torchvision(training(BILINEAR, part))
    assert [part.place for part in caught.value.refused] == ["transform.transforms[5]"]
    assert caught.value.refused[0].transform is part


@pytest.mark.skipif(not HAS_TIMM, reason="timm is not installed")
def test_timms_own_transforms_are_what_the_stand_ins_say() -> None:
    from timm.data import create_transform

    pairs = [
        (create_transform(224, is_training=True), training(BILINEAR)),
        (
            create_transform(224, is_training=True, interpolation="random"),
            training((BILINEAR, BICUBIC)),
        ),
        (create_transform(224, interpolation="bicubic"), evaluation(*normalized())),
        (
            create_transform(224, interpolation="bicubic", use_prefetcher=True),
            evaluation(stand_in("MaybePILToTensor")),
        ),
        *(
            (
                create_transform(224, is_training=True, re_prob=0.25, re_mode=mode),
                training(BILINEAR, erasing(mode=mode, per_pixel=mode == "pixel")),
            )
            for mode in ("const", "pixel")
        ),
    ]
    for theirs, ours in pairs:
        assert T.from_torchvision(theirs).fingerprint() == T.from_torchvision(ours).fingerprint()
    for theirs, ours in zip(pairs[-1][0].transforms, pairs[-1][1].transforms, strict=True):
        assert type(theirs).__module__.removeprefix("torchvision.") == type(
            ours
        ).__module__.removeprefix("torchvision.")
        assert type(theirs).__name__ == type(ours).__name__
        assert vars(ours).keys() <= vars(theirs).keys()


@pytest.mark.skipif(not HAS_TIMM, reason="timm is not installed")
@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "original", "augmix-m5", "3a"])
def test_timms_own_policies_are_refused(policy: str) -> None:
    from timm.data import create_transform

    transform = create_transform(224, is_training=True, auto_augment=policy)
    with pytest.raises(UnsupportedTransform, match="not those of torchvision"):
        T.from_torchvision(transform)


@pytest.mark.skipif(not HAS_TIMM, reason="timm is not installed")
def test_timms_boxes_are_distributed_as_ours() -> None:
    import random

    from scipy import stats
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import RandomResizedCropAndInterpolation

    random.seed(0)
    image = torch.empty(3, 240, 320)
    theirs = RandomResizedCropAndInterpolation(224)
    boxes = np.array([theirs.get_params(image, theirs.scale, theirs.ratio) for _ in range(3000)])
    (recipe,) = T.from_torchvision(theirs).recipes
    uniforms = np.random.default_rng(0).random((3000, recipe.num_draws))
    ours = recipe.draw(uniforms, np.full((3000, 2), (240, 320))).numbers
    for column in range(4):
        assert stats.ks_2samp(boxes[:, column], ours[:, column]).pvalue > 1e-4
    eraser = RandomErasing(1.0, device="cpu")
    areas = [float((eraser(torch.ones(1, 60, 80)) == 0).sum()) for _ in range(1000)]
    (recipe,) = T.from_torchvision(eraser).recipes
    uniforms = np.random.default_rng(1).random((1000, recipe.num_draws))
    ours = recipe.draw(uniforms, np.full((1000, 2), (60, 80))).numbers
    assert stats.ks_2samp(areas, ours[:, 2] * ours[:, 3]).pvalue > 1e-4
