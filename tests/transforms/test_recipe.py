"""Properties of every recipe: pure functions, torchvision's arguments, any pipeline."""

from __future__ import annotations

import inspect
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import AutoAugmentPolicy, v2

from stateful_gpu_loader import transforms as T
from tests.images import photograph
from tests.torchvisions_words import in_torchvisions_words
from tests.transforms.pictures import as_float, decoded, noise, rows_for, sizes_of

RECIPES = [
    T.Resize(64),
    T.CenterCrop(100),
    T.RandomCrop(50, padding=3, pad_if_needed=True, fill=9),
    T.RandomResizedCrop(48),
    T.RandomHorizontalFlip(),
    T.RandomVerticalFlip(),
    T.RandomRotation(40, interpolation="bilinear", expand=True),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomGrayscale(0.5),
    T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    T.ToDtype(torch.float32, scale=True),
    T.RandomAffine(30, (0.1, 0.2), (0.8, 1.2), (-10, 10, -5, 5), interpolation="bilinear"),
    T.GaussianBlur((5, 3)),
    T.RandomErasing(0.7, value="random"),
    T.TrivialAugmentWide(),
    T.RandAugment(),
    T.ToMemoryFormat(torch.channels_last),
    T.JPEG((10, 90)),
    T.RandomResize(30, 60),
    T.RandomShortestSize([30, 60], 90),
    T.ScaleJitter((60, 50), (0.8, 1.2)),
    T.RandomZoomOut(9, (1.0, 2.0)),
    T.RandomPerspective(),
    T.RandomPhotometricDistort(),
    T.AutoAugment(),
    T.AugMix(),
    T.RandomInvert(),
    T.RandomPosterize(3),
    T.RandomSolarize(0.5),
    T.RandomAutocontrast(),
    T.RandomEqualize(),
    T.RandomAdjustSharpness(2),
    T.Grayscale(3),
    T.Pad((1, 2, 3, 4)),
    T.RandomApply([T.ColorJitter(0.4), T.RandomRotation(9)], p=0.7),
    T.RandomChoice([T.GaussianBlur(3), T.RandomHorizontalFlip(), T.RandomCrop(9, 8)], p=[2, 1, 1]),
    T.RandomOrder([T.ColorJitter(0.4), T.RandomRotation(9), T.RandomCrop(9, 8)]),
]


PART = (150, 120, 350, 270)
"""Part of a photograph that is large enough for all of them: left, top, right, bottom."""


def taken_by(recipe: T.Recipe, *images: Tensor) -> list[Tensor]:
    """Return the images that a recipe takes: JPEG compresses bytes only."""
    return [i for i in images if not (isinstance(recipe, T.JPEG) and i.is_floating_point())]


every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)


def test_all_public_recipes_are_tested() -> None:
    public = {getattr(T, name) for name in T.__all__}
    recipes = {kind for kind in public if isinstance(kind, type) and issubclass(kind, T.Recipe)}
    assert recipes - {T.Recipe} == {type(recipe) for recipe in RECIPES}


@every_recipe
def test_every_number_has_a_name(recipe: T.Recipe) -> None:
    """A loader's draws() uses the names."""
    drawn = recipe.draw(np.full((2, recipe.num_draws), 0.5), np.array([[90, 80], [70, 120]]))
    assert len(recipe.number_names) == drawn.numbers.shape[1]
    named = recipe.named(drawn)
    assert named.pop("recipe") == type(recipe).__name__
    assert list(named) == list(recipe.number_names)
    assert all(np.array_equal(named[name], drawn.numbers[:, i]) for i, name in enumerate(named))


@every_recipe
def test_arguments_are_torchvisions(recipe: T.Recipe) -> None:
    """The same names in the same order with the same defaults."""
    if isinstance(recipe, T.ToMemoryFormat):
        return  # torchvision has none
    ours = inspect.signature(type(recipe)).parameters
    theirs = inspect.signature(getattr(v2, type(recipe).__name__)).parameters
    defaults = {name: given.default for name, given in theirs.items()}
    assert list(ours) == list(theirs)
    assert in_torchvisions_words({name: given.default for name, given in ours.items()}) == (
        in_torchvisions_words(defaults)
    )


@every_recipe
def test_rows_depend_on_their_own_sample_alone(recipe: T.Recipe) -> None:
    """Any part of a batch, drawn alone, gets the same numbers and sizes."""
    generator = np.random.default_rng(5)
    uniforms = generator.random((12, recipe.num_draws))
    sizes = generator.integers(1, 700, (12, 2))
    whole = recipe.draw(uniforms, sizes)
    for part in (slice(5, 8), slice(11, None), slice(0, 0), slice(None, None, 3)):
        drawn = recipe.draw(uniforms[part], sizes[part])
        assert np.array_equal(drawn.numbers, whole.numbers[part])
        assert np.array_equal(drawn.sizes, whole.sizes[part])
        assert drawn.numbers.dtype == whole.numbers.dtype


@pytest.mark.parametrize(
    "kind",
    [
        *(T.RandomHorizontalFlip, T.RandomVerticalFlip, T.RandomGrayscale),
        *(T.RandomInvert, T.RandomAutocontrast, T.RandomEqualize),
        *(partial(T.RandomPosterize, 3), partial(T.RandomSolarize, 9)),
        partial(T.RandomAdjustSharpness, 2),
    ],
)
def test_an_image_is_chosen_with_a_probability_and_left_alone_otherwise(kind: Any) -> None:
    """0 and 1 are never and always."""
    image = decoded("coffee")
    assert kind().apply(image, [0]) is image
    for p in (0.0, 0.1, 0.5, 1.0):
        rows = rows_for(kind(p), image, 4000)
        assert stats.binomtest(sum(chosen for (chosen,) in rows), len(rows), p).pvalue > 1e-3
        edges = kind(p).draw(np.array([[0.0], [1 - 2.0**-32]]), np.ones((2, 2), np.int64))
        assert edges.numbers.tolist() == [[int(p > 0)], [int(p == 1)]]


@pytest.mark.fuzz
@every_recipe
def test_apply_is_pure(recipe: T.Recipe) -> None:
    """The image stays unchanged, layout does not matter, and sizes are as drawn."""
    smallest = noise(2, 3) if isinstance(recipe, (T.GaussianBlur, T.RandomChoice)) else noise(1, 1)
    images = decoded("coffee"), smallest, noise(37, 53), as_float(noise(37, 53))
    for image in taken_by(recipe, *images):
        before = image.clone()
        drawn = recipe.draw(
            np.random.default_rng(6).random((3, recipe.num_draws)), sizes_of([image] * 3)
        )
        for numbers, size in zip(drawn.numbers.tolist(), drawn.sizes.tolist(), strict=True):
            made = recipe.apply(image, numbers)
            assert torch.equal(image, before)
            assert torch.equal(recipe.apply(image.contiguous(), numbers), made)
            assert list(made.shape[1:]) == size
            assert made.dtype is recipe.dtype_after(image.dtype)


@every_recipe
def test_apply_into_and_a_pickled_copy_give_what_apply_gives(recipe: T.Recipe) -> None:
    """Bit for bit, whether or not the recipe writes straight into the batch.

    Workers are spawned as well as forked.
    """
    copy = pickle.loads(pickle.dumps(recipe))
    assert copy.fingerprint() == recipe.fingerprint()
    for image in taken_by(recipe, decoded("rocket", PART), as_float(noise(37, 53))):
        drawn = recipe.draw(np.full((1, recipe.num_draws), 0.3), sizes_of([image]))
        (numbers,) = drawn.numbers.tolist()
        made = recipe.apply(image, numbers)
        out = torch.empty(made.shape, dtype=made.dtype)
        recipe.apply_into(image, numbers, out)
        assert torch.equal(out, made)
        assert torch.equal(copy.apply(image, numbers), made)


@pytest.mark.fuzz
@every_recipe
def test_threads_do_not_matter(recipe: T.Recipe) -> None:
    """One intra-op thread or two, the same bits; on more pixels than one task takes."""
    image = noise(321, 239)
    drawn = recipe.draw(np.full((1, recipe.num_draws), 0.4), sizes_of([image]))
    (numbers,) = drawn.numbers.tolist()
    for pixels in taken_by(recipe, image, as_float(image), as_float(image).contiguous()):
        torch.set_num_threads(1)
        alone = recipe.apply(pixels, numbers)
        torch.set_num_threads(2)
        assert torch.equal(recipe.apply(pixels, numbers), alone)


@every_recipe
def test_a_call_draws_from_torchs_default_generator(recipe: T.Recipe) -> None:
    """So a recipe works in any pipeline. It draws exactly its budget."""
    image = tv_tensors.Image(decoded("coffee", PART))
    torch.manual_seed(7)
    first, after = recipe(image), torch.rand(1)
    assert isinstance(first, tv_tensors.Image)
    torch.manual_seed(7)
    pipeline = v2.Compose([v2.PILToTensor(), v2.ToImage(), recipe, v2.ToDtype(torch.float32)])
    assert torch.equal(pipeline(photograph("coffee").crop(PART)), first.to(torch.float32))
    torch.manual_seed(7)
    uniforms = torch.rand(1, recipe.num_draws, dtype=torch.float64).numpy()
    (numbers,) = recipe.draw(uniforms, sizes_of([image])).numbers.tolist()
    assert torch.equal(first, recipe.apply(decoded("coffee", PART), numbers))
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    ("image", "error", "match"),
    [
        (photograph("coffee"), TypeError, "PILToTensor"),
        (np.zeros((4, 4, 3)), TypeError, "ndarray"),
        (torch.zeros(2, 3, 4, 4), ValueError, r"\[2, 3, 4, 4\]"),
        (tv_tensors.Mask(torch.zeros(1, 4, 4)), TypeError, "Mask"),
    ],
    ids=["PIL", "numpy", "batch", "mask"],
)
def test_a_call_refuses_what_is_no_image(image: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        T.RandomHorizontalFlip()(image)  # type: ignore[arg-type]


FINGERPRINTS = [
    (
        T.RandomResizedCrop(224),
        "RandomResizedCrop(size=(224, 224), scale=(0.08, 1.0), "
        "ratio=(0.75, 1.3333333333333333), interpolation='bilinear', antialias=True)",
    ),
    (
        T.Resize([256], antialias=None),
        "Resize(size=(256,), interpolation='bilinear', max_size=None, antialias=False)",
    ),
    (
        T.RandomCrop(32, padding=(4, 2), fill=0),
        "RandomCrop(size=(32, 32), padding=(4, 2, 4, 2), pad_if_needed=False, fill=0.0, "
        "padding_mode='constant')",
    ),
    (T.RandomHorizontalFlip(1), "RandomHorizontalFlip(p=1.0)"),
    (T.ToDtype(torch.float16), "ToDtype(dtype=torch.float16, scale=False)"),
    (T.Normalize((0, 0), (1, 1)), "Normalize(mean=(0.0, 0.0), std=(1.0, 1.0), inplace=False)"),
    (
        T.RandomRotation(10, center=(3, 4)),
        "RandomRotation(degrees=(-10.0, 10.0), interpolation='nearest', expand=False, "
        "center=(3.0, 4.0), fill=0.0)",
    ),
    (T.ToMemoryFormat(torch.channels_last), "ToMemoryFormat(memory_format=torch.channels_last)"),
    (T.JPEG((10, 90)), "JPEG(quality=(10, 90))"),
    (
        T.TrivialAugmentWide(),
        "TrivialAugmentWide(num_magnitude_bins=31, interpolation='nearest', fill=None)",
    ),
    (
        T.RandAugment(np.int64(2), fill=[1, 2, 3]),
        "RandAugment(num_ops=2, magnitude=9, num_magnitude_bins=31, interpolation='nearest', "
        "fill=(1.0, 2.0, 3.0))",
    ),
    (
        T.AutoAugment(AutoAugmentPolicy.SVHN),
        "AutoAugment(policy='svhn', interpolation='nearest', fill=None)",
    ),
    (
        T.AugMix(),
        "AugMix(severity=3, mixture_width=3, chain_depth=-1, alpha=1.0, all_ops=True, "
        "interpolation='bilinear', fill=None)",
    ),
]


@pytest.mark.parametrize(("recipe", "text"), FINGERPRINTS, ids=lambda value: type(value).__name__)
def test_fingerprint_is_canonical(recipe: T.Recipe, text: str) -> None:
    """Made from arguments alone, in any spelling; golden, since states hold it.

    A class of the same name elsewhere is another one.
    """
    assert recipe.fingerprint() == repr(recipe) == text
    assert RandomHorizontalFlip(3).fingerprint() == f"{__name__}.RandomHorizontalFlip(size=(3, 3))"


class RandomHorizontalFlip(T.CenterCrop):
    """A user's own recipe, under a name that is taken."""


@pytest.mark.parametrize(
    ("numbers", "sizes"),
    [
        (np.zeros(3), np.zeros((3, 2), np.int64)),
        (np.zeros((3, 1), np.float32), np.zeros((3, 2), np.int64)),
        (np.zeros((3, 1)), np.zeros((2, 2), np.int64)),
        (np.zeros((3, 1)), np.zeros((3, 2))),
    ],
)
def test_draw_checks_itself(numbers: np.ndarray, sizes: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a recipe drew"):
        T.Draw(numbers, sizes)
