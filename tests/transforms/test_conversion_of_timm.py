"""from_torchvision on timm's transforms."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from timm.data import create_transform
from timm.data import transforms as theirs
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import transforms as v1

from stateful_gpu_loader import UnsupportedTransform
from stateful_gpu_loader import transforms as T

NORMALIZE = T.Normalize(
    torch.tensor((0.485, 0.456, 0.406)).tolist(), torch.tensor((0.229, 0.224, 0.225)).tolist()
)
JITTERED = [T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4), NORMALIZE]


def training(**arguments: Any) -> Any:
    return create_transform(224, is_training=True, **arguments)


def assert_equal(transform: Any, recipes: list[T.Recipe]) -> None:
    assert T.from_torchvision(transform).fingerprint() == T.Compose(recipes).fingerprint()


def test_training() -> None:
    assert_equal(training(), [T.RandomResizedCrop(224), *JITTERED])


def test_a_drawn_interpolation() -> None:
    """``interpolation="random"`` is train.py's default."""
    crops = [T.RandomResizedCrop(224), T.RandomResizedCrop(224, interpolation="bicubic")]
    assert_equal(training(interpolation="random"), [T.RandomChoice(crops), *JITTERED])


def test_evaluation() -> None:
    smaller = [T.Resize(256, "bicubic"), T.CenterCrop(224)]
    whole = create_transform(224, interpolation="bicubic")
    assert_equal(whole, [*smaller, NORMALIZE])
    assert_equal(create_transform(224, interpolation="bicubic", use_prefetcher=True), smaller)
    resized = whole.transforms[:2]
    assert_equal(v1.Compose([*resized, theirs.ToNumpy()]), smaller)
    assert_equal(v1.Compose([*resized, theirs.ToTensor()]), [*smaller, T.ToDtype(torch.float32)])
    padded = theirs.CenterCropOrPad(224)
    assert_equal(v1.Compose([padded, *whole.transforms[2:]]), [T.CenterCrop(224), NORMALIZE])


@pytest.mark.parametrize(("mode", "value"), [("const", 0.0), ("pixel", "random")])
def test_erasing(mode: str, value: Any) -> None:
    erased = T.from_torchvision(training(re_prob=0.25, re_mode=mode)).recipes[-1]
    assert isinstance(erased, T.RandomErasing)
    assert (erased.p, erased.value) == (0.25, value)
    assert erased.scale == (0.02, 1 / 3)
    assert erased.ratio == pytest.approx((0.3, 1 / 0.3), rel=1e-15)


@pytest.mark.parametrize(
    "part",
    [
        RandomErasing(max_count=3, device="cpu"),
        RandomErasing(mode="rand", device="cpu"),
        theirs.ResizeKeepRatio(224),
        theirs.CenterCropOrPad(8, fill=(1, 0, 0)),
        theirs.CenterCropOrPad(8, padding_mode="reflect"),
        theirs.RandomCropOrPad(8, padding_mode="reflect"),
        theirs.TrimBorder(3),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_has_no_equal_is_refused(part: Any) -> None:
    with pytest.raises(UnsupportedTransform) as caught:
        T.from_torchvision(v1.Compose([*training().transforms, part]))
    assert [part.place for part in caught.value.refused] == ["transform.transforms[5]"]
    assert caught.value.refused[0].transform is part


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "original", "augmix-m5", "3a"])
def test_policies_are_refused(policy: str) -> None:
    with pytest.raises(UnsupportedTransform, match="not those of torchvision"):
        T.from_torchvision(training(auto_augment=policy))


def test_boxes_are_distributed_as_ours() -> None:
    random.seed(0)
    image = torch.empty(3, 240, 320)
    crop = theirs.RandomResizedCropAndInterpolation(224)
    boxes = np.array([crop.get_params(image, crop.scale, crop.ratio) for _ in range(3000)])
    (recipe,) = T.from_torchvision(crop).recipes
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
