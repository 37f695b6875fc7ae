"""from_torchvision: recipes equivalent to torchvision's or timm's transforms.

A transform is recognized by the module and name of its class, without importing either package.
Subclasses are not recognized.
"""

from __future__ import annotations

import copy
import dis
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from stateful_gpu_loader.errors import RefusedPart, UnsupportedTransform
from stateful_gpu_loader.transforms.auto_augment import AugMix, AutoAugment
from stateful_gpu_loader.transforms.choices import RandomApply, RandomChoice, RandomOrder
from stateful_gpu_loader.transforms.color.blur import GaussianBlur
from stateful_gpu_loader.transforms.color.erasing import RandomErasing
from stateful_gpu_loader.transforms.color.jitter import ColorJitter, RandomGrayscale
from stateful_gpu_loader.transforms.color.jpeg import JPEG
from stateful_gpu_loader.transforms.color.photometric import RandomPhotometricDistort
from stateful_gpu_loader.transforms.color.tones import (
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from stateful_gpu_loader.transforms.compose import Compose
from stateful_gpu_loader.transforms.geometry.affine import RandomAffine, RandomRotation
from stateful_gpu_loader.transforms.geometry.crops import CenterCrop, RandomCrop, RandomResizedCrop
from stateful_gpu_loader.transforms.geometry.flips import RandomHorizontalFlip, RandomVerticalFlip
from stateful_gpu_loader.transforms.geometry.pads import Pad, RandomZoomOut
from stateful_gpu_loader.transforms.geometry.perspective import RandomPerspective
from stateful_gpu_loader.transforms.geometry.random_sizes import (
    RandomResize,
    RandomShortestSize,
    ScaleJitter,
)
from stateful_gpu_loader.transforms.geometry.resize import Resize
from stateful_gpu_loader.transforms.policies import RandAugment, TrivialAugmentWide
from stateful_gpu_loader.transforms.recipe import Recipe
from stateful_gpu_loader.transforms.values import Normalize, ToDtype


def from_torchvision(transform: Any) -> Compose:
    """Return equivalent recipes of a transform: the same arguments and distributions.

    The images are those of torchvision's datasets: RGB, from Pillow. A transform gets uint8 tensors
    if it converts no Pillow image to a tensor, or begins with ``ToPILImage``.

    For the same seed, recipes and torchvision draw different numbers.
    ``docs/coming-from/torchvision.md`` says how much pixels differ for the same numbers.

    Args:
        transform: a transform or a ``Compose`` of ``torchvision.transforms`` or of its ``v2``, a
            list, an ``nn.Sequential``, a preset such as ``weights.transforms()``, or the result of
            timm's ``create_transform``. It may contain recipes. An object whose call only calls its
            attribute ``transforms`` or ``transform``, such as the presets of torchvision's
            references, stands for that attribute.

    Raises:
        UnsupportedTransform: some parts have no equivalent recipe; ``refused`` names them.

    >>> from torchvision.transforms import v2
    >>> from_torchvision(v2.Compose([
    ...     v2.PILToTensor(), v2.CenterCrop(224), v2.RandomHorizontalFlip(),
    ...     v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.25]),
    ... ])).recipes[1:]
    (RandomHorizontalFlip(p=0.5), Normalize(mean=(0.5,), std=(0.25,), inplace=False))
    >>> from_torchvision(v2.Compose([v2.FiveCrop(8)]))
    Traceback (most recent call last):
        ...
    stateful_gpu_loader.errors.UnsupportedTransform: no recipe equals transform.transforms[0]: \
torchvision.transforms.v2.FiveCrop(size=(8, 8)), because it makes several images of one. Remedy: \
leave out these parts, or keep the transform in the dataset: a loader runs it in worker processes, \
and resumes as exactly
    """
    return _converted(transform, _given_to(_leaves(transform)))


def from_pillow(transform: Any) -> Compose:
    """Return the recipes as :func:`from_torchvision` does, of a transform of Pillow images.

    Raises:
        UnsupportedTransform: parts have no equivalent recipe, or nothing converts the images to
            tensors.
    """
    return _converted(transform, _Kind.PIL)


def _converted(transform: Any, kind: _Kind) -> Compose:
    conversion = _Conversion(kind)
    recipes = conversion.convert(transform, "transform")
    if conversion.kind is _Kind.PIL and not conversion.refused:
        conversion.refuse("transform", transform, "it ends with Pillow images")
    if conversion.refused:
        raise UnsupportedTransform(conversion.refused)
    return Compose(_without_scaling_twice(recipes))


class _Kind(Enum):
    """Type of the image between two transforms."""

    PIL = auto()
    TENSOR = auto()
    """A tensor, or an array that becomes one."""
    TV_TENSOR = auto()
    """A ``tv_tensors.Image``."""


class _NoEqualError(Exception):
    """A transform has no equivalent recipe; the text is the reason."""


class _Conversion:
    """Converts transforms in the order of their calls.

    Args:
        kind: type of the first transform's input.
    """

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.dtype = torch.uint8
        self.refused: list[RefusedPart] = []

    def convert(self, transform: Any, place: str) -> list[Recipe]:
        """Return the recipes of a transform; add parts without a recipe to :attr:`refused`."""
        if isinstance(transform, (Recipe, Compose)):
            return self._kept(transform)
        inside, name = _inside(transform), _known_name(transform)
        is_known = inside is not None or name is not None
        changed = _changed(transform) if is_known else None
        if changed is not None:
            self.refuse(place, transform, changed)
            return []
        if inside is not None:
            attribute, parts = inside
            return [
                recipe
                for i, part in enumerate(parts)
                for recipe in self.convert(part, f"{place}{attribute}[{i}]")
            ]
        if name in _CHOOSING:
            return self._choosing(_CHOOSING[name], transform, place)
        convert = _CONVERTERS.get(name or "")
        if convert is None:
            held = _held(transform) if name is None else None
            if held is not None:
                attribute, part = held
                return self.convert(part, f"{place}.{attribute}")
            self.refuse(place, transform, _REASONS.get(name or "") or _reason(name))
            return []
        try:
            return self._kept(*convert(self, transform))
        except (_NoEqualError, TypeError, ValueError) as error:
            # A recipe's remedy is for users of recipes, so it is cut off.
            self.refuse(place, transform, str(error).partition(" Remedy:")[0].rstrip("."))
            return []

    def _choosing(self, recipe: Callable[..., Recipe], transform: Any, place: str) -> list[Recipe]:
        """Convert the parts of one of :data:`_CHOOSING`, which must keep the image's type."""
        before, refused = (self.kind, self.dtype), len(self.refused)
        parts = []
        for i, part in enumerate(transform.transforms):
            parts.append(Compose(self.convert(part, f"{place}.transforms[{i}]")))
            if (self.kind, self.dtype) != before:
                reason = "it would change the type of some images of a batch"
                self.refuse(f"{place}.transforms[{i}]", part, reason)
                self.kind, self.dtype = before
        if len(self.refused) > refused or not any(part.recipes for part in parts):
            return []
        chances = () if recipe is RandomOrder else (transform.p,)
        return self._kept(recipe(parts, *chances))

    def refuse(self, place: str, transform: Any, reason: str) -> None:
        self.refused.append(RefusedPart(place, transform, reason))

    def _kept(self, *steps: Recipe | Compose) -> list[Recipe]:
        recipes = list(Compose(steps).recipes)
        for recipe in recipes:
            self.dtype = recipe.dtype_after(self.dtype)
        return recipes


_Converter = Callable[[_Conversion, Any], list[Recipe]]


def _inside(transform: Any) -> tuple[str, Sequence[Any]] | None:
    """Return the attribute with the steps of a transform, and the steps."""
    if isinstance(transform, (list, tuple)):
        return "", transform
    if type(transform) is nn.Sequential:
        return "", list(transform)
    if _known_name(transform) == "Compose":
        return ".transforms", transform.transforms
    return None


def _leaves(transform: Any) -> Iterator[Any]:
    """Yield the transforms that are called, in order."""
    inside, held = _inside(transform), None
    if inside is None and _known_name(transform) is None:
        held = _held(transform)
    parts = inside[1] if inside is not None else [held[1]] if held is not None else None
    if parts is None:
        yield transform
        return
    for part in parts:
        yield from _leaves(part)


def _given_to(leaves: Iterable[Any]) -> _Kind:
    """Return the type of the first transform's input, from the first one that needs a type."""
    for leaf in leaves:
        name = _known_name(leaf)
        if name == "ToPILImage":
            return _Kind.TENSOR
        if name in _FROM_PIL:
            return _Kind.PIL
    return _Kind.TENSOR


def _known_name(transform: Any) -> str | None:
    """Return the name of a class of torchvision or, with "timm." before it, of timm."""
    kind = type(transform)
    if kind.__module__.startswith("torchvision.transforms."):
        return str(kind.__name__)
    if kind.__module__.startswith("timm.data."):
        return f"timm.{kind.__name__}"
    return None


def _changed(transform: Any) -> str | None:
    """Return why an object does something else than its class says; None if it does the same."""
    own = getattr(transform, "__dict__", {})
    if own.get("_forward_hooks") or own.get("_forward_pre_hooks"):
        return "it has forward hooks, which are functions"
    replaced = [name for name in own if callable(getattr(type(transform), name, None))]
    return f"its method {replaced[0]} was replaced" if replaced else None


def _held(transform: Any) -> tuple[str, Any] | None:
    """Return the attribute and the transform to which an object only passes its image.

    The object is called with stand-ins for both, because a class may call its transform twice. Code
    with a branch does not count.
    """
    for name in ("transforms", "transform"):
        held = vars(transform).get(name) if hasattr(transform, "__dict__") else None
        if held is None and isinstance(transform, nn.Module):
            held = dict(transform.named_children()).get(name)
        if held is not None and _is_straight(transform, name) and _only_calls(transform, name):
            return name, held
    return None


def _is_straight(transform: Any, name: str) -> bool:
    """Whether all calls of an object run the same code, which names a single attribute."""
    kind = type(transform)
    call = getattr(kind, "forward" if isinstance(transform, nn.Module) else "__call__", None)
    code = getattr(call, "__code__", None)
    if code is None or {*code.co_names} != {name} or code.co_freevars:
        return False
    catches = bool(getattr(code, "co_exceptiontable", b""))  # before 3.11, such code has jumps
    return not catches and not any(
        step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
        for step in dis.get_instructions(code)
    )


def _only_calls(transform: Any, name: str) -> bool:
    image, made, calls = object(), object(), []

    def stand_in(*given: Any) -> object:
        calls.append(given)
        return made

    try:
        probe = copy.copy(transform)
        vars(probe)[name] = stand_in
        return probe(image) is made and calls == [(image,)]
    except Exception:
        return False


def _reason(name: str | None) -> str:
    if name is None:
        return "it is not part of torchvision or timm, and its code cannot be read"
    return "there is no such recipe"


def _same(recipe: type[Recipe]) -> _Converter:
    """Return a converter to a recipe whose arguments are the transform's attributes."""
    names = list(inspect.signature(recipe).parameters)

    def convert(conversion: _Conversion, transform: Any) -> list[Recipe]:
        arguments = {name: getattr(transform, name) for name in names if hasattr(transform, name)}
        if recipe is RandomCrop and _is_v2(transform) and transform.padding is not None:
            left, right, top, bottom = transform.padding  # torch's order
            arguments["padding"] = left, top, right, bottom
        return [recipe(**_for_a_recipe(conversion, arguments))]

    return convert


def _for_a_recipe(conversion: _Conversion, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's arguments, from a transform's attributes of the same names."""
    made = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            made[name] = value.tolist()
        elif name == "inplace":
            made[name] = False  # inplace does not change the result
        elif name == "fill" and isinstance(value, dict):
            made[name] = _for_the_image(conversion, value)
        elif name == "value" and value is None:
            made[name] = "random"
    if "antialias" in arguments and conversion.kind is _Kind.PIL:
        # Pillow always averages, except for nearest, which takes the middle pixel.
        made["antialias"] = True
        mode = made["interpolation"]
        made["interpolation"] = "nearest-exact" if _is_nearest(mode) else mode
    return made


def _is_nearest(interpolation: Any) -> bool:
    return getattr(interpolation, "value", interpolation) in ("nearest", 0)


def _is_v2(transform: Any) -> bool:
    return type(transform).__module__.startswith("torchvision.transforms.v2.")


def _for_the_image(conversion: _Conversion, values: dict[Any, Any]) -> Any:
    """Return the image's entry in one of v2's dicts of types."""
    import PIL.Image
    from torchvision import tv_tensors

    types = {
        _Kind.PIL: PIL.Image.Image,
        _Kind.TENSOR: torch.Tensor,
        _Kind.TV_TENSOR: tv_tensors.Image,
    }
    kind = types[conversion.kind]
    if kind not in values and "others" not in values:
        raise _NoEqualError(f"it has no entry for {kind.__name__}, the type of the image here")
    return values.get(kind, values.get("others"))


def _need_tensor(conversion: _Conversion) -> None:
    if conversion.kind is _Kind.PIL:
        raise _NoEqualError("it takes tensors only, and gets a Pillow image")


def _as_dtype(conversion: _Conversion, dtype: torch.dtype, *, scale: bool) -> list[Recipe]:
    return [] if dtype is conversion.dtype else [ToDtype(dtype, scale)]


def _to_dtype(conversion: _Conversion, transform: Any) -> list[Recipe]:
    dtype = transform.dtype
    if isinstance(dtype, dict):
        dtype = _for_the_image(conversion, dtype)
    if dtype is None or conversion.kind is _Kind.PIL:  # v2 does not change these images
        return []
    return _as_dtype(conversion, dtype, scale=transform.scale)


def _convert_image_dtype(conversion: _Conversion, transform: Any) -> list[Recipe]:
    _need_tensor(conversion)
    return _as_dtype(conversion, transform.dtype, scale=True)


def _normalize(conversion: _Conversion, transform: Any) -> list[Recipe]:
    _need_tensor(conversion)
    if not conversion.dtype.is_floating_point:
        raise _NoEqualError(f"it takes float images only, and gets {conversion.dtype}")
    return _same(Normalize)(conversion, transform)


def _nothing(conversion: _Conversion, transform: Any) -> list[Recipe]:
    return []


def _becomes(kind: _Kind) -> _Converter:
    """Return a converter of a transform from Pillow images to tensors, as decoders make."""

    def convert(conversion: _Conversion, transform: Any) -> list[Recipe]:
        conversion.kind = kind
        return []

    return convert


def _to_tensor(conversion: _Conversion, transform: Any) -> list[Recipe]:
    was, conversion.kind = conversion.kind, _Kind.TENSOR
    if was is not _Kind.PIL:  # only v1 refuses these images
        return []
    return _as_dtype(conversion, torch.get_default_dtype(), scale=True)


def _to_pure_tensor(conversion: _Conversion, transform: Any) -> list[Recipe]:
    if conversion.kind is _Kind.TV_TENSOR:
        conversion.kind = _Kind.TENSOR
    return []


def _to_pil(conversion: _Conversion, transform: Any) -> list[Recipe]:
    if conversion.dtype is not torch.uint8:
        raise _NoEqualError(f"it makes Pillow images of {conversion.dtype}")
    if transform.mode not in (None, "RGB"):
        raise _NoEqualError(f"it makes Pillow images of mode {transform.mode!r}")
    conversion.kind = _Kind.PIL
    return []


def _preset(conversion: _Conversion, transform: Any) -> list[Recipe]:
    """Return the steps of a preset (``weights.transforms()``), in the order of its code."""
    recipes: list[Recipe] = []
    if getattr(transform, "resize_size", None) is not None:
        names = ("interpolation", "antialias")
        arguments = {name: getattr(transform, name) for name in names}
        arguments = _for_a_recipe(conversion, {"size": transform.resize_size, **arguments})
        recipes.append(Resize(**arguments))
    if hasattr(transform, "crop_size"):
        recipes.append(CenterCrop(transform.crop_size))
    recipes.append(ToDtype(torch.float32, scale=True))
    if hasattr(transform, "mean"):
        recipes.append(Normalize(transform.mean, transform.std))
    conversion.kind = _Kind.TENSOR
    return recipes


def _timm_crop(conversion: _Conversion, transform: Any) -> list[Recipe]:
    modes = _as_list(transform.interpolation)
    crops: list[Recipe] = [
        RandomResizedCrop(transform.size, transform.scale, transform.ratio, mode) for mode in modes
    ]
    return crops if len(crops) == 1 else [RandomChoice(crops)]


def _timm_center_crop(conversion: _Conversion, transform: Any) -> list[Recipe]:
    pads_alike = transform.padding_mode == "constant" and not any(_as_list(transform.fill))
    if not pads_alike:
        raise _NoEqualError("it pads with other values than zeros")
    return [CenterCrop(transform.size)]


def _timm_erasing(conversion: _Conversion, transform: Any) -> list[Recipe]:
    if (transform.min_count, transform.max_count) != (1, 1):
        raise _NoEqualError("it erases several boxes")
    if transform.rand_color:
        raise _NoEqualError("it draws one color for a box")
    return [
        RandomErasing(
            transform.probability,
            scale=(transform.min_area, transform.max_area),
            ratio=[math.exp(bound) for bound in transform.log_aspect_ratio],
            value="random" if transform.per_pixel else 0.0,
        )
    ]


def _timm_to_tensor(conversion: _Conversion, transform: Any) -> list[Recipe]:
    conversion.kind = _Kind.TENSOR
    return _as_dtype(conversion, transform.dtype, scale=False)


def _as_list(numbers: Any) -> list[Any]:
    return list(numbers) if isinstance(numbers, (list, tuple)) else [numbers]


_CHOOSING: dict[str | None, Callable[..., Recipe]] = {
    "RandomApply": RandomApply,
    "RandomChoice": RandomChoice,
    "RandomOrder": RandomOrder,
}

_EQUAL = (
    JPEG,
    RandomPhotometricDistort,
    RandomPerspective,
    RandomZoomOut,
    ScaleJitter,
    RandomShortestSize,
    RandomResize,
    AugMix,
    AutoAugment,
    Pad,
    Grayscale,
    RandomAdjustSharpness,
    RandomEqualize,
    RandomAutocontrast,
    RandomSolarize,
    RandomPosterize,
    RandomInvert,
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    TrivialAugmentWide,
)
"""Recipes whose arguments are attributes of torchvision's transform of the same name."""

_CONVERTERS: dict[str, _Converter] = {
    **{recipe.__name__: _same(recipe) for recipe in _EQUAL},
    "ConvertImageDtype": _convert_image_dtype,
    "Identity": _nothing,
    "ImageClassification": _preset,
    "Normalize": _normalize,
    "ObjectDetection": _preset,
    "PILToTensor": _becomes(_Kind.TENSOR),
    "RGB": _nothing,
    "SemanticSegmentation": _preset,
    "ToDtype": _to_dtype,
    "ToImage": _becomes(_Kind.TV_TENSOR),
    "ToPILImage": _to_pil,
    "ToPureTensor": _to_pure_tensor,
    "ToTensor": _to_tensor,
    "timm.CenterCropOrPad": _timm_center_crop,
    "timm.MaybePILToTensor": _becomes(_Kind.TENSOR),
    "timm.MaybeToTensor": _to_tensor,
    "timm.RandomErasing": _timm_erasing,
    "timm.RandomResizedCropAndInterpolation": _timm_crop,
    "timm.ToNumpy": _becomes(_Kind.TENSOR),
    "timm.ToTensor": _timm_to_tensor,
}

_FROM_PIL = {
    *("ToTensor", "PILToTensor", "ToImage"),
    *("ImageClassification", "ObjectDetection", "SemanticSegmentation"),
    *("timm.ToTensor", "timm.ToNumpy", "timm.MaybeToTensor", "timm.MaybePILToTensor"),
}
"""Transforms that take Pillow images."""

_OTHER_OPERATIONS = "its operations and magnitudes are not those of torchvision's"
_MAKES_SEVERAL = "it makes several images of one"
_ON_BOXES = "it acts on boxes or points, and recipes act on the image"
_ON_BATCHES = "it acts on batches; as batch_transform= there are MixUp and CutMix"
_REASONS = {
    "ClampBoundingBoxes": _ON_BOXES,
    "ClampKeyPoints": _ON_BOXES,
    "ConvertBoundingBoxFormat": _ON_BOXES,
    "CutMix": _ON_BATCHES,
    "FiveCrop": _MAKES_SEVERAL,
    "Lambda": "it calls a function, whose code cannot be read",
    "MixUp": _ON_BATCHES,
    "RandomIoUCrop": "it draws from the boxes of a sample, and recipes draw from the image's size",
    "SanitizeBoundingBoxes": _ON_BOXES,
    "SanitizeKeyPoints": _ON_BOXES,
    "SetClampingMode": _ON_BOXES,
    "TenCrop": _MAKES_SEVERAL,
    "timm.AugMixAugment": _OTHER_OPERATIONS,
    "timm.AutoAugment": _OTHER_OPERATIONS,
    "timm.RandAugment": _OTHER_OPERATIONS,
}


def _without_scaling_twice(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Leave out a conversion that Normalize includes: bytes to float32 in [0, 1]."""
    kept: list[Recipe] = []
    dtypes = [torch.uint8]
    for recipe in recipes:
        before = kept[-1] if kept and isinstance(recipe, Normalize) else None
        is_scaled = isinstance(before, ToDtype) and before.scale
        if is_scaled and dtypes[-2:] == [torch.uint8, torch.float32]:
            kept.pop()
        kept.append(recipe)
        dtypes.append(recipe.dtype_after(dtypes[-1]))
    return kept
